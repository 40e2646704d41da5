"""Predicts one label or one number for a text or a pair of texts (paper 4.1).

GLUE's tasks are in `glue_tasks.py`, as data. Tasks with several labels per row are in `multi_label.py`, and
`custom_classification.py` makes the task of the user's own data.
"""

import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from bert_repro.tasks.base import CUSTOM, Columns, ExampleScores, Feature, JsonObject, Outputs, Predictions, Task
from bert_repro.tasks.columns import number, parsed, short_row, texts, values
from bert_repro.tasks.data import read_file, read_glue
from bert_repro.tasks.encoding import encoded_texts
from bert_repro.tasks.prediction_files import confusions, require_first_rows, write_prediction_rows
from bert_repro.tasks.text_baselines import baseline_predictions
from bert_repro.utils.readers import quoted

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger("bert_repro")


Answer: TypeAlias = Any
"""A label id, a number or, with several labels per row, zeros and ones for all labels."""

DEGENERATE_SPREAD = 0.01
"""Predicted numbers count as constant if their standard deviation is below this share of the labels' (our choice)."""
UNDEFINED_FOR_CONSTANTS = ("matthews_correlation", "pearson", "spearmanr")
"""Metrics that are undefined if predictions or labels are constant. They are reported as 0 then."""
_PLAIN_LABEL = re.compile(r"-?(0|[1-9]\d*)|true|false")
"""A label that is a whole number or a boolean of JSON."""


