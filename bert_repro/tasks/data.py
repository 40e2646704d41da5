"""The edge where data enters: whatever a user has becomes a `datasets.Dataset` here, once.

A CSV, TSV or JSON lines file, SQuAD's JSON, tagged text, a data frame, a list of rows, a dict of columns, a dataset of
the Hub. Everyday mistakes are refused here as a `UserError` of one line; line numbers are those of an editor, row
numbers count from 1 without the row of names.
"""

import csv
import json
import logging
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, Union, cast

import numpy as np
import numpy.typing as npt

from bert_repro.configs.base import hub_is_reachable, nearest, require
from bert_repro.errors import UserError
from bert_repro.tasks.tagged_text import read_tagged_text
from bert_repro.utils.randomness import Stream, draw
from bert_repro.utils.readers import first_line, format_of, json_rows, listed, numbered_lines, shown

if TYPE_CHECKING:
    import datasets
    import pandas

    from bert_repro.configs import CustomDataConfig

logger = logging.getLogger("bert_repro")

Data: TypeAlias = Union[
    str, Path, "datasets.Dataset", "pandas.DataFrame", Sequence[Mapping[str, Any]], Mapping[str, Sequence[Any]]
]
Lines: TypeAlias = Iterable[tuple[int, str]]
"""Numbers and texts of lines, without line ends."""
T = TypeVar("T")

TABLES = ("csv", "tsv", "jsonl", "json", "parquet")
TAGGED_SUFFIXES = (".txt", ".conll", ".bio", ".iob", ".iob2")
_QUOTED = re.compile(r'"([^"]|"")*"')


def as_dataset(data: Data, name: str) -> "datasets.Dataset":
    """Returns a data frame, a list of rows, a dict of columns, a dataset or the content of a file as a dataset.

    Args:
        data: the data; the ending of a file says its format, see `read_file`.
        name: what messages call it.

    Raises:
        UserError: there are no rows, or they cannot be columns.
    """
    import datasets

    if isinstance(data, str | Path):
        return read_file(Path(data), tagged=Path(data).suffix in TAGGED_SUFFIXES)
    if isinstance(data, datasets.DatasetDict):
        raise UserError(f"{name}: is a DatasetDict of {', '.join(data)}; give one split of it")
    if isinstance(data, datasets.Dataset):
        dataset = data
    elif hasattr(data, "to_dict") and hasattr(data, "columns"):
        dataset = datasets.Dataset.from_pandas(data, preserve_index=False)
    elif isinstance(data, Mapping):
        dataset = _from_columns(dict(data), name)
    else:
        require(isinstance(data, Iterable), f"{name}: is {shown(data)}; give a list of rows, a data frame or a file")
        dataset = _from_rows(list(data), name)
    require(len(dataset) > 0, f"{name}: no rows; give at least one")
    return dataset


def _from_rows(rows: Sequence[Any], name: str) -> "datasets.Dataset":
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping):
            fix = f"give {'texts, or ' if name == 'data=' else ''}rows such as {{'text': ..., 'label': ...}}"
            raise UserError(f"{name}, row {number}: is {shown(row)}, not a dict; {fix}")
    require(len(rows) > 0, f"{name}: no rows; give at least one")
    names = dict.fromkeys(column for row in rows for column in row)
    return _from_columns({column: [row.get(column) for row in rows] for column in names}, name)


def _from_columns(columns: dict[str, Any], name: str) -> "datasets.Dataset":
    import datasets

    def known(value: Any) -> Any:  # pandas has NaN where a text is missing
        return None if isinstance(value, float) and math.isnan(value) else value

    try:
        return datasets.Dataset.from_dict({name: list(map(known, column)) for name, column in columns.items()})
    except (ValueError, TypeError) as error:  # pyarrow's, of lengths and of types
        raise UserError(
            f"{name}: the rows are no table ({error}); give each column one type and every row all of them"
        ) from None


# --- Files ------------------------------------------------------------------------------------------------------------


