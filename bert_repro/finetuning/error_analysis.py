"""What a fine-tuned model gets wrong: scores of each class, and the rows with a wrong answer."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypedDict

from bert_repro.errors import UserError
from bert_repro.tasks.squad_scoring import answer_scores
from bert_repro.utils.readers import json_rows, numbered_lines
from bert_repro.utils.tables import csv_rows, tsv_rows

Row = dict[str, Any]

_SUFFIXES = (".tsv", ".csv", ".jsonl")
"""Forms of prediction files in which each row has its label, in the order in which they are looked for."""


class ClassScores(TypedDict):
    """The scores of one class, and how many rows have it as their true label."""

    precision: float
    recall: float
    f1: float
    rows: int


def class_scores(labels: Sequence[str], confusion_matrix: Sequence[Sequence[int]]) -> dict[str, ClassScores]:
    """Computes precision, recall and F1 of every class; 0 if nothing is predicted or true.

    Args:
        labels: names of the classes.
        confusion_matrix: rows are true classes, columns predicted ones.
    """
    scores: dict[str, ClassScores] = {}
    for index, label in enumerate(labels):
        correct = confusion_matrix[index][index]
        num_true = sum(confusion_matrix[index])
        num_predicted = sum(row[index] for row in confusion_matrix)
        scores[label] = ClassScores(
            precision=correct / max(1, num_predicted),
            recall=correct / max(1, num_true),
            f1=2 * correct / max(1, num_predicted + num_true),
            rows=num_true,
        )
    return scores


def never_predicted(labels: Sequence[str], confusion_matrix: Sequence[Sequence[int]]) -> list[str]:
    """Returns the classes that no row was given, although some rows have them."""
    missing = []
    for index, label in enumerate(labels):
        num_predicted = sum(row[index] for row in confusion_matrix)
        if num_predicted == 0 and sum(confusion_matrix[index]) > 0:
            missing.append(label)
    return missing


def predictions_file(folder: Path, split: str) -> Path | None:
    """Returns the file with a split's predictions, one row each, or None if the run wrote none."""
    for suffix in _SUFFIXES:
        path = folder / f"predictions.{split}{suffix}"
        if path.is_file():
            return path
    return None


def wrong_rows(path: Path) -> list[Row]:
    """Returns the rows of a prediction file whose prediction is not the label.

    Args:
        path: from `predictions_file`.

    Raises:
        UserError: the file has no labels.
    """
    wrong = []
    for row in _rows(path):
        if "label" not in row:
            raise UserError(f"{path} has no labels, so it does not say which predictions are wrong.")
        if not _is_right(row["prediction"], row["label"]):
            wrong.append(row)
    return wrong


def _rows(path: Path) -> Iterator[Row]:
    if path.suffix == ".jsonl":
        for _, row in json_rows(numbered_lines(path), path):
            yield row
        return
    lines = numbered_lines(path)
    fields_of_rows = csv_rows(path, lines) if path.suffix == ".csv" else tsv_rows(lines)
    _, names = next(fields_of_rows, (0, []))
    for _, fields in fields_of_rows:
        yield dict(zip(names, fields, strict=True))


def _is_right(prediction: object, label: object) -> bool:
    # A question may have several right answers, or none. Sentences have a list of tags on both sides.
    if isinstance(prediction, str) and isinstance(label, list):
        if not label:
            return prediction == ""
        exact_match, _ = answer_scores(prediction, label)
        return exact_match == 1.0
    return prediction == label
