"""Evaluates a model on documents that training never sees.

Accuracy over all predicted tokens hides what the masking is for (A.1): a token left as it is can be copied, one
replaced at random must be doubted, and [MASK] says nothing. Frequent tokens are learned first. Held-out accuracy is
therefore also broken down by masking action and token frequency.

Shape legend: `P` predicted tokens of a batch, `V` vocabulary.
"""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device
from torch import nn

from bert_repro.configs import Phase, PretrainingConfig
from bert_repro.corpus.prepared_corpus import PreparedCorpus
from bert_repro.pretraining.dataset import ExampleStream, Position, make_collator
from bert_repro.pretraining.objectives import objective_of
from bert_repro.training.batches import IGNORE_INDEX, Batch
from bert_repro.utils.arrays import Int64Array
from bert_repro.utils.files import SAMPLE_INDEX

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ACTIONS = ("mask", "same", "random")

# Names of the held-out examples' draws. The examples and their masks are the same whatever the seed of the run.
_SEED = 0
_PHASE = 1000

_LARGEST_EXPONENT = 700.0  # exp of more is no float


class MlmBreakdown:
    """Counts right predictions by masking action and by token frequency, from forward passes that are made anyway.

    Args:
        config: selects the objective.
        token_counts: how often each token occurs in the corpus, int64 [V].
        mask_token_id: id of [MASK].
    """

    def __init__(self, config: PretrainingConfig, token_counts: Int64Array, mask_token_id: int) -> None:
        self.objective = objective_of(config)
        self.mask_token_id = mask_token_id

        # A token that occurs 250 times is in decade 2, from 100 to 1,000. Tokens that never occur are in none.
        decades = np.full(len(token_counts), -1)
        occurs = token_counts > 0
        decades[occurs] = np.floor(np.log10(token_counts[occurs]) + 1e-9)
        self.decades = torch.from_numpy(decades)

        # Columns: right predictions, all predictions.
        self.actions = torch.zeros(len(ACTIONS), 2)
        self.frequencies = torch.zeros(int(decades.max()) + 1, 2)

    @torch.no_grad()
    def add(self, output: Any, inputs: dict[str, Any]) -> None:
        """Counts the predictions of a forward pass.

        Args:
            output: output of the model.
            inputs: its inputs, the collator's batch.
        """
        predictions = self.objective.token_predictions(output, inputs)
        labels = predictions.labels.cpu()
        is_right = predictions.predicted.cpu() == labels

        if predictions.inputs is not None:
            tokens = predictions.inputs.cpu()
            same_or_random = torch.where(tokens == labels, ACTIONS.index("same"), ACTIONS.index("random"))
            actions = torch.where(tokens == self.mask_token_id, ACTIONS.index("mask"), same_or_random)
            _count(self.actions, actions, is_right, labels != IGNORE_INDEX)

        decades = torch.where(labels == IGNORE_INDEX, -1, self.decades[labels.clamp(min=0)])
        _count(self.frequencies, decades, is_right, decades >= 0)

    def results(self, accelerator: Accelerator) -> dict[str, Any]:
        """Returns the counts of all processes for results.json.

        Returns:
            `by_frequency`: a list of decades of the tokens' counts in the corpus; special tokens are in none.
            `by_action`: what the model read at the predicted position: [MASK], the token itself or a random one. Left
            out for objectives that do not mask.
        """
        actions = accelerator.reduce(self.actions.to(accelerator.device), "sum").tolist()
        frequencies = accelerator.reduce(self.frequencies.to(accelerator.device), "sum").tolist()

        by_frequency: list[dict[str, float]] = []
        for decade, (right, total) in enumerate(frequencies):
            if total:
                limits = {"at_least": 10**decade, "below": 10 ** (decade + 1)}
                by_frequency.append({**limits, **_accuracy(right, total)})
        results: dict[str, Any] = {"by_frequency": by_frequency}

        by_action: dict[str, dict[str, float]] = {}
        for action, (right, total) in zip(ACTIONS, actions, strict=True):
            if total:
                by_action[action] = _accuracy(right, total)
        if by_action:
            results["by_action"] = by_action
        return results


def _count(table: torch.Tensor, rows: torch.Tensor, is_right: torch.Tensor, is_counted: torch.Tensor) -> None:
    """Adds right and all predictions to the rows of a table."""
    table[:, 0] += torch.bincount(rows[is_counted & is_right], minlength=len(table))
    table[:, 1] += torch.bincount(rows[is_counted], minlength=len(table))


