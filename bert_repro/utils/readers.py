"""Strict readers of text files: lines, JSON, and tables as CSV, TSV or JSON lines.

Whatever is wrong with a file is a `UserError` of one line that names the file, the line, the value and the fix. Line
numbers are those of an editor, from 1; a row of CSV that holds line breaks is named by its first line.
"""

import csv
import gzip
import json
import logging
import lzma
import math
import sys
import zlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import yaml

from bert_repro.errors import UserError

logger = logging.getLogger("bert_repro")

TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".json")
_OTHER_DELIMITERS = {";": "semicolons", "\t": "tabs"}  # of a .csv file, beside the comma
_LONGEST_SHOWN, _LONGEST_LIST = 60, 200
_LONGEST_LINE = 100_000_000  # bytes; a text of that length is a library
_LARGEST_UNPACKED = 500_000_000  # characters of a compressed table, which is read into memory
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def shown(value: object) -> str:
    """Spells a value for a message: quoted, control characters escaped, cut to a readable length."""
    return _cut(repr(value), _LONGEST_SHOWN)


def listed(names: Iterable[str]) -> str:
    """Lists names for a message, separated by commas; as `shown`, without quotes."""
    return _cut(repr(", ".join(names))[1:-1], _LONGEST_LIST)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}..."


def half_surrogate(text: str) -> int | None:
    """Finds half a surrogate pair, which JSON can spell, no UTF-8 file can hold and no tokenizer accepts.

    Returns:
        The character's number from 1; None: there is none.
    """
    try:
        text.isascii() or text.encode()
    except UnicodeEncodeError as error:
        return error.start + 1
    return None


# --------------------------------------------------------------------------------------------------------------- lines


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Reads lines with their numbers, without line ends and byte-order mark; .gz and .xz are decompressed.

    A line ends at a line feed alone, so the other line separators of Unicode stay in the text.

    Raises:
        UserError: the file is missing, cannot be read, is damaged or is not UTF-8, or a line is beyond all reason long,
            as one that a small compressed file unpacks to.
    """
    opened: Callable[..., IO[bytes]] = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)  # type: ignore[assignment]
    number = 0
    try:
        with opened(path, "rb") as file:
            while line := file.readline(_LONGEST_LINE + 1):
                number += 1
                if len(line) > _LONGEST_LINE:
                    raise UserError(f"{path}, line {number}: is longer than {_LONGEST_LINE:,} bytes; split it")
                yield number, decode_line(line, path, number)
    except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
        raise UserError(f"{path}: is damaged or not a {path.suffix} file ({error}); get it again") from None
    except OSError as error:
        raise _unreadable(path, error) from error


def read_utf8(path: Path) -> str:
    """Reads a text file at once, with line feeds for all its line ends.

    Raises:
        UserError: the file is missing, cannot be read or is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8") from None
    except OSError as error:
        raise _unreadable(path, error) from error


def decode_line(line: bytes, path: Path, number: int) -> str:
    """Decodes one line of a file, and takes its end and, of the first line, the byte-order mark away.

    Raises:
        UserError: it is not UTF-8.
    """
    content = line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line
    try:
        return content.rstrip(b"\r\n").decode("utf-8")
    except UnicodeDecodeError as error:
        byte = f"byte 0x{content[error.start]:02x} at position {error.start}"
        raise UserError(f"{path}, line {number}: {byte} is not UTF-8; save the file as UTF-8") from None


def _unreadable(path: Path, error: OSError) -> UserError:
    if isinstance(error, FileNotFoundError):
        return UserError(f"{path}: no such file")
    return UserError(f"{path}: cannot be read ({error.strerror}); name a file that can")


# ---------------------------------------------------------------------------------------------------------------- JSON


