"""What a task is: data and pure functions. The fine-tuning loop knows nothing else about it.

The way of a split, one method per arrow:

    load -> dataset (a row per example) -> encode_batch -> features (a row per model input) -> collate -> the model
    -> an array per feature -> postprocess -> predictions (a value per example) -> score, write.

A sentence pair is one example and one feature with one sequence; a question over a long passage is one example with
several features; an example with four choices is one feature with four sequences. So only `encode_batch` decides how
examples become features, only `collate` how features become sequences, and only `postprocess` leads back.

Datasets and features are `datasets.Dataset`s, memory-mapped where they come from disk.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from bert_repro.errors import NonFiniteError, UserError
from bert_repro.tasks.data import from_hub
from bert_repro.tasks.metrics import compute

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerBase

    from bert_repro.configs import FinetuningConfig

Feature = Mapping[str, Any]
Batch = dict[str, Any]
Predictions = dict[str, Any]
"""Columns with one value per example: `prediction` always, others (probabilities ...) as the task has them."""
FloatArray = npt.NDArray[np.float32]
ExampleScores = dict[str, list[int] | list[float] | list[list[int]]]
"""Metric -> a score for each example, or what a score that is no mean over examples counts in each."""


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """Everything the fine-tuning loop asks of a task.

    Args:
        name: what `--task_name` says.
        title: the name that people write, for reports and cards.
        head: name of the class in `bert_repro.models` that is fine-tuned.
        metrics: keys of `bert_repro.tasks.metrics.METRICS`; all are reported on every labelled split.
        primary_metric: the metric that chooses among runs on dev.
        paper_metrics: the metrics that a table of the paper prints for this task; keys such as `table_1`.
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
    """

    name: str
    title: str
    head: str
    metrics: tuple[str, ...]
    primary_metric: str
    paper_metrics: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    label_names: tuple[str, ...] = ()
    train_split: str | None = "train"
    eval_splits: tuple[str, ...] = ("validation",)
    predict_splits: tuple[str, ...] = ("test",)
    paper_batch: int = 32
    paper_epochs: float = 3.0
    hub: tuple[str, str | None, str | None] = ("", None, None)
    data_license: str | None = None
    data: "Mapping[str, datasets.Dataset]" = field(default_factory=dict, repr=False)
    data_names: Mapping[str, str] = field(default_factory=dict)
    reference_column: ClassVar[str] = "label"
    official_folder: ClassVar[str] = "the folder of the official files"

    @property
    def sequences_per_example(self) -> int:
        """How many sequences the encoder reads for one row of a batch."""
        return 1

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

    def deviations(
        self, tokenizer: "PreTrainedTokenizerBase", splits: "Mapping[str, datasets.Dataset]"
    ) -> dict[str, str]:
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
    def encode_batch(
        self, examples: Mapping[str, list[Any]], tokenizer: "PreTrainedTokenizerBase", max_seq_length: int
    ) -> dict[str, list[Any]]:
        """Turns some examples, as columns, into their features, as columns, in the order of the examples.

        Returns:
            `input_ids`, `token_type_ids`, `length` (tokens), `truncated`, `labels` if the split is labelled, and what
            else the task's `postprocess` needs.

        Raises:
            UserError: the tokenizer lacks special tokens.
        """

    def rows_at_once(self, dataset: "datasets.Dataset", max_seq_length: int) -> int | None:
        """Returns how many examples `encode_batch` takes at once; None: all."""
        return 1000

    def encoding_settings(self) -> dict[str, Any]:
        """Returns what decides `encode_batch`'s work beside its arguments."""
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

    def collate(
        self, features: Sequence[Feature], *, pad_token_id: int, packing: bool, pad_to_multiple_of: int | None = None
    ) -> Batch:
        """Batches features.

        Args:
            features: rows of what `encode_batch` returned.
            pad_token_id: fills the places after a sequence's end.
            packing: lay the sequences end to end instead of padding them.
            pad_to_multiple_of: round the columns of a padded batch up to a multiple of this.

        Returns:
            Inputs of the head as `bert_repro.training.batches.collate_features` documents them, with `labels` (B,) if
            the features have them.
        """
        import torch

        from bert_repro.training.batches import collate_features

        batch: Batch = collate_features(
            features, pad_token_id=pad_token_id, packing=packing, pad_to_multiple_of=pad_to_multiple_of
        )
        if "labels" in features[0]:
            batch["labels"] = torch.tensor([feature["labels"] for feature in features])
        return batch

    def loss_items(self, features: Sequence[Feature]) -> npt.NDArray[Any]:
        """Returns how much each feature counts in the loss, which is divided by the sum over the global batch.

        One per feature here; a tagging task counts labelled words, weighted labels count their weights.
        """
        return np.ones(len(features), dtype=np.int64)

    @abstractmethod
    def postprocess(
        self, dataset: "datasets.Dataset", features: "datasets.Dataset", outputs: Iterable[FloatArray]
    ) -> Predictions:
        """Turns what the model said about features into what it predicts for examples.

        Args:
            dataset: the split.
            features: its features.
            outputs: what `bert_repro.finetuning.run.output_rows` gave for each feature, in order, with the last axis
                in the order of `label_names` (see `label_columns`).

        Raises:
            NonFiniteError: an output is not finite.
        """

    def require_finite(self, values: npt.NDArray[Any]) -> None:
        """Raises `NonFiniteError` for an output of the model that is not finite."""
        if not np.isfinite(values).all():
            raise NonFiniteError(f"{self.name}: the model's output is not finite")

    def references(self, dataset: "datasets.Dataset") -> Sequence[Any]:
        """Returns what the predictions of a labelled split are compared with."""
        found: list[Any] = dataset[self.reference_column][:]
        return found

    def score(self, predictions: Predictions, dataset: "datasets.Dataset") -> dict[str, float]:
        """Scores what `postprocess` returned for a labelled split; fractions, see `bert_repro.tasks.metrics`."""
        return compute(self.metrics, predictions["prediction"], self.references(dataset))

    def score_details(self, predictions: Predictions, dataset: "datasets.Dataset") -> dict[str, Any]:
        """Returns what the scores of a labelled split consist of, ready for JSON: `labels` and `confusion_matrix`."""
        return {}

    @abstractmethod
    def records(self, dataset: "datasets.Dataset", predictions: Predictions) -> Iterator[dict[str, Any]]:
        """Yields a record of JSON for each example of a split, in order: `index` or `id`; the texts; `label`, if known;
        `prediction` in the form of the label, its `probability`, and the `probabilities` of all where these are few.
        """

    def is_degenerate(self, predictions: Predictions, dataset: "datasets.Dataset") -> bool:
        """Returns whether a model gives one answer whatever it reads, the known failure of BERT on small sets (4.1).

        One prediction alone shows nothing.
        """
        return len(dataset) > 1 and len(set(predictions["prediction"])) == 1

    def example_scores(self, split: str, dataset: "datasets.Dataset", run_folder: Path) -> ExampleScores:
        """Scores every example of a split from the predictions that a run wrote, for paired statistics.

        Returns:
            0 or 1 for `accuracy` and `exact_match`, a fraction for SQuAD's `f1`, and for `entity_f1`, which is no mean
            over sentences, [correct, predicted, true entities] of each.

        Raises:
            UserError: the predictions are missing or are those of other data, or the task's score is no sum over
                examples (correlations).
        """
        raise UserError(f"task {self.name}: its score is no sum over examples, so there are none to resample")

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
