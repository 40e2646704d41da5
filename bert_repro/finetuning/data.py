"""Reads and tokenizes the splits of a task for a fine-tuning run.

A split is a pair of `datasets.Dataset`s: its examples as the task reads them, and their features, one row per model
input. The runs of a sweep share one cache of splits, so that files are read and tokenized once. For data from the Hub,
`datasets` also caches the features on disk.
"""

import hashlib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from accelerate import Accelerator

from bert_repro.configs import CustomDataConfig, FinetuningConfig
from bert_repro.errors import UserError, flag
from bert_repro.models.loading import tokenizer_fingerprint
from bert_repro.tasks.base import Task
from bert_repro.training.batches import Ids
from bert_repro.utils.files import disk_errors
from bert_repro.utils.randomness import Stream, drawn_rows
from bert_repro.utils.readers import comma_separated
from bert_repro.utils.tokenizer_losses import TokenizerLosses, count_losses

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger("bert_repro")

Row = dict[str, Any]

_ROWS_PER_HASH = 10_000
_ROWS_WITHOUT_BAR = 10_000  # Tokenized within about two seconds.
_LOSS_SAMPLE = 500  # Rows in which the losses of the tokenizer are counted.
_LOSS_CHARACTERS = 2_000  # Characters that are looked at in each text of the sample.


class Split(NamedTuple):
    """One split of a task.

    Args:
        examples: one row per example.
        features: one row per model input, from `encode`.
    """

    examples: "datasets.Dataset"
    features: "datasets.Dataset"


SplitCache = dict[tuple[tuple[str, ...], int | None], dict[str, Split]]
"""Splits that have been read, by their names and the limit on examples."""


