"""The reproduction report: report.md, from the results of finished runs; `report_plots` draws its figures.

The same results give the same bytes: no date, no path and no random draw without a seed is written.
"""

import logging
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path

from bert_repro.configs import ReportConfig
from bert_repro.errors import UserError, flag
from bert_repro.hub.markdown import line
from bert_repro.reproduction.claims import Verdict
from bert_repro.reproduction.collect import collect, settings_table
from bert_repro.reproduction.orderings import (
    APPEARS,
    FAILED,
    INCONCLUSIVE,
    MEAN,
    NOT_RUN,
    REVERSED,
    VERDICTS,
    Ordering,
    model_differences,
    orderings_of,
)
from bert_repro.reproduction.own_runs import comparisons_of, write_comparisons
from bert_repro.reproduction.paper_results import FIGURE_5_KEY, LEADERBOARD, Column, table_name
from bert_repro.reproduction.paper_tables import AVERAGED, AllResults, ResultsRow, ResultsTable, unit
from bert_repro.reproduction.report_plots import (
    ALONG_PRETRAINING,
    FIGURE_5_PLOT,
    MODELS_PLOT,
    ORDERINGS_PLOT,
    draw_plots,
)
from bert_repro.reproduction.size_presets import SIZE_PRESETS
from bert_repro.utils.files import atomic_folder, write_json, write_text

logger = logging.getLogger("bert_repro")

TEXT = "report.md"
VERDICTS_FILE = "verdicts.json"
"""The orderings of the report as data, for the ledger of claims."""
PLOTS = "plots"
_NOTHING = "–"


def write_report(config: ReportConfig) -> None:
    """Writes the report of all runs below a folder: the paper's tables from the runs of a study, and a table of others.

    Raises:
        UserError: see `collect`, or the folder cannot be written.
    """
    runs = collect(Path(config.runs_dir))
    if not runs:
        raise UserError(
            f"There is no results.json below {flag('runs_dir', config.runs_dir)}. Pass the folder of finished runs.",
            setting="runs_dir",
        )
    folder = Path(config.report_dir)
    comparisons = comparisons_of([run for run in runs if "study" not in run.results])
    if comparisons:
        markdown, *others = write_comparisons(comparisons, folder)
        logger.info("%s", markdown.read_text(encoding="utf-8"))
        logger.info("wrote %s, %s", markdown, ", ".join(map(str, others)))

    # The paper's tables need runs of a study.
    if not any("study" in run.results for run in runs):
        if not comparisons:
            raise UserError(
                f"No finished run below {flag('runs_dir', config.runs_dir)} has a score on a dev set.",
                setting="runs_dir",
            )
        return
    results = AllResults(runs)
    orderings = orderings_of(results)
    differences = model_differences(results)
    with atomic_folder(folder / PLOTS) as unfinished:
        plots = draw_plots(results, orderings, differences, unfinished)
        write_text(folder / TEXT, "\n".join(_lines(results, orderings, differences, plots)))
        write_json(folder / VERDICTS_FILE, {"orderings": [_verdict(item) for item in orderings]})
    logger.info("wrote %s", folder / TEXT)


def _verdict(item: Ordering) -> Verdict:
    """Returns an ordering for verdicts.json, with four decimals."""
    difference, low, high, p_value = item.untested, None, None, None
    if item.ours is not None:
        difference = item.ours.difference
        low, high = round(item.ours.low, 4), round(item.ours.high, 4)
        p_value = round(item.ours.p_value, 4)
    return {
        "table": item.table,
        "statement": item.statement,
        "column": item.column,
        "paper": None if item.paper is None else round(item.paper, 4),
        "size_preset": item.size_preset,
        "verdict": item.verdict,
        "difference": None if difference is None else round(difference, 4),
        "low": low,
        "high": high,
        "p_value": p_value,
    }


def _lines(
    results: AllResults,
    orderings: Sequence[Ordering],
    differences: Sequence[Ordering],
    plots: Mapping[str, Path],
) -> Iterator[str]:
    """Yields the report: what was found, the plots, the orderings, the tables, the settings, and how it is counted."""
    yield "# BERT, reproduced: our numbers next to the paper's\n"
    yield _summary(results, orderings, differences) + "\n"
    if ALONG_PRETRAINING in plots:
        yield f"![Accuracy along pre-training, by objective](plots/{plots[ALONG_PRETRAINING].name})\n"
    if ORDERINGS_PLOT in plots:
        yield f"![Orderings of the paper: its differences and ours](plots/{plots[ORDERINGS_PLOT].name})\n"
        yield "Ours is the point with its 95% interval, the paper's difference the diamond; points right of zero agree"
        yield "with the paper's direction.\n"
    yield f"Made from {len(results.runs)} finished runs in `runs/` by `make report`.\n"
    yield from _difference_lines(differences, plots)
    if any(item.verdict != NOT_RUN for item in orderings):
        yield from _ordering_lines(orderings)
    for table in results.tables:
        if table.size_preset is not None:
            yield from _table_lines(table)
    if FIGURE_5_PLOT in plots:
        title = "Figure 5: MNLI accuracy along pre-training"
        yield f"## {title}\n\n![{title}](plots/{plots[FIGURE_5_PLOT].name})\n"
    not_run = [table for table in results.tables if table.size_preset is None]
    if not_run:
        yield "## Not run\n"
        yield "; ".join(f"{table_name(table.key)} ({table.title.rstrip('.')})" for table in not_run) + ".\n"
    yield "## Settings of our runs\n\n| setting | values | of |\n| --- | --- | --- |"
    for row in settings_table(results.runs):
        yield f"| {' | '.join(map(line, row))} |"
    yield "\n" + resources.files("bert_repro.reproduction").joinpath("how_it_is_counted.md").read_text("utf-8")


