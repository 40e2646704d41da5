"""The reproduction report: report.md and the plots, from the results of finished runs.

The same results give the same bytes: no date, no path and no random draw without a seed is written.
"""

import logging
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from bert_repro.configs import ReportConfig
from bert_repro.errors import UserError
from bert_repro.reproduction.collect import collect, settings_table
from bert_repro.reproduction.paper_results import FIGURE_5_KEY, LEADERBOARD, Column, table_name
from bert_repro.reproduction.paper_tables import (
    APPEARS,
    AVERAGED,
    FAILED,
    INCONCLUSIVE,
    MEAN,
    NOT_RUN,
    REVERSED,
    VERDICTS,
    AllResults,
    Ordering,
    ResultsRow,
    ResultsTable,
    unit,
)
from bert_repro.reproduction.size_presets import SIZE_PRESETS
from bert_repro.utils.files import atomic_folder, write_text

logger = logging.getLogger("bert_repro")

TEXT, PLOTS = "report.md", "plots"
FOREST, FIGURE_5, MODELS = "orderings", "figure5", "models"
_COLORS = {APPEARS: "tab:green", REVERSED: "tab:red", INCONCLUSIVE: "tab:gray"}
_NOTHING = "–"


def write_report(config: ReportConfig) -> None:
    """Writes the report of all runs below a folder: all of it, or nothing.

    Raises:
        UserError: see `collect`, or the folder cannot be written.
    """
    runs = collect(Path(config.runs_dir))
    if not runs:
        raise UserError(f"--runs_dir {config.runs_dir}: no results.json below it; name the folder of finished runs")
    results = AllResults(runs)
    folder = Path(config.report_dir)
    with atomic_folder(folder / PLOTS) as unfinished:
        plots = {name: path for name in _DRAWN if (path := _draw(name, results, unfinished))}
        write_text(folder / TEXT, "\n".join(_lines(results, plots)))
    logger.info("wrote %s", folder / TEXT)


# ---------------------------------------------------------------------------------------------------------------- text


def _lines(results: AllResults, plots: Mapping[str, Path]) -> Iterator[str]:
    yield "# BERT, reproduced: our numbers next to the paper's\n"
    yield _summary(results) + "\n"
    if FOREST in plots:
        yield f"![Orderings of the paper: its differences and ours](plots/{plots[FOREST].name})\n"
        yield "Ours is the point with its 95% interval, the paper's difference the diamond; points right of zero agree"
        yield "with the paper's direction.\n"
    yield f"Made from {len(results.runs)} finished runs in `runs/` by `make report`.\n"
    yield from _difference_lines(results.differences, plots)
    if any(item.verdict != NOT_RUN for item in results.orderings):
        yield from _ordering_lines(results.orderings)
    for table in results.tables:
        if table.size_preset is not None:
            yield from _table_lines(table)
    if FIGURE_5 in plots:
        title = "Figure 5: MNLI accuracy along pre-training"
        yield f"## {title}\n\n![{title}](plots/{plots[FIGURE_5].name})\n"
    not_run = [table for table in results.tables if table.size_preset is None]
    if not_run:
        yield "## Not run\n"
        yield "; ".join(f"{table_name(table.key)} ({table.title.rstrip('.')})" for table in not_run) + ".\n"
    yield "## Settings of our runs\n\n| setting | values | of |\n| --- | --- | --- |"
    yield from (f"| {' | '.join(map(_cell, row))} |" for row in settings_table(results.runs))
    yield "\n" + resources.files("bert_repro.reproduction").joinpath("how_it_is_counted.md").read_text("utf-8")


def _summary(results: AllResults) -> str:
    """Returns three sentences: what was found at this size, what failed, and how sure that is."""
    counts = {verdict: sum(ordering.verdict == verdict for ordering in results.orderings) for verdict in VERDICTS}
    tested = counts[APPEARS] + counts[REVERSED] + counts[INCONCLUSIVE]
    presets = sorted({run.size_preset for run in results.runs if run.entries})
    sizes = "; ".join(f"{name}: {SIZE_PRESETS[name].description}" if name in SIZE_PRESETS else name for name in presets)
    if not tested and any(run.place is not None for run in results.runs):
        means = [f"{i.statement}: {_with_interval(i)}" for i in results.differences if i.column == MEAN]
        return (
            f"Finished models in the paper's tables, scored on dev ({sizes}). Mean of the tasks in points: "
            f"{'; '.join(means) or 'one model'}. Intervals are over dev examples and fine-tuning seeds; another "
            "pre-training seed of the same recipe may differ by more."
        )
    pretrainings, spread = sum(run.is_pretraining for run in results.runs), results.pretraining_spread
    seeds = (
        f"{len(spread)} scores have two or more pre-training seeds: their means lie {statistics.median(spread):.1f} "
        f"points apart in the median, {max(spread):.1f} at most, and a verdict on them needs one sign from every seed. "
        if spread
        else ""
    )
    return (
        f"At our size ({sizes or 'nothing was run'}), {counts[APPEARS]} of the {tested} orderings of the paper "
        f"that were run appear, {counts[REVERSED]} are reversed and {counts[INCONCLUSIVE]} are inconclusive. "
        f"Of {pretrainings} pre-trainings, {len(results.failed_pretrainings)} never left the plateau at which only the "
        f"most frequent tokens are predicted; {counts[FAILED]} orderings have no verdict because one side failed, and "
        f"{counts[NOT_RUN]} were not run. {seeds}Intervals and p-values are over dev examples and fine-tuning seeds "
        "alone, so where there is a single pre-training another one may change a verdict, and of "
        f"{tested} tests at p < 0.05 about {0.05 * tested:.0f} pass by chance."
    )


