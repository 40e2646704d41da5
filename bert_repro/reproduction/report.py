"""The reproduction report: report.md, index.html, numbers.json and the plots, from the results of finished runs.

The same results give the same bytes: no date, no path and no random draw without a seed is written.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from importlib import resources
from itertools import groupby
from pathlib import Path
from typing import Any

from bert_repro.configs import ReportConfig
from bert_repro.errors import UserError
from bert_repro.reproduction.collect import FinishedRun, collect
from bert_repro.reproduction.conditions import Conditions, row_conditions
from bert_repro.reproduction.orderings import APPEARS, HIDDEN, NOT_MEASURABLE, NOT_RUN, REVERSED, Ordering, orderings
from bert_repro.reproduction.paper_tables import AllResults, OurNumber, ResultsRow, ResultsTable
from bert_repro.reproduction.render import Line, counts, findings, table_view
from bert_repro.reproduction.report_plots import Plot, all_plots
from bert_repro.reproduction.size_presets import SIZE_PRESETS
from bert_repro.reproduction.statistics import CONFIDENCE, RESAMPLES, SEED, Comparison
from bert_repro.utils.files import atomic_files

logger = logging.getLogger("bert_repro")

_MAX_COLUMNS = 3
_DIGITS = 4  # of numbers.json
PAGE, TEXT, NUMBERS, PLOTS = "index.html", "report.md", "numbers.json", "plots"


def write_report(config: ReportConfig) -> None:
    """Writes the report of all runs below a folder: all of it, or nothing.

    Raises:
        UserError: see `collect`, or the folder cannot be written.
    """
    runs = collect(Path(config.runs_dir))
    if not runs:
        raise UserError(f"--runs_dir {config.runs_dir}: no results.json below it; name the folder of finished runs")
    files = report_files(runs)
    folder = Path(config.report_dir)
    with atomic_files(folder) as unfinished:
        (unfinished / PLOTS).mkdir()
        for name, text in files.items():
            (unfinished / name).write_text(text, encoding="utf-8", newline="\n")
    for stale in {path.name for path in (folder / PLOTS).glob("*.svg")} - {Path(name).name for name in files}:
        (folder / PLOTS / stale).unlink()
    logger.info("wrote %s, %s and %s", *(folder / name for name in (PAGE, TEXT, NUMBERS)))


def report_files(runs: Sequence[FinishedRun]) -> dict[str, str]:
    """Returns the files of the report, by their names below its folder.

    Args:
        runs: what `collect` returned.
    """
    results = AllResults(runs)
    tables = [*results.tables, *results.figures]
    by_name = {run.name.rsplit("/", 1)[-1]: run for run in runs}
    conditions = [row_conditions({row.name: row.runs for row in table.rows}, by_name) for table in tables]
    found, plots = orderings(results), all_plots(results.figures, runs)
    context = _context(results, tables, conditions, found, plots)
    numbers = all_numbers(runs, tables, conditions, found)
    return {
        PAGE: _render("page.html.jinja", context, escape=True),
        TEXT: _render("report.md.jinja", context, escape=False),
        NUMBERS: json.dumps(numbers, indent=1, ensure_ascii=False, allow_nan=False) + "\n",
        **{f"{PLOTS}/{plot.name}.svg": plot.svg for plot in plots},
    }


def _context(
    results: AllResults,
    tables: Sequence[ResultsTable],
    conditions: Sequence[tuple[Conditions, dict[str, Conditions]]],
    found: Sequence[Ordering],
    plots: Sequence[Plot],
) -> dict[str, Any]:
    verdicts = counts(found)
    groups = [
        ("Appear", "appears", {"": findings(found, APPEARS)}),
        ("Do not appear", "absent", {name: findings(found, name) for name in (HIDDEN, REVERSED)}),
        ("Not measurable", "unmeasurable", {"": findings(found, NOT_MEASURABLE)}),
        ("Not run", "not-run", {"": findings(found, NOT_RUN)}),
    ]
    views = [table_view(table, parts) for table, parts in zip(tables, conditions, strict=True)]
    return {
        "tables": [view for view in views if view.is_run],
        "not_run": [view for view in views if not view.is_run],
        "groups": groups,
        "counts": {
            "Appear": verdicts[APPEARS],
            "Do not appear": verdicts[HIDDEN] + verdicts[REVERSED],
            "Not measurable": verdicts[NOT_MEASURABLE],
            "Not run": verdicts[NOT_RUN],
        },
        "total": sum(verdicts.values()),
        "runs": len(results.runs),
        "size_presets": [_described(name) for name in sorted({run.size_preset for run in results.runs})],
        "outside": [run.name for run in results.runs if not run.entries and not run.is_pretraining],
        "plots": plots,
        "resamples": f"{RESAMPLES:,}",
        "confidence": f"{CONFIDENCE:.0%}",
    }


def _described(size_preset: str) -> str:
    """Returns the preset's name, and what it is where it is one of ours."""
    known = SIZE_PRESETS.get(size_preset)
    return f"{size_preset} ({known.description})" if known else size_preset


