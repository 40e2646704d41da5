"""The paper's tables with our numbers in them: means over seeds, their uncertainty, and what may be subtracted."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from bert_repro.paper_results import FIGURE_5, FIGURE_5_KEY, FIGURE_5_ROWS, TABLES, Column, TableEntry
from bert_repro.reproduction.collect import FinishedRun
from bert_repro.reproduction.conditions import named_settings, no_difference
from bert_repro.reproduction.statistics import Comparison, Float64Array, compare, interval, resampled_scores

BASELINES: Mapping[str, str] = {
    "1": "BERT-base",
    "2": "BERT-base",
    "3": "BERT-large",
    "4": "BERT-base",
    "5": "BERT-base",
    "7": "BERT-base",
    "8": "80/10/10",
    FIGURE_5_KEY: "MLM",
}
"""The row that the others are tested against. Table 6, whose rows are sizes, takes the smallest that was run."""

AVERAGED = "glue"  # the task of Table 1's last column
FEATURE_ROWS: Mapping[str, tuple[str, slice]] = {
    "Embeddings": ("weighted", slice(0, 1)),
    "Second-to-last hidden": ("weighted", slice(-2, -1)),
    "Last hidden": ("weighted", slice(-1, None)),
    "Weighted sum last four hidden": ("weighted", slice(-4, None)),
    "Concat last four hidden": ("concat", slice(-4, None)),
    "Weighted sum all 12 layers": ("weighted", slice(1, None)),
}
"""Table 7's rows of features: how they combine which of the L + 1 hidden states, the embeddings first."""

_CORRELATIONS = ("matthews_correlation", "pearson", "spearmanr")
_OTHER_SYSTEMS: Mapping[str, tuple[str, ...]] = {"7": ("ELMo", "CVT", "CSE")}


@dataclass(frozen=True)
class OurNumber:
    """Our number for one table entry.

    Args:
        column: what it measures.
        runs: those behind it, one for each seed.
        scores: theirs, in the paper's unit: percent, or a perplexity.
        low, high: ends of the interval; None where the runs have no scores of examples.
        comparison: against the baseline row, in the paper's unit; None where there is none.
        difference: ours minus the paper's.
        reason: why there is no difference; None: there is one, or the paper has no number.
    """

    column: Column
    runs: tuple[FinishedRun, ...]
    scores: tuple[float, ...]
    low: float | None = None
    high: float | None = None
    comparison: Comparison | None = None
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

    @property
    def is_degenerate(self) -> bool:
        """Whether half of the runs or more are degenerate: then the mean says nothing about the model."""
        return 2 * self.degenerate >= len(self.runs)


@dataclass(frozen=True)
class ResultsRow:
    """A row: the paper's numbers and ours.

    Args:
        name: name of the row.
        paper: column -> the printed number, where there is one; empty for a row that the paper lacks.
        ours: column -> our number, where something was run.
        is_bert: whether it is a model that this project could run, and not another system of the paper's table.
        average: Table 1's average of ours; None: not all nine columns are there.
        average_difference: that minus the paper's.
        average_reason: why there is no such difference; None: there is one, or one of the two averages is missing.
        same_as: an earlier row of ours that is the same computation, whatever the paper's model had.
    """

    name: str
    paper: Mapping[str, float]
    ours: Mapping[str, OurNumber] = field(default_factory=dict)
    is_bert: bool = True
    average: float | None = None
    average_difference: float | None = None
    average_reason: str | None = None
    same_as: str | None = None

    @property
    def runs(self) -> list[FinishedRun]:
        """The runs behind the row, each once."""
        return list({run.name: run for ours in self.ours.values() for run in ours.runs}.values())


@dataclass(frozen=True)
class ResultsTable:
    """A table of the paper at one size preset of ours, or Figure 5, whose columns are steps.

    Args:
        key: 1 to 8, or `figure5`.
        title: what it shows.
        columns: left to right.
        rows: the paper's, then those that only we have.
        size_preset: that of our runs; None: nothing was run.
        baseline: the row that the others are tested against; None where it was not run.
    """

    key: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[ResultsRow, ...]
    size_preset: str | None
    baseline: str | None

    def row(self, name: str) -> ResultsRow | None:
        """Returns the row of that name."""
        return next((row for row in self.rows if row.name == name), None)