def _ordering_lines(orderings: Sequence[Ordering]) -> Iterator[str]:
    yield "## Which orderings of the paper appear\n"
    yield "Differences in points (perplexities plain): the first less the second.\n"
    yield "| table | ordering | column | paper | ours | 95% interval | p | verdict |"
    yield "| --- | --- | --- | ---: | ---: | --- | --- | --- |"
    ran = [item for item in orderings if item.verdict != NOT_RUN]
    for item in sorted(ran, key=lambda item: VERDICTS.index(item.verdict)):
        digits, ours = 2 if "perplexity" in item.column else 1, item.ours
        difference = ours.difference if ours else item.untested
        p_value = _NOTHING
        if ours and not item.failed:
            p_value = "p < 0.001" if ours.p_value < 0.001 else f"p = {ours.p_value:.3f}"
        interval = f"{signed(ours.low, digits)} to {signed(ours.high, digits)}" if ours else _NOTHING
        yield (
            f"| {table_name(item.table)} ({item.size_preset}) | {item.statement} | {item.column} | "
            f"{signed(item.paper, digits)} | {signed(difference, digits)} | {interval} | {p_value} | {item.verdict} |"
        )
    yield ""


def _difference_lines(differences: Sequence[Ordering], plots: Mapping[str, Path]) -> Iterator[str]:
    """Yields a row for each column of the tables and in it each finished model's difference from the first."""
    statements = list(dict.fromkeys((item.size_preset, item.statement) for item in differences))
    if not statements:
        return
    yield "## Finished models against the first\n"
    yield f"![Differences from the first model](plots/{plots[MODELS].name})\n"
    yield "Differences in points with 95% intervals; bold where p < 0.05, not corrected for the number of tests.\n"
    yield f"| | column | {' | '.join(_cell(name) for _, name in statements)} |"
    yield f"| --- | --- |{' ---: |' * len(statements)}"
    for table, column in dict.fromkeys((item.table, item.column) for item in differences):
        found = {(i.size_preset, i.statement): i for i in differences if (i.table, i.column) == (table, column)}
        cells = [_with_interval(found[key]) if key in found else _NOTHING for key in statements]
        yield f"| {table_name(table)} | {column} | {' | '.join(cells)} |"
    yield ""


def _with_interval(item: Ordering) -> str:
    assert item.ours is not None
    text = f"{signed(item.ours.difference)} ({signed(item.ours.low)} to {signed(item.ours.high)})"
    return text if item.verdict == INCONCLUSIVE else f"**{text}**"


def _table_lines(table: ResultsTable) -> Iterator[str]:
    """Yields a table of the paper, or Figure 5, with ours."""
    yield f"## {table_name(table.key)}, ours at size {table.size_preset}\n"
    yield f"Paper: {table.title.rstrip('.')}.\n"
    heads = [f"{int(c.name):,} steps" if table.key == FIGURE_5_KEY else c.name for c in table.columns]
    measured = [f"{head}<br>{c.metric}, {c.split}" for head, c in zip(heads, table.columns, strict=True)]
    yield f"| row | | {' | '.join(measured)} |\n| --- | --- |{' ---: |' * len(table.columns)}"
    notes: dict[str, str] = {}
    for row in table.rows.values():
        if row.paper:
            cells = [_printed(row.paper.get(c.name), 2 if unit(c) == 1 else 1) for c in table.columns]
            yield f"| {_cell(row.name)} | paper | {' | '.join(cells)} |"
        if row.ours:
            cells = [_our_cell(row, column, notes) for column in table.columns]
            beside = f"<br>next to {row.beside}" if row.beside else ""
            yield f"| {'' if row.paper else _cell(row.name) + beside} | ours | {' | '.join(cells)} |"
    yield ""
    if scores := [f"{row.name} {row.leaderboard:.1f}" for row in table.rows.values() if row.leaderboard is not None]:
        papers = ", ".join(f"{name} {score}" for name, score in LEADERBOARD.items())
        yield (
            f"As the leaderboard averages (nine tasks, WNLI's majority class among them): paper, on test: {papers}; "
            f"ours, on dev: {', '.join(scores)}.\n"
        )
    if notes:
        yield "No difference: " + " ".join(f"{mark}: {reason}." for reason, mark in notes.items()) + "\n"


