"""The report as text: every number as it is printed, ready for the templates of the page and of Markdown."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from bert_repro.paper_results import FIGURE_5_KEY, table_name
from bert_repro.reproduction.collect import FinishedRun
from bert_repro.reproduction.conditions import Conditions
from bert_repro.reproduction.orderings import NOT_MEASURABLE, SIGNIFICANT, VERDICTS, Ordering
from bert_repro.reproduction.orderings import NOT_RUN as ORDERING_NOT_RUN
from bert_repro.reproduction.paper_tables import AVERAGED, OurNumber, ResultsRow, ResultsTable, unit
from bert_repro.reproduction.report_plots import safe_name
from bert_repro.reproduction.statistics import Comparison

NOT_RUN = "not run"
_PAPER_MODELS = {"BERT-base": "12 layers of 768", "BERT-large": "24 layers of 1024"}
_NOTHING = "–"
_MARKS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class Line:
    """One line of a table.

    Args:
        row: the row's name.
        kind: `paper`, `ours`, `interval`, `test` or `difference`.
        label: the kind in words.
        cells: one for each column.
        strong: which of the cells are in bold.
    """

    row: str
    kind: str
    label: str
    cells: tuple[str, ...]
    strong: tuple[bool, ...] = ()


@dataclass(frozen=True)
class TableView:
    """A table ready to be laid out.

    Args:
        anchor: its name in links.
        heading: number, and the scale where something was run.
        title: what it shows.
        is_run: whether there is any number of ours.
        columns: heads, and below each what is measured.
        lines: of all rows, those of a row together.
        notes: why there is no difference; each begins with its mark.
        remarks: what else to know when reading it.
        shared: conditions of all our rows.
        own: row -> its own conditions.
    """

    anchor: str
    heading: str
    title: str
    is_run: bool
    columns: tuple[tuple[str, tuple[str, str]], ...]
    lines: tuple[Line, ...]
    notes: tuple[str, ...]
    remarks: tuple[str, ...]
    shared: Conditions
    own: Mapping[str, Conditions]


@dataclass(frozen=True)
class Finding:
    """Orderings of a table between the same rows that ended alike.

    Args:
        anchor: of the table.
        where: the table's name.
        statement: which row is above which.
        columns: in which columns, each with the paper's difference and ours.
    """

    anchor: str
    where: str
    statement: str
    columns: tuple[str, ...]


def table_view(table: ResultsTable, conditions: tuple[Conditions, dict[str, Conditions]]) -> TableView:
    """Returns a table of the paper, or Figure 5, with ours, as text."""
    notes: dict[str, str] = {}
    lines = [line for row in table.rows for line in _lines(table, row, notes) if set(line.cells) != {_NOTHING}]
    return TableView(
        _anchor(table.key, table.size_preset),
        table_name(table.key) + (f", ours at size {table.size_preset}" if table.size_preset else ""),
        table.title,
        table.size_preset is not None,
        tuple((_head(table, column.name), (column.metric, column.split)) for column in table.columns),
        tuple(lines),
        tuple(f"{mark}: {reason}." for reason, mark in notes.items()),
        tuple(_remarks(table)),
        *conditions,
    )


def findings(orderings: Sequence[Ordering], verdict: str) -> list[Finding]:
    """Returns the orderings with a verdict, those between the same rows of a table in one.

    What was run at one size preset is not listed as not run at another.
    """
    run = {(item.table, item.statement, item.column) for item in orderings if item.verdict != ORDERING_NOT_RUN}
    groups: dict[tuple[str, str | None, str], list[str]] = {}
    for item in orderings:
        if item.verdict != verdict:
            continue
        if verdict == ORDERING_NOT_RUN:
            if (item.table, item.statement, item.column) in run:
                continue
            run.add((item.table, item.statement, item.column))
        groups.setdefault((item.table, item.size_preset, item.statement), []).append(_differences(item))
    return [
        Finding(
            _anchor(table, size_preset),
            table_name(table) + (f" ({size_preset})" if size_preset else ""),
            statement,
            tuple(columns),
        )
        for (table, size_preset, statement), columns in groups.items()
    ]


def counts(orderings: Sequence[Ordering]) -> dict[str, int]:
    """Counts the orderings with each verdict."""
    return {verdict: sum(len(finding.columns) for finding in findings(orderings, verdict)) for verdict in VERDICTS}


def signed(value: float, digits: int = 1) -> str:
    """Returns a number with its sign, and no sign where it rounds to zero."""
    text = f"{abs(value):.{digits}f}"
    if float(text) == 0:
        return text
    return f"{'+' if value > 0 else '−'}{text}"


def _plain(value: float) -> str:
    return signed(value).removeprefix("+")


def p_text(p_value: float) -> str:
    """Returns a p-value to three digits."""
    return "p < 0.001" if p_value < 0.001 else f"p = {p_value:.3f}"


def _remarks(table: ResultsTable) -> Iterable[str]:
    for row in table.rows:
        shapes = {shape for run in row.runs if (shape := _shape(run))}
        if row.name in _PAPER_MODELS and len(shapes) == 1 and shapes != {_PAPER_MODELS[row.name]}:
            yield f"Our model in the row {row.name} has {shapes.pop()}; the paper's has {_PAPER_MODELS[row.name]}."
    for row in table.rows:
        if row.same_as is not None:
            layers = row.runs[0].results["model"]["num_hidden_layers"]
            yield (
                f"With {layers} layers, {row.name} is the same computation as {row.same_as}: its numbers add nothing, "
                "and it counts as no ordering of its own."
            )


def _lines(table: ResultsTable, row: ResultsRow, notes: dict[str, str]) -> Iterable[Line]:
    if table.key != FIGURE_5_KEY and row.paper:
        yield _line(table, row, "paper", "paper", lambda name: _printed(table, name, row.paper.get(name)))
    if not row.is_bert:
        return
    if not row.ours:
        yield _line(table, row, "ours", "ours", lambda name: NOT_RUN)
        return
    yield _line(table, row, "ours", _ours_label(row), lambda name: _ours(table, row, name))
    yield _line(table, row, "interval", "95% interval", lambda name: _interval(row.ours.get(name)))
    if table.baseline and row.name != table.baseline:
        baseline = table.row(table.baseline)
        assert baseline is not None, "a baseline is one of the rows"
        measurable = {
            name: not (ours.is_degenerate or (name in baseline.ours and baseline.ours[name].is_degenerate))
            for name, ours in row.ours.items()
        }
        tests = {name: ours.comparison for name, ours in row.ours.items()}
        line = _line(
            table, row, "test", f"against {table.baseline}",
            lambda name: _test(tests.get(name), measurable=measurable.get(name, True)),
        )  # fmt: skip
        tested = ((tests.get(column.name), measurable.get(column.name)) for column in table.columns)
        strong = tuple(test is not None and bool(ok) and test.p_value < SIGNIFICANT for test, ok in tested)
        yield Line(line.row, line.kind, line.label, line.cells, strong)
    if row.paper:
        yield _line(table, row, "difference", "ours − paper", lambda name: _difference(table, row, name, notes))


def _line(table: ResultsTable, row: ResultsRow, kind: str, label: str, cell: Callable[[str], str]) -> Line:
    return Line(row.name, kind, label, tuple(cell(column.name) for column in table.columns))


def _ours_label(row: ResultsRow) -> str:
    seeds = sorted({len(ours.runs) for ours in row.ours.values()})
    count = "–".join(map(str, dict.fromkeys((seeds[0], seeds[-1]))))
    shapes = list(dict.fromkeys(filter(None, map(_shape, row.runs))))
    model = f"{shapes[0]}, " if len(shapes) == 1 else ""
    return f"ours: {model}{count} seed{'' if seeds[-1] == 1 else 's'}"


def _shape(run: FinishedRun) -> str:
    model = run.results.get("model", {})
    if "num_hidden_layers" not in model:
        return ""
    return f"{model['num_hidden_layers']} layers of {model['hidden_size']}"


def _printed(table: ResultsTable, name: str, value: float | None) -> str:
    column = next(column for column in table.columns if column.name == name)
    return _NOTHING if value is None else f"{value:.{_digits(unit(column))}f}"


def _digits(scale: float) -> int:
    return 2 if scale == 1.0 else 1


def _ours(table: ResultsTable, row: ResultsRow, name: str) -> str:
    ours = row.ours.get(name)
    if ours is None:
        if not _is_average(table, name):
            return NOT_RUN
        return "not all nine run" if row.average is None else f"{row.average:.1f}"
    digits = _digits(unit(ours.column))
    text = f"{ours.mean:.{digits}f}"
    if ours.deviation is not None:
        text += f" ± {ours.deviation:.{digits}f}"
    if ours.degenerate:
        text += f" ({ours.degenerate} of {len(ours.runs)} degenerate)"
    return text


def _interval(ours: OurNumber | None) -> str:
    if ours is None or ours.low is None or ours.high is None:
        return _NOTHING
    return f"{_plain(ours.low)} to {_plain(ours.high)}"


def _test(comparison: Comparison | None, *, measurable: bool) -> str:
    if comparison is None:
        return _NOTHING
    return f"{signed(comparison.difference)}, {p_text(comparison.p_value)}" if measurable else NOT_MEASURABLE


def _difference(table: ResultsTable, row: ResultsRow, name: str, notes: dict[str, str]) -> str:
    ours = row.ours.get(name)
    if name not in row.paper:
        return _NOTHING
    if _is_average(table, name):
        difference, reason = row.average_difference, row.average_reason
    else:
        difference, reason = (ours.difference, ours.reason) if ours else (None, None)
    if difference is not None:
        return signed(difference)
    if reason is None:  # nothing of ours to subtract from
        return _NOTHING
    return f"none ({notes.setdefault(reason, _mark(len(notes)))})"


def _is_average(table: ResultsTable, name: str) -> bool:
    return next(column for column in table.columns if column.name == name).task == AVERAGED


def _mark(number: int) -> str:
    return _MARKS[number % len(_MARKS)] * (1 + number // len(_MARKS))


def _head(table: ResultsTable, name: str) -> str:
    return f"{int(name):,} steps" if table.key == FIGURE_5_KEY else name


def _anchor(key: str, size_preset: str | None) -> str:
    name = key if key == FIGURE_5_KEY else f"table{key}"
    return f"{name}-{safe_name(size_preset)}" if size_preset else name


def _differences(item: Ordering) -> str:
    """Returns a column with the paper's difference and ours."""
    if item.difference is None:
        return item.column
    digits = 2 if "perplexity" in item.column else 1
    paper = _NOTHING if item.paper is None else signed(item.paper, digits)
    return f"{item.column} {paper} / {signed(item.difference, digits)}{'' if item.ours else ' (untested)'}"
