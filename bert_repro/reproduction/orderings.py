"""Which of the paper's orderings appear in our numbers, and how finished models compare with the first of a study."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, repeat
from statistics import NormalDist

from bert_repro.reproduction.paper_results import FEATURE_ROWS, FIGURE_5_KEY, TABLES, Column
from bert_repro.reproduction.paper_tables import (
    AVERAGED,
    AllResults,
    OurNumber,
    ResultsRow,
    ResultsTable,
    score_range,
    unit,
    within,
)
from bert_repro.reproduction.resampling import CONFIDENCE, Comparison, compare
from bert_repro.tasks import TASKS

MEAN = "mean of the tasks"
"""Name of the column that averages finished models over all tables."""

SIGNIFICANT = 0.05
APPEARS, INCONCLUSIVE, REVERSED, FAILED, NOT_RUN = "appears", "inconclusive", "reversed", "failed", "not run"
VERDICTS = (APPEARS, REVERSED, INCONCLUSIVE, FAILED, NOT_RUN)

_CONCAT = "Concat last four hidden"
_OTHER_FEATURES = tuple(row for row in FEATURE_ROWS if row != _CONCAT)
_OTHER_MASKS = tuple(row for row in TABLES[8].rows if row != "80/10/10")
PAIRS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "1": (("BERT-large", "BERT-base"),),
    "2": (("BERT-large", "BERT-base"), ("BERT-large + TriviaQA", "BERT-large")),
    "4": (("BERT-large", "BERT-base"),),
    "5": (("No NSP", "BERT-base"), ("LTR & no NSP", "No NSP"), ("LTR & no NSP + BiLSTM", "LTR & no NSP")),
    "7": (("BERT-large", "BERT-base"), (_CONCAT, "BERT-base"), *zip(_OTHER_FEATURES, repeat(_CONCAT))),
    "8": tuple(zip(_OTHER_MASKS, repeat("80/10/10"))),
}
"""The pairs of rows that each table compares. Table 6 compares every size with the next smaller one."""


@dataclass(frozen=True)
class Ordering:
    """One row compared with another in one column, in the paper and in our runs.

    Args:
        table: 1 to 8, or `figure5`.
        size_preset: the size preset of our runs; None: nothing of the table was run.
        statement: `one row` above or below `the other`, as in the paper.
        column: the column's name.
        paper: the paper's difference in points; None if it prints no numbers.
        expected: the sign of the paper's difference.
        ours: our difference with its test; None: not run or not testable.
        untested: our difference if it cannot be tested because there are no scores of examples.
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
        """One of VERDICTS.

        An ordering appears, or is reversed, if our difference is beyond chance and has one sign for every seed of
        pre-training.
        """
        if self.failed:
            return FAILED
        if self.ours is None:
            return NOT_RUN if self.untested is None else INCONCLUSIVE
        if self.ours.p_value >= SIGNIFICANT or not self.ours.pretrainings_agree:
            return INCONCLUSIVE
        if self.ours.difference * self.expected > 0:
            return APPEARS
        return REVERSED


@dataclass(frozen=True)
class _Tested:
    """The difference between two of our numbers, with the fields of `Ordering` of the same names."""

    ours: Comparison | None = None
    untested: float | None = None
    failed: bool = False


def orderings_of(results: AllResults) -> list[Ordering]:
    """Returns all orderings of the paper, at every size preset, in the order of the tables."""
    orderings: list[Ordering] = []
    for table in results.tables:
        if table.key == FIGURE_5_KEY:
            orderings += _figure_orderings(results, table)
        else:
            orderings += _table_orderings(results, table)
    return orderings


def model_differences(results: AllResults) -> list[Ordering]:
    """Returns every finished model against the first of its study: each column, then the mean of the tasks.

    A task counts in the mean by its first column, and its error is taken as independent of the others'.
    """
    differences: list[Ordering] = []
    # (size preset, statement) -> task -> the comparison that counts in the mean.
    by_task: dict[tuple[str | None, str], dict[str, Comparison]] = {}
    for table in results.tables:
        for column in table.columns:
            for statement, tested in _against_the_first_model(results, table, column):
                # Table 1 has one column for a task, named like the task.
                name = column.name if table.key == "1" else f"{TASKS[column.task].title} {column.name}"
                differences.append(Ordering(table.key, table.size_preset, statement, name, None, 1, tested))
                by_task.setdefault((table.size_preset, statement), {}).setdefault(column.task, tested)

    # The mean of the tasks comes last, for each pair of models.
    for (size_preset, statement), comparisons in by_task.items():
        mean = _mean_comparison(list(comparisons.values()))
        differences.append(Ordering("1 to 7", size_preset, statement, MEAN, None, 1, mean))
    return differences


def _against_the_first_model(
    results: AllResults, table: ResultsTable, column: Column
) -> Iterator[tuple[str, Comparison]]:
    """Yields a statement and its test for every finished model that has a score in a column, except the first model."""
    # Rows named "model: variant" are further rows of a model.
    models = [row for row in table.rows.values() if row.paper_row and ": " not in row.name]
    for row in models[1:]:
        tested = _compare(results, row.ours.get(column.name), models[0].ours.get(column.name))
        if tested.ours is not None:
            yield f"{row.name} against {models[0].name}", tested.ours


