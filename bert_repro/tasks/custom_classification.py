"""Makes the task of the user's own texts and labels.

The order of events:

1. The columns of text are taken from `--text_columns`, or found by their names.
2. For training, the kind of labels is a setting, and the label names are those in the training data. They are stored in
   the published model (`id2label`). Without training, both come from the model.
3. Each split is converted. Rows without text are left out, except from the test data.
4. Dev rows are held out of the training data, if `--validation_fraction` is given.
5. Notes about the data are logged, and kept for the card.
"""

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bert_repro.configs import GlueConfig
from bert_repro.errors import UserError, flag
from bert_repro.tasks.base import CUSTOM, Splits
from bert_repro.tasks.classification import ClassificationTask
from bert_repro.tasks.columns import find_text_columns, number, require_columns, values
from bert_repro.tasks.held_out import hold_out
from bert_repro.tasks.multi_label import MultiLabelTask, labels_of_rows
from bert_repro.utils.readers import comma_separated, quoted

if TYPE_CHECKING:
    import datasets

logger = logging.getLogger("bert_repro")

METRICS_OF_KIND = {
    "label": ("accuracy", "macro_f1", "weighted_f1", "matthews_correlation"),
    "labels": ("micro_f1", "macro_f1", "exact_match"),
    "number": ("pearson", "spearmanr"),
}
"""The metrics of a row's label, its labels or its number. The first one chooses among runs."""
MANY_LABELS = 20
"""With more different labels than this, the column may not contain labels at all."""


@dataclass(frozen=True)
class _Labels:
    """What is predicted.

    Args:
        kind: a `label` per row, several `labels`, or a `number`.
        names: names of the labels in the model's order; for numbers the name of the column.
        of_training_rows: the labels of each training row; empty without training, and for numbers.
    """

    kind: str
    names: tuple[str, ...]
    of_training_rows: Sequence[Sequence[str]] = ()


def custom_classification(config: GlueConfig, rows: Splits, names: Mapping[str, str]) -> ClassificationTask:
    """Makes the task of the user's texts.

    Args:
        config: the columns and, for training, the kind of labels and how the loss weighs them.
        rows: the data, by split.
        names: what messages call each split.

    Raises:
        UserError: a column is missing or does not contain texts, a label is empty or unknown, there are fewer than two
            different labels, or the fine-tuned model predicts something else.
    """
    first_split = next(iter(rows))
    text_columns = config.text_columns or find_text_columns(rows[first_split].column_names, names[first_split])
    for split, dataset in rows.items():
        require_columns(dataset, text_columns, names[split], f"name the column of text with {flag('text_columns')}")

    labels = _labels(config, rows, names)
    task_class = MultiLabelTask if labels.kind == "labels" else ClassificationTask
    task = task_class(
        name=CUSTOM,
        title=Path(names[first_split]).stem,
        metrics=METRICS_OF_KIND[labels.kind],
        primary_metric=METRICS_OF_KIND[labels.kind][0],
        label_names=labels.names,
        text_columns=tuple(text_columns),
        data_names=names,
        number_range=(-math.inf, math.inf) if labels.kind == "number" else None,
        class_weights=_class_weights(config, labels),
        label_smoothing=config.label_smoothing,
    )

    notes = similar_label_notes(labels.names)
    data: dict[str, datasets.Dataset] = {}
    for split, where in names.items():
        data[split] = _split_of(task, rows[split], where, config.label_column, is_test=split == "test")
        data[split], text_notes = _rows_with_text(data[split], text_columns, where, is_test=split == "test")
        notes += text_notes
    data = hold_out(data, config, together=text_columns, strata="" if labels.kind == "number" else "label")
    notes += _leaked_rows_notes(data, text_columns)

    for note in notes:
        logger.warning("%s", note)
    return replace(task, data=data, notes=tuple(notes))


# --- Labels -----------------------------------------------------------------------------------------------------------