@dataclass
class SplitReader:
    """Reads and tokenizes the splits of a task.

    Args:
        config: where the files are, the input length, limits on examples, and what the run does.
        task: the task, from `Task.prepared`.
        tokenizer: the model's tokenizer.
        accelerator: the main process reads first, and the others find the tokenized files.
        cache: splits that earlier runs with the same task, files, tokenizer and length have read. New ones are added.
        read: every split that this run has read.
    """

    config: FinetuningConfig
    task: Task
    tokenizer: "PreTrainedTokenizerBase"
    accelerator: Accelerator
    cache: SplitCache
    read: dict[str, Split] = field(default_factory=dict)
    _has_warned_of_losses: bool = False

    def read_all(self) -> None:
        """Reads every split that the run needs, so that wrong data is refused before the model is loaded.

        Raises:
            UserError: a split is missing or malformed, a split to score has no labels, or the batch is larger than the
                training set.
        """
        if self.config.do_train:
            self.train()
        if self.config.do_eval:
            for name, split in self.evaluation().items():
                if not self.task.is_labelled(split.examples):
                    raise UserError(
                        f"{flag('do_eval')}: the split {name} of {self.task.name} has no labels, so it cannot be "
                        f"scored. Use {flag('do_predict')}.",
                        setting="do_eval",
                    )
        if self.config.do_predict:
            self.prediction()

    def train(self) -> Split:
        """Returns the training split."""
        name = self.task.train_split
        assert name is not None, "finetune refuses a task without a training set"
        limit = self.config.max_train_samples
        is_new = ((name,), limit) not in self.cache
        split = self._read([name], limit, is_training=True)[name]
        if is_new:
            self._warn_of_labels_without_rows(split.examples)
        return split

    def evaluation(self) -> dict[str, Split]:
        """Returns the splits to score, by name. Missing ones are left out."""
        return self._read(self.task.eval_splits, self.config.max_eval_samples)

    def prediction(self) -> dict[str, Split]:
        """Returns the splits to predict, by name. Missing ones are left out."""
        return self._read(self.task.predict_splits, None)

    def description(self, task: Task) -> dict[str, Any]:
        """Returns the part `data` of the results, with an example for the card.

        Args:
            task: the task with what it learned from the model.
        """
        training_rows = self.train().examples if self.config.do_train else None
        description = {"title": task.title, **task.data_description()}
        # The texts of one's own data may be private.
        is_own_data = bool(task.data_names)
        shows_own_data = isinstance(self.config, CustomDataConfig) and self.config.example_from_data
        example = task.example(training_rows) if shows_own_data or not is_own_data else None
        if example:
            description["example"] = example
        return description

    def _warn_of_labels_without_rows(self, examples: "datasets.Dataset") -> None:
        """Warns of labels that no training row has, because the model cannot learn them."""
        names = self.task.label_names
        if len(names) < 2 or "label" not in examples.column_names:
            return
        labels = examples["label"][:]
        # Several labels per row, and numbers, are lists and floats.
        if not all(isinstance(label, int) for label in labels):
            return
        present = set(labels)
        missing = [name for index, name in enumerate(names) if index not in present]
        if missing and labels:
            logger.warning("No training row has the label %s, so the model cannot learn it.", comma_separated(missing))

    def _read(self, names: Sequence[str], limit: int | None, *, is_training: bool = False) -> dict[str, Split]:
        key = (tuple(names), limit)
        if key not in self.cache:
            with self.accelerator.main_process_first():
                datasets_by_name = load_splits(self.task, self.config.data_dir, names)
                splits = {}
                for name in names:
                    if name in datasets_by_name:
                        examples = self._limited(datasets_by_name[name], limit, is_training=is_training)
                        splits[name] = self._tokenized(name, examples)
                self.cache[key] = splits
        self.read |= self.cache[key]
        return self.cache[key]

    def _limited(self, dataset: "datasets.Dataset", limit: int | None, *, is_training: bool) -> "datasets.Dataset":
        """Returns at most `limit` rows: drawn at random for training, the first ones for scoring."""
        rows = min(limit or len(dataset), len(dataset))
        if not is_training:
            return dataset.select(range(rows))

        # Tokenizing a large training set takes minutes, so a batch that cannot be filled is refused before that.
        batch = self.config.train_batch_size
        if batch is not None and self.task.one_feature_per_example:
            require_batch(batch, rows)
        if rows < len(dataset):
            return dataset.select(drawn_rows(Stream.TRAINING_ROWS, len(dataset), rows))
        return dataset.select(range(rows))

    def _tokenized(self, name: str, examples: "datasets.Dataset") -> Split:
        """Tokenizes a split, logs how many inputs were truncated, and warns if the tokenizer loses much of the text."""
        title = self.task.data_names.get(name, f"{self.task.name} {name}")
        # One warning is enough: all splits of a task are usually in one language.
        if not self._has_warned_of_losses:
            self._has_warned_of_losses = warn_of_losses(self.task, examples, self.tokenizer, title)

        length = self.config.max_seq_length
        features = encode(self.task, examples, self.tokenizer, length)
        num_truncated = self.task.count_truncated(features)
        if num_truncated:
            logger.info(
                "%s: %d of %d inputs were truncated to %d tokens (%s).",
                title,
                num_truncated,
                len(features),
                length,
                flag("max_seq_length"),
            )
        return Split(examples, features)


def require_batch(batch: int, num_inputs: int) -> None:
    """Refuses a batch that is larger than the training set.

    Raises:
        UserError: it is.
    """
    if batch > num_inputs:
        raise UserError(
            f"{flag('train_batch_size', batch)} is larger than the training set, which has {num_inputs:,} inputs. Use "
            "a smaller batch.",
            setting="train_batch_size",
        )


def load_splits(task: Task, data_dir: str | None, names: Sequence[str]) -> "dict[str, datasets.Dataset]":
    """Reads splits of a task and logs which ones are missing; see `Task.load`."""
    splits = task.load(None if data_dir is None else Path(data_dir), names)
    for name in names:
        if name not in splits:
            logger.warning("%s: the split %s is missing.", task.name, name)
    return splits


# --- What the tokenizer loses -----------------------------------------------------------------------------------------


