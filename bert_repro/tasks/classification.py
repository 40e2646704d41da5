"""Tasks that give one label or one number to a text or a pair of texts (paper 4.1), and how those of GLUE are read.

The tasks of GLUE themselves are in `glue/glue_tasks`, as data.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bert_repro.errors import NonFiniteError
from bert_repro.tasks.base import Batch, ExampleScores, Feature, FloatArray, Predictions, Task, is_constant
from bert_repro.tasks.encoding import encoded_texts
from bert_repro.tasks.predictions import (
    calibration_details,
    furthest_off,
    label_details,
    number_details,
    read_prediction_rows,
    require_first_rows,
    surest_errors,
    write_json_lines,
    write_prediction_rows,
)
from bert_repro.tasks.splits import from_hub, no_such_file, without_placeholder_labels
from bert_repro.utils.readers import shown
from bert_repro.utils.tables import read_tsv

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerBase

GLUE_DATASET = "nyu-mll/glue"
DEGENERATE_SPREAD = 0.01
"""Numbers whose standard deviation is below this share of the labels' count as constant (our choice)."""


@dataclass(frozen=True, kw_only=True)
class ClassificationTask(Task):
    """One label, or one number, from the pooled [CLS] of a text or a pair.

    A split has the columns `text_columns` (strings), `idx` (the row's number in its official file) and, if it is
    labelled, `label` (a place in `label_names`, or a number).

    Args:
        text_columns: one or two columns that hold the text.
        file_labels: how files spell `label_names`, in the same order; empty: the same spelling.
        number_range: lowest and highest value of a regression task; None: a classification task.
    """

    head: str = "BertReproForSequenceClassification"
    text_columns: tuple[str, ...]
    file_labels: tuple[str, ...] = ()
    number_range: tuple[float, float] | None = None

    def encoding_settings(self) -> dict[str, Any]:
        """See `Task.encoding_settings`."""
        return {"text_columns": self.text_columns}

    def encode_batch(
        self, examples: Mapping[str, list[Any]], tokenizer: "PreTrainedTokenizerBase", max_seq_length: int
    ) -> dict[str, list[Any]]:
        """See `Task.encode_batch`; one sequence for each row."""
        labels = {"labels": examples["label"]} if "label" in examples else {}
        return encoded_texts(tokenizer, [examples[column] for column in self.text_columns], max_seq_length) | labels

    def collate(
        self, features: Sequence[Feature], *, pad_token_id: int, packing: bool, pad_to_multiple_of: int | None = None
    ) -> Batch:
        """See `Task.collate`; `labels` (B,) where the features have them."""
        import torch

        from bert_repro.training.batches import collate_features

        labels = {}
        if "labels" in features[0]:
            labels["labels"] = torch.tensor([feature["labels"] for feature in features])
        inputs = collate_features(
            features, pad_token_id=pad_token_id, packing=packing, pad_to_multiple_of=pad_to_multiple_of
        )
        return inputs | labels

    def postprocess(
        self, dataset: "datasets.Dataset", features: "datasets.Dataset", outputs: Iterable[FloatArray]
    ) -> Predictions:
        """Returns the likeliest label of each example with the `probabilities` of all (N, labels), or its number."""
        return self._predict(np.stack(list(outputs)).astype(np.float64))

    def is_degenerate(self, predictions: Predictions, dataset: "datasets.Dataset") -> bool:
        """See `Task.is_degenerate`. Numbers are never quite equal: theirs spread less than 1% of what the labels do.

        Spread is the standard deviation. Labels that are all equal ask for a constant.
        """
        labels = np.asarray(dataset["label"][:])
        if is_constant(labels):
            return False
        if self.number_range is None:
            return super().is_degenerate(predictions, dataset)
        return bool(np.std(predictions["prediction"]) < DEGENERATE_SPREAD * np.std(labels))

    def example_scores(self, split: str, dataset: "datasets.Dataset", run_folder: Path) -> ExampleScores:
        """See `Task.example_scores`; whether each label is correct."""
        if self.number_range is not None:
            return super().example_scores(split, dataset, run_folder)
        path = run_folder / f"predictions.{split}.tsv"
        rows = read_prediction_rows(path)
        require_first_rows(path, [row["index"] for row in rows], [str(index) for index in dataset["idx"]])
        expected = [self.label_names[label] for label in dataset["label"][: len(rows)]]
        return {"accuracy": [int(row["prediction"] == name) for row, name in zip(rows, expected, strict=True)]}

    def score_details(self, predictions: Predictions, dataset: "datasets.Dataset") -> dict[str, Any]:
        """See `Task.score_details`."""
        predicted, expected = predictions["prediction"], np.asarray(dataset["label"][:])
        if self.number_range is not None:
            return number_details(predicted, expected)
        details = label_details(predicted, expected, self.label_names)
        sure = predictions["probabilities"].max(axis=1)
        return details | calibration_details(sure, predicted == expected)

    def write_predictions(
        self, directory: str | Path, split: str, dataset: "datasets.Dataset", predictions: Predictions
    ) -> list[Path]:
        """Writes `predictions.SPLIT.tsv` and, of a labelled split, `predictions.SPLIT.errors.jsonl`.

        The first has the columns index, prediction (a label's name, or a number), label (where known), the probability
        of each label, and the texts; the second the hundred errors that the model was surest of, or of numbers the
        hundred that are furthest off.
        """
        path = Path(directory) / f"predictions.{split}.tsv"
        columns: dict[str, Sequence[object]] = {
            "index": dataset["idx"][:],
            "prediction": [self.spelled(value) for value in self.predicted_values(predictions)],
        }
        if self.is_labelled(dataset):
            columns["label"] = [self.spelled(label) for label in dataset["label"]]
        for number, name in enumerate(self.label_names if "probabilities" in predictions else ()):
            columns[f"probability_{name}"] = [f"{share:.6f}" for share in predictions["probabilities"][:, number]]
        columns |= {name: dataset[name][:] for name in self.text_columns}
        write_prediction_rows(path, columns)
        if not self.is_labelled(dataset):
            return [path]
        errors, records = path.with_suffix(".errors.jsonl"), self.records(dataset, predictions)
        worst = surest_errors(records) if self.number_range is None else furthest_off(records)
        write_json_lines(errors, worst)
        return [path, errors]

    def records(self, dataset: "datasets.Dataset", predictions: Predictions) -> Iterator[dict[str, Any]]:
        """See `Task.records`."""
        values, probabilities = self.predicted_values(predictions), predictions.get("probabilities")
        labelled = self.is_labelled(dataset)
        for row, (example, value) in enumerate(zip(dataset, values, strict=True)):
            record = {"index": example["idx"], **{name: example[name] for name in self.text_columns}}
            if labelled:
                record["label"] = self.json_label(example["label"])
            record["prediction"] = self.json_label(value)
            if probabilities is not None:
                record["probability"] = self.answer_probability(value, probabilities[row])
                shares = zip(self.label_names, probabilities[row], strict=True)
                record["probabilities"] = {name: round(float(share), 6) for name, share in shares}
            yield record

    def json_label(self, value: Any) -> Any:
        """Returns a label, or a number, as records hold it."""
        return float(f"{value:.9g}") if self.number_range is not None else self.label_names[value]

    def answer_probability(self, value: Any, probabilities: npt.NDArray[np.float64]) -> float:
        """Returns the probability of an answer, given those of all labels, (labels,)."""
        return round(float(probabilities[value]), 6)

    def predicted_values(self, predictions: Predictions) -> Sequence[Any]:
        """Returns the answer to each example, as `spelled` takes it."""
        values: Sequence[Any] = predictions["prediction"]
        return values

    def spelled(self, value: Any) -> str:
        """Spells a label by its name, or a number so that it is read back exactly."""
        return f"{value:.9g}" if self.number_range is not None else self.label_names[value]

    def data_description(self) -> dict[str, Any]:
        """See `Task.data_description`."""
        return {**super().data_description(), "text_columns": list(self.text_columns)}

    def model_settings(self) -> dict[str, Any]:
        """Returns the labels, and whether the loss is cross-entropy or squared error."""
        problem_type = "regression" if self.number_range else "single_label_classification"
        return {**super().model_settings(), "problem_type": problem_type}

    def parse_label(self, text: str) -> int | float | list[int]:
        """Reads a label of a file.

        Args:
            text: as in the file.

        Raises:
            ValueError: it is not a label of this task; the message says what would be.
        """
        if self.number_range is None:
            spellings = self.file_labels or self.label_names
            if text not in spellings:
                raise ValueError(f"label {shown(text)} is not known; it must be one of: {', '.join(spellings)}")
            return spellings.index(text)
        low, high = self.number_range
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not low <= number <= high:
            raise ValueError(f"label {shown(text)} is out of range; it must be a number from {low:g} to {high:g}")
        return number

    def _predict(self, logits: npt.NDArray[np.float64]) -> Predictions:
        if not np.isfinite(logits).all():
            raise NonFiniteError(f"{self.name}: the model's output is not finite")
        if self.number_range:
            return {"prediction": logits.reshape(len(logits))}
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        return {"prediction": logits.argmax(axis=1), "probabilities": weights / weights.sum(axis=1, keepdims=True)}


