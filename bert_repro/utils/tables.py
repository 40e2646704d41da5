"""Reads tables row by row: CSV, TSV, and the first sheet of an Excel file.

Every reader of tables in this package uses these functions, so that a file means the same to all recipes. All fields
are texts. The first row contains the column names. Everyday mistakes are a `UserError` with file and line.
"""

import csv
import logging
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TypeAlias

from bert_repro.errors import UserError
from bert_repro.utils.readers import quoted
from bert_repro.utils.spreadsheets import sheet_rows

logger = logging.getLogger("bert_repro")

Lines: TypeAlias = Iterable[tuple[int, str]]
"""Numbers and texts of lines, without line ends."""
LineReader: TypeAlias = Callable[[], Lines]
"""Opens the input again and reads its lines from the beginning."""
Rows: TypeAlias = Iterable[tuple[int, list[str]]]
"""Line numbers and fields of a table's rows. The row of an empty line has no fields."""

KINDS = ("csv", "tsv", "xlsx")
"""Formats that are tables of texts."""
_QUOTED = re.compile(r'"([^"]|"")*"')


def rows_of(path: Path, kind: str, read_lines: LineReader) -> Rows:
    """Returns the rows of a table, the row of column names included.

    Args:
        path: the file, for messages and for Excel, which has no lines.
        kind: one of `KINDS`.
        read_lines: reads the lines of the file.

    Raises:
        UserError: the file is damaged.
    """
    if kind == "xlsx":
        return sheet_rows(path)
    # GLUE's TSV files use quotation marks as ordinary characters. pandas and spreadsheets instead put a field that
    # contains quotes into quotes and double the inner ones. The fields tell which of the two it is.
    if kind == "tsv" and not uses_csv_quoting(read_lines()):
        return tsv_rows(read_lines())
    return csv_rows(path, read_lines(), "\t" if kind == "tsv" else "")


def named_rows(path: Path, rows: Rows) -> Iterator[tuple[int, dict[str, str]]]:
    """Yields each row of a table as column name -> field, with the number of its line.

    Args:
        path: the file, for messages.
        rows: its rows; the first one contains the column names.

    Raises:
        UserError: two columns have one name, or a row lacks a column.
    """
    rows = iter(rows)
    _, names = next(rows, (0, []))
    require_unique_names(path, names)
    places = {name: names.index(name) for name in names}
    for number, fields in complete_rows(path, rows, len(names), drop_incomplete=False):
        yield number, {name: fields[place] for name, place in places.items()}


def csv_rows(path: Path, lines: Lines, delimiter: str = "") -> Iterator[tuple[int, list[str]]]:
    """Yields the number of each row's first line and its fields (RFC 4180).

    Args:
        path: the file, for messages.
        lines: its content.
        delimiter: what separates the columns; empty: a comma or, if the first line has none, a semicolon or a tab.
    """
    # The default limit would refuse long texts.
    csv.field_size_limit(sys.maxsize)
    # Lines are read one by one, so that a file need not fit into memory.
    texts_of_lines = (text + "\n" for _, text in lines)
    header = next(texts_of_lines, None)
    if header is None:
        return
    if not delimiter:
        delimiter = next((candidate for candidate in ",;\t" if candidate in header), ",")
    reader = csv.reader(chain([header], texts_of_lines), strict=True, delimiter=delimiter)
    first_line_of_row = 1
    try:
        for fields in reader:
            yield first_line_of_row, fields
            # A quoted field may contain line ends, so a row can have several lines.
            first_line_of_row = reader.line_num + 1
    except csv.Error as error:
        raise UserError(f"{path}, line {first_line_of_row}: {error}. Quote texts as CSV does.") from None


def uses_csv_quoting(lines: Lines) -> bool:
    """Returns whether all fields that begin with a quote are quoted as in CSV, at least one with a doubled quote."""
    has_doubled_quote = False
    for _, line in lines:
        for text in line.split("\t"):
            if not text.startswith('"'):
                continue
            if not _QUOTED.fullmatch(text):
                return False
            has_doubled_quote = has_doubled_quote or '""' in text[1:-1]
    return has_doubled_quote


def tsv_rows(lines: Lines) -> Iterator[tuple[int, list[str]]]:
    """Yields the number of each line and its fields; quotes have no meaning."""
    for line_number, line in lines:
        yield line_number, line.split("\t") if line else []


def require_unique_names(path: Path, names: Sequence[str]) -> None:
    """Refuses two columns with one name. Several columns without a name are allowed."""
    for name in names:
        if name.strip() and names.count(name) > 1:
            raise UserError(f"{path}: column {quoted(name)} occurs twice. Give every column its own name.")


def complete_rows(
    path: Path, rows: Rows, num_columns: int, *, drop_incomplete: bool
) -> Iterator[tuple[int, list[str]]]:
    """Yields line number and fields of the rows that have all columns, and refuses or drops the others."""
    num_rows = num_dropped = empty_line = 0
    for line_number, fields in rows:
        # With several columns an empty line may only end the file. With one column it is an empty text.
        if not fields and num_columns > 1:
            empty_line = empty_line or line_number
            continue
        if drop_incomplete and len(fields) < num_columns:
            num_dropped += 1
            continue
        if empty_line and not drop_incomplete:
            raise UserError(f"{path}, line {empty_line} is empty. Remove it, or give it all {num_columns} columns.")
        fields = fields or [""]
        if len(fields) != num_columns:
            raise UserError(
                f"{path}, line {line_number} has {len(fields)} columns instead of {num_columns}. Give every row all "
                "columns. In a .csv, quote a text that contains the separator; in a .tsv, a text must not contain tabs."
            )
        num_rows += 1
        yield line_number, fields

    if num_dropped:
        logger.warning("%s: dropped %d rows with missing fields, kept %d.", path, num_dropped, num_rows)
    if num_rows == 0:
        raise UserError(f"{path}: no rows. Use a file with at least one row.")
