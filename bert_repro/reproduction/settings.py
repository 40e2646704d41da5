"""Which settings of a run its conditions name: those that decide its numbers and are not the recipe's default."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import PurePath
from typing import Any

from bert_repro.configs import Config, GlueConfig, NerConfig, PretrainingConfig, SquadConfig, SwagConfig
from bert_repro.reproduction.collect import Run

_CONFIGS: Mapping[str, type[Config]] = {
    "pre-training": PretrainingConfig,
    "swag": SwagConfig,
    "conll2003": NerConfig,
    "squad": SquadConfig,
    "squad_v2": SquadConfig,
}
"""Whose defaults a run's settings had; all other tasks are GLUE's."""

PLACES = frozenset({
    "output_dir", "overwrite_output_dir", "corpus", "data_dir", "tokenizer_name", "feature_cache_dir", "test_file",
    "resume_from_checkpoint", "report_to", "push_to_hub", "hub_model_id", "hub_private_repo", "hub_strategy",
})  # fmt: skip
SAME_RESULTS = frozenset({
    "per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps", "packing",
    "attn_implementation", "gradient_checkpointing", "fsdp", "torch_compile", "static_shapes", "deterministic",
    "dataloader_num_workers", "dataloader_prefetch_factor", "dataloader_pin_memory", "logging_steps", "eval_steps",
    "save_steps", "save_total_limit", "sweep_keep_models", "dry_run",
})  # fmt: skip
SAID_OTHERWISE = frozenset({
    "seed", "task_name", "do_train", "do_eval", "do_predict", "learning_rate", "train_batch_size", "max_steps",
    "max_seq_length", "phases", "max_train_samples", "max_eval_samples", "num_hidden_layers", "hidden_size",
    "num_attention_heads",
})  # fmt: skip
NOT_NAMED = PLACES | SAME_RESULTS | SAID_OTHERWISE
"""Where a run reads and writes, what changes no number beyond rounding, and what the conditions say in other words."""

DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob")


def named_settings(run: Run) -> dict[str, str]:
    """The settings that decide a run's numbers and differ from the default, as text.

    A setting that a record lacks is younger than the run, which did what is now the default.
    """
    config = _CONFIGS.get(run.record["task"], GlueConfig)
    settings, defaults = run.record.get("settings", {}), _defaults(config)
    # What fine-tuning starts from is told with its pre-training.
    left_out = NOT_NAMED if run.pretrains else NOT_NAMED | {"model_name_or_path"}
    return {
        name: value_text(settings[name])
        for name, default in defaults.items()
        if name in settings and name not in left_out and _plain(settings[name]) != _plain(default)
    }


def inherited_dropout(run: Run, start: Run | None) -> str:
    """Dropout of a fine-tuning run, which it has from its pre-trained model; empty where it is the default."""
    model = run.record.get("model", {})
    known = model if DROPOUTS[0] in model else start.record.get("settings", {}) if start else {}
    defaults = _defaults(PretrainingConfig)
    if all(known.get(name, defaults[name]) == defaults[name] for name in DROPOUTS):
        return ""
    told = ", ".join(f"{name} {value_text(known.get(name, defaults[name]))}" for name in DROPOUTS)
    return f"as pre-trained: {told}"


def value_text(value: Any) -> str:
    """A setting as one would write it as a flag; of a path its end."""
    match value:
        case bool() | None:
            return str(value).lower()
        case float():
            return f"{value:g}"
        case list() | tuple():
            return " ".join(map(value_text, value))
        case str():
            path = PurePath(value)  # org/name is an id on the Hub
            return path.name if path.is_absolute() or len(path.parts) > 2 else value
        case _:
            return str(value)


def _plain(value: Any) -> Any:
    """A value as JSON gives it back."""
    return list(value) if isinstance(value, tuple) else value


def _defaults(config: type[Config]) -> dict[str, Any]:
    return {item.name: item.default for item in fields(config)}
