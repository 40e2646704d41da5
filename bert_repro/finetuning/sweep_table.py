"""Results of a sweep: its runs by configuration, for results.json and as a table for people.

A configuration is one choice of learning rate, batch size and epochs; its runs are restarts that differ by the seed
alone. Mean and deviation are over all runs of a configuration that have a score, degenerate ones included; what they
would be without the degenerate ones is given apart. Deviations are those of a sample (n - 1).
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any, cast

from bert_repro.results import SweepResults, SweepRun

SplitScores = Mapping[str, Mapping[str, float]]
"""The metrics of every split that was scored."""


@dataclass(frozen=True)
class Configuration:
    """What the restarts of a configuration share.

    Args:
        learning_rate: peak learning rate.
        batch: sequences per optimizer step over all devices.
        epochs: passes over the training set; None where steps are given.
        steps: optimizer steps; None where epochs are given.
    """

    learning_rate: float
    batch: int
    epochs: float | None
    steps: int | None = None

    @property
    def name(self) -> str:
        """Name of its folder."""
        length = f"epochs{self.epochs:g}" if self.steps is None else f"steps{self.steps}"
        return f"lr{self.learning_rate:g}-batch{self.batch}-{length}"


@dataclass(frozen=True)
class Outcome:
    """How one run ended.

    Args:
        varied: what the sweep varies.
        seed: its seed.
        folder: its folder below that of the sweep.
        scores: on every split; None: it was stopped because its loss was not finite.
        degenerate: whether it gives one answer for every row of dev.
    """

    varied: Configuration
    seed: int
    folder: str
    scores: SplitScores | None
    degenerate: bool = False

    def results(self) -> SweepRun:
        """Returns the run for results.json."""
        ended: dict[str, Any] = {"splits": self.scores, "degenerate": self.degenerate}
        if self.scores is None:
            ended = {"not_finite": True}
        return cast(SweepRun, {**asdict(self.varied), "seed": self.seed, "folder": self.folder, **ended})


def best_run(outcomes: Sequence[Outcome], split: str, metric: str) -> Outcome | None:
    """Returns the run with the highest score; among equals one that is not degenerate, else the first."""
    scored = [(outcome, outcome.scores[split][metric]) for outcome in outcomes if outcome.scores is not None]
    best = max(scored, key=lambda pair: (pair[1], not pair[0].degenerate), default=None)
    return None if best is None else best[0]


def sweep_results(outcomes: Sequence[Outcome], *, split: str, metric: str) -> SweepResults:
    """Summarizes a sweep for results.json.

    Args:
        outcomes: its runs, configuration by configuration.
        split: the dev split that chooses.
        metric: the metric that chooses.

    Returns:
        How many runs there were, degenerate and stopped ones among them; the best run; every run; and for every
        configuration mean, deviation and best of each metric on each split, `without_degenerate` where some are.
    """
    best = best_run(outcomes, split, metric)
    configurations: list[Any] = []
    for varied, group in groupby(outcomes, key=lambda outcome: outcome.varied):
        runs = list(group)
        scored = [run for run in runs if run.scores is not None]
        kept = [run for run in scored if not run.degenerate]
        best_restart = best_run(runs, split, metric)
        summary = {
            **asdict(varied),
            "runs": len(runs),
            "degenerate": len(scored) - len(kept),
            "not_finite": len(runs) - len(scored),
            "best_seed": None if best_restart is None else best_restart.seed,
            "splits": _summaries(scored),
        }
        if len(kept) < len(scored):
            summary["without_degenerate"] = {"runs": len(kept), "splits": _summaries(kept)}
        configurations.append(summary)
    return {
        "split": split,
        "metric": metric,
        "runs_done": len(outcomes),
        "degenerate": sum(outcome.degenerate for outcome in outcomes),
        "not_finite": sum(outcome.scores is None for outcome in outcomes),
        "best": None if best is None else best.results(),
        "configurations": configurations,
        "runs": [outcome.results() for outcome in outcomes],
    }


def text_table(found: SweepResults) -> str:
    """Writes the configurations of a sweep as a table of text: the metric that chooses, on every split."""
    split, metric, rows = found["split"], found["metric"], cast(list[dict[str, Any]], found["configurations"])
    others = list(dict.fromkeys(name for row in rows for name in row["splits"] if name != split))
    columns = {
        "learning rate": [f"{row['learning_rate']:g}" for row in rows],
        "batch": [str(row["batch"]) for row in rows],
        **{name: [f"{row[name]:g}" for row in rows] for name in ("epochs", "steps") if rows[0][name] is not None},
        "runs": [str(row["runs"]) for row in rows],
        "mean": _column(rows, split, metric, "mean"),
        "deviation": _column(rows, split, metric, "standard_deviation"),
        "best": _column(rows, split, metric, "best"),
        "seed": ["-" if row["best_seed"] is None else str(row["best_seed"]) for row in rows],
        "degenerate": [str(row["degenerate"]) for row in rows],
    }
    for name in others:
        columns[f"{name} mean"] = _column(rows, name, metric, "mean")
        columns[f"{name} deviation"] = _column(rows, name, metric, "standard_deviation")
    if found["degenerate"]:
        kept = [row.get("without_degenerate", {"splits": {}}) for row in rows]
        columns["mean without degenerate"] = _column(kept, split, metric, "mean")
        columns["deviation without degenerate"] = _column(kept, split, metric, "standard_deviation")
    if found["not_finite"]:
        columns["not finite"] = [str(row["not_finite"]) for row in rows]
    widths = {head: max(map(len, (head, *values))) for head, values in columns.items()}
    shown = [columns.keys(), *zip(*columns.values(), strict=True)]
    lines = ["  ".join(f"{text:>{width}}" for text, width in zip(row, widths.values(), strict=True)) for row in shown]
    return "\n".join([_summary_line(found), *lines]) + "\n"


def _summary_line(found: SweepResults) -> str:
    scope, best = f"{found['metric']} on {found['split']}, {found['runs_done']} runs", found["best"]
    if best is None:
        return scope
    length = f"{best['epochs']:g} epochs" if best["steps"] is None else f"{best['steps']} steps"
    score = best["splits"][found["split"]][found["metric"]]
    return (
        f"{scope}; best {score:.4f}: learning rate {best['learning_rate']:g}, batch {best['batch']}, {length}, "
        f"seed {best['seed']}{' (degenerate)' if best['degenerate'] else ''}"
    )


def _summaries(runs: Sequence[Outcome]) -> dict[str, dict[str, dict[str, float | None]]]:
    """Returns mean, deviation and best of each metric on each split that all runs have."""
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


def _column(rows: Sequence[Mapping[str, Any]], split: str, metric: str, statistic: str) -> list[str]:
    values = [row["splits"].get(split, {}).get(metric, {}).get(statistic) for row in rows]
    return ["-" if value is None else f"{value:.4f}" for value in values]
