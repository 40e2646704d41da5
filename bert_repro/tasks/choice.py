"""SWAG: which of four endings follows (paper 4.4; https://github.com/rowanz/swagaf), or the user's rows of that form.

A sequence for each ending, one vector scored against each [CLS], a softmax over them. The user's rows have SWAG's
columns and any number of endings.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_repro.configs import FinetuningConfig, SwagConfig
from bert_repro.errors import UserError
from bert_repro.tasks.base import Batch, ExampleScores, Feature, FloatArray, Predictions, Task
from bert_repro.tasks.data import divided, parsed, read_file, short_row, texts, values
from bert_repro.tasks.encoding import join, special_ids, token_ids, truncated_lengths
from bert_repro.tasks.predictions import (
    read_predictions,
    softmax,
    surest_errors,
    write_json_lines,
    write_prediction_rows,
)
from bert_repro.utils.readers import listed, shown

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerBase

ENDINGS = ("ending0", "ending1", "ending2", "ending3")
FILES = {"train": "train.csv", "validation": "val.csv", "test": "test.csv"}


@dataclass(frozen=True, kw_only=True)
class SwagTask(Task):
    """Choice of the ending.

    A split has the columns `sent1` (a sentence), `sent2` (the start of the next one), `ending0` to `ending3`, `idx`
    (the row's number from 0) and, if it is labelled, `label` (the right ending).

    Args:
        start_segment: the segment that holds the start of the second sentence: `B`, before the ending, or `A`, after
            the first sentence.
        endings: the columns of the endings.
    """

    head: str = "BertReproForMultipleChoice"
    start_segment: str = "B"
    hub: tuple[str, str | None, str | None] = ("allenai/swag", "regular", None)
    data_license: str | None = "unknown, as its card on the Hub says"
    endings: tuple[str, ...] = ENDINGS
    official_folder = "the folder that holds SWAG's official CSV files"

    def prepared(self, config: FinetuningConfig, tokenizer: "PreTrainedTokenizerBase") -> "SwagTask":
        return dataclasses.replace(self, start_segment=getattr(config, "start_segment", self.start_segment))

    @property
    def sequences_per_example(self) -> int:
        return len(self.endings)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of text."""
        return ("sent1", "sent2", *self.endings)

    def official_file(self, data_dir: Path, split: str) -> Path:
        return data_dir / FILES[split]

    def read_official(self, split: str, path: Path) -> "datasets.Dataset":
        return self.from_rows(read_file(path), str(path), may_lack_labels=split == "test")

    def from_published(self, dataset: "datasets.Dataset") -> "datasets.Dataset":
        return super().from_published(dataset).add_column("idx", list(range(len(dataset))))

    def from_rows(self, rows: "datasets.Dataset", where: str, *, may_lack_labels: bool) -> "datasets.Dataset":
        """Returns the split that rows with SWAG's columns are."""
        import datasets

        columns: dict[str, Any] = {name: texts(rows, name, where) for name in self.columns}
        for name in self.endings:
            if "" in (found := [text.strip() for text in columns[name]]):
                raise UserError(
                    f"{where}, row {found.index('') + 1}: column {name!r} is empty; every row needs "
                    f"{len(self.endings)} endings"
                )
        labels = values(rows, "label", where) if not may_lack_labels or "label" in rows.column_names else []
        if not may_lack_labels or any(str(label or "").strip() for label in labels):
            columns["label"] = parsed(labels, "label", where, self._parse_label)
        return datasets.Dataset.from_dict({**columns, "idx": range(len(rows))})

    def _parse_label(self, text: Any) -> int:
        labels = [str(place) for place in range(len(self.endings))]
        if str(text or "").strip() not in labels:
            raise ValueError(f"label {shown(text)} is not known; it must be one of: {', '.join(labels)}")
        return labels.index(str(text).strip())

    def encoding_settings(self) -> dict[str, Any]:
        return {"start_segment": self.start_segment, "endings": self.endings}

    def encode_batch(
        self, examples: Mapping[str, list[Any]], tokenizer: "PreTrainedTokenizerBase", max_seq_length: int
    ) -> dict[str, list[Any]]:
        """Makes one feature of as many sequences as endings per example: [CLS] sentence [SEP] start and ending [SEP].

        Each pair is cut as every pair is: the longer segment loses its last token until both fit. `length` counts the
        tokens of all of them.
        """
        cls, sep = special_ids(tokenizer)
        room = max_seq_length - 3
        first_texts, second_texts = examples["sent1"], [examples[name] for name in self.endings]
        if self.start_segment == "A":
            first_texts = [f"{text} {start}" for text, start in zip(first_texts, examples["sent2"], strict=True)]
        else:
            second_texts = [
                [f"{start} {ending}" for start, ending in zip(examples["sent2"], column, strict=True)]
                for column in second_texts
            ]
        first_ids = token_ids(tokenizer, first_texts)
        second_ids = [token_ids(tokenizer, column) for column in second_texts]
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
        """See `Task.collate`; padded: tensors (B, endings, S). Packed: (1, T) with `num_choices`."""
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
        self.require_finite(logits)
        return {"prediction": logits.argmax(axis=1), "probabilities": softmax(logits)}

    def example_scores(self, split: str, dataset: "datasets.Dataset", run_folder: Path) -> ExampleScores:
        """See `Task.example_scores`; whether each ending is correct."""
        predicted = read_predictions(run_folder / f"predictions.{split}.csv", dataset["idx"][:])
        pairs = zip(predicted, dataset["label"][: len(predicted)], strict=True)
        return {"accuracy": [int(choice == str(label)) for choice, label in pairs]}

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
        for place, name in enumerate(self.endings):
            columns[f"probability_{name}"] = [f"{share:.6f}" for share in predictions["probabilities"][:, place]]
        columns |= {name: dataset[name][:] for name in self.columns}
        write_prediction_rows(path, columns)
        if not self.is_labelled(dataset):
            return [path]
        errors = path.with_suffix(".errors.jsonl")
        write_json_lines(errors, surest_errors(self.records(dataset, predictions)))
        return [path, errors]

    def records(self, dataset: "datasets.Dataset", predictions: Predictions) -> Iterator[dict[str, Any]]:
        """See `Task.records`; labels and predictions are endings, from 0, and `answer` is the text of the predicted."""
        labelled = self.is_labelled(dataset)
        answers = zip(predictions["prediction"].tolist(), predictions["probabilities"].tolist(), strict=True)
        for example, (choice, probabilities) in zip(dataset, answers, strict=True):
            yield {
                "index": example["idx"],
                **{name: example[name] for name in self.columns},
                **({"label": example["label"]} if labelled else {}),
                "prediction": choice,
                "answer": example[self.endings[choice]],
                "probability": round(probabilities[choice], 6),
                "probabilities": dict(zip(self.endings, (round(share, 6) for share in probabilities), strict=True)),
            }

    def example(self, dataset: "datasets.Dataset | None") -> dict[str, Any] | None:
        """See `Task.example`; a row of the user's data. SWAG's license is unknown."""
        row = short_row(dataset if self.data else None, {name: name for name in self.columns})
        return row and {
            "prompt": row["sent1"],
            "choices": [f"{row['sent2']} {row[name]}".strip() for name in self.endings],
        }


def custom_choices(config: SwagConfig, rows: "Mapping[str, datasets.Dataset]", names: Mapping[str, str]) -> SwagTask:
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
    task = dataclasses.replace(
        SWAG, name="custom", title=Path(names[first]).stem, paper_metrics={}, endings=tuple(endings), data_names=names
    )
    data = {
        split: task.from_rows(dataset, names[split], may_lack_labels=split == "test") for split, dataset in rows.items()
    }
    if config.validation_fraction is not None:
        train = data["train"]
        data |= divided(train, train["label"][:], config.validation_fraction, config.seed, names["train"])
    return dataclasses.replace(task, data=data)


SWAG = SwagTask(
    name="swag",
    title="SWAG",
    paper_batch=16,
    metrics=("accuracy",),
    primary_metric="accuracy",
    paper_metrics={"table_4": ("accuracy",)},
)
