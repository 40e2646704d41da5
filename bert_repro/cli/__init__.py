"""The command line: recipes by name, and from the end of a run to an exit code.

`python recipes/NAME.py`, `accelerate launch recipes/NAME.py`, `bert-repro NAME` and `python -m bert_repro NAME` run the
same code.
"""

import importlib.metadata
import logging
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from bert_repro.cli.arguments import parse
from bert_repro.cli.suggestions import meant_recipe
from bert_repro.configs import FinetuningConfig
from bert_repro.errors import NonFiniteError, ProcessKilledError, StopRequested, UserError, outcome
from bert_repro.recipes import RECIPES, SHORT_NAMES, help_text
from bert_repro.utils.process import hold_signals, is_main_process, stop_on_signals

__all__ = ["console", "main", "parse"]

logger = logging.getLogger("bert_repro")


def main(name: str | None = None, argv: Sequence[str] | None = None, *, typed: str | None = None) -> NoReturn:
    """Runs a recipe and ends the process with the exit code of the contract.

    Args:
        name: a key of `RECIPES`; default: the name of the script, for `accelerate launch --tpu recipes/NAME.py`, which
            calls this function of the script in each process.
        argv: arguments; default: those of the process.
        typed: what `bert-repro` was asked for, the recipe's name or a short one, which `--help` then writes; default:
            a script of `recipes/` was called, and help and closing lines are written as such calls.
    """
    name, script = name or Path(sys.argv[0]).stem, typed is None
    prog = f"recipes/{name}.py" if typed is None else f"bert-repro {typed}"
    with stop_on_signals():
        _log_on_main_process()
        try:
            recipe, arguments = RECIPES[name], sys.argv[1:] if argv is None else argv
            config = parse(recipe.config, arguments, prog=prog, description=help_text(name, typed))
            result = recipe.run(config)
            for line in closing_lines(name, config, result, as_script=script):
                logger.info("%s", line)
            code = 0
        except BaseException as error:
            with hold_signals():
                code = _report(error)
        with hold_signals():
            _leave_process_group()
    sys.exit(code)


def console() -> NoReturn:
    """Runs `bert-repro RECIPE [flags]`."""
    asked, *arguments = sys.argv[1:] or ["--help"]
    typed = asked if asked.startswith("-") else asked.replace("-", "_")
    if typed in SHORT_NAMES or typed in RECIPES:
        main(SHORT_NAMES.get(typed, typed), arguments, typed=typed)
    if typed in ("-h", "--help", "help"):
        sys.stdout.write(_list_of_recipes())
        sys.exit(0)
    if typed in ("-V", "--version", "version"):
        sys.stdout.write(f"bert-repro {importlib.metadata.version('bert-repro')}\n")
        sys.exit(0)
    meant = meant_recipe(typed, [*RECIPES, *SHORT_NAMES])
    advice = f"did you mean {meant}?" if meant else "bert-repro --help lists them"
    sys.stderr.write(f"error: there is no recipe {asked[:60]!r}; {advice}\n")
    sys.exit(2)


def _list_of_recipes() -> str:
    width = max(map(len, RECIPES))
    rows = [f"  {name:{width}}  {recipe.summary}" for name, recipe in RECIPES.items()]
    return "\n".join([
        "usage: bert-repro RECIPE [flags]",
        "       bert-repro RECIPE --help     examples, what to expect, costs, all flags",
        "       accelerate launch -m bert_repro RECIPE [flags]     on several devices",
        "",
        "recipes:",
        *rows,
        "",
        "short names:",
        *(f"  {short:{width}}  {name}" for short, name in SHORT_NAMES.items()),
        "",
    ])  # fmt: skip


def _report(error: BaseException) -> int:
    """Prints to stderr how the run ended and returns the exit code."""
    code, reason = outcome(error)
    match error:
        case UserError() | NonFiniteError() | ProcessKilledError() | StopRequested():
            if is_main_process():
                sys.stderr.write(f"{'' if isinstance(error, StopRequested) else 'error: '}{reason}\n")
        case SystemExit() | KeyboardInterrupt():
            pass
        case _:
            traceback.print_exception(error)
    return code


def _leave_process_group() -> None:
    # Without it gloo aborts some exits. Only a run that trained has loaded torch's side of it.
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_initialized():
        distributed.destroy_process_group()


def _log_on_main_process() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO if is_main_process() else logging.ERROR)


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
    lines = _lines(recipe, config)
    scores = _scores(result) if isinstance(result, Mapping) else ""
    folder = getattr(config, "output_dir", "")
    names = ("prepare_corpus", "audit_pretraining_data", "run_pretraining", "run_glue", "predict", "push_to_hub")
    friendly = {name: short for short, name in SHORT_NAMES.items()}
    calls = {
        name: f"python recipes/{name}.py" if as_script else f"bert-repro {friendly.get(name, name)}" for name in names
    }
    filled = [line.format(folder=folder, name=Path(folder).name, **calls) for line in lines]
    return [scores, *filled] if scores and filled else filled


def _lines(recipe: str, config: Any) -> list[str]:
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
            "next: {run_glue} --model_name_or_path {folder} --train_file FILE --validation_file FILE "
            "--output_dir runs/my-classifier",
            f"      {_UPLOAD}",
        ]
    if isinstance(config, FinetuningConfig) and config.do_train:
        return [
            *_MODEL,
            "next: {predict} --model_name_or_path {folder} --input_file FILE --output_file answers.csv",
            f"      {_UPLOAD}",
        ]
    if isinstance(config, FinetuningConfig):
        return ["scores and predictions: {folder} (results.json)"]
    return []


def _scores(result: Mapping[str, Any]) -> str:
    """Returns the metrics of a run in one line, the one that sums it up first."""
    metrics: Mapping[str, float] = result.get("metrics") or {}
    primary = result.get("primary_metric")
    names = sorted(metrics, key=lambda name: name != primary)[:4]
    where = f" on {result['split']}" if result.get("split") else ""
    return f"{', '.join(f'{name} {metrics[name]:.4g}' for name in names)}{where}" if names else ""