def read_json(
    path: Path,
    *,
    missing: str = "name an existing JSON file",
    damaged: str = "get or write the file again",
    any_text: bool = False,
) -> Any:
    """Reads a JSON file.

    Args:
        path: the file.
        missing: what to do where it is missing.
        damaged: what to do where it is damaged.
        any_text: see `parse_json`.

    Raises:
        UserError: it is missing, not UTF-8 or not JSON; see `parse_json`.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); {missing}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is not valid JSON ({error}); {damaged}") from error
    return parse_json(text, str(path), damaged, any_text=any_text)


def read_json_object(path: Path, *, damaged: str = "get or write the file again") -> dict[str, Any]:
    """Reads a JSON file that holds an object; see `read_json`."""
    content = read_json(path, damaged=damaged)
    if not isinstance(content, dict):
        raise UserError(f"{path}: holds {shown(content)}, not an object; {damaged}")
    return content


def parse_json(text: str, where: str, fix: str, *, any_text: bool = False) -> Any:
    """Parses a JSON text.

    Args:
        text: the text.
        where: file and line, for messages.
        fix: what to do about a text that is not JSON.
        any_text: let half of a surrogate pair pass, for a caller that says exactly where it is.

    Raises:
        UserError: it is not JSON, nests too deep, has a number of thousands of digits or one that is not finite, half
            of a surrogate pair, or an object a key twice.
    """

    def without_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        content = dict(pairs)
        if len(content) < len(pairs):
            twice = _first_repeated([name for name, _ in pairs])
            raise UserError(f"{where}: key {shown(twice)} occurs twice in one object; remove one")
        return content

    def finite(number: str) -> float:
        value = float(number)
        if not math.isfinite(value):
            raise UserError(f"{where}: the number {shown(number)} is not finite; {fix}")
        return value

    try:
        value = json.loads(text, object_pairs_hook=without_repeated_keys, parse_constant=finite, parse_float=finite)
    except UserError:
        raise
    except RecursionError:
        raise UserError(f"{where}: nests too deep to be read; {fix}") from None
    except ValueError as error:  # no JSON, or a number too long for an integer
        raise UserError(f"{where}: is not valid JSON ({error}); {fix}") from None
    if not any_text and "\\ud" in text.lower() and half_surrogate(json.dumps(value, ensure_ascii=False)):
        raise UserError(f"{where}: a text in it has half a surrogate pair; repair it")
    return value


# ---------------------------------------------------------------------------------------------------------------- YAML


class _StrictLoader(yaml.SafeLoader):
    """Refuses aliases and repeated keys."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event: Any = self.peek_event()  # type: ignore[no-untyped-call]
            raise ValueError(f"line {event.start_mark.line + 1}: aliases are not accepted; write the value")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key, _ in node.value:
            name = key.value
            if isinstance(name, Hashable) and name in seen:
                raise ValueError(f"line {key.start_mark.line + 1}: {str(name)[:60]!r} is given twice; leave one out")
            seen.add(name) if isinstance(name, Hashable) else None
        return super().construct_mapping(node, deep)


def parse_yaml(text: str) -> Any:
    """Parses a YAML text; an alias can grow without end, and a key given twice hides a value.

    Raises:
        ValueError: it is not valid YAML, has aliases or a repeated key, or a value that cannot be read.
    """
    try:
        return yaml.load(text, _StrictLoader)
    except RecursionError:
        raise ValueError("nests too deep to be read") from None
    except (yaml.YAMLError, AttributeError, LookupError, TypeError, OverflowError) as error:
        raise ValueError(str(error)) from error  # the last four: of the library's own constructors, for odd tags


# -------------------------------------------------------------------------------------------------------------- tables


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
            return _selected(path, _csv_rows(rows), None, required, optional, "quote texts that hold commas")
    except UnicodeDecodeError:
        for _ in numbered_lines(path):
            pass  # finds the line and says so
        raise
    except csv.Error as error:
        raise UserError(f"{path}, line {rows.line_num}: {error}; quote texts as CSV does") from None


def _delimiter(path: Path, file: Any) -> str:
    first = file.readline()
    file.seek(0)
    for delimiter, name in _OTHER_DELIMITERS.items():
        if "," not in first and delimiter in first:
            logger.info("%s: its columns are separated by %s", path, name)
            return delimiter
    return ","


def _csv_rows(rows: Any) -> Iterator[tuple[int, list[str]]]:
    end = 0
    for fields in rows:
        # A row begins on the line after the one before it; its own texts may hold line breaks.
        start, end = end + 1, rows.line_num
        if fields:
            yield start, fields


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
    raise table.error(
        row, f"field {name!r} is {_cut(json.dumps(value), _LONGEST_SHOWN)}; it must be a text or a number"
    )


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
    if (twice := _first_repeated([name for name in names if name.strip()])) is not None:
        raise UserError(f"{path}: column {shown(twice)} occurs twice; give every column a name of its own")
    wanted = [name for name in (*required, *optional) if name in names]
    return {name: names.index(name) for name in wanted}


def _with_rows(table: Table) -> Table:
    if not table.lines:
        raise UserError(f"{table.path}: no rows; name a file with at least one")
    return table


def _first_repeated(names: Sequence[str]) -> str | None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None
