"""Which orderings of the paper appear in our numbers, which do not, and which were not run."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from bert_repro.paper_results import FIGURE_5_KEY
from bert_repro.reproduction.paper_tables import AVERAGED, AllResults, OurNumber, ResultsRow, ResultsTable
from bert_repro.reproduction.statistics import Comparison

SIGNIFICANT = 0.05
APPEARS, HIDDEN, REVERSED = "appears", "within our noise", "reversed"
NOT_MEASURABLE, NOT_RUN = "not measurable", "not run"
VERDICTS = (APPEARS, HIDDEN, REVERSED, NOT_MEASURABLE, NOT_RUN)

_FEATURES = (
    "Embeddings",
    "Second-to-last hidden",
    "Last hidden",
    "Weighted sum last four hidden",
    "Weighted sum all 12 layers",
)
_CONCAT = "Concat last four hidden"
_MIXES = ("100/0/0", "80/0/20", "80/20/0", "0/20/80", "0/0/100")
PAIRS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "1": (("BERT-large", "BERT-base"),),
    "2": (("BERT-large", "BERT-base"), ("BERT-large + TriviaQA", "BERT-large")),
    "4": (("BERT-large", "BERT-base"),),
    "5": (
        ("No NSP", "BERT-base"),
        ("LTR & no NSP", "No NSP"),
        ("LTR & no NSP + BiLSTM", "LTR & no NSP"),
    ),
    "7": (
        ("BERT-large", "BERT-base"),
        (_CONCAT, "BERT-base"),
        *((row, _CONCAT) for row in _FEATURES),
    ),
    "8": tuple((row, "80/10/10") for row in _MIXES),
}
"""The rows that each table sets against each other. Table 6 sets every size against the next smaller one."""


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
        ours: our difference with its test; None: not run.
        untested: our difference where it cannot be tested (one run a row, no examples).
        degenerate: whether half of the runs or more on one side gave one answer for all examples.
    """

    table: str
    size_preset: str | None
    statement: str
    column: str
    paper: float | None
    expected: int
    ours: Comparison | None = None
    untested: float | None = None
    degenerate: bool = False

    @property
    def verdict(self) -> str:
        """One of VERDICTS. An ordering appears when it is ours too, and is reversed, beyond our noise only.

        Where nothing can be tested (one run a row), the direction alone decides. A side that is degenerate (one answer
        for all examples) says nothing about its model: then nothing was measured, whatever the difference.
        """
        difference = self.difference
        if difference is None:
            return NOT_RUN
        if self.degenerate:
            return NOT_MEASURABLE
        if self.ours is not None and self.ours.p_value >= SIGNIFICANT:
            return HIDDEN
        return APPEARS if difference * self.expected > 0 else REVERSED

    @property
    def difference(self) -> float | None:
        """Ours, in points."""
        return self.ours.difference if self.ours else self.untested


def orderings(results: AllResults) -> list[Ordering]:
    """Returns all orderings of the paper that differ at all, at every size preset, in the order of the tables.

    A row that is the same computation as another at our size has none of its own.
    """
    found = [ordering for table in results.tables for ordering in _of_table(results, table)]
    found += [ordering for figure in results.figures for ordering in _of_figure(results, figure)]
    return found + _figure_not_run(results)


def _of_table(results: AllResults, table: ResultsTable) -> Iterator[Ordering]:
    if table.key == "6":
        yield from _of_sizes(results, table)
        return
    for name, other in PAIRS.get(table.key, ()):
        first, second = table.row(name), table.row(other)
        assert first is not None and second is not None, "rows of the paper are always there"
        if first.same_as is not None:
            continue  # counted once, for the row that it is the same as
        for column in table.columns:
            if column.name in first.paper and column.name in second.paper:
                printed = first.paper[column.name] - second.paper[column.name]
                if abs(printed) > 1e-9:
                    yield _ordering(results, table, (first, second), column.name, printed)


def _of_sizes(results: AllResults, table: ResultsTable) -> Iterator[Ordering]:
    """Yields those of Table 6: more is better in every column, for sizes of ours that the paper lacks too."""
    tried = [row for row in table.rows if row.ours]
    rows = _by_size(tried) if len(tried) > 1 else [row for row in table.rows if row.paper]
    for second, first in pairwise(rows):
        for column in table.columns:
            sign = -1 if "perplexity" in column.metric else 1
            numbers = (first.paper.get(column.name), second.paper.get(column.name))
            printed = numbers[0] - numbers[1] if numbers[0] is not None and numbers[1] is not None else None
            yield _ordering(results, table, (first, second), column.name, printed, sign)


def _by_size(rows: list[ResultsRow]) -> list[ResultsRow]:
    return sorted(rows, key=lambda row: next(iter(row.ours.values())).runs[0].parameters)


def _ordering(
    results: AllResults,
    table: ResultsTable,
    rows: tuple[ResultsRow, ResultsRow],
    column: str,
    printed: float | None,
    sign: int | None = None,
) -> Ordering:
    first, second = rows
    expected = sign or (1 if (printed or 0.0) > 0 else -1)
    ours, other = first.ours.get(column), second.ours.get(column)
    tested, untested, degenerate = _compared(results, ours, other)
    if column in (item.name for item in table.columns if item.task == AVERAGED):
        averages = first.average, second.average
        untested = averages[0] - averages[1] if averages[0] is not None and averages[1] is not None else None
    statement = f"{first.name} {'above' if expected > 0 else 'below'} {second.name}"
    return Ordering(table.key, table.size_preset, statement, column, printed, expected, tested, untested, degenerate)


def _compared(
    results: AllResults, ours: OurNumber | None, other: OurNumber | None
) -> tuple[Comparison | None, float | None, bool]:
    """Returns the difference with its test, or without where it cannot be tested, and whether a side is degenerate."""
    if ours is None or other is None:
        return None, None, False
    degenerate = ours.is_degenerate or other.is_degenerate
    tested = results.compare(ours, other)
    return (tested, None, degenerate) if tested else (None, ours.mean - other.mean, degenerate)


def _of_figure(results: AllResults, figure: ResultsTable) -> Iterator[Ordering]:
    """Yields the masked model above the left-to-right one at the end, and the last checkpoint above the first."""
    masked, other = figure.rows
    steps = [column.name for column in figure.columns]
    for name in dict.fromkeys((steps[0], steps[-1])):
        at = f"step {int(name):,}"
        outcome = _compared(results, masked.ours.get(name), other.ours.get(name))
        yield Ordering(FIGURE_5_KEY, figure.size_preset, "MLM above LTR", at, None, 1, *outcome)
    for row in figure.rows if len(steps) > 1 else ():
        outcome = _compared(results, row.ours.get(steps[-1]), row.ours.get(steps[0]))
        statement = f"{row.name} after {int(steps[-1]):,} steps above itself after {int(steps[0]):,}"
        yield Ordering(FIGURE_5_KEY, figure.size_preset, statement, "MNLI", None, 1, *outcome)


def _figure_not_run(results: AllResults) -> list[Ordering]:
    if results.figures:
        return []
    return [Ordering(FIGURE_5_KEY, None, "MLM above LTR", "last step", None, 1)]
