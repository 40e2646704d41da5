"""SWAG: which of four endings follows (paper 4.4; https://github.com/rowanz/swagaf), or the user's rows of that form.

A sequence for each ending, one vector scored against each [CLS], a softmax over them. The user's rows have SWAG's
columns and any number of endings.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_repro.configs import SwagConfig
from bert_repro.errors import UserError
from bert_repro.tasks.base import Batch, Columns, Feature, Predictions, Splits, Task, encoded_texts
from bert_repro.tasks.classification import ClassificationTask
from bert_repro.tasks.data import hold_out, read_file
from bert_repro.utils.readers import listed, shown

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerBase

ENDINGS = ("ending0", "ending1", "ending2", "ending3")
FILES = {"train": "train.csv", "validation": "val.csv", "test": "test.csv"}


@dataclass(frozen=True, kw_only=True)
class SwagTask(ClassificationTask):
    """Choice of the ending.

    A split has the columns `sent1` (a sentence), `sent2` (the start of the next one), `ending0` to `ending3`, `idx`
    (the row's number from 0) and, if it is labelled, `label` (the right ending).

    Args:
        text_columns: sentence, start and endings.
    """

    head: str = "BertReproForMultipleChoice"
    hub: tuple[str, str | None, str | None] = ("allenai/swag", "regular", None)
    data_license: str | None = "unknown, as its card on the Hub says"
    text_columns: tuple[str, ...] = ("sent1", "sent2", *ENDINGS)
    predictions_suffix = ".csv"
    official_folder = "the folder that holds SWAG's official CSV files"

    @property
    def sequences_per_example(self) -> int:
        return len(self.endings)

    @property
    def endings(self) -> tuple[str, ...]:
        """The columns of the endings."""
        return self.text_columns[2:]

    @property
    def answer_names(self) -> tuple[str, ...]:
        return self.endings

    def official_file(self, data_dir: Path, split: str) -> Path:
        return data_dir / FILES[split]

    def read_official(self, split: str, path: Path) -> "datasets.Dataset":
        return self.from_rows(read_file(path), str(path), may_lack_labels=split == "test")

    def from_rows(self, rows: "datasets.Dataset", where: str, **given: Any) -> "datasets.Dataset":
        """See `ClassificationTask.from_rows`; no ending may be empty."""
        split = super().from_rows(rows, where, **given)
        for name in self.endings:
            if "" in (found := [text.strip() for text in split[name]]):
                raise UserError(
                    f"{where}, row {found.index('') + 1}: column {name!r} is empty; every row needs "
                    f"{len(self.endings)} endings"
                )
        return split

    def parse_label(self, text: Any) -> int:
        labels = [str(place) for place in range(len(self.endings))]
        if str(text or "").strip() not in labels:
            raise ValueError(f"label {shown(text)} is not known; it must be one of: {', '.join(labels)}")
        return labels.index(str(text).strip())

    def encode_batch(self, examples: Columns, tokenizer: "PreTrainedTokenizerBase", max_seq_length: int) -> Columns:
        """Makes one feature of as many sequences as endings per example: [CLS] sentence [SEP] start and ending [SEP].

        Each pair is cut as every pair is: the longer segment loses its last token until both fit. `length` counts the
        tokens of all of them.
        """
        encoded = []
        for name in self.endings:
            second = [f"{start} {ending}" for start, ending in zip(examples["sent2"], examples[name], strict=True)]
            encoded.append(encoded_texts(tokenizer, [examples["sent1"], second], max_seq_length))
        features: Columns = {name: list(zip(*(one[name] for one in encoded), strict=True)) for name in encoded[0]}
        features["length"] = [sum(lengths) for lengths in features["length"]]
        features["truncated"] = [any(cut) for cut in features["truncated"]]
        if "label" in examples:
            features["labels"] = examples["label"]
        return features

    def collate(self, features: Sequence[Feature], **layout: Any) -> Batch:
        """See `Task.collate`; padded: tensors (B, endings, S). Packed: (1, T) with `num_choices`."""
        import torch

        names = ("input_ids", "token_type_ids")
        sequences: list[Feature] = [
            dict(zip(names, sequence, strict=True))
            for feature in features
            for sequence in zip(*(feature[name] for name in names), strict=True)
        ]
        batch = super().collate(sequences, **layout)
        if layout["packing"]:
            batch["num_choices"] = len(self.endings)
        else:
            batch = {name: tensor.view(len(features), len(self.endings), -1) for name, tensor in batch.items()}
        if "labels" in features[0]:
            batch["labels"] = torch.tensor([feature["labels"] for feature in features])
        return batch

    def score_details(self, predictions: Predictions, dataset: "datasets.Dataset") -> dict[str, Any]:
        return {}

    def spelled(self, value: Any) -> str:
        return str(value)

    def json_label(self, value: Any) -> int:
        return int(value)

    def json_answer(self, example: Mapping[str, Any], value: Any) -> dict[str, Any]:
        """Returns the ending, from 0, and its text."""
        return {"prediction": int(value), "answer": example[self.endings[value]]}

    def data_description(self) -> dict[str, Any]:
        return Task.data_description(self)

    def model_settings(self) -> dict[str, Any]:
        return {}

    def example(self, dataset: "datasets.Dataset | None") -> None:
        """See `Task.example`; none, as SWAG's license is unknown."""


def custom_choices(config: SwagConfig, rows: Splits, names: Mapping[str, str]) -> SwagTask:
    """Makes the task of the user's rows with the columns of SWAG and as many endings as the first split has.

    Raises:
        UserError: a column is missing, or there are fewer than two endings.
    """
    first = next(iter(rows))
    present = rows[first].column_names
    endings = [f"ending{place}" for place in range(len(present)) if f"ending{place}" in present]
    if len(endings) < 2:
        raise UserError(
            f"{names[first]}: a choice needs columns sent1, sent2, ending0, ending1 ...; found {listed(present)}"
        )
    title, columns = Path(names[first]).stem, ("sent1", "sent2", *endings)
    task = dataclasses.replace(SWAG, name="custom", title=title, text_columns=columns, data_names=names)
    data = {
        split: task.from_rows(dataset, names[split], may_lack_labels=split == "test") for split, dataset in rows.items()
    }
    return dataclasses.replace(task, data=hold_out(data, config, together=columns, strata="label"))


SWAG = SwagTask(name="swag", title="SWAG", paper_batch=16, metrics=("accuracy",), primary_metric="accuracy")