# --- The first paragraph ----------------------------------------------------------------------------------------------


def _summary(results: AllResults, orderings: Sequence[Ordering], differences: Sequence[Ordering]) -> str:
    """Returns a paragraph: what was found at this size, what failed, and how sure that is."""
    counts = Counter(ordering.verdict for ordering in orderings)
    tested = counts[APPEARS] + counts[REVERSED] + counts[INCONCLUSIVE]
    sizes = _sizes(results)
    compares_models = any(run.place is not None for run in results.runs)
    if not tested and compares_models:
        return _summary_of_models(differences, sizes)

    pretrainings = sum(run.is_pretraining for run in results.runs)
    return (
        f"At our size ({sizes or 'nothing was run'}), {counts[APPEARS]} of the {tested} orderings of the paper "
        f"that were run appear, {counts[REVERSED]} are reversed and {counts[INCONCLUSIVE]} are inconclusive. "
        f"Of {pretrainings} pre-trainings, {len(results.failed_pretrainings)} never left the plateau at which only the "
        f"most frequent tokens are predicted; {counts[FAILED]} orderings have no verdict because one side failed, and "
        f"{counts[NOT_RUN]} were not run. {_spread_sentence(results)}Intervals and p-values are over dev examples and "
        "fine-tuning seeds alone, so where there is a single pre-training another one may change a verdict, and of "
        f"{tested} tests at p < 0.05 about {0.05 * tested:.0f} pass by chance."
    )


def _sizes(results: AllResults) -> str:
    """Returns the size presets of the runs, with their descriptions."""
    descriptions = []
    for name in sorted({run.size_preset for run in results.runs if run.entries}):
        if name in SIZE_PRESETS:
            descriptions.append(f"{name}: {SIZE_PRESETS[name].description}")
        else:
            descriptions.append(line(name))
    return "; ".join(descriptions)


def _summary_of_models(differences: Sequence[Ordering], sizes: str) -> str:
    means = [f"{line(item.statement)}: {_with_interval(item)}" for item in differences if item.column == MEAN]
    return (
        f"Finished models in the paper's tables, scored on dev ({sizes}). Mean of the tasks in points: "
        f"{'; '.join(means) or 'one model'}. Intervals are over dev examples and fine-tuning seeds; another "
        "pre-training seed of the same recipe may differ by more."
    )


def _spread_sentence(results: AllResults) -> str:
    """Returns how far pre-training seeds lie apart, followed by a space; empty if no score has two of them."""
    spread = results.pretraining_spread
    if not spread:
        return ""
    return (
        f"{len(spread)} scores have two or more pre-training seeds: their means lie {statistics.median(spread):.1f} "
        f"points apart in the median, {max(spread):.1f} at most, and a verdict on them needs one sign from every seed. "
    )


# --- Orderings and differences ----------------------------------------------------------------------------------------


def _ordering_lines(orderings: Sequence[Ordering]) -> Iterator[str]:
    yield "## Which orderings of the paper appear\n"
    yield "Differences in points (perplexities plain): the first less the second.\n"
    yield "| table | ordering | column | paper | ours | 95% interval | p | verdict |"
    yield "| --- | --- | --- | ---: | ---: | --- | --- | --- |"
    ran = [item for item in orderings if item.verdict != NOT_RUN]
    for item in sorted(ran, key=lambda item: VERDICTS.index(item.verdict)):
        yield _ordering_line(item)
    yield ""


def _ordering_line(item: Ordering) -> str:
    digits = 2 if "perplexity" in item.column else 1
    difference = item.untested
    p_value = interval = _NOTHING
    if item.ours is not None:
        difference = item.ours.difference
        interval = f"{signed(item.ours.low, digits)} to {signed(item.ours.high, digits)}"
        if not item.failed:
            p_value = "p < 0.001" if item.ours.p_value < 0.001 else f"p = {item.ours.p_value:.3f}"
    return (
        f"| {table_name(item.table)} ({line(item.size_preset)}) | {line(item.statement)} | {item.column} | "
        f"{signed(item.paper, digits)} | {signed(difference, digits)} | {interval} | {p_value} | {item.verdict} |"
    )