@dataclass(frozen=True)
class GlueFile:
    """One official file.

    Args:
        name: of the file, in the task's folder.
        texts: its columns for the task's `text_columns`.
        label: its column of labels, required where `labelled`, else read if it is there.
        labelled: whether the file must have labels.
        index: its column of row numbers; None: rows are counted from 0, as in the Hub's dataset.
        header: all its columns, where the file does not name them.
    """

    name: str
    texts: tuple[str, ...]
    label: str = "label"
    labelled: bool = True
    index: str | None = None
    header: tuple[str, ...] | None = None


def official_files(*texts: str, label: str = "label", index: str = "index") -> dict[str, GlueFile]:
    """Describes train.tsv, dev.tsv and test.tsv with the same columns, the usual case."""
    return {
        "train": GlueFile("train.tsv", texts, label),
        "validation": GlueFile("dev.tsv", texts, label),
        "test": GlueFile("test.tsv", texts, label, labelled=False, index=index),
    }


@dataclass(frozen=True, kw_only=True)
class GlueTask(ClassificationTask):
    """A task of GLUE.

    Args:
        files: the official file of each split.
        other_folders: what the folder of the files is also called, beside the task's title.
        drop_incomplete_rows: drop rows with missing fields instead of refusing the file.
        example_texts: an input for the card.
    """

    primary_metric: str = "accuracy"
    metrics: tuple[str, ...] = ("accuracy",)
    files: Mapping[str, GlueFile]
    other_folders: tuple[str, ...] = ()
    drop_incomplete_rows: bool = False
    example_texts: tuple[str, ...] = ("A man is playing a guitar.", "Someone makes music.")
    data_license: str | None = "that of its source; most of GLUE is for research use, or states none"

    def load(self, data_dir: Path | None, splits: Sequence[str]) -> "dict[str, datasets.Dataset]":
        """See `Task.load`; unlabelled splits have no column `label`."""
        if data_dir is None:
            found = from_hub(GLUE_DATASET, splits, name=self.name)
            return {split: without_placeholder_labels(dataset) for split, dataset in found.items()}
        paths = {split: self._folder(data_dir) / self.files[split].name for split in splits}
        found = {split: self._read(split, path) for split, path in paths.items() if path.is_file()}
        if not found:
            raise no_such_file(paths, f"--data_dir is the folder that holds the official {self.title}/")
        return found

    def data_files(self, data_dir: Path) -> list[Path]:
        """See `Task.data_files`."""
        folder = self._folder(data_dir)
        return [folder / self.files[split].name for split in ("train", *self.eval_splits)]

    def data_description(self) -> dict[str, Any]:
        """See `Task.data_description`."""
        return {
            **super().data_description(),
            "dataset": GLUE_DATASET,
            "config": self.name,
            "language": "en",
            "license": self.data_license,
        }

    def example(self, dataset: "datasets.Dataset | None") -> dict[str, Any]:
        """See `Task.example`; sentences of ours, since most of GLUE may not be passed on."""
        return dict(zip(("text", "text_pair"), self.example_texts, strict=False))

    def _folder(self, data_dir: Path) -> Path:
        folders = [data_dir / name for name in (self.title, *self.other_folders)]
        return next((folder for folder in folders if folder.is_dir()), folders[0])

    def _read(self, split: str, path: Path) -> "datasets.Dataset":
        import datasets

        file = self.files[split]
        table = read_tsv(
            path,
            required=(*file.texts, *([file.label] if file.labelled else []), *([file.index] if file.index else [])),
            optional=() if file.labelled else (file.label,),
            header=file.header,
            drop_incomplete_rows=self.drop_incomplete_rows,
        )
        columns: dict[str, list[Any]] = {
            column: table.columns[name] for column, name in zip(self.text_columns, file.texts, strict=True)
        }
        if file.label in table.columns:
            columns["label"] = table.parsed(file.label, self.parse_label)
        columns["idx"] = table.parsed(file.index, _index) if file.index else list(range(len(table.lines)))
        return datasets.Dataset.from_dict(columns)


def _index(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"index {shown(text)} is not a number; take the official file")
    return int(text)
