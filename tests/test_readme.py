"""What README.md says is true: its Python runs, its numbers are those of stored files (its commands: test_docs.py)."""

import csv
import importlib
import io
import json
import re
import shlex
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from running import recipe

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text("utf-8")
EXAMPLE_BLOCK = re.compile(r"<!-- run by tests/test_readme\.py -->\n```bash\n(.*?)```", re.DOTALL)
SNIPPETS = re.findall(r"```python\n(.*?)```\n\n```\n(.*?)```", README, re.DOTALL)


def commands_of(block: str) -> list[list[str]]:
    """Returns the commands of a code block, each as a list of words."""
    lines = re.sub(r"\\\n\s*", " ", block).strip().splitlines()
    return [shlex.split(line) for line in lines]


EXAMPLE = commands_of("".join(EXAMPLE_BLOCK.findall(README)))


@pytest.mark.parametrize(("snippet", "output"), SNIPPETS)
def test_its_python_prints_what_it_says(
    snippet: str, output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "checkpoints").symlink_to(ROOT / "checkpoints")
    monkeypatch.chdir(tmp_path)
    exec(compile(snippet, "README.md", "exec"), {})
    assert capsys.readouterr().out == output


def test_the_scores_of_the_checkpoint_are_those_of_its_results() -> None:
    results = json.loads((ROOT / "checkpoints" / "bert-repro-mini" / "results.json").read_text("utf-8"))
    metrics, masked = results["metrics"], results["mlm_breakdown"]["by_action"]["mask"]
    for value in (metrics["mlm_accuracy"], metrics["nsp_accuracy"], masked["accuracy"]):
        assert f"{value:.3f}" in README
    assert f"{results['train']['seconds'] / 3600:.1f} hours" in README


def test_the_scores_of_its_example_are_those_of_the_stored_run() -> None:
    record = json.loads((ROOT / "examples" / "results.json").read_text("utf-8"))
    scores = ", ".join(f"{name} {value:.4f}" for name, value in record["metrics"].items())
    assert f"custom validation: {scores}\n" in README
    baselines = ", ".join(f"{name} {values['accuracy']:.4f}" for name, values in record["baselines"].items())
    assert f"baselines on the same rows: accuracy: {baselines}\n" in README
    assert shlex.split(record["command"]) in EXAMPLE


def test_every_command_of_its_example_runs_in_a_fresh_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder holds only what a clone of the repository holds. Training stops after two steps."""
    for name in ("checkpoints", "examples"):
        shutil.copytree(ROOT / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    assert [words[1] for words in EXAMPLE] == ["run_glue", "predict"]
    for words in EXAMPLE:
        assert words[0] == "bert-repro"
        shorter = ["--max_steps", "2"] if words[1] == "run_glue" else []
        assert recipe(words[1], *words[2:], *shorter) == 0, words
    # Other probabilities, but the same columns and texts as README shows.
    answers = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    printed = list(csv.reader(io.StringIO(README[README.index("text,prediction,") :].split("\n```")[0])))
    assert answers[0] == printed[0]
    assert [row[0] for row in answers] == [row[0] for row in printed]


def test_its_commands_for_pretraining_run(
    world: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```bash\n(python recipes/quickstart_text\.py .*?)```", README, re.DOTALL)
    first, *commands = commands_of(block)
    # The first command takes half a minute, so a small text takes the place of the docstrings.
    (tmp_path / "runs").mkdir()
    shutil.copy(world.text, first[-1])
    smaller = {
        "train_tokenizer": ["--vocab_size", "150"],
        "run_pretraining": shlex.split(
            "--max_steps 2 --num_hidden_layers 1 --hidden_size 32 --max_seq_length 32 --train_batch_size 4 "
            "--mixed_precision no"
        ),
    }
    assert [words[1] for words in commands] == ["train_tokenizer", "prepare_corpus", "run_pretraining"]
    for words in commands:
        assert recipe(words[1], *words[2:], *smaller.get(words[1], [])) == 0, words


def test_the_speeds_are_those_of_the_benchmark() -> None:
    record = ROOT / "benchmarks" / "results" / "2026-11-25-pretraining_step-two-cores-amx-cpu.json"
    rows = re.search(r"4 layers of 512 \| (.*)\n\| the same, BERT-base \| (.*)", README)
    assert rows is not None
    for row, case in zip(rows.groups(), json.loads(record.read_text("utf-8"))["cases"], strict=True):
        ratio = {name: made["ours_is_faster_by"]["median"] for name, made in case["candidates"].items()}
        kept = min(value for name, value in ratio.items() if name.endswith("kept memory") and "transformers" in name)
        assert re.findall(r"[\d.]+x", row) == [f"{ratio['transformers, compiled']:.2f}x", f"{kept:.2f}x"]


def test_the_speeds_in_float32_are_against_the_faster_of_tuned_and_compiled_transformers() -> None:
    record = ROOT / "benchmarks" / "results" / "2026-11-25-pretraining_step-two-cores-avx2-cpu.json"
    row = re.search(r"both in float32 .*", README)
    assert row is not None
    plain, kept = [], []
    for case in json.loads(record.read_text("utf-8"))["cases"]:
        ratio = {name: made["ours_is_faster_by"]["median"] for name, made in case["candidates"].items()}
        plain.append(f"{min(ratio['transformers, tuned'], ratio['transformers, compiled']):.2f}x")
        with_kept_memory = ("transformers, tuned, kept memory", "transformers, compiled, kept memory")
        kept.append(f"{min(ratio[name] for name in with_kept_memory):.2f}x")
    assert re.findall(r"[\d.]+x", row[0]) == [*plain, *kept]


def test_the_tables_of_scores_are_those_of_the_stored_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    script = importlib.import_module("small_models")
    short, long = script.tables(script.RUNS, json.loads((script.RUNS / script.BASELINES).read_text("utf-8")))
    assert short in README
    assert long in (ROOT / "docs" / "explanations" / "small_models.md").read_text("utf-8")
