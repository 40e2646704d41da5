"""Reads data: a user's file, data in memory or a dataset of the Hub enters, a `datasets.Dataset` leaves.

Data in memory is a data frame, a list of rows, a dict of columns or a dataset. Files are tables (CSV, TSV, Excel, JSON
lines, JSON, Parquet), SQuAD's JSON and tagged text. Everyday mistakes are reported here as a `UserError` of one line.
Line numbers are those of an editor; row numbers count from 1 and do not count the row of column names.

What is in the columns is read by `columns.py`.
"""

import json
import logging
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Union

from bert_repro.configs.base import hub_is_reachable, nearest
from bert_repro.errors import UserError, flag
from bert_repro.tasks.tagged_tables import tagged_table_rows
from bert_repro.tasks.tagged_text import read_tagged_text
from bert_repro.utils import tables
from bert_repro.utils.readers import first_line, format_of, json_rows, numbered_lines, quoted
from bert_repro.utils.tables import Lines
from bert_repro.utils.text_encodings import UTF_8

if TYPE_CHECKING:
    import datasets
    import pandas

logger = logging.getLogger("bert_repro")

Data: TypeAlias = Union[
    str, Path, "datasets.Dataset", "pandas.DataFrame", Sequence[Mapping[str, Any]], Mapping[str, Sequence[Any]]
]

SPLIT_ROWS: dict[tuple[str, str], int] = {}
"""The same as `bert_repro.tasks.SPLIT_ROWS`, which fills it."""
TABLES = ("csv", "tsv", "xlsx", "jsonl", "json", "parquet")
TAGGED_SUFFIXES = (".txt", ".conll", ".bio", ".iob", ".iob2")


# --- Data in memory ---------------------------------------------------------------------------------------------------


def as_dataset(data: Data, name: str) -> "datasets.Dataset":
    """Returns a data frame, a list of rows, a dict of columns, a dataset or the content of a file as a dataset.

    Args:
        data: the data; the suffix of a file says its format, see `read_file`.
        name: what messages call the data.

    Raises:
        UserError: there are no rows, or the rows cannot be made into columns of one type each.
    """
    import datasets

    if isinstance(data, str | Path):
        return read_file(Path(data), tagged=Path(data).suffix in TAGGED_SUFFIXES)
    if isinstance(data, datasets.DatasetDict | datasets.IterableDatasetDict):
        splits = ", ".join(map(str, data))
        first_split = next(iter(data), "train")
        raise UserError(
            f"{name} is a {type(data).__name__} with the splits {splits}. Pass one split, for example "
            f'data["{first_split}"].'
        )

    if isinstance(data, datasets.Dataset):
        dataset = _as_python_values(data)
    elif _is_pandas_frame(data):
        dataset = _from_frame(data, name)
    elif isinstance(data, Mapping):
        dataset = _from_columns(data, name)
    elif isinstance(data, Iterable):
        dataset = _from_rows(list(data), name)
    else:
        raise UserError(f"{name} is {quoted(data)}. Pass a list of rows, a data frame or a file.")

    if len(dataset) == 0:
        raise UserError(f"{name}: no rows. Pass at least one row.")
    return dataset


def _as_python_values(dataset: "datasets.Dataset") -> "datasets.Dataset":
    """Returns a dataset whose rows are Python values instead of tensors or arrays.

    `with_format("torch")` and the like change only how values are returned, so the format can be dropped. A transform
    changes the values themselves, so it is applied.
    """
    import datasets

    if dataset.format["type"] == "custom":
        return datasets.Dataset.from_dict(dataset[:])
    return dataset.with_format(None)


def _is_pandas_frame(data: object) -> bool:
    # A frame can only exist if pandas has been imported, so pandas need not be imported to find out.
    pandas_module = sys.modules.get("pandas")
    return pandas_module is not None and isinstance(data, pandas_module.DataFrame)


def _from_frame(frame: Any, name: str) -> "datasets.Dataset":
    """Returns a pandas frame as a dataset. The frame's index is not a column."""
    import datasets

    if not frame.columns.is_unique:
        duplicate = frame.columns[frame.columns.duplicated()][0]
        raise UserError(f"{name}: column {quoted(duplicate)} occurs twice. Give every column its own name.")
    for column, dtype in frame.dtypes.items():
        # Only columns of the type object can contain values of several types.
        if dtype.kind == "O":
            _require_one_type(frame[column], str(column), name)
    try:
        return datasets.Dataset.from_pandas(frame, preserve_index=False)
    except (ValueError, TypeError) as error:
        raise UserError(f"{name}: cannot be read as a table ({_reason(error)}). Give each column one type.") from None


def _from_rows(rows: Sequence[Any], name: str) -> "datasets.Dataset":
    """Returns rows (column -> value) as a dataset. A column that some rows lack is None there."""
    for row_number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping):
            example = "rows such as {'text': ..., 'label': ...}"
            # Only `bert_repro.predict` also accepts texts alone.
            if name == "data=":
                example = f"texts, or {example}"
            raise UserError(f"{name}, row {row_number} is {quoted(row)}, not a dict. Pass {example}.")
    if not rows:
        raise UserError(f"{name}: no rows. Pass at least one row.")

    # A dict keeps the order in which the columns first occur.
    names: dict[str, None] = {}
    for row in rows:
        names.update(dict.fromkeys(row))
    columns = {}
    for column in names:
        columns[column] = [row.get(column) for row in rows]
    return _from_columns(columns, name)


