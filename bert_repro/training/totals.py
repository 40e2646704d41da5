"""What a training run went through: tokens, seconds, operations; read from its own log."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_repro.training import training_log
from bert_repro.training.flops import flops_per_token
from bert_repro.utils.output_files import TRAIN_LOG

_SEQUENCES_PER_EXAMPLE = {
    "ForSequenceClassification": 1, "ForTokenClassification": 1, "ForQuestionAnswering": 1,
    "ForMultipleChoice": 4,
}  # fmt: skip
"""The heads that predict no words, and what one row of a batch is to the encoder."""
_OTHER_WEIGHTS = ("peft", "feature_based", "bilstm_size")  # settings that train others than those counted
_HEADS_WITH_MASKS = ("ForPreTraining", "ForMaskedLM")


def training_totals(folder: Path, results: Mapping[str, Any]) -> dict[str, Any]:
    """Sums up train_log.jsonl, all parts of a resumed run together.

    Args:
        folder: the run's.
        results: its record, with the shape of the model in `model`.

    Returns:
        `tokens` (real ones, no padding), `seconds` (of training, without evaluations) and, where BERT's weights and
        no others were trained, `flops` to three digits: those of `bert_repro.training.flops`, with the mean length of a
        sequence as the number of tokens that each attends to in fine-tuning. Empty without a log.
    """
    rows = [row for row in training_log.read(folder / TRAIN_LOG) if "tokens" in row]
    if not rows:
        return {}
    totals: dict[str, Any] = {"tokens": rows[-1]["tokens"], "seconds": round(rows[-1]["seconds"], 1)}
    flops = _flops(rows, results)
    return totals | ({"flops": float(f"{flops:.3g}")} if flops else {})


def _flops(rows: list[dict[str, Any]], results: Mapping[str, Any]) -> float | None:
    model, train, settings = results["model"], results.get("train", {}), results.get("settings", {})
    if any(settings.get(name) for name in _OTHER_WEIGHTS) or "num_hidden_layers" not in model:
        return None
    name = str(model["class"])
    if train.get("phases") and name.endswith(_HEADS_WITH_MASKS):
        share, total, before = settings["masked_lm_prob"], 0.0, 0
        for row in rows:
            length = _phase_length(train["phases"], row["step"])
            rate = _rate(model, length, share)
            total, before = total + (row["tokens"] - before) * rate, row["tokens"]
        return total
    sequences = next((count for head, count in _SEQUENCES_PER_EXAMPLE.items() if name.endswith(head)), None)
    if train.get("batch") and sequences:
        length = round(rows[-1]["tokens"] / (train["steps"] * train["batch"] * sequences))
        return float(rows[-1]["tokens"] * _rate(model, length, 0.0))
    return None


def _rate(model: Mapping[str, Any], length: int, predicted_fraction: float) -> float:
    return flops_per_token(
        model["num_hidden_layers"],
        model["hidden_size"],
        model["vocab_size"],
        length,
        intermediate_size=model["intermediate_size"],
        predicted_fraction=predicted_fraction,
    )


def _phase_length(phases: list[Mapping[str, Any]], step: int) -> int:
    for phase in phases:
        step -= phase["steps"]
        if step <= 0:
            break
    return int(phase["max_seq_length"])
