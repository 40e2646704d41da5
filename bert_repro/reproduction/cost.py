"""What the runs of a study will cost: examples, FLOPs, and hours here and on other devices. All of it is estimated."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bert_repro.configs import FinetuningConfig, PretrainingConfig
from bert_repro.configs.finetuning import SWEPT
from bert_repro.configs.presets import ORIGINAL_VOCAB_SIZES
from bert_repro.models.loading import load_config
from bert_repro.pretraining.cost import pretraining_flops
from bert_repro.pretraining.model import new_model_config
from bert_repro.pretraining.schedule import resolve_phases
from bert_repro.recipes import RECIPES
from bert_repro.reproduction.size_presets import MEAN_TOKENS
from bert_repro.reproduction.suite import PlannedRun
from bert_repro.tasks import SPLIT_ROWS, TASKS
from bert_repro.training.performance import estimated_times, flops_per_token


@dataclass
class _Cost:
    """Running totals: rows to fine-tune on, rows to score, floating-point operations."""

    trained: float = 0.0
    scored: float = 0.0
    flops: float = 0.0


def cost_estimate(runs: Sequence[PlannedRun], planned: int) -> str:
    """Estimates the cost of runs, as text: examples, FLOPs, time here and on devices by their makers' figures.

    Fine-tuning is counted with the mean length of its task and the rows of the published set, a frozen encoder as if it
    were trained.

    Args:
        runs: the runs that are not done.
        planned: how many runs the study has.
    """
    cost = _Cost()
    for run in runs:
        # The name of the model decides no cost, but the configuration requires one.
        config: Any = RECIPES[run.recipe].config(**{**run.settings, "model_name_or_path": "model"})
        if isinstance(config, PretrainingConfig):
            cost.flops += pretraining_flops(_model_config(run), config, resolve_phases(config, 1))
        else:
            _add_finetuning(cost, _model_config(run), config, models=1 + len(run.ensemble))
    precision = runs[0].settings.get("mixed_precision", "no") if runs else "no"
    lines = [
        f"runs      {len(runs):,} to make of {planned:,}",
        f"examples  at most {cost.trained:,.0f} to fine-tune on, {cost.scored:,.0f} to score",
        f"compute   {cost.flops:.2e} FLOPs, estimated",
    ]
    return "\n".join(lines + estimated_times(cost.flops, precision, 1))


def _model_config(run: PlannedRun) -> Any:
    """Returns the configuration of the model that a run trains."""
    start = run.pretraining
    if start.model is not None:
        return load_config(start.model)
    vocabulary = "uncased" if start.corpus == "corpus" else "cased"
    return new_model_config(PretrainingConfig(**start.settings), ORIGINAL_VOCAB_SIZES[vocabulary])


def _add_finetuning(cost: _Cost, model: Any, config: FinetuningConfig, models: int) -> None:
    """Adds one fine-tuning run with all configurations of its sweep, or a prediction with several models."""
    task = TASKS[config.task_name]
    configurations = config.num_restarts
    for name in SWEPT:
        configurations *= len(getattr(config, name)) or 1
    epochs = statistics.fmean(config.sweep_num_train_epochs or [config.num_train_epochs or task.paper_epochs])
    trained = 0.0
    if config.do_train:
        train_rows = min(SPLIT_ROWS[task.name, "train"], config.max_train_samples or math.inf)
        trained = configurations * train_rows * epochs
    scored = 0.0
    if config.do_eval:
        most_scored = config.max_eval_samples or math.inf
        eval_rows = sum(min(SPLIT_ROWS[task.name, split], most_scored) for split in task.eval_splits)
        scored = configurations * eval_rows * models
    if config.do_predict:
        # Only the best run of a sweep predicts.
        scored += sum(SPLIT_ROWS[task.name, split] for split in task.predict_splits)

    length = MEAN_TOKENS[task.name]
    per_token = flops_per_token(
        model.num_hidden_layers, model.hidden_size, model.vocab_size, length, predicted_fraction=0
    )
    cost.trained += trained
    cost.scored += scored
    # Scoring is a forward pass, a third of a training step.
    cost.flops += (trained + scored / 3) * length * per_token
