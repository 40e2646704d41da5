"""Tasks made of one's own files: a label or a number for texts or pairs (CSV, TSV, JSON lines), a tag for every word.

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
from bert_repro.tasks.classification import ClassificationTask
from bert_repro.tasks.splits import from_custom_files
from bert_repro.tasks.tagging.tag_files import are_entity_tags, read_tagged_text, to_bio
from bert_repro.tasks.tagging.tagging_task import TaggingTask, tagged_dataset
from bert_repro.utils.readers import read_table, shown

if TYPE_CHECKING:
    import datasets

logger = logging.getLogger("bert_repro")

TEXT_COLUMNS = (("text",), ("text_a", "text_b"))
"""Names that are found without being told."""
OTHER_COLUMNS = ("label", "idx")
"""What a split has beside its texts."""
ANY_NUMBER = (-math.inf, math.inf)


@dataclass(frozen=True, kw_only=True)
class CustomClassificationTask(ClassificationTask):
    """A label or a number for each row of one's own files.

    Args:
        files: the file of each split that there is.
        label_column: the column that holds the label.
    """

    files: Mapping[str, Path]
    label_column: str

    def read_splits(self, data_dir: Path | None, splits: Sequence[str]) -> "dict[str, datasets.Dataset]":
        """See `Task.read_splits`; `data_dir` plays no part. Only the test file may lack labels."""
        return from_custom_files(self.files, splits, self._read)

    def parse_label(self, text: str) -> int | float:
        """See `ClassificationTask.parse_label`; numbers of any size."""
        if self.number_range is None:
            return super().parse_label(text)
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise ValueError(f"label {shown(text)} is not a number; write one, or leave --regression out")
        return number

    def _read(self, split: str, path: Path) -> "datasets.Dataset":
        import datasets

        unlabelled = split == "test"
        required = self.text_columns if unlabelled else (*self.text_columns, self.label_column)
        table = read_table(path, required, optional=(self.label_column,) if unlabelled else ())
        columns: dict[str, list[Any]] = {name: table.columns[name] for name in self.text_columns}
        if self.label_column in table.columns:
            columns["label"] = table.parsed(self.label_column, self.parse_label)
        return datasets.Dataset.from_dict({**columns, "idx": list(range(len(table.lines)))})


@dataclass(frozen=True, kw_only=True)
class CustomTaggingTask(TaggingTask):
    """A tag for every word of one's own files.

    Args:
        files: the file of each split that there is.
    """

    files: Mapping[str, Path]

    def read_splits(self, data_dir: Path | None, splits: Sequence[str]) -> "dict[str, datasets.Dataset]":
        """See `Task.read_splits`; `data_dir` plays no part. Only the test file may lack tags."""
        return from_custom_files(self.files, splits, self._read)

    def _read(self, split: str, path: Path) -> "datasets.Dataset":
        found = read_tagged_text(path, may_lack_tags=split == "test")
        return tagged_dataset(found, self.label_names, entities=self.primary_metric == "entity_f1")


def custom_classification(config: GlueConfig) -> CustomClassificationTask:
    """The task of `--train_file` and its kin.

    Args:
        config: the files, their columns, and, for training, whether labels are numbers.

    Raises:
        UserError: a column is missing or cannot be text, the training file lacks a label or has fewer than two
            different ones, or the finished model predicts something else.
    """
    files = config.data_files
    text_columns = config.text_columns or _found_text_columns(next(iter(files.values())))
    _check_names(text_columns, config.label_column)
    numbers = config.regression if config.do_train else _model_predicts_numbers(config)
    metrics = ("pearson", "spearmanr") if numbers else ("accuracy", "matthews_correlation")
    return CustomClassificationTask(
        name="custom",
        title=_title(files),
        metrics=metrics,
        primary_metric=metrics[0],
        paper_metrics={},
        label_names=(config.label_column,) if numbers else _label_names(config, text_columns),
        text_columns=text_columns,
        number_range=ANY_NUMBER if numbers else None,
        files=files,
        label_column=config.label_column,
    )


def custom_tagging(config: NerConfig) -> CustomTaggingTask:
    """The task of `--train_file` and its kin, for tagged text.

    Tags that mark entities (B-, I- and a type) are scored by entity F1, others by the share of words that are right.
    """
    files = config.data_files
    tags = _tag_names(config)
    metric = "entity_f1" if are_entity_tags(tags) else "accuracy"
    logger.info("%d tags, scored by %s: %s", len(tags), metric, ", ".join(tags))
    return CustomTaggingTask(
        name="custom",
        title=_title(files),
        metrics=(metric,),
        primary_metric=metric,
        paper_metrics={},
        label_names=tags,
        files=files,
    )


def _check_names(text_columns: Sequence[str], label_column: str) -> None:
    """Refuses a column of text that is the labels too, or is named as what a split has beside its texts."""
    for name in text_columns:
        if name == label_column:
            raise UserError(f"--text_columns: {name!r} is the column of labels; name another")
        if name in OTHER_COLUMNS:
            raise UserError(f"--text_columns: {name!r} is no name for a text here; rename that column of the files")


def _label_names(config: GlueConfig, text_columns: Sequence[str]) -> tuple[str, ...]:
    if not config.do_train:
        return _names_of_the_model(config)
    path = config.data_files["train"]
    table = read_table(path, (*text_columns, config.label_column))
    labels = table.columns[config.label_column]
    for row, label in enumerate(labels):
        if not label.strip():
            raise table.error(row, f"column {config.label_column!r} is empty; give the row a label, or leave it out")
    names = sorted(set(labels), key=_numbers_first)
    if len(names) < 2:
        raise UserError(f"{path}: column {config.label_column!r} is {names[0]!r} in every row; two labels are needed")
    if len(names) > 20 and len(names) > len(labels) // 2:
        raise UserError(
            f"{path}: column {config.label_column!r} has {len(names)} different labels in {len(labels)} rows; name the "
            "column of labels with --label_column, or predict numbers with --regression"
        )
    return tuple(names)


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
    """Whether the finished model was trained with `--regression`, or as stock classes take a single label to be."""
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
    from bert_repro.hub.model_files import load_config

    return load_config(config.model_name_or_path)


def _found_text_columns(path: Path) -> tuple[str, ...]:
    """The first of `TEXT_COLUMNS` that a file has all of."""
    names = [name for columns in TEXT_COLUMNS for name in columns]
    present = read_table(path, (), optional=names).columns
    for columns in TEXT_COLUMNS:
        if all(name in present for name in columns):
            return columns
    raise UserError(f"{path}: no column 'text', nor 'text_a' and 'text_b'; name its columns with --text_columns")


def _numbers_first(label: str) -> tuple[int, float, str]:
    try:
        number = float(label)
    except ValueError:
        number = math.nan
    return (0, number, label) if math.isfinite(number) else (1, 0.0, label)  # nan has no place in an order


def _title(files: Mapping[str, Path]) -> str:
    return next(iter(files.values())).stem