def read_file(
    path: Path, *, tagged: bool = False, lines: Lines | None = None, kind: str | None = None
) -> "datasets.Dataset":
    """Reads a .csv, .tsv, .jsonl, .json, .parquet file or tagged text; all but Parquet may be compressed (.gz, .xz).

    Args:
        path: the file; its ending says the format.
        tagged: what is not .jsonl, .json or .parquet is tagged text (`read_tagged_text`).
        lines: the content, where it is not in the file.
        kind: the format, in place of the ending.

    Raises:
        UserError: the file is missing, empty, of another format, not UTF-8, or has a bad row.
    """
    import datasets

    kind = kind or format_of(path)
    require(lines is not None or path.is_file(), f"{path}: no such file; {nearest(path) or 'check the path'}")
    lines = numbered_lines(path) if lines is None else lines
    if kind == "parquet":
        return datasets.Dataset.from_parquet(str(path))
    if kind in ("jsonl", "json"):
        return _read_json(path, list(lines))
    if tagged and kind == "csv":
        raise UserError(f"{path}: tagged words are no CSV; write a word and its tag on each line of a .txt")
    if tagged:
        return read_tagged_text(path, lines)
    if kind == "csv":
        return _table(path, _csv_rows(path, lines))
    if kind == "tsv":
        found = list(lines)
        begun = [field for _, line in found for field in line.split("\t") if field.startswith('"')]
        # pandas and spreadsheets double the quotes in a text and put it into quotes.
        are_quoted = all(map(_QUOTED.fullmatch, begun)) and any('""' in field[1:-1] for field in begun)
        return _table(path, _csv_rows(path, found, "\t") if are_quoted else _tsv_rows(found))
    raise UserError(f"{path}: unknown format; name a .csv, .tsv, .jsonl, .json or .parquet file")


def read_glue(
    path: Path, kept: Sequence[str], *, header: Sequence[str] | None = None, drop_incomplete_rows: bool = False
) -> "datasets.Dataset":
    """Reads columns of an official file of GLUE: quotes have no meaning, a row is a line.

    Args:
        path: the file; empty lines at its end are ignored.
        kept: columns to keep, where they are there.
        header: names of all columns, for a file whose first line is a row already.
        drop_incomplete_rows: drop rows with too few fields, and log how many, instead of refusing the file.
    """
    rows = _tsv_rows(numbered_lines(path))
    return _table(path, rows, header=header, kept=kept, drop_incomplete_rows=drop_incomplete_rows)


def _csv_rows(path: Path, lines: Lines, delimiter: str = "") -> Iterator[tuple[int, list[str]]]:
    """Yields the first line of each row and its fields (RFC 4180); one that is empty has none.

    Unless they are said, columns are separated by commas or, where the first line has none, by semicolons or tabs.
    """
    csv.field_size_limit(sys.maxsize)  # the default refuses long texts
    texts = [text + "\n" for _, text in lines]
    first = texts[0] if texts else ""
    delimiter = delimiter or next((one for one in ",;\t" if one in first), ",")
    rows, start = csv.reader(texts, strict=True, delimiter=delimiter), 1
    try:
        for fields in rows:
            yield start, fields
            start = rows.line_num + 1
    except csv.Error as error:
        raise UserError(f"{path}, line {start}: {error}; quote texts as CSV does") from None


def _tsv_rows(lines: Lines) -> Iterator[tuple[int, list[str]]]:
    return ((number, line.split("\t") if line else []) for number, line in lines)


