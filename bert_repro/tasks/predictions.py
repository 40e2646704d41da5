"""Predictions on disk, and what a score hides.

Files are written with the texts they are about and read back to score each example again. Beside a score: those of each
label, confusions, calibration, and the errors that the model was surest of.
"""

import csv
import heapq
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bert_repro.errors import UserError
from bert_repro.utils.files import atomic_file
from bert_repro.utils.ragged import Int64Array
from bert_repro.utils.tables import read_table

MOST_LABELS = 50
"""A confusion matrix of more labels is left out."""
ERRORS = 100
MOST_NUMBERS = 500
"""Pairs of label and predicted number that results.json keeps for the plot."""
CALIBRATION_BINS = 15

Float64Array = npt.NDArray[np.float64]


def write_prediction_rows(path: Path, columns: Mapping[str, Sequence[object]]) -> None:
    """Writes `predictions.SPLIT.tsv` or `.csv` with a first row of names.

    White space inside a text becomes single spaces, so that a row is a line; .tsv has no quotes.

    Args:
        path: the file; its ending says the format.
        columns: name -> a value for each row.
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


def read_prediction_rows(path: Path) -> list[dict[str, str]]:
    """Reads `predictions.SPLIT.tsv` or `.csv`: `index` and `prediction` of each row.

    Raises:
        UserError: there is no such file, or it is damaged.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file; name the output folder of a run with --do_eval")
    columns = read_table(path, ("index", "prediction")).columns
    pairs = zip(columns["index"], columns["prediction"], strict=True)
    return [{"index": index, "prediction": prediction} for index, prediction in pairs]


def require_first_rows(path: Path, found: Sequence[str], expected: Sequence[str]) -> None:
    """Checks that the predictions are those of a split's first rows, all of them or fewer.

    Args:
        path: the file of predictions, for the message.
        found: what names each row in it.
        expected: the same of every row of the split.

    Raises:
        UserError: a row is another one, or there is none.
    """
    if not found or list(found) != list(expected[: len(found)]):
        pairs = enumerate(zip(found, expected, strict=False))
        row = next((row for row, pair in pairs if pair[0] != pair[1]), len(expected))
        raise UserError(
            f"{path}: row {row} of {len(found)} is not that of the data set's {len(expected)}; name the data the "
            "predictions were made for"
        )


def label_details(predictions: Int64Array, references: Int64Array, names: Sequence[str]) -> dict[str, Any]:
    """Scores each label of rows that have one label.

    Args:
        predictions: label ids, (N,).
        references: label ids, (N,).
        names: of the labels.

    Returns:
        `per_label`: precision, recall, F1 and rows of each; `macro_f1` and `weighted_f1` over all labels that are
        predicted or present; `confusion_matrix`, whose rows are true and whose columns are predicted labels, in the
        order of `names`; left out for more than `MOST_LABELS` labels.
    """
    from sklearn.metrics import confusion_matrix

    from bert_repro.tasks.metrics import compute

    ids = list(range(len(names)))
    details: dict[str, Any] = {
        "per_label": per_label(np.eye(len(ids))[predictions], np.eye(len(ids))[references], names)
    }
    details |= compute(("macro_f1", "weighted_f1"), predictions, references)
    if len(names) <= MOST_LABELS:
        details["confusion_matrix"] = confusion_matrix(references, predictions, labels=ids).tolist()
    return details


