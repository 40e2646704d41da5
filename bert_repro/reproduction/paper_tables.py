"""The paper's tables with our numbers in them.

`AllResults` sorts finished runs by the table entries that they fill. `orderings` compares the rows of these tables.
"""

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from bert_repro.reproduction.collect import FinishedRun, no_difference
from bert_repro.reproduction.paper_results import (
    FIGURE_5,
    FIGURE_5_KEY,
    FIGURE_5_ROWS,
    FIGURE_5_STATEMENT,
    TABLE_KEYS,
    TABLES,
    WNLI_MAJORITY,
    Column,
    TableEntry,
)
from bert_repro.reproduction.resampling import BySeed, Float64Array, interval, resampled_scores

AVERAGED = "glue"
"""The task of Table 1's last column, the average of the others."""

# GLUE averages two metrics of these tasks. Task -> the metric that is not its column in Table 1.
_SECOND_METRICS = {"mrpc": "accuracy", "qqp": "accuracy", "stsb": "pearson"}


@dataclass(frozen=True)
class OurNumber:
    """Our number for one table entry.

    Args:
        column: what it measures.
        runs: the runs behind it, one for each seed.
        scores: their scores in the paper's unit: percent, or a perplexity.
        failed: whether half of the runs or more gave one answer for all examples, or the pre-training behind them never
            left the plateau. Then the mean says nothing about the row.
        low: lower end of the interval; None if the runs have no scores of examples.
        high: upper end of the interval.
        difference: ours minus the paper's; None if the paper has no number, or for `reason`.
        reason: why ours and the paper's may not be subtracted; None: they may, or the paper has no number.
    """

    column: Column
    runs: tuple[FinishedRun, ...]
    scores: tuple[float, ...]
    failed: bool
    low: float | None = None
    high: float | None = None
    difference: float | None = None
    reason: str | None = None

    @property
    def mean(self) -> float:
        """Mean over all runs, degenerate ones included."""
        return statistics.fmean(self.scores)

    @property
    def deviation(self) -> float | None:
        """Standard deviation of a sample (n - 1); None for a single run."""
        if len(self.scores) == 1:
            return None
        return statistics.stdev(self.scores)

    @property
    def degenerate(self) -> int:
        """How many of the runs gave one answer for all examples."""
        return sum(run.is_degenerate(self.column) for run in self.runs)


@dataclass(frozen=True)
class ResultsRow:
    """A row: the paper's numbers and ours.

    Args:
        name: name of the row.
        paper: column -> the printed number, if there is one; empty for a row that the paper does not have.
        ours: column -> our number, if something was run.
        average: average of our numbers in Table 1; None unless all nine columns are there.
        leaderboard: our score as GLUE's leaderboard averages it, on dev; None unless all tasks are there.
        paper_row: the paper's row that a row of ours is shown next to.
    """

    name: str
    paper: Mapping[str, float]
    ours: Mapping[str, OurNumber] = field(default_factory=dict)
    average: float | None = None
    leaderboard: float | None = None
    paper_row: str | None = None


@dataclass(frozen=True)
class ResultsTable:
    """A table of the paper at one size preset of ours, or Figure 5, whose columns are steps.

    Args:
        key: 1 to 8, or `figure5`.
        title: what it shows.
        columns: left to right.
        rows: the paper's rows, then those that only we have, smaller models first.
        size_preset: the size preset of our runs; None: nothing was run.
    """

    key: str
    title: str
    columns: tuple[Column, ...]
    rows: Mapping[str, ResultsRow]
    size_preset: str | None


def unit(column: Column) -> float:
    """Returns the factor that turns a score into what the paper prints."""
    if "perplexity" in column.metric:
        return 1.0
    return 100.0


def score_range(column: Column) -> tuple[float, float]:
    """Returns the lowest and the highest possible score, as printed."""
    if "perplexity" in column.metric:
        return 1.0, math.inf
    if column.metric in ("matthews_correlation", "pearson", "spearmanr"):
        return -100.0, 100.0
    return 0.0, 100.0


