"""The last lines that a recipe prints: what it made, and the command that comes next.

Each function belongs to one recipe, receives its configuration after the run, and returns the lines. The commands are
complete: they name the files and folders of this run, so they can be pasted.
"""

import json
import shlex
from pathlib import Path
from typing import Any

from bert_repro.configs import (
    CorpusConfig,
    FinetuningConfig,
    NerConfig,
    PretrainingConfig,
    StudyConfig,
    TokenizerConfig,
)
from bert_repro.configs.base import hub_is_reachable
from bert_repro.configs.corpus import FEWEST_DOCUMENTS
from bert_repro.results import read_results

_SUGGESTED_BATCH = 32  # sequences
_SUGGESTED_LENGTH = 128  # tokens
_SUGGESTED_PASSES = 10  # over the corpus


def after_tokenizer(config: TokenizerConfig) -> list[str]:
    """Suggests preparing a corpus from the same files."""
    folder = shlex.quote(config.output_dir)
    files = shlex.join(config.input_files)
    return [
        f"tokenizer: {folder}",
        f"next: bert-repro prepare_corpus --input_files {files} --tokenizer {folder} --output_dir runs/corpus",
    ]


def after_corpus(config: CorpusConfig) -> list[str]:
    """Suggests pre-training: continued from the tokenizer's checkpoint if it has one, otherwise from scratch."""
    folder = shlex.quote(config.output_dir)
    lines = [f"corpus: {folder} (manifest.json says what was kept and dropped)"]
    counts = json.loads((Path(config.output_dir) / "manifest.json").read_text("utf-8"))["counts"]

    # Pre-training holds out whole documents, so it needs some to hold out.
    if counts["documents"] < FEWEST_DOCUMENTS:
        return lines

    # The tokenizer of a checkpoint comes with weights to continue from: an id of the Hub, or a folder with config.json.
    tokenizer = Path(config.tokenizer)
    belongs_to_checkpoint = not tokenizer.exists() or (tokenizer / "config.json").exists()
    if belongs_to_checkpoint:
        tokens_per_step = _SUGGESTED_BATCH * _SUGGESTED_LENGTH
        steps = _SUGGESTED_PASSES * counts["tokens"] // tokens_per_step
        steps = max(100, min(10_000, steps))
        start = (
            f"--model_name_or_path {shlex.quote(config.tokenizer)} --train_batch_size {_SUGGESTED_BATCH} "
            f"--max_steps {steps} --learning_rate 3e-5"
        )
    else:
        start = "--preset cpu-trial"
    return [*lines, f"next: bert-repro run_pretraining {start} --corpus {folder} --output_dir runs/bert"]


def after_pretraining(config: PretrainingConfig) -> list[str]:
    """Suggests fine-tuning: on a GLUE task or, if the Hub cannot be reached, on the user's own file."""
    from huggingface_hub import constants

    folder = shlex.quote(config.output_dir)
    if hub_is_reachable() and not constants.HF_HUB_OFFLINE:
        step = f"run_glue --model_name_or_path {folder} --task_name mrpc --do_train --do_eval --output_dir runs/mrpc"
    else:
        step = f"run_glue --model_name_or_path {folder} --train_file train.csv --output_dir runs/my-classifier"
    return [f"model, card and scores: {folder} (README.md, results.json)", f"next: bert-repro {step}"]


def after_study(config: StudyConfig) -> list[str]:
    """Suggests the report on the study's results."""
    return [f"next: bert-repro report --runs_dir {shlex.quote(config.output_dir)}/records --report_dir runs/report"]


def after_finetuning(config: FinetuningConfig) -> list[str]:
    """Suggests predictions with the new model: on the run's own file, or on an example given on standard input."""
    folder = shlex.quote(config.output_dir)
    if not config.do_train:
        return [f"scores and predictions: {folder} (results.json)"]

    results = read_results(Path(config.output_dir))
    data = results["data"]
    if config.do_eval:
        scores = "scores"
    else:
        scores = "no scores, because there is no --validation_file or --do_eval"
    note = ""
    if data.get("example") and data.get("files"):
        note = "; both show a training text"
    lines = [f"model, card and {scores}: {folder} (README.md, results.json{note})"]

    # A model that gives one answer for everything is not worth predicting with.
    if results.get("degenerate"):
        return lines
    example = data.get("example") or {}
    if not example and len(data.get("text_columns", ())) == 1:
        # The run's own texts may be private, so the command shows where a text goes.
        example = {"text": "Write your text here."}
    return [*lines, f"next: {_prediction_command(config, example)}"]


def _prediction_command(config: FinetuningConfig, example: dict[str, Any]) -> str:
    command = f"bert-repro predict --model_name_or_path {shlex.quote(config.output_dir)}"
    file = getattr(config, "test_file", None) or getattr(config, "validation_file", None)
    if file:
        command += f" --input_file {shlex.quote(file)} --output_file answers.csv"
        if isinstance(config, NerConfig) and file.endswith(".txt"):
            command += " --input_format conll"
        return command
    if set(example) == {"text"}:
        return f"echo {shlex.quote(example['text'])} | {command}"
    if example:
        row = json.dumps(example, ensure_ascii=False)
        return f"echo {shlex.quote(row)} | {command} --input_format jsonl"
    return f"{command} --input_file new.csv --output_file answers.csv"
