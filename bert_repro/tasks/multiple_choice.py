"""SWAG: which of four endings follows (paper 4.4; https://github.com/rowanz/swagaf).

Four sequences per example, one vector scored against each [CLS], a softmax over the four. The loader takes the official
`train.csv`, `val.csv` and `test.csv`, and files of one's own with their columns.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from bert_repro.configs import FinetuningConfig, SwagConfig
from bert_repro.errors import NonFiniteError
from bert_repro.tasks import encoding
from bert_repro.tasks.base import Batch, ExampleScores, Feature, FloatArray, Predictions, Task
from bert_repro.tasks.encoding import join, special_ids, token_ids, truncated_lengths
from bert_repro.tasks.prediction_files import read_prediction_rows, require_first_rows
from bert_repro.tasks.splits import from_custom_files, from_hub, from_official_files, without_placeholder_labels
from bert_repro.utils.readers import read_table, shown

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerBase

HUB_DATASET, HUB_CONFIG = "allenai/swag", "regular"
ENDINGS = ("ending0", "ending1", "ending2", "ending3")
LABELS = ("0", "1", "2", "3")
FILES = {"train": "train.csv", "validation": "val.csv", "test": "test.csv"}


def _segments(examples: Mapping[str, list[str]], start_segment: str) -> tuple[list[str], list[list[str]]]:
    """Returns segment A of every example, and for each ending segment B of every example."""
    if start_segment == "A":
        firsts = [f"{first} {start}" for first, start in zip(examples["sent1"], examples["sent2"], strict=True)]
        return firsts, [examples[name] for name in ENDINGS]
    seconds = [
        [f"{start} {ending}" for start, ending in zip(examples["sent2"], examples[name], strict=True)]
        for name in ENDINGS
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
        files: one's own file of each split, in place of SWAG's.
    """

    head: str = "BertReproForMultipleChoice"
    start_segment: str = "B"
    data_license: str | None = "unknown, as its card on the Hub says"
    files: Mapping[str, Path] = field(default_factory=dict)
    sequences_per_example: ClassVar[int] = len(ENDINGS)
    encoding_code: ClassVar[tuple[Any, ...]] = (encoding, _segments)

    def prepared(self, config: FinetuningConfig, tokenizer: "PreTrainedTokenizerBase") -> "SwagTask":
        """The task with the configuration's `start_segment` and files."""
        if not isinstance(config, SwagConfig):
            return self
        return dataclasses.replace(self, start_segment=config.start_segment, files=config.data_files)

    def read_splits(self, data_dir: Path | None, splits: Sequence[str]) -> "dict[str, datasets.Dataset]":
        """See `Task.read_splits`; an unlabelled split has no column `label`."""
        if self.files:
            return from_custom_files(self.files, splits, _read)
        if data_dir is None:
            found = from_hub(HUB_DATASET, splits, name=HUB_CONFIG)
            return {split: _numbered(without_placeholder_labels(dataset)) for split, dataset in found.items()}
        paths = {split: data_dir / FILES[split] for split in splits}
        return from_official_files(paths, _read, "--data_dir is the folder that holds SWAG's official CSV files")

    def data_files(self, data_dir: Path) -> list[Path]:
        """See `Task.data_files`."""
        return [data_dir / FILES[split] for split in ("train", *self.eval_splits)]

    def encoding_settings(self) -> dict[str, Any]:
        """See `Task.encoding_settings`."""
        return {"start_segment": self.start_segment}

    def encode_batch(
        self, examples: Mapping[str, list[Any]], tokenizer: "PreTrainedTokenizerBase", max_seq_length: int
    ) -> dict[str, list[Any]]:
        """One feature of four sequences per example: [CLS] sentence [SEP] start and ending [SEP].

        Each pair is cut as every pair is: the longer segment loses its last token until both fit. `length` counts the
        tokens of all four.
        """
        cls, sep = special_ids(tokenizer)
        room = max_seq_length - 3
        firsts, choices = _segments(examples, self.start_segment)
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
        """Batches examples, four sequences each.

        Args:
            features: rows of what `encode` returned.
            pad_token_id: fills the places after a sequence's end.
            packing: lay all sequences end to end instead of padding them.
            pad_to_multiple_of: round S up to a multiple of this; for padded batches only.

        Returns:
            Padded: tensors (B, 4, S). Packed: (1, T) with `num_choices`. `labels` (B,) if the features have them.
        """
        import torch

        from bert_repro.training.collation import collate_features

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
            batch["num_choices"] = len(ENDINGS)
        else:
            batch = {name: tensor.view(len(features), len(ENDINGS), -1) for name, tensor in batch.items()}
        if "labels" in features[0]:
            batch["labels"] = torch.tensor([feature["labels"] for feature in features])
        return batch

    def postprocess(
        self, dataset: "datasets.Dataset", features: "datasets.Dataset", outputs: Iterable[FloatArray]
    ) -> Predictions:
        """The likeliest ending of each example, with the `probabilities` of all four (N, 4)."""
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
        """Writes `predictions.SPLIT.csv`: index, prediction (the ending, from 0), the probability of each ending."""
        path = Path(directory) / f"predictions.{split}.csv"
        with path.open("w", encoding="utf-8", newline="\n") as file:
            file.write(",".join(["index", "prediction", *(f"probability_{name}" for name in ENDINGS)]) + "\n")
            rows = zip(dataset["idx"], predictions["prediction"], predictions["probabilities"], strict=True)
            for index, ending, shares in rows:
                file.write(",".join([str(index), str(ending), *(f"{share:.6f}" for share in shares)]) + "\n")
        return [path]

    def data_description(self) -> dict[str, Any]:
        """See `Task.data_description`; nothing is known of one's own files."""
        if self.files:
            return super().data_description()
        return {"dataset": HUB_DATASET, "config": HUB_CONFIG, "language": "en", "license": self.data_license}


def _read(split: str, path: Path) -> "datasets.Dataset":
    import datasets

    texts = ("sent1", "sent2", *ENDINGS)
    required, optional = (texts, ("label",)) if split == "test" else ((*texts, "label"), ())
    table = read_table(path, required, optional=optional)
    for name in ENDINGS:
        for row, text in enumerate(table.columns[name]):
            if not text.strip():
                raise table.error(row, f"column {name!r} is empty; every row needs four endings")
    columns: dict[str, list[Any]] = {name: table.columns[name] for name in texts}
    if "label" in table.columns:
        columns["label"] = table.parsed("label", _label)
    return datasets.Dataset.from_dict({**columns, "idx": list(range(len(table.lines)))})


def _label(text: str) -> int:
    if text not in LABELS:
        raise ValueError(f"label {shown(text)} is not known; it must be one of: {', '.join(LABELS)}")
    return LABELS.index(text)


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