def _labels(config: GlueConfig, rows: Splits, names: Mapping[str, str]) -> _Labels:
    """Returns what is predicted: as the settings and the training data say, or as the fine-tuned model does."""
    if not config.do_train:
        return _labels_of_model(config)
    if config.regression:
        return _Labels("number", (config.label_column,))

    training_labels = _training_labels(config, rows["train"], names["train"])
    label_names = _label_names(training_labels, names["train"], config.label_column)
    logger.info("Labels: %s", comma_separated(label_names))
    return _Labels("labels" if config.multi_label else "label", label_names, training_labels)


def _labels_of_model(config: GlueConfig) -> _Labels:
    """Returns what a fine-tuned model predicts.

    Raises:
        UserError: the settings request something else.
    """
    from bert_repro.models.loading import load_config

    name = config.model_name_or_path
    model = load_config(name)
    label_names = tuple(model.id2label[index] for index in sorted(model.id2label))
    predicts_several = model.problem_type == "multi_label_classification"
    predicts_numbers = model.problem_type == "regression" or len(label_names) == 1

    if config.multi_label and not predicts_several:
        raise UserError(
            f"{flag('multi_label')}: {name} predicts one label per row. Leave {flag('multi_label')} out.",
            setting="multi_label",
        )
    if config.regression and not predicts_numbers:
        raise UserError(
            f"{flag('regression')}: {name} predicts one of these labels: {comma_separated(label_names)}. Leave "
            f"{flag('regression')} out.",
            setting="regression",
        )
    if predicts_several:
        return _Labels("labels", label_names)
    if predicts_numbers:
        return _Labels("number", (config.label_column,))
    return _Labels("label", label_names)


def _training_labels(config: GlueConfig, rows: "datasets.Dataset", where: str) -> list[list[str]]:
    """Returns the labels of every training row; a single one unless rows may have several."""
    require_columns(rows, [config.label_column], where, f"name the column of labels with {flag('label_column')}")
    column = values(rows, config.label_column, where)
    if config.multi_label:
        return labels_of_rows(column, where, config.label_column)

    labels = [str("" if label is None else label).strip() for label in column]
    empty_rows = [str(row) for row, label in enumerate(labels, 1) if not label]
    if empty_rows:
        raise UserError(
            f"{where}: {config.label_column!r} is empty in row {comma_separated(empty_rows)}. Give every row a label."
        )
    return [[label] for label in labels]


