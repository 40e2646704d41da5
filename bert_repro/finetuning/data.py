"""What a fine-tuning run reads: the task's splits, tokenized once, and the batches that training takes from one.

A split is a pair of `datasets.Dataset`s: its examples as the task reads them, and their features, one row per model
input. A sweep hands the same cache to all its runs, so that files are read and tokenized once. `datasets` keeps the
features of what it reads from the Hub.
"""

import hashlib
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from accelerate import Accelerator

from bert_repro.configs import FinetuningConfig
from bert_repro.errors import UserError
from bert_repro.models.loading import tokenizer_fingerprint
from bert_repro.tasks.base import Task
from bert_repro.training.batches import BatchSizes, Ids, MicroBatch, Step, even_passes
from bert_repro.utils.arrays import draw
from bert_repro.utils.files import disk_errors

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerBase

    from bert_repro.finetuning.features import FeatureCache

logger = logging.getLogger("bert_repro")

ORDER = 3  # names this draw in `randomness.draw`
_ROWS_HASHED_AT_ONCE = 10_000


class Split(NamedTuple):
    """One split of a task.

    Args:
        examples: a row per example.
        features: a row per model input, as `encode` returns them.
    """

    examples: "datasets.Dataset"
    features: "datasets.Dataset"


SplitCache = dict[tuple[tuple[str, ...], int | None], dict[str, Split]]
"""Splits already read, by their names and the limit on examples."""


@dataclass
class SplitReader:
    """Reads and tokenizes the splits of a task.

    Args:
        config: where the files are, the length, limits on examples, what the run does.
        task: the task, as `Task.prepared` returns it.
        tokenizer: the model's tokenizer.
        accelerator: the main process reads first, the others find the tokenized files.
        cache: splits that earlier runs of the same task, files, tokenizer and length have read; new ones are added.
        read: every split that this run has read.
    """

    config: FinetuningConfig
    task: Task
    tokenizer: "PreTrainedTokenizerBase"
    accelerator: Accelerator
    cache: SplitCache
    read: dict[str, Split] = field(default_factory=dict)

    def read_all(self) -> None:
        """Reads every split that the run needs, so that a fault in the data is found before the model is loaded.

        Raises:
            UserError: a split is missing or malformed, or a split to score has no labels.
        """
        if self.config.do_train:
            self.train()
        if self.config.do_eval:
            for name, split in self.evaluation().items():
                if not self.task.is_labelled(split.examples):
                    raise UserError(f"--do_eval: split {name} of {self.task.name} has no labels; use --do_predict")
        if self.config.do_predict:
            self.prediction()

    def train(self) -> Split:
        """Returns the training split."""
        name = self.task.train_split
        assert name is not None, "checked before the run begins"
        return self._read([name], self.config.max_train_samples)[name]

    def evaluation(self) -> dict[str, Split]:
        """Returns the splits to score, by name; a missing one is left out."""
        return self._read(self.task.eval_splits, self.config.max_eval_samples)

    def prediction(self) -> dict[str, Split]:
        """Returns the splits to predict, by name; a missing one is left out."""
        return self._read(self.task.predict_splits, None)

    def description(self, task: Task) -> dict[str, Any]:
        """Returns what results and the card say about the data, with an example of it for the card."""
        known, example = task.data_description(), task.example(self.train().examples if self.config.do_train else None)
        if self.config.do_train and example and known.get("files"):
            logger.info("the card shows a training text as its example; change it in README.md if the text is private")
        return {"title": task.title, **known, **({"example": example} if example else {})}

    def _read(self, names: Sequence[str], limit: int | None) -> dict[str, Split]:
        key = (tuple(names), limit)
        if key not in self.cache:
            with self.accelerator.main_process_first():
                loaded = load_splits(self.task, self.config.data_dir, names)
                self.cache[key] = {name: self._tokenize(loaded[name], limit) for name in names if name in loaded}
        self.read |= self.cache[key]
        return self.cache[key]

    def _tokenize(self, dataset: "datasets.Dataset", limit: int | None) -> Split:
        kept = dataset.select(range(min(limit or len(dataset), len(dataset))))
        return Split(kept, encode(self.task, kept, self.tokenizer, self.config.max_seq_length))


def load_splits(task: Task, data_dir: str | None, names: Sequence[str]) -> "dict[str, datasets.Dataset]":
    """Reads splits of a task; see `Task.load`. A missing one is logged."""
    found = task.load(None if data_dir is None else Path(data_dir), names)
    for name in names:
        if name not in found:
            logger.warning("%s: split %s is missing", task.name, name)
    return found


