"""Reads the results that finished runs left for the report, and refuses what is not as a run writes it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bert_repro.errors import UserError
from bert_repro.paper_results import FIGURE_5_KEY, FIGURE_5_ROWS, TABLE_KEYS, TABLES, Column, TableEntry
from bert_repro.reproduction.run_store import CURVE_FILE, EXAMPLES_FILE
from bert_repro.reproduction.statistics import Float64Array, total_score
from bert_repro.results import RunResults, read_results
from bert_repro.utils.files import RESULTS
from bert_repro.utils.readers import read_json_object, shown


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
    def seed(self) -> int:
        """Its seed."""
        return int(self.results["seed"])

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
    def breakdown(self) -> Mapping[str, Any] | None:
        """What held-out accuracy of masked tokens and NSP depends on; None where the run did not measure it."""
        found: Mapping[str, Any] | None = self.results.get("mlm_breakdown")
        return found or None

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
        split = self.split(column)
        return bool(split.get("degenerate"))

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
        UserError: there is no such folder, a file is not as a run writes it, or two runs fill an entry with one seed.
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
    needed = "metrics" if results["task"] == "pre-training" else "splits"
    if needed not in results:
        raise UserError(f"{path}: field {needed} is missing; copy the file of a finished run, or remove it")
    study = results.get("study", {})
    entries = study.get("table_entries", study.get("cells", []))  # `cells` and `scale` until 0.2
    if not isinstance(entries, list):
        raise _wrong(path, "study: table_entries", entries, "write a list of objects with table, row and column")
    run = FinishedRun(
        path.parent.relative_to(folder).as_posix(),
        results,
        str(study.get("size_preset", study.get("scale", "no study"))),
        tuple(_table_entry(path, entry) for entry in entries),
        study.get("pretraining"),
        _examples(path.with_name(EXAMPLES_FILE)),
        read_json_object(path.with_name(CURVE_FILE)) if path.with_name(CURVE_FILE).exists() else None,
    )
    for entry in run.entries:
        _check_score(path, run, entry)
    return run


def _table_entry(path: Path, value: Any) -> TableEntry:
    name = "study: table_entries"
    if not isinstance(value, dict) or not {"table", "row", "column"} <= set(value):
        raise _wrong(path, name, value, "each needs table, row and column")
    entry = TableEntry(str(value["table"]), str(value["row"]), str(value["column"]))
    if entry.table not in TABLE_KEYS:
        raise _wrong(path, name, value, f"tables are {', '.join(map(str, TABLES))} and {FIGURE_5_KEY}")
    if entry.table == FIGURE_5_KEY:
        if entry.row not in FIGURE_5_ROWS or not entry.column.isdigit():
            raise _wrong(path, name, value, f"Figure 5 has rows {' and '.join(FIGURE_5_ROWS)}, columns are steps")
        return entry
    names = [column.name for column in TABLES[int(entry.table)].columns]
    if entry.column not in names:
        raise _wrong(path, name, value, f"Table {entry.table} has columns {', '.join(names)}")
    return entry


def _check_score(path: Path, run: FinishedRun, entry: TableEntry) -> None:
    column = entry.measured
    try:
        score, rows = run.score(column), run.split(column)["rows_scored"]
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{path}: has no {column.metric} on {column.split} with rows_scored, which {entry} needs; run it with "
            "--do_eval, or remove the entry from study"
        ) from error
    if not math.isfinite(score) or not isinstance(rows, int):
        raise _wrong(path, f"{column.split}: {column.metric}", score, "a score is a finite number")
    examples = run.example_scores(column)
    if examples is not None:
        found = float(total_score(examples[None])[0])
        if len(examples) != rows or abs(found - score) > 1e-3:
            raise UserError(
                f"{path.with_name(EXAMPLES_FILE)}: {len(examples)} examples give {column.metric} {found:.4f}, "
                f"results.json says {score:.4f} on {rows}; write it again from this run's predictions"
            )


def _examples(path: Path) -> dict[str, dict[str, Float64Array]]:
    if not path.exists():
        return {}
    try:
        splits = {
            split: {metric: np.array(values, dtype=np.float64) for metric, values in scores.items()}
            for split, scores in read_json_object(path).items()
        }
    except (AttributeError, TypeError, ValueError) as error:
        raise UserError(f"{path}: holds no scores ({error}); write it again from the predictions") from error
    for split, scores in splits.items():
        for metric, values in scores.items():
            if not values.size or values.shape[1:] not in ((), (3,)) or not np.isfinite(values).all():
                raise UserError(f"{path}: {split}: {metric}: scores must be finite numbers, one or three an example")
    return splits


def _check_seeds(runs: Sequence[FinishedRun]) -> None:
    filled: dict[tuple[str, TableEntry, int], str] = {}
    for run in runs:
        for entry in run.entries:
            other = filled.setdefault((run.size_preset, entry, run.seed), run.name)
            if other != run.name:
                raise UserError(f"{other} and {run.name} both fill {entry} with seed {run.seed}; remove one of them")


def _wrong(path: Path, name: str, value: Any, fix: str) -> UserError:
    return UserError(f"{path}: {name} is {shown(value)}; {fix}")