def unit(column: Column) -> float:
    """Returns the factor that turns a score into what the paper prints."""
    return 1.0 if "perplexity" in column.metric else 100.0


def score_range(column: Column) -> tuple[float, float]:
    """Returns the lowest and the highest possible score, as printed."""
    if "perplexity" in column.metric:
        return 1.0, math.inf
    return (-100.0 if column.metric in _CORRELATIONS else 0.0), 100.0


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
        self._resampled: dict[tuple[str, str, str], Float64Array] = {}

    @cached_property
    def tables(self) -> list[ResultsTable]:
        """Tables 1 to 8, each once for every size preset at which some of it was run, or once where none was."""
        return [
            self._table(key, size_preset)
            for key in map(str, TABLES)
            for size_preset in (*self.size_presets(key),) or (None,)
        ]

    @cached_property
    def figures(self) -> list[ResultsTable]:
        """Figure 5 for every size preset at which it was run."""
        return [self._table(FIGURE_5_KEY, size_preset) for size_preset in self.size_presets(FIGURE_5_KEY)]

    def size_presets(self, key: str) -> list[str]:
        """Returns the size presets at which something of a table was run."""
        return sorted({size_preset for size_preset, entry in self._entries if entry.table == key})

    def compare(self, ours: OurNumber, other: OurNumber) -> Comparison | None:
        """Tests one of our numbers against another in the same column; None where examples cannot be paired."""
        first, second = (self._by_seed(item) for item in (ours, other))
        if first is None or second is None or self._examples(ours) != self._examples(other):
            return None
        found, factor = compare(first, second), unit(ours.column)
        lowest, highest = score_range(ours.column)
        low, high = _within((factor * found.low, factor * found.high), lowest - highest, highest - lowest)
        return Comparison(factor * found.difference, low, high, found.p_value, found.paired_seeds)

    def _table(self, key: str, size_preset: str | None) -> ResultsTable:
        if key == FIGURE_5_KEY:
            title, columns = FIGURE_5.statement, tuple(self._steps(size_preset))
            papers: Mapping[str, Mapping[str, float]] = {name: {} for name in FIGURE_5_ROWS}
        else:
            title, columns, printed = TABLES[int(key)].title, TABLES[int(key)].columns, TABLES[int(key)].rows
            names = [column.name for column in columns]
            papers = {
                name: {column: value for column, value in zip(names, values, strict=True) if value is not None}
                for name, values in printed.items()
            }
        others = [row for row in self._rows_of(key, size_preset) if row not in papers]
        found = {name: self._ours(key, size_preset, name, columns, papers.get(name, {})) for name in [*papers, *others]}
        baseline = self._baseline(key, found)
        same = _coinciding(found)
        rows = [
            ResultsRow(
                name,
                papers.get(name, {}),
                self._tested(ours, found[baseline] if baseline and name != baseline else {}),
                _is_bert(key, name),
                *_average(columns, ours, papers.get(name, {})),
                same.get(name),
            )
            for name, ours in found.items()
        ]
        return ResultsTable(key, title, columns, tuple(rows), size_preset, baseline)

    def _steps(self, size_preset: str | None) -> list[Column]:
        steps = {int(entry.column) for at, entry in self._entries if at == size_preset and entry.table == FIGURE_5_KEY}
        measured = FIGURE_5.column
        return [Column(str(step), measured.task, measured.metric, measured.split) for step in sorted(steps)]

    def _rows_of(self, key: str, size_preset: str | None) -> list[str]:
        """Rows that were run, the smaller models first."""
        sizes: dict[str, int] = {}
        for (at, entry), runs in self._entries.items():
            if at == size_preset and entry.table == key:
                sizes.setdefault(entry.row, runs[0].parameters)
        return sorted(sizes, key=lambda name: (sizes[name], name))

    def _ours(
        self, key: str, size_preset: str | None, row: str, columns: Sequence[Column], paper: Mapping[str, float]
    ) -> dict[str, OurNumber]:
        return {
            column.name: self._number(column, runs, paper.get(column.name))
            for column in columns
            if size_preset is not None and (runs := self._entries.get((size_preset, TableEntry(key, row, column.name))))
        }

    def _number(self, column: Column, runs: list[FinishedRun], paper: float | None) -> OurNumber:
        runs = sorted(runs, key=lambda run: run.seed)
        scores = tuple(unit(column) * run.score(column) for run in runs)
        ours = OurNumber(column, tuple(runs), scores)
        resampled = self._by_seed(ours)
        low = high = difference = reason = None
        if resampled is not None:
            ends = interval([score for score, _ in resampled.values()], [draws for _, draws in resampled.values()])
            low, high = _within([unit(column) * end for end in ends], *score_range(column))
        if paper is not None:
            reason = no_difference(column, runs)
            difference = ours.mean - paper if reason is None else None
        return replace(ours, low=low, high=high, difference=difference, reason=reason)

    def _tested(self, ours: Mapping[str, OurNumber], baseline: Mapping[str, OurNumber]) -> dict[str, OurNumber]:
        return {
            name: replace(number, comparison=self.compare(number, baseline[name])) if name in baseline else number
            for name, number in ours.items()
        }

    def _baseline(self, key: str, found: Mapping[str, Mapping[str, OurNumber]]) -> str | None:
        run = [name for name, ours in found.items() if ours]
        if key == "6":
            sizes = {name: next(iter(found[name].values())).runs[0].parameters for name in run}
            return min(sizes, key=lambda name: sizes[name], default=None)
        return BASELINES[key] if BASELINES[key] in run else None

    def _by_seed(self, ours: OurNumber) -> dict[int, tuple[float, Float64Array]] | None:
        """Returns seed -> score and its resamples; None where runs have no scores of examples, or not as many each."""
        found = {}
        for run in ours.runs:
            examples = run.example_scores(ours.column)
            if examples is None:
                return None
            key = (run.name, ours.column.split, ours.column.metric)
            if key not in self._resampled:
                self._resampled[key] = resampled_scores(examples)
            found[run.seed] = (run.score(ours.column), self._resampled[key])
        return found if len(self._examples(ours)) == 1 else None

    def _examples(self, ours: OurNumber) -> set[int]:
        scores = [run.example_scores(ours.column) for run in ours.runs]
        return {len(examples) for examples in scores if examples is not None}


