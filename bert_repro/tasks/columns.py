"""Reads the columns of a dataset as texts, numbers and labels, and says which row is wrong if one is."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from bert_repro.errors import UserError, flag
from bert_repro.utils.readers import comma_separated, quoted

if TYPE_CHECKING:
    import datasets

T = TypeVar("T")

TEXT_COLUMNS = (
    ("text",), ("text_a", "text_b"), ("sentence1", "sentence2"), ("question1", "question2"), ("premise", "hypothesis"),
    ("question", "sentence"), ("sentence",),
)  # fmt: skip
"""Columns of text that are found without `--text_columns`: our own names and those of GLUE's tasks. A pair comes
before a single column that is part of it."""
EXAMPLE_ROWS = 200
"""An example for the model card is looked for among this many rows."""
LONGEST_EXAMPLE = 300  # characters of one text


def require_columns(dataset: "datasets.Dataset", names: Sequence[str], where: str, fix: str = "") -> None:
    """Raises `UserError` if a column is missing; the message lists the columns that exist.

    Args:
        dataset: the data.
        names: the required columns.
        where: what the message calls the data.
        fix: what to do, for the message.
    """
    for name in names:
        if name not in dataset.column_names:
            present = comma_separated(dataset.column_names) or "none"
            advice = f"; {fix}" if fix else ""
            raise UserError(f"{where}: no column {name!r}; found {present}{advice}")


def texts(dataset: "datasets.Dataset", name: str, where: str, missing: str | None = None) -> list[str]:
    """Returns a column of texts.

    Args:
        dataset: the data.
        name: the column.
        where: what messages call the data.
        missing: replaces a text that is missing; None: every row must have one.

    Raises:
        UserError: the column does not exist, or a row contains something else than a text.
    """
    column: list[str] = []
    for row, value in enumerate(values(dataset, name, where), 1):
        text = missing if value is None else value
        if not isinstance(text, str):
            raise UserError(f"{where}, row {row}: column {name!r} is {quoted(text)}; it must be a text")
        column.append(text)
    return column


def values(dataset: "datasets.Dataset", name: str, where: str) -> list[Any]:
    """Returns a column with every value as text.

    Numbers and booleans are written as in JSON, and a whole number has no decimals. Labels of a `ClassLabel` column
    become their names. Missing values are None, and lists stay lists (of texts).
    """
    require_columns(dataset, [name], where)
    class_names = _class_names(dataset.features[name])
    return [_as_text(value, class_names) for value in dataset[name]]


def _class_names(feature: Any) -> list[str] | None:
    """Returns the label names of a column of class labels, or of lists of them; None for other columns."""
    item = getattr(feature, "feature", None)
    names: list[str] | None = getattr(feature, "names", None) or getattr(item, "names", None)
    return names


def _as_text(value: Any, class_names: Sequence[str] | None) -> Any:
    if isinstance(value, list):
        return [_as_text(item, class_names) for item in value]
    if value is None or isinstance(value, str):
        return value
    # pandas has NaN where a value is missing.
    if isinstance(value, float) and math.isnan(value):
        return None
    if class_names is not None:
        # Datasets of the Hub mark a missing label by -1.
        return class_names[value] if value >= 0 else None
    # pandas makes whole numbers floats if one of them is missing.
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    return value


def parsed(column: Iterable[Any], name: str, where: str, parse: Callable[[Any], T]) -> list[T]:
    """Parses every value of a column.

    Args:
        column: the values, as texts.
        name: name of the column, for messages.
        where: what messages call the data.
        parse: raises `ValueError` for a text that it does not accept.

    Raises:
        UserError: a value was not accepted; the message names row and column.
    """
    results = []
    for row, text in enumerate(column, 1):
        try:
            results.append(parse(text))
        except ValueError as error:
            raise UserError(f"{where}, row {row}: column {name!r}: {error}") from None
    return results


def number(text: Any) -> float:
    """Parses a number as people write it, without NaN, infinity and underscores.

    Raises:
        ValueError: the text is not such a number.
    """
    try:
        value = float(text)
    except (TypeError, ValueError):
        value = math.nan
    # Python accepts 1_000 as a number.
    if "_" in str(text) or not math.isfinite(value):
        raise ValueError(f"{quoted(text)} is not a number")
    return value


def short_row(dataset: "datasets.Dataset | None", columns: Mapping[str, str]) -> dict[str, Any] | None:
    """Returns a row of median length as an example for the model card; None if no row is suitable.

    Only rows near the beginning are considered, and only if none of their texts is empty or long.

    Args:
        dataset: the split, if there is one.
        columns: name in the example -> column.
    """
    if dataset is None:
        return None
    examples: list[dict[str, Any]] = []
    for row in dataset.select(range(min(len(dataset), EXAMPLE_ROWS))):
        example = {name: " ".join(str(row[column]).split()) for name, column in columns.items()}
        if all(0 < len(text) <= LONGEST_EXAMPLE for text in example.values()):
            examples.append(example)
    if not examples:
        return None
    examples.sort(key=lambda example: sum(map(len, example.values())))
    return examples[len(examples) // 2]


def find_text_columns(column_names: Sequence[str], where: str, trained_columns: Sequence[str] = ()) -> tuple[str, ...]:
    """Returns the columns of text in the user's data, if they are not given.

    They are the columns that a model was trained on, or the first of `TEXT_COLUMNS` that the data has.

    Args:
        column_names: the columns of the data.
        where: what messages call the data.
        trained_columns: the columns that the model was trained on, if they are known.

    Raises:
        UserError: the data has none of them.
    """
    for columns in (tuple(trained_columns), *TEXT_COLUMNS):
        if columns and set(columns) <= set(column_names):
            return columns
    expected = ", ".join(" and ".join(columns) for columns in TEXT_COLUMNS)
    if trained_columns:
        expected = f"{' and '.join(trained_columns)} in training"
    raise UserError(
        f"{where}: no column of text ({expected}); found {comma_separated(column_names)}; name it with "
        f"{flag('text_columns')}",
        setting="text_columns",
    )