def _from_columns(columns: Mapping[str, Any], name: str) -> "datasets.Dataset":
    import datasets

    converted: dict[str, list[Any]] = {}
    for column, column_values in columns.items():
        # A text would be split into its characters.
        if isinstance(column_values, str | bytes) or not isinstance(column_values, Iterable):
            raise UserError(f"{name}: column {column!r} is {quoted(column_values)}. Pass a list with a value per row.")
        converted[column] = [_none_if_nan(value) for value in column_values]
        _require_one_type(converted[column], column, name)
    try:
        return datasets.Dataset.from_dict(converted)
    except (ValueError, TypeError) as error:
        raise UserError(
            f"{name}: the rows are not a table ({_reason(error)}). Give each column one type, and every row all "
            "columns."
        ) from None


def _none_if_nan(value: Any) -> Any:
    # Data that was in pandas has NaN where a text is missing.
    if isinstance(value, float) and math.isnan(value):
        return None
    return value


def _require_one_type(column_values: Iterable[Any], column: str, name: str) -> None:
    """Refuses a column that mixes texts, numbers, booleans, bytes or lists.

    pyarrow would convert some of these mixtures without a word, for example True to 1.0 and texts to bytes.
    """
    # Most columns have one type, which is found quickly.
    if len(set(map(type, column_values))) == 1:
        return
    first_row: dict[str, tuple[int, Any]] = {}
    for row_number, value in enumerate(column_values, 1):
        kind = _kind_of(value)
        if kind:
            first_row.setdefault(kind, (row_number, value))
    if len(first_row) > 1:
        (kind, (row, value)), (other_kind, (other_row, other_value)) = list(first_row.items())[:2]
        raise UserError(
            f"{name}: column {column!r} mixes {kind} and {other_kind}: row {row} is {quoted(value)}, row {other_row} "
            f"is {quoted(other_value)}. Give all rows one type, for example texts."
        )


def _kind_of(value: Any) -> str:
    """Returns the kind of a value for messages; empty for a missing value and for kinds that pyarrow checks itself."""
    # NumPy's types are subclasses or have the same names: str_, bytes_, bool, int64, float32.
    type_name = type(value).__name__.rstrip("_0123456789")
    if type_name == "float" and value != value:
        return ""
    kinds = {"str": "texts", "bytes": "bytes", "bool": "booleans", "list": "lists"}
    return kinds.get(type_name, "numbers" if type_name in ("int", "uint", "float") else "")


def _reason(error: Exception) -> str:
    # pyarrow's errors about a frame have the reason and the column as two arguments.
    return " ".join(map(str, error.args)) or type(error).__name__


# --- Files ------------------------------------------------------------------------------------------------------------


def read_file(
    path: Path,
    *,
    tagged: bool = False,
    lines: Lines | None = None,
    kind: str | None = None,
    encoding: str = UTF_8,
) -> "datasets.Dataset":
    """Reads a table (.csv, .tsv, .xlsx), JSON lines, JSON, Parquet or tagged text.

    Files of text may be compressed (.gz, .xz).

    Args:
        path: the file; its suffix says the format.
        tagged: the rows are tagged sentences. Other files than .jsonl, .json, .parquet and tables are tagged text
            (`read_tagged_text`); a .tsv too, because most tagged text has tabs.
        lines: the content, if it does not come from the file (standard input); for TSV it is read twice.
        kind: the format, instead of the suffix.
        encoding: encoding of a file of text.

    Raises:
        UserError: the file is missing, empty, damaged, of another format or encoding, or has a bad row.
    """
    kind = kind or format_of(path)
    if lines is None and not path.is_file():
        raise UserError(f"{path}: no such file; {nearest(path) or 'check the path'}")
    if kind == "parquet":
        return _read_parquet(path)

    def read_lines() -> Lines:
        return numbered_lines(path, encoding) if lines is None else lines

    if kind in ("jsonl", "json"):
        return _read_json(path, list(read_lines()))
    is_table = kind in tables.KINDS
    if tagged and (kind == "tsv" or not is_table):
        return read_tagged_text(path, read_lines())
    if not is_table:
        raise UserError(
            f"{path}: unknown format. Use a .csv, .tsv, .xlsx, .jsonl, .json or .parquet file.{_hint_for(kind)}"
        )

    rows = tables.rows_of(path, kind, read_lines)
    if tagged:
        return _from_rows(list(tagged_table_rows(path, tables.named_rows(path, rows))), str(path))
    return _table(path, rows)


def _hint_for(kind: str) -> str:
    """Returns what to do about a spreadsheet of another format."""
    if kind in ("xls", "xlsm", "xlsb", "ods", "numbers"):
        return " Save the sheet as .xlsx or CSV."
    return ""


