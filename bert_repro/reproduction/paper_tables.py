"""The paper's tables with our numbers in them, and which of the paper's orderings appear in ours.

How sure our numbers are is an interval around a mean over seeds, and a paired test of two rows.
Two things are left to chance, the examples of the dev set and the seed, and both are resampled:

- Examples are drawn with replacement, the same ones for every run on a split, so rows are compared pair by pair.
- Seeds are drawn as clusters: a drawn seed brings all of its run along, and in a test the runs of both rows. A few
  clusters drawn with replacement spread too little, so their part is widened to what Student's distribution gives.

The two parts are added. One seed alone leaves the second part out, and nothing is then said about seeds.

Shape legend: `n` seeds, `N` examples, `R` resamples.
"""

import math
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import pairwise, product
from statistics import NormalDist
from typing import cast

import numpy as np
import numpy.typing as npt

from bert_repro.reproduction.collect import FinishedRun, Float64Array, no_difference
from bert_repro.reproduction.paper_results import (
    FEATURE_ROWS,
    FIGURE_5,
    FIGURE_5_KEY,
    FIGURE_5_ROWS,
    FIGURE_5_STATEMENT,
    TABLES,
    WNLI_MAJORITY,
    Column,
    TableEntry,
)
from bert_repro.tasks import TASKS

AVERAGED = "glue"  # the task of Table 1's last column
MEAN = "mean of the tasks"  # of finished models, over all tables
_CONCAT = "Concat last four hidden"
PAIRS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "1": (("BERT-large", "BERT-base"),),
    "2": (("BERT-large", "BERT-base"), ("BERT-large + TriviaQA", "BERT-large")),
    "4": (("BERT-large", "BERT-base"),),
    "5": (("No NSP", "BERT-base"), ("LTR & no NSP", "No NSP"), ("LTR & no NSP + BiLSTM", "LTR & no NSP")),
    "7": (
        ("BERT-large", "BERT-base"),
        (_CONCAT, "BERT-base"),
        *((row, _CONCAT) for row in FEATURE_ROWS if row != _CONCAT),
    ),
    "8": tuple((row, "80/10/10") for row in TABLES[8].rows if row != "80/10/10"),
}
"""The rows that each table sets against each other. Table 6 sets every size against the next smaller one."""
SIGNIFICANT = 0.05
APPEARS, INCONCLUSIVE, REVERSED, FAILED, NOT_RUN = "appears", "inconclusive", "reversed", "failed", "not run"
VERDICTS = (APPEARS, REVERSED, INCONCLUSIVE, FAILED, NOT_RUN)
RESAMPLES = 2000
CONFIDENCE = 0.95
SEED = 20181011
_SCALE = 100_000  # Scores have five digits: as whole numbers their sums are exact, on every machine.
_AT_ONCE = 250  # resamples