def _our_cell(row: ResultsRow, column: Column, notes: dict[str, str]) -> str:
    if column.task == AVERAGED:
        return _printed(row.average, 1)
    ours = row.ours.get(column.name)
    if ours is None:
        return NOT_RUN
    digits = 2 if unit(column) == 1 else 1
    text = f"{ours.mean:.{digits}f}"
    if ours.deviation is not None:
        text += f" ± {ours.deviation:.{digits}f}"
    if ours.low is not None and ours.high is not None:
        text += f"<br>{ours.low:.{digits}f} to {ours.high:.{digits}f}"
    if ours.degenerate:
        text += f"<br>{ours.degenerate} of {len(ours.runs)} degenerate"
    if ours.difference is not None:
        text += f"<br>{signed(ours.difference)} against the paper"
    elif ours.reason is not None:
        text += f" ({notes.setdefault(ours.reason, 'abcdefghijklmnopqrstuvwxyz'[len(notes) % 26])})"
    return text


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("[MASK]", "\\[MASK]")


def _printed(value: float | None, digits: int) -> str:
    return _NOTHING if value is None else f"{value:.{digits}f}"


def signed(value: float | None, digits: int = 1) -> str:
    """Returns a number with its sign, and no sign where it rounds to zero; a dash for None."""
    if value is None:
        return _NOTHING
    text = f"{abs(value):.{digits}f}"
    return text if float(text) == 0 else f"{'+' if value > 0 else '−'}{text}"


# --------------------------------------------------------------------------------------------------------------- plots


def _draw(name: str, results: AllResults, folder: Path) -> Path | None:
    """Draws a plot; returns its file, or None where there is nothing to draw."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    path = folder / f"{name}.svg"
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update({"svg.hashsalt": name, "font.size": 9.5})
        figure = Figure(layout="constrained")
        if not _DRAWN[name](figure, results):
            return None
        figure.savefig(path, metadata={"Date": None, "Creator": None})
    return path


def _draw_forest(figure: Any, orderings: Sequence[Ordering]) -> bool:
    """Draws every tested ordering as a row, turned so that what it states is to the right."""
    tested = [item for item in orderings if item.ours is not None and item.verdict in _COLORS]
    if not tested:
        return False
    figure.set_size_inches(8, 1.2 + 0.25 * len(tested))
    axis = figure.subplots()
    for place, item in enumerate(tested):
        assert item.ours is not None
        sign, ours = item.expected, item.ours
        low, high = sorted((sign * ours.low, sign * ours.high))
        color = _COLORS[item.verdict]
        axis.plot([low, high], [place, place], color=color, linewidth=1.5)
        axis.plot(sign * ours.difference, place, "o", color=color, markersize=5)
        if item.paper is not None:
            axis.plot(abs(item.paper), place, "D", color="black", markersize=4, markerfacecolor="none")
    for verdict, color in _COLORS.items():
        axis.plot([], [], "o-", color=color, label=f"ours: {verdict}")
    if any(item.paper is not None for item in tested):
        axis.plot([], [], "D", color="black", markerfacecolor="none", label="paper")
    axis.axvline(0, color="black", linewidth=0.8)
    labels = [f"{table_name(item.table)}: {item.statement}, {item.column}" for item in tested]
    axis.set_yticks(range(len(tested)), labels, fontsize=8)
    axis.set_ylim(len(tested) - 0.5, -0.5)
    axis.set_xlabel("difference in points (right: as the statement says)")
    axis.grid(axis="x", alpha=0.3)
    figure.legend(loc="outside lower center", ncols=4, fontsize=8.5, frameon=False)
    return True


def _draw_figure_5(figure: Any, results: AllResults) -> bool:
    figures = [table for table in results.tables if table.key == FIGURE_5_KEY and table.columns]
    figure.set_size_inches(5.5, 0.3 + 3.2 * max(1, len(figures)))
    for number, table in enumerate(figures, start=1):
        axis = figure.add_subplot(len(figures), 1, number)
        for row, marker in zip(table.rows.values(), "os", strict=True):
            numbers = list(row.ours.values())
            errors = [[n.mean - (n.low or n.mean) for n in numbers], [(n.high or n.mean) - n.mean for n in numbers]]
            steps = [int(step) for step in row.ours]
            axis.errorbar(steps, [n.mean for n in numbers], errors, marker=marker, capsize=3, label=row.name)
        axis.set(xlabel=f"pre-training steps (size {table.size_preset})", ylabel="MNLI dev accuracy (%)")
        axis.grid(alpha=0.3)
        axis.legend()
    return bool(figures)


_DRAWN: Mapping[str, Callable[[Any, AllResults], bool]] = {
    FOREST: lambda figure, results: _draw_forest(figure, results.orderings),
    FIGURE_5: _draw_figure_5,
    MODELS: lambda figure, results: _draw_forest(figure, results.differences),
}
