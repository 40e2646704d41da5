"""SWAG: which of four endings follows (paper 4.4; https://github.com/rowanz/swagaf).

A sequence for each ending, one vector scored against each [CLS], a softmax over them. The loader takes the official
`train.csv`, `val.csv` and `test.csv`, and custom files with their columns and any number of endings.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from bert_repro.configs import FinetuningConfig, SwagConfig
from bert_repro.errors import NonFiniteError, UserError
from bert_repro.tasks import encoding
from bert_repro.tasks.base import Batch, ExampleScores, Feature, FloatArray, Predictions, Task
from bert_repro.tasks.encoding import join, special_ids, token_ids, truncated_lengths
from bert_repro.tasks.predictions import (
    calibration_details,
    read_prediction_rows,
    require_first_rows,
    surest_errors,
    write_json_lines,
    write_prediction_rows,
)
from bert_repro.tasks.splits import (
    CustomFiles,
    custom_title,
    from_hub,
    no_such_file,
    short_row,
    without_placeholder_labels,
)
from bert_repro.utils.readers import shown
from bert_repro.utils.tables import read_table

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerBase

HUB_DATASET, HUB_CONFIG = "allenai/swag", "regular"
ENDINGS = ("ending0", "ending1", "ending2", "ending3")
MOST_ENDINGS = 100
FILES = {"train": "train.csv", "validation": "val.csv", "test": "test.csv"}


def _segments(
    examples: Mapping[str, list[str]], endings: Sequence[str], start_segment: str
) -> tuple[list[str], list[list[str]]]:
    """Returns segment A of every example, and for each ending segment B of every example."""
    if start_segment == "A":
        firsts = [f"{first} {start}" for first, start in zip(examples["sent1"], examples["sent2"], strict=True)]
        return firsts, [examples[name] for name in endings]
    seconds = [
        [f"{start} {ending}" for start, ending in zip(examples["sent2"], examples[name], strict=True)]
        for name in endings
    ]
    return examples["sent1"], seconds


@dataclass(frozen=True, kw_only=True)
class SwagTask(Task):
    """Choice of the ending.

    A split has the columns `sent1` (a sentence), `sent2` (the start of the next one), `ending0` to `ending3`, `idx`
    (the row's number from 0) and, if it is labelled, `label` (the right ending).

    Args:
        start_segment: the segment that holds the start of the second sentence: `B`, before the ending, or `A`, after
            the first sentence.
        endings: the columns of the endings.
        files: custom files in place of SWAG's.
    """

    head: str = "BertReproForMultipleChoice"
    start_segment: str = "B"
    data_license: str | None = "unknown, as its card on the Hub says"
    endings: tuple[str, ...] = ENDINGS
    files: CustomFiles | None = None
    encoding_code: ClassVar[tuple[Any, ...]] = (encoding, _segments)

    def prepared(self, config: FinetuningConfig, tokenizer: "PreTrainedTokenizerBase") -> "SwagTask":
        """Returns the task with the configuration's `start_segment`."""
        if not isinstance(config, SwagConfig):
            return self
        return dataclasses.replace(self, start_segment=config.start_segment)

    @property
    def sequences_per_example(self) -> int:
        """See `Task.sequences_per_example`."""
        return len(self.endings)

    def load(self, data_dir: Path | None, splits: Sequence[str]) -> "dict[str, datasets.Dataset]":
        """See `Task.load`; an unlabelled split has no column `label`."""
        if self.files:
            return self.files.read(splits, self._read, lambda dataset: dataset["label"][:])
        if data_dir is None:
            found = from_hub(HUB_DATASET, splits, name=HUB_CONFIG)
            return {split: _numbered(without_placeholder_labels(dataset)) for split, dataset in found.items()}
        paths = {split: data_dir / FILES[split] for split in splits}
        found = {split: self._read(split, path) for split, path in paths.items() if path.is_file()}
        if not found:
            raise no_such_file(paths, "--data_dir is the folder that holds SWAG's official CSV files")
        return found

    def data_files(self, data_dir: Path) -> list[Path]:
        """See `Task.data_files`."""
        return [data_dir / FILES[split] for split in ("train", *self.eval_splits)]

    def encoding_settings(self) -> dict[str, Any]:
        """See `Task.encoding_settings`."""
        return {"start_segment": self.start_segment}

    def encode_batch(
        self, examples: Mapping[str, list[Any]], tokenizer: "PreTrainedTokenizerBase", max_seq_length: int
    ) -> dict[str, list[Any]]:
        """Makes one feature of as many sequences as endings per example: [CLS] sentence [SEP] start and ending [SEP].

        Each pair is cut as every pair is: the longer segment loses its last token until both fit. `length` counts the
        tokens of all of them.
        """
        cls, sep = special_ids(tokenizer)
        room = max_seq_length - 3
        firsts, choices = _segments(examples, self.endings, self.start_segment)
        first_ids = token_ids(tokenizer, firsts)
        second_ids = [token_ids(tokenizer, seconds) for seconds in choices]
        features: dict[str, list[Any]] = {"input_ids": [], "token_type_ids": [], "length": [], "truncated": []}
        for first, *seconds in zip(first_ids, *second_ids, strict=True):
            kept = [truncated_lengths(len(first), len(second), room) for second in seconds]
            pairs = [join(cls, sep, first[:a], second[:b]) for second, (a, b) in zip(seconds, kept, strict=True)]
            features["input_ids"].append([ids for ids, _ in pairs])
            features["token_type_ids"].append([segments for _, segments in pairs])
            features["length"].append(sum(len(ids) for ids, _ in pairs))
            features["truncated"].append(any(len(first) + len(second) > room for second in seconds))
        if "label" in examples:
            features["labels"] = examples["label"]
        return features

    def collate(
        self, features: Sequence[Feature], *, pad_token_id: int, packing: bool, pad_to_multiple_of: int | None = None
    ) -> Batch:
        """Batches examples, as many sequences each as there are endings.

        Args:
            features: rows of what `encode` returned.
            pad_token_id: fills the places after a sequence's end.
            packing: lay all sequences end to end instead of padding them.
            pad_to_multiple_of: round S up to a multiple of this; for padded batches only.

        Returns:
            Padded: tensors (B, endings, S). Packed: (1, T) with `num_choices`. `labels` (B,) if the features have them.
        """
        import torch

        from bert_repro.training.batches import collate_features

        names = ("input_ids", "token_type_ids")
        sequences = [
            dict(zip(names, sequence, strict=True))
            for feature in features
            for sequence in zip(*(feature[name] for name in names), strict=True)
        ]
        batch = collate_features(
            sequences, pad_token_id=pad_token_id, packing=packing, pad_to_multiple_of=pad_to_multiple_of
        )
        if packing:
            batch["num_choices"] = len(self.endings)
        else:
            batch = {name: tensor.view(len(features), len(self.endings), -1) for name, tensor in batch.items()}
        if "labels" in features[0]:
            batch["labels"] = torch.tensor([feature["labels"] for feature in features])
        return batch

    def postprocess(
        self, dataset: "datasets.Dataset", features: "datasets.Dataset", outputs: Iterable[FloatArray]
    ) -> Predictions:
        """Returns the likeliest ending of each example, with the `probabilities` of all, (N, endings)."""
        logits = np.stack(list(outputs)).astype(np.float64)
        if not np.isfinite(logits).all():
            raise NonFiniteError(f"{self.name}: the model's output is not finite")
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        return {"prediction": logits.argmax(axis=1), "probabilities": weights / weights.sum(axis=1, keepdims=True)}

    def example_scores(self, split: str, dataset: "datasets.Dataset", run_folder: Path) -> ExampleScores:
        """See `Task.example_scores`; whether each ending is correct."""
        path = run_folder / f"predictions.{split}.csv"
        rows = read_prediction_rows(path)
        require_first_rows(path, [row["index"] for row in rows], [str(index) for index in dataset["idx"]])
        expected = dataset["label"][: len(rows)]
        return {"accuracy": [int(row["prediction"] == str(label)) for row, label in zip(rows, expected, strict=True)]}

    def write_predictions(
        self, directory: str | Path, split: str, dataset: "datasets.Dataset", predictions: Predictions
    ) -> list[Path]:
        """Writes `predictions.SPLIT.csv`: index, prediction (the ending, from 0), label (where known), the probability
        of each ending, and the texts; of a labelled split also `predictions.SPLIT.errors.jsonl`, the hundred errors
        that the model was surest of."""
        path = Path(directory) / f"predictions.{split}.csv"
        columns: dict[str, Sequence[object]] = {"index": dataset["idx"][:], "prediction": predictions["prediction"]}
        if self.is_labelled(dataset):
            columns["label"] = dataset["label"][:]
        for number, name in enumerate(self.endings):
            columns[f"probability_{name}"] = [f"{share:.6f}" for share in predictions["probabilities"][:, number]]
        columns |= {name: dataset[name][:] for name in ("sent1", "sent2", *self.endings)}
        write_prediction_rows(path, columns)
        if not self.is_labelled(dataset):
            return [path]
        errors = path.with_suffix(".errors.jsonl")
        write_json_lines(errors, surest_errors(self.records(dataset, predictions)))
        return [path, errors]

    def score_details(self, predictions: Predictions, dataset: "datasets.Dataset") -> dict[str, Any]:
        """See `Task.score_details`."""
        expected = np.asarray(dataset["label"][:])
        return calibration_details(predictions["probabilities"].max(axis=1), predictions["prediction"] == expected)

    def records(self, dataset: "datasets.Dataset", predictions: Predictions) -> Iterator[dict[str, Any]]:
        """See `Task.records`; labels and predictions are endings, from 0, and `answer` is the text of the predicted."""
        labelled = self.is_labelled(dataset)
        answers = zip(predictions["prediction"].tolist(), predictions["probabilities"].tolist(), strict=True)
        for example, (choice, probabilities) in zip(dataset, answers, strict=True):
            record = {name: example[name] for name in ("sent1", "sent2", *self.endings)}
            yield {
                "index": example["idx"],
                **record,
                **({"label": example["label"]} if labelled else {}),
                "prediction": choice,
                "answer": example[self.endings[choice]],
                "probability": round(probabilities[choice], 6),
                "probabilities": dict(zip(self.endings, (round(share, 6) for share in probabilities), strict=True)),
            }

    def _read(self, split: str, path: Path) -> "datasets.Dataset":
        import datasets

        texts = ("sent1", "sent2", *self.endings)
        required, optional = (texts, ("label",)) if split == "test" else ((*texts, "label"), ())
        table = read_table(path, required, optional=optional)
        for name in self.endings:
            for row, text in enumerate(table.columns[name]):
                if not text.strip():
                    raise table.error(row, f"column {name!r} is empty; every row needs {len(self.endings)} endings")
        columns: dict[str, list[Any]] = {name: table.columns[name] for name in texts}
        if "label" in required or table.is_filled("label"):
            columns["label"] = table.parsed("label", self._parse_label)
        return datasets.Dataset.from_dict({**columns, "idx": list(range(len(table.lines)))})

    def _parse_label(self, text: str) -> int:
        labels = [str(number) for number in range(len(self.endings))]
        if text not in labels:
            raise ValueError(f"label {shown(text)} is not known; it must be one of: {', '.join(labels)}")
        return labels.index(text)

    def example(self, dataset: "datasets.Dataset | None") -> dict[str, Any] | None:
        """See `Task.example`; a row of custom files. SWAG's license is unknown."""
        row = short_row(dataset if self.files else None, {name: name for name in ("sent1", "sent2", *self.endings)})
        return row and {
            "prompt": row["sent1"],
            "choices": [f"{row['sent2']} {row[name]}".strip() for name in self.endings],
        }

    def data_description(self) -> dict[str, Any]:
        """See `Task.data_description`; nothing is known of custom files."""
        if self.files:
            return {**super().data_description(), "files": self.files.names()}
        return {"dataset": HUB_DATASET, "config": HUB_CONFIG, "language": "en", "license": self.data_license}


def custom_choices(config: SwagConfig) -> SwagTask:
    """Makes the task of `--train_file`, `--validation_file` and `--test_file` with the columns of SWAG.

    The number of endings is that of the first file: `ending0`, `ending1` and so on.

    Raises:
        UserError: the file cannot be read or has fewer than two endings.
    """
    path = next(iter(config.data_files.values()))
    present = read_table(path, (), optional=[f"ending{number}" for number in range(MOST_ENDINGS)]).columns
    count = next(number for number in range(MOST_ENDINGS + 1) if f"ending{number}" not in present)
    if count < 2:
        raise UserError(f"{path}: no columns 'ending0' and 'ending1'; a choice needs two endings or more")
    return dataclasses.replace(
        SWAG,
        name="custom",
        title=custom_title(config.data_files),
        paper_metrics={},
        endings=tuple(f"ending{number}" for number in range(count)),
        files=CustomFiles(config.data_files, config.validation_fraction, config.seed),
    )


def _numbered(dataset: "datasets.Dataset") -> "datasets.Dataset":
    return dataset.add_column("idx", list(range(len(dataset))))


SWAG = SwagTask(
    name="swag",
    title="SWAG",
    paper_batch=16,
    metrics=("accuracy",),
    primary_metric="accuracy",
    paper_metrics={"table_4": ("accuracy",)},
)
