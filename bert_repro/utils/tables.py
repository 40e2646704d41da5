"""Strict readers of tables: CSV, TSV and JSON lines, as columns of text.

Whatever is wrong with a file is a `UserError` of one line that names the file, the line, the value and the fix. Line
numbers are those of an editor, from 1; a row of CSV that holds line breaks is named by its first line.
"""

import csv
import json
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from bert_repro.errors import UserError
from bert_repro.utils.readers import first_repeated, half_surrogate, listed, numbered_lines, parse_json, shown

logger = logging.getLogger("bert_repro")

TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".json")
_OTHER_DELIMITERS = {";": "semicolons", "\t": "tabs"}  # of a .csv file, beside the comma
_LARGEST_UNPACKED = 100_000_000  # characters of a compressed table, which is read into memory


@dataclass(frozen=True)
class Table:
    """Some columns of a file.

    Args:
        path: the file.
        columns: the values of each column that was asked for and found.
        lines: the line of the file on which each row begins, for messages.
    """

    path: Path
    columns: dict[str, list[str]]
    lines: list[int]

    def error(self, row: int, message: str) -> UserError:
        """Makes an error about a row of the table, with its place in the file."""
        return UserError(f"{self.path}, line {self.lines[row]}: {message}")

    def is_filled(self, column: str) -> bool:
        """Returns whether a column is there and has text; that of the labels may be empty in a file to predict."""
        return any(text.strip() for text in self.columns.get(column, ()))

    def parsed(self, column: str, parse: Callable[[str], Any]) -> list[Any]:
        """Returns the values of a column, each made of its text.

        Args:
            column: its name.
            parse: raises `ValueError` for a text that it does not take.

        Raises:
            UserError: it does not take one; with the line and the column.
        """
        values = []
        for row, text in enumerate(self.columns[column]):
            try:
                values.append(parse(text))
            except ValueError as error:
                raise self.error(row, f"column {column!r}: {error}") from None
        return values


def read_table(
    path: Path, required: Sequence[str], *, optional: Sequence[str] = (), list_separator: str | None = None
) -> Table:
    """Reads columns of a .csv, .tsv or .jsonl (.json: also one object per line) file as text.

    Args:
        path: the file; its ending says the format.
        required: names of columns that must be there.
        optional: names of columns to read where they are there.
        list_separator: where given, JSON lines may hold lists of texts, which become one text with this in between.

    Returns:
        The rows in the order of the file.

    Raises:
        UserError: the file is missing, empty, of another format or not UTF-8, lacks a column or has one twice, or has a
            bad row.
    """
    if path.suffix not in TABLE_SUFFIXES:
        raise UserError(f"{path}: unknown format; name a file that ends in {', '.join(TABLE_SUFFIXES)}")
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    if path.suffix in (".tsv", ".csv"):
        return (read_tsv if path.suffix == ".tsv" else read_csv)(path, required, optional=optional)
    return read_json_lines(path, required, optional=optional, list_separator=list_separator)


def read_csv(path: Path, required: Sequence[str], *, optional: Sequence[str] = ()) -> Table:
    """Reads columns of a file with quotes (RFC 4180) and a first row of names; see `read_table`.

    Columns are separated by commas or, where the first line has none, by semicolons or tabs.
    """
    csv.field_size_limit(sys.maxsize)  # the default refuses long texts
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            delimiter = _delimiter(path, file)
            rows = csv.reader(file, strict=True, delimiter=delimiter)
            return _selected(path, _csv_rows(path, rows), None, required, optional, "quote texts that hold commas")
    except UnicodeDecodeError:
        for _ in numbered_lines(path):
            pass  # finds the line and says so
        raise


def _delimiter(path: Path, file: Any) -> str:
    first = file.readline()
    file.seek(0)
    for delimiter, name in _OTHER_DELIMITERS.items():
        if "," not in first and delimiter in first:
            _log_delimiter(path, name)
            return delimiter
    return ","


@lru_cache
def _log_delimiter(path: Path, name: str) -> None:
    """Logs once how the columns of a file are separated; a run reads some files more than once."""
    logger.info("%s: its columns are separated by %s", path, name)


def _csv_rows(path: Path, rows: Any) -> Iterator[tuple[int, list[str]]]:
    # A row begins on the line after the one before it; its own texts may hold line breaks. A quote that is never closed
    # takes all further lines into its row, whose first line is the one to repair.
    start = 1
    try:
        for fields in rows:
            if fields:
                yield start, fields
            start = rows.line_num + 1
    except csv.Error as error:
        raise UserError(f"{path}, line {start}: {error}; quote texts as CSV does") from None


