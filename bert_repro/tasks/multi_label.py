"""Predicts any number of labels for each row of the user's data, and reads how files write them."""

import ast
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bert_repro.errors import UserError
from bert_repro.tasks.base import JsonObject, Outputs, Predictions
from bert_repro.tasks.classification import Answer, ClassificationTask
from bert_repro.tasks.thresholds import DEFAULT_THRESHOLD, best_f1_threshold
from bert_repro.utils.readers import quoted

if TYPE_CHECKING:
    import datasets
    from transformers import PretrainedConfig

logger = logging.getLogger("bert_repro")

LABEL_SEPARATOR = "|"
_BETWEEN_TEXTS_OF_NUMPY = re.compile(r"""(['"])\s+(['"])""")


@dataclass(frozen=True, kw_only=True)
class MultiLabelTask(ClassificationTask):
    """Any number of labels per row: the model has a sigmoid for each label, so each is decided by itself.

    The column `label` of a split contains zeros and ones in the order of `label_names`.

    Args:
        thresholds: a label is predicted if its probability reaches its threshold; empty: not chosen yet, 0.5 is used.
            `tuned` chooses them on dev, and they are stored with the model.
    """

    thresholds: tuple[float, ...] = ()

    @property
    def kind(self) -> str:
        return "labels"

    def parse_label(self, text: Any) -> list[int]:
        """Converts the labels of a row to zeros and ones. An empty text is a row without labels."""
        names = split_labels(text)
        if _are_zeros_and_ones(names) and len(set(names)) < len(names):
            raise ValueError(f"{quoted(names)} are zeros and ones; write the names of the row's labels instead")
        # "a, b" are two labels, unless the model has a label of that name.
        is_plain_text = isinstance(text, str) and LABEL_SEPARATOR not in text
        if is_plain_text and not set(names) <= set(self.label_names):
            names = split_labels(text, separator=";" if ";" in text else ",")
        for name in names:
            if name not in self.label_names:
                raise ValueError(f"label {quoted(name)} is not known; it must be one of: {', '.join(self.label_names)}")
        return [int(name in names) for name in self.label_names]

    # --- Thresholds ---

    def model_settings(self) -> JsonObject:
        """See `Task.model_settings`. The thresholds are part of the model's configuration."""
        return {
            **super().model_settings(),
            "problem_type": "multi_label_classification",
            "label_thresholds": list(self.thresholds) or None,
        }

    def restored(self, model_config: "PretrainedConfig") -> "MultiLabelTask":
        stored = getattr(model_config, "label_thresholds", None)
        if self.thresholds or not stored:
            return self
        return replace(self, thresholds=tuple(stored))

    def tuned(self, predictions: Predictions, dataset: "datasets.Dataset") -> "MultiLabelTask":
        """Returns the task with the threshold of each label that gives its best F1 on a labelled split."""
        expected = np.asarray(dataset["label"][:])
        thresholds = tuple(map(best_f1_threshold, predictions["probabilities"].T, expected.T))
        chosen = [f"{name} {value:.3f}" for name, value in zip(self.label_names, thresholds, strict=True)]
        logger.info("%s: the F1 of each label is best with these thresholds: %s", self.name, ", ".join(chosen))
        return replace(self, thresholds=thresholds)

    # --- Answers and scores ---

    def postprocess(self, dataset: "datasets.Dataset", features: "datasets.Dataset", outputs: Outputs) -> Predictions:
        """Returns the `probabilities` (N, labels), which `answers` compares with the thresholds."""
        logits = np.stack(list(outputs)).astype(np.float64)
        self.require_finite(logits)
        # The sigmoid, in a form that does not overflow.
        probabilities = 0.5 * (1.0 + np.tanh(0.5 * logits))
        return {"prediction": probabilities, "probabilities": probabilities}

    def answers(self, predictions: Predictions) -> Any:
        """Returns zeros and ones, (N, labels): whether each label's probability reaches its threshold."""
        thresholds = self.thresholds or (DEFAULT_THRESHOLD,) * len(self.label_names)
        return (predictions["probabilities"] >= np.array(thresholds)).astype(np.int64)

    def score(self, predictions: Predictions, dataset: "datasets.Dataset") -> dict[str, float]:
        return self.compute_metrics(self.answers(predictions), self.references(dataset))

    def confusion_details(self, predictions: Predictions, dataset: "datasets.Dataset") -> JsonObject:
        """Returns nothing, because a row with several labels has no place in a confusion matrix."""
        return {}

    def is_degenerate(self, predictions: Predictions, dataset: "datasets.Dataset") -> bool:
        """See `Task.is_degenerate`: all rows get the same labels although their true labels differ."""
        answers = self.answers(predictions)
        expected = np.asarray(dataset["label"][:])
        has_one_answer = (answers == answers[:1]).all()
        has_one_label = (expected == expected[:1]).all()
        return bool(has_one_answer and not has_one_label)

    def spelled(self, value: Answer) -> str:
        return LABEL_SEPARATOR.join(self.json_label(value))

    def json_label(self, value: Answer) -> list[str]:
        return [name for name, is_predicted in zip(self.label_names, value, strict=True) if is_predicted]

    def answer_probability(self, value: Answer, probabilities: npt.NDArray[np.float64]) -> float:
        """Returns the probability of exactly these labels, if each is decided by itself."""
        of_each_decision = np.where(np.asarray(value) == 1, probabilities, 1 - probabilities)
        return round(float(of_each_decision.prod()), 6)


