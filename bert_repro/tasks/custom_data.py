"""Makes tasks of custom data: labels or a number for texts and pairs (CSV, TSV, JSON lines), tags for words.

The names of labels and tags come from the training file and travel with the published model (`id2label`); without
training they come from the model, as does whether it predicts labels or numbers.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_repro.configs import CustomDataConfig, GlueConfig, NerConfig
from bert_repro.errors import UserError
from bert_repro.tasks.custom_classification import (
    CustomClassificationTask,
    MultiLabelTask,
    balanced_weights,
    split_labels,
)
from bert_repro.tasks.glue.glue_tasks import GLUE_TASKS
from bert_repro.tasks.splits import LONGEST_EXAMPLE, CustomFiles, custom_title
from bert_repro.tasks.tagging.tagged_text import are_entity_tags, read_tagged_text, to_bio
from bert_repro.tasks.tagging.tagging_task import TaggingTask, tagged_dataset
from bert_repro.utils.readers import listed, shown
from bert_repro.utils.tables import read_table

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger("bert_repro")

TEXT_COLUMNS = (
    ("text",),
    ("text_a", "text_b"),
    *sorted(dict.fromkeys(task.text_columns for task in GLUE_TASKS), key=len, reverse=True),  # pairs before singles
)
"""Names that are found without --text_columns: `text`, `text_a` and `text_b`, and those of GLUE's tasks."""
OTHER_COLUMNS = ("label", "idx")
"""Columns of a split beside its texts."""
ANY_NUMBER = (-math.inf, math.inf)
METRICS_OF = {
    "label": ("accuracy", "macro_f1", "weighted_f1", "matthews_correlation"),
    "labels": ("micro_f1", "macro_f1", "exact_match"),
    "number": ("pearson", "spearmanr"),
}
"""What is reported of a row's label, its labels, or its number; the first chooses among runs."""


@dataclass(frozen=True, kw_only=True)
class CustomTaggingTask(TaggingTask):
    """A tag for every word of the user's files.

    Args:
        files: the files, by split.
    """

    files: CustomFiles

    def load(self, data_dir: Path | None, splits: Sequence[str]) -> "dict[str, datasets.Dataset]":
        """See `Task.load`; `data_dir` plays no part. Only the test file may lack tags."""
        return self.files.read(splits, self._read)

    def deviations(
        self, tokenizer: "PreTrainedTokenizerBase", splits: "Mapping[str, datasets.Dataset]"
    ) -> dict[str, str]:
        """See `Task.deviations`; custom data have no counterpart in the paper to depart from."""
        return {}

    def data_description(self) -> dict[str, Any]:
        """See `Task.data_description`; nothing is known of custom data but its files."""
        return {**super().data_description(), "files": self.files.names()}

    def example(self, dataset: "datasets.Dataset | None") -> dict[str, Any] | None:
        """See `Task.example`; a short training sentence."""
        sentences = [] if dataset is None else (" ".join(words) for words in dataset["words"][:200] if len(words) > 3)
        text = next((text for text in sentences if len(text) <= LONGEST_EXAMPLE), None)
        return {"text": text} if text else None

    def _read(self, split: str, path: Path) -> "datasets.Dataset":
        found = read_tagged_text(path, may_lack_tags=split == "test")
        return tagged_dataset(found, self.label_names, entities=self.primary_metric == "entity_f1")


def custom_classification(config: GlueConfig) -> CustomClassificationTask:
    """Makes the task of `--train_file`, `--validation_file` and `--test_file`.

    Args:
        config: the files, their columns, and, for training, what labels are and how the loss weighs them.

    Raises:
        UserError: a column is missing or cannot be text, the training file lacks a label or has fewer than two
            different ones, or the finished model predicts something else.
    """
    paths = config.data_files
    text_columns = config.text_columns or _found_text_columns(next(iter(paths.values())))
    _check_names(text_columns, config.label_column)
    kind = _label_kind(config)
    labels = _training_labels(config, text_columns) if config.do_train and kind != "number" else []
    names = (config.label_column,) if kind == "number" else _label_names(config, labels)
    common: dict[str, Any] = {
        "name": "custom",
        "title": custom_title(paths),
        "metrics": METRICS_OF[kind],
        "primary_metric": METRICS_OF[kind][0],
        "paper_metrics": {},
        "label_names": names,
        "text_columns": text_columns,
        "files": CustomFiles(paths, config.validation_fraction, config.seed),
        "label_column": config.label_column,
    }
    if kind == "labels":
        return MultiLabelTask(**common, label_separator=config.label_separator)
    if kind == "number":
        return CustomClassificationTask(**common, number_range=ANY_NUMBER)
    weights = _class_weights(config, names, [label for row in labels for label in row])
    return CustomClassificationTask(**common, class_weights=weights, label_smoothing=config.label_smoothing)


def custom_tagging(config: NerConfig) -> CustomTaggingTask:
    """Makes the task of `--train_file`, `--validation_file` and `--test_file` for tagged text.

    Tags that mark entities (B-, I- and a type) are scored by entity F1, others by the share of words that are correct.
    """
    paths = config.data_files
    tags = _tag_names(config)
    metric = "entity_f1" if are_entity_tags(tags) else "accuracy"
    logger.info("%d tags, scored by %s: %s", len(tags), metric, ", ".join(tags))
    return CustomTaggingTask(
        name="custom",
        title=custom_title(paths),
        metrics=(metric,),
        primary_metric=metric,
        paper_metrics={},
        label_names=tags,
        files=CustomFiles(paths, config.validation_fraction, config.seed),
    )


