"""Writes records: as CSV, TSV, JSON lines, Parquet, Excel, or tagged text.

A part has the form of the output file, without the row of column names. So joining parts is copying their bytes; only
Parquet is read and written again, and the parts of an Excel file are JSON lines.
"""

import csv
import io
import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

from bert_repro.tasks.tagged_text import TAG_COLUMNS, WORD_COLUMNS, join_written_text, write_tagged_text
from bert_repro.utils.spreadsheets import write_sheet

Record = dict[str, Any]

_DELIMITERS = {".csv": ",", ".tsv": "\t"}


_FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r")
"""A spreadsheet runs a cell that begins with one of these, even if it was written by a stranger."""


def write_records(batches: Iterable[Sequence[Record]], path: Path, suffix: str) -> None:
    """Writes records to one file, batch by batch.

    Args:
        batches: at least one record; all records have the same names.
        path: the file.
        suffix: the form: .csv, .tsv, .jsonl, .parquet or .xlsx.
    """
    batches = iter(batches)
    first = next(batches)
    columns = list(first[0])
    all_batches = chain([first], batches)
    if suffix == ".xlsx":
        flat_records = map(_flat, chain.from_iterable(all_batches))
        write_sheet(path, columns, (list(record.values()) for record in flat_records))
    elif suffix == ".parquet":
        _write_parquet(all_batches, path)
    else:
        with path.open("w", encoding="utf-8", newline="") as file:
            file.write(header(columns, suffix))
            for batch in all_batches:
                _write_rows(batch, file, suffix, escape_formulas=False)


def _write_parquet(batches: Iterable[Sequence[Record]], path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    tables = map(pyarrow.Table.from_pylist, map(list, batches))
    first = next(tables)
    with parquet.ParquetWriter(path, first.schema) as writer:
        writer.write_table(first)
        for table in tables:
            writer.write_table(table.cast(first.schema))


def part_suffix(suffix: str) -> str:
    """Returns the suffix of the parts of a file with this suffix."""
    # An Excel file is a zip archive, which can only be written as a whole.
    return ".jsonl" if suffix == ".xlsx" else suffix


def write_part(records: Sequence[Record], path: Path, *, escape_formulas: bool = False) -> None:
    """Writes records in the form that the suffix of the path names.

    Args:
        records: the records of a part.
        path: the file.
        escape_formulas: whether CSV and TSV get an apostrophe before texts that a spreadsheet would run.
    """
    if path.suffix == ".parquet":
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist(list(records)), path)
        return
    with path.open("w", encoding="utf-8", newline="") as file:
        _write_rows(records, file, path.suffix, escape_formulas=escape_formulas)


def _write_rows(records: Sequence[Record], file: TextIO, suffix: str, *, escape_formulas: bool) -> None:
    """Writes records to a file of text, without the row of column names."""
    if suffix == ".jsonl":
        for record in records:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
        return
    if suffix == ".conll":
        _write_tagged(records, file)
        return
    writer = csv.DictWriter(file, list(records[0]), lineterminator="\n", delimiter=_DELIMITERS[suffix])
    for record in records:
        row = _flat(record)
        if escape_formulas:
            row = {name: _without_formula(value) for name, value in row.items()}
        writer.writerow(row)


def _flat(record: Record) -> Record:
    """Returns a record for a row of a table: a list becomes one text."""
    separator = " " if "words" in record else "|"
    flat: Record = {}
    for name, value in record.items():
        # The right answers to a question have texts and positions.
        if name == "answers":
            flat[name] = json.dumps(value, ensure_ascii=False)
        elif isinstance(value, list):
            flat[name] = separator.join(map(str, value))
        else:
            flat[name] = value
    return flat


def _without_formula(value: object) -> object:
    """Returns a cell that no spreadsheet runs: a text that begins like a formula gets an apostrophe, numbers do not."""
    if not isinstance(value, str) or not value.startswith(_FORMULA_SIGNS):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def _write_tagged(records: Sequence[Record], file: TextIO) -> None:
    """Writes a word per line, its right tag if there is one, and its predicted tag, as conlleval reads it."""
    names = (*WORD_COLUMNS, *TAG_COLUMNS, "prediction")
    columns = [name for name in names if name in records[0]]
    sentences = []
    for record in records:
        sentences.append([record[name] for name in columns])
    write_tagged_text(file, sentences)


def header(columns: Sequence[str], suffix: str) -> str:
    """Returns the row of column names with which a table begins; empty for other forms."""
    if suffix not in _DELIMITERS:
        return ""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n", delimiter=_DELIMITERS[suffix]).writerow(columns)
    return text.getvalue()


def join_parts(parts: Sequence[Path], columns: Sequence[str], target: Path, *, suffix: str) -> None:
    """Writes the output file from its parts.

    Args:
        parts: files from `write_part`, in order.
        columns: the names of the columns.
        target: the file to write.
        suffix: the suffix of the output file.
    """
    if suffix == ".xlsx":
        write_sheet(target, columns, _sheet_rows(parts, columns))
        return
    if suffix == ".parquet":
        _join_parquet(parts, target)
        return
    if suffix == ".conll":
        join_written_text(parts, target)
        return
    with target.open("wb") as file:
        file.write(header(columns, suffix).encode())
        for part in parts:
            with part.open("rb") as source:
                shutil.copyfileobj(source, file)


def _join_parquet(parts: Sequence[Path], target: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    # A column that is empty in one part has no type there.
    schemas = [parquet.read_schema(part) for part in parts]
    schema = pyarrow.unify_schemas(schemas, promote_options="permissive")
    with parquet.ParquetWriter(target, schema) as writer:
        for table in map(parquet.read_table, parts):
            writer.write_table(table.select(schema.names).cast(schema))


def _sheet_rows(parts: Sequence[Path], columns: Sequence[str]) -> Iterator[list[Any]]:
    for part in parts:
        for line in lines_of(part):
            record = _flat(json.loads(line))
            yield [record[column] for column in columns]


def lines_of(part: Path) -> Iterator[str]:
    """Yields the lines of a part, with their line ends."""
    with part.open(encoding="utf-8", newline="") as file:
        yield from file
