"""The training batches of a fine-tuning run, and the model inputs of rows of a tokenized split."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from bert_repro.configs import FinetuningConfig
from bert_repro.finetuning.data import Row, content_digest, require_batch, rows_of
from bert_repro.finetuning.frozen_encoder import FeatureCache
from bert_repro.tasks.base import Task
from bert_repro.training.batches import Batch, BatchSizes, Ids, MicroBatch, Step, even_passes
from bert_repro.utils.randomness import Stream, draw

if TYPE_CHECKING:
    import datasets


@dataclass
class ModelInputs:
    """Makes model inputs from rows of a tokenized split. With a frozen encoder, hidden states replace the tokens.

    Args:
        config: packing and length.
        task: collates features.
        pad_token_id: id of the padding after a sequence's end.
        device: the device of the model.
        feature_cache: hidden states of a frozen encoder, if the run uses one.
    """

    config: FinetuningConfig
    task: Task
    pad_token_id: int
    device: torch.device
    feature_cache: FeatureCache | None = None

    def __call__(self, features: "datasets.Dataset", ids: Ids, rows: list[Row]) -> Batch:
        """Returns inputs of the head.

        Args:
            features: a tokenized split.
            ids: numbers of the rows in it.
            rows: these rows, from `rows_of`; without `labels` for predictions.
        """
        # XLA compiles a graph for every shape, so there all batches are padded to one length.
        on_xla = self.device.type == "xla"
        inputs = self.task.collate(
            rows,
            pad_token_id=self.pad_token_id,
            packing=self.config.packing and not on_xla,
            pad_to_multiple_of=self.config.max_seq_length if on_xla else None,
        )
        if self.feature_cache is None:
            return inputs
        return self.feature_cache.batch(features, ids.tolist(), inputs)


class FinetuningSource:
    """The batch source of a fine-tuning run.

    Shuffled epochs follow each other without a gap and are cut into full batches, as in the original implementation.

    Args:
        config: epochs or steps, seed, packing.
        task: collates features and counts their loss terms.
        features: the tokenized training set.
        sizes: sequences per optimizer step, and per device and forward pass.
        processes: number of devices that share the work.
        model_inputs: makes the model's inputs.

    Raises:
        UserError: `train_batch_size` is larger than the training set.
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
        # Tasks with windows know the number of their inputs only after tokenizing.
        if config.train_batch_size is not None:
            require_batch(config.train_batch_size, len(features))
        self.config = config
        self.task = task
        self.features = features
        self.sizes = sizes
        self.processes = processes
        self.model_inputs = model_inputs
        self._orders: dict[int, Ids] = {}
        self.data_fingerprint: dict[str, Any] = {
            "seed": config.seed,
            "train_batch_size": sizes.batch,
            "number of training inputs": len(features),
            "labels": list(task.label_names),
            "class weights": task.model_settings().get("class_weights"),
            "content of the training inputs": content_digest(features),
        }
        epochs = config.num_train_epochs or task.paper_epochs
        self.total_steps = config.max_steps or max(1, int(task.epoch_size(features) * epochs / sizes.batch))

    def steps(self, position: dict[str, Any] | None) -> Iterator[Step]:
        """See `BatchSource.steps`. The position is the number of steps taken."""
        first = position["step"] if position else 0
        for number in range(first, self.total_steps):
            ids = self._ids(np.arange(number * self.sizes.batch, (number + 1) * self.sizes.batch))
            yield Step(even_passes(ids, self.sizes.micro, self.processes), 0, {"step": number + 1})

    def load(self, ids: Ids, group: int) -> MicroBatch:
        """See `BatchSource.load`. There is one group."""
        rows = rows_of(self.features, ids)
        num_tokens = sum(row["length"] for row in rows)
        return MicroBatch(self.model_inputs(self.features, ids, rows), self.totals(ids, group), num_tokens)

    def totals(self, ids: Ids, group: int) -> dict[str, int]:
        """See `BatchSource.totals`. It reads rows, so loader processes call it if there are any."""
        return {"loss": self.task.loss_items(rows_of(self.features, ids)).sum().item()}

    def _ids(self, places: Ids) -> Ids:
        """Returns the rows at places of an endless order, in which every epoch has its own permutation."""
        size = len(self.features)
        ids = np.empty_like(places)
        for epoch in np.unique(places // size):
            in_epoch = places // size == epoch
            ids[in_epoch] = self._order(int(epoch))[places[in_epoch] % size]
        return ids

    def _order(self, epoch: int) -> Ids:
        """Returns the permutation of an epoch. The last two are stored, because a batch may reach into the next one."""
        if epoch not in self._orders:
            self._orders.pop(epoch - 2, None)
            draws = draw(self.config.seed, Stream.FINETUNING_ORDER, epoch, np.arange(len(self.features)))
            self._orders[epoch] = np.argsort(draws, kind="stable")
        return self._orders[epoch]
