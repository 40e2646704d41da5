"""Predictions on disk: written with the texts they are about, read back to score each example again."""

import csv
import heapq
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bert_repro.errors import UserError
from bert_repro.tasks.data import read_file
from bert_repro.utils.files import atomic_file

ERRORS = 100
MOST_LABELS = 50
"""A confusion matrix of more labels is left out."""


def softmax(logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Returns probabilities of logits, both (N, labels)."""
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares: npt.NDArray[np.float64] = weights / weights.sum(axis=1, keepdims=True)
    return shares


def write_prediction_rows(path: Path, columns: Mapping[str, Sequence[object]]) -> None:
    """Writes `predictions.SPLIT.tsv` or `.csv` with a first row of names.

    White space inside a text becomes single spaces, so that a row is a line; .tsv has no quotes.
    """
    rows = ([" ".join(str(value).split()) for value in row] for row in zip(*columns.values(), strict=True))
    with atomic_file(path) as file:
        if path.suffix == ".csv":
            csv.writer(file, lineterminator="\n").writerows((list(columns), *rows))
        else:
            file.writelines("\t".join(row) + "\n" for row in (list(columns), *rows))


def write_json_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes one JSON object per line."""
    with atomic_file(path) as file:
        file.writelines(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows)


def read_predictions(path: Path, indices: Sequence[int]) -> list[str]:
    """Returns the column `prediction` of `predictions.SPLIT.tsv` or `.csv`.

    Args:
        path: the file.
        indices: of the split's rows; the file may be about the first of them.

    Raises:
        UserError: there is no such file, or it is about other rows.
    """
    rows = read_file(path)
    require_first_rows(path, rows["index"][:], [str(index) for index in indices])
    predictions: list[str] = rows["prediction"][:]
    return predictions


def require_first_rows(path: Path, found: Sequence[str], expected: Sequence[str]) -> None:
    """Raises `UserError` unless the predictions are those of a split's first rows, all of them or fewer."""
    if not found or list(found) != list(expected[: len(found)]):
        raise UserError(
            f"{path}: its {len(found)} rows are not those of the data set's {len(expected)}; name the data that the "
            "predictions were made for"
        )


def surest_errors(
    records: Iterable[Mapping[str, Any]],
    is_wrong: Callable[[Mapping[str, Any]], bool] = lambda record: record["prediction"] != record["label"],
) -> list[Mapping[str, Any]]:
    """Returns the records that are wrong, at most `ERRORS`, the highest `probability` first."""
    return heapq.nlargest(ERRORS, filter(is_wrong, records), key=lambda record: float(record["probability"]))


def furthest_off(records: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Returns the records whose predicted number is furthest from the label, at most `ERRORS`, the furthest first."""
    return heapq.nlargest(ERRORS, records, key=lambda record: abs(float(record["prediction"]) - float(record["label"])))


def confusions(predictions: npt.ArrayLike, references: npt.ArrayLike, names: Sequence[str]) -> dict[str, Any]:
    """Returns `labels` and `confusion_matrix`, whose rows are true and whose columns are predicted labels.

    Args:
        predictions: label ids, (N,).
        references: label ids, (N,).
        names: of the labels; of more than `MOST_LABELS` nothing is returned.
    """
    from sklearn.metrics import confusion_matrix

    if len(names) > MOST_LABELS:
        return {}
    matrix = confusion_matrix(references, predictions, labels=list(range(len(names))))
    return {"labels": list(names), "confusion_matrix": matrix.tolist()}
