"""Breaks held-out accuracy down by masking action and token frequency, and NSP into a confusion matrix.

Accuracy over all predicted tokens hides what the masking is for (A.1): a token left as it is can be copied, one
replaced at random must be doubted, and [MASK] says nothing. Frequent tokens are learnt first.

Shape legend: `P` predicted tokens of a batch, `B` sequences.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from accelerate import Accelerator

from bert_repro.models.modeling_bert_repro import next_token_labels
from bert_repro.training.collation import IGNORE_INDEX

ACTIONS = ("mask", "same", "random")
NSP_LABELS = ("is_next", "not_next")


class MlmBreakdown:
    """Counts correct predictions over batches; nothing is computed twice.

    Args:
        token_counts: how often each token occurs in the corpus, int64 [V].
        mask_token_id: id of [MASK].
    """

    def __init__(self, token_counts: npt.NDArray[np.int64], mask_token_id: int) -> None:
        decades = np.full(len(token_counts), -1)
        seen = token_counts > 0
        decades[seen] = np.floor(np.log10(token_counts[seen]) + 1e-9)
        self.decades, self.mask_token_id = torch.from_numpy(decades), mask_token_id
        bins = int(decades.max()) + 1
        # Second axis: right, all.
        self.actions, self.frequencies = torch.zeros(len(ACTIONS), 2), torch.zeros(bins, 2)
        self.confusion = torch.zeros(len(NSP_LABELS), len(NSP_LABELS))

    @torch.no_grad()
    def add(self, output: Any, inputs: dict[str, Any]) -> None:
        """Counts a forward pass.

        Args:
            output: of `BertReproForPreTraining`, with logits at predicted positions only, or of `BertReproForCausalLM`.
            inputs: its inputs, with `labels` and, but for the left-to-right model, `prediction_positions`.
        """
        if "prediction_positions" in inputs:
            positions = inputs["prediction_positions"]
            labels, read = (inputs[name].flatten()[positions].cpu() for name in ("labels", "input_ids"))
            right = output.prediction_logits.max(-1).indices.cpu() == labels
            actions = torch.where(read == self.mask_token_id, 0, torch.where(read == labels, 1, 2))
            _count(self.actions, actions, right, labels != IGNORE_INDEX)
        else:
            labels = next_token_labels(inputs["labels"], inputs.get("cu_seq_lens_q")).flatten().cpu()
            right = output.logits.max(-1).indices.flatten().cpu() == labels
        decades = torch.where(labels == IGNORE_INDEX, -1, self.decades[labels.clamp(min=0)])
        _count(self.frequencies, decades, right, decades >= 0)
        if "next_sentence_label" in inputs:
            rows, columns = inputs["next_sentence_label"].cpu(), output.seq_relationship_logits.argmax(-1).cpu()
            known = rows != IGNORE_INDEX
            places = rows[known] * len(NSP_LABELS) + columns[known]
            self.confusion += torch.bincount(places, minlength=self.confusion.numel()).view_as(self.confusion)

    def results(self, accelerator: Accelerator) -> dict[str, Any]:
        """Returns the counts of all processes for results.json.

        Returns:
            `by_action` (what the model read at the predicted place: [MASK], the token itself, a random one),
            `by_frequency` (tokens by their count in the corpus; special tokens are in no bin) and `nsp_confusion`
            (label -> prediction -> sequences), each only where the model has that task.
        """
        parts = (self.actions, self.frequencies, self.confusion)
        sums = [accelerator.reduce(part.to(accelerator.device), "sum").tolist() for part in parts]
        actions, frequencies, confusion = sums
        bins = [
            {"at_least": 10**decade, "below": 10 ** (decade + 1), **_accuracy(*pair)}
            for decade, pair in enumerate(frequencies)
            if pair[1]
        ]
        results: dict[str, Any] = {"by_frequency": bins}
        if any(total for _, total in actions):
            named = zip(ACTIONS, actions, strict=True)
            results["by_action"] = {name: _accuracy(*pair) for name, pair in named if pair[1]}
        if any(map(any, confusion)):
            named_rows = zip(NSP_LABELS, confusion, strict=True)
            results["nsp_confusion"] = {
                label: dict(zip(NSP_LABELS, map(int, row), strict=True)) for label, row in named_rows
            }
        return results


def _count(table: torch.Tensor, rows: torch.Tensor, right: torch.Tensor, counted: torch.Tensor) -> None:
    table[:, 0] += torch.bincount(rows[counted & right], minlength=len(table))
    table[:, 1] += torch.bincount(rows[counted], minlength=len(table))


def _accuracy(right: float, total: float) -> dict[str, float]:
    return {"right": int(right), "predictions": int(total), "accuracy": right / total}
