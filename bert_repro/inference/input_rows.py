"""Reads the input of `predict` in parts, so that memory does not grow with the number of rows.

A file is read twice. First every row is read and checked, and written to a folder in parts of `ROWS_PER_PART` rows.
Then each part is loaded when its turn has come:

    rows-00000.jsonl    rows of a text file, a table or JSON lines; every line is a JSON object
    rows-00000.arrow    rows of a Parquet file, whose columns may have types that JSON does not have

So a bad row at the end of a large file is refused before anything is predicted, and the total for the progress bar is
known. Data in memory, and JSON files that are one value, are divided without being written.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from bert_repro.errors import UserError
from bert_repro.tasks.data import as_dataset
from bert_repro.tasks.tagged_tables import is_tagged_table, tagged_table_rows
from bert_repro.tasks.tagged_text import find_layout, tagged_sentences
from bert_repro.utils import tables
from bert_repro.utils.readers import json_rows
from bert_repro.utils.tables import LineReader

if TYPE_CHECKING:
    import datasets

Row = dict[str, Any]

ROWS_PER_PART = 8192
"""As many as `finetuning.outputs` computes at once, so that parts do not change which rows share a batch."""


@dataclass(frozen=True)
class RowRange:
    """A part of the input.

    Args:
        number: number of the part, from 0.
        first: number of its first row, from 0.
        rows: how many rows it has.
    """

    number: int
    first: int
    rows: int

    def place(self, where: str) -> str:
        """Returns what messages call the part. The row numbers in them are counted from its first row."""
        if self.first == 0:
            return where
        return f"{where} (counted from row {self.first + 1})"


class InputRows(Protocol):
    """The rows to predict, in parts.

    Attributes:
        column_names: the columns of all rows.
        parts: the parts, in order.
    """

    @property
    def column_names(self) -> Sequence[str]: ...  # noqa: D102 (see the class)

    @property
    def parts(self) -> Sequence[RowRange]: ...  # noqa: D102 (see the class)

    def load(self, part: RowRange) -> "datasets.Dataset":
        """Returns the rows of a part."""


# --- Data in memory ---------------------------------------------------------------------------------------------------


class RowsInMemory:
    """Rows that are a dataset already.

    Args:
        dataset: the rows.
        keeps_documents: whether rows with the same `document` must be in one part.
    """

    def __init__(self, dataset: "datasets.Dataset", *, keeps_documents: bool) -> None:
        self._dataset = dataset
        documents: Iterable[Any] = range(len(dataset))
        if keeps_documents and "document" in dataset.column_names:
            documents = dataset["document"][:]
        self.column_names: Sequence[str] = dataset.column_names
        self.parts: Sequence[RowRange] = list(_ranges(documents))

    def load(self, part: RowRange) -> "datasets.Dataset":
        """Returns the rows of a part."""
        if len(self.parts) == 1:
            return self._dataset
        return self._dataset.select(range(part.first, part.first + part.rows))


def _ranges(documents: Iterable[Any]) -> Iterator[RowRange]:
    """Yields the parts of rows whose documents are given; a part ends between two documents."""
    number = first = count = 0
    previous: Any = None
    for document in documents:
        if count >= ROWS_PER_PART and document != previous:
            yield RowRange(number, first, count)
            number, first, count = number + 1, first + count, 0
        count += 1
        previous = document
    yield RowRange(number, first, count)


# --- Rows in a folder -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RowsInFolder:
    """Rows that were written to a folder.

    Args:
        folder: the folder.
        where: what messages call the input.
        column_names: the columns of all rows. A row that lacks one has None there.
        parts: the parts.
        constants: columns with the same text in every row.
    """

    folder: Path
    where: str
    column_names: tuple[str, ...]
    parts: tuple[RowRange, ...]
    constants: Mapping[str, str]

    def load(self, part: RowRange) -> "datasets.Dataset":
        """Returns the rows of a part."""
        arrow = _arrow_path(self.folder, part.number)
        if arrow.exists():
            return _read_arrow(arrow)
        with _json_path(self.folder, part.number).open(encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        columns: dict[str, list[Any]] = {}
        for name in self.column_names:
            constant = self.constants.get(name)
            columns[name] = [row.get(name, constant) for row in rows]
        return as_dataset(columns, part.place(self.where))


def write_rows(
    rows: Iterable[Row], folder: Path, where: str, *, keeps_documents: bool, constants: Mapping[str, str] | None = None
) -> RowsInFolder:
    """Writes rows to a folder in parts.

    Args:
        rows: the rows; their values are those of JSON.
        folder: an existing folder.
        where: what messages call the input.
        keeps_documents: whether rows with the same `document` must be in one part.
        constants: columns with the same text in every row, which are not written.

    Raises:
        UserError: there are no rows.
    """
    columns: dict[str, None] = {}
    parts: list[RowRange] = []
    first = 0
    for number, part in enumerate(_divided(rows, keeps_documents=keeps_documents)):
        with _json_path(folder, number).open("w", encoding="utf-8", newline="\n") as file:
            for row in part:
                columns.update(dict.fromkeys(row))
                file.write(json.dumps(row) + "\n")
        parts.append(RowRange(number, first, len(part)))
        first += len(part)
    if not parts:
        raise UserError(f"{where}: no rows. Pass at least one row.")
    constants = constants or {}
    return RowsInFolder(folder, where, (*columns, *constants), tuple(parts), constants)


def _divided(rows: Iterable[Row], *, keeps_documents: bool) -> Iterator[list[Row]]:
    part: list[Row] = []
    for row in rows:
        is_full = len(part) >= ROWS_PER_PART
        # Without a document, each row may begin a part.
        in_document = keeps_documents and "document" in row and part and part[-1].get("document") == row["document"]
        if is_full and not in_document:
            yield part
            part = []
        part.append(row)
    if part:
        yield part


def write_parquet_rows(path: Path, folder: Path) -> RowsInFolder:
    """Writes the rows of a Parquet file to a folder in parts.

    Raises:
        UserError: the file is damaged or has no rows.
    """
    import pyarrow
    from pyarrow import parquet

    parts: list[RowRange] = []
    first = 0
    try:
        with parquet.ParquetFile(path) as file:
            columns = tuple(file.schema_arrow.names)
            for number, batch in enumerate(file.iter_batches(ROWS_PER_PART)):
                with pyarrow.ipc.new_file(_arrow_path(folder, number), file.schema_arrow) as writer:
                    writer.write_batch(batch)
                parts.append(RowRange(number, first, len(batch)))
                first += len(batch)
    except pyarrow.ArrowException as error:
        raise UserError(f"{path} is not a valid Parquet file ({error}). Download or write the file again.") from None
    if not parts:
        raise UserError(f"{path}: no rows. Pass at least one row.")
    return RowsInFolder(folder, str(path), columns, tuple(parts), {})


def _read_arrow(path: Path) -> "datasets.Dataset":
    import datasets
    import pyarrow

    with pyarrow.ipc.open_file(path) as reader:
        return datasets.Dataset(datasets.table.InMemoryTable(reader.read_all()))


def _json_path(folder: Path, number: int) -> Path:
    return folder / f"rows-{number:05d}.jsonl"


def _arrow_path(folder: Path, number: int) -> Path:
    return folder / f"rows-{number:05d}.arrow"


# --- Reading files row by row -----------------------------------------------------------------------------------------


def table_rows(read_lines: LineReader, path: Path, kind: str, *, has_tags: bool) -> Iterator[Row]:
    """Yields the rows of a CSV, TSV or Excel file, with the rules of `tasks.data.read_file`.

    Args:
        read_lines: reads the file.
        path: what messages call it; for Excel the file itself.
        kind: one of `tables.KINDS`.
        has_tags: whether columns of words and tags are read as `tasks.tagged_tables` says.

    Raises:
        UserError: a row is not valid, or two columns have one name.
    """
    named_rows = tables.named_rows(path, tables.rows_of(path, kind, read_lines))
    first = next(named_rows, None)
    if first is None:
        return
    all_rows = chain([first], named_rows)
    if has_tags and is_tagged_table(list(first[1])):
        yield from tagged_table_rows(path, all_rows)
        return
    for _, row in all_rows:
        yield row


def json_line_rows(read_lines: LineReader, where: str) -> Iterator[Row] | None:
    """Returns the rows of JSON lines, or None if the file may be one JSON value, such as a list or SQuAD's form."""
    first = next((line for _, line in read_lines() if line.strip()), "")
    try:
        row = json.loads(first)
    except ValueError:
        return None
    if not isinstance(row, dict) or "data" in row:
        return None
    return (row for _, row in json_rows(read_lines(), Path(where)))


def tagged_rows(read_lines: LineReader, where: str) -> Iterator[Row]:
    """Yields the sentences of tagged text, with the columns of `tasks.tagged_text.TaggedSentence`.

    Raises:
        UserError: the columns cannot be told apart.
    """
    # Only all lines together tell which columns are words and tags.
    layout = find_layout(Path(where), read_lines)
    for sentence in tagged_sentences(Path(where), read_lines(), layout):
        yield {**sentence}
