"""Evaluates on documents that training never sees, and warns of what looks wrong while a model is pre-trained.

Held-out accuracy is broken down by masking action and token frequency.
Accuracy over all predicted tokens hides what the masking is for (A.1): a token left as it is can be copied, one
replaced at random must be doubted, and [MASK] says nothing. Frequent tokens are learned first.

Shape legend: `P` predicted tokens of a batch, `B` sequences.
"""

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device

from bert_repro.configs import Phase, PretrainingConfig
from bert_repro.corpus.prepared_corpus import PreparedCorpus
from bert_repro.models.modeling_bert_repro import next_token_labels
from bert_repro.pretraining.dataset import ExampleStream, Position, collator
from bert_repro.training.batches import IGNORE_INDEX
from bert_repro.utils.files import SAMPLE_INDEX

logger = logging.getLogger("bert_repro")

ACTIONS = ("mask", "same", "random")

# The held-out examples and their masks are the same whatever the seed of the run.
_SEED = 0
_PHASE = 1000

_PATIENCE = 4_000_000  # tokens after which a run that learns has left the plateau of single-token frequencies
_PLATEAU = 6.5  # nats; frequencies alone give about 7 on English text
_UNKNOWN_SHARE = 0.01
_EXPECTED_NOT_NEXT = {"paper": (0.48, 0.52), "original": (0.50, 0.65)}


