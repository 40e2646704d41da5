"""Scores of the checkpoints of pre-training runs against the tokens read, one curve for each objective.

The paper's Figure 5 does this for MNLI, with steps on its axis. Here every task of a study may take part: a run counts
if it was fine-tuned from a checkpoint, or from the finished model, of a pre-training in the same study.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bert_repro.reproduction.collect import FinishedRun
from bert_repro.reproduction.paper_results import FIGURE_5, TABLES, Column
from bert_repro.reproduction.paper_tables import AllResults
from bert_repro.reproduction.resampling import interval

MNLI = "MNLI"
MEAN_OF_TASKS = "mean of the tasks"
_FEWEST_CHECKPOINTS = 2
_FEWEST_TASKS = 2


@dataclass(frozen=True)
class TaskCurve:
    """Scores of one objective along pre-training.

    Args:
        tokens: tokens read at each checkpoint.
        means: mean score over the seeds, in percent.
        lows: lower ends of the 95% intervals; empty if some runs have no scores of examples.
        highs: their upper ends.
    """

    tokens: tuple[int, ...]
    means: tuple[float, ...]
    lows: tuple[float, ...] = ()
    highs: tuple[float, ...] = ()


def curves_of(results: AllResults) -> dict[str, dict[str, dict[str, TaskCurve]]]:
    """Returns size preset -> title of the panel -> objective -> its curve.

    A panel needs two objectives with two checkpoints each. The mean of the tasks is taken over the tasks that every
    checkpoint of every objective has, and needs two of them.
    """
    panels: dict[str, dict[str, dict[str, TaskCurve]]] = {}
    for size_preset, points in _points_by_size(results.runs).items():
        mnli = _mnli_curves(results, points)
        if len(mnli) < 2:
            continue
        panels[size_preset] = {MNLI: mnli}
        mean = _mean_curves(points)
        if mean:
            panels[size_preset][MEAN_OF_TASKS] = mean
    return panels


# objective -> tokens read -> task -> the runs, one for each seed.
_Points = dict[str, dict[int, dict[str, list[FinishedRun]]]]


def _points_by_size(runs: Sequence[FinishedRun]) -> dict[str, _Points]:
    """Sorts fine-tuning runs by size preset, objective, tokens and task."""
    pretrainings = {run.results.get("study", {}).get("run", run.name): run for run in runs if run.is_pretraining}
    sizes: dict[str, _Points] = {}
    columns = _columns()
    for run in runs:
        pretraining = pretrainings.get(run.pretraining or "")
        task = str(run.results["task"])
        if run.is_pretraining or pretraining is None or task not in columns or not run.is_scored(columns[task]):
            continue
        # A BiLSTM or a frozen encoder is a row of its own in Tables 5 and 7, not a point of these curves.
        if run.settings.get("bilstm_size") or run.settings.get("feature_based"):
            continue
        objective = _objective(pretraining.settings)
        step = run.results.get("study", {}).get("checkpoint_step")
        tokens = tokens_after(pretraining.results["train"]["phases"], step)
        by_tokens = sizes.setdefault(run.size_preset, {}).setdefault(objective, {})
        by_tokens.setdefault(tokens, {}).setdefault(task, []).append(run)
    return sizes


def tokens_after(phases: Sequence[Mapping[str, Any]], step: int | None) -> int:
    """Returns how many tokens pre-training has read after a step, padding included.

    Args:
        phases: the phases of the run: `steps`, `batch` (sequences) and `max_seq_length`.
        step: an optimizer step; None: the end of the run.
    """
    tokens = 0
    remaining = step if step is not None else sum(phase["steps"] for phase in phases)
    for phase in phases:
        steps = min(remaining, phase["steps"])
        tokens += steps * phase["batch"] * phase["max_seq_length"]
        remaining -= steps
    return tokens


def _objective(settings: Mapping[str, Any]) -> str:
    if settings.get("left_to_right"):
        return "left-to-right"
    if settings.get("next_sentence_prediction") is False:
        return "masked, no NSP"
    return "masked, with NSP"


def _columns() -> dict[str, Column]:
    """Returns the columns of Table 5 on which objectives are compared, by task; MNLI is Figure 5's."""
    columns = {column.task: column for column in TABLES[5].columns}
    return {**columns, FIGURE_5.task: FIGURE_5}


def _mnli_curves(results: AllResults, points: _Points) -> dict[str, TaskCurve]:
    curves = {}
    for objective, by_tokens in sorted(points.items()):
        tokens = [count for count in sorted(by_tokens) if FIGURE_5.task in by_tokens[count]]
        if len(tokens) < _FEWEST_CHECKPOINTS:
            continue
        means, ends = [], []
        for count in tokens:
            runs = by_tokens[count][FIGURE_5.task]
            means.append(100 * statistics.fmean(run.score(FIGURE_5) for run in runs))
            by_seed = results.by_seed(FIGURE_5, runs)
            if by_seed is not None:
                ends.append(
                    interval([score for score, _ in by_seed.values()], [draws for _, draws in by_seed.values()])
                )
        if len(ends) < len(tokens):
            ends = []
        lows = tuple(100 * low for low, _ in ends)
        highs = tuple(100 * high for _, high in ends)
        curves[objective] = TaskCurve(tuple(tokens), tuple(means), lows, highs)
    return curves


def _mean_curves(points: _Points) -> dict[str, TaskCurve]:
    """Averages the tasks that all checkpoints of all objectives have; empty if there are fewer than two."""
    complete = {name: by_tokens for name, by_tokens in points.items() if len(by_tokens) >= _FEWEST_CHECKPOINTS}
    shared = set(_columns())
    for by_tokens in complete.values():
        for tasks in by_tokens.values():
            shared &= set(tasks)
    if len(shared) < _FEWEST_TASKS or len(complete) < 2:
        return {}
    columns = _columns()
    curves = {}
    for objective, by_tokens in sorted(complete.items()):
        tokens = sorted(by_tokens)
        means = []
        for count in tokens:
            task_means = []
            for task in sorted(shared):
                scores = [run.score(columns[task]) for run in by_tokens[count][task]]
                task_means.append(statistics.fmean(scores))
            means.append(100 * statistics.fmean(task_means))
        curves[objective] = TaskCurve(tuple(tokens), tuple(means))
    return curves
