"""What a task is: data and pure functions. The fine-tuning loop knows nothing else about it.

The way of a split, one method per arrow:

    load -> dataset (a row per example) -> encode_batch -> features (a row per model input) -> collate -> the model
    -> an array per feature -> postprocess -> predictions (a value per example) -> score, write.

A sentence pair is one example and one feature with one sequence; a question over a long passage is one example with
several features; an example with four choices is one feature with four sequences. So only `encode_batch` decides how
examples become features, only `collate` how features become sequences, and only `postprocess` leads back.

Datasets and features are `datasets.Dataset`s, memory-mapped where they come from disk.
"""

import csv
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from bert_repro.errors import NonFiniteError, UserError
from bert_repro.tasks.data import from_hub
from bert_repro.tasks.metrics import compute
from bert_repro.utils.files import atomic_file

if TYPE_CHECKING:
    import datasets
    from transformers import BatchEncoding, PreTrainedTokenizerBase

    from bert_repro.configs import FinetuningConfig

Feature = Mapping[str, Any]
Batch = dict[str, Any]
Columns = dict[str, list[Any]]
Predictions = dict[str, Any]
"""Columns with one value per example: `prediction` always, others (probabilities ...) as the task has them."""
FloatArray = npt.NDArray[np.float32]
Outputs = Iterable[FloatArray]
Splits: TypeAlias = "Mapping[str, datasets.Dataset]"
ExampleScores = dict[str, list[int] | list[float] | list[list[int]] | list[list[float]]]
"""Metric -> a score for each example, or what a score that is no mean over examples counts in each."""
MOST_LABELS = 50
"""A confusion matrix of more labels is left out."""


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """Everything the fine-tuning loop asks of a task.

    Args:
        name: what `--task_name` says.
        title: the name that people write, for reports and cards.
        head: name of the class in `bert_repro.models` that is fine-tuned.
        metrics: keys of `bert_repro.tasks.metrics.METRICS`; all are reported on every labelled split.
        primary_metric: the metric that chooses among runs on dev.
        label_names: the model's `id2label` in order; empty for heads without labels.
        train_split: the split to train on; None: the task has no training set.
        eval_splits: labelled splits to score, each reported under its name.
        predict_splits: splits to predict, usually unlabelled.
        paper_batch: sequences per optimizer step, where the user gives none.
        paper_epochs: passes over the training set, where the configuration leaves it to the task.
        hub: id, configuration and revision of the task's dataset on the Hub.
        data_license: of the published data, for the card; None: not known.
        data: the user's own splits in place of published ones, in the columns of the task.
        data_names: what messages and the card call them.

    Attributes:
        reference_column: the column of labels, tags or answers; a split without it is unlabelled.
        official_folder: what `--data_dir` is for this task, for messages.
        rows_at_once: how many examples `encode_batch` takes at once; None: all.
        one_feature_per_example: whether every example becomes exactly one feature.
    """

    name: str
    title: str
    head: str
    metrics: tuple[str, ...]
    primary_metric: str
    label_names: tuple[str, ...] = ()
    train_split: str | None = "train"
    eval_splits: tuple[str, ...] = ("validation",)
    predict_splits: tuple[str, ...] = ("test",)
    paper_batch: int = 32
    paper_epochs: float = 3.0
    hub: tuple[str, str | None, str | None] = ("", None, None)
    data_license: str | None = None
    data: Splits = field(default_factory=dict, repr=False)
    data_names: Mapping[str, str] = field(default_factory=dict)
    reference_column: ClassVar[str] = "label"
    official_folder: ClassVar[str] = "the folder of the official files"
    rows_at_once: ClassVar[int | None] = 1000
    one_feature_per_example: ClassVar[bool] = False

    @property
    def sequences_per_example(self) -> int:
        """How many sequences the encoder reads for one row of a batch."""
        return 1

    @property
    def columns_of_text(self) -> tuple[str, ...]:
        """The columns that the model reads: texts, or lists of words."""
        return ()

    # ----------------------------------------------------------------------------------------------- a run's settings

    def prepared(self, config: "FinetuningConfig", tokenizer: "PreTrainedTokenizerBase") -> "Task":
        """Returns the task with a run's settings and tokenizer; called once, before the model loads."""
        return self

    def restored(self, model_config: Any) -> "Task":
        """Returns the task with what a fine-tuned model's configuration stores for it; called after loading."""
        return self

    def tuned(self, predictions: Predictions, dataset: "datasets.Dataset") -> "Task":
        """Returns the task with the settings that are chosen on a labelled split after training.

        They reach the model's configuration through `model_settings`, and inference through `restored`.
        """
        return self

    def deviations(self, tokenizer: "PreTrainedTokenizerBase", splits: Splits) -> dict[str, str]:
        """Returns where the given model or data make a run depart from the paper: name -> one sentence."""
        return {}

    def model_settings(self) -> dict[str, Any]:
        """Returns the settings of the model's configuration that the task decides, for `from_pretrained`."""
        if not self.label_names:
            return {}
        names = self.label_names
        return {"id2label": dict(enumerate(names)), "label2id": {name: index for index, name in enumerate(names)}}

    # ------------------------------------------------------------------------------------------------------------ data

    def load(self, data_dir: Path | None, splits: Sequence[str]) -> "dict[str, datasets.Dataset]":
        """Reads splits: the user's own, else the official files, else the dataset on the Hub.

        Called once for each role (training, evaluation, prediction), so that a role none of whose splits is there is
        an error and a partly missing one is not.

        Args:
            data_dir: folder of the official files; None: the task's dataset on the Hub.
            splits: names out of `train_split`, `eval_splits`, `predict_splits`.

        Returns:
            The splits that are there; a missing one is left out.

        Raises:
            UserError: none of the splits is there, or a file is not as the task's official files are.
        """
        found = {split: self.data[split] for split in splits if split in self.data}
        others = [split for split in splits if split not in found]
        if self.name == "custom" or not others:
            if not found:
                raise UserError(f"no file for the {splits[0]} split; name it with --{splits[0]}_file")
            return found
        if data_dir is None:
            name, configuration, revision = self.hub
            published = from_hub(name, others, name=configuration, revision=revision)
            return found | {split: self.from_published(dataset) for split, dataset in published.items()}
        paths = {split: self.official_file(data_dir, split) for split in others}
        found |= {split: self.read_official(split, path) for split, path in paths.items() if path.is_file()}
        if not found:
            missing = " and ".join(map(str, paths.values()))
            raise UserError(f"{missing}: no such file; --data_dir is {self.official_folder}")
        return found

    def official_file(self, data_dir: Path, split: str) -> Path:
        """Returns where a split's official file lies."""
        raise NotImplementedError

    def read_official(self, split: str, path: Path) -> "datasets.Dataset":
        """Reads the official file of a split."""
        raise NotImplementedError

    def from_published(self, dataset: "datasets.Dataset") -> "datasets.Dataset":
        """Brings a split of the Hub's dataset into the task's columns; the Hub marks rows without a label by -1."""
        return dataset.remove_columns("label") if dataset[0].get("label") == -1 else dataset

    def data_files(self, data_dir: Path) -> list[Path]:
        """Lists the official files of the training set and of the labelled splits, whether or not they are there."""
        return [self.official_file(data_dir, split) for split in ("train", *self.eval_splits)]

    def is_labelled(self, dataset: "datasets.Dataset") -> bool:
        """Returns whether a split has the references that `score` needs."""
        return self.reference_column in dataset.column_names

    def data_description(self) -> dict[str, Any]:
        """Returns what results and the card say about the data: `dataset` (its id on the Hub; None: it has none, as
        custom data), `files` (of custom data), `config`, `language`, `text_columns`, `license`."""
        if self.data_names:
            return {"dataset": None, "files": {split: Path(name).name for split, name in self.data_names.items()}}
        name, configuration, _ = self.hub
        known = {"config": configuration} if configuration else {}
        return {"dataset": name or None, **known, "language": "en", "license": self.data_license}

    def example(self, dataset: "datasets.Dataset | None") -> dict[str, Any] | None:
        """Returns an input for the card's snippet and widget, by the names of the Hub's widgets: a text of the training
        set, where there is one and its license allows that, or a sentence of ours; None: the neutral one of the head.
        """
        return None

    # -------------------------------------------------------------------------------------------------- from and to it

    @abstractmethod
    def encode_batch(self, examples: Columns, tokenizer: "PreTrainedTokenizerBase", max_seq_length: int) -> Columns:
        """Turns some examples, as columns, into their features, as columns, in the order of the examples.

        Returns:
            `input_ids`, `token_type_ids`, `length` (tokens), `truncated`, `labels` if the split is labelled, and what
            else the task's `postprocess` needs.

        Raises:
            UserError: the tokenizer lacks special tokens.
        """

    def encoding_settings(self) -> dict[str, Any]:
        """Returns what decides `encode_batch`'s work, its arguments apart."""
        return {}

    def training_features(self, features: "datasets.Dataset") -> "datasets.Dataset":
        """Returns the features that can be trained on; a task that drops some counts them in the log.

        Raises:
            UserError: none is left.
        """
        return features

    def epoch_size(self, features: "datasets.Dataset") -> int:
        """Returns how many rows of `training_features` count as an epoch, which the number of steps is made from."""
        return len(features)

    def count_truncated(self, features: "datasets.Dataset") -> int:
        """Returns how many features lost text to `max_seq_length`."""
        return int(np.sum(features["truncated"][:]))

    def collate(self, features: Sequence[Feature], **layout: Any) -> Batch:
        """Batches features.

        Args:
            features: rows of what `encode_batch` returned.
            layout: `pad_token_id`, `packing`, `pad_to_multiple_of`; see `bert_repro.training.batches.collate_features`.

        Returns:
            Inputs of the head as `collate_features` documents them, with `labels` (B,) if the features have them.
        """
        import torch

        from bert_repro.training.batches import collate_features

        batch: Batch = collate_features(features, **layout)
        if "labels" in features[0]:
            batch["labels"] = torch.tensor([feature["labels"] for feature in features])
        return batch

    def loss_items(self, features: Sequence[Feature]) -> npt.NDArray[Any]:
        """Returns how much each feature counts in the loss, which is divided by the sum over the global batch.

        One per feature here; a tagging task counts labelled words, weighted labels count their weights.
        """
        return np.ones(len(features), dtype=np.int64)

    @abstractmethod
    def postprocess(self, dataset: "datasets.Dataset", features: "datasets.Dataset", outputs: Outputs) -> Predictions:
        """Turns what the model said about features into what it predicts for examples.

        Args:
            dataset: the split.
            features: its features.
            outputs: what `bert_repro.finetuning.outputs.output_rows` gave for each feature, in order, with the last
                axis in the order of `label_names` (see `label_columns`).

        Raises:
            NonFiniteError: an output is not finite.
        """

    def require_finite(self, values: npt.NDArray[Any]) -> None:
        """Raises `NonFiniteError` for an output of the model that is not finite."""
        if not np.isfinite(values).all():
            raise NonFiniteError(f"{self.name}: the model's output is not finite")

    def references(self, dataset: "datasets.Dataset") -> Sequence[Any]:
        """Returns what the predictions of a labelled split are compared with."""
        return cast(list[Any], dataset[self.reference_column][:])

    def score(self, predictions: Predictions, dataset: "datasets.Dataset") -> dict[str, float]:
        """Scores what `postprocess` returned for a labelled split; fractions, see `bert_repro.tasks.metrics`."""
        return compute(self.metrics, predictions["prediction"], self.references(dataset))

    def score_details(self, predictions: Predictions, dataset: "datasets.Dataset") -> dict[str, Any]:
        """Returns what the scores of a labelled split consist of, ready for JSON: `labels` and `confusion_matrix`."""
        return {}

    @abstractmethod
    def records(self, dataset: "datasets.Dataset", predictions: Predictions) -> Iterator[dict[str, Any]]:
        """Yields the answer to each example of a split, in order: `prediction` in the form of the label, its
        `probability`, and that of each answer where these are few (`probability_NAME`). What is written as JSON has the
        example too.
        """

    def is_degenerate(self, predictions: Predictions, dataset: "datasets.Dataset") -> bool:
        """Returns whether a model gives one answer whatever it reads, the known failure of BERT on small sets (4.1).

        One prediction alone shows nothing.
        """
        return len(dataset) > 1 and len(set(predictions["prediction"])) == 1

    def baselines(self, train: "datasets.Dataset", dataset: "datasets.Dataset") -> dict[str, dict[str, float]]:
        """Returns scores that need no network, by the name of the baseline, for the metrics of a labelled split."""
        return {}

    def example_scores(self, split: str, dataset: "datasets.Dataset", run_folder: Path) -> ExampleScores:
        """Scores every example of a split from the predictions that a run wrote, for paired statistics.

        Returns:
            0 or 1 for `accuracy` and `exact_match`, a fraction for SQuAD's `f1`. Scores that are no means over examples
            are made of their parts: `entity_f1`, and `f1` of two classes, of [correct, predicted, true] of each, a
            correlation of the two numbers (for Spearman's their ranks).

        Raises:
            UserError: the predictions are missing or are those of other data.
        """
        raise NotImplementedError

    @abstractmethod
    def write_predictions(
        self, directory: str | Path, split: str, dataset: "datasets.Dataset", predictions: Predictions
    ) -> list[Path]:
        """Writes the predictions of a split as `predictions.SPLIT.*`, in the order of its official file.

        Returns:
            The files written.
        """

    def label_columns(self, id2label: Mapping[int, str]) -> list[int]:
        """Finds where a finished model's logits hold this task's labels.

        Published models order labels as they like; `logits[..., task.label_columns(model.config.id2label)]` is in the
        order of `label_names`. Where names differ in case alone, and no two of them do, they are the same; a model with
        unnamed labels (LABEL_0 ...) is taken to be in the task's order, and the name of a single output does not
        matter.

        Raises:
            UserError: the model tells other labels apart.
        """
        found, wanted = [id2label[index] for index in sorted(id2label)], list(self.label_names)
        unnamed = all(name.lower() == f"label_{index}" for index, name in enumerate(found))
        if len(found) == len(wanted) and (unnamed or len(found) == 1):
            return list(range(len(wanted)))
        difference = f"the model tells apart {', '.join(found)}, but task {self.name} needs {', '.join(wanted)}"
        if sorted(found) != sorted(wanted):
            found, wanted = [name.lower() for name in found], [name.lower() for name in wanted]
        if sorted(found) != sorted(wanted) or len(set(found)) < len(found):
            raise UserError(f"--model_name_or_path: {difference}; name a model fine-tuned for it, or add --do_train")
        return [found.index(name) for name in wanted]