@torch.no_grad()
def count_right(output: Any, inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Counts the correct predictions of a forward pass, by loss term.

    Args:
        output: of `BertReproForPreTraining`, with logits at predicted positions only, or of `BertReproForCausalLM`.
        inputs: its inputs, with `labels` and, but for the left-to-right model, `prediction_positions`.
    """
    if "prediction_positions" not in inputs:
        next_tokens = next_token_labels(inputs["labels"], inputs.get("cu_seq_lens_q"))
        return {"loss": ((output.logits.max(-1).indices == next_tokens) & (next_tokens != IGNORE_INDEX)).sum()}
    labels = inputs["labels"].flatten().index_select(0, inputs["prediction_positions"])
    # On the CPU, max is three times as fast as argmax in bfloat16.
    right = (output.prediction_logits.max(-1).indices == labels) & (labels != IGNORE_INDEX)
    counts = {"mlm_loss": right.sum()}
    if "next_sentence_label" in inputs:
        counts["nsp_loss"] = (output.seq_relationship_logits.argmax(-1) == inputs["next_sentence_label"]).sum()
    return counts


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

    def results(self, accelerator: Accelerator) -> dict[str, Any]:
        """Returns the counts of all processes for results.json.

        Returns:
            `by_frequency` (tokens by their count in the corpus; special tokens are in no bin) and, of a model that
            predicts masked tokens, `by_action` (what it read at the predicted place: [MASK], the token itself, a
            random one).
        """
        parts = (self.actions, self.frequencies)
        actions, frequencies = (accelerator.reduce(part.to(accelerator.device), "sum").tolist() for part in parts)
        bins = [
            {"at_least": 10**decade, "below": 10 ** (decade + 1), **_accuracy(*pair)}
            for decade, pair in enumerate(frequencies)
            if pair[1]
        ]
        results: dict[str, Any] = {"by_frequency": bins}
        if any(total for _, total in actions):
            named = zip(ACTIONS, actions, strict=True)
            results["by_action"] = {name: _accuracy(*pair) for name, pair in named if pair[1]}
        return results


def _count(table: torch.Tensor, rows: torch.Tensor, right: torch.Tensor, counted: torch.Tensor) -> None:
    table[:, 0] += torch.bincount(rows[counted & right], minlength=len(table))
    table[:, 1] += torch.bincount(rows[counted], minlength=len(table))


def _accuracy(right: float, total: float) -> dict[str, float]:
    return {"right": int(right), "predictions": int(total), "accuracy": right / total}


class HeldOutEvaluation:
    """Uses the same examples and masks at every evaluation, so metrics compare along a run and between runs.

    Sequences are as long as the phase's. Positions beyond that are untrained until a later phase: a model of 96 million
    tokens of length 128 predicted 41% of masked tokens in sequences of 128 and 21% in sequences of 512.
    """

    def __init__(
        self,
        config: PretrainingConfig,
        phase: Phase,
        corpus: PreparedCorpus,
        documents: npt.NDArray[np.int64],
        tokenizer: Any,
        *,
        static_shapes: bool = False,
    ) -> None:
        self.batch, self.left_to_right = config.per_device_eval_batch_size, config.left_to_right
        self.max_seq_length = phase.max_seq_length
        folder = Path(config.output_dir) / SAMPLE_INDEX
        names: dict[str, Any] = {"seed": _SEED, "phase": _PHASE, "folder": folder}
        self.stream = ExampleStream(corpus, documents, config, tokenizer, max_seq_length=phase.max_seq_length, **names)
        self.collate = collator(config, phase, tokenizer, self.batch if static_shapes else None)
        self.rows = min(config.max_eval_sequences, len(self.stream.indexes.get(0)))
        self.ids, _ = self.stream.take(Position(0, 0), self.rows)

    def measure(self, model: Any, accelerator: Accelerator, breakdown: MlmBreakdown | None = None) -> dict[str, float]:
        """Measures loss and accuracy of each task, and the perplexity (Table 6's "LM ppl" is the masked one).

        Every sequence is counted exactly once, however many processes share them.

        Args:
            model: the model, as the trainer runs it.
            accelerator: devices and precision.
            breakdown: counts the same forward passes.

        Returns:
            Metrics named `mlm_` and `nsp_`, of a left-to-right model `lm_`.
        """
        sums = torch.zeros(6, dtype=torch.float64)
        local = self.ids[accelerator.process_index :: accelerator.num_processes]
        passes = math.ceil(self.rows / accelerator.num_processes / self.batch)
        model.eval()
        for ids in np.array_split(local, passes):
            # Forward passes of a sharded model pair up over the processes, so one without sequences computes as well.
            batch = self.collate(self.stream.read(ids if len(ids) else self.ids[:1]))
            scored = _score(model, batch, accelerator, breakdown if len(ids) else None)
            sums += scored if len(ids) else 0
        model.train()
        total = accelerator.reduce(sums.to(accelerator.device, torch.float32), "sum").tolist()
        lm_loss, lm_right, predictions, nsp_loss, nsp_right, sequences = total
        name = "lm" if self.left_to_right else "mlm"
        metrics = {
            f"{name}_loss": lm_loss / predictions,
            f"{name}_accuracy": lm_right / predictions,
            f"{name}_perplexity": math.exp(min(700.0, lm_loss / predictions)),
        }
        if sequences:
            metrics |= {"nsp_loss": nsp_loss / sequences, "nsp_accuracy": nsp_right / sequences}
        return metrics


@torch.no_grad()
def _score(model: Any, batch: dict[str, Any], accelerator: Accelerator, breakdown: MlmBreakdown | None) -> torch.Tensor:
    """Returns sums over a batch: LM loss, correct and all predictions; NSP loss, correct and all sequences."""
    inputs = send_to_device(batch, accelerator.device)
    with accelerator.autocast():
        output = model(**inputs)
    right = count_right(output, inputs)
    if breakdown is not None:
        breakdown.add(output, inputs)
    if "loss" in right:
        next_tokens = next_token_labels(batch["labels"], batch.get("cu_seq_lens_q"))
        predictions = int((next_tokens != IGNORE_INDEX).sum())
        sums = [float(output.loss) * predictions, float(right["loss"]), predictions, 0.0, 0.0, 0.0]
        return torch.tensor(sums, dtype=torch.float64)
    predictions = int((batch["labels"] != IGNORE_INDEX).sum())
    sums = [float(output.mlm_loss) * predictions, float(right["mlm_loss"]), predictions, 0.0, 0.0, 0.0]
    if "nsp_loss" in right:
        sequences = int((batch["next_sentence_label"] != IGNORE_INDEX).sum())
        sums[3:] = [float(output.nsp_loss) * sequences, float(right["nsp_loss"]), sequences]
    return torch.tensor(sums, dtype=torch.float64)


class HealthChecks:
    """Warns while pre-training of what looks wrong in the data and the logged metrics; each warning is given once."""

    def __init__(self, config: PretrainingConfig) -> None:
        self.config = config
        self._given: set[str] = set()

    def check_data(self, not_next_share: float, unknown_share: float) -> None:
        """Checks the examples and their tokens once, before the first step.

        Args:
            not_next_share: NotNext among the examples of the first epoch.
            unknown_share: [UNK] among the tokens of a sample of examples.
        """
        low, high = _EXPECTED_NOT_NEXT[self.config.nsp_sampling]
        if self.config.next_sentence_prediction and not low <= not_next_share <= high:
            logger.warning(
                f"warning: {not_next_share:.1%} of the pairs are NotNext, {low:.0%} to {high:.0%} are expected with "
                f"nsp_sampling={self.config.nsp_sampling}: documents may be very short; run audit_pretraining_data"
            )
        if unknown_share > _UNKNOWN_SHARE:
            logger.warning(
                f"warning: {unknown_share:.1%} of the tokens are [UNK]: the vocabulary does not fit the text "
                "(language, case, alphabet); train one on it with train_tokenizer"
            )

    def check_row(self, row: Mapping[str, float]) -> None:
        """Checks a row of the training log.

        Args:
            row: means over the logging window, with `tokens` since the beginning.
        """
        if row["tokens"] < _PATIENCE:
            return
        if row.get("mlm_loss", 0.0) > _PLATEAU:
            self._warn(
                "plateau",
                f"the MLM loss is {row['mlm_loss']:.2f} after {row['tokens']:,.0f} tokens: the model still "
                "guesses by token frequency. Try a higher learning rate or a longer warm-up; small models need 5 "
                "to 20 million tokens to leave this plateau",
            )
        accuracy = row.get("nsp_accuracy")
        if accuracy is not None and abs(accuracy - 0.5) < 0.02 and row["tokens"] > 10 * _PATIENCE:
            self._warn(
                "chance", "NSP accuracy is still 0.5: check that documents hold consecutive sentences (audit the data)"
            )

    def _warn(self, about: str, message: str) -> None:
        if about not in self._given:
            self._given.add(about)
            logger.warning("warning: %s", message)
