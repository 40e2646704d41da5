"""Strict readers of CSV and JSON lines files, beside `files.read_tsv` for tab-separated ones."""

import csv
import gzip
import json
import lzma
import sys
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bert_repro.errors import UserError
from bert_repro.utils.tsv import Table, read_tsv
from bert_repro.utils.unicode import half_surrogate

TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".json")


def read_table(path: Path, required: Sequence[str], *, optional: Sequence[str] = ()) -> Table:
    """Reads columns of a .csv, .tsv or .jsonl (.json: also one object per line) file as text.

    Args:
        path: the file; its ending says the format.
        required: names of columns that must be there.
        optional: names of columns to read where they are there.

    Returns:
        The rows in the order of the file.

    Raises:
        UserError: the file is missing, empty, of another format or not UTF-8, lacks a column, or has a bad row.
    """
    if path.suffix not in TABLE_SUFFIXES:
        raise UserError(f"{path}: unknown format; name a file that ends in {', '.join(TABLE_SUFFIXES)}")
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    if path.suffix == ".tsv":
        return read_tsv(path, required, optional=optional)
    if path.suffix == ".csv":
        return read_csv(path, required, optional=optional)
    return read_json_lines(path, required, optional=optional)


def read_csv(path: Path, required: Sequence[str], *, optional: Sequence[str] = ()) -> Table:
    """Reads columns of a comma-separated file with quotes (RFC 4180) and a first row of names; see `read_table`."""
    csv.field_size_limit(sys.maxsize)  # the default refuses long texts
    columns: dict[str, list[str]] = {}
    lines: list[int] = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file, strict=True)
            names = next(rows, [])
            places = {name: names.index(name) for name in (*required, *optional) if name in names}
            _require_columns(path, names, required)
            columns = {name: [] for name in places}
            end = rows.line_num
            for fields in rows:
                # A row begins on the line after the one before it; its own texts may hold line breaks.
                start, end = end + 1, rows.line_num
                if not fields:
                    continue
                if len(fields) != len(names):
                    raise UserError(
                        f"{path}, row {start}: {len(fields)} columns, expected {len(names)}; quote texts that hold "
                        "commas, and give every row all columns"
                    )
                lines.append(start)
                for name, place in places.items():
                    columns[name].append(fields[place])
    except UnicodeDecodeError as error:
        raise _not_utf8(path, error) from None
    except csv.Error as error:
        raise UserError(f"{path}, row {rows.line_num}: {error}; quote texts as CSV does") from None
    return _filled(Table(path, columns, lines))


def read_json_lines(path: Path, required: Sequence[str], *, optional: Sequence[str] = ()) -> Table:
    """Reads fields of a file with one JSON object per line, also .gz or .xz; numbers become text; see `read_table`."""
    records = [(number, _json_object(path, number, line)) for number, line in _lines(path) if line.strip()]
    table = Table(path, {}, [number for number, _ in records])
    _filled(table)
    present = [name for name in optional if name in records[0][1]]
    for name in (*required, *present):
        table.columns[name] = [_text_field(table, row, record, name) for row, (_, record) in enumerate(records)]
    return table


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    opened = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)
    try:
        with opened(path, "rb") as file:
            yield from enumerate(file, start=1)
    except (EOFError, lzma.LZMAError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path}: is damaged or no {path.suffix} file ({error}); get it again") from None


def _json_object(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line.decode("utf-8-sig"))
    except ValueError as error:
        raise UserError(f"{path}, row {number}: is not JSON in UTF-8 ({error}); write one object per line") from None
    if not isinstance(value, dict):
        raise UserError(f"{path}, row {number}: is no JSON object; write one object per line")
    return value


def _text_field(table: Table, row: int, record: dict[str, Any], name: str) -> str:
    if name not in record:
        raise table.error(row, f"no field {name!r}; found {', '.join(record)}")
    value = record[name]
    if isinstance(value, str):
        if half := half_surrogate(value):
            raise table.error(row, f"field {name!r} has half a surrogate pair at character {half}; repair it")
        return value
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    raise table.error(row, f"field {name!r} is {json.dumps(value)[:40]}; it must be a text or a number")


def _require_columns(path: Path, names: Sequence[str], required: Sequence[str]) -> None:
    for name in required:
        if name not in names:
            raise UserError(
                f"{path}: no column {name!r}; found {', '.join(names) or 'none'}; name the columns in the first row"
            )


def _filled(table: Table) -> Table:
    if not table.lines:
        raise UserError(f"{table.path}: no rows; name a file with at least one")
    return table


def _not_utf8(path: Path, error: UnicodeDecodeError) -> UserError:
    return UserError(f"{path}: byte 0x{error.object[error.start]:02x} is not UTF-8; save the file as UTF-8")