# --- Texts to token ids, with the original implementation's truncation ------------------------------------------------


def encoded_texts(
    tokenizer: "PreTrainedTokenizerBase", texts: Sequence[Sequence[str]], max_seq_length: int
) -> dict[str, list[Any]]:
    """Makes [CLS] text [SEP], or [CLS] first [SEP] second [SEP], cut as the original run_classifier.py does.

    A single text keeps its first tokens; of a pair the longer text loses its last token until both fit.

    Args:
        tokenizer: a fast tokenizer of transformers.
        texts: one column of N texts, or the two columns of N pairs.
        max_seq_length: tokens per sequence, special tokens included.

    Returns:
        Columns of N values: `input_ids`, `token_type_ids`, `length`, and whether the texts were cut, `truncated`.
    """
    cls, sep = special_ids(tokenizer)
    room = max_seq_length - 1 - len(texts)
    features: Columns = {"input_ids": [], "token_type_ids": [], "length": [], "truncated": []}
    for first, *others in zip(*(token_ids(tokenizer, column) for column in texts), strict=True):
        second = others[0] if others else None
        keep_first, keep_second = truncated_lengths(len(first), len(second or ()), room)
        ids, segments = join(cls, sep, first[:keep_first], None if second is None else second[:keep_second])
        features["input_ids"].append(ids)
        features["token_type_ids"].append(segments)
        features["length"].append(len(ids))
        features["truncated"].append(len(first) + len(second or ()) > room)
    return features


