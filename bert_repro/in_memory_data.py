"""Data of a notebook (datasets, data frames, lists) as the files that the recipes read."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, Union

from bert_repro.errors import UserError
from bert_repro.utils.files import write_text
from bert_repro.utils.readers import numbered_lines, parse_json

if TYPE_CHECKING:
    import datasets
    import pandas

Row: TypeAlias = Mapping[str, Any]
Data: TypeAlias = Union[str, Path, "datasets.Dataset", "pandas.DataFrame", Sequence[Row], Mapping[str, Sequence[Any]]]
Family = Literal["texts", "tags", "questions"]

_WORDS = ("tokens", "words")
_TAGS = ("tags", "ner_tags", "labels")


def family_of(data: Data) -> Family:
    """Returns what kind of task data is for, by its columns or, of a file, by its name."""
    if isinstance(data, str | Path):
        path = Path(data)
        if path.suffix in (".txt", ".conll", ".bio"):
            return "tags"
        about_passages = path.suffix == ".json" or {"question", "context"} <= _columns_of(path)
        return "questions" if about_passages else "texts"
    columns = next(_rows(data)).keys()
    if {"question", "context"} <= columns:
        return "questions"
    return "tags" if columns & set(_WORDS) and columns & set(_TAGS) else "texts"


def _columns_of(path: Path) -> set[str]:
    """Returns the names of the columns of a table, from its first line; none where it cannot be read as one."""
    try:
        first = next((line for _, line in numbered_lines(path)), "")
    except UserError:
        return set()  # whoever reads the file says what is wrong with it
    if path.suffix in (".jsonl", ".json"):
        try:
            row = parse_json(first, str(path), "")
        except UserError:
            return set()
        return set(row) if isinstance(row, dict) else set()
    delimiters = "\t" if path.suffix == ".tsv" else ",;\t"
    return {name.strip('" ') for delimiter in delimiters for name in first.split(delimiter)}


def write_split(data: Data, family: Family, folder: Path, split: str) -> Path:
    """Writes data as a file that the recipes read; a path stays as it is.

    Returns:
        The file.

    Raises:
        UserError: there are no rows, or rows without the columns that the task needs.
    """
    if isinstance(data, str | Path):
        return Path(data)
    folder.mkdir(parents=True, exist_ok=True)
    rows = list(_rows(data))
    if family == "texts":
        path, text = folder / f"{split}.jsonl", "".join(json.dumps(_plain(row)) + "\n" for row in rows)
    elif family == "tags":
        path, text = folder / f"{split}.txt", "\n".join(_tagged(row, number) for number, row in enumerate(rows, 1))
    else:
        path, text = folder / f"{split}.json", json.dumps({"version": "bert_repro", "data": _articles(rows)})
    write_text(path, text)
    return path


def _rows(data: Any) -> Iterator[Row]:
    """Yields the rows of a dataset, a data frame, a list of rows or a dict of columns; class labels by name."""
    if hasattr(data, "to_dict") and hasattr(data, "columns"):
        rows = data.to_dict("records")
    elif hasattr(data, "features"):
        names = {
            name: (feature if hasattr(feature, "int2str") else getattr(feature, "feature", None))
            for name, feature in data.features.items()
        }
        rows = ({name: _named(value, names[name]) for name, value in row.items()} for row in data)
    elif isinstance(data, Mapping):
        rows = (dict(zip(data, values, strict=True)) for values in zip(*data.values(), strict=True))
    else:
        rows = data
    empty = True
    for row in rows:
        if not isinstance(row, Mapping):
            raise UserError(
                f"a row is {type(row).__name__}, not a dict; give rows such as {{'text': ..., 'label': ...}}"
            )
        empty = False
        yield row
    if empty:
        raise UserError("the data has no rows")


def _named(value: Any, feature: Any) -> Any:
    """Returns a class label by its name; -1, the Hub's sign for no label, as it is."""
    if not hasattr(feature, "int2str"):
        return value
    if isinstance(value, list):
        return [feature.int2str(element) for element in value]
    return feature.int2str(value) if value is not None and value >= 0 else value


def _plain(row: Row) -> dict[str, Any]:
    """Returns a row for JSON: numpy's numbers as Python's, without fields that are empty."""
    plain = {str(name): value.item() if hasattr(value, "item") else value for name, value in row.items()}
    return {name: value for name, value in plain.items() if value is not None and value == value}  # nan is not itself


def _tagged(row: Row, number: int) -> str:
    words = next((row[name] for name in _WORDS if name in row), None)
    tags = next((row[name] for name in _TAGS if name in row), None)
    if words is None:
        raise UserError(f"row {number} has no field 'tokens'")
    if tags is None:
        return "".join(f"{word}\n" for word in words)
    if len(words) != len(tags):
        raise UserError(f"row {number} has {len(words)} tokens and {len(tags)} tags")
    return "".join(f"{word} {tag}\n" for word, tag in zip(words, tags, strict=True))


def _articles(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Questions in SQuAD's form, a paragraph each."""
    return [{"title": "", "paragraphs": [_paragraph(row, number)]} for number, row in enumerate(rows)]


def _paragraph(row: Row, number: int) -> dict[str, Any]:
    question: dict[str, Any] = {"id": str(row.get("id", number)), "question": row["question"]}
    if "answer" in row:  # a text of the passage, as in a table
        text = str(row["answer"] or "")
        place = str(row["context"]).find(text)
        if place < 0:
            raise UserError(f"row {number}: answer {text[:60]!r} is not in its context; copy it from there")
        question |= {"answers": [{"text": text, "answer_start": place}] * bool(text), "is_impossible": not text}
    elif "answers" in row:
        answers = _answers(row["answers"], number)
        question |= {"answers": answers, "is_impossible": not answers}
    return {"context": row["context"], "qas": [question]}


def _answers(answers: Any, number: int) -> list[dict[str, Any]]:
    """Answers as a list of objects, as in SQuAD's files, or as an object of lists, as in `datasets`."""
    try:
        if isinstance(answers, Mapping):
            pairs = list(zip(answers["text"], answers["answer_start"], strict=True))
        else:
            pairs = [(answer["text"], answer["answer_start"]) for answer in answers]
        return [{"text": str(text), "answer_start": int(start)} for text, start in pairs]
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"row {number}: answers must be a list of objects with text and answer_start, or an object of two lists"
        ) from error