def _mean_comparison(comparisons: Sequence[Comparison]) -> Comparison:
    """Averages the differences of several tasks; their errors are taken as independent and normal."""
    mean = statistics.fmean(comparison.difference for comparison in comparisons)
    # Variances of independent errors add up, and so do the squares of the widths of their intervals.
    squared_widths = sum((comparison.high - comparison.low) ** 2 for comparison in comparisons)
    half_width = math.sqrt(squared_widths) / 2 / len(comparisons)
    # How many standard errors the mean is away from zero.
    standard_errors = 0.0
    if half_width:
        standard_errors = abs(mean) / half_width * NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    return Comparison(mean, mean - half_width, mean + half_width, 2 * NormalDist().cdf(-standard_errors))


def _table_orderings(results: AllResults, table: ResultsTable) -> Iterator[Ordering]:
    """Yields every ordering of a table in which the paper's two numbers differ."""
    for first, second in _row_pairs(table):
        for column in table.columns:
            paper = None
            if column.name in first.paper and column.name in second.paper:
                paper = first.paper[column.name] - second.paper[column.name]
            # The paper may print no number, or the same number twice.
            expected = _expected_sign(table, column, paper)
            if expected == 0:
                continue
            relation = "above" if expected > 0 else "below"
            statement = f"{first.name} {relation} {second.name}"
            tested = _compare(results, first.ours.get(column.name), second.ours.get(column.name))
            yield _ordering(table, statement, column.name, paper, expected, tested)


def _row_pairs(table: ResultsTable) -> list[tuple[ResultsRow, ResultsRow]]:
    """Returns the rows of a table to compare, each with the one that it is compared with."""
    if table.key != "6":
        return [(table.rows[first], table.rows[second]) for first, second in PAIRS.get(table.key, ())]
    # In Table 6 larger is better. Our sizes are compared if there are two, otherwise the paper's are listed as not run.
    sizes = sorted((row for row in table.rows.values() if row.ours), key=_parameters)
    if len(sizes) < 2:
        sizes = [row for row in table.rows.values() if row.paper]
    return [(larger, smaller) for smaller, larger in pairwise(sizes)]


def _expected_sign(table: ResultsTable, column: Column, paper: float | None) -> int:
    """Returns the sign of the difference that the paper states in a column; 0: it states none."""
    if table.key == "6":
        return -1 if "perplexity" in column.metric else 1
    if paper is None or abs(paper) < 1e-9 or column.task == AVERAGED:
        return 0
    return 1 if paper > 0 else -1


def _figure_orderings(results: AllResults, figure: ResultsTable) -> Iterator[Ordering]:
    """Yields the orderings of Figure 5: the masked model above the left-to-right one, and later steps above earlier."""
    masked, left_to_right = figure.rows.values()
    steps = [column.name for column in figure.columns] or ["0"]

    # At the first and at the last checkpoint.
    for step in dict.fromkeys((steps[0], steps[-1])):
        where = f"step {int(step):,}" if figure.columns else "last step"
        tested = _compare(results, masked.ours.get(step), left_to_right.ours.get(step))
        yield _ordering(figure, "MLM above LTR", where, None, 1, tested)

    # The last checkpoint above the first. Section C.1: twice the steps are worth almost a point of BERT-base.
    earlier: list[tuple[ResultsRow, str, float | None]] = []
    if len(steps) > 1:
        earlier += [(masked, steps[0], None), (left_to_right, steps[0], None)]
    half = str(int(steps[-1]) // 2)
    if half in steps:
        earlier.append((masked, half, 1.0))
    for row, step, paper in earlier:
        tested = _compare(results, row.ours.get(steps[-1]), row.ours.get(step))
        statement = f"{row.name} after {int(steps[-1]):,} steps above itself after {int(step):,}"
        yield _ordering(figure, statement, "MNLI", paper, 1, tested)


def _ordering(
    table: ResultsTable, statement: str, column: str, paper: float | None, expected: int, tested: _Tested
) -> Ordering:
    return Ordering(
        table.key,
        table.size_preset,
        statement,
        column,
        paper,
        expected,
        tested.ours,
        tested.untested,
        tested.failed,
    )


def _compare(results: AllResults, ours: OurNumber | None, other: OurNumber | None) -> _Tested:
    """Tests the difference between two numbers of one column, in the paper's unit."""
    if ours is None or other is None:
        return _Tested()
    failed = ours.failed or other.failed
    column = ours.column
    row = results.by_seed(column, ours.runs)
    baseline = results.by_seed(column, other.runs)
    if row is None or baseline is None or not _same_examples(column, ours, other):
        return _Tested(untested=ours.mean - other.mean, failed=failed)

    compared = compare(row, baseline)
    factor = unit(column)
    lowest, highest = score_range(column)
    low, high = within((factor * compared.low, factor * compared.high), lowest - highest, highest - lowest)
    in_points = replace(compared, difference=factor * compared.difference, low=low, high=high)
    return _Tested(in_points, failed=failed)


def _same_examples(column: Column, ours: OurNumber, other: OurNumber) -> bool:
    """Returns whether all runs were scored on equally many examples; a paired test needs the same ones."""
    counts = set()
    for run in (*ours.runs, *other.runs):
        scores = run.example_scores(column)
        if scores is not None:
            counts.add(len(scores))
    return len(counts) <= 1


def _parameters(row: ResultsRow) -> int:
    first_number = next(iter(row.ours.values()))
    return first_number.runs[0].parameters
