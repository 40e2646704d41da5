"""Estimates what a pre-training run will do and cost, before it starts (`--dry_run`)."""

from collections.abc import Sequence
from typing import Any

from bert_repro.configs import Phase, PretrainingConfig
from bert_repro.presets import tokens_including_padding
from bert_repro.training.performance import flops_per_token

PAPER_LENGTH = 512


def model_flops(model_config: Any, config: PretrainingConfig, length: int) -> float:
    """Returns the useful FLOPs per token of a model at a sequence length; see `bert_repro.training.performance`."""
    return flops_per_token(
        model_config.num_hidden_layers,
        model_config.hidden_size,
        model_config.vocab_size,
        (length + 1) / 2 if config.left_to_right else length,
        intermediate_size=model_config.intermediate_size,
        predicted_fraction=1.0 if config.left_to_right else config.masked_lm_prob,
    )


def describe(
    config: PretrainingConfig,
    model_config: Any,
    phases: Sequence[Phase],
    training_tokens: int,
    peak: float,
    devices: int,
    origin: str,
) -> str:
    """Describes a run in text: phases, tokens, passes over the corpus, FLOPs, expected time, disk space.

    Args:
        config: how examples are masked.
        model_config: shape of the model.
        phases: as `resolve_phases` returns them.
        training_tokens: tokens of the documents to train on.
        peak: FLOP/s of one device on a large matrix product.
        devices: how many share the work.
        origin: where `peak` is from, in words.
    """
    lines = [
        f"model     {model_config.num_hidden_layers} layers, hidden {model_config.hidden_size}, "
        f"{model_config.num_attention_heads} heads, vocabulary {model_config.vocab_size:,}"
    ]
    for number, phase in enumerate(phases):
        per_device = phase.per_device_batch or phase.batch
        lines.append(
            f"phase {number}   {phase.steps:,} steps of {phase.batch} sequences of {phase.max_seq_length} tokens: "
            f"{phase.batch / (per_device * devices):.0f} forward pass(es) of {per_device} on {devices} device(s)"
        )
    seen, as_in_paper = tokens_including_padding(phases), tokens_including_padding(phases, max_seq_length=PAPER_LENGTH)
    flops = sum(
        tokens_including_padding([phase]) * model_flops(model_config, config, phase.max_seq_length) for phase in phases
    )
    lines += [
        f"tokens    {seen:,} with padding ({as_in_paper:,} with every sequence as {PAPER_LENGTH}, as in the paper)",
        f"passes    about {seen / training_tokens:.1f} over the {training_tokens:,} tokens of the training documents",
        f"compute   {flops:.2e} FLOPs",
        f"time      {_hours(flops, peak, devices, 0.6)} to {_hours(flops, peak, devices, 0.3)}, "
        f"at 60% to 30% of {origin}",
        _disk(config, model_config),
    ]
    return "\n".join(lines)


def _disk(config: PretrainingConfig, model_config: Any) -> str:
    """The space for the model and the checkpoints that are kept: weights, and two moments of the optimizer each."""
    hidden, length = model_config.hidden_size, model_config.max_position_embeddings
    layer = 4 * hidden**2 + 2 * hidden * model_config.intermediate_size
    weights = 4 * (model_config.num_hidden_layers * layer + (model_config.vocab_size + length) * hidden)
    kept = config.save_total_limit if config.save_steps else 0
    return f"disk      about {weights * (1 + 3 * kept) / 1e9:.1f} GB: the model and {kept} checkpoint(s)"


def _hours(flops: float, peak: float, devices: int, share: float) -> str:
    hours = flops / (peak * devices * share) / 3600
    return (
        f"{hours * 60:.0f} minutes" if hours < 2 else f"{hours:.0f} hours" if hours < 72 else f"{hours / 24:.0f} days"
    )
