"""Computes the outputs of a fine-tuned model, or the mean of an ensemble, for every feature of a split.

All processes share the work, and each of them gets all outputs, in the order of the features.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object, send_to_device

from bert_repro.configs import FinetuningConfig
from bert_repro.finetuning.batch_source import ModelInputs
from bert_repro.finetuning.data import rows_of
from bert_repro.tasks.base import FloatArray, Task
from bert_repro.training.batches import Ids

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedModel

FEATURES_AT_ONCE = 8192
"""Features between two exchanges of the processes. Their outputs are in memory together."""


@dataclass(frozen=True)
class HeadOutputs:
    """Computes outputs of heads.

    Args:
        config: batch size of an evaluation.
        task: its labels give the order of the outputs.
        models: the model, on its device. With an ensemble the other models follow, on the CPU.
        model_inputs: makes the model's inputs.
        accelerator: devices, processes and precision.
    """

    config: FinetuningConfig
    task: Task
    models: "Sequence[PreTrainedModel]"
    model_inputs: ModelInputs
    accelerator: Accelerator

    def of(
        self, features: "datasets.Dataset", on_batch: Callable[[int, int], None] | None = None
    ) -> Iterator[FloatArray]:
        """Yields the output for every feature of a split, in order; see `output_rows`.

        Args:
            features: the tokenized split.
            on_batch: called after each batch with the number of features in it (in all processes) and in the split.
        """
        lengths = np.asarray(features["length"][:])
        for start in range(0, len(features), FEATURES_AT_ONCE):
            # Rows of similar length share a batch, so that there is little padding.
            rows = start + np.argsort(-lengths[start : start + FEATURES_AT_ONCE], kind="stable")
            yield from self._mean_outputs(features, rows, on_batch)

    def _mean_outputs(
        self, features: "datasets.Dataset", rows: Ids, on_batch: Callable[[int, int], None] | None
    ) -> list[FloatArray]:
        """Returns the mean of all models' outputs for some rows, in the order of the split."""
        first, *others = self.models
        outputs = self._outputs_of(first, features, rows, on_batch)
        if not others:
            return outputs

        sums = [output.astype(np.float64) for output in outputs]
        for model in others:
            # Besides the first model, only one is in the memory of the device.
            model.to(self.accelerator.device)
            for total, output in zip(sums, self._outputs_of(model, features, rows), strict=True):
                total += output
            model.to("cpu")
        return [(total / len(self.models)).astype(np.float32) for total in sums]

    def _outputs_of(
        self,
        model: "PreTrainedModel",
        features: "datasets.Dataset",
        rows: Ids,
        on_batch: Callable[[int, int], None] | None = None,
    ) -> list[FloatArray]:
        """Returns one model's outputs for some rows, in the order of the split."""
        batches = np.array_split(rows, math.ceil(len(rows) / self.config.per_device_eval_batch_size))
        model.eval()
        # XLA processes cannot exchange objects, so there each of them computes everything.
        if self.accelerator.device.type == "xla":
            return _in_order(self._forward(model, features, batches))
        own_batches = batches[self.accelerator.process_index :: self.accelerator.num_processes]
        own_outputs: list[tuple[int, FloatArray]] = []
        for batch in own_batches:
            own_outputs += self._forward(model, features, [batch])
            if on_batch is not None:
                on_batch(len(batch) * self.accelerator.num_processes, len(features))
        return _in_order(gather_object(own_outputs))

    @torch.no_grad()
    def _forward(
        self, model: "PreTrainedModel", features: "datasets.Dataset", batches: Sequence[Ids]
    ) -> Iterator[tuple[int, FloatArray]]:
        """Yields the number of each row with its output."""
        # The labels of a finished model may be in another order than those of the task.
        columns = None
        if self.task.label_names:
            columns = self.task.label_columns(model.config.id2label)

        for rows in batches:
            chosen = rows_of(features, rows)
            for row in chosen:
                # With labels the model would also compute a loss.
                row.pop("labels", None)
            inputs = self.model_inputs(features, rows, chosen)
            with self.accelerator.autocast():
                output = model(**send_to_device(inputs, self.accelerator.device))
            arrays = output_rows(output, [row["length"] for row in chosen])
            for number, array in zip(rows, arrays, strict=True):
                yield int(number), array if columns is None else array[..., columns]


def output_rows(output: Any, lengths: Sequence[int]) -> list[FloatArray]:
    """Splits a head's output for a batch into one array per row.

    Args:
        output: its `logits`, or `start_logits` and `end_logits`.
        lengths: tokens of each row of the batch.

    Returns:
        The logits of each row: [labels], or [length, labels] if the head answers for every token. Start and end of a
        span are two labels.
    """
    names = ("start_logits", "end_logits") if hasattr(output, "start_logits") else ("logits",)
    arrays = [getattr(output, name).detach().float().cpu().numpy() for name in names]
    logits = np.stack(arrays, axis=-1) if len(arrays) > 1 else arrays[0]
    # One answer per row: [B, labels].
    if logits.ndim == 2:
        return list(logits)
    # Tokens of padded rows: [B, S, labels].
    if len(logits) == len(lengths):
        return [row[:length].copy() for row, length in zip(logits, lengths, strict=True)]
    # Tokens of packed rows: [1, T, labels].
    return np.split(logits[0], np.cumsum(lengths)[:-1])


def _in_order(pairs: Iterable[tuple[int, FloatArray]]) -> list[FloatArray]:
    by_row = dict(pairs)
    return [by_row[row] for row in sorted(by_row)]
