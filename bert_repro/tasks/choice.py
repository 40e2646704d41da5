"""Predicts which of several endings follows: SWAG (paper 4.4; https://github.com/rowanz/swagaf), or the user's rows.

The model reads one sequence for each ending. One vector is scored against the [CLS] of each, with a softmax over the
endings. The user's rows have SWAG's columns and any number of endings.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_repro.configs import SwagConfig
from bert_repro.errors import UserError
from bert_repro.tasks.base import (
    CUSTOM,
    Batch,
    Columns,
    Feature,
    HubSource,
    JsonObject,
    Predictions,
    Splits,
    Task,
)
from bert_repro.tasks.classification import Answer, ClassificationTask
from bert_repro.tasks.data import read_file
from bert_repro.tasks.encoding import encoded_texts
from bert_repro.tasks.held_out import hold_out
from bert_repro.utils.readers import comma_separated, quoted

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerBase

ENDINGS = ("ending0", "ending1", "ending2", "ending3")
FILES = {"train": "train.csv", "validation": "val.csv", "test": "test.csv"}


@dataclass(frozen=True, kw_only=True)
class SwagTask(ClassificationTask):
    """Choice of the ending.

    A split has the columns `sent1` (a sentence), `sent2` (the beginning of the next one), `ending0`, `ending1` ...,
    `idx` (the row's number from 0) and, if it is labelled, `label` (the number of the right ending).

    Args:
        text_columns: `sent1`, `sent2` and the endings.
    """

    head: str = "BertReproForMultipleChoice"
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

    # --- Data ---

    def official_file(self, data_dir: Path, split: str) -> Path:
        return data_dir / FILES[split]

    def read_official(self, split: str, path: Path) -> "datasets.Dataset":
        return self.from_rows(read_file(path), str(path), may_lack_labels=split == "test")

    def from_rows(self, rows: "datasets.Dataset", where: str, **options: Any) -> "datasets.Dataset":
        """See `ClassificationTask.from_rows`. No ending may be empty."""
        split = super().from_rows(rows, where, **options)
        for name in self.endings:
            for row, text in enumerate(split[name], 1):
                if not text.strip():
                    raise UserError(
                        f"{where}, row {row}: column {name!r} is empty. Every row needs {len(self.endings)} endings."
                    )
        return split

    def parse_label(self, text: Any) -> int:
        label = str("" if text is None else text).strip()
        allowed = [str(place) for place in range(len(self.endings))]
        if label not in allowed:
            raise ValueError(f"label {quoted(text)} is not known; it must be one of: {', '.join(allowed)}")
        return allowed.index(label)

    def data_description(self) -> JsonObject:
        # The columns of a choice are always the same, so they are not described.
        return Task.data_description(self)

    def example(self, dataset: "datasets.Dataset | None") -> None:
        """See `Task.example`. There is none, because SWAG's license is unknown."""

    # --- To and from the model ---

    def model_settings(self) -> JsonObject:
        return {}

    def encode_batch(self, examples: Columns, tokenizer: "PreTrainedTokenizerBase", max_seq_length: int) -> Columns:
        """Makes one feature per example, with a sequence for each ending: [CLS] sentence [SEP] beginning ending [SEP].

        Each pair is truncated as every pair is: the longer segment loses its last token until both fit. `length` counts
        the tokens of all sequences of the feature.
        """
        by_ending: list[Columns] = []
        for name in self.endings:
            completions = zip(examples["sent2"], examples[name], strict=True)
            second_texts = [f"{beginning} {ending}" for beginning, ending in completions]
            by_ending.append(encoded_texts(tokenizer, [examples["sent1"], second_texts], max_seq_length))

        # So far each ending has its columns. A feature has a value for each ending.
        features: Columns = {}
        for column in by_ending[0]:
            features[column] = list(zip(*(encoded[column] for encoded in by_ending), strict=True))
        features["length"] = [sum(lengths) for lengths in features["length"]]
        features["truncated"] = [any(is_truncated) for is_truncated in features["truncated"]]
        if "label" in examples:
            features["labels"] = examples["label"]
        return features

    def collate(self, features: Sequence[Feature], **layout: Any) -> Batch:
        """See `Task.collate`. Padded: tensors (B, endings, S). Packed: (1, T), and `num_choices`."""
        import torch

        # Batch all sequences first, as if each were a feature.
        sequences: list[Feature] = []
        for feature in features:
            for ids, segments in zip(feature["input_ids"], feature["token_type_ids"], strict=True):
                sequences.append({"input_ids": ids, "token_type_ids": segments})
        batch = super().collate(sequences, **layout)

        # Then say which of them belong together.
        if layout["packing"]:
            batch["num_choices"] = len(self.endings)
        else:
            batch = {name: tensor.view(len(features), len(self.endings), -1) for name, tensor in batch.items()}
        if "labels" in features[0]:
            batch["labels"] = torch.tensor([feature["labels"] for feature in features])
        return batch

    # --- Answers ---

    def confusion_details(self, predictions: Predictions, dataset: "datasets.Dataset") -> JsonObject:
        """Returns nothing, because the numbers of the endings have no meaning of their own."""
        return {}

    def spelled(self, value: Answer) -> str:
        return str(value)

    def json_label(self, value: Answer) -> int:
        return int(value)

    def json_answer(self, example: Mapping[str, Any], value: Answer) -> JsonObject:
        """Returns the number of the ending, from 0, and its text."""
        return {"prediction": int(value), "answer": example[self.endings[value]]}


def custom_choices(config: SwagConfig, rows: Splits, names: Mapping[str, str]) -> SwagTask:
    """Makes the task of the user's rows, with SWAG's columns and as many endings as the first split has.

    Args:
        config: the settings.
        rows: the data, by split.
        names: what messages call each split.

    Raises:
        UserError: a column is missing, or there are fewer than two endings.
    """
    first_split = next(iter(rows))
    column_names = rows[first_split].column_names
    endings = [f"ending{place}" for place in range(len(column_names)) if f"ending{place}" in column_names]
    if len(endings) < 2:
        raise UserError(
            f"{names[first_split]}: a choice requires the columns sent1, sent2, ending0, ending1 ...; found "
            f"{comma_separated(column_names)}"
        )
    columns = ("sent1", "sent2", *endings)
    title = Path(names[first_split]).stem
    task = dataclasses.replace(SWAG, name=CUSTOM, title=title, text_columns=columns, data_names=names, split_rows={})
    data = {}
    for split, dataset in rows.items():
        data[split] = task.from_rows(dataset, names[split], may_lack_labels=split == "test")
    return dataclasses.replace(task, data=hold_out(data, config, together=columns, strata="label"))


SWAG = SwagTask(
    name="swag",
    title="SWAG",
    paper_batch=16,
    metrics=("accuracy",),
    primary_metric="accuracy",
    hub=HubSource("allenai/swag", "regular"),
    split_rows={"train": 73_546, "validation": 20_006, "test": 20_005},
    data_license="unknown, as its card on the Hub says",
)