def token_ids(tokenizer: "PreTrainedTokenizerBase", texts: Sequence[str]) -> list[list[int]]:
    """Returns the token ids of N texts, see `tokenized`; an empty text gives an empty list."""
    return cast(list[list[int]], tokenized(tokenizer, texts)["input_ids"])


def tokenized(tokenizer: "PreTrainedTokenizerBase", texts: Sequence[str]) -> "BatchEncoding":
    """Tokenizes texts in full, without special tokens.

    "[SEP]" or "[MASK]" written in a text is text, as in the corpus and in the original implementation.

    Args:
        tokenizer: a fast tokenizer of transformers.
        texts: N texts.

    Returns:
        `input_ids`, and by number of a text its `encoding`, with offsets, and its `word_ids`.
    """
    return tokenizer(
        list(texts),
        add_special_tokens=False,
        padding=False,
        truncation=False,
        return_attention_mask=False,
        return_token_type_ids=False,
        split_special_tokens=True,
        verbose=False,
    )


def special_ids(tokenizer: "PreTrainedTokenizerBase") -> tuple[int, int]:
    """Returns the ids of [CLS] and [SEP]."""
    return int(tokenizer.cls_token_id), int(tokenizer.sep_token_id)  # type: ignore[arg-type]


def truncated_lengths(length_a: int, length_b: int, limit: int) -> tuple[int, int]:
    """Computes what truncation leaves of a pair (original run_classifier.py).

    One token at a time leaves the end of the longer text, on a tie that of the second, until both fit.

    Args:
        length_a: tokens of the first text.
        length_b: tokens of the second text.
        limit: tokens that both may have together.

    Returns:
        The tokens that each keeps.
    """
    excess = length_a + length_b - limit
    if excess <= 0:
        return length_a, length_b
    until_equal = min(excess, abs(length_a - length_b))
    if length_a > length_b:
        length_a -= until_equal
    else:
        length_b -= until_equal
    rest = excess - until_equal
    return length_a - rest // 2, length_b - (rest + 1) // 2


