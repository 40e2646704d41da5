"""What a pre-training costs before it starts: FLOPs, memory, hours."""

from collections.abc import Sequence

import torch

from bert_repro.configs import Phase, PretrainingConfig
from bert_repro.configs.presets import tokens_including_padding
from bert_repro.models.configuration_bert_repro import BertReproConfig
from bert_repro.models.modeling_bert_repro import BertReproForPreTraining
from bert_repro.pretraining.objectives import objective_of
from bert_repro.training.performance import estimated_times, flops_per_token

PAPER_LENGTH = 512  # The paper counts every sequence of its "128,000 tokens a batch" as so long (A.2).

# Bytes per parameter: weight, gradient and Adam's two averages, 32 bits each.
_TRAINING_STATE_BYTES = 16
# Bytes that the backward pass needs per token, layer and hidden unit. Counted in our model, not compiled, with
# attention that keeps no scores.
_LAYER_BYTES_FLOAT32 = 72
_LAYER_BYTES_HALF = 46
_LAYER_BYTES_CHECKPOINTING = 4
# Bytes per logit: the logit in 16 bits, in 32 bits, and its gradient.
_LOGIT_BYTES = 10


def pretraining_flops_per_token(model_config: BertReproConfig, config: PretrainingConfig, length: int) -> float:
    """Returns the useful FLOPs per token at a sequence length. For adapters it is 0, because they are not counted."""
    if config.peft:
        return 0.0
    objective = objective_of(config)
    return flops_per_token(
        model_config.num_hidden_layers,
        model_config.hidden_size,
        model_config.vocab_size,
        objective.attended_tokens(length),
        intermediate_size=model_config.intermediate_size,
        predicted_fraction=objective.decoded_share,
    )


def pretraining_flops(model_config: BertReproConfig, config: PretrainingConfig, phases: Sequence[Phase]) -> float:
    """Returns the useful FLOPs of all phases of a pre-training; 0 for adapters."""
    flops = 0.0
    for phase in phases:
        per_token = pretraining_flops_per_token(model_config, config, phase.max_seq_length)
        flops += tokens_including_padding([phase]) * per_token
    return flops


def cost_estimate(
    config: PretrainingConfig,
    model_config: BertReproConfig,
    phases: Sequence[Phase],
    training_tokens: int,
    devices: int,
) -> str:
    """Estimates a run, as text: phases, tokens, passes over the corpus, memory, FLOPs, time here and on named devices.

    Args:
        config: how examples are masked.
        model_config: shape of the model.
        phases: phases, as `resolve_phases` returns them.
        training_tokens: tokens of the documents to train on.
        devices: number of devices that share the work.
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

    tokens = tokens_including_padding(phases)
    tokens_as_in_paper = tokens_including_padding(phases, max_seq_length=PAPER_LENGTH)
    tokens_at_once = max((phase.per_device_batch or phase.batch) * phase.max_seq_length for phase in phases)
    state_memory = _state_memory(model_config)
    activation_memory = _activation_memory(config, model_config, tokens_at_once)
    precision = "float32" if config.mixed_precision == "no" else config.mixed_precision
    flops = pretraining_flops(model_config, config, phases)
    lines += [
        f"tokens    {tokens:,} with padding ({tokens_as_in_paper:,} with every sequence as {PAPER_LENGTH}, as in the "
        "paper)",
        f"passes    about {tokens / training_tokens:,.1f} over the {training_tokens:,} tokens of the training "
        "documents",
        f"memory    estimated: {state_memory + activation_memory:.1f} GiB on each device, {activation_memory:.1f} of "
        f"them for a forward pass of {tokens_at_once:,} tokens",
        f"compute   {flops:.2e} FLOPs in {precision}",
        *estimated_times(flops, config.mixed_precision, devices),
    ]
    return "\n".join(lines)


def _state_memory(model_config: BertReproConfig) -> float:
    """Returns the GiB of weights, gradients and optimizer state on each device."""
    # On the meta device the model has shapes and no memory.
    with torch.device("meta"):
        model = BertReproForPreTraining(model_config)
    return float(_TRAINING_STATE_BYTES * model.num_parameters() / 2**30)


def _activation_memory(config: PretrainingConfig, model_config: BertReproConfig, tokens_at_once: int) -> float:
    """Returns the GiB that a forward pass keeps for the backward pass."""
    if config.gradient_checkpointing:
        layer_bytes = _LAYER_BYTES_CHECKPOINTING
    elif config.mixed_precision == "no":
        layer_bytes = _LAYER_BYTES_FLOAT32
    else:
        layer_bytes = _LAYER_BYTES_HALF
    bytes_per_token: float = layer_bytes * model_config.num_hidden_layers * model_config.hidden_size
    bytes_per_token += _LOGIT_BYTES * config.masked_lm_prob * model_config.vocab_size
    return tokens_at_once * bytes_per_token / 2**30
