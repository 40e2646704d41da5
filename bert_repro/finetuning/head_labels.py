"""Trains a fine-tuned model further: rows of its head are matched with the labels of the new data by name.

A head has a row of weights and a bias for each label, in the order of the model's `id2label`. The same labels may come
in another order in the data, with more of them, or with fewer. Without matching, training would start from a head whose
rows stand for the wrong labels.
"""

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from bert_repro.utils.readers import comma_separated

logger = logging.getLogger("bert_repro")


def trained_labels(model_config: Any, head: str) -> list[str]:
    """Returns the labels that a checkpoint's head was fine-tuned for, in the order of its rows.

    Args:
        model_config: the checkpoint's configuration.
        head: the model class of the task, for example `BertReproForSequenceClassification`.

    Returns:
        Empty if the checkpoint has no such head: it was only pre-trained, or fine-tuned for another kind of task.
    """
    ending = head.removeprefix("BertRepro")
    architectures = model_config.architectures or []
    if not any(name.endswith(ending) for name in architectures):
        return []
    return [model_config.id2label[index] for index in sorted(model_config.id2label)]


def matching_rows(old_labels: Sequence[str], new_labels: Sequence[str]) -> list[int | None]:
    """Returns for each new label the row of the old head that stands for it; None: there is none.

    Names that differ only in case are the same, unless that is ambiguous. The unnamed labels of transformers (LABEL_0,
    LABEL_1 ...) stand for the new ones in order if there are as many, and so does a single output (a number).
    """
    if set(old_labels) & set(new_labels):
        return [old_labels.index(label) if label in old_labels else None for label in new_labels]

    is_unnamed = all(label.lower() == f"label_{index}" for index, label in enumerate(old_labels))
    if len(old_labels) == len(new_labels) and (is_unnamed or len(old_labels) == 1):
        return list(range(len(new_labels)))

    lower_old = [label.lower() for label in old_labels]
    lower_new = [label.lower() for label in new_labels]
    if len(set(lower_old)) < len(lower_old) or len(set(lower_new)) < len(lower_new):
        return [None] * len(new_labels)
    return [lower_old.index(label) if label in lower_old else None for label in lower_new]


def relabel_head(model: Any, new_labels: Sequence[str], name: str) -> None:
    """Replaces the head of a loaded model by one for new labels, with the rows of the labels that it knows.

    Args:
        model: a model with a `classifier`, as loaded from its checkpoint.
        new_labels: the labels of the new data, in the order of the new head's rows.
        name: the checkpoint's name, for the log.
    """
    old_labels = [model.config.id2label[index] for index in sorted(model.config.id2label)]
    rows = matching_rows(old_labels, new_labels)
    old_head = model.classifier
    new_head = nn.Linear(old_head.in_features, len(new_labels)).to(old_head.weight)
    model._init_weights(new_head)
    with torch.no_grad():
        for new_row, old_row in enumerate(rows):
            if old_row is not None:
                new_head.weight[new_row] = old_head.weight[old_row]
                new_head.bias[new_row] = old_head.bias[old_row]
    model.classifier = new_head
    model.config.id2label = dict(enumerate(new_labels))
    model.config.label2id = {label: index for index, label in enumerate(new_labels)}
    if hasattr(model, "num_labels"):
        model.num_labels = len(new_labels)
    _log_match(name, old_labels, new_labels, rows)


def _log_match(name: str, old_labels: Sequence[str], new_labels: Sequence[str], rows: Sequence[int | None]) -> None:
    unknown = [label for label, row in zip(new_labels, rows, strict=True) if row is None]
    if len(unknown) == len(new_labels):
        logger.warning(
            "%s was fine-tuned for other labels (%s). Its head is replaced by a new one for %s.",
            name,
            comma_separated(old_labels),
            comma_separated(new_labels),
        )
    elif unknown:
        logger.info("Newly initialized because %s does not have these labels: %s", name, comma_separated(unknown))
    elif list(old_labels) != list(new_labels) and len(old_labels) > 1:
        logger.info("The head of %s is used; its rows are matched with the labels by name.", name)