def encode(
    task: Task, dataset: "datasets.Dataset", tokenizer: "PreTrainedTokenizerBase", max_seq_length: int
) -> "datasets.Dataset":
    """Tokenizes a split. Texts that were cut are counted in the log.

    Args:
        task: the task, as `Task.prepared` returns it.
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

    # `datasets` would hash the pickled task, in which settings that change no feature and the version are wrong keys.
    key = [
        dataset._fingerprint, __version__, type(task).__name__, task.encoding_settings(),
        tokenizer_fingerprint(tokenizer), max_seq_length,
    ]  # fmt: skip
    folders = {os.path.dirname(file["filename"]) for file in dataset.cache_files}
    folder = Path(datasets.config.HF_DATASETS_CACHE)
    with disk_errors(folder, "cannot be written"):
        features = dataset.map(
            task.encode_batch,
            batched=True,
            batch_size=task.rows_at_once,
            fn_kwargs={"tokenizer": tokenizer, "max_seq_length": max_seq_length},
            remove_columns=dataset.column_names,
            keep_in_memory=not all(os.access(folder, os.W_OK) for folder in folders),
            new_fingerprint=datasets.fingerprint.Hasher.hash(key),
            desc=f"tokenizing {task.name}",
        )
    truncated = task.count_truncated(features)
    if truncated:
        logger.info("%s: %d of %d inputs lost text to the length limit", task.name, truncated, len(features))
    return features


@dataclass
class ModelInputs:
    """Makes the model's inputs of rows of a tokenized split; for a frozen encoder, hidden states replace the tokens.

    Args:
        config: packing and length.
        task: collates features.
        pad_token_id: fills the places after a sequence's end.
        device: where the model is. XLA compiles a graph for every shape: there, all batches are padded to one length.
        feature_cache: hidden states of a frozen encoder.
    """

    config: FinetuningConfig
    task: Task
    pad_token_id: int
    device: torch.device
    feature_cache: "FeatureCache | None" = None

    def __call__(self, features: "datasets.Dataset", ids: Ids, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """Returns inputs of the head.

        Args:
            features: a tokenized split.
            ids: numbers of some of its rows.
            rows: these rows, from `rows_of`; without `labels` to predict.
        """
        on_xla = self.device.type == "xla"
        packing, multiple = self.config.packing and not on_xla, self.config.max_seq_length if on_xla else None
        inputs = self.task.collate(rows, pad_token_id=self.pad_token_id, packing=packing, pad_to_multiple_of=multiple)
        return inputs if self.feature_cache is None else self.feature_cache.batch(features, ids.tolist(), inputs)


class FinetuningSource:
    """The batch source of a fine-tuning run: shuffled epochs laid end to end and cut into full batches, as in the
    original implementation.

    Args:
        config: epochs or steps, seed, packing.
        task: collates features and counts their loss terms.
        features: the tokenized training set.
        sizes: sequences per optimizer step, and per device and forward pass.
        processes: devices that share the work.
        model_inputs: makes the model's inputs.
    """

    def __init__(
        self,
        config: FinetuningConfig,
        task: Task,
        features: "datasets.Dataset",
        sizes: BatchSizes,
        processes: int,
        model_inputs: ModelInputs,
    ) -> None:
        self.config, self.task, self.features = config, task, features
        self.sizes, self.processes, self.model_inputs = sizes, processes, model_inputs
        self._orders: dict[int, Ids] = {}
        epochs = config.num_train_epochs or task.paper_epochs
        self.data_fingerprint: dict[str, Any] = {
            "seed": config.seed,
            "train_batch_size": sizes.batch,
            "number of training inputs": len(features),
            "labels": list(task.label_names),
            "class weights": task.model_settings().get("class_weights"),
            "content of the training inputs": content_digest(features),
        }
        self.total_steps = config.max_steps or max(1, int(task.epoch_size(features) * epochs / sizes.batch))

    def steps(self, position: dict[str, Any] | None) -> Iterator[Step]:
        """See `BatchSource.steps`; the position is the number of steps taken."""
        for number in range(position["step"] if position else 0, self.total_steps):
            ids = self._ids(np.arange(number * self.sizes.batch, (number + 1) * self.sizes.batch))
            yield Step(even_passes(ids, self.sizes.micro, self.processes), 0, {"step": number + 1})

    def load(self, ids: Ids, group: int) -> MicroBatch:
        """See `BatchSource.load`; there is one group."""
        rows = rows_of(self.features, ids)
        tokens = sum(row["length"] for row in rows)
        return MicroBatch(self.model_inputs(self.features, ids, rows), self.totals(ids, group), tokens)

    def totals(self, ids: Ids, group: int) -> dict[str, int]:
        """See `BatchSource.totals`; reads rows, so where there are loader processes, they do."""
        return {"loss": self.task.loss_items(rows_of(self.features, ids)).sum().item()}

    def _ids(self, places: Ids) -> Ids:
        """Returns feature rows at places of the endless order, in which every epoch is a permutation of its own."""
        size = len(self.features)
        ids = np.empty_like(places)
        for epoch in np.unique(places // size):
            inside = places // size == epoch
            ids[inside] = self._order(int(epoch))[places[inside] % size]
        return ids

    def _order(self, epoch: int) -> Ids:
        """Returns the permutation of an epoch; computed once and kept while steps of that epoch are read."""
        if epoch not in self._orders:
            self._orders.pop(epoch - 2, None)
            draws = draw(self.config.seed, ORDER, epoch, np.arange(len(self.features)))
            self._orders[epoch] = np.argsort(draws, kind="stable")
        return self._orders[epoch]


def rows_of(features: "datasets.Dataset", ids: Ids) -> list[dict[str, Any]]:
    """Returns some rows of a tokenized split, by number."""
    columns = features[ids.tolist()]
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def content_digest(features: "datasets.Dataset") -> str:
    """Returns a short digest of token ids, labels and everything else that training reads, in order."""
    import pyarrow

    digest = hashlib.sha256()
    for batch in features.with_format("arrow").iter(_ROWS_HASHED_AT_ONCE):
        table, stream = batch.replace_schema_metadata(None).combine_chunks(), pyarrow.BufferOutputStream()
        with pyarrow.ipc.new_stream(stream, table.schema) as writer:
            writer.write_table(table)
        digest.update(stream.getvalue())
    return digest.hexdigest()[:16]