def within(ends: tuple[float, float], lowest: float, highest: float) -> tuple[float, float]:
    """Cuts an interval to possible scores, because Student's factor for few seeds reaches beyond them."""
    low, high = ends
    return min(max(low, lowest), highest), min(max(high, lowest), highest)


class AllResults:
    """All runs, by the table entries that they fill.

    Args:
        runs: the runs that `collect` returned.
    """

    def __init__(self, runs: Sequence[FinishedRun]) -> None:
        self.runs = runs
        self.failed_pretrainings = [run.name for run in runs if run.is_pretraining and run.never_left_the_plateau]
        # (size preset, entry) -> its runs, one for each seed.
        self._entries: dict[tuple[str, TableEntry], list[FinishedRun]] = {}
        for run in runs:
            for entry in run.entries:
                self._entries.setdefault((run.size_preset, entry), []).append(run)
        # (run, split, metric) -> its resampled scores, which take a second each.
        self._resampled: dict[tuple[str, str, str], Float64Array] = {}

    @cached_property
    def tables(self) -> list[ResultsTable]:
        """Tables 1 to 8 and Figure 5, once for each size preset at which some of it was run, or once without runs."""
        tables = []
        for key in TABLE_KEYS:
            size_presets = {size_preset for size_preset, entry in self._entries if entry.table == key}
            for size_preset in sorted(size_presets) or (None,):
                tables.append(self._table(key, size_preset))
        return tables

    @cached_property
    def pretraining_spread(self) -> list[float]:
        """For every number with several pre-training seeds: points between the highest and the lowest seed's mean."""
        spread: list[float] = []
        for table in self.tables:
            for row in table.rows.values():
                for number in row.ours.values():
                    means = _means_by_pretraining(number)
                    if len(means) > 1 and not number.failed and unit(number.column) == 100:
                        spread.append(max(means) - min(means))
        return spread

    def by_seed(self, column: Column, runs: Sequence[FinishedRun]) -> BySeed | None:
        """Returns the score and the resampled scores of each run; None if a run has no scores of examples."""
        scores: BySeed = {}
        for run in runs:
            examples = run.example_scores(column)
            if examples is None:
                return None
            key = (run.name, column.split, column.metric)
            if key not in self._resampled:
                self._resampled[key] = resampled_scores(examples)
            scores[run.seeds] = (run.score(column), self._resampled[key])
        return scores

    def _table(self, key: str, size_preset: str | None) -> ResultsTable:
        """Fills one table with our numbers at one size preset."""
        title, columns, paper_rows = self._paper_table(key, size_preset)
        our_runs = {
            entry: runs for (at, entry), runs in self._entries.items() if at == size_preset and entry.table == key
        }

        # The paper's rows come first, then ours, by their place in the study and then by size.
        sizes = {entry.row: (runs[0].place or 0, runs[0].parameters) for entry, runs in our_runs.items()}
        only_ours = [name for name in sizes if name not in paper_rows]
        only_ours.sort(key=lambda name: (*sizes[name], name))

        rows = {}
        for name in (*paper_rows, *only_ours):
            scored: dict[Column, list[FinishedRun]] = {}
            for column in columns:
                runs = our_runs.get(TableEntry(key, name, column.name), [])
                runs = [run for run in runs if run.is_scored(column)]
                if runs:
                    scored[column] = runs
            rows[name] = self._row(name, columns, scored, paper_rows)
        return ResultsTable(key, title, columns, rows, size_preset)

    def _paper_table(
        self, key: str, size_preset: str | None
    ) -> tuple[str, tuple[Column, ...], dict[str, dict[str, float]]]:
        """Returns title, columns and the paper's rows of a table; Figure 5's columns are the steps that we ran."""
        if key == FIGURE_5_KEY:
            steps = {int(entry.column) for at, entry in self._entries if at == size_preset and entry.table == key}
            columns = tuple(Column(str(step), FIGURE_5.task, FIGURE_5.metric, FIGURE_5.split) for step in sorted(steps))
            return FIGURE_5_STATEMENT, columns, {name: {} for name in FIGURE_5_ROWS}

        table = TABLES[int(key)]
        rows: dict[str, dict[str, float]] = {}
        for name, values in table.rows.items():
            printed = zip(table.columns, values, strict=True)
            rows[name] = {column.name: value for column, value in printed if value is not None}
        return table.title, table.columns, rows

    def _row(
        self,
        name: str,
        columns: Sequence[Column],
        scored: Mapping[Column, list[FinishedRun]],
        paper_rows: Mapping[str, Mapping[str, float]],
    ) -> ResultsRow:
        """Makes a row of a table from the runs that fill it."""
        paper_row = None
        if scored:
            last_runs = list(scored.values())[-1]
            paper_row = name if name in paper_rows else _row_beside(name, last_runs[0], paper_rows)
        paper = paper_rows.get(paper_row or name, {})
        ours = {column.name: self._number(column, runs, paper.get(column.name)) for column, runs in scored.items()}

        # Only Table 1 has a column of averages, and only a complete row has an average.
        average = leaderboard = None
        averaged = [column.name for column in columns if column.task != AVERAGED]
        has_average = len(averaged) < len(columns)
        if has_average and all(column in ours for column in averaged):
            average = statistics.fmean(ours[column].mean for column in averaged)
            leaderboard = _leaderboard_score(scored)
        return ResultsRow(
            name,
            paper_rows.get(name, {}),
            ours,
            average,
            leaderboard,
            paper_row if paper_row != name else None,
        )

    def _number(self, column: Column, runs: list[FinishedRun], paper: float | None) -> OurNumber:
        """Computes our number for one entry, and its difference from the paper's if the two are comparable."""
        runs = sorted(runs, key=lambda run: run.seeds)
        scores = tuple(unit(column) * run.score(column) for run in runs)
        degenerate = sum(run.is_degenerate(column) for run in runs)
        from_failed_pretraining = any((run.pretraining or run.name) in self.failed_pretrainings for run in runs)
        failed = 2 * degenerate >= len(runs) or from_failed_pretraining

        low = high = difference = reason = None
        by_seed = self.by_seed(column, runs)
        if by_seed is not None:
            ends = interval([score for score, _ in by_seed.values()], [draws for _, draws in by_seed.values()])
            low, high = within((unit(column) * ends[0], unit(column) * ends[1]), *score_range(column))
        if paper is not None:
            reason = no_difference(column, runs)
            if reason is None:
                difference = statistics.fmean(scores) - paper
        return OurNumber(column, tuple(runs), scores, failed, low, high, difference, reason)