def _difference_lines(differences: Sequence[Ordering], plots: Mapping[str, Path]) -> Iterator[str]:
    """Yields a table with a row for each column of the paper's tables and a column for each finished model."""
    models = list(dict.fromkeys((item.size_preset, item.statement) for item in differences))
    if not models:
        return
    yield "## Finished models against the first\n"
    yield f"![Differences from the first model](plots/{plots[MODELS_PLOT].name})\n"
    yield "Differences in points with 95% intervals; bold where p < 0.05, not corrected for the number of tests.\n"
    yield f"| | column | {' | '.join(line(statement) for _, statement in models)} |"
    yield f"| --- | --- |{' ---: |' * len(models)}"
    by_column: dict[tuple[str, str], dict[tuple[str | None, str], Ordering]] = {}
    for item in differences:
        by_column.setdefault((item.table, item.column), {})[item.size_preset, item.statement] = item
    for (table, column), items in by_column.items():
        cells = [_with_interval(items[model]) if model in items else _NOTHING for model in models]
        yield f"| {table_name(table)} | {column} | {' | '.join(cells)} |"
    yield ""


def _with_interval(item: Ordering) -> str:
    """Returns a difference with its interval, bold unless it is inconclusive."""
    assert item.ours is not None
    text = f"{signed(item.ours.difference)} ({signed(item.ours.low)} to {signed(item.ours.high)})"
    if item.verdict == INCONCLUSIVE:
        return text
    return f"**{text}**"


# --- Tables -----------------------------------------------------------------------------------------------------------


def _table_lines(table: ResultsTable) -> Iterator[str]:
    """Yields a table of the paper, or Figure 5, with our numbers below the paper's."""
    yield f"## {table_name(table.key)}, ours at size {line(table.size_preset)}\n"
    yield f"Paper: {table.title.rstrip('.')}.\n"
    heads = [_head(table, column) for column in table.columns]
    yield f"| row | | {' | '.join(heads)} |\n| --- | --- |{' ---: |' * len(table.columns)}"
    # Reason why there is no difference -> the letter that stands for it in the cells.
    notes: dict[str, str] = {}
    for row in table.rows.values():
        yield from _row_lines(table, row, notes)
    yield ""
    yield from _leaderboard_lines(table)
    if notes:
        yield "No difference: " + " ".join(f"{letter}: {line(reason)}." for reason, letter in notes.items()) + "\n"


def _head(table: ResultsTable, column: Column) -> str:
    name = f"{int(column.name):,} steps" if table.key == FIGURE_5_KEY else column.name
    return f"{name}<br>{column.metric}, {column.split}"


def _row_lines(table: ResultsTable, row: ResultsRow, notes: dict[str, str]) -> Iterator[str]:
    if row.paper:
        cells = [_printed(row.paper.get(column.name), _digits(column)) for column in table.columns]
        yield f"| {line(row.name)} | paper | {' | '.join(cells)} |"
    if row.ours:
        name = ""
        if not row.paper:
            name = line(row.name)
        if not row.paper and row.paper_row:
            name += f"<br>next to {line(row.paper_row)}"
        cells = [_ourline(row, column, notes) for column in table.columns]
        yield f"| {name} | ours | {' | '.join(cells)} |"


def _leaderboard_lines(table: ResultsTable) -> Iterator[str]:
    """Yields a sentence with the scores as GLUE's leaderboard averages them, if one of our rows is complete."""
    scores = [f"{line(row.name)} {row.leaderboard:.1f}" for row in table.rows.values() if row.leaderboard is not None]
    if not scores:
        return
    papers = ", ".join(f"{name} {score}" for name, score in LEADERBOARD.items())
    yield (
        f"As the leaderboard averages (nine tasks, WNLI's majority class among them): paper, on test: {papers}; "
        f"ours, on dev: {', '.join(scores)}.\n"
    )


def _ourline(row: ResultsRow, column: Column, notes: dict[str, str]) -> str:
    """Returns our number with deviation, interval and difference; a new reason for no difference is added to notes."""
    if column.task == AVERAGED:
        return _printed(row.average, 1)
    ours = row.ours.get(column.name)
    if ours is None:
        return NOT_RUN
    digits = _digits(column)
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
        next_letter = "abcdefghijklmnopqrstuvwxyz"[len(notes) % 26]
        text += f" ({notes.setdefault(ours.reason, next_letter)})"
    return text


def _digits(column: Column) -> int:
    """Returns how many decimals a column has: two for perplexities, one for percent."""
    return 2 if unit(column) == 1 else 1


def _printed(value: float | None, digits: int) -> str:
    if value is None:
        return _NOTHING
    return f"{value:.{digits}f}"


def signed(value: float | None, digits: int = 1) -> str:
    """Returns a number with its sign, without one if it rounds to zero, and a dash for None."""
    if value is None:
        return _NOTHING
    text = f"{abs(value):.{digits}f}"
    if float(text) == 0:
        return text
    return f"+{text}" if value > 0 else f"−{text}"
