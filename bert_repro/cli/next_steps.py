"""What a recipe says when it is done: where its results are, and what can be typed next."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_repro.configs import FinetuningConfig, SquadConfig

_MODEL = ("model, card and scores: {folder} (README.md, results.json)",)
_UPLOAD = "{push_to_hub} --folder {folder} --hub_model_id ORG/{name} --dry_run"


def closing_lines(recipe: str, config: Any, result: Any, *, as_script: bool) -> list[str]:
    """Returns the lines for the end of a run; empty for recipes that say themselves what they made.

    Args:
        recipe: its name.
        config: its settings.
        result: what it returned.
        as_script: write commands as calls of the scripts in `recipes/`.
    """
    if getattr(config, "dry_run", False):
        return []
    lines = _lines(recipe, config, result)
    scores = _scores(result) if isinstance(result, Mapping) else ""
    folder = getattr(config, "output_dir", "")
    names = ("prepare_corpus", "audit_pretraining_data", "run_pretraining", "run_glue", "push_to_hub", recipe)
    calls = {name: f"python recipes/{name}.py" if as_script else f"bert-repro {name}" for name in names}
    filled = [line.format(folder=folder, name=Path(folder).name, **calls) for line in lines]
    return [scores, *filled] if scores and filled else filled


def _lines(recipe: str, config: Any, result: Any) -> list[str]:
    if recipe == "train_tokenizer":
        return [
            "tokenizer: {folder}",
            "next: {prepare_corpus} --input_files FILES --tokenizer {folder} --output_dir runs/corpus",
        ]
    if recipe == "prepare_corpus" and (config.shard is None or config.join):
        return [
            "corpus: {folder} (manifest.json says what was kept and dropped)",
            "next: {audit_pretraining_data} --corpus {folder} --output_dir runs/audit",
            "      {run_pretraining} --preset cpu-trial --corpus {folder} --output_dir runs/bert",
        ]
    if recipe == "run_pretraining":
        return [
            *_MODEL,
            "next: {run_glue} --model_name_or_path {folder} --train_file FILE --validation_file FILE --do_train "
            "--do_eval --output_dir runs/my-classifier",
            f"      {_UPLOAD}",
        ]
    if isinstance(config, FinetuningConfig) and config.do_train:
        task = f"--task_name {result['task']} " if isinstance(config, SquadConfig) else ""
        return [
            *_MODEL,
            f"next: {{{recipe}}} --model_name_or_path {{folder}} {task}--test_file FILE --do_predict --output_dir "
            "{folder}-predictions",
            f"      {_UPLOAD}",
        ]
    if isinstance(config, FinetuningConfig):
        return ["scores and predictions: {folder} (results.json)"]
    return []


def _scores(result: Mapping[str, Any]) -> str:
    """The metrics of a run in one line, the one that sums it up first."""
    metrics: Mapping[str, float] = result.get("metrics") or {}
    primary = result.get("primary_metric")
    names = sorted(metrics, key=lambda name: name != primary)[:4]
    where = f" on {result['split']}" if result.get("split") else ""
    return f"{', '.join(f'{name} {metrics[name]:.4g}' for name in names)}{where}" if names else ""
