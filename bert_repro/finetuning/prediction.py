"""Outputs of a fine-tuned model, or the mean of an ensemble, for a split: a chunk of it at a time."""

import dataclasses
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object

from bert_repro.configs import FinetuningConfig
from bert_repro.corpus.tokenizer import load_tokenizer, tokenizer_fingerprint
from bert_repro.errors import UserError
from bert_repro.finetuning.data import Collate, rows_of
from bert_repro.models import modeling_bert_repro
from bert_repro.tasks.base import FloatArray, Task
from bert_repro.training.batches import Ids, to_device
from bert_repro.training.model_loading import load_model

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerBase

FEATURES_AT_ONCE = 8192  # computed between two exchanges of the processes, and held in memory


class Predictor:
    """Computes a head's outputs for the features of a split, once each over all processes.

    Args:
        config: `ensemble_with`, `per_device_eval_batch_size` and how models are loaded.
        task: takes outputs apart.
        tokenizer: the first model's; those of an ensemble must have the same.
        accelerator: devices and processes.
        collate: makes the model's inputs.

    Raises:
        UserError: another model of the ensemble is not usable with the first.
    """

    def __init__(
        self,
        config: FinetuningConfig,
        task: Task,
        tokenizer: "PreTrainedTokenizerBase",
        accelerator: Accelerator,
        collate: Collate,
    ) -> None:
        self.config, self.task, self.accelerator, self.collate = config, task, accelerator, collate
        for name in config.ensemble_with:
            with _member_errors(name):
                self._check_member(name, tokenizer)

    def outputs(self, model: Any, features: "datasets.Dataset") -> Iterator[FloatArray]:
        """Yields the head's output for every feature, in order; for an ensemble the mean of its models' outputs.

        Args:
            model: the first model, or the only one.
            features: a tokenized split.
        """
        lengths = np.asarray(features["length"][:])
        for start in range(0, len(features), FEATURES_AT_ONCE):
            # Sorted by length, so that a batch has little padding.
            rows = start + np.argsort(-lengths[start : start + FEATURES_AT_ONCE], kind="stable")
            yield from self._mean_outputs(model, features, rows)

    def _mean_outputs(self, model: Any, features: "datasets.Dataset", rows: Ids) -> list[FloatArray]:
        outputs = self._outputs_of(model, features, rows)
        if not self.config.ensemble_with:
            return outputs
        sums = [output.astype(np.float64) for output in outputs]
        for name in self.config.ensemble_with:
            # One at a time is in memory beside the first.
            member = self._member(name).to(self.accelerator.device)
            for total, output in zip(sums, self._outputs_of(member, features, rows), strict=True):
                total += output
        return [(total / (1 + len(self.config.ensemble_with))).astype(np.float32) for total in sums]

    def _outputs_of(self, model: Any, features: "datasets.Dataset", rows: Ids) -> list[FloatArray]:
        """Computes one model's outputs for some features, in the order of the split.

        XLA processes cannot exchange objects, so there each computes all.
        """
        batches = np.array_split(rows, math.ceil(len(rows) / self.config.per_device_eval_batch_size))
        model.eval()
        if self.accelerator.device.type == "xla":
            return _in_order(pair for batch in batches for pair in self._forward(model, features, batch))
        processes = self.accelerator.num_processes
        # Every process of a sharded model runs as many forward passes, so some process repeats a batch.
        batches += batches[:1] * (-len(batches) % processes)
        mine = batches[self.accelerator.process_index :: processes]
        return _in_order(gather_object([pair for batch in mine for pair in self._forward(model, features, batch)]))

    @torch.no_grad()
    def _forward(self, model: Any, features: "datasets.Dataset", rows: Ids) -> Iterator[tuple[int, FloatArray]]:
        chosen = [{key: value for key, value in row.items() if key != "labels"} for row in rows_of(features, rows)]
        batch = self.collate(features, rows, chosen)
        with self.accelerator.autocast():
            output = model(**to_device(batch, self.accelerator.device))
        outputs = self.task.feature_outputs(output, [row["length"] for row in chosen])
        columns = self.task.label_columns(model.config.id2label) if self.task.label_names else None
        for row, array in zip(rows, outputs, strict=True):
            yield int(row), array if columns is None else array[..., columns]

    def _member(self, name: str) -> Any:
        model_class = getattr(modeling_bert_repro, self.task.head)
        config = dataclasses.replace(self.config, model_name_or_path=name)
        return load_model(model_class, config, may_add_weights=False)

    def _check_member(self, name: str, first: "PreTrainedTokenizerBase") -> None:
        """Checks that another model of the ensemble reads the inputs of the first and has the same labels."""
        config = self.config
        tokenizer = load_tokenizer(config.tokenizer_name or name)
        if tokenizer_fingerprint(tokenizer) != tokenizer_fingerprint(first):
            raise UserError(
                f"its tokenizer is not that of {config.model_name_or_path}, so their logits are not of the same "
                "tokens; combine models of one vocabulary"
            )
        member = self._member(name).config
        if config.max_seq_length > member.max_position_embeddings:
            raise UserError(
                f"it has {member.max_position_embeddings} positions, and --max_seq_length is {config.max_seq_length}; "
                "combine models with as many"
            )
        if len(tokenizer) > member.vocab_size:
            raise UserError(
                f"its vocabulary of {member.vocab_size} is smaller than the tokenizer's {len(tokenizer)} ids; combine "
                "models of one vocabulary"
            )
        if self.task.label_names:
            self.task.label_columns(member.id2label)


def _in_order(pairs: Iterable[tuple[int, FloatArray]]) -> list[FloatArray]:
    by_row = dict(pairs)
    return [by_row[row] for row in sorted(by_row)]


@contextmanager
def _member_errors(name: str) -> Iterator[None]:
    """Rewords an error so that it names the model of `--ensemble_with`."""
    try:
        yield
    except UserError as error:
        reason = str(error).removeprefix("--model_name_or_path").removeprefix(f" {name}").removeprefix(": ")
        raise UserError(f"--ensemble_with {name}: {reason.replace(', or add --do_train', '')}") from error