def read_glue(
    path: Path, columns: Sequence[str], *, header: Sequence[str] | None = None, drop_incomplete_rows: bool = False
) -> "datasets.Dataset":
    """Reads columns of one of GLUE's official files, in which quotes have no meaning and every row is one line.

    Args:
        path: the file; empty lines at its end are ignored.
        columns: the columns to read. Those that the file does not have are ignored.
        header: names of all columns of the file, if its first line is already a row.
        drop_incomplete_rows: drop rows with too few fields, and log how many, instead of refusing the file.
    """
    rows = tables.tsv_rows(numbered_lines(path))
    return _table(path, rows, header=header, columns=columns, drop_incomplete_rows=drop_incomplete_rows)


def _read_parquet(path: Path) -> "datasets.Dataset":
    import datasets
    from pyarrow import ArrowException
    from pyarrow.parquet import read_metadata

    try:
        # The library for datasets has no clear errors for a file without rows or with a damaged end.
        num_rows = read_metadata(path).num_rows
        if num_rows > 0:
            return datasets.Dataset.from_parquet(str(path))
    except (ArrowException, OSError, datasets.exceptions.DatasetsError) as error:
        reason = first_line(error.__cause__ or error)
        raise UserError(f"{path} is not a valid Parquet file ({reason}). Download or write the file again.") from None
    raise UserError(f"{path}: no rows. Use a file with at least one row.")


def _table(
    path: Path,
    rows: tables.Rows,
    *,
    header: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    drop_incomplete_rows: bool = False,
) -> "datasets.Dataset":
    """Makes a dataset of texts from rows of fields.

    Args:
        path: the file, for messages.
        rows: the rows. The first one contains the column names, unless `header` is given.
        header: the column names.
        columns: the columns to keep; None: all.
        drop_incomplete_rows: drop rows with too few fields, and log how many.
    """
    import datasets

    rows = iter(rows)
    if header is None:
        _, header = next(rows, (0, []))
    names = list(header)
    tables.require_unique_names(path, names)
    kept_columns: dict[str, list[str]] = {name: [] for name in names if columns is None or name in columns}
    places = [(column, names.index(name)) for name, column in kept_columns.items()]
    for _, fields in tables.complete_rows(path, rows, len(names), drop_incomplete=drop_incomplete_rows):
        for column, place in places:
            column.append(fields[place])
    return datasets.Dataset.from_dict(kept_columns)


def _read_json(path: Path, lines: list[tuple[int, str]]) -> "datasets.Dataset":
    """Reads SQuAD's form, a list of objects, or one object per line."""
    try:
        content = json.loads("\n".join(line for _, line in lines))
    except (ValueError, RecursionError):
        # It is not one JSON value, so it must have an object on each line. If not, `json_rows` says in which line.
        content = None
    if isinstance(content, dict) and "data" in content:
        return _squad_rows(path, content)
    if isinstance(content, list):
        return _from_rows(content, str(path))
    return _from_rows([row for _, row in json_rows(lines, path)], str(path))


def _squad_rows(path: Path, content: Mapping[str, Any]) -> "datasets.Dataset":
    """Returns the questions of a file in SQuAD's form (data, paragraphs, context, qas), one row each."""
    rows: list[dict[str, Any]] = []
    try:
        for article in content["data"]:
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"]:
                    row = {"id": question["id"], "question": question["question"], "context": paragraph["context"]}
                    for optional in ("answers", "is_impossible"):
                        if optional in question:
                            row[optional] = question[optional]
                    rows.append(row)
    except (KeyError, TypeError) as error:
        raise UserError(
            f"{path} does not have the structure of SQuAD's files (data, paragraphs, context, qas): {error!r} in "
            f"question {len(rows) + 1}."
        ) from None
    return _from_rows(rows, str(path))


# --- The Hub ----------------------------------------------------------------------------------------------------------


def from_hub(
    dataset_id: str, splits: Sequence[str], *, name: str | None = None, revision: str | None = None
) -> "dict[str, datasets.Dataset]":
    """Reads splits of a dataset on the Hub. Splits that it does not have are left out.

    Args:
        dataset_id: id on the Hub.
        splits: names of the splits.
        name: the configuration of the dataset.
        revision: branch or commit.

    Raises:
        UserError: the dataset cannot be read, or has none of the splits.
    """
    import datasets

    title = f"{dataset_id} ({name})" if name else dataset_id
    # Without a connection the library would retry for minutes. In offline mode it uses its cache.
    if not hub_is_reachable():
        datasets.config.HF_HUB_OFFLINE = True
    try:
        published = datasets.load_dataset(dataset_id, name, revision=revision)
    except (OSError, RuntimeError, ValueError, StopIteration, datasets.exceptions.DatasetsError) as error:
        reason = first_line(error.__cause__ or error)
        raise UserError(
            f"{title} cannot be read from the Hub: {reason}. Check the connection, or pass the official files with "
            f"{flag('data_dir')}.",
            setting="data_dir",
        ) from error
    present = {split: published[split] for split in splits if split in published}
    if not present:
        raise UserError(
            f"{title} has no split {' or '.join(splits)}. Pass the official files with {flag('data_dir')}.",
            setting="data_dir",
        )
    return present
