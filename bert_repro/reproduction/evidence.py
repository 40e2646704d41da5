"""What a finished run leaves for the report beside its record: scores per example, or the loss along the way."""

from pathlib import Path
from typing import Any

from bert_repro.configs import FinetuningConfig, PretrainingConfig
from bert_repro.corpus.tokenizer import load_tokenizer
from bert_repro.reproduction.per_example_scores import CURVE_FILE, EXAMPLES_FILE, loss_curve
from bert_repro.results import read_results
from bert_repro.tasks import configured_task


def evidence(config: PretrainingConfig | FinetuningConfig) -> dict[str, Any]:
    """The small files that the report needs of a finished run.

    Args:
        config: what the run was told; its output folder holds results and predictions.

    Returns:
        File name -> content, ready for JSON: the losses of a pre-training run, or the scores of every example of the
        splits that were scored.
    """
    folder = Path(config.output_dir)
    if isinstance(config, PretrainingConfig):
        return {CURVE_FILE: loss_curve(folder)}
    splits = [name for name, scored in read_results(folder)["splits"].items() if scored.get("metrics")]
    task = configured_task(config).prepared(config, load_tokenizer(config.model_name_or_path))
    data = task.load(config.data_dir, splits)
    return {EXAMPLES_FILE: {split: task.example_scores(split, data[split], folder) for split in splits}}
