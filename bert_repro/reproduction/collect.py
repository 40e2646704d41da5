"""Reads what finished runs left behind and refuses what is not as a run writes it."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bert_repro.configs import current_names
from bert_repro.errors import UserError
from bert_repro.paper_results import FIGURE_5, TABLES, Column
from bert_repro.reproduction.per_example_scores import CURVE_FILE, EXAMPLES_FILE
from bert_repro.reproduction.statistics import FloatArray, total_score
from bert_repro.results import with_current_names

FIGURE = "figure5"
FIGURE_ROWS = ("MLM", "LTR")


@dataclass(frozen=True)
class Cell:
    """A place in a table of the paper, or a point of Figure 5.

    Args:
        table: 1 to 8, or `figure5`.
        row: of the paper, or one of ours; in Figure 5 MLM or LTR.
        column: a column's name; in Figure 5 the number of pre-training steps.
    """

    table: str
    row: str
    column: str

    def __str__(self) -> str:
        where = "Figure 5" if self.table == FIGURE else f"Table {self.table}"
        return f"{where}, {self.row}, {self.column}"

    @property
    def measured(self) -> Column:
        """What the cell measures."""
        if self.table == FIGURE:
            return FIGURE_5.column
        return next(column for column in TABLES[int(self.table)].columns if column.name == self.column)


@dataclass(frozen=True)
class Run:
    """A finished run.

    Args:
        name: its folder below that of all runs.
        record: what results.json holds.
        scale: the scale of its study; runs of different scales are never put together.
        cells: what it fills.
        pretraining: name of the pre-training run that it started from.
        examples: split -> metric -> the score of every example.
        curve: its losses, if it is a pre-training run; see `bert_repro.reproduction.per_example_scores`.
    """

    name: str
    record: Mapping[str, Any]
    scale: str
    cells: tuple[Cell, ...] = ()
    pretraining: str | None = None
    examples: Mapping[str, Mapping[str, FloatArray]] = field(default_factory=dict)
    curve: Mapping[str, Any] | None = None

    @property
    def seed(self) -> int:
        """Its seed."""
        return int(self.record["seed"])

    @property
    def pretrains(self) -> bool:
        """Whether other runs may have started from it."""
        return bool(self.record["task"] == "pre-training")

    def split_name(self, column: Column) -> str:
        """The split that it was scored on for a column: the column's, or dev where the test set has no labels."""
        scored = "metrics" in self.record["splits"].get(column.split, {})
        return column.split if scored else column.split.replace("test", "validation")

    def split(self, column: Column) -> Mapping[str, Any]:
        """What it says about the split for a column: `metrics`, `rows_scored`, `collapsed`."""
        found: Mapping[str, Any] = self.record if self.pretrains else self.record["splits"][self.split_name(column)]
        return found

    def score(self, column: Column) -> float:
        """Its score in a column: a fraction, or a perplexity."""
        return float(self.split(column)["metrics"][column.metric])

    def scores_of_examples(self, column: Column) -> FloatArray | None:
        """The scores of a column's examples, (N,) or for entity F1 (N, 3); None where the run has none."""
        return None if self.pretrains else self.examples.get(self.split_name(column), {}).get(column.metric)


def collect(folder: Path) -> list[Run]:
    """All finished runs below a folder, by name.

    A results.json without `study` is a run of no study: it fills no cell.

    Raises:
        UserError: there is no such folder, a file is not as a run writes it, or two runs fill a cell with one seed.
    """
    if not folder.is_dir():
        raise UserError(
            f"--runs_dir {folder}: no such folder; name one with the results.json of finished runs below it"
        )
    runs = [_read_run(folder, path) for path in sorted(folder.rglob("results.json"))]
    _check_seeds(runs)
    return runs