def warn_of_losses(task: Task, examples: "datasets.Dataset", tokenizer: "PreTrainedTokenizerBase", title: str) -> bool:
    """Warns if more than 1% of the tokens are [UNK], or of the letters lose accents or vowel signs.

    A model learns little from such texts and gives no error. A sample of the rows is counted, which takes well below a
    second.

    Args:
        task: says which columns the model reads.
        examples: the rows.
        tokenizer: the model's tokenizer.
        title: what the warning calls the rows.

    Returns:
        Whether there was something to warn of.
    """
    losses = _losses_of_sample(task, examples, tokenizer)
    messages = losses.messages(
        unknown_remedy="The model cannot tell these words apart. Use a checkpoint whose vocabulary covers the script "
        "of the texts: one in their language, or a multilingual one.",
        marks_remedy="Words that differ in them alone become equal. Use a cased checkpoint, or one whose tokenizer has "
        "strip_accents false.",
    )
    for message in messages:
        logger.warning("%s: %s", title, message)
    return bool(messages)


def _losses_of_sample(
    task: Task, examples: "datasets.Dataset", tokenizer: "PreTrainedTokenizerBase"
) -> TokenizerLosses:
    # Rows at equal distances, because files are often sorted.
    size = min(_LOSS_SAMPLE, len(examples))
    sample = examples.select(np.linspace(0, len(examples) - 1, size, dtype=np.int64))
    texts: list[str] = []
    for column in task.columns_of_text:
        for value in sample[column][:]:
            text = " ".join(value) if isinstance(value, list) else value
            texts.append(text[:_LOSS_CHARACTERS])
    return count_losses(texts, tokenizer)


# --- Tokenized splits -------------------------------------------------------------------------------------------------


def encode(
    task: Task, dataset: "datasets.Dataset", tokenizer: "PreTrainedTokenizerBase", max_seq_length: int
) -> "datasets.Dataset":
    """Tokenizes a split.

    Args:
        task: the task, from `Task.prepared`.
        dataset: a split from `Task.load`.
        tokenizer: the model's tokenizer.
        max_seq_length: tokens per sequence, special tokens included.

    Returns:
        One row per feature, in the order of the examples, with the columns of `Task.encode_batch`.

    Raises:
        UserError: the tokenizer lacks special tokens, or the disk is full.
    """
    import datasets

    from bert_repro import __version__

    # By default `datasets` would hash the pickled task. That changes with settings that no feature depends on, and it
    # does not change with the version of this package.
    key = [
        dataset._fingerprint,
        __version__,
        type(task).__name__,
        task.encoding_settings(),
        tokenizer_fingerprint(tokenizer),
        max_seq_length,
    ]
    # `map` writes its cache next to the files of the dataset. Without write access there, the features stay in memory.
    folders = {os.path.dirname(file["filename"]) for file in dataset.cache_files}
    has_writable_cache = all(os.access(folder, os.W_OK) for folder in folders)
    with disk_errors(Path(datasets.config.HF_DATASETS_CACHE), "cannot be written"), ExitStack() as stack:
        if len(dataset) < _ROWS_WITHOUT_BAR and not datasets.are_progress_bars_disabled():
            datasets.disable_progress_bars()
            stack.callback(datasets.enable_progress_bars)
        return dataset.map(
            task.encode_batch,
            batched=True,
            batch_size=task.rows_at_once,
            fn_kwargs={"tokenizer": tokenizer, "max_seq_length": max_seq_length},
            remove_columns=dataset.column_names,
            keep_in_memory=not has_writable_cache,
            new_fingerprint=datasets.fingerprint.Hasher.hash(key),
            desc=f"tokenizing {task.name}",
        )


def rows_of(features: "datasets.Dataset", ids: Ids) -> list[Row]:
    """Returns rows of a tokenized split by their numbers."""
    columns: Mapping[str, list[Any]] = features[ids.tolist()]
    return list(_as_rows(columns))


def _as_rows(columns: Mapping[str, list[Any]]) -> Iterator[Row]:
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))


def content_digest(features: "datasets.Dataset") -> str:
    """Returns a short digest of token ids, labels and everything else that training reads, in order."""
    import pyarrow

    digest = hashlib.sha256()
    for batch in features.with_format("arrow").iter(_ROWS_PER_HASH):
        # Metadata and the boundaries of chunks depend on how the table was made, not on what it contains.
        table = batch.replace_schema_metadata(None).combine_chunks()
        stream = pyarrow.BufferOutputStream()
        with pyarrow.ipc.new_stream(stream, table.schema) as writer:
            writer.write_table(table)
        digest.update(stream.getvalue())
    return digest.hexdigest()[:16]