def _table(
    path: Path,
    rows: Iterable[tuple[int, list[str]]],
    *,
    header: Sequence[str] | None = None,
    kept: Sequence[str] | None = None,
    drop_incomplete_rows: bool = False,
) -> "datasets.Dataset":
    """Makes a dataset of numbered rows of fields, the first of which names the columns unless `header` does.

    A line that is empty is an empty text where there is one column; where there are more, it may only end the file.
    """
    import datasets

    rows = iter(rows)
    names = list(header or next(rows, (0, []))[1])
    if twice := next((name for name in names if name.strip() and names.count(name) > 1), None):
        raise UserError(f"{path}: column {shown(twice)} occurs twice; give every column a name of its own")
    columns: dict[str, list[str]] = {name: [] for name in names if kept is None or name in kept}
    places = [(column, names.index(name)) for name, column in columns.items()]
    count, dropped, empty_line = 0, 0, 0
    for number, fields in rows:
        if not fields and len(names) > 1:
            empty_line = empty_line or number
            continue
        if drop_incomplete_rows and len(fields) < len(names):
            dropped += 1
            continue
        if empty_line and not drop_incomplete_rows:
            raise UserError(f"{path}, line {empty_line}: is empty; remove it, or give it all {len(names)} columns")
        fields = fields or [""]
        if len(fields) != len(names):
            raise UserError(
                f"{path}, line {number}: {len(fields)} columns, expected {len(names)}; give every row all columns; a "
                "separator inside a text needs quotes in a .csv and must not be in a .tsv"
            )
        count += 1
        for column, place in places:
            column.append(fields[place])
    if dropped:
        logger.warning("%s: dropped %d rows with missing fields, kept %d", path, dropped, count)
    require(count > 0, f"{path}: no rows; name a file with at least one")
    return datasets.Dataset.from_dict(columns)


def _read_json(path: Path, lines: list[tuple[int, str]]) -> "datasets.Dataset":
    """Reads one object per line, SQuAD's form, or a list of objects."""
    try:
        content = json.loads("\n".join(line for _, line in lines))
    except (ValueError, RecursionError):
        content = None  # it has an object on each line, or the reader of lines says what is wrong
    if isinstance(content, dict) and "data" in content:
        return _squad_rows(path, content)
    if isinstance(content, list):
        return _from_rows(content, str(path))
    return _from_rows([row for _, row in json_rows(lines, path)], str(path))


def _squad_rows(path: Path, content: Mapping[str, Any]) -> "datasets.Dataset":
    """Returns the questions of a file in SQuAD's form: data, paragraphs, context, qas."""
    rows = []
    try:
        for article in content["data"]:
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"]:
                    row = {"id": question["id"], "question": question["question"], "context": paragraph["context"]}
                    if "answers" in question:
                        row["answers"] = question["answers"]
                    if "is_impossible" in question:
                        row["is_impossible"] = question["is_impossible"]
                    rows.append(row)
    except (KeyError, TypeError) as error:
        where = f"{error!r} in question {len(rows) + 1}"
        raise UserError(f"{path}: is not as SQuAD's files are: data, paragraphs, context, qas ({where})") from None
    return _from_rows(rows, str(path))


def from_hub(
    dataset_id: str, splits: Sequence[str], *, name: str | None = None, revision: str | None = None
) -> "dict[str, datasets.Dataset]":
    """Reads splits of a dataset of the Hub; those that it has.

    Raises:
        UserError: it cannot be read, or has none of the splits.
    """
    import datasets

    title = f"{dataset_id} ({name})" if name else dataset_id
    if not hub_is_reachable():
        datasets.config.HF_HUB_OFFLINE = True
    try:
        published = datasets.load_dataset(dataset_id, name, revision=revision)
    except (OSError, RuntimeError, ValueError, StopIteration, datasets.exceptions.DatasetsError) as error:
        raise UserError(
            f"{title} cannot be read from the Hub: {first_line(error.__cause__ or error)}; check the connection, or "
            "give the official files with --data_dir"
        ) from error
    found = {split: published[split] for split in splits if split in published}
    require(found, f"{title} has no split {' or '.join(splits)}; give the official files with --data_dir")
    return found


# --- Columns ----------------------------------------------------------------------------------------------------------


def require_columns(dataset: "datasets.Dataset", names: Sequence[str], where: str, fix: str = "") -> None:
    """Raises `UserError` for a column that is not there, with those that are."""
    for name in names:
        if name not in dataset.column_names:
            found = listed(dataset.column_names) or "none"
            raise UserError(f"{where}: no column {name!r}; found {found}{fix and f'; {fix}'}")


