"""Writes predictions to files, checks predictions that are read back, and counts confusions of labels."""

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt

from bert_repro.errors import UserError
from bert_repro.utils.files import atomic_file

MOST_LABELS = 50
"""A confusion matrix of more labels is not reported."""


def write_prediction_rows(path: Path, columns: Mapping[str, Sequence[object]]) -> None:
    """Writes columns as a .tsv file (without quotes) or a .csv file, with the names in the first line.

    White space inside a text becomes single spaces, so that every row is one line.
    """
    with atomic_file(path) as file:
        if path.suffix == ".csv":
            csv.writer(file, lineterminator="\n").writerows(_text_rows(columns))
        else:
            file.writelines("\t".join(row) + "\n" for row in _text_rows(columns))


def _text_rows(columns: Mapping[str, Sequence[object]]) -> Iterator[list[str]]:
    yield list(columns)
    for row in zip(*columns.values(), strict=True):
        yield [" ".join(str(value).split()) for value in row]


def write_json_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes one JSON object per line."""
    with atomic_file(path) as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")


def require_first_rows(path: Path, ids: Sequence[str], expected: Sequence[str]) -> None:
    """Raises `UserError` unless a file's predictions are those of a split's first rows, or of all its rows.

    Args:
        path: the file, for the message.
        ids: ids of the predictions, in order.
        expected: ids of the split's rows, in order.
    """
    if not ids or list(ids) != list(expected[: len(ids)]):
        raise UserError(
            f"{path}: its {len(ids)} rows are not the first rows of the data, which has {len(expected)}. Pass the "
            "data that the predictions were made for."
        )


def confusions(predictions: npt.ArrayLike, references: npt.ArrayLike, names: Sequence[str]) -> dict[str, Any]:
    """Returns `labels` and `confusion_matrix` (rows: true labels, columns: predicted labels), ready for JSON.

    Args:
        predictions: label ids, (N,).
        references: label ids, (N,).
        names: names of the labels. With more than `MOST_LABELS` of them, nothing is returned.
    """
    from sklearn.metrics import confusion_matrix

    if len(names) > MOST_LABELS:
        return {}
    matrix = confusion_matrix(references, predictions, labels=list(range(len(names))))
    return {"labels": list(names), "confusion_matrix": matrix.tolist()}
