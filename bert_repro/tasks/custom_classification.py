"""Tasks made of the user's own texts: one label, several labels, or a number for each row (CSV, TSV, JSON lines)."""

import logging
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bert_repro.errors import NonFiniteError
from bert_repro.tasks.base import ExampleScores, Feature, FloatArray, Predictions
from bert_repro.tasks.classification import ClassificationTask
from bert_repro.tasks.predictions import calibration_details, per_label, read_prediction_rows, require_first_rows
from bert_repro.tasks.splits import CustomFiles, short_row
from bert_repro.utils.readers import shown
from bert_repro.utils.tables import Table, read_table

if TYPE_CHECKING:
    import datasets

logger = logging.getLogger("bert_repro")

DEFAULT_THRESHOLD = 0.5


@dataclass(frozen=True, kw_only=True)
class CustomClassificationTask(ClassificationTask):
    """A label or a number for each row of the user's files.

    Args:
        files: the files, by split.
        label_column: the column that holds the label.
        class_weights: weight of each label in the loss, in the order of `label_names`; empty: all equal. The loss is
            the weighted mean over the global batch.
        label_smoothing: share of the target that is spread evenly over all labels.
        label_separator: what separates the labels of a row; None: a row has one label.
    """

    files: CustomFiles
    label_column: str
    class_weights: tuple[float, ...] = ()
    label_smoothing: float = 0.0
    label_separator: str | None = None

    def load(self, data_dir: Path | None, splits: Sequence[str]) -> "dict[str, datasets.Dataset]":
        """See `Task.load`; `data_dir` plays no part. Only the test file may lack labels."""
        return self.files.read(splits, self._read, self._strata)

    def parse_label(self, text: str) -> int | float | list[int]:
        """See `ClassificationTask.parse_label`; numbers of any size."""
        if self.number_range is None:
            return super().parse_label(text)
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise ValueError(f"label {shown(text)} is not a number; write one, or leave --regression out")
        return number

    def model_settings(self) -> dict[str, Any]:
        """See `Task.model_settings`; class weights and label smoothing too, which the loss takes from there."""
        weights = list(self.class_weights) or None
        return {**super().model_settings(), "class_weights": weights, "label_smoothing": self.label_smoothing}

    def loss_items(self, features: Sequence[Feature]) -> npt.NDArray[Any]:
        """See `Task.loss_items`; the weight of each label, where labels have weights."""
        if not self.class_weights:
            return super().loss_items(features)
        return np.array([self.class_weights[feature["labels"]] for feature in features])

    def data_description(self) -> dict[str, Any]:
        """See `Task.data_description`; nothing is known of custom data but its files and what a row has."""
        kind = "number" if self.number_range else "labels" if self.label_separator is not None else "label"
        return {**super().data_description(), "files": self.files.names(), "kind": kind}

    def example(self, dataset: "datasets.Dataset | None") -> dict[str, Any] | None:
        """See `Task.example`; a short training text."""
        return short_row(dataset, dict(zip(("text", "text_pair"), self.text_columns, strict=False)))

    def _read(self, split: str, path: Path) -> "datasets.Dataset":
        import datasets

        unlabelled = split == "test"
        required = self.text_columns if unlabelled else (*self.text_columns, self.label_column)
        table = read_table(
            path,
            required,
            optional=(self.label_column,) if unlabelled else (),
            list_separator=self.label_separator,
        )
        columns: dict[str, list[Any]] = {name: table.columns[name] for name in self.text_columns}
        _warn_of_empty_texts(table, self.text_columns)
        if not unlabelled or table.is_filled(self.label_column):
            columns["label"] = table.parsed(self.label_column, self.parse_label)
        return datasets.Dataset.from_dict({**columns, "idx": list(range(len(table.lines)))})

    def _strata(self, dataset: "datasets.Dataset") -> Sequence[Any]:
        if self.number_range is not None:
            return [None] * len(dataset)
        return [tuple(label) if isinstance(label, list) else label for label in dataset["label"]]