def _label_names(labels: Iterable[Sequence[str]], where: str, column: str) -> tuple[str, ...]:
    """Returns the different labels in order: numbers by their value, then texts.

    Raises:
        UserError: there are fewer than two, or so many that the column probably contains something else.
    """
    rows = list(labels)
    names = sorted(set(chain.from_iterable(rows)), key=_order_of_label)
    if len(names) < 2:
        only_value = quoted(names[0]) if names else "empty"
        raise UserError(f"{where}: column {column!r} is {only_value} in every row. At least two labels are needed.")
    if len(names) > MANY_LABELS and (_are_fractions(names) or len(names) > len(rows) // 2):
        raise UserError(
            f"{where}: column {column!r} has {len(names)} different labels in {len(rows)} rows, such as "
            f"{quoted(names[0])}. Name the column of labels with {flag('label_column')}, or predict numbers with "
            f"{flag('regression')}.",
            setting="label_column",
        )
    return tuple(names)


def _order_of_label(label: str) -> tuple[bool, float, str]:
    value = _number_or_none(label)
    return value is None, value or 0.0, label


def _number_or_none(label: str) -> float | None:
    try:
        return number(label)
    except ValueError:
        return None


def _are_fractions(names: Sequence[str]) -> bool:
    """Returns whether all labels are numbers and not all of them are whole numbers."""
    numbers = [_number_or_none(name) for name in names]
    return None not in numbers and any(value % 1 for value in numbers if value is not None)


def similar_label_notes(label_names: Sequence[str]) -> list[str]:
    """Returns a note for each group of labels that are probably meant to be one label: `Yes` and `yes`, 1 and 1.0."""
    by_lower_case: dict[str, list[str]] = {}
    by_number: dict[float, list[str]] = {}
    for name in label_names:
        by_lower_case.setdefault(name.casefold(), []).append(name)
        value = _number_or_none(name)
        if value is not None:
            by_number.setdefault(value, []).append(name)

    notes = []
    for names in by_lower_case.values():
        if len(names) > 1:
            notes.append(f"The labels {' and '.join(names)} are different, although only their case differs.")
    for names in by_number.values():
        if len(names) > 1:
            labels = " and ".join(map(repr, names))
            notes.append(f"The labels {labels} are different, although they are the same number.")
    return notes


def _class_weights(config: GlueConfig, labels: _Labels) -> tuple[float, ...]:
    """Returns the weight of each label in the loss; empty if all are equal."""
    if not config.class_weights or not labels.of_training_rows:
        return ()
    from sklearn.utils.class_weight import compute_class_weight

    training_labels = list(chain.from_iterable(labels.of_training_rows))
    weights = compute_class_weight("balanced", classes=np.array(labels.names), y=training_labels).tolist()
    logger.info("Balanced class weights: %s", dict(zip(labels.names, weights, strict=True)))
    return tuple(weights)


# --- Rows -------------------------------------------------------------------------------------------------------------


def _split_of(
    task: ClassificationTask, rows: "datasets.Dataset", where: str, label_column: str, *, is_test: bool
) -> "datasets.Dataset":
    """Returns the user's rows as a split of the task, with the user's other columns beside its own."""
    import datasets

    split = task.from_rows(rows, where, label=label_column, may_lack_labels=is_test, missing="")
    own_columns = {*task.text_columns, label_column, "label", "idx"}
    other_columns = [name for name in rows.column_names if name not in own_columns]
    if not other_columns:
        return split
    return datasets.concatenate_datasets([split, rows.select_columns(other_columns)], axis=1)


def _rows_with_text(
    split: "datasets.Dataset", text_columns: Sequence[str], where: str, *, is_test: bool
) -> tuple["datasets.Dataset", list[str]]:
    """Leaves out the rows without text, except from the test data, where they get no answer.

    Returns:
        The remaining rows, and notes on rows without text and on pairs with only one text.

    Raises:
        UserError: no row has text.
    """
    file_name, num_rows = Path(where).name, len(split)
    num_pairs_with_one = 0
    rows_with_text: list[int] = []
    columns = [split[name][:] for name in text_columns]
    for row, texts_of_row in enumerate(zip(*columns, strict=True)):
        num_texts = sum(bool(text.strip()) for text in texts_of_row)
        if num_texts:
            rows_with_text.append(row)
            num_pairs_with_one += num_texts < len(text_columns)

    notes = []
    if num_pairs_with_one:
        notes.append(f"{file_name}: {num_pairs_with_one} of {num_rows} rows have one of their two texts, read alone.")
    num_without = num_rows - len(rows_with_text)
    if not num_without:
        return split, notes

    fate = "get no answer" if is_test else "are left out"
    notes.append(f"{file_name}: {num_without} of {num_rows} rows have no text and {fate}.")
    if not rows_with_text:
        raise UserError(
            f"{where}: no row has text. Name the column of text with {flag('text_columns')}.", setting="text_columns"
        )
    return (split if is_test else split.select(rows_with_text)), notes


def _leaked_rows_notes(data: Splits, text_columns: Sequence[str]) -> list[str]:
    """Returns a note if dev rows have the texts of training rows."""
    if "train" not in data or "validation" not in data:
        return []
    texts_of: dict[str, list[tuple[str, ...]]] = {}
    for split in ("train", "validation"):
        columns = [data[split][name][:] for name in text_columns]
        texts_of[split] = list(zip(*columns, strict=True))
    training_texts = set(texts_of["train"])
    num_leaked = sum(row in training_texts for row in texts_of["validation"])
    if not num_leaked:
        return []
    num_dev_rows = len(texts_of["validation"])
    return [f"{num_leaked} of {num_dev_rows} dev rows have the texts of training rows, which makes the score too high."]
