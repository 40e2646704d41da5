"""The reproduction report: report.md, index.html, numbers.json and the plots, from the records of finished runs.

The same records give the same bytes: there is no date, path or random draw without a seed in what is written.
"""

import errno
import json
import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import resources
from itertools import groupby
from pathlib import Path
from typing import Any

from bert_repro.configs import ReportConfig
from bert_repro.errors import UserError
from bert_repro.reproduction.collect import Run, collect
from bert_repro.reproduction.conditions import Conditions, table_conditions
from bert_repro.reproduction.numbers import numbers_record
from bert_repro.reproduction.orderings import APPEARS, HIDDEN, NOT_TRIED, REVERSED, Ordering, orderings
from bert_repro.reproduction.render import Line, counts, findings, table_view
from bert_repro.reproduction.report_plots import Plot, all_plots
from bert_repro.reproduction.statistics import CONFIDENCE, RESAMPLES
from bert_repro.reproduction.tables import Book, Table

logger = logging.getLogger("bert_repro")

_MOST_COLUMNS = 3
PAGE, TEXT, NUMBERS, PLOTS = "index.html", "report.md", "numbers.json", "plots"


def write_report(config: ReportConfig) -> None:
    """Writes the report of all runs below a folder: all of it, or nothing.

    Raises:
        UserError: see `collect`, or the folder cannot be written.
    """
    files = report_files(collect(Path(config.runs_dir)))
    folder = Path(config.report_dir)
    try:
        _replace_all({folder / name: text for name, text in files.items()})
        (folder / PLOTS).mkdir(exist_ok=True)
        for stale in {path.name for path in (folder / PLOTS).glob("*.svg")} - {Path(name).name for name in files}:
            (folder / PLOTS / stale).unlink()
    except OSError as error:
        raise UserError(
            f"--report_dir {folder}: {error.filename or folder} cannot be written ({error.strerror}); make room for "
            "it, or name another folder"
        ) from error
    logger.info("wrote %s, %s and %s", *(folder / name for name in (PAGE, TEXT, NUMBERS)))


def _replace_all(texts: Mapping[Path, str]) -> None:
    """Writes files so that nothing is replaced before everything is written.

    Raises:
        OSError: a file cannot be written, with its name; then the old ones are as they were.
    """
    written: dict[Path, Path] = {}
    try:
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
            # Beside its target, so that it is moved within a file system.
            written[path] = path.with_name(f".{path.name}.{os.getpid()}")
            written[path].write_text(text, encoding="utf-8", newline="\n")
        for path, temporary in written.items():
            os.replace(temporary, path)
    finally:
        for temporary in written.values():
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


def report_files(runs: Sequence[Run]) -> dict[str, str]:
    """The files of the report, by their names below its folder.

    Args:
        runs: what `collect` returned.
    """
    book = Book(runs)
    tables = [*book.tables, *book.figures]
    by_name = {run.name.rsplit("/", 1)[-1]: run for run in runs}
    conditions = [table_conditions(table, by_name) for table in tables]
    found, plots = orderings(book), all_plots(book.figures, runs)
    context = _context(book, tables, conditions, found, plots)
    numbers = numbers_record(runs, tables, conditions, found)
    return {
        PAGE: _render("page.html.jinja", context, escape=True),
        TEXT: _render("report.md.jinja", context, escape=False),
        NUMBERS: json.dumps(numbers, indent=1, ensure_ascii=False, allow_nan=False) + "\n",
        **{f"{PLOTS}/{plot.name}.svg": plot.svg for plot in plots},
    }


def _context(
    book: Book,
    tables: Sequence[Table],
    conditions: Sequence[tuple[Conditions, dict[str, Conditions]]],
    found: Sequence[Ordering],
    plots: Sequence[Plot],
) -> dict[str, Any]:
    told = counts(found)
    groups = [
        ("Appear", "appears", {"": findings(found, APPEARS)}),
        ("Do not appear", "absent", {name: findings(found, name) for name in (HIDDEN, REVERSED)}),
        ("Not tried", "untried", {"": findings(found, NOT_TRIED)}),
    ]
    return {
        "tables": [table_view(table, parts) for table, parts in zip(tables, conditions, strict=True)],
        "groups": groups,
        "counts": {
            "Appear": told[APPEARS],
            "Do not appear": told[HIDDEN] + told[REVERSED],
            "Not tried": told[NOT_TRIED],
        },
        "total": sum(told.values()),
        "runs": len(book.runs),
        "scales": sorted({run.scale for run in book.runs}),
        "outside": [run.name for run in book.runs if not run.cells and not run.pretrains],
        "plots": plots,
        "resamples": f"{RESAMPLES:,}",
        "confidence": f"{CONFIDENCE:.0%}",
    }


def _render(template: str, context: Mapping[str, Any], *, escape: bool) -> str:
    import jinja2

    environment = jinja2.Environment(
        autoescape=escape,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"cell": _markdown_cell, "groupby_row": _by_row, "in_short": _in_short}
    source = resources.files("bert_repro.report").joinpath(template).read_text("utf-8")
    return environment.from_string(source).render(context)


def _by_row(lines: Sequence[Line]) -> list[tuple[str, list[Line]]]:
    """Lines of the same row together, in their order."""
    return [(name, list(group)) for name, group in groupby(lines, key=lambda line: line.row)]


def _in_short(columns: Sequence[str], kind: str) -> str:
    """Columns one after another; many that were not tried are only counted."""
    return f"{len(columns)} columns" if kind == "untried" and len(columns) > _MOST_COLUMNS else ", ".join(columns)


def _markdown_cell(text: str) -> str:
    return text.replace("|", "\\|").replace("[MASK]", "\\[MASK]")
