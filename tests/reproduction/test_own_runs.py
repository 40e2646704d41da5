"""One's own runs in a table: what is put together, what is compared, and which settings are shown."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from errors import user_error
from running import recipe

from bert_repro.configs import ReportConfig
from bert_repro.reproduction.collect import collect
from bert_repro.reproduction.own_runs import comparisons_of
from bert_repro.reproduction.report import write_report

BASELINES = {"most frequent label": {"accuracy": 0.5}, "bag of words": {"accuracy": 0.7}}


def write_run(folder: Path, name: str, score: float, seed: int = 1, **settings: Any) -> None:
    rows = settings.pop("rows", 40)
    degenerate = settings.pop("degenerate", False)
    defaults = {"learning_rate": 5e-5, "num_train_epochs": 3.0, "model_name_or_path": "bert"}
    record = {
        "task": "custom",
        "seed": seed,
        "model": {"class": "BertReproForSequenceClassification"},
        "data": {"title": "tickets"},
        "settings": {**defaults, "seed": seed, **settings},
        "split": "validation",
        "metrics": {"accuracy": score},
        "primary_metric": "accuracy",
        "rows_scored": rows,
        "baselines": BASELINES,
        "degenerate": degenerate,
    }
    (folder / name).mkdir(parents=True)
    (folder / name / "results.json").write_text(json.dumps(record))


def test_seeds_share_a_row_and_settings_that_differ_are_columns(tmp_path: Path) -> None:
    write_run(tmp_path, "a1", 0.8, seed=1)
    write_run(tmp_path, "a2", 0.9, seed=2)
    write_run(tmp_path, "b1", 0.95, seed=1, learning_rate=3e-4)
    (comparison,) = comparisons_of(collect(tmp_path))
    best, other = comparison.rows()
    assert best["run"] == "b1" and best["learning_rate"] == "0.0003" and best["deviation"] == "-"
    assert other["run"] == "a1 and 1 more" and other["learning_rate"] == "5e-05"
    assert (other["accuracy"], other["deviation"], other["seeds"]) == ("0.8500", "0.0707", "2")
    assert other["baseline"] == "0.7000 (bag of words)"
    assert "num_train_epochs" not in best, "it is the same in all runs"


def test_scores_on_other_rows_are_not_compared(tmp_path: Path) -> None:
    write_run(tmp_path, "all", 0.8)
    write_run(tmp_path, "part", 0.9, rows=10)
    assert [len(comparison.groups) for comparison in comparisons_of(collect(tmp_path))] == [1, 1]


def test_members_of_a_sweep_are_not_runs_and_degenerate_runs_are_counted(tmp_path: Path) -> None:
    write_run(tmp_path, "best", 0.8)
    write_run(tmp_path, "best/sweep/seed-2", 0.7, seed=2)
    write_run(tmp_path, "broken", 0.5, num_train_epochs=1.0, degenerate=True)
    (comparison,) = comparisons_of(collect(tmp_path))
    assert [(row["run"], row["degenerate"]) for row in comparison.rows()] == [("best", "0 of 1"), ("broken", "1 of 1")]


def test_the_files_of_the_report(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "runs", "a_1", 0.8)
    write_run(tmp_path / "runs", "b|x", 0.9, learning_rate=3e-4)
    assert recipe("report", "--runs_dir", tmp_path / "runs", "--report_dir", tmp_path / "report") == 0
    with (tmp_path / "report" / "runs.csv").open(newline="") as file:
        assert [row["run"] for row in csv.DictReader(file)] == ["b|x", "a_1"]
    assert r"b\|x" in (tmp_path / "report" / "runs.md").read_text(), "a folder's name is no markup"
    assert r"a\_1" in (tmp_path / "report" / "runs.tex").read_text()
    assert not (tmp_path / "report" / "report.md").exists(), "the paper's tables need a study"


def test_runs_without_a_score_are_refused(tmp_path: Path) -> None:
    write_run(tmp_path, "a", 0.8)
    record = json.loads((tmp_path / "a" / "results.json").read_text())
    del record["metrics"], record["baselines"]
    (tmp_path / "a" / "results.json").write_text(json.dumps(record))
    with user_error(tmp_path, setting="runs_dir"):
        write_report(ReportConfig(runs_dir=str(tmp_path), report_dir=str(tmp_path / "report")))
