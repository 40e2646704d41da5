"""Reads the results that finished runs left for the report."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bert_repro.errors import UserError
from bert_repro.reproduction.paper_results import FIGURE_5_KEY, FIGURE_5_ROWS, TABLES, Column, TableEntry
from bert_repro.reproduction.run_store import CURVE_FILE, EXAMPLES_FILE
from bert_repro.reproduction.statistics import Float64Array, total_score
from bert_repro.results import RunResults, read_results
from bert_repro.utils.files import RESULTS
from bert_repro.utils.readers import read_json_object

_PLATEAU = 0.01
"""Held-out accuracy of all but the most frequent tokens that a pre-training reaches once it predicts anything else."""


@dataclass(frozen=True)
class FinishedRun:
    """A finished run.

    Args:
        name: its folder below that of all runs.
        results: what results.json holds.
        size_preset: the size preset of its study; runs of different presets are never put together.
        entries: the table entries that it fills.
        pretraining: name of the pre-training run that it started from.
        examples: split -> metric -> the score of every example.
        curve: its losses, if it is a pre-training run; see `bert_repro.reproduction.run_store`.
    """

    name: str
    results: RunResults
    size_preset: str
    entries: tuple[TableEntry, ...] = ()
    pretraining: str | None = None
    examples: Mapping[str, Mapping[str, Float64Array]] = field(default_factory=dict)
    curve: Mapping[str, Any] | None = None

    @property
    def is_pretraining(self) -> bool:
        """Whether other runs may have started from it."""
        return bool(self.results["task"] == "pre-training")

    @property
    def settings(self) -> Mapping[str, Any]:
        """Its settings, as far as they are known."""
        settings: Mapping[str, Any] = self.results.get("settings", {})
        return settings

    @property
    def parameters(self) -> int:
        """Parameters of its model, the head included; 0 where they are not known."""
        return int(self.results.get("model", {}).get("parameters", 0))

    @property
    def never_left_the_plateau(self) -> bool:
        """Whether a pre-training predicts nothing but the most frequent tokens, so that it counts as failed."""
        bins = self.results.get("mlm_breakdown", {}).get("by_frequency", [])
        return len(bins) > 1 and all(row["accuracy"] < _PLATEAU for row in bins[:-1])

    def split_name(self, column: Column) -> str:
        """Returns the split scored for a column: the column's, or dev where the test set has no labels."""
        scored = "metrics" in self.results["splits"].get(column.split, {})
        return column.split if scored else column.split.replace("test", "validation")

    def split(self, column: Column) -> Mapping[str, Any]:
        """Returns its results on the split for a column: `metrics`, `rows_scored`."""
        found: Mapping[str, Any] = (
            self.results if self.is_pretraining else self.results["splits"][self.split_name(column)]
        )
        return found

    def is_degenerate(self, column: Column) -> bool:
        """Whether it gave one answer for all examples of the split for a column."""
        return bool(self.split(column).get("degenerate"))

    def score(self, column: Column) -> float:
        """Returns its score in a column: a fraction, or a perplexity."""
        return float(self.split(column)["metrics"][column.metric])

    def example_scores(self, column: Column) -> Float64Array | None:
        """Returns the scores of a column's examples, (N,) or for entity F1 (N, 3); None where the run has none."""
        return None if self.is_pretraining else self.examples.get(self.split_name(column), {}).get(column.metric)


def collect(folder: Path) -> list[FinishedRun]:
    """Reads all finished runs below a folder, by name.

    A results.json without `study` belongs to no study: it fills no table entry.

    Raises:
        UserError: there is no such folder, a table entry is unknown or has no score, or two runs fill an entry with one
            seed.
    """
    if not folder.is_dir():
        raise UserError(
            f"--runs_dir {folder}: no such folder; name one with the results.json of finished runs below it"
        )
    runs = [_read_run(folder, path) for path in sorted(folder.rglob(RESULTS))]
    _check_seeds(runs)
    return runs


def _read_run(folder: Path, path: Path) -> FinishedRun:
    results = read_results(path, needs=("task", "seed"))
    study = results.get("study", {})
    examples = read_json_object(path.with_name(EXAMPLES_FILE)) if path.with_name(EXAMPLES_FILE).exists() else {}
    run = FinishedRun(
        path.parent.relative_to(folder).as_posix(),
        results,
        str(study.get("size_preset", "no study")),
        tuple(_table_entry(path, entry) for entry in study.get("table_entries", ())),
        study.get("pretraining"),
        {
            split: {metric: np.array(values, dtype=np.float64) for metric, values in scores.items()}
            for split, scores in examples.items()
        },
        read_json_object(path.with_name(CURVE_FILE)) if path.with_name(CURVE_FILE).exists() else None,
    )
    for entry in run.entries:
        _check_score(path, run, entry)
    return run


def _table_entry(path: Path, value: Mapping[str, Any]) -> TableEntry:
    entry = TableEntry(*(str(value.get(name)) for name in ("table", "row", "column")))
    if entry.table == FIGURE_5_KEY:
        known = entry.row in FIGURE_5_ROWS and entry.column.isdigit()
    else:
        known = entry.table in map(str, TABLES) and entry.column in [c.name for c in TABLES[int(entry.table)].columns]
    if not known:
        raise UserError(f"{path}: study: table_entries has {dict(value)}, which is no entry of the paper's tables")
    return entry


def _check_score(path: Path, run: FinishedRun, entry: TableEntry) -> None:
    column = entry.measured
    try:
        score, rows = run.score(column), run.split(column)["rows_scored"]
    except KeyError as error:
        raise UserError(
            f"{path}: has no {column.metric} on {column.split} with rows_scored, which {entry} needs; run it with "
            "--do_eval, or remove the entry from study"
        ) from error
    examples = run.example_scores(column)
    if not math.isfinite(score) or (examples is not None and len(examples) != rows):
        raise UserError(f"{path}: {column.metric} is {score} on {rows} rows, which its examples do not have")
    if examples is not None and abs(float(total_score(examples[None])[0]) - score) > 1e-3:
        raise UserError(f"{path.with_name(EXAMPLES_FILE)}: its scores do not give {column.metric} {score:.4f}")


def _check_seeds(runs: Sequence[FinishedRun]) -> None:
    filled: dict[tuple[str, TableEntry, int], str] = {}
    for run in runs:
        for entry in run.entries:
            other = filled.setdefault((run.size_preset, entry, run.results["seed"]), run.name)
            if other != run.name:
                raise UserError(
                    f"{other} and {run.name} both fill {entry} with seed {run.results['seed']}; remove one of them"
                )