def _render(template: str, context: Mapping[str, Any], *, escape: bool) -> str:
    import jinja2

    environment = jinja2.Environment(
        autoescape=escape,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"cell": _markdown_cell, "groupby_row": _by_row, "list_columns": _list_columns}
    source = resources.files("bert_repro.reproduction").joinpath(template).read_text("utf-8")
    return environment.from_string(source).render(context)


def _by_row(lines: Sequence[Line]) -> list[tuple[str, list[Line]]]:
    """Lines of the same row together, in their order."""
    return [(name, list(group)) for name, group in groupby(lines, key=lambda line: line.row)]


def _list_columns(columns: Sequence[str], kind: str) -> str:
    """Lists columns; many that were not run are only counted."""
    return f"{len(columns)} columns" if kind == "not-run" and len(columns) > _MAX_COLUMNS else ", ".join(columns)


def _markdown_cell(text: str) -> str:
    return text.replace("|", "\\|").replace("[MASK]", "\\[MASK]")


def all_numbers(
    runs: Sequence[FinishedRun],
    tables: Sequence[ResultsTable],
    conditions: Sequence[tuple[Conditions, dict[str, Conditions]]],
    orderings: Sequence[Ordering],
) -> dict[str, Any]:
    """Returns all that the report prints, in the paper's units (percent, perplexities plain), to four digits."""
    return {
        "statistics": {"resamples": RESAMPLES, "confidence": CONFIDENCE, "seed": SEED},
        "tables": [_table_numbers(table, parts) for table, parts in zip(tables, conditions, strict=True)],
        "orderings": [_ordering_numbers(ordering) for ordering in orderings],
        "breakdowns": {run.name: run.breakdown for run in runs if run.breakdown},
    }


def _table_numbers(table: ResultsTable, conditions: tuple[Conditions, dict[str, Conditions]]) -> dict[str, Any]:
    shared, own = conditions
    return {
        "table": table.key,
        "size_preset": table.size_preset,
        "baseline": table.baseline,
        "conditions": shared,
        "rows": [{**_row_numbers(row), "conditions": own.get(row.name, {})} for row in table.rows],
    }


def _row_numbers(row: ResultsRow) -> dict[str, Any]:
    content: dict[str, Any] = {"row": row.name, "paper": dict(row.paper)}
    if row.is_bert:
        content["ours"] = {name: _our_numbers(ours) for name, ours in row.ours.items()} or "not run"
    if row.average is not None:
        content["average"] = {
            "mean": _rounded(row.average),
            "difference": _rounded(row.average_difference),
            "no_difference_because": row.average_reason,
        }
    if row.same_as is not None:
        content["same_as"] = row.same_as
    return content


def _our_numbers(ours: OurNumber) -> dict[str, Any]:
    return {
        "metric": ours.column.metric,
        "split": ours.column.split,
        "mean": _rounded(ours.mean),
        "deviation": _rounded(ours.deviation),
        "seeds": {str(run.seed): _rounded(score) for run, score in zip(ours.runs, ours.scores, strict=True)},
        "degenerate": ours.degenerate,
        "interval": None if ours.low is None else [_rounded(ours.low), _rounded(ours.high)],
        "against_baseline": _comparison_numbers(ours.comparison),
        "difference": _rounded(ours.difference),
        "no_difference_because": ours.reason,
        "runs": [run.name for run in ours.runs],
    }


def _comparison_numbers(found: Comparison | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "difference": _rounded(found.difference),
        "interval": [_rounded(found.low), _rounded(found.high)],
        "p_value": _rounded(found.p_value),
        "paired_seeds": found.paired_seeds,
    }


def _ordering_numbers(ordering: Ordering) -> dict[str, Any]:
    return {
        "table": ordering.table,
        "size_preset": ordering.size_preset,
        "statement": ordering.statement,
        "column": ordering.column,
        "verdict": ordering.verdict,
        "paper": _rounded(ordering.paper),
        "ours": _comparison_numbers(ordering.ours) or _rounded(ordering.untested),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, _DIGITS)
