"""Compares one's own runs: a table for each data set, with the settings that differ, the scores and the baselines.

Runs of a study go into the paper's tables; every other finished run below the folder is compared here. Order of events:

1. `groups_of_runs` puts runs together that differ in their seed alone.
2. `comparisons_of` puts groups together whose scores may be compared: same data, split, metric and number of rows.
3. `write_comparisons` writes each comparison as Markdown, CSV and LaTeX.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_repro.hub.markdown import cell
from bert_repro.reproduction.collect import FinishedRun, named_settings, value_text
from bert_repro.utils.files import SWEEP, write_text

COMPARISON = "runs"
"""Name of the files, before `.md`, `.csv` and `.tex`."""

_PRETRAINING_METRIC = "mlm_accuracy"
_ABSENT = "-"


@dataclass(frozen=True)
class Scale:
    """What makes scores comparable.

    Args:
        data: the task or data set.
        split: the split that was scored.
        metric: the primary metric.
        rows: how many rows were scored.
    """

    data: str
    split: str
    metric: str
    rows: int

    @property
    def title(self) -> str:
        """The heading of a table."""
        return f"{self.data}: {self.metric} on {self.rows:,} rows of {self.split}"


@dataclass(frozen=True)
class RunGroup:
    """Runs with the same settings and different seeds.

    Args:
        names: folders of the runs.
        settings: the settings that they have in common, if they are not the defaults.
        recorded: all settings in the results of the first run, defaults too.
        scores: the primary metric of each run.
        baseline: name of the best baseline on the same rows, if there is one.
        baseline_score: its score.
        degenerate: how many of the runs gave one answer for every row.
    """

    names: tuple[str, ...]
    settings: Mapping[str, str]
    recorded: Mapping[str, Any]
    scores: tuple[float, ...]
    baseline: str | None
    baseline_score: float | None
    degenerate: int

    @property
    def mean(self) -> float:
        """The mean score."""
        return statistics.fmean(self.scores)

    @property
    def deviation(self) -> float | None:
        """The sample standard deviation over seeds; None for a single run."""
        return statistics.stdev(self.scores) if len(self.scores) > 1 else None


@dataclass(frozen=True)
class Comparison:
    """Groups of runs whose scores may be compared, the best first."""

    scale: Scale
    groups: tuple[RunGroup, ...]

    @property
    def differing_settings(self) -> list[str]:
        """Names of the settings that are not the same in all groups, sorted."""
        names: set[str] = set()
        for group in self.groups:
            names.update(group.settings)

        differing = []
        for name in sorted(names):
            # A group without the setting has its default.
            values = {group.settings.get(name) for group in self.groups}
            if len(values) > 1:
                differing.append(name)
        return differing

    def rows(self) -> list[dict[str, str]]:
        """Returns the table: column -> text, for every group."""
        return [self._row(group) for group in self.groups]

    def _row(self, group: RunGroup) -> dict[str, str]:
        """Returns the row of a group: its runs, the settings that differ, its score, and the baseline's."""
        row = {"run": group.names[0]}
        if len(group.names) > 1:
            row["run"] += f" and {len(group.names) - 1} more"
        for name in self.differing_settings:
            # A run of an older version may not have recorded a setting that was added later.
            default = value_text(group.recorded[name]) if name in group.recorded else "default"
            row[name] = group.settings.get(name, default)

        # The score, with its spread over seeds.
        row[self.scale.metric] = f"{group.mean:.4f}"
        row["deviation"] = _ABSENT if group.deviation is None else f"{group.deviation:.4f}"
        row["seeds"] = str(len(group.scores))
        row["baseline"] = _ABSENT
        if group.baseline is not None:
            row["baseline"] = f"{group.baseline_score:.4f} ({group.baseline})"
        # All rows have the column if one of them needs it.
        if any(other.degenerate for other in self.groups):
            row["degenerate"] = f"{group.degenerate} of {len(group.scores)}"
        return row


def comparisons_of(runs: Sequence[FinishedRun]) -> list[Comparison]:
    """Returns a comparison for each data set, split, metric and number of scored rows, sorted by title.

    Args:
        runs: finished runs; those without a score and the members of a sweep are left out.
    """
    groups_by_scale: dict[Scale, list[RunGroup]] = {}
    for scale, group in groups_of_runs(runs):
        groups_by_scale.setdefault(scale, []).append(group)

    # The best group comes first in its table.
    comparisons = []
    for scale in sorted(groups_by_scale, key=lambda scale: scale.title):
        groups = sorted(groups_by_scale[scale], key=lambda group: -group.mean)
        comparisons.append(Comparison(scale, tuple(groups)))
    return comparisons


def groups_of_runs(runs: Sequence[FinishedRun]) -> Iterator[tuple[Scale, RunGroup]]:
    """Yields runs that differ in their seed alone, together with what their scores may be compared with."""
    grouped: dict[tuple[Scale, tuple[tuple[str, str], ...]], list[FinishedRun]] = {}
    for run in runs:
        scale = _scale(run)
        # A sweep publishes its best member, which is the run that counts.
        if scale is None or SWEEP in Path(run.name).parts:
            continue
        # The seed is not among these settings.
        settings = tuple(sorted(_settings(run).items()))
        grouped.setdefault((scale, settings), []).append(run)
    for (scale, settings), members in grouped.items():
        yield scale, _group(members, dict(settings), scale.metric)