def _means_by_pretraining(number: OurNumber) -> list[float]:
    """Returns the mean score of each pre-training seed, in percent."""
    by_seed: dict[int, list[float]] = {}
    for run in number.runs:
        pretraining_seed, _ = run.seeds
        by_seed.setdefault(pretraining_seed, []).append(100 * run.score(number.column))
    return [statistics.fmean(scores) for scores in by_seed.values()]


def _row_beside(name: str, run: FinishedRun, paper_rows: Collection[str]) -> str | None:
    """Returns the paper's row to show next to a row of ours; for a finished model, that of its size."""
    model, _, variant = name.partition(": ")
    if variant in paper_rows:
        return variant
    if model in paper_rows:
        return model
    if run.place is None:
        return None
    shape = run.results["model"]
    if shape["num_hidden_layers"] >= 24 and shape["hidden_size"] >= 1024:
        return "BERT-large"
    return "BERT-base"


def _leaderboard_score(scored: Mapping[Column, Sequence[FinishedRun]]) -> float:
    """Computes GLUE's score as its leaderboard does, in percent.

    It is the mean over nine tasks: MNLI's two sets count once, a task of two metrics has their mean, and WNLI is the
    paper's majority class.
    """
    tasks = {"wnli": [WNLI_MAJORITY / 100]}
    for column, runs in scored.items():
        second_metric = _SECOND_METRICS.get(column.task)
        for run in runs:
            first = run.score(column)
            second = run.split(column)["metrics"].get(second_metric, first)
            tasks.setdefault(column.task, []).append(statistics.fmean([first, second]))
    return 100 * statistics.fmean(statistics.fmean(scores) for scores in tasks.values())
