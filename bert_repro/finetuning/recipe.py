"""The entry point of the fine-tuning recipes: one run, or a sweep if the settings ask for several."""

from bert_repro.configs import FinetuningConfig
from bert_repro.finetuning.learning_rate import with_suitable_rate
from bert_repro.finetuning.run import finetune
from bert_repro.finetuning.sweep import run_sweep
from bert_repro.results import RunResults
from bert_repro.tasks.base import Task
from bert_repro.training.performance import resolve_precision


def run_finetuning(config: FinetuningConfig, task: Task) -> RunResults:
    """Fine-tunes, scores and predicts once, or makes a sweep of several runs and publishes the best one.

    Args:
        config: the settings.
        task: the task, from `bert_repro.tasks.configured_task`.
    """
    config = with_suitable_rate(resolve_precision(config))
    if config.sweeps:
        return run_sweep(config, task)
    return finetune(config, task)