def per_label(
    predictions: npt.ArrayLike, references: npt.ArrayLike, names: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Returns precision, recall, F1 and rows of each label; 0 where nothing is predicted or present.

    Args:
        predictions: zeros and ones, (N, labels).
        references: the same shape.
        names: of the labels.
    """
    from sklearn.metrics import precision_recall_fscore_support

    columns = precision_recall_fscore_support(
        np.asarray(references, dtype=np.int64), np.asarray(predictions, dtype=np.int64), average=None, zero_division=0.0
    )
    return {
        name: {"precision": float(precision), "recall": float(recall), "f1": float(f1), "rows": int(rows)}
        for name, precision, recall, f1, rows in zip(names, *columns, strict=True)
    }


def calibration_details(sure: npt.NDArray[Any], correct: npt.NDArray[Any]) -> dict[str, Any]:
    """Computes the expected calibration error: how far probabilities are from how often they come true.

    Decisions are put into 15 bins of equal width by their probability; the error is the mean over the decisions of the
    distance between accuracy and mean probability of their bin (Guo et al., 2017).

    Args:
        sure: the probability of each decision, (N,).
        correct: whether it is correct, (N,).

    Returns:
        `calibration_error`, and `calibration_bins`: mean probability, share that is correct and number of decisions of
        each bin that has some.
    """
    bins = np.minimum((sure * CALIBRATION_BINS).astype(np.int64), CALIBRATION_BINS - 1)
    counts, mean, right = (
        np.bincount(bins, values, CALIBRATION_BINS) for values in (np.ones(len(sure)), sure, correct)
    )
    return {
        "calibration_error": float(np.abs(mean - right).sum() / len(sure)),
        "calibration_bins": [
            {
                "probability": float(mean[at] / counts[at]),
                "correct": float(right[at] / counts[at]),
                "rows": int(counts[at]),
            }
            for at in np.flatnonzero(counts)
        ],
    }


def surest_errors(
    records: Iterable[Mapping[str, Any]],
    is_wrong: Callable[[Mapping[str, Any]], bool] = lambda record: record["prediction"] != record["label"],
) -> list[Mapping[str, Any]]:
    """Returns the records that are wrong, at most `ERRORS`, the highest `probability` first."""
    return heapq.nlargest(ERRORS, filter(is_wrong, records), key=lambda record: float(record["probability"]))


def furthest_off(records: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Returns the records whose predicted number is furthest from the label, at most `ERRORS`, the furthest first."""
    return heapq.nlargest(ERRORS, records, key=lambda record: abs(float(record["prediction"]) - float(record["label"])))


def number_details(predictions: npt.NDArray[Any], references: npt.NDArray[Any]) -> dict[str, Any]:
    """Computes how far predicted numbers are from the labels.

    Args:
        predictions: numbers, (N,).
        references: numbers, (N,).

    Returns:
        `mean_absolute_error` and `root_mean_squared_error`, in the unit of the labels, and `numbers`: pairs of label
        and prediction to draw, evenly spaced over the rows where there are more than `MOST_NUMBERS`.
    """
    distances = np.abs(predictions - references)
    rows = np.linspace(0, len(references) - 1, min(len(references), MOST_NUMBERS)).astype(np.int64)
    pairs = np.stack([references[rows], predictions[rows]], axis=1)
    return {
        "mean_absolute_error": float(distances.mean()),
        "root_mean_squared_error": float(np.sqrt(np.square(distances).mean())),
        "numbers": [[float(f"{number:.5g}") for number in pair] for pair in pairs.tolist()],
    }


def entity_details(predictions: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Scores each type of entity as the conlleval script counts them.

    Args:
        predictions: a list of BIO tags for each sentence.
        references: the same shape.

    Returns:
        `per_entity`: precision, recall, F1 and entities of each type; `precision` and `recall` over all types.
    """
    from seqeval.metrics import classification_report

    report = classification_report(
        [list(tags) for tags in references], [list(tags) for tags in predictions], output_dict=True, zero_division=0
    )
    total = report.pop("micro avg")
    for mean in ("macro avg", "weighted avg"):
        report.pop(mean)
    columns = {"precision": "precision", "recall": "recall", "f1": "f1-score"}
    return {
        "per_entity": {
            name: {ours: float(row[theirs]) for ours, theirs in columns.items()} | {"entities": int(row["support"])}
            for name, row in report.items()
        },
        "precision": float(total["precision"]),
        "recall": float(total["recall"]),
    }
