"""Evaluates on documents that training never sees."""

import logging
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from accelerate import Accelerator

from bert_repro.configs import Phase, PretrainingConfig
from bert_repro.corpus.prepared_corpus import PreparedCorpus
from bert_repro.models.modeling_bert_repro import next_token_labels
from bert_repro.pretraining.collator import StaticShape
from bert_repro.pretraining.dataset import Position, collator, count_right, example_stream
from bert_repro.pretraining.mlm_breakdown import MlmBreakdown
from bert_repro.training.collation import IGNORE_INDEX
from bert_repro.training.micro_batches import to_device

logger = logging.getLogger("bert_repro")

# The held-out examples and their masks are the same whatever the seed of the run.
_SEED = 0
_PHASE = 1000
_FEW_ROWS = 256


class HeldOutEvaluation:
    """Uses the same examples and masks at every evaluation, so metrics compare along a run and between runs."""

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
        self.stream = example_stream(config, phase, corpus, documents, tokenizer, seed=_SEED, number=_PHASE)
        shape = StaticShape(self.batch, phase.max_seq_length) if static_shapes else None
        self.collate = collator(config, phase, tokenizer, shape)
        self.rows = min(config.max_eval_sequences, len(self.stream.indexes.get(0)))
        self.ids, _ = self.stream.take(Position(0, 0), self.rows)
        if self.rows < min(_FEW_ROWS, config.max_eval_sequences):
            logger.warning(
                "warning: only %d held-out sequences: their metrics are uncertain, NSP accuracy by about %.0f points; "
                "raise --heldout_fraction (%g) or prepare more text",
                self.rows,
                100 / self.rows**0.5,
                config.heldout_fraction,
            )

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
    inputs = to_device(batch, accelerator.device)
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