@dataclass(frozen=True, kw_only=True)
class MultiLabelTask(CustomClassificationTask):
    """Any number of labels for each row of the user's files: a yes or no to each, from a sigmoid of its own.

    The column `label` of a split holds a list of zeros and ones in the order of `label_names`.

    Args:
        thresholds: a label is predicted where its probability reaches its threshold; empty: not chosen yet, counts as
            0.5. `tuned` chooses them on dev, and they are stored with the model.
    """

    thresholds: tuple[float, ...] = ()

    def parse_label(self, text: str) -> list[int]:
        """Reads the labels of a row; an empty text is a row without labels."""
        names = split_labels(text, str(self.label_separator))
        for name in names:
            if name not in self.label_names:
                raise ValueError(f"label {shown(name)} is not known; it must be one of: {', '.join(self.label_names)}")
        return [int(name in names) for name in self.label_names]

    def model_settings(self) -> dict[str, Any]:
        """See `Task.model_settings`; the thresholds are part of the model's configuration."""
        multi = {"problem_type": "multi_label_classification", "label_thresholds": list(self.thresholds) or None}
        return {**super().model_settings(), **multi}

    def restored(self, model_config: Any) -> "MultiLabelTask":
        """Returns the task with the model's own thresholds."""
        stored = getattr(model_config, "label_thresholds", None)
        return self if self.thresholds or not stored else replace(self, thresholds=tuple(stored))

    def tuned(self, predictions: Predictions, dataset: "datasets.Dataset") -> "MultiLabelTask":
        """Returns the task with the threshold of each label that gives its best F1 on a labelled split."""
        expected = np.asarray(dataset["label"][:])
        columns = zip(predictions["probabilities"].T, expected.T, strict=True)
        thresholds = tuple(best_f1_threshold(probabilities, labels) for probabilities, labels in columns)
        chosen = ", ".join(f"{name} {value:.3f}" for name, value in zip(self.label_names, thresholds, strict=True))
        logger.info("%s: F1 of each label is best at the thresholds %s", self.name, chosen)
        return replace(self, thresholds=thresholds)

    def postprocess(
        self, dataset: "datasets.Dataset", features: "datasets.Dataset", outputs: Iterable[FloatArray]
    ) -> Predictions:
        """Returns the `probabilities` (N, labels); `answers` makes labels of them."""
        logits = np.stack(list(outputs)).astype(np.float64)
        if not np.isfinite(logits).all():
            raise NonFiniteError(f"{self.name}: the model's output is not finite")
        probabilities = 0.5 * (1.0 + np.tanh(0.5 * logits))
        return {"prediction": probabilities, "probabilities": probabilities}

    def answers(self, predictions: Predictions) -> npt.NDArray[np.int64]:
        """Returns zeros and ones, (N, labels): the labels whose probabilities reach their thresholds."""
        limits = self.thresholds or (DEFAULT_THRESHOLD,) * len(self.label_names)
        reached: npt.NDArray[np.int64] = (predictions["probabilities"] >= np.array(limits)).astype(np.int64)
        return reached

    def score(self, predictions: Predictions, dataset: "datasets.Dataset") -> dict[str, float]:
        """See `Task.score`."""
        return super().score({"prediction": self.answers(predictions)}, dataset)

    def is_degenerate(self, predictions: Predictions, dataset: "datasets.Dataset") -> bool:
        """See `Task.is_degenerate`; whether every row gets the same labels, while the labels differ."""
        answers, expected = self.answers(predictions), np.asarray(dataset["label"][:])
        return bool((answers == answers[:1]).all() and not (expected == expected[:1]).all())

    def example_scores(self, split: str, dataset: "datasets.Dataset", run_folder: Path) -> ExampleScores:
        """See `Task.example_scores`; whether the labels of each row are all correct."""
        path = run_folder / f"predictions.{split}.tsv"
        rows = read_prediction_rows(path)
        require_first_rows(path, [row["index"] for row in rows], [str(index) for index in dataset["idx"]])
        expected = [self.spelled(label) for label in dataset["label"][: len(rows)]]
        return {"exact_match": [int(row["prediction"] == names) for row, names in zip(rows, expected, strict=True)]}

    def score_details(self, predictions: Predictions, dataset: "datasets.Dataset") -> dict[str, Any]:
        """See `Task.score_details`."""
        expected = np.asarray(dataset["label"][:])
        details = {"per_label": per_label(self.answers(predictions), expected, self.label_names)}
        return details | calibration_details(predictions["probabilities"].ravel(), expected.ravel())

    def spelled(self, label: Any) -> str:
        """Spells the labels of a row as the files do."""
        return str(self.label_separator).join(
            name for name, there in zip(self.label_names, label, strict=True) if there
        )

    def predicted_values(self, predictions: Predictions) -> Sequence[Any]:
        """See `ClassificationTask.predicted_values`."""
        return list(self.answers(predictions))

    def json_label(self, value: Any) -> list[str]:
        """See `ClassificationTask.json_label`; the labels of a row."""
        return [name for name, there in zip(self.label_names, value, strict=True) if there]

    def answer_probability(self, value: Any, probabilities: npt.NDArray[np.float64]) -> float:
        """See `ClassificationTask.answer_probability`; that of exactly these labels, each decided by itself."""
        return round(float(np.where(np.asarray(value) == 1, probabilities, 1 - probabilities).prod()), 6)


def split_labels(text: str, separator: str) -> list[str]:
    """Splits the labels of a row; empty ones do not count."""
    return [name.strip() for name in text.split(separator) if name.strip()]


def balanced_weights(labels: Sequence[str], names: Sequence[str]) -> tuple[float, ...]:
    """Returns rows / (labels x rows of the label) for each label, as scikit-learn's `balanced`."""
    counts = Counter(labels)
    return tuple(len(labels) / (len(names) * counts[name]) for name in names)


def best_f1_threshold(probabilities: npt.NDArray[np.float64], labels: npt.NDArray[np.int64]) -> float:
    """Chooses the threshold with the best F1 of one label, the nearest to 0.5 among equals.

    Candidates are the middles between neighboring probabilities; 0.5 where no row has the label.

    Args:
        probabilities: of the label, (N,).
        labels: zeros and ones, (N,).
    """
    found = np.unique(probabilities)
    candidates = np.concatenate([[DEFAULT_THRESHOLD], (found[1:] + found[:-1]) / 2])
    if not labels.any():
        return DEFAULT_THRESHOLD
    order = np.sort(probabilities)
    right = np.sort(probabilities[labels == 1])
    # How many are predicted, and how many of these are correct, at each candidate.
    predicted = len(order) - np.searchsorted(order, candidates)
    correct = len(right) - np.searchsorted(right, candidates)
    scores = 2 * correct / (predicted + len(right))
    best = candidates[scores == scores.max()]
    return float(best[np.abs(best - DEFAULT_THRESHOLD).argmin()])


def _warn_of_empty_texts(table: Table, text_columns: Sequence[str]) -> None:
    for name in text_columns:
        empty = [row for row, text in enumerate(table.columns[name]) if not text.strip()]
        if len(empty) == len(table.lines):
            raise table.error(0, f"column {name!r} is empty in every row; name another with --text_columns")
        if empty:
            line = table.lines[empty[0]]
            logger.warning(
                "%s: column %r is empty in %d of %d rows, first on line %d; the model reads nothing there",
                table.path, name, len(empty), len(table.lines), line,
            )  # fmt: skip