def _accuracy(right: float, total: float) -> dict[str, float]:
    return {"right": int(right), "predictions": int(total), "accuracy": right / total}


class HeldOutEvaluation:
    """Measures a model on the same held-out examples and masks at every evaluation.

    Metrics therefore compare along a run and between runs. Sequences are as long as the phase's: positions beyond that
    are untrained until a later phase. A model of 96 million tokens of length 128 predicted 41% of the masked tokens in
    sequences of 128 and 21% in sequences of 512.

    Args:
        config: the run's settings.
        phase: its length and limit of predictions are used.
        corpus: the prepared corpus.
        documents: ids of the held-out documents, int64.
        tokenizer: tokenizer of the corpus.
        static_shapes: pad every batch to one shape (XLA).
    """

    def __init__(
        self,
        config: PretrainingConfig,
        phase: Phase,
        corpus: PreparedCorpus,
        documents: Int64Array,
        tokenizer: "PreTrainedTokenizerBase",
        *,
        static_shapes: bool = False,
    ) -> None:
        self.objective = objective_of(config)
        self.batch_size = config.per_device_eval_batch_size
        self.max_seq_length = phase.max_seq_length
        self.stream = ExampleStream(
            corpus,
            documents,
            config,
            tokenizer,
            max_seq_length=phase.max_seq_length,
            seed=_SEED,
            phase=_PHASE,
            folder=Path(config.output_dir) / SAMPLE_INDEX,
        )
        self.collate = make_collator(config, phase, tokenizer, self.batch_size if static_shapes else None)
        self.rows = min(config.max_eval_sequences, len(self.stream.indexes.get(0)))
        self.ids, _ = self.stream.take(Position(0, 0), self.rows)

    def measure(
        self, model: nn.Module, accelerator: Accelerator, breakdown: MlmBreakdown | None = None
    ) -> dict[str, float]:
        """Measures loss and accuracy of each loss term, and the perplexity of the token predictions.

        Every sequence is counted exactly once, however many processes share them. The perplexity of a masked model is
        Table 6's "LM ppl".

        Args:
            model: the model, as the trainer runs it.
            accelerator: devices and precision.
            breakdown: counts the same forward passes.

        Returns:
            Metrics with the prefixes of the objective's loss terms: `mlm_loss`, `nsp_accuracy`, `lm_perplexity` ...
        """
        terms = self.objective.loss_terms
        own_ids = self.ids[accelerator.process_index :: accelerator.num_processes]
        passes = math.ceil(self.rows / accelerator.num_processes / self.batch_size)

        # Columns: sum of the loss, right predictions, predictions.
        sums = torch.zeros(len(terms), 3, dtype=torch.float64)
        model.eval()
        for ids in np.array_split(own_ids, passes):
            # Processes make the same number of forward passes, because collectives pair them up. One that has no
            # sequences left computes on the first one and does not count it.
            has_sequences = len(ids) > 0
            batch = self.collate(self.stream.read(ids if has_sequences else self.ids[:1]))
            scores = self._score(model, batch, accelerator, breakdown if has_sequences else None)
            if has_sequences:
                sums += scores
        model.train()

        totals = accelerator.reduce(sums.to(accelerator.device, torch.float32), "sum").tolist()
        metrics: dict[str, float] = {}
        for (term, prefix), (loss, right, predictions) in zip(terms.items(), totals, strict=True):
            metrics[f"{prefix}_loss"] = loss / predictions
            metrics[f"{prefix}_accuracy"] = right / predictions
            if term == self.objective.token_term:
                metrics[f"{prefix}_perplexity"] = math.exp(min(_LARGEST_EXPONENT, loss / predictions))
        return metrics

    @torch.no_grad()
    def _score(
        self, model: nn.Module, batch: Batch, accelerator: Accelerator, breakdown: MlmBreakdown | None
    ) -> torch.Tensor:
        """Returns sums over a batch, float64 [loss terms, 3]: loss, right predictions, predictions."""
        inputs = send_to_device(batch, accelerator.device)
        with accelerator.autocast():
            output = model(**inputs)
        right = self.objective.count_right(output, inputs)
        if breakdown is not None:
            breakdown.add(output, inputs)

        counts = self.objective.counts(batch)
        sums: list[list[float]] = []
        for term in self.objective.loss_terms:
            mean_loss = float(getattr(output, term))
            sums.append([mean_loss * counts[term], float(right[term]), counts[term]])
        return torch.tensor(sums, dtype=torch.float64)