def read_tsv(
    path: Path,
    required: Sequence[str],
    *,
    optional: Sequence[str] = (),
    header: Sequence[str] | None = None,
    drop_incomplete_rows: bool = False,
) -> Table:
    """Reads columns of a tab-separated file as GLUE publishes them: quotes have no meaning, a row is a line.

    Args:
        path: the file; empty lines at its end are ignored.
        required: names of columns that must be there.
        optional: names of columns to read where they are there.
        header: names of all columns, for a file whose first line is a row already.
        drop_incomplete_rows: drop rows with too few fields, and log how many, instead of refusing the file.

    Raises:
        UserError: see `read_table`.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file; put the official file there under this name")
    fix = "put one tab between columns and neither tabs nor line breaks into a text"
    return _selected(path, _tsv_rows(path), header, required, optional, fix, drop_incomplete_rows=drop_incomplete_rows)


def _tsv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yields numbered rows as fields; empty lines only count where text follows them."""
    empty: list[int] = []
    for number, line in numbered_lines(path):
        if not line:
            empty.append(number)
            continue
        yield from ((earlier, [""]) for earlier in empty)
        empty.clear()
        yield number, line.split("\t")


def read_json_lines(
    path: Path, required: Sequence[str], *, optional: Sequence[str] = (), list_separator: str | None = None
) -> Table:
    """Reads fields of a file with one JSON object per line; numbers become text; see `read_table`."""
    records: list[dict[str, Any]] = []
    lines: list[int] = []
    size = 0
    for number, line in numbered_lines(path):
        size += len(line)
        if size > _LARGEST_UNPACKED and path.suffix in (".gz", ".xz"):
            raise UserError(f"{path}: unpacks to more than {_LARGEST_UNPACKED:,} bytes; unpack it, or split it")
        if line.strip():
            records.append(_json_object(path, number, line))
            lines.append(number)
    table = _with_rows(Table(path, {}, lines))
    present = [name for name in optional if name in records[0]]
    for name in (*required, *present):
        table.columns[name] = [
            _text_field(table, row, record, name, list_separator) for row, record in enumerate(records)
        ]
    return table


def _json_object(path: Path, number: int, line: str) -> dict[str, Any]:
    where = f"{path}, line {number}"
    value = parse_json(line, where, "write one object per line", any_text=True)
    if not isinstance(value, dict):
        raise UserError(f"{where}: is not a JSON object; write one object per line")
    return value


def _text_field(table: Table, row: int, record: dict[str, Any], name: str, list_separator: str | None) -> str:
    if name not in record:
        raise table.error(row, f"no field {name!r}; found {listed(record)}")
    value = record[name]
    if list_separator is not None and isinstance(value, list) and all(isinstance(item, str) for item in value):
        if any(list_separator in item for item in value):
            raise table.error(row, f"field {name!r}: an item holds {list_separator!r}; set another --label_separator")
        value = list_separator.join(value)
    if isinstance(value, str):
        if half := half_surrogate(value):
            raise table.error(row, f"field {name!r} has half a surrogate pair at character {half}; repair it")
        return value
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    raise table.error(row, f"field {name!r} is {listed([json.dumps(value)])}; it must be a text or a number")


def _selected(
    path: Path,
    rows: Iterable[tuple[int, list[str]]],
    header: Sequence[str] | None,
    required: Sequence[str],
    optional: Sequence[str],
    fix: str,
    *,
    drop_incomplete_rows: bool = False,
) -> Table:
    """Takes the wanted columns out of numbered rows, the first of which names them unless `header` does."""
    rows = iter(rows)
    names = list(header) if header is not None else next(rows, (0, []))[1]
    places = _column_places(path, names, required, optional)
    table = Table(path, {name: [] for name in places}, [])
    dropped = 0
    for number, fields in rows:
        if drop_incomplete_rows and len(fields) < len(names):
            dropped += 1
            continue
        if len(fields) != len(names):
            raise UserError(
                f"{path}, line {number}: {len(fields)} columns, expected {len(names)}; {fix}, and give every row all "
                "columns"
            )
        table.lines.append(number)
        for name, place in places.items():
            table.columns[name].append(fields[place])
    if dropped:
        logger.warning("%s: dropped %d rows with missing fields, kept %d", path, dropped, len(table.lines))
    return _with_rows(table)


def _column_places(
    path: Path, names: Sequence[str], required: Sequence[str], optional: Sequence[str]
) -> dict[str, int]:
    for name in required:
        if name not in names:
            found = listed(names) or "none"
            raise UserError(f"{path}: no column {name!r}; found {found}; name the columns in the first row")
    if (twice := first_repeated([name for name in names if name.strip()])) is not None:
        raise UserError(f"{path}: column {shown(twice)} occurs twice; give every column a name of its own")
    wanted = [name for name in (*required, *optional) if name in names]
    return {name: names.index(name) for name in wanted}


def _with_rows(table: Table) -> Table:
    if not table.lines:
        raise UserError(f"{table.path}: no rows; name a file with at least one")
    return table
