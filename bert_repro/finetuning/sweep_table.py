"""What a search found: its runs by cell, as a record for results.json and as a table for people.

A cell is one choice of learning rate, batch size and epochs; its runs are restarts that differ by the seed alone. Mean
and deviation are over all runs of a cell that have a score, collapsed ones included; what they would be without the
collapsed ones stands apart. Deviations are those of a sample (n - 1).
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

Scores = Mapping[str, Mapping[str, float]]
"""The metrics of every split that was scored."""


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
        scores: on every split; None: it was stopped because its loss was not finite.
        collapsed: whether it says the same for every row of dev.
    """

    cell: Cell
    seed: int
    folder: str
    scores: Scores | None
    collapsed: bool = False

    def record(self) -> dict[str, Any]:
        """The run for results.json."""
        ended = {"not_finite": True} if self.scores is None else {"splits": self.scores, "collapsed": self.collapsed}
        return {**asdict(self.cell), "seed": self.seed, "folder": self.folder, **ended}


def best_run(outcomes: Sequence[Outcome], split: str, metric: str) -> Outcome | None:
    """The run with the highest score; of equals one that has not collapsed, else the first. None: none has a score."""
    scored = [(outcome, outcome.scores[split][metric]) for outcome in outcomes if outcome.scores is not None]
    best = max(scored, key=lambda pair: (pair[1], not pair[0].collapsed), default=None)
    return None if best is None else best[0]


def search_record(outcomes: Sequence[Outcome], *, split: str, metric: str) -> dict[str, Any]:
    """What results.json says about a search.

    Args:
        outcomes: its runs, cell by cell.
        split: the dev split that chooses.
        metric: the metric that chooses.

    Returns:
        How many runs there were, collapsed and stopped ones among them; the best run; every run; and for every cell
        mean, deviation and best of each metric on each split, `without_collapsed` where some collapsed.
    """
    best = best_run(outcomes, split, metric)
    cells = []
    for cell, group in groupby(outcomes, key=lambda outcome: outcome.cell):
        runs = list(group)
        scored = [run for run in runs if run.scores is not None]
        kept = [run for run in scored if not run.collapsed]
        best_of_cell = best_run(runs, split, metric)
        record = {
            **asdict(cell),
            "runs": len(runs),
            "collapsed": len(scored) - len(kept),
            "not_finite": len(runs) - len(scored),
            "best_seed": None if best_of_cell is None else best_of_cell.seed,
            "splits": _summaries(scored),
        }
        if len(kept) < len(scored):
            record["without_collapsed"] = {"runs": len(kept), "splits": _summaries(kept)}
        cells.append(record)
    return {
        "split": split,
        "metric": metric,
        "runs_done": len(outcomes),
        "collapsed": sum(outcome.collapsed for outcome in outcomes),
        "not_finite": sum(outcome.scores is None for outcome in outcomes),
        "best": None if best is None else best.record(),
        "cells": cells,
        "runs": [outcome.record() for outcome in outcomes],
    }


def text_table(record: dict[str, Any]) -> str:
    """The cells of a search as a table of text: the metric that chooses, on every split.

    Args:
        record: what `search_record` returned.
    """
    split, metric, cells = record["split"], record["metric"], record["cells"]
    others = list(dict.fromkeys(name for cell in cells for name in cell["splits"] if name != split))
    columns = {
        "learning rate": [f"{cell['learning_rate']:g}" for cell in cells],
        "batch": [str(cell["batch"]) for cell in cells],
        **{name: [f"{cell[name]:g}" for cell in cells] for name in ("epochs", "steps") if cells[0][name] is not None},
        "runs": [str(cell["runs"]) for cell in cells],
        "mean": _column(cells, split, metric, "mean"),
        "deviation": _column(cells, split, metric, "standard_deviation"),
        "best": _column(cells, split, metric, "best"),
        "seed": ["-" if cell["best_seed"] is None else str(cell["best_seed"]) for cell in cells],
        "collapsed": [str(cell["collapsed"]) for cell in cells],
    }
    for name in others:
        columns[f"{name} mean"] = _column(cells, name, metric, "mean")
        columns[f"{name} deviation"] = _column(cells, name, metric, "standard_deviation")
    if record["collapsed"]:
        kept = [cell.get("without_collapsed", {"splits": {}}) for cell in cells]
        columns["mean without collapsed"] = _column(kept, split, metric, "mean")
        columns["deviation without collapsed"] = _column(kept, split, metric, "standard_deviation")
    if record["not_finite"]:
        columns["not finite"] = [str(cell["not_finite"]) for cell in cells]
    widths = {head: max(map(len, (head, *values))) for head, values in columns.items()}
    rows = [columns.keys(), *zip(*columns.values(), strict=True)]
    lines = ["  ".join(f"{text:>{width}}" for text, width in zip(row, widths.values(), strict=True)) for row in rows]
    return "\n".join([_summary_line(record), *lines]) + "\n"


def _summary_line(record: dict[str, Any]) -> str:
    told, best = f"{record['metric']} on {record['split']}, {record['runs_done']} runs", record["best"]
    if best is None:
        return told
    length = f"{best['epochs']:g} epochs" if best["steps"] is None else f"{best['steps']} steps"
    score = best["splits"][record["split"]][record["metric"]]
    return (
        f"{told}; best {score:.4f}: rate {best['learning_rate']:g}, batch {best['batch']}, {length}, "
        f"seed {best['seed']}{' (collapsed)' if best['collapsed'] else ''}"
    )


def _summaries(runs: Sequence[Outcome]) -> dict[str, dict[str, dict[str, float | None]]]:
    """Mean, deviation and best of each metric on each split that all runs have."""
    scores = [run.scores for run in runs if run.scores is not None]
    if not scores:
        return {}
    return {
        split: {metric: _summary([score[split][metric] for score in scores]) for metric in metrics}
        for split, metrics in scores[0].items()
        if all(split in score for score in scores)
    }


def _summary(values: Sequence[float]) -> dict[str, float | None]:
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.fmean(values), "standard_deviation": deviation, "best": max(values)}


def _column(cells: Sequence[Mapping[str, Any]], split: str, metric: str, figure: str) -> list[str]:
    values = [cell["splits"].get(split, {}).get(metric, {}).get(figure) for cell in cells]
    return ["-" if value is None else f"{value:.4f}" for value in values]
