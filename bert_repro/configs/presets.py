"""The settings that the paper states, each once with its source, and the presets made of them.

The paper: Devlin, Chang, Lee and Toutanova (2019), arXiv:1810.04805v2. What is not from it says so: "original
implementation" is the code its authors published (google-research/bert), "ours" a choice of this project. The paper's
results are in `bert_repro.reproduction.paper_results`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bert_repro.configs import Config, FinetuningConfig, GlueConfig, Phase, PretrainingConfig, SquadConfig, SwagConfig
from bert_repro.configs.base import did_you_mean
from bert_repro.errors import UserError, flag

# --------------------------------------------------------------------------------------------------------------- sizes


def _shape(num_hidden_layers: int, hidden_size: int, num_attention_heads: int) -> Mapping[str, int]:
    """Returns the settings of a model's shape: L, H and A of the paper."""
    return {
        "num_hidden_layers": num_hidden_layers,
        "hidden_size": hidden_size,
        "num_attention_heads": num_attention_heads,
    }


MODEL_SIZES: Mapping[str, Mapping[str, int]] = {
    # Published by the authors in 2020-03, not in the paper.
    "mini": _shape(4, 256, 4),
    # Table 6.
    "3-768-12": _shape(3, 768, 12),
    "6-768-3": _shape(6, 768, 3),
    "6-768-12": _shape(6, 768, 12),
    "base": _shape(12, 768, 12),
    "12-1024-16": _shape(12, 1024, 16),
    "large": _shape(24, 1024, 16),
}
"""Shapes of models. The feed-forward size is four times the hidden size throughout (section 3, footnote 3)."""
ORIGINAL_VOCAB_SIZES: Mapping[str, int] = {"uncased": 30_522, "cased": 28_996}  # The paper says 30,000 (section 3).

# --------------------------------------------------------------------------------------------------- pre-training facts

# A.2: 1,000,000 steps of 256 sequences, 90% of them at 128 tokens. Predictions per sequence: original implementation.
PAPER_PHASES = (
    Phase(max_seq_length=128, steps=900_000, batch=256, max_predictions_per_seq=20),
    Phase(max_seq_length=512, steps=100_000, batch=256, max_predictions_per_seq=77),
)
PAPER_LEARNING_RATE = 1e-4  # A.2
PAPER_WARMUP_STEPS = 10_000  # A.2
MASKING_MIXES = (  # Table 8: shares of [MASK], unchanged, random.
    (0.8, 0.1, 0.1),
    (1.0, 0.0, 0.0),
    (0.8, 0.0, 0.2),
    (0.8, 0.2, 0.0),
    (0.0, 0.2, 0.8),
    (0.0, 0.0, 1.0),
)


def tokens_including_padding(phases: Sequence[Phase], *, max_seq_length: int | None = None) -> int:
    """Counts the tokens of pre-training, padding included.

    Args:
        phases: the phases.
        max_seq_length: count every sequence as this long. The paper's "128,000 tokens a batch" and "40 epochs" (A.2)
            count 512 throughout, which is 131 billion tokens; its two phases really have 42.6 billion.

    Returns:
        Sum over the phases of steps x sequences x tokens.
    """
    return sum(phase.steps * phase.batch * (max_seq_length or phase.max_seq_length) for phase in phases)


# ---------------------------------------------------------------------------------------------------- fine-tuning facts

GLUE_LEARNING_RATES = (5e-5, 4e-5, 3e-5, 2e-5)  # 4.1: the best on dev, batch 32, 3 epochs.
FEATURE_BILSTM_SIZE, FEATURE_BILSTM_LAYERS = 768, 2  # 5.3: a two-layer 768-dimensional BiLSTM on frozen features.

# -------------------------------------------------------------------------------------------------------------- presets


@dataclass(frozen=True)
class Preset:
    """A named set of settings.

    Args:
        description: one line for `--help` and error messages.
        source: sections of the paper, or who else decided the values.
        config: the configuration that it is made for; it also fits subclasses.
        values: setting -> value. Flags and files take precedence.
    """

    description: str
    source: str
    config: type[Config]
    values: Mapping[str, Any]


def _paper_pretraining(size: str) -> Preset:
    return Preset(
        f"BERT-{size} as the paper trained it: 900k steps at 128 and 100k at 512 tokens, 256 sequences each",
        "section 3, A.2",
        PretrainingConfig,
        {
            **MODEL_SIZES[size],
            "phases": PAPER_PHASES,
            "learning_rate": PAPER_LEARNING_RATE,
            "warmup_steps": PAPER_WARMUP_STEPS,
        },
    )