def texts(dataset: "datasets.Dataset", name: str, where: str, missing: str | None = None) -> list[str]:
    """Returns a column of texts, `missing` where a row has none.

    Raises:
        UserError: the column is not there, or a row has something else in it, or nothing and `missing` is None.
    """
    found = [missing if value is None else value for value in values(dataset, name, where)]
    for row, value in enumerate(found, 1):
        if not isinstance(value, str):
            raise UserError(f"{where}, row {row}: column {name!r} is {shown(value)}; it must be a text")
    return cast(list[str], found)


def values(dataset: "datasets.Dataset", name: str, where: str) -> list[Any]:
    """Returns a column as texts: numbers as JSON spells them, class labels by name; lists of them, and None for what is
    missing, stay such."""
    require_columns(dataset, [name], where)
    feature = dataset.features[name]
    class_names = getattr(feature, "names", getattr(getattr(feature, "feature", None), "names", None))

    def as_text(value: Any) -> Any:
        if isinstance(value, list):
            return [as_text(item) for item in value]
        if value is None or isinstance(value, str) or (isinstance(value, float) and math.isnan(value)):
            return value if isinstance(value, str) else None
        if class_names is not None:
            return class_names[value] if value >= 0 else None
        value = int(value) if isinstance(value, float) and value.is_integer() else value
        return json.dumps(value) if isinstance(value, bool | int | float) else value

    return [as_text(value) for value in dataset[name]]


def parsed(found: Sequence[Any], name: str, where: str, parse: Callable[[Any], T]) -> list[T]:
    """Returns the values of a column, each made of its text.

    Args:
        found: the texts.
        name: of the column, for messages.
        where: the data, for messages.
        parse: raises `ValueError` for a text that it does not take.

    Raises:
        UserError: it does not take one; with row and column.
    """
    made = []
    for row, text in enumerate(found, 1):
        try:
            made.append(parse(text))
        except ValueError as error:
            raise UserError(f"{where}, row {row}: column {name!r}: {error}") from None
    return made


def number(text: Any) -> float:
    """Reads a number that a person would write: no NaN, no infinity, no underscores; raises `ValueError`."""
    try:
        found = math.nan if "_" in str(text) else float(text)
    except (TypeError, ValueError):
        found = math.nan
    if not math.isfinite(found):
        raise ValueError(f"{shown(text)} is not a number")
    return found


# --- Held-out rows ----------------------------------------------------------------------------------------------------


def hold_out(
    data: "dict[str, datasets.Dataset]",
    config: "CustomDataConfig",
    *,
    together: Sequence[str],
    strata: str = "",
) -> "dict[str, datasets.Dataset]":
    """Moves `validation_fraction` of the training rows into the split `validation`, where that is given.

    Args:
        data: the splits.
        config: the fraction and the seed.
        together: columns; rows that are equal there are held out all or none, by the stratum of the first.
        strata: column; of the rows of each of its values the fraction is held out.

    Raises:
        UserError: one of the splits would be empty.
    """
    if config.validation_fraction is None:
        return data
    import pandas

    train = data["train"]
    rows = map(str, zip(*(train[name][:] for name in together), strict=True))
    groups, _ = pandas.factorize(np.array(list(rows), dtype=object))  # an array of texts has the longest one's width
    firsts = train.select(np.unique(groups, return_index=True)[1])
    values = list(map(str, firsts[strata])) if strata else [""] * len(firsts)
    held = held_out_rows(values, config.validation_fraction, config.seed)[groups]
    fault = f"--validation_fraction {config.validation_fraction}: leaves no row for one of the splits"
    require(held.any() and not held.all(), fault)
    return data | {"train": train.select(np.flatnonzero(~held)), "validation": train.select(np.flatnonzero(held))}


