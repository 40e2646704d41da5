"""Defines what a task is: data and pure functions. The fine-tuning loop knows nothing else about it.

A split passes through these methods:

    load -> dataset (a row per example) -> encode_batch -> features (a row per model input) -> collate -> the model
    -> an array per feature -> postprocess -> predictions (a value per example) -> score, write.

A sentence pair is one example and one feature with one sequence. A question about a long passage is one example with
several features. An example with four choices is one feature with four sequences. So `encode_batch` alone decides how
examples become features, `collate` how features become sequences, and `postprocess` how outputs become predictions.

Datasets and features are `datasets.Dataset` objects, which are memory-mapped if they come from disk.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from bert_repro.errors import NonFiniteError, UserError, flag
from bert_repro.tasks.data import from_hub
from bert_repro.tasks.evaluate_metrics import compute_metrics

if TYPE_CHECKING:
    import datasets
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

    from bert_repro.configs import FinetuningConfig
    from bert_repro.tasks.named_datasets import NamedDataset

JsonObject: TypeAlias = dict[str, Any]
Feature = Mapping[str, Any]
Batch = dict[str, Any]
Columns = dict[str, list[Any]]
Predictions = dict[str, Any]
"""Columns with one value per example: always `prediction`, and others (probabilities ...) that the task needs."""
FloatArray = npt.NDArray[np.float32]
Outputs = Iterable[FloatArray]
Splits: TypeAlias = "Mapping[str, datasets.Dataset]"
ExampleScores = dict[str, list[int] | list[float] | list[list[int]] | list[list[float]]]
"""Metric -> a score for each example, or what each example contributes to a score that is not a mean over examples."""
CUSTOM = "custom"
"""Name of the tasks that are made of the user's own data."""