def _with_todays_precision(size: str, tokens_at_once: int) -> Preset:
    """The update of the paper's run, in forward passes of as many tokens as fit on a GPU of 24 GB (large: 40 GB)."""
    paper = _paper_pretraining(size)
    phases = tuple(replace(phase, per_device_batch=tokens_at_once // phase.max_seq_length) for phase in PAPER_PHASES)
    return Preset(
        f"the paper's run of BERT-{size} in bf16, {tokens_at_once:,} tokens a forward pass",
        "section 3, A.2; precision: ours",
        PretrainingConfig,
        {**paper.values, "phases": phases, "mixed_precision": "bf16"},
    )


def _finetuning(batch: int, epochs: float, learning_rate: float, max_seq_length: int) -> dict[str, Any]:
    return {
        "train_batch_size": batch,
        "num_train_epochs": epochs,
        "learning_rate": learning_rate,
        "max_seq_length": max_seq_length,
    }


PRESETS: Mapping[str, Preset] = {
    "paper-base": _paper_pretraining("base"),
    "paper-large": _paper_pretraining("large"),
    "bert-repro-base": _with_todays_precision("base", 32_768),
    "bert-repro-large": _with_todays_precision("large", 16_384),
    "one-gpu-day": Preset(
        "BERT-base on one modern GPU: the paper's batch and learning rate, 30% of its steps (12.8 billion tokens)",
        "ours",
        PretrainingConfig,
        {
            **MODEL_SIZES["base"],
            "phases": (Phase(128, 270_000, 256, 20), Phase(512, 30_000, 256, 77, 64)),
            "learning_rate": PAPER_LEARNING_RATE,
            "warmup_steps": PAPER_WARMUP_STEPS,
            "mixed_precision": "bf16",
        },
    ),
    "cpu-trial": Preset(
        "a 4-layer model on a CPU: 20 million tokens, less than an hour on two free cores in bf16, which it uses "
        "if the device supports it",
        "ours",
        PretrainingConfig,
        {
            **MODEL_SIZES["mini"],
            # Each of these departs from the paper; docs/how-to/small_machine.md has the reasons and the gains.
            "initializer_range": 0.04,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
            "phases": (Phase(32, 2_000, 128), Phase(128, 2_900, 32, 20)),
            "learning_rate": 1e-3,
            "warmup_steps": 300,
            "bias_correction": True,
            "mixed_precision": "auto",
        },
    ),
    "glue": Preset(
        "GLUE: batch 32, 3 epochs, the highest learning rate of the paper's sweep",
        "section 4.1; length: original implementation",
        GlueConfig,
        _finetuning(32, 3.0, GLUE_LEARNING_RATES[0], 128),
    ),
    "glue-sweep": Preset(
        "GLUE with the paper's sweep: batch 32, 3 epochs, the best of four learning rates on dev",
        "section 4.1; length: original implementation",
        GlueConfig,
        {
            "train_batch_size": 32,
            "num_train_epochs": 3.0,
            "sweep_learning_rates": GLUE_LEARNING_RATES,
            "max_seq_length": 128,
        },
    ),
    "finetuning-grid": Preset(
        "any task: the 18 configurations of what works well across all tasks, the best on dev",
        "A.3",
        FinetuningConfig,
        {
            "sweep_learning_rates": (5e-5, 3e-5, 2e-5),
            "sweep_batch_sizes": (16, 32),
            "sweep_num_train_epochs": (2.0, 3.0, 4.0),
        },
    ),
    "squad-v1": Preset(
        "SQuAD v1.1: batch 32, 3 epochs",
        "section 4.2; length: original implementation",
        SquadConfig,
        _finetuning(32, 3.0, 5e-5, 384),
    ),
    "squad-v2": Preset(
        "SQuAD v2.0: batch 48, 2 epochs",
        "section 4.3; length: original implementation",
        SquadConfig,
        _finetuning(48, 2.0, 5e-5, 384),
    ),
    "swag": Preset(
        "SWAG: batch 16, 3 epochs", "section 4.4; length: ours", SwagConfig, _finetuning(16, 3.0, 2e-5, 128)
    ),
}


def preset_names(config_class: type[Config]) -> list[str]:
    """Returns the presets that can be given to a configuration."""
    return [key for key, preset in PRESETS.items() if issubclass(config_class, preset.config)]


def preset_values(name: str, config_class: type[Config], given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Returns the settings of a preset, for one configuration.

    Args:
        name: a key of `PRESETS`.
        config_class: the configuration that is being filled.
        given: settings that win over the preset; fewer `max_steps` than those of its phases shorten its warm-up too.

    Raises:
        UserError: no such preset, or it is made for another configuration; the message lists those that fit.
    """
    fitting = preset_names(config_class)
    if name not in fitting:
        reason = f"is for {PRESETS[name].config.__name__}" if name in PRESETS else "is unknown"
        if not fitting:
            remedy = "There is no preset for this recipe. Leave it out."
        else:
            remedy = did_you_mean(name, fitting) or f"Choose one of: {', '.join(fitting)}"
        raise UserError(f"{flag('preset', name)} {reason}. {remedy}", setting="preset")

    # A shorter run has a shorter warm-up, in proportion.
    values = dict(PRESETS[name].values)
    preset_steps = sum(phase.steps for phase in values.get("phases", ()))
    max_steps = (given or {}).get("max_steps")
    if isinstance(max_steps, int) and max_steps < preset_steps:
        values["warmup_steps"] = max(1, values["warmup_steps"] * max_steps // preset_steps)
    return values