@dataclass(frozen=True, kw_only=True)
class ClassificationTask(Task):
    """One label, or one number, from the pooled [CLS] of a text or a pair of texts.

    A split has the columns `text_columns` (texts), `idx` (the row's number in its official file) and, if it is
    labelled, `label` (an index of `label_names`, or a number).

    Args:
        text_columns: one or two columns of text.
        file_labels: how files write `label_names`, in the same order; empty: in the same way.
        number_range: lowest and highest value of a regression task; None: a classification task.
        class_weights: weight of each label in the loss, in the order of `label_names`; empty: all equal. The loss is
            the weighted mean over the global batch.
        label_smoothing: share of the target that is spread evenly over all labels.
        notes: sentences about the data for the log and the card.
    """

    head: str = "BertReproForSequenceClassification"
    text_columns: tuple[str, ...]
    file_labels: tuple[str, ...] = ()
    number_range: tuple[float, float] | None = None
    class_weights: tuple[float, ...] = ()
    label_smoothing: float = 0.0
    notes: tuple[str, ...] = ()
    predictions_suffix: ClassVar[str] = ".tsv"
    one_feature_per_example: ClassVar[bool] = True

    @property
    def columns_of_text(self) -> tuple[str, ...]:
        return self.text_columns

    @property
    def kind(self) -> str:
        """What is predicted for a row: a `label`, several `labels` or a `number`."""
        return "label" if self.number_range is None else "number"

    @property
    def answer_names(self) -> tuple[str, ...]:
        """Names of the possible answers, whose probabilities are written."""
        return self.label_names

    # --- Data ---

    def from_published(self, dataset: "datasets.Dataset") -> "datasets.Dataset":
        rows = super().from_published(dataset)
        # Some datasets of the Hub have the names of the labels instead of their numbers.
        if "label" in rows.features and rows.features["label"].dtype == "string":
            return self.from_rows(rows, self.title)
        needed = (*self.text_columns, "label", "idx")
        rows = rows.select_columns([name for name in needed if name in rows.column_names])
        if "idx" in rows.column_names:
            return rows
        return rows.add_column("idx", list(range(len(rows))))

    def from_rows(
        self,
        rows: "datasets.Dataset",
        where: str,
        *,
        columns: Sequence[str] = (),
        label: str = "label",
        index: str | None = None,
        may_lack_labels: bool = False,
        missing: str | None = None,
    ) -> "datasets.Dataset":
        """Converts rows with named columns to a split of this task.

        Args:
            rows: the rows.
            where: what messages call them.
            columns: their names of `text_columns`; empty: the same names.
            label: their column of labels.
            index: their column of row numbers; None: rows are counted from 0.
            may_lack_labels: whether the column of labels may be missing or empty.
            missing: replaces a text that is missing; None: every row must have one.

        Raises:
            UserError: a column is missing, or contains something that is not a text or not a label.
        """
        import datasets

        split: dict[str, Sequence[Any]] = {}
        for name, row_name in zip(self.text_columns, columns or self.text_columns, strict=True):
            split[name] = texts(rows, row_name, where, missing)

        labels: list[Any] = []
        if not may_lack_labels or label in rows.column_names:
            labels = values(rows, label, where)
        has_labels = any(str(value or "").strip() for value in labels)
        if has_labels or not may_lack_labels:
            split["label"] = parsed(labels, label, where, self.parse_label)

        split["idx"] = range(len(rows))
        if index is not None:
            split["idx"] = parsed(values(rows, index, where), index, where, int)
        return datasets.Dataset.from_dict(split)

    def parse_label(self, text: Any) -> Answer:
        """Converts a label of the data to its id, or to a number in a regression task.

        Raises:
            ValueError: it is not a label of this task; the message lists the labels.
        """
        if self.number_range is None:
            spellings = self.file_labels or self.label_names
            label = str("" if text is None else text).strip()
            if label not in spellings:
                raise ValueError(f"label {quoted(label)} is not known; it must be one of: {', '.join(spellings)}")
            return spellings.index(label)

        low, high = self.number_range
        value = number(text)
        if not low <= value <= high:
            raise ValueError(f"label {quoted(text)} is out of range; it must be a number from {low:g} to {high:g}")
        return value

    def data_description(self) -> JsonObject:
        description = {**super().data_description(), "text_columns": list(self.text_columns)}
        if self.name == CUSTOM:
            description["kind"] = self.kind
            if self.notes:
                description["note"] = " ".join(self.notes)
        return description

    def example(self, dataset: "datasets.Dataset | None") -> JsonObject | None:
        return short_row(dataset, dict(zip(("text", "text_pair"), self.text_columns, strict=False)))

    # --- To and from the model ---

    def model_settings(self) -> JsonObject:
        """Returns the labels and the settings of the loss."""
        problem_type = "single_label_classification" if self.number_range is None else "regression"
        settings = {**super().model_settings(), "problem_type": problem_type}
        if self.name == CUSTOM:
            settings["class_weights"] = list(self.class_weights) or None
            settings["label_smoothing"] = self.label_smoothing
        return settings

    def encoding_settings(self) -> JsonObject:
        return {"text_columns": self.text_columns}

    def encode_batch(self, examples: Columns, tokenizer: "PreTrainedTokenizerBase", max_seq_length: int) -> Columns:
        features = encoded_texts(tokenizer, [examples[column] for column in self.text_columns], max_seq_length)
        if "label" in examples:
            features["labels"] = examples["label"]
        return features

    def loss_items(self, features: Sequence[Feature]) -> npt.NDArray[Any]:
        if not self.class_weights:
            return super().loss_items(features)
        return np.array([self.class_weights[feature["labels"]] for feature in features])

    def postprocess(self, dataset: "datasets.Dataset", features: "datasets.Dataset", outputs: Outputs) -> Predictions:
        """Returns the most probable label of each example and the `probabilities` of all (N, labels), or its number."""
        from scipy.special import softmax

        logits = np.stack(list(outputs)).astype(np.float64)
        self.require_finite(logits)
        if self.number_range is not None:
            return {"prediction": logits.reshape(len(logits))}
        return {"prediction": logits.argmax(axis=1), "probabilities": softmax(logits, axis=1)}

    # --- Scores ---

    def score_details(self, predictions: Predictions, dataset: "datasets.Dataset") -> JsonObject:
        """Returns the confusion matrix, and notes on labels or answers that are all equal, which are also logged."""
        details = self.confusion_details(predictions, dataset)
        notes = self.score_notes(predictions, dataset)
        for note in notes:
            logger.warning("%s: %s", self.name, note)
        if notes:
            details["notes"] = notes
        return details

    def confusion_details(self, predictions: Predictions, dataset: "datasets.Dataset") -> JsonObject:
        """Returns the confusion matrix of a task that predicts one label per row."""
        if self.number_range is not None:
            return {}
        return confusions(predictions["prediction"], dataset["label"][:], self.label_names)

    def score_notes(self, predictions: Predictions, dataset: "datasets.Dataset") -> list[str]:
        """Returns sentences about scores that say less than they seem to, because all labels or answers are equal."""
        labels = np.asarray(dataset["label"][:])
        answers = np.asarray(self.answers(predictions))
        undefined = [metric for metric in self.metrics if metric in UNDEFINED_FOR_CONSTANTS]
        has_one_label = bool((labels == labels[:1]).all())
        has_one_answer = bool((answers == answers[:1]).all())

        notes = []
        if has_one_label:
            label = quoted(self.spelled(labels[0]))
            note = f"All {len(labels)} rows have the label {label}, so the scores do not show what the model learned."
            if has_one_answer:
                note += f" The model gives {quoted(self.spelled(answers[0]))} to all of them."
            notes.append(note)
        if undefined and (has_one_label or (has_one_answer and len(labels) > 1)):
            constant = "labels" if has_one_label else "answers"
            is_or_are = "is" if len(undefined) == 1 else "are"
            notes.append(
                f"{' and '.join(undefined)} {is_or_are} undefined for {constant} that are all equal, and reported as 0."
            )
        return notes

    def is_degenerate(self, predictions: Predictions, dataset: "datasets.Dataset") -> bool:
        """See `Task.is_degenerate`. Predicted numbers are never quite equal, so a very small spread also counts.

        If all labels are equal, a constant answer is right.
        """
        labels = np.asarray(dataset["label"][:])
        if (labels == labels[:1]).all():
            return False
        if self.number_range is None:
            return super().is_degenerate(predictions, dataset)
        return bool(np.std(predictions["prediction"]) < DEGENERATE_SPREAD * np.std(labels))

    def baselines(self, train: "datasets.Dataset", dataset: "datasets.Dataset") -> dict[str, dict[str, float]]:
        """See `Task.baselines` and `text_baselines.py`."""
        # The texts of a choice cannot be read one by one.
        if self.sequences_per_example > 1:
            return {}
        predicted = baseline_predictions(
            train, dataset, self.text_columns, predicts_numbers=self.number_range is not None
        )
        scores = {}
        for baseline, answers in predicted.items():
            scores[baseline] = self.compute_metrics(cast(Sequence[Any], answers), self.references(dataset))
            if scores[baseline][self.primary_metric] == 0:
                reason = "none of its answers counts as right"
                if (answers == answers[:1]).all():
                    reason = "it gives the same answer to every row"
                logger.info("The baseline %r has %s 0 because %s.", baseline, self.primary_metric, reason)
        return scores

    def example_scores(self, split: str, dataset: "datasets.Dataset", run_folder: Path) -> ExampleScores:
        """See `Task.example_scores`.

        Returns whether each label (or all labels of a row) is correct, and the parts of the task's F1 and correlations.
        """
        path = run_folder / f"predictions.{split}{self.predictions_suffix}"
        # Texts in our own .tsv files are not quoted, so the quotes in them have no meaning.
        rows = read_glue(path, ("index", "prediction")) if path.suffix == ".tsv" else read_file(path)
        require_first_rows(path, rows["index"][:], [str(index) for index in dataset["idx"]])
        predicted = rows["prediction"][:]
        labels = dataset["label"][: len(predicted)]
        if self.number_range is not None:
            return _correlation_parts([float(text) for text in predicted], labels)

        expected = [self.spelled(label) for label in labels]
        metric = "accuracy" if "accuracy" in self.metrics else "exact_match"
        is_correct = [int(name == true_name) for name, true_name in zip(predicted, expected, strict=True)]
        scores: ExampleScores = {metric: is_correct}
        if len(self.label_names) == 2:
            scores |= self._binary_parts(predicted, expected)
        return scores

    def _binary_parts(self, predicted: Sequence[str], expected: Sequence[str]) -> ExampleScores:
        """Returns what each row contributes to the F1 and the Matthews correlation of two classes."""
        positive = self.spelled(1)
        pairs = [
            [int(name == positive), int(true_name == positive)]
            for name, true_name in zip(predicted, expected, strict=True)
        ]
        parts: ExampleScores = {}
        if "f1" in self.metrics:
            parts["f1"] = [[answer & label, answer, label] for answer, label in pairs]
        if "matthews_correlation" in self.metrics:
            # Matthews correlation is Pearson's correlation of zeros and ones.
            parts["matthews_correlation"] = pairs
        return parts

    # --- Answers ---

    def answers(self, predictions: Predictions) -> Sequence[Answer]:
        """Returns the answer to each example: a label id or a number."""
        return cast(Sequence[Answer], predictions["prediction"])

    def spelled(self, value: Answer) -> str:
        """Writes an answer as text: the name of a label, or a number with enough digits to read it back exactly."""
        return self.label_names[value] if self.number_range is None else f"{value:.9g}"

    def json_label(self, value: Answer) -> str | float | list[str]:
        """Returns an answer as JSON output has it.

        If all labels of the task are whole numbers or booleans, a label is written as such.
        """
        if self.number_range is not None:
            return float(f"{value:.9g}")
        name = self.label_names[value]
        if all(_PLAIN_LABEL.fullmatch(label) for label in self.label_names):
            return cast(float, json.loads(name))
        return name

    def json_answer(self, example: Mapping[str, Any], value: Answer) -> JsonObject:
        """Returns the answer to an example as JSON output has it."""
        return {"prediction": self.json_label(value)}

    def answer_probability(self, value: Answer, probabilities: npt.NDArray[np.float64]) -> float:
        """Returns the probability of an answer.

        Args:
            value: the answer.
            probabilities: of all labels, (labels,).
        """
        return round(float(probabilities[value]), 6)

    def write_predictions(
        self, directory: str | Path, split: str, dataset: "datasets.Dataset", predictions: Predictions
    ) -> list[Path]:
        """Writes `predictions.SPLIT.tsv` (for choices .csv).

        Columns: index, prediction (name of a label, or a number), label (if known), the probability of each label, the
        texts, and the other columns of the user's data.
        """
        path = Path(directory) / f"predictions.{split}{self.predictions_suffix}"
        columns: dict[str, Sequence[object]] = {
            "index": dataset["idx"][:],
            "prediction": [self.spelled(value) for value in self.answers(predictions)],
        }
        if self.is_labelled(dataset):
            columns["label"] = [self.spelled(label) for label in dataset["label"]]
        if "probabilities" in predictions:
            for place, name in enumerate(self.answer_names):
                shares = predictions["probabilities"][:, place]
                columns[f"probability_{name}"] = [f"{share:.6f}" for share in shares]

        written = {*columns, *self.text_columns, "idx", "label"}
        other_columns = [name for name in dataset.column_names if name not in written]
        for name in (*self.text_columns, *other_columns):
            columns[name] = dataset[name][:]
        write_prediction_rows(path, columns)
        return [path]

    def records(self, dataset: "datasets.Dataset", predictions: Predictions) -> Iterator[JsonObject]:
        answers, probabilities = self.answers(predictions), predictions.get("probabilities")
        for row, (example, answer) in enumerate(zip(dataset, answers, strict=True)):
            # A row without text has no answer, but stays in the output.
            is_blank = not any(str(example[name]).strip() for name in self.text_columns)
            record: JsonObject = {"prediction": None} if is_blank else self.json_answer(example, answer)
            if probabilities is not None:
                record["probability"] = None if is_blank else self.answer_probability(answer, probabilities[row])
                for name, share in zip(self.answer_names, probabilities[row], strict=True):
                    record[f"probability_{name}"] = None if is_blank else round(float(share), 6)
            yield record


def _correlation_parts(predicted: Sequence[float], labels: Sequence[float]) -> ExampleScores:
    """Returns the two numbers of each row, and their two ranks."""
    from scipy.stats import rankdata

    numbers = np.array([predicted, labels])
    return {"pearson": numbers.T.tolist(), "spearmanr": rankdata(numbers, axis=1).T.tolist()}
