"""A strict reader of tab-separated files as GLUE publishes them: no quoting, UTF-8, one row per line."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bert_repro.errors import UserError

logger = logging.getLogger("bert_repro")


@dataclass(frozen=True)
class Table:
    """Some columns of a file.

    Args:
        path: the file.
        columns: the values of each column that was asked for and found.
        lines: the line number of each row in the file, from 1, for messages.
    """

    path: Path
    columns: dict[str, list[str]]
    lines: list[int]

    def error(self, row: int, message: str) -> UserError:
        """An error about a row of the table, with its place in the file."""
        return UserError(f"{self.path}, row {self.lines[row]}: {message}")


def read_tsv(
    path: Path,
    required: Sequence[str],
    *,
    optional: Sequence[str] = (),
    header: Sequence[str] | None = None,
    drop_incomplete_rows: bool = False,
) -> Table:
    """Reads columns of a tab-separated file by their names.

    Quotes have no meaning; a row ends at a line feed alone, so the other line separators of Unicode stay in the text;
    a byte-order mark and empty lines at the end of the file are ignored.

    Args:
        path: the file.
        required: names of columns that must be there.
        optional: names of columns to read where they are there.
        header: names of all columns, for a file whose first line is a row already.
        drop_incomplete_rows: drop rows with too few fields, and log how many, instead of refusing the file.

    Returns:
        The rows in the order of the file.

    Raises:
        UserError: the file is missing, empty or not UTF-8, lacks a column, or has a row with another number of fields.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file; put the official file there under this name")
    rows = _rows(path)
    names = list(header) if header is not None else next(rows, (0, [""]))[1]
    places = _find_columns(path, names, required, optional)
    columns: dict[str, list[str]] = {name: [] for name in places}
    numbers: list[int] = []
    dropped = 0
    for number, fields in rows:
        if drop_incomplete_rows and len(fields) < len(names):
            dropped += 1
            continue
        if len(fields) != len(names):
            raise UserError(
                f"{path}, row {number}: {len(fields)} columns, expected {len(names)}; put one tab between columns "
                "and neither tabs nor line breaks into a text"
            )
        numbers.append(number)
        for name, place in places.items():
            columns[name].append(fields[place])
    if not numbers:
        raise UserError(f"{path}: no rows; get the file again")
    if dropped:
        logger.warning("%s: dropped %d rows with missing fields, kept %d", path, dropped, len(numbers))
    return Table(path, columns, numbers)


def _find_columns(path: Path, names: list[str], required: Sequence[str], optional: Sequence[str]) -> dict[str, int]:
    for name in required:
        if name not in names:
            raise UserError(f"{path}: no column {name!r}; found {', '.join(names)}; name the columns in the first row")
    return {name: names.index(name) for name in (*required, *optional) if name in names}


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Numbered rows as fields; empty lines only count where text follows them."""
    empty: list[int] = []
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            content = line.rstrip(b"\r\n")
            if number == 1:
                content = content.removeprefix(b"\xef\xbb\xbf")
            if not content:
                empty.append(number)
                continue
            yield from ((earlier, [""]) for earlier in empty)
            empty.clear()
            yield number, _decode(path, number, content).split("\t")


def _decode(path: Path, number: int, content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = content[error.start]
        raise UserError(
            f"{path}, row {number}: byte 0x{byte:02x} at position {error.start} is not UTF-8; save the file as UTF-8"
        ) from None
