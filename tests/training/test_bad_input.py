"""Bad input: one clear line that names the place, the value and the fix; exit code 2; nothing saved is harmed."""

import fcntl
import json
import os
from pathlib import Path
from typing import Any

import pytest
from running import TINY, recipe


def assert_message(capsys: pytest.CaptureFixture[str], *expected: str) -> None:
    """The last line of stderr is the error; there is no traceback."""
    stderr = capsys.readouterr().err
    last = stderr.rstrip().splitlines()[-1]
    assert "Traceback" not in stderr
    assert last.startswith("error: "), last
    for part in expected:
        assert part in last


def prepare(world: Any, tmp_path: Path, source: Path | str) -> int:
    return recipe(
        "prepare_corpus", "--tokenizer", world.tokenizer, "--output_dir", tmp_path / "out", "--input_files", source
    )


def pretrain(world: Any, tmp_path: Path, *arguments: object) -> int:
    base = ["--corpus", world.corpus, "--output_dir", tmp_path / "out", "--max_steps 1"]
    return recipe("run_pretraining", TINY, *base, *arguments)


def glue(world: Any, tmp_path: Path, *arguments: object) -> int:
    base = [
        "--model_name_or_path",
        world.root / "pretrained",
        "--output_dir",
        tmp_path / "out",
        "--data_dir",
        world.glue,
    ]
    return recipe("run_glue", *base, "--do_eval --do_train --max_steps 1", *arguments)


def test_missing_file(world: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert prepare(world, tmp_path, tmp_path / "nowhere.txt") == 2
    assert_message(capsys, "nowhere.txt")


def test_empty_corpus(world: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty.txt").write_text("\n\n")
    assert prepare(world, tmp_path, tmp_path / "empty.txt") == 2
    assert_message(capsys, "empty")


def test_bad_utf8(world: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.txt").write_bytes(b"fine line\nbroken \xff line\n")
    assert prepare(world, tmp_path, tmp_path / "bad.txt") == 2
    assert_message(capsys, "bad.txt", "2", "UTF-8")


def test_bad_json_line(world: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.jsonl").write_text('{"text": "A fine line here."}\n{"text": \n')
    assert prepare(world, tmp_path, tmp_path / "bad.jsonl") == 2
    assert_message(capsys, "bad.jsonl", "2")


def test_missing_text_field(world: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other.jsonl").write_text('{"body": "A fine line here."}\n')
    assert prepare(world, tmp_path, tmp_path / "other.jsonl") == 2
    assert_message(capsys, "other.jsonl", "text")


def test_one_document_corpus_with_nsp(world: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "one.txt").write_text(world.text.read_text().split("\n\n")[0] + "\n")
    assert prepare(world, tmp_path, tmp_path / "one.txt") == 0
    assert (
        recipe("run_pretraining", TINY, "--max_steps 1 --corpus", tmp_path / "out", "--output_dir", tmp_path / "run")
        == 2
    )
    assert_message(capsys, "document")


def test_hidden_size_not_divisible_by_the_heads(world: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pretrain(world, tmp_path, "--hidden_size 33") == 2
    assert_message(capsys, "--hidden_size is 33", "--num_attention_heads")


def test_sequences_longer_than_the_positions(world: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pretrain(world, tmp_path, "--max_seq_length 513") == 2
    assert_message(capsys, "513", "512")


def test_vocabulary_smaller_than_the_ids(world: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from bert_repro import BertReproConfig, BertReproForPreTraining

    shape = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
    BertReproForPreTraining(BertReproConfig(vocab_size=20, **shape)).save_pretrained(tmp_path / "small")
    assert pretrain(world, tmp_path, "--model_name_or_path", tmp_path / "small") == 2
    assert_message(capsys, "20", "150")


def test_no_such_corpus_or_model(world: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        recipe("run_pretraining", TINY, "--max_steps 1 --corpus", tmp_path / "no", "--output_dir", tmp_path / "out")
        == 2
    )
    assert_message(capsys, "prepared corpus")
    assert glue(world, tmp_path, "--task_name sst2 --model_name_or_path", tmp_path / "no") == 2
    assert_message(capsys, str(tmp_path / "no"))


def test_unknown_task(world: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert glue(world, tmp_path, "--task_name sst3") == 2
    assert_message(capsys, "'sst3'", "sst2")


def test_a_model_without_a_classifier_is_not_scored(world: Any, pretrained: Path, tmp_path: Path, capsys: Any) -> None:
    arguments = ["--model_name_or_path", pretrained, "--data_dir", world.glue, "--output_dir", tmp_path / "out"]
    assert recipe("run_glue", "--task_name sst2 --do_eval", *arguments) == 2
    assert_message(capsys, "classifier", "--do_train")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("text\tlabel\nfine\t1\n", "sentence"),
        ("sentence\tlabel\nfine\t1\nbroken\n", "train.tsv"),
        ("sentence\tlabel\nfine\t7\n", "'7'"),
        ("sentence\tlabel\n", "train.tsv"),
    ],
    ids=["missing column", "wrong column count", "label out of range", "empty split"],
)
def test_bad_task_files(
    world: Any, pretrained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, expected: str
) -> None:
    (tmp_path / "glue/SST-2").mkdir(parents=True)
    (tmp_path / "glue/SST-2/train.tsv").write_text(content)
    assert glue(world, tmp_path, "--task_name sst2 --data_dir", tmp_path / "glue") == 2
    assert_message(capsys, expected, "train.tsv")


def test_an_output_folder_of_another_run_is_left_alone(
    world: Any, pretrained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in pretrained.rglob("*") if path.is_file()}
    assert pretrain(world, tmp_path, "--output_dir", pretrained) == 2
    assert_message(capsys, "not empty", "--overwrite_output_dir", "--resume_from_checkpoint")
    assert {path: path.stat().st_mtime_ns for path in pretrained.rglob("*") if path.is_file()} == before


def test_the_error_is_in_status_json(world: Any, tmp_path: Path) -> None:
    assert pretrain(world, tmp_path, "--max_seq_length 600") == 2
    status = json.loads((tmp_path / "out" / "status.json").read_text())
    assert status["code"] == 2 and "600" in status["reason"]


def test_a_folder_that_another_run_is_writing_is_refused_and_left_alone(
    world: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "run"
    output.mkdir()
    (output / "model.safetensors").write_bytes(b"of the other run")
    other_run = os.open(output, os.O_RDONLY)
    fcntl.flock(other_run, fcntl.LOCK_EX)
    code = recipe(
        "run_pretraining", TINY, "--corpus", world.corpus, "--output_dir", output,
        "--max_steps 1 --overwrite_output_dir true",
    )  # fmt: skip
    os.close(other_run)
    assert code == 2
    assert_message(capsys, str(output), "is written by a run that is not finished")
    assert [path.name for path in output.iterdir()] == ["model.safetensors"]


def test_attention_that_is_not_there(world: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pretrain(world, tmp_path, "--attn_implementation kernels-community/flash-attn2") == 2
    assert_message(capsys, "--attn_implementation kernels-community/flash-attn2: ", "pip install kernels")
