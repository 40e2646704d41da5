"""What a search found: its runs by cell, as a record for results.json and as a table for people.

A cell is one choice of learning rate, batch size and epochs; its runs are restarts that differ by the seed alone. Mean
and deviation are over all runs of a cell that have a score, collapsed ones included; what they would be without the
collapsed ones stands apart. Deviations are those of a sample (n - 1).
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any


@dataclass(frozen=True)
class Cell:
    """What the runs of a cell share.

    Args:
        learning_rate: peak rate.
        batch: sequences per optimiser step over all devices.
        epochs: passes over the training set; None where steps are given.
        steps: optimiser steps; None where epochs are given.
    """

    learning_rate: float
    batch: int
    epochs: float | None
    steps: int | None = None

    @property
    def name(self) -> str:
        """Its folder's name."""
        length = f"epochs{self.epochs:g}" if self.steps is None else f"steps{self.steps}"
        return f"lr{self.learning_rate:g}-batch{self.batch}-{length}"


@dataclass(frozen=True)
class Outcome:
    """How one run ended.

    Args:
        cell: its settings.
        seed: its seed.
        folder: its folder below that of the search.
        metrics: its scores on dev; None: it was stopped because its loss was not finite.
        collapsed: whether it predicts the same for every row.
    """

    cell: Cell
    seed: int
    folder: str
    metrics: dict[str, float] | None
    collapsed: bool = False

    def record(self) -> dict[str, Any]:
        """The run for results.json."""
        ended = {"not_finite": True} if self.metrics is None else {"metrics": self.metrics, "collapsed": self.collapsed}
        return {**asdict(self.cell), "seed": self.seed, "folder": self.folder, **ended}


def best_run(outcomes: Sequence[Outcome], metric: str) -> Outcome | None:
    """The run with the highest score; of equals one that has not collapsed, else the first. None: none has a score."""
    scored = [outcome for outcome in outcomes if outcome.metrics is not None]
    return max(scored, key=lambda outcome: (_score(outcome, metric), not outcome.collapsed), default=None)


def search_record(outcomes: Sequence[Outcome], *, metric: str, split: str) -> dict[str, Any]:
    """What results.json says about a search.

    Args:
        outcomes: its runs, cell by cell.
        metric: the metric that chooses.
        split: the dev split it is measured on.
    """
    best = best_run(outcomes, metric)
    by_cell = [(cell, list(runs)) for cell, runs in groupby(outcomes, key=lambda outcome: outcome.cell)]
    return {
        "metric": metric,
        "split": split,
        "runs_done": len(outcomes),
        "collapsed": sum(outcome.collapsed for outcome in outcomes),
        "not_finite": sum(outcome.metrics is None for outcome in outcomes),
        "best": None if best is None else best.record(),
        "cells": [_cell_record(cell, runs, metric) for cell, runs in by_cell],
        "runs": [outcome.record() for outcome in outcomes],
    }


def text_table(record: dict[str, Any]) -> str:
    """The cells of a search as a table of text.

    Args:
        record: what `search_record` returned.
    """
    metric, best = record["metric"], record["best"]
    head = ["learning rate", "batch", "epochs" if record["cells"][0]["steps"] is None else "steps", "runs", "mean"]
    head += ["deviation", "best", "seed", "collapsed", "not finite", "without collapsed: mean", "deviation"]
    rows = [_row(cell, metric) for cell in record["cells"]]
    shown = [column for column in range(len(head)) if column < 9 or any(row[column] for row in rows)]
    lines = [[line[column] for column in shown] for line in (head, *rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(shown))]
    table = ["  ".join(f"{text:>{width}}" for text, width in zip(line, widths, strict=True)) for line in lines]
    told = f"{metric} on {record['split']}, {record['runs_done']} runs"
    if best is not None:
        length = f"{best['epochs']:g} epochs" if best["steps"] is None else f"{best['steps']} steps"
        told += (
            f"; best {best['metrics'][metric]:.4f}: rate {best['learning_rate']:g}, batch {best['batch']}, {length}, "
            f"seed {best['seed']}{' (collapsed)' if best['collapsed'] else ''}"
        )
    return "\n".join([told, *table]) + "\n"


def _score(outcome: Outcome, metric: str) -> float:
    assert outcome.metrics is not None, "only runs with a score are compared"
    return outcome.metrics[metric]


def _cell_record(cell: Cell, runs: Sequence[Outcome], metric: str) -> dict[str, Any]:
    scored = [run for run in runs if run.metrics is not None]
    kept = [run for run in scored if not run.collapsed]
    best = best_run(runs, metric)
    record = {
        **asdict(cell),
        "runs": len(runs),
        "collapsed": len(scored) - len(kept),
        "not_finite": len(runs) - len(scored),
        "best_seed": None if best is None else best.seed,
        "metrics": _summaries(scored),
    }
    if len(kept) < len(scored):
        record["without_collapsed"] = {"runs": len(kept), "metrics": _summaries(kept)}
    return record


def _summaries(runs: Sequence[Outcome]) -> dict[str, dict[str, float | None]]:
    names = list(runs[0].metrics or ()) if runs else []
    return {name: _summary(_score(run, name) for run in runs) for name in names}


def _summary(scores: Iterable[float]) -> dict[str, float | None]:
    values = list(scores)
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.fmean(values), "standard_deviation": deviation, "best": max(values)}


def _row(cell: dict[str, Any], metric: str) -> list[str]:
    summary = cell["metrics"].get(metric, {})
    length = cell["epochs"] if cell["steps"] is None else cell["steps"]
    apart = ["", ""]
    if "without_collapsed" in cell:
        rest = cell["without_collapsed"]["metrics"].get(metric, {})
        apart = [_figure(rest.get(name)) for name in ("mean", "standard_deviation")]
    return [
        f"{cell['learning_rate']:g}",
        str(cell["batch"]),
        f"{length:g}",
        str(cell["runs"]),
        *(_figure(summary.get(name)) for name in ("mean", "standard_deviation", "best")),
        "-" if cell["best_seed"] is None else str(cell["best_seed"]),
        str(cell["collapsed"]),
        str(cell["not_finite"] or ""),
        *apart,
    ]


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