def _scale(run: FinishedRun) -> Scale | None:
    """Returns what a run's score may be compared with; None if it has no score."""
    results: Mapping[str, Any] = run.results
    # A pre-training run has no primary metric.
    metrics = results.get("metrics", {})
    metric = results.get("primary_metric") or _PRETRAINING_METRIC
    if metric not in metrics:
        return None

    # The data set by its id on the Hub or its title, with its configuration.
    data = results.get("data", {})
    title = str(data.get("dataset") or data.get("title") or results["task"])
    if data.get("config"):
        title += f" ({data['config']})"
    # A split of the user's own data keeps its own name.
    split = str(results.get("split", "validation"))
    split = data.get("split_names", {}).get(split, split)
    return Scale(title, split, str(metric), int(results.get("rows_scored", 0)))


def _settings(run: FinishedRun) -> dict[str, str]:
    """Returns the settings that decide a run's result, with the model that it started from."""
    settings = dict(named_settings(run))
    start = run.settings.get("model_name_or_path")
    if start:
        settings["model_name_or_path"] = str(start)
    steps = run.settings.get("max_steps")
    if steps:
        settings["max_steps"] = str(steps)
        # The number of epochs had no effect.
        settings.pop("num_train_epochs", None)
    return settings


def _group(members: Sequence[FinishedRun], settings: Mapping[str, str], metric: str) -> RunGroup:
    """Makes a group of runs with equal settings, with the best of their baselines."""
    # The baselines do not depend on the seed, so those of the first run stand for all.
    best_name: str | None = None
    best_score: float | None = None
    for name, scores in members[0].results.get("baselines", {}).items():
        if metric in scores and (best_score is None or scores[metric] > best_score):
            best_name = name
            best_score = float(scores[metric])
    return RunGroup(
        names=tuple(run.name for run in members),
        settings=settings,
        recorded=members[0].settings,
        scores=tuple(float(run.results["metrics"][metric]) for run in members),
        baseline=best_name,
        baseline_score=best_score,
        degenerate=sum(bool(run.results.get("degenerate")) for run in members),
    )


# --- Files ------------------------------------------------------------------------------------------------------------


def write_comparisons(comparisons: Sequence[Comparison], folder: Path) -> list[Path]:
    """Writes all comparisons to `runs.md`, `runs.csv` and `runs.tex` in a folder.

    Returns:
        The files.
    """
    markdown = folder / f"{COMPARISON}.md"
    csv = folder / f"{COMPARISON}.csv"
    latex = folder / f"{COMPARISON}.tex"
    write_text(markdown, markdown_of(comparisons))
    write_text(csv, _csv(comparisons))
    write_text(latex, _latex(comparisons))
    return [markdown, csv, latex]


def markdown_of(comparisons: Sequence[Comparison]) -> str:
    """Returns the comparisons as Markdown: a heading, the settings that all runs share, and a table for each."""
    lines = ["# Your runs compared", ""]
    for comparison in comparisons:
        lines += [f"## {cell(comparison.scale.title)}", ""]
        shared = _shared_settings(comparison)
        if shared:
            lines += [f"All of these runs: {cell(shared)}.", ""]
        lines += [*_markdown_table(comparison.rows()), ""]
    lines += [
        "Runs in one row differ in their seed alone. The deviation is the sample standard deviation over seeds. The",
        "baseline is the best one that was scored on the same rows.",
        "",
    ]
    return "\n".join(lines)


def _markdown_table(rows: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Yields the lines of a table; all rows have the columns of the first."""
    columns = list(rows[0])
    yield f"| {' | '.join(map(cell, columns))} |"
    yield f"|{' --- |' * len(columns)}"
    for row in rows:
        yield f"| {' | '.join(map(cell, row.values()))} |"


def _shared_settings(comparison: Comparison) -> str:
    """Returns the settings that all groups share, as they are typed."""
    differing = comparison.differing_settings
    shared = []
    for name, value in sorted(comparison.groups[0].settings.items()):
        if name not in differing:
            shared.append(f"{name} {value}")
    return ", ".join(shared)


def _csv(comparisons: Sequence[Comparison]) -> str:
    """Returns one table of all comparisons; a column that a comparison does not have is empty."""
    import pandas

    tables = []
    for comparison in comparisons:
        table = pandas.DataFrame(comparison.rows())
        table.insert(0, "data", comparison.scale.title)
        tables.append(table)
    return str(pandas.concat(tables).to_csv(index=False))


def _latex(comparisons: Sequence[Comparison]) -> str:
    """Returns a `tabular` for each comparison, with its title as a LaTeX comment."""
    import pandas

    parts = []
    for comparison in comparisons:
        table = pandas.DataFrame(comparison.rows()).to_latex(index=False, escape=True)
        parts.append(f"% {comparison.scale.title}\n{table}")
    return "\n".join(parts)