def held_out_rows(strata: Sequence[str], fraction: float, seed: int) -> npt.NDArray[np.bool_]:
    """Draws rows to hold out, of each stratum in proportion (to within one row).

    Args:
        strata: a value for each row; rows of equal values are a stratum.
        fraction: share of the rows.
        seed: another seed draws other rows.

    Returns:
        Whether each row is held out, (N,).
    """
    import pandas

    groups, _ = pandas.factorize(np.array(strata, dtype=object))
    order = np.lexsort((draw(seed, Stream.HELDOUT_ROWS, np.arange(len(groups))), groups))
    steps = np.floor(np.arange(len(groups) + 1) * fraction + 0.5)
    held = np.zeros(len(groups), dtype=bool)
    held[order] = np.diff(steps) > 0
    return held


def short_row(dataset: "datasets.Dataset | None", columns: Mapping[str, str]) -> dict[str, Any] | None:
    """Returns a row of median length among a split's first rows without empty or long texts, for the card.

    Args:
        dataset: the split, if there is one.
        columns: name in the example -> column.
    """
    fitting = []
    for row in () if dataset is None else dataset.select(range(min(len(dataset), 200))):
        found = {name: " ".join(str(row[column]).split()) for name, column in columns.items()}
        if all(0 < len(text) <= 300 for text in found.values()):
            fitting.append(found)
    fitting.sort(key=lambda found: sum(map(len, found.values())))
    return fitting[len(fitting) // 2] if fitting else None


# --- Sizes ------------------------------------------------------------------------------------------------------------

XNLI_LANGUAGES = ("ar", "bg", "de", "el", "en", "es", "fr", "hi", "ru", "sw", "th", "tr", "ur", "vi", "zh")
_ROWS: Mapping[str, Mapping[str, int]] = {
    "cola": {"train": 8_551, "validation": 1_043, "test": 1_063},
    "sst2": {"train": 67_349, "validation": 872, "test": 1_821},
    "mrpc": {"train": 3_668, "validation": 408, "test": 1_725},
    "stsb": {"train": 5_749, "validation": 1_500, "test": 1_379},
    # As on the Hub: rows of the TSV files that lack a question or label are gone.
    "qqp": {"train": 363_846, "validation": 40_430, "test": 390_965},
    "mnli": {
        "train": 392_702, "validation_matched": 9_815, "validation_mismatched": 9_832,
        "test_matched": 9_796, "test_mismatched": 9_847,
    },
    "qnli": {"train": 104_743, "validation": 5_463, "test": 5_463},
    "rte": {"train": 2_490, "validation": 277, "test": 3_000},
    "wnli": {"train": 635, "validation": 71, "test": 146},
    "ax": {"test": 1_104},
    "squad": {"train": 87_599, "validation": 10_570},
    "squad_v2": {"train": 130_319, "validation": 11_873},
    "swag": {"train": 73_546, "validation": 20_006, "test": 20_005},
    "conll2003": {"train": 14_041, "validation": 3_250, "test": 3_453},
    "boolq": {"train": 9_427, "validation": 3_270, "test": 3_245},
    "cb": {"train": 250, "validation": 56, "test": 250},
    "copa": {"train": 400, "validation": 100, "test": 500},
    "wic": {"train": 5_428, "validation": 638, "test": 1_400},
    "paws": {"train": 49_401, "validation": 8_000, "test": 8_000},
    "hans": {"validation": 30_000},
    "anli_r1": {"train_r1": 16_946, "dev_r1": 1_000, "test_r1": 1_000},
    "anli_r2": {"train_r2": 45_460, "dev_r2": 1_000, "test_r2": 1_000},
    "anli_r3": {"train_r3": 100_459, "dev_r3": 1_200, "test_r3": 1_200},
    **{f"xnli_{name}": {"train": 392_702, "validation": 2_490, "test": 5_010} for name in XNLI_LANGUAGES},
}  # fmt: skip
SPLIT_ROWS = {(task, split): rows for task, splits in _ROWS.items() for split, rows in splits.items()}
"""Rows (SQuAD: questions, CoNLL-2003: sentences) of the published splits; a score over fewer is not the split's.
SQuAD's test sets were never published."""