def _check_names(text_columns: Sequence[str], label_column: str) -> None:
    """Refuses a column of text that is the labels too, or is named as what a split has beside its texts."""
    for name in text_columns:
        if name == label_column:
            raise UserError(f"--text_columns: {name!r} is the column of labels; name another")
        if name in OTHER_COLUMNS:
            raise UserError(f"--text_columns: {name!r} cannot name a text here; rename that column of the files")


def _label_kind(config: GlueConfig) -> str:
    """Returns whether rows have one `label`, several `labels` or a `number`; a finished model says so itself."""
    if config.do_train:
        return "number" if config.regression else "labels" if config.multi_label else "label"
    model = _config_of_the_model(config)
    several = model.problem_type == "multi_label_classification"
    if config.multi_label and not several:
        raise UserError(f"--multi_label: {config.model_name_or_path} gives one label to a row; leave --multi_label out")
    return "labels" if several else "number" if _model_predicts_numbers(config) else "label"


def _training_labels(config: GlueConfig, text_columns: Sequence[str]) -> list[list[str]]:
    """Reads the labels of every training row; one each unless rows may have several."""
    path, column = config.data_files["train"], config.label_column
    separator = config.label_separator if config.multi_label else None
    table = read_table(path, (*text_columns, column), list_separator=separator)
    if separator is not None:
        return [split_labels(text, separator) for text in table.columns[column]]
    for row, label in enumerate(table.columns[column]):
        if not label.strip():
            raise table.error(row, f"column {column!r} is empty; give the row a label, or leave it out")
    return [[label] for label in table.columns[column]]


def _label_names(config: GlueConfig, labels: Sequence[Sequence[str]]) -> tuple[str, ...]:
    if not config.do_train:
        return _names_of_the_model(config)
    path, column = config.data_files["train"], config.label_column
    names = sorted(set(chain.from_iterable(labels)), key=_numbers_first)
    if len(names) < 2:
        found = shown(names[0]) if names else "empty"
        raise UserError(f"{path}: column {column!r} is {found} in every row; two labels are needed")
    if len(names) > 20 and len(names) > len(labels) // 2:
        raise UserError(
            f"{path}: column {column!r} has {len(names)} different labels in {len(labels)} rows; name the column of "
            "labels with --label_column, or predict numbers with --regression"
        )
    return tuple(names)


def _class_weights(config: GlueConfig, names: Sequence[str], labels: Sequence[str]) -> tuple[float, ...]:
    """Returns the weight of each label, as `--class_weights` says: `balanced`, or `label=weight` for each."""
    if not config.class_weights:
        return ()
    if config.class_weights == ("balanced",):
        weights = balanced_weights(labels, names)
        shown_weights = ", ".join(f"{name} {weight:.3g}" for name, weight in zip(names, weights, strict=True))
        logger.info("class weights, balanced over all %d rows of the training file: %s", len(labels), shown_weights)
        return weights
    given: dict[str, float] = {}
    for item in config.class_weights:
        name, _, number = item.rpartition("=")
        try:
            given[name] = float(number)
        except ValueError:
            given[name] = math.nan
        if name not in names or not 0 < given[name] < math.inf:
            raise UserError(
                f"--class_weights {shown(item)}: write `balanced`, or label=weight with a positive number for each of: "
                f"{listed(names)}"
            )
    missing = [name for name in names if name not in given]
    if missing:
        raise UserError(f"--class_weights: no weight for {listed(missing)}; give every label one, or write `balanced`")
    return tuple(given[name] for name in names)


def _tag_names(config: NerConfig) -> tuple[str, ...]:
    if not config.do_train:
        return _names_of_the_model(config)
    sentences = read_tagged_text(config.data_files["train"]).tags or []
    if not are_entity_tags(list(chain.from_iterable(sentences))):
        return tuple(sorted(set(chain.from_iterable(sentences))))
    # Both tags of every type, so that a dev set may hold the one that training lacks.
    kinds = sorted({tag[2:] for tags in sentences for tag in to_bio(tags) if tag != "O"})
    return ("O", *(f"{prefix}-{kind}" for kind in kinds for prefix in "BI"))


def _model_predicts_numbers(config: GlueConfig) -> bool:
    """Returns whether the finished model was trained with `--regression`, or has one label as upstream models do."""
    model, name = _config_of_the_model(config), config.model_name_or_path
    numbers = model.problem_type == "regression" or len(model.id2label) == 1
    if numbers and len(model.id2label) > 1:
        raise UserError(
            f"--model_name_or_path {name}: predicts {len(model.id2label)} numbers for each row; name a model that "
            "predicts one"
        )
    if config.regression and not numbers:
        labels = ", ".join(_names_of_the_model(config))
        raise UserError(f"--regression: {name} predicts a label, one of {labels}; leave --regression out")
    return numbers


def _names_of_the_model(config: CustomDataConfig) -> tuple[str, ...]:
    id2label = _config_of_the_model(config).id2label
    return tuple(id2label[index] for index in sorted(id2label))


def _config_of_the_model(config: CustomDataConfig) -> Any:
    from bert_repro.models.loading import load_config

    return load_config(config.model_name_or_path)


def _found_text_columns(path: Path) -> tuple[str, ...]:
    """Returns the first of `TEXT_COLUMNS` that a file has all of."""
    names = [name for columns in TEXT_COLUMNS for name in columns]
    present = read_table(path, (), optional=names).columns
    for columns in TEXT_COLUMNS:
        if all(name in present for name in columns):
            return columns
    known = ", ".join(" and ".join(map(repr, columns)) for columns in TEXT_COLUMNS)
    raise UserError(f"{path}: no column of text ({known}); name its columns with --text_columns")


def _numbers_first(label: str) -> tuple[int, float, str]:
    try:
        number = float(label)
    except ValueError:
        number = math.nan
    return (0, number, label) if math.isfinite(number) else (1, 0.0, label)  # nan has no place in an order