# --- How files write several labels -----------------------------------------------------------------------------------


def split_labels(value: Any, separator: str = LABEL_SEPARATOR) -> list[str]:
    """Returns the labels of a row, without empty ones.

    Args:
        value: a list, or such a list as text (`['a', 'b']`, as a CSV file of lists has it), or a text such as `a|b`.
        separator: stands between labels in a text that is not a list.
    """
    if isinstance(value, list):
        parts = value
    else:
        text = str(value or "")
        written = _written_list(text)
        parts = text.split(separator) if written is None else written
    stripped = [str(part).strip() for part in parts]
    return [part for part in stripped if part]


def _written_list(text: str) -> list[Any] | None:
    """Returns the list, tuple or set that a text writes out as Python, JSON or NumPy does; None if it is none."""
    text = text.strip()
    if not text.startswith(("[", "(", "{")):
        return None
    # NumPy writes no commas between texts, and Python would join texts without commas to one.
    text = _BETWEEN_TEXTS_OF_NUMPY.sub(r"\1, \2", text)
    try:
        # This evaluates constants only, never code.
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return None
    if isinstance(value, set):
        return sorted(value, key=str)
    return list(value) if isinstance(value, list | tuple) else None


def labels_of_rows(column: Sequence[Any], where: str, name: str) -> list[list[str]]:
    """Returns the labels of every training row.

    Args:
        column: the column of labels.
        where: what messages call the data.
        name: name of the column.

    Raises:
        UserError: the rows contain zeros and ones instead of names.
    """
    labels = [split_labels(value) for value in column]

    # If the usual separator occurs nowhere, labels are separated by semicolons or commas.
    texts = [value for value in column if isinstance(value, str)]
    for separator in (LABEL_SEPARATOR, ";", ","):
        if separator == "," or any(separator in text for text in texts):
            labels = [split_labels(value, separator=separator) for value in column]
            break

    # Rows of zeros and ones that are all equally long mark labels by their place. Read as names they would be nonsense.
    marks = [_marks_of_places(names) for names in labels]
    lengths = {len(names) for names in marks}
    all_names = list(chain.from_iterable(marks))
    if len(lengths) == 1 and max(lengths) > 1 and _are_zeros_and_ones(all_names):
        raise UserError(
            f"{where}: column {name!r} contains zeros and ones, such as {quoted(labels[0])}, and no names of labels. "
            'Write the names of each row\'s labels instead, for example ["food", "staff"] or food|staff.'
        )
    return labels


def _marks_of_places(names: Sequence[str]) -> list[str]:
    """Returns the labels of a row; a single one that is a text such as `1 0 0` is divided at the spaces."""
    return names[0].split() if len(names) == 1 else list(names)


def _are_zeros_and_ones(names: Sequence[str]) -> bool:
    values = {name.lower() for name in names}
    return values <= {"0", "1"} or values <= {"0.0", "1.0"} or values <= {"false", "true"}