class HubSource(NamedTuple):
    """Where a task's dataset is on the Hub.

    Args:
        dataset: its id; empty: the task has none.
        configuration: its configuration; None: the default one.
        revision: branch or commit; None: the main branch.
    """

    dataset: str = ""
    configuration: str | None = None
    revision: str | None = None


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """Everything that the fine-tuning loop needs to know about a task.

    Args:
        name: the name that `--task_name` accepts.
        title: the name that people write, for reports and cards.
        head: name of the class in `bert_repro.models` that is fine-tuned.
        metrics: keys of `bert_repro.tasks.metrics.METRICS`; all of them are reported for every labelled split.
        primary_metric: the metric that chooses among runs on dev.
        label_names: the model's `id2label` in order; empty for heads without labels.
        train_split: the split to train on; None: the task has no training set.
        eval_splits: the labelled splits to score, each reported under its name.
        predict_splits: the splits to predict, which usually have no labels.
        paper_batch: sequences per optimizer step, if the user does not choose it.
        paper_epochs: passes over the training set, if the configuration leaves it to the task.
        hub: the task's dataset on the Hub: id, configuration, revision.
        split_rows: rows of the published splits (SQuAD: questions, CoNLL-2003: sentences). A score over fewer rows is
            not the split's score.
        in_paper: whether the paper reports the task.
        data_license: license of the published data, for the card; None: unknown.
        data: the user's own splits instead of published ones, in the task's columns.
        data_names: what messages and the card call the user's own splits.
        named_dataset: the dataset of `--dataset_name`, if the user's splits come from one.

    Attributes:
        reference_column: the column of labels, tags or answers; a split without it is unlabelled.
        official_folder: what `--data_dir` must be for this task, for messages.
        rows_at_once: how many examples `encode_batch` processes at once; None: all.
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
    hub: tuple[str, str | None, str | None] = HubSource()
    split_rows: Mapping[str, int] = field(default_factory=dict)
    in_paper: bool = True
    data_license: str | None = None
    data: Splits = field(default_factory=dict, repr=False)
    data_names: Mapping[str, str] = field(default_factory=dict)
    named_dataset: "NamedDataset | None" = field(default=None, repr=False)
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

    # --- Settings of a run ---

    def prepared(self, config: "FinetuningConfig", tokenizer: "PreTrainedTokenizerBase") -> "Task":
        """Returns the task with a run's settings and tokenizer. Called once, before the model is loaded."""
        return self

    def restored(self, model_config: "PretrainedConfig") -> "Task":
        """Returns the task with the settings that a fine-tuned model's configuration stores for it.

        Called after the model is loaded.
        """
        return self

    def tuned(self, predictions: Predictions, dataset: "datasets.Dataset") -> "Task":
        """Returns the task with the settings that are chosen on a labelled split after training.

        They are stored in the model's configuration by `model_settings` and read from it by `restored`.
        """
        return self

    def deviations(self, tokenizer: "PreTrainedTokenizerBase", splits: Splits) -> dict[str, str]:
        """Returns how a run departs from the paper because of the model or the data: name -> one sentence."""
        return {}

    def model_settings(self) -> JsonObject:
        """Returns the settings of the model's configuration that depend on the task, for `from_pretrained`."""
        if not self.label_names:
            return {}
        return {
            "id2label": dict(enumerate(self.label_names)),
            "label2id": {name: index for index, name in enumerate(self.label_names)},
        }

    # --- Data ---

    def load(self, data_dir: Path | None, splits: Sequence[str]) -> "dict[str, datasets.Dataset]":
        """Reads splits: the user's own data, or the official files, or the dataset on the Hub.

        It is called once for each role (training, evaluation, prediction). If none of a role's splits exists, that is
        an error; if only some are missing, they are left out.

        Args:
            data_dir: folder of the official files; None: use the dataset on the Hub.
            splits: names from `train_split`, `eval_splits`, `predict_splits`.

        Raises:
            UserError: none of the splits exists, or a file does not have the structure of the official file.
        """
        loaded = {split: self.data[split] for split in splits if split in self.data}
        published_splits = [split for split in splits if split not in loaded]
        if self.name == CUSTOM or not published_splits:
            if not loaded:
                setting = f"{splits[0]}_file"
                raise UserError(f"No file for the {splits[0]} split. Pass it with {flag(setting)}.", setting=setting)
            return loaded

        if data_dir is None:
            dataset_id, configuration, revision = self.hub
            published = from_hub(dataset_id, published_splits, name=configuration, revision=revision)
            for split, dataset in published.items():
                loaded[split] = self.from_published(dataset)
            return loaded

        paths = {split: self.official_file(data_dir, split) for split in published_splits}
        for split, path in paths.items():
            if path.is_file():
                loaded[split] = self.read_official(split, path)
        if not loaded:
            missing = " and ".join(map(str, paths.values()))
            raise UserError(
                f"{missing}: no such file; {flag('data_dir')} is {self.official_folder}", setting="data_dir"
            )
        return loaded

    def official_file(self, data_dir: Path, split: str) -> Path:
        """Returns the path of a split's official file."""
        raise NotImplementedError

    def read_official(self, split: str, path: Path) -> "datasets.Dataset":
        """Reads the official file of a split."""
        raise NotImplementedError

    def from_published(self, dataset: "datasets.Dataset") -> "datasets.Dataset":
        """Converts a split of the Hub's dataset to the task's columns."""
        # The Hub marks the rows of an unlabelled split with the label -1.
        if dataset[0].get("label") == -1:
            return dataset.remove_columns("label")
        return dataset

    def data_files(self, data_dir: Path) -> list[Path]:
        """Returns the paths of the official training set and labelled splits, whether or not they exist."""
        return [self.official_file(data_dir, split) for split in ("train", *self.eval_splits)]

    def is_labelled(self, dataset: "datasets.Dataset") -> bool:
        """Returns whether a split has the references that `score` needs."""
        return self.reference_column in dataset.column_names

    def data_description(self) -> JsonObject:
        """Returns what results and the card say about the data.

        That is `dataset` (id on the Hub; None if there is none), `files` (of custom data), `config`, `language`,
        `text_columns`, `license`.
        """
        if self.named_dataset is not None and self.named_dataset.hub_id is not None:
            return self.named_dataset.description()
        if self.data_names:
            return {"dataset": None, "files": {split: Path(name).name for split, name in self.data_names.items()}}
        dataset_id, configuration, _ = self.hub
        description: JsonObject = {"dataset": dataset_id or None}
        if configuration:
            description["config"] = configuration
        return {**description, "language": "en", "license": self.data_license}

    def published_rows(self, split: str) -> int | None:
        """Returns how many rows a published split has, or None for the user's own files.

        A score over fewer rows is not the split's score.
        """
        if self.named_dataset is None:
            return None if self.name == "custom" else self.split_rows.get(split)
        rows = self.named_dataset.rows.get(split)
        return None if rows is None or self.named_dataset.hub_id is None else len(rows)

    def example(self, dataset: "datasets.Dataset | None") -> JsonObject | None:
        """Returns an input for the card's code and widget, keyed as the Hub's widgets expect it.

        It comes from the training set, if there is one and its license allows it, or is written by us. None: the card
        uses the neutral example of the head.
        """
        return None

    # --- To and from the model ---

    @abstractmethod
    def encode_batch(self, examples: Columns, tokenizer: "PreTrainedTokenizerBase", max_seq_length: int) -> Columns:
        """Converts some examples (as columns) to features (as columns), in the order of the examples.

        Returns:
            `input_ids`, `token_type_ids`, `length` (tokens), `truncated`, `labels` if the split is labelled, and what
            the task's `postprocess` needs.

        Raises:
            UserError: the tokenizer lacks special tokens.
        """

    def encoding_settings(self) -> JsonObject:
        """Returns everything that decides the result of `encode_batch`, except its arguments."""
        return {}

    def training_features(self, features: "datasets.Dataset") -> "datasets.Dataset":
        """Returns the features that can be trained on. A task that drops some logs how many.

        Raises:
            UserError: none can be trained on.
        """
        return features

    def epoch_size(self, features: "datasets.Dataset") -> int:
        """Returns how many rows of `training_features` count as one epoch. It decides the number of steps."""
        return len(features)

    def count_truncated(self, features: "datasets.Dataset") -> int:
        """Returns how many features lost text to `max_seq_length`."""
        return int(np.sum(features["truncated"][:]))

    def collate(self, features: Sequence[Feature], **layout: Any) -> Batch:
        """Makes a batch of features.

        Args:
            features: rows of the features that `encode_batch` returned.
            layout: `pad_token_id`, `packing`, `pad_to_multiple_of`; see `bert_repro.training.batches.collate_features`.

        Returns:
            The inputs of the head, see `collate_features`, and `labels` (B,) if the features have them.
        """
        import torch

        from bert_repro.training.batches import collate_features

        batch: Batch = collate_features(features, **layout)
        if "labels" in features[0]:
            batch["labels"] = torch.tensor([feature["labels"] for feature in features])
        return batch

    def loss_items(self, features: Sequence[Feature]) -> npt.NDArray[Any]:
        """Returns how much each feature counts in the loss, which is divided by the sum over the global batch.

        Here each counts 1. A tagging task counts labelled words, and class weights count their weight.
        """
        return np.ones(len(features), dtype=np.int64)

    @abstractmethod
    def postprocess(self, dataset: "datasets.Dataset", features: "datasets.Dataset", outputs: Outputs) -> Predictions:
        """Converts the model's outputs for features to predictions for examples.

        Args:
            dataset: the split.
            features: its features.
            outputs: an array for each feature, in order, from `bert_repro.finetuning.outputs.output_rows`. The last
                axis is in the order of `label_names` (see `label_columns`).

        Raises:
            NonFiniteError: an output is not finite.
        """

    def require_finite(self, values: npt.NDArray[Any]) -> None:
        """Raises `NonFiniteError` if an output of the model is not finite."""
        if not np.isfinite(values).all():
            raise NonFiniteError(f"{self.name}: the model's output is not finite.")

    # --- Scores ---

    def references(self, dataset: "datasets.Dataset") -> Sequence[Any]:
        """Returns the true values of a labelled split, which predictions are compared with."""
        return cast(list[Any], dataset[self.reference_column][:])

    def score(self, predictions: Predictions, dataset: "datasets.Dataset") -> dict[str, float]:
        """Scores the predictions for a labelled split. Scores are fractions, see `bert_repro.tasks.metrics`."""
        return self.compute_metrics(predictions["prediction"], self.references(dataset))

    def compute_metrics(self, predictions: Sequence[Any], references: Sequence[Any]) -> dict[str, float]:
        """Computes the task's metrics with the metric object that `bert_repro.load_metric` returns."""
        return compute_metrics(self.metrics, predictions, references)

    def score_details(self, predictions: Predictions, dataset: "datasets.Dataset") -> JsonObject:
        """Returns details of a labelled split's scores for results.json.

        They are `labels` and `confusion_matrix`, and `notes` if the scores need an explanation.
        """
        return {}

    def is_degenerate(self, predictions: Predictions, dataset: "datasets.Dataset") -> bool:
        """Returns whether a model gives the same answer to all examples, a known failure on small sets (paper 4.1)."""
        # A single prediction shows nothing.
        return len(dataset) > 1 and len(set(predictions["prediction"])) == 1

    def baselines(self, train: "datasets.Dataset", dataset: "datasets.Dataset") -> dict[str, dict[str, float]]:
        """Returns scores of a labelled split that need no network: name of the baseline -> metric -> score."""
        return {}

    def example_scores(self, split: str, dataset: "datasets.Dataset", run_folder: Path) -> ExampleScores:
        """Scores every example of a split from the predictions in a run's folder, for paired statistics.

        Returns:
            0 or 1 for `accuracy` and `exact_match`; a fraction for SQuAD's `f1`. The other scores are not means over
            examples. `entity_f1`, and `f1` of two classes, have [correct, predicted, true] for each example;
            correlations have the two numbers (Spearman's: their ranks).

        Raises:
            UserError: the predictions are missing or belong to other data.
        """
        raise NotImplementedError

    # --- Predictions on disk ---

    @abstractmethod
    def records(self, dataset: "datasets.Dataset", predictions: Predictions) -> Iterator[JsonObject]:
        """Yields the answer to each example of a split, in order.

        It has `prediction` in the form of the label, its `probability` and, if there are few possible answers, the
        probability of each (`probability_NAME`). JSON output adds the example itself.
        """

    @abstractmethod
    def write_predictions(
        self, directory: str | Path, split: str, dataset: "datasets.Dataset", predictions: Predictions
    ) -> list[Path]:
        """Writes the predictions of a split to `predictions.SPLIT.*`, in the order of its official file.

        Returns:
            The paths of the files.
        """

    def label_columns(self, id2label: Mapping[int, str]) -> list[int]:
        """Returns for each of the task's labels its place in a finished model's logits.

        Published models have any order of labels. `logits[..., task.label_columns(model.config.id2label)]` is in the
        order of `label_names`. Names are the same if only their case differs, unless the model has two names that
        differ only in case. A model with unnamed labels (LABEL_0 ...) is assumed to have the task's order, and the name
        of a single output does not matter.

        Raises:
            UserError: the model has other labels.
        """
        model_names = [id2label[index] for index in sorted(id2label)]
        task_names = list(self.label_names)
        is_unnamed = all(name.lower() == f"label_{index}" for index, name in enumerate(model_names))
        if len(model_names) == len(task_names) and (is_unnamed or len(model_names) == 1):
            return list(range(len(task_names)))

        message = (
            f"{flag('model_name_or_path')}: the model's labels are {', '.join(model_names)}, but task {self.name} has "
            f"{', '.join(task_names)}. Pass a model that was fine-tuned for it, or add {flag('do_train')}."
        )
        if sorted(model_names) != sorted(task_names):
            model_names = [name.lower() for name in model_names]
            task_names = [name.lower() for name in task_names]
        has_duplicates = len(set(model_names)) < len(model_names)
        if sorted(model_names) != sorted(task_names) or has_duplicates:
            raise UserError(message, setting="model_name_or_path")
        return [model_names.index(name) for name in task_names]