def read_object(path: Path) -> dict[str, Any]:
    """A JSON file that holds an object.

    Raises:
        UserError: it holds none.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"{path}: is not valid JSON ({reason}); copy the run's file again, or remove the run"
        ) from error
    if not isinstance(content, dict):
        raise UserError(f"{path}: holds {type(content).__name__}, not an object; copy the run's file again")
    return content


def _read_run(folder: Path, path: Path) -> Run:
    record: Any = with_current_names(read_object(path))
    _require(path, record, "task", str)
    _require(path, record, "seed", int)
    if isinstance(record.get("settings"), dict):
        record["settings"] = current_names(record["settings"])
    pretrains = record["task"] == "pre-training"
    _require(path, record, "metrics" if pretrains else "splits", dict)
    study = record.get("study", {})
    if not isinstance(study, dict):
        raise _wrong(path, "study", study, "write an object with cells and scale")
    cells = study.get("cells", [])
    if not isinstance(cells, list):
        raise _wrong(path, "study: cells", cells, "write a list of objects with table, row and column")
    run = Run(
        path.parent.relative_to(folder).as_posix(),
        record,
        str(study.get("scale", "no study")),
        tuple(_cell(path, cell) for cell in cells),
        study.get("pretraining"),
        _examples(path.with_name(EXAMPLES_FILE)),
        read_object(path.with_name(CURVE_FILE)) if path.with_name(CURVE_FILE).exists() else None,
    )
    for cell in run.cells:
        _check_score(path, run, cell)
    return run


def _cell(path: Path, value: Any) -> Cell:
    if not isinstance(value, dict) or not {"table", "row", "column"} <= set(value):
        raise _wrong(path, "study: cells", value, "each needs table, row and column")
    cell = Cell(str(value["table"]), str(value["row"]), str(value["column"]))
    if cell.table == FIGURE:
        if cell.row not in FIGURE_ROWS or not cell.column.isdigit():
            raise _wrong(
                path, "study: cells", value, f"Figure 5 has rows {' and '.join(FIGURE_ROWS)}, columns are steps"
            )
        return cell
    if cell.table not in map(str, TABLES):
        raise _wrong(path, "study: cells", value, f"tables are {', '.join(map(str, TABLES))} and {FIGURE}")
    names = [column.name for column in TABLES[int(cell.table)].columns]
    if cell.column not in names:
        raise _wrong(path, "study: cells", value, f"Table {cell.table} has columns {', '.join(names)}")
    return cell


def _check_score(path: Path, run: Run, cell: Cell) -> None:
    column = cell.measured
    try:
        score, rows = run.score(column), run.split(column)["rows_scored"]
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{path}: has no {column.metric} on {column.split} with rows_scored, which {cell} needs; run it with "
            "--do_eval, or take the cell out of study"
        ) from error
    if not math.isfinite(score) or not isinstance(rows, int):
        raise _wrong(path, f"{column.split}: {column.metric}", score, "a score is a finite number")
    examples = run.scores_of_examples(column)
    if examples is not None:
        found = float(total_score(examples[None])[0])
        if len(examples) != rows or abs(found - score) > 1e-3:
            raise UserError(
                f"{path.with_name(EXAMPLES_FILE)}: {len(examples)} examples give {column.metric} {found:.4f}, "
                f"results.json says {score:.4f} on {rows}; write it again from this run's predictions"
            )


def _examples(path: Path) -> dict[str, dict[str, FloatArray]]:
    if not path.exists():
        return {}
    try:
        splits = {
            split: {metric: np.array(values, dtype=np.float64) for metric, values in scores.items()}
            for split, scores in read_object(path).items()
        }
    except (AttributeError, TypeError, ValueError) as error:
        raise UserError(f"{path}: holds no scores ({error}); write it again from the predictions") from error
    for split, scores in splits.items():
        for metric, values in scores.items():
            if not values.size or values.shape[1:] not in ((), (3,)) or not np.isfinite(values).all():
                raise UserError(f"{path}: {split}: {metric}: scores must be finite numbers, one or three an example")
    return splits


def _check_seeds(runs: Sequence[Run]) -> None:
    filled: dict[tuple[str, Cell, int], str] = {}
    for run in runs:
        for cell in run.cells:
            other = filled.setdefault((run.scale, cell, run.seed), run.name)
            if other != run.name:
                raise UserError(f"{other} and {run.name} both fill {cell} with seed {run.seed}; remove one of them")


def _require(path: Path, record: Mapping[str, Any], name: str, kind: type) -> None:
    if not isinstance(record.get(name), kind):
        raise _wrong(path, name, record.get(name), "is this the record of a finished run? copy it again, or remove it")


def _wrong(path: Path, name: str, value: Any, mend: str) -> UserError:
    return UserError(f"{path}: {name} is {str(value)[:80]!r}; {mend}")