@dataclass(frozen=True)
class OurNumber:
    """Our number for one table entry.

    Args:
        column: what it measures.
        runs: those behind it, one for each seed.
        scores: theirs, in the paper's unit: percent, or a perplexity.
        failed: whether half of the runs or more gave one answer for all examples, or the pre-training behind them never
            left the plateau: then the mean says nothing about the row.
        low, high: ends of the interval; None where the runs have no scores of examples.
        difference: ours minus the paper's.
        reason: why there is no difference; None: there is one, or the paper has no number.
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
        """Standard deviation of a sample (n - 1); None of one run."""
        return statistics.stdev(self.scores) if len(self.scores) > 1 else None

    @property
    def degenerate(self) -> int:
        """How many of the runs gave one answer for all examples."""
        return sum(run.is_degenerate(self.column) for run in self.runs)


@dataclass(frozen=True)
class ResultsRow:
    """A row: the paper's numbers and ours.

    Args:
        name: name of the row.
        paper: column -> the printed number, where there is one; empty for a row that the paper lacks.
        ours: column -> our number, where something was run.
        average: Table 1's average of ours; None: not all nine columns are there.
        leaderboard: GLUE's score of ours as its leaderboard averages it, on dev; None: not all tasks are there.
        beside: the paper's row that a finished model is compared with.
    """

    name: str
    paper: Mapping[str, float]
    ours: Mapping[str, OurNumber] = field(default_factory=dict)
    average: float | None = None
    leaderboard: float | None = None
    beside: str | None = None


@dataclass(frozen=True)
class ResultsTable:
    """A table of the paper at one size preset of ours, or Figure 5, whose columns are steps.

    Args:
        key: 1 to 8, or `figure5`.
        title: what it shows.
        columns: left to right.
        rows: the paper's, then those that only we have, the smaller models first.
        size_preset: that of our runs; None: nothing was run.
    """

    key: str
    title: str
    columns: tuple[Column, ...]
    rows: Mapping[str, ResultsRow]
    size_preset: str | None


@dataclass(frozen=True)
class Comparison:
    """A row against the baseline row.

    Args:
        difference: mean over seeds of the row less that of the baseline.
        low, high: its interval.
        p_value: two-sided; never below 1 / (R + 1).
        pretrainings_agree: whether the difference has the same sign for every pre-training seed of both rows.
    """

    difference: float
    low: float
    high: float
    p_value: float
    pretrainings_agree: bool = True


@dataclass(frozen=True)
class Ordering:
    """One row against another in one column, in the paper and in ours.

    Args:
        table: 1 to 8, or `figure5`.
        size_preset: that of our runs; None: nothing of the table was run.
        statement: `one row` above or below `the other`, as the paper has it.
        column: the column's name.
        paper: the paper's difference in points; None where it prints no numbers.
        expected: the sign of the paper's difference.
        ours: our difference with its test; None: not run or not testable.
        untested: our difference where it cannot be tested (no scores of examples).
        failed: whether one side failed, see `OurNumber`.
    """

    table: str
    size_preset: str | None
    statement: str
    column: str
    paper: float | None
    expected: int
    ours: Comparison | None = None
    untested: float | None = None
    failed: bool = False

    @property
    def verdict(self) -> str:
        """One of VERDICTS: an ordering appears when it is ours too, or is reversed, beyond chance and for every seed of
        pre-training."""
        if self.failed:
            return FAILED
        if self.ours is None:
            return NOT_RUN if self.untested is None else INCONCLUSIVE
        if self.ours.p_value >= SIGNIFICANT or not self.ours.pretrainings_agree:
            return INCONCLUSIVE
        return APPEARS if self.ours.difference * self.expected > 0 else REVERSED


def unit(column: Column) -> float:
    """Returns the factor that turns a score into what the paper prints."""
    return 1.0 if "perplexity" in column.metric else 100.0


def score_range(column: Column) -> tuple[float, float]:
    """Returns the lowest and the highest possible score, as printed."""
    if "perplexity" in column.metric:
        return 1.0, math.inf
    return (-100.0 if column.metric in ("matthews_correlation", "pearson", "spearmanr") else 0.0), 100.0


class AllResults:
    """All runs by the table entries that they fill.

    Args:
        runs: what `collect` returned.
    """

    def __init__(self, runs: Sequence[FinishedRun]) -> None:
        self.runs = runs
        self._entries: dict[tuple[str, TableEntry], list[FinishedRun]] = {}
        for run in runs:
            for entry in run.entries:
                self._entries.setdefault((run.size_preset, entry), []).append(run)
        self.failed_pretrainings = [run.name for run in runs if run.is_pretraining and run.never_left_the_plateau]
        self._resampled: dict[tuple[str, str, str], Float64Array] = {}

    @cached_property
    def tables(self) -> list[ResultsTable]:
        """Tables 1 to 8 and Figure 5, each at every size preset at which some of it was run, or once."""
        return [
            self._table(key, size_preset)
            for key in (*map(str, TABLES), FIGURE_5_KEY)
            for size_preset in sorted({at for at, entry in self._entries if entry.table == key}) or (None,)
        ]

    @cached_property
    def orderings(self) -> list[Ordering]:
        """All orderings of the paper that differ at all, at every size preset, in the order of the tables."""
        return [ordering for table in self.tables for ordering in self._orderings(table)]

    @cached_property
    def differences(self) -> list[Ordering]:
        """Every finished model against the first of its study: column by column, and the mean of the tasks.

        A task counts in the mean by its first column, and its error is taken as independent of the others'.
        """
        differences: list[Ordering] = []
        tasks: dict[tuple[str | None, str], dict[str, Comparison]] = {}
        for table in self.tables:
            models = [row for row in table.rows.values() if row.beside and ": " not in row.name]
            for column, row in product(table.columns, models[1:]):
                compared, *_ = self._compare(row.ours.get(column.name), models[0].ours.get(column.name))
                if compared is not None:
                    at, statement = table.size_preset, f"{row.name} against {models[0].name}"
                    name = column.name if table.key == "1" else f"{TASKS[column.task].title} {column.name}"
                    differences.append(Ordering(table.key, at, statement, name, None, 1, compared))
                    tasks.setdefault((at, statement), {}).setdefault(column.task, compared)
        for (at, statement), compared_tasks in tasks.items():
            found = compared_tasks.values()
            mean = statistics.fmean(one.difference for one in found)
            half = math.sqrt(sum((one.high - one.low) ** 2 for one in found)) / 2 / len(found)
            errors = abs(mean) / half * NormalDist().inv_cdf((1 + CONFIDENCE) / 2) if half else 0.0
            compared = Comparison(mean, mean - half, mean + half, 2 * NormalDist().cdf(-errors))
            differences.append(Ordering("1 to 7", at, statement, MEAN, None, 1, compared))
        return differences

    @cached_property
    def pretraining_spread(self) -> list[float]:
        """Points between the means of a number's pre-training seeds, for every number that has several."""
        spread: list[float] = []
        for number in (number for table in self.tables for row in table.rows.values() for number in row.ours.values()):
            column, seeds = number.column, {run.seeds[0] for run in number.runs}
            if len(seeds) > 1 and not number.failed and unit(column) == 100:
                groups = [[100 * run.score(column) for run in number.runs if run.seeds[0] == seed] for seed in seeds]
                spread.append(max(map(statistics.fmean, groups)) - min(map(statistics.fmean, groups)))
        return spread

    # ---------------------------------------------------------------------------------------------------------- tables

    def _table(self, key: str, size_preset: str | None) -> ResultsTable:
        papers: Mapping[str, Mapping[str, float]]
        if key == FIGURE_5_KEY:
            title, measured, papers = FIGURE_5_STATEMENT, FIGURE_5, {name: {} for name in FIGURE_5_ROWS}
            steps = {int(e.column) for at, e in self._entries if at == size_preset and e.table == key}
            columns = tuple(Column(str(s), measured.task, measured.metric, measured.split) for s in sorted(steps))
        else:
            title, columns = TABLES[int(key)].title, TABLES[int(key)].columns
            papers = {
                name: {c.name: value for c, value in zip(columns, values, strict=True) if value is not None}
                for name, values in TABLES[int(key)].rows.items()
            }
        sizes = {
            entry.row: (runs[0].place or 0, runs[0].parameters)
            for (at, entry), runs in self._entries.items()
            if at == size_preset and entry.table == key
        }
        others = sorted((name for name in sizes if name not in papers), key=lambda name: (*sizes[name], name))
        rows = {}
        for name in (*papers, *others):
            beside, filled = None, dict[Column, list[FinishedRun]]()
            for column in columns:
                runs = self._entries.get((str(size_preset), TableEntry(key, name, column.name)), [])
                if runs := [run for run in runs if run.is_scored(column)]:
                    filled[column] = runs
                    beside = name if name in papers else _row_beside(name, runs[0], papers)
            paper = papers.get(beside or name, {})
            ours = {column.name: self._number(column, runs, paper.get(column.name)) for column, runs in filled.items()}
            averaged = [column.name for column in columns if column.task != AVERAGED]
            whole = len(averaged) < len(columns) and all(column in ours for column in averaged)
            average = statistics.fmean(ours[column].mean for column in averaged) if whole else None
            rows[name] = ResultsRow(
                name,
                papers.get(name, {}),
                ours,
                average,
                _leaderboard_score(filled) if whole else None,
                beside if beside != name else None,
            )
        return ResultsTable(key, title, columns, rows, size_preset)

    def _number(self, column: Column, runs: list[FinishedRun], paper: float | None) -> OurNumber:
        runs = sorted(runs, key=lambda run: run.seeds)
        scores = tuple(unit(column) * run.score(column) for run in runs)
        failed = 2 * sum(run.is_degenerate(column) for run in runs) >= len(runs)
        failed = failed or any((run.pretraining or run.name) in self.failed_pretrainings for run in runs)
        resampled = self._by_seed(column, runs)
        low = high = difference = reason = None
        if resampled is not None:
            ends = interval([score for score, _ in resampled.values()], [draws for _, draws in resampled.values()])
            low, high = _within([unit(column) * end for end in ends], *score_range(column))
        if paper is not None:
            reason = no_difference(column, runs)
            difference = statistics.fmean(scores) - paper if reason is None else None
        return OurNumber(column, tuple(runs), scores, failed, low, high, difference, reason)

    def _by_seed(self, column: Column, runs: Sequence[FinishedRun]) -> "BySeed | None":
        """Returns seeds -> score and its resamples; None where a run has no scores of examples."""
        found = {}
        for run in runs:
            examples = run.example_scores(column)
            if examples is None:
                return None
            key = (run.name, column.split, column.metric)
            if key not in self._resampled:
                self._resampled[key] = resampled_scores(examples)
            found[run.seeds] = (run.score(column), self._resampled[key])
        return found

    # ------------------------------------------------------------------------------------------------------- orderings

    def _orderings(self, table: ResultsTable) -> Iterator[Ordering]:
        if table.key == FIGURE_5_KEY:
            yield from self._of_figure(table)
            return
        rows = table.rows
        pairs = PAIRS.get(table.key, ())
        if table.key == "6":  # more is better in every column, for sizes of ours that the paper lacks too
            tried = sorted((row for row in rows.values() if row.ours), key=_parameters)
            names = [row.name for row in tried] if len(tried) > 1 else [row.name for row in rows.values() if row.paper]
            pairs = tuple((larger, smaller) for smaller, larger in pairwise(names))
        for first, second in ((rows[name], rows[other]) for name, other in pairs):
            for column in table.columns:
                paper = None
                if column.name in first.paper and column.name in second.paper:
                    paper = first.paper[column.name] - second.paper[column.name]
                if table.key == "6":
                    expected = -1 if "perplexity" in column.metric else 1
                elif paper is None or abs(paper) < 1e-9 or column.task == AVERAGED:
                    continue
                else:
                    expected = 1 if paper > 0 else -1
                statement = f"{first.name} {'above' if expected > 0 else 'below'} {second.name}"
                found = self._compare(first.ours.get(column.name), second.ours.get(column.name))
                yield Ordering(table.key, table.size_preset, statement, column.name, paper, expected, *found)

    def _of_figure(self, figure: ResultsTable) -> Iterator[Ordering]:
        """Yields the masked model above the left-to-right one, and the last checkpoint above the first."""
        masked, other = figure.rows.values()
        steps = [column.name for column in figure.columns] or ["0"]
        for name in dict.fromkeys((steps[0], steps[-1])):
            at = f"step {int(name):,}" if figure.columns else "last step"
            found = self._compare(masked.ours.get(name), other.ours.get(name))
            yield Ordering(FIGURE_5_KEY, figure.size_preset, "MLM above LTR", at, None, 1, *found)
        half = str(int(steps[-1]) // 2)  # C.1: twice the steps are worth almost a point of BERT-base
        earlier = [(row, steps[0], None) for row in (masked, other) if len(steps) > 1]
        for row, step, paper in (*earlier, *([(masked, half, 1.0)] if half in steps else [])):
            found = self._compare(row.ours.get(steps[-1]), row.ours.get(step))
            statement = f"{row.name} after {int(steps[-1]):,} steps above itself after {int(step):,}"
            yield Ordering(FIGURE_5_KEY, figure.size_preset, statement, "MNLI", paper, 1, *found)

    def _compare(self, ours: OurNumber | None, other: OurNumber | None) -> tuple[Comparison | None, float | None, bool]:
        """Returns the difference with its test, or without where it cannot be tested, and whether a side failed."""
        if ours is None or other is None:
            return None, None, False
        column, failed = ours.column, ours.failed or other.failed
        first, second = self._by_seed(column, ours.runs), self._by_seed(column, other.runs)
        examples = [run.example_scores(column) for run in (*ours.runs, *other.runs)]
        # The same examples are drawn for all.
        if first is None or second is None or len({len(scores) for scores in examples if scores is not None}) > 1:
            return None, ours.mean - other.mean, failed
        found, factor = compare(first, second), unit(column)
        lowest, highest = score_range(column)
        low, high = _within((factor * found.low, factor * found.high), lowest - highest, highest - lowest)
        return replace(found, difference=factor * found.difference, low=low, high=high), None, failed


def _row_beside(name: str, run: FinishedRun, papers: Collection[str]) -> str | None:
    """Returns the paper's row for a row of ours: of a finished model that of its size; None: there is none."""
    model, _, variant = name.partition(": ")
    if variant in papers or model in papers:
        return variant if variant in papers else model
    if run.place is None:
        return None
    shape = run.results["model"]
    return "BERT-large" if shape["num_hidden_layers"] >= 24 and shape["hidden_size"] >= 1024 else "BERT-base"


def _leaderboard_score(filled: Mapping[Column, Sequence[FinishedRun]]) -> float:
    """Computes GLUE's score as its leaderboard does, in percent.

    The mean over nine tasks: MNLI's two sets count once, a task of two metrics has their mean, and WNLI is the paper's
    majority class.
    """
    second = {"mrpc": "accuracy", "qqp": "accuracy", "stsb": "pearson"}
    tasks = {"wnli": [WNLI_MAJORITY / 100]}
    for column, runs in filled.items():
        for run in runs:
            scores = [run.score(column), run.split(column)["metrics"].get(second.get(column.task), run.score(column))]
            tasks.setdefault(column.task, []).append(statistics.fmean(scores))
    return 100 * statistics.fmean(statistics.fmean(scores) for scores in tasks.values())


def _parameters(row: ResultsRow) -> int:
    return next(iter(row.ours.values())).runs[0].parameters


def _within(ends: Sequence[float], lowest: float, highest: float) -> tuple[float, float]:
    """Cuts an interval to possible scores: Student's factor at few seeds reaches beyond."""
    low, high = (min(max(end, lowest), highest) for end in ends)
    return low, high


# ---------------------------------------------------------------------------------------------------------- statistics


def resampled_scores(examples: Float64Array) -> Float64Array:
    """Computes a run's score on each resampled dev set; the same sets for every run with as many examples.

    Args:
        examples: (N,) numbers to be averaged, (N, 3) counts of right, predicted and true entities, or (N, 2) numbers
            whose correlation is the score.

    Returns:
        (R,).
    """
    weights, correlated = _draws_of_examples(len(examples)), examples.shape[1:] == (2,)
    if correlated:
        examples = (examples - examples.mean(axis=0)) / np.maximum(examples.std(axis=0), 1e-9)
        examples = np.column_stack([examples, examples**2, examples.prod(axis=1)])
    integers = np.rint(examples.reshape(len(examples), -1) * _SCALE)
    parts = [weights[start : start + _AT_ONCE].astype(np.float64) @ integers for start in range(0, RESAMPLES, _AT_ONCE)]
    sums = np.concatenate(parts)
    if examples.ndim == 1:
        return sums[:, 0] / (_SCALE * len(examples))
    if correlated:
        x, y, xx, yy, xy = sums.T / (_SCALE * len(examples))
        spread = np.sqrt(np.maximum(xx - x**2, 0) * np.maximum(yy - y**2, 0))
        return cast(Float64Array, np.divide(xy - x * y, spread, out=np.zeros(len(sums)), where=spread > 1e-9))
    right, predicted, true = sums.T
    total = predicted + true
    return cast(Float64Array, np.divide(2 * right, total, out=np.zeros(len(sums)), where=total > 0))


def interval(scores: Sequence[float], resampled: Sequence[Float64Array]) -> tuple[float, float]:
    """Computes the interval around the mean over seeds.

    Args:
        scores: of each run, n of them.
        resampled: what `resampled_scores` gives for each.

    Returns:
        Its ends.
    """
    return _ends(np.mean(resampled, axis=0) + _seed_part(np.array(scores), _draws_of_seeds(len(scores), 0)))


BySeed = dict[tuple[int, int], tuple[float, Float64Array]]
"""Seeds of pre-training and fine-tuning -> the run's score and what `resampled_scores` gives."""


def compare(row: BySeed, baseline: BySeed) -> Comparison:
    """Tests a row against the baseline.

    Args:
        row: its runs.
        baseline: the baseline's runs, on the same examples.

    Returns:
        The difference with its interval; the p-value is the share of resampled differences that lie as far from the
        difference found as that lies from none.
    """
    paired = set(row) == set(baseline)
    seeds = sorted(row)
    difference = _mean_score(row) - _mean_score(baseline)
    resampled = np.mean([draws for _, draws in row.values()], axis=0)
    resampled = resampled - np.mean([draws for _, draws in baseline.values()], axis=0)
    if paired:
        pairs = np.array([row[seed][0] - baseline[seed][0] for seed in seeds])
        resampled = resampled + _seed_part(pairs, _draws_of_seeds(len(seeds), 0))
    else:
        for number, (group, sign) in enumerate(((row, 1), (baseline, -1))):
            scores = np.array([group[seed][0] for seed in sorted(group)])
            resampled = resampled + sign * _seed_part(scores, _draws_of_seeds(len(scores), number))
    # What rounding leaves of a difference that is none must not count.
    as_far = np.abs(resampled - difference) >= abs(difference) - 1e-12
    p_value = (1 + int(as_far.sum())) / (RESAMPLES + 1)
    of_each = [
        _mean_score(row, pretraining) - _mean_score(baseline, pretraining)
        for pretraining in {seed for seed, _ in row} & {seed for seed, _ in baseline}
    ]
    return Comparison(difference, *_ends(resampled), p_value, all(one * difference > 0 for one in of_each))


def _mean_score(row: BySeed, pretraining: int | None = None) -> float:
    return statistics.fmean(score for seeds, (score, _) in row.items() if pretraining in (None, seeds[0]))


def _seed_part(scores: Float64Array, draws: npt.NDArray[np.int64]) -> Float64Array:
    """Computes how far the mean of drawn seeds is from the mean of all, widened for their small number; (R,)."""
    from scipy.stats import norm, t

    if len(scores) == 1:
        return np.zeros(RESAMPLES)
    tail = (1 + CONFIDENCE) / 2
    few = len(scores) / (len(scores) - 1)
    widened = np.sqrt(few) * t.ppf(tail, len(scores) - 1) / norm.ppf(tail)
    return cast(Float64Array, widened * (scores - scores.mean())[draws].mean(axis=1))


def _ends(resampled: Float64Array) -> tuple[float, float]:
    low, high = np.quantile(resampled, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


@lru_cache(maxsize=4)
def _draws_of_examples(count: int) -> npt.NDArray[np.uint8]:
    """Counts how often each example is drawn in each resample, (R, N). No count comes near 256."""
    generator = np.random.default_rng([SEED, count])
    draws = np.empty((RESAMPLES, count), dtype=np.uint8)
    for row in draws:
        row[:] = np.bincount(generator.integers(count, size=count), minlength=count)
    return draws


@lru_cache(maxsize=16)
def _draws_of_seeds(count: int, group: int) -> npt.NDArray[np.int64]:
    """Returns the seeds drawn in each resample, (R, n); another group is drawn by itself."""
    return np.random.default_rng([SEED, count, group, 1]).integers(count, size=(RESAMPLES, count))
