"""What README.md says is true: its Python runs, its numbers are those of stored files (its commands: test_docs.py)."""

import importlib
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text("utf-8")
SNIPPETS = re.findall(r"```python\n(.*?)```\n\n```\n(.*?)```", README, re.DOTALL)


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
    record = ROOT / "model_cards" / "bert-repro-mini-stsb" / "csv" / "results.json"
    shown = ", ".join(f"{name} {value:.4f}" for name, value in json.loads(record.read_text("utf-8"))["metrics"].items())
    assert f"custom validation: {shown}\n" in README


def test_the_speeds_are_those_of_the_benchmark() -> None:
    record = ROOT / "benchmarks" / "results" / "2026-11-25-pretraining_step-two-cores-amx-cpu.json"
    rows = re.search(r"4 layers of 512 \| (.*)\n\| the same, BERT-base \| (.*)", README)
    assert rows is not None
    for row, case in zip(rows.groups(), json.loads(record.read_text("utf-8"))["cases"], strict=True):
        ratio = {name: made["ours_is_faster_by"]["median"] for name, made in case["candidates"].items()}
        kept = min(value for name, value in ratio.items() if name.endswith("kept memory") and "transformers" in name)
        assert re.findall(r"[\d.]+x", row) == [f"{ratio['transformers, compiled']:.2f}x", f"{kept:.2f}x"]


def test_the_tables_of_scores_are_those_of_the_stored_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    script = importlib.import_module("small_models")
    short, long = script.tables(script.RUNS, json.loads((script.RUNS / script.BASELINES).read_text("utf-8")))
    assert short in README
    assert long in (ROOT / "docs" / "explanations" / "small_models.md").read_text("utf-8")
