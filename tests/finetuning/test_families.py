"""Tagging, multiple choice and custom data through their recipes, from a tiny untrained model."""

import random
from pathlib import Path

from running import recipe, results
from transformers import AutoModelForMultipleChoice

FAST = "--do_train --do_eval --bias_correction true --learning_rate 1e-2 --train_batch_size 8"


def write_tags(path: Path, sentences: int, seed: int) -> Path:
    """Whether a word is a THING is in the word itself; documents of four sentences."""
    generator = random.Random(seed)
    things = {"river", "stone", "tree", "house"}
    lines = []
    for number in range(sentences):
        lines += ["", "-DOCSTART- O", ""] if number % 4 == 0 else [""]
        words = generator.choices(["the", "a", "runs", "slowly", "green", *sorted(things)], k=generator.randint(1, 9))
        lines += [f"{word} {'B-THING' if word in things else 'O'}" for word in words]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_a_tagger_of_ones_own_learns_and_is_scored_alike_again(untrained: Path, tmp_path: Path) -> None:
    train, dev = write_tags(tmp_path / "train.txt", 96, 0), write_tags(tmp_path / "dev.txt", 30, 1)
    own = ["--validation_file", dev, "--test_file", dev, "--max_seq_length 16"]
    first = tmp_path / "first"
    start = ["--model_name_or_path", untrained, "--output_dir", first, "--train_file", train, *own]
    assert recipe("run_ner", *start, FAST, "--do_predict --num_train_epochs 6") == 0
    record = results(first)
    assert record["metrics"]["entity_f1"] > 0.9
    assert record["rows_scored"] == 30
    assert record["splits"]["test"]["metrics"] == record["metrics"]  # a test set with tags is scored as well
    for packing, context in (("true", "tile"), ("false", "tile"), ("true", "centred")):
        again = tmp_path / f"{packing}-{context}"
        settings = ["--do_eval --packing", packing, "--ner_context", context, "--output_dir", again]
        assert recipe("run_ner", "--model_name_or_path", first, *own, *settings) == 0
        if context == "tile":
            assert results(again)["metrics"] == record["metrics"]
        assert (again / "predictions.validation.txt").read_text().count("\n\n") == 30


def test_a_folder_that_is_trained_again_keeps_nothing_of_its_earlier_model(untrained: Path, tmp_path: Path) -> None:
    out, dev = tmp_path / "out", write_tags(tmp_path / "dev.txt", 8, 1)
    stale = ["onnx/model.onnx", "adapter/adapter_config.json", "predictions.json"]
    stale += ["predictions.test.txt", "nbest_predictions.json", "nbest_predictions.test.json", "null_odds.test.json"]
    for name in (*stale, "notes.txt"):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text("older")
    start = ["--model_name_or_path", untrained, "--output_dir", out, "--train_file", dev, "--validation_file", dev]
    assert recipe("run_ner", *start, FAST, "--max_seq_length 16 --max_steps 1 --overwrite_output_dir") == 0
    assert [name for name in stale if (out / name).exists()] == []
    assert (out / "notes.txt").exists() and (out / "predictions.validation.txt").exists()


def test_swag_trains_is_scored_and_loads_in_upstream_transformers(untrained: Path, tmp_path: Path) -> None:
    header = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label"
    for name, count in (("train.csv", 16), ("val.csv", 6)):
        rows = [f"{n},v,1,x,the river runs,a stone,gold,falls,sings,grows,turns,{n % 4}" for n in range(count)]
        (tmp_path / name).write_text("\n".join([header, *rows]) + "\n")
    common = ["--data_dir", tmp_path, "--do_eval --output_dir"]
    first = ["run_swag", "--model_name_or_path", untrained, "--do_train --max_steps 2", *common, tmp_path / "run"]
    assert recipe(*first) == 0
    record = results(tmp_path / "run")
    assert record["train"]["batch"] == 16 and record["rows_scored"] == 6
    assert type(AutoModelForMultipleChoice.from_pretrained(tmp_path / "run")).__module__.startswith("transformers.")
    again = ["run_swag", "--model_name_or_path", tmp_path / "run", "--packing false", *common, tmp_path / "again"]
    assert recipe(*again) == 0
    assert results(tmp_path / "again")["metrics"] == record["metrics"]