def join(
    cls: int, sep: int, first: Sequence[int], second: Sequence[int] | None = None
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int8]]:
    """Makes [CLS] first [SEP], or [CLS] first [SEP] second [SEP] (paper 3, Figure 2).

    Args:
        cls: id of [CLS].
        sep: id of [SEP].
        first: token ids of the first text.
        second: token ids of the second text.

    Returns:
        Token ids and segment ids (0 through the first [SEP], 1 after), both of the sequence's length.
    """
    head = [cls, *first, sep]
    tail = [] if second is None else [*second, sep]
    segments = np.repeat(np.array([0, 1], dtype=np.int8), [len(head), len(tail)])
    return np.array(head + tail, dtype=np.int32), segments


# --- Predictions on disk ----------------------------------------------------------------------------------------------


def write_prediction_rows(path: Path, columns: Mapping[str, Sequence[object]]) -> None:
    """Writes `predictions.SPLIT.tsv` or `.csv` with a first row of names.

    White space inside a text becomes single spaces, so that a row is a line; .tsv has no quotes.
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


def require_first_rows(path: Path, found: Sequence[str], expected: Sequence[str]) -> None:
    """Raises `UserError` unless the predictions are those of a split's first rows, all of them or fewer."""
    if not found or list(found) != list(expected[: len(found)]):
        raise UserError(
            f"{path}: its {len(found)} rows are not those of the data set's {len(expected)}; name the data that the "
            "predictions were made for"
        )


def confusions(predictions: npt.ArrayLike, references: npt.ArrayLike, names: Sequence[str]) -> dict[str, Any]:
    """Returns `labels` and `confusion_matrix`, whose rows are true and whose columns are predicted labels.

    Args:
        predictions: label ids, (N,).
        references: label ids, (N,).
        names: of the labels; of more than `MOST_LABELS` nothing is returned.
    """
    from sklearn.metrics import confusion_matrix

    if len(names) > MOST_LABELS:
        return {}
    matrix = confusion_matrix(references, predictions, labels=list(range(len(names))))
    return {"labels": list(names), "confusion_matrix": matrix.tolist()}
