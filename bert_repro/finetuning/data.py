"""What a fine-tuning run reads: the task's splits, tokenized once, and the batches that training takes from one.

A split is a pair of `datasets.Dataset`s: its examples as the task reads them, and their features, one row per model
input. A sweep hands the same cache to all its runs, so that files are read and tokenized once.
"""

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from accelerate import Accelerator

from bert_repro.configs import FinetuningConfig
from bert_repro.errors import UserError
from bert_repro.tasks.base import FloatArray, Task
from bert_repro.training.batches import BatchSizes, Ids, MicroBatch, Step
from bert_repro.utils.randomness import draw

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger("bert_repro")

ORDER = 3  # names this draw in `randomness.draw`
_ROWS_HASHED_AT_ONCE = 10_000

Collate = Callable[["datasets.Dataset", Ids, list[dict[str, Any]]], dict[str, Any]]
"""Turns a tokenized split, the numbers of some of its rows and these rows into model inputs."""


class Split(NamedTuple):
    """One split of a task.

    Args:
        examples: a row per example.
        features: a row per model input, as `Task.encode` returns them.
    """

    examples: "datasets.Dataset"
    features: "datasets.Dataset"


SplitCache = dict[tuple[tuple[str, ...], int | None], dict[str, Split]]
"""Splits already read, by their names and the limit on examples."""


class SplitReader:
    """Reads and tokenizes the splits of a task.

    Args:
        config: where the files are, the length, limits on examples, what the run does.
        task: the task, as `Task.prepared` returns it.
        tokenizer: the model's tokenizer.
        accelerator: the main process reads first, the others find the tokenized files.
        cache: splits that earlier runs of the same task, files, tokenizer and length have read; new ones are added.
    """

    def __init__(
        self,
        config: FinetuningConfig,
        task: Task,
        tokenizer: "PreTrainedTokenizerBase",
        accelerator: Accelerator,
        cache: SplitCache,
    ) -> None:
        self.config, self.task, self.tokenizer, self.accelerator = config, task, tokenizer, accelerator
        self._cache = cache
        self.read: dict[str, Split] = {}  # every split that this run has read

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
            logger.info("the card shows a training text as its example; make_card --example writes it with another")
        return {"title": task.title, **known, **({"example": example} if example else {})}

    def _read(self, names: Sequence[str], limit: int | None) -> dict[str, Split]:
        key = (tuple(names), limit)
        if key not in self._cache:
            with self.accelerator.main_process_first():
                loaded = self.task.load(self.config.data_dir, names)
                self._cache[key] = {name: self._tokenize(loaded[name], limit) for name in names if name in loaded}
        self.read |= self._cache[key]
        return self._cache[key]

    def _tokenize(self, dataset: "datasets.Dataset", limit: int | None) -> Split:
        kept = dataset.select(range(min(limit or len(dataset), len(dataset))))
        return Split(kept, self.task.encode(kept, self.tokenizer, self.config.max_seq_length))


class FinetuningSource:
    """The batch source of a fine-tuning run: shuffled epochs laid end to end and cut into full batches, as in the
    original implementation.

    Args:
        config: epochs or steps, seed, packing.
        task: collates features and counts their loss terms.
        features: the tokenized training set.
        sizes: sequences per optimizer step, and per device and forward pass.
        collate: makes the model's inputs.
    """

    def __init__(
        self,
        config: FinetuningConfig,
        task: Task,
        features: "datasets.Dataset",
        sizes: BatchSizes,
        collate: Collate,
    ) -> None:
        self.config, self.task, self.features = config, task, features
        self.sizes, self.collate = sizes, collate
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
            yield Step(ids, {}, self.sizes.micro, 0, {"step": number + 1})

    def load(self, ids: Ids, group: int) -> MicroBatch:
        """See `BatchSource.load`; there is one group."""
        rows = rows_of(self.features, ids)
        inputs = self.collate(self.features, ids, rows)
        return MicroBatch(inputs, self._count(ids), sum(row["length"] for row in rows))

    def totals(self, ids: Ids, group: int) -> dict[str, int]:
        """See `BatchSource.totals`; reads rows, so where there are loader processes, they do."""
        return self._count(ids)

    def count_right(self, output: Any, inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
        """See `BatchSource.count_right`; nothing is counted, since the dev set says more than training accuracy."""
        return {}

    def _ids(self, places: Ids) -> Ids:
        """Feature rows at places of the endless order, in which every epoch is a permutation of its own."""
        size = len(self.features)
        ids = np.empty_like(places)
        for epoch in np.unique(places // size):
            inside = places // size == epoch
            ids[inside] = self._order(int(epoch))[places[inside] % size]
        return ids

    def _order(self, epoch: int) -> Ids:
        """The permutation of an epoch; computed once and kept while steps of that epoch are read."""
        if epoch not in self._orders:
            order = np.argsort(draw(self.config.seed, ORDER, epoch, np.arange(len(self.features))), kind="stable")
            self._orders = {number: kept for number, kept in self._orders.items() if number == epoch - 1} | {
                epoch: order
            }
        return self._orders[epoch]

    def _count(self, ids: Ids) -> dict[str, int]:
        return {"loss": self.task.loss_items(rows_of(self.features, ids)).sum().item()}


def rows_of(features: "datasets.Dataset", ids: Ids) -> list[dict[str, Any]]:
    """Returns some rows of a tokenized split, by number."""
    columns = features[ids.tolist()]
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def content_digest(features: "datasets.Dataset") -> str:
    """Returns a short digest of token ids, labels and everything else that training reads, in order."""
    digest = hashlib.sha256()
    for batch in features.with_format("arrow").iter(_ROWS_HASHED_AT_ONCE):
        for name in sorted(batch.column_names):
            column = batch.column(name).combine_chunks()
            digest.update(f"{name} {column.type} {len(column)}".encode())
            while hasattr(column, "value_lengths"):  # lists, and lists of lists
                digest.update(np.ascontiguousarray(column.value_lengths().to_numpy(zero_copy_only=False)).tobytes())
                column = column.flatten()
            digest.update(repr(column.to_pylist()).encode() if column.null_count else _plain_bytes(column))
    return digest.hexdigest()[:16]


def _plain_bytes(column: Any) -> bytes:
    values = column.to_numpy(zero_copy_only=False)
    return repr(values.tolist()).encode() if values.dtype == object else np.ascontiguousarray(values).tobytes()


def in_order(pairs: Iterable[tuple[int, FloatArray]]) -> list[FloatArray]:
    """Returns outputs by the number of their row."""
    by_row = dict(pairs)
    return [by_row[row] for row in sorted(by_row)]


@contextmanager
def member_errors(name: str) -> Iterator[None]:
    """Rewords an error so that it names the model of `--ensemble_with`."""
    try:
        yield
    except UserError as error:
        reason = str(error).removeprefix("--model_name_or_path").removeprefix(f" {name}").removeprefix(": ")
        raise UserError(f"--ensemble_with {name}: {reason.replace(', or add --do_train', '')}") from error