def _within(ends: Sequence[float], lowest: float, highest: float) -> tuple[float, float]:
    """Cuts an interval to possible scores: Student's factor at few seeds reaches beyond."""
    low, high = (min(max(end, lowest), highest) for end in ends)
    return low, high


def _is_bert(key: str, row: str) -> bool:
    if key in ("1", "2", "3", "4"):
        return row.startswith("BERT")
    return row not in _OTHER_SYSTEMS.get(key, ())


def _coinciding(found: Mapping[str, Mapping[str, OurNumber]]) -> dict[str, str]:
    """Returns row -> an earlier one that is the same computation: Table 7's rows where the model has few layers."""
    earlier: dict[Any, str] = {}
    same = {}
    for name, (combine, layers) in FEATURE_ROWS.items():
        run = next((run for ours in found.get(name, {}).values() for run in ours.runs), None)
        if run is None or "num_hidden_layers" not in run.results.get("model", {}):
            continue
        read = tuple(range(run.results["model"]["num_hidden_layers"] + 1)[layers])
        settings = {key: value for key, value in named_settings(run).items() if key != "feature_based"}
        learning_rate = run.settings.get("learning_rate")
        # A single layer is neither added nor concatenated.
        computed = (read, combine if len(read) > 1 else None, run.pretraining, learning_rate, tuple(settings.items()))
        if computed in earlier:
            same[name] = earlier[computed]
        earlier.setdefault(computed, name)
    return same


def _average(
    columns: Sequence[Column], ours: Mapping[str, OurNumber], paper: Mapping[str, float]
) -> tuple[float | None, float | None, str | None]:
    """Computes Table 1's average, the mean of its other nine columns, if all are there, and its difference to the
    paper's, or why there is none: what keeps one of the nine apart keeps their mean apart."""
    averages = [column for column in columns if column.task == AVERAGED]
    others = [ours.get(column.name) for column in columns if column.task != AVERAGED]
    there = [number for number in others if number is not None]
    if not averages or len(there) < len(others):
        return None, None, None
    average = statistics.fmean(number.mean for number in there)
    printed = paper.get(averages[0].name)
    if printed is None:
        return average, None, None
    reasons = (averages[0].incomparable, *(number.reason for number in there))
    reason = next(filter(None, reasons), None)
    return average, average - printed if reason is None else None, reason
