"""Which settings a resumed run may change: those that decide the result are compared, the others are only reported."""

import json
import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bert_repro.configs import current_names
from bert_repro.errors import UserError
from bert_repro.utils.redaction import redacted

logger = logging.getLogger("bert_repro")

FREE = {
    # where things are; what is read there is compared by its content
    "output_dir", "overwrite_output_dir", "model_name_or_path", "tokenizer_name", "data_dir", "corpus", "train_file",
    "validation_file", "test_file", "feature_cache_dir", "config_file",
    # what is reported, kept, sent and scored beside or after training
    "logging_steps", "eval_steps", "save_steps", "save_total_limit", "report_to", "report_run_name", "push_to_hub",
    "hub_model_id", "hub_private_repo", "hub_strategy", "do_eval", "do_predict", "max_eval_samples",
    "max_eval_sequences", "ensemble_with", "dry_run", "resume_from_checkpoint", "allow_changed_settings",
    # how the same step is computed: equal up to rounding
    "per_device_train_batch_size", "gradient_accumulation_steps", "per_device_eval_batch_size", "mixed_precision",
    "attn_implementation", "packing", "static_shapes", "torch_compile", "gradient_checkpointing", "fsdp",
    "fused_optimizer", "cpu_kernels", "fast_float32", "keep_freed_memory", "deterministic", "decode_predicted_only",
    "dataloader_num_workers", "dataloader_prefetch_factor", "dataloader_pin_memory",
    # of the sweep around the run
    "num_restarts", "sweep_learning_rates", "sweep_batch_sizes", "sweep_num_train_epochs", "sweep_keep_models",
}  # fmt: skip
"""Settings that a resumed run may change. Every other one decides the result."""


def stored_settings(config: Any) -> dict[str, Any]:
    """Returns a run's settings as a checkpoint keeps them: plain JSON without secrets."""
    settings: dict[str, Any] = json.loads(json.dumps(redacted(asdict(config))))
    return settings


def require_same_settings(folder: Path, before: dict[str, Any] | None, config: Any) -> None:
    """Compares the settings of a run with those of the checkpoint that it resumes from, and reports all differences.

    Args:
        folder: the checkpoint, for messages.
        before: what `stored_settings` returned; None in checkpoints of version 0.1.
        config: today's settings.

    Raises:
        UserError: a setting that decides the result differs, and `allow_changed_settings` is not set.
    """
    now = stored_settings(config)
    changed = {
        name: (value, now[name]) for name, value in current_names(before or {}).items() if now.get(name, value) != value
    }
    deciding = [
        f"--{name} {_shown(old)}, now {_shown(new)}" for name, (old, new) in changed.items() if name not in FREE
    ]
    if deciding and not getattr(config, "allow_changed_settings", False):
        raise UserError(
            f"{folder}: its run had {'; '.join(deciding)}; resume with the settings that it had, or accept another "
            "result with --allow_changed_settings"
        )
    unremarkable = {"resume_from_checkpoint", "output_dir", "overwrite_output_dir"}
    for name in changed.keys() - unremarkable:
        old, new = changed[name]
        logger.info("resuming with --%s %s, was %s", name, _shown(new), _shown(old))


def _shown(value: Any) -> str:
    text = "none" if value is None else value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
