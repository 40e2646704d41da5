"""Useful FLOPs of training, of a token and of a run, so that speeds of different sizes and lengths can be compared.

Counted are the matrix products of real tokens, a multiply-add as two FLOPs. Not counted: padding, embedding look-ups,
LayerNorm, activations, the pooler and the optimizer (together under 1% at the paper's sizes).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from bert_repro.results import TrainResults

_SETTINGS_WITH_OTHER_WEIGHTS = ("peft", "feature_based", "bilstm_size")
"""Settings with which not BERT's weights are trained, or others too; their FLOPs are not counted."""
_MLM_HEADS = ("ForPreTraining", "ForMaskedLM")
_TASK_HEADS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "ForMultipleChoice")


def flops_per_token(
    num_hidden_layers: int,
    hidden_size: int,
    vocab_size: int,
    sequence_length: float,
    *,
    intermediate_size: int | None = None,
    predicted_fraction: float = 0.15,
) -> float:
    """Returns the FLOPs of one token's forward and backward pass (the backward pass costs two forward passes).

    Args:
        num_hidden_layers: layers (the paper's L).
        hidden_size: hidden size (H).
        vocab_size: tokens the MLM head scores (V).
        sequence_length: tokens each token attends to, on average (S; half of it where attention is causal).
        intermediate_size: feed-forward size (F); default 4H, as in every model of the paper.
        predicted_fraction: share of tokens the MLM head decodes: 0.15 when only predicted positions are decoded, 1
            when all are (upstream transformers), 0 for an encoder without the head.

    Returns:
        FLOPs per token; 545 million for BERT-base at 128 tokens.
    """
    feed_forward = intermediate_size if intermediate_size is not None else 4 * hidden_size
    projections = 2 * (4 * hidden_size**2 + 2 * hidden_size * feed_forward)
    attention = 4 * sequence_length * hidden_size
    mlm_head = 2 * (hidden_size**2 + hidden_size * vocab_size)
    forward = num_hidden_layers * (projections + attention) + predicted_fraction * mlm_head
    return 3 * forward


def training_totals(rows: Sequence[Mapping[str, Any]], results: Mapping[str, Any]) -> TrainResults:
    """Sums up a training log, all parts of a resumed run together.

    Args:
        rows: of train_log.jsonl.
        results: of the run, with `settings`, `train` and the shape of the model in `model`.

    Returns:
        `tokens` (real ones, no padding), `seconds` (of training, without evaluations) and, where BERT's weights and
        no others were trained, `flops` to three digits, with the mean length of a sequence as the number of tokens
        that each attends to in fine-tuning. Empty without a log.
    """
    trained = [row for row in rows if "tokens" in row]
    if not trained:
        return {}
    totals: TrainResults = {"tokens": trained[-1]["tokens"], "seconds": round(trained[-1]["seconds"], 1)}
    flops = _run_flops(trained, results)
    if flops:
        totals["flops"] = float(f"{flops:.3g}")
    return totals


def _run_flops(rows: Sequence[Mapping[str, Any]], results: Mapping[str, Any]) -> float | None:
    model, train, settings = results["model"], results["train"], results["settings"]
    if any(settings.get(name) for name in _SETTINGS_WITH_OTHER_WEIGHTS) or "num_hidden_layers" not in model:
        return None
    name = str(model["class"])
    if train.get("phases") and name.endswith(_MLM_HEADS):
        total, before = 0.0, 0
        for row in rows:
            length = _phase_length(train["phases"], row["step"])
            total += (row["tokens"] - before) * _model_flops_per_token(model, length, settings["masked_lm_prob"])
            before = row["tokens"]
        return total
    if train.get("batch") and name.endswith(_TASK_HEADS):
        sequences = train["steps"] * train["batch"] * train.get("sequences_per_example", 1)
        tokens = rows[-1]["tokens"]
        return float(tokens * _model_flops_per_token(model, round(tokens / sequences), 0.0))
    return None


def _model_flops_per_token(model: Mapping[str, Any], length: int, predicted_fraction: float) -> float:
    return flops_per_token(
        model["num_hidden_layers"],
        model["hidden_size"],
        model["vocab_size"],
        length,
        intermediate_size=model["intermediate_size"],
        predicted_fraction=predicted_fraction,
    )


def _phase_length(phases: Sequence[Mapping[str, Any]], step: int) -> int:
    for phase in phases:
        step -= phase["steps"]
        if step <= 0:
            break
    return int(phase["max_seq_length"])
