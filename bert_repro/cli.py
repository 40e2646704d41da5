"""The command line: recipes by name, and from the end of a run to an exit code.

`python recipes/NAME.py`, `accelerate launch recipes/NAME.py`, `bert-repro NAME` and `python -m bert_repro NAME` run the
same code.
"""

import importlib.metadata
import json
import logging
import shlex
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from bert_repro import registration
from bert_repro.configs import Config, FinetuningConfig, NerConfig
from bert_repro.configs.base import did_you_mean, hub_is_reachable
from bert_repro.configs.corpus import FEWEST_DOCUMENTS
from bert_repro.errors import NonFiniteError, ProcessKilledError, StopRequested, UserError, outcome
from bert_repro.recipes import RECIPES
from bert_repro.results import read_results
from bert_repro.utils.process import hold_signals, is_main_process, stop_on_signals

logger = logging.getLogger("bert_repro")


def main(name: str | None = None, argv: Sequence[str] | None = None) -> NoReturn:
    """Runs a recipe and ends the process with the exit code of the contract.

    Args:
        name: a key of `RECIPES`; default: the name of the script, for `accelerate launch --tpu recipes/NAME.py`, which
            calls this function of the script in each process.
        argv: arguments; default: those of the process.
    """
    name = name or Path(sys.argv[0]).stem
    with stop_on_signals():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(message)s"))
        logger.handlers[:] = [handler]
        logger.setLevel(logging.INFO if is_main_process() else logging.ERROR)
        try:
            recipe = RECIPES[name]
            config = parse(recipe.config, sys.argv[1:] if argv is None else argv, prog=f"bert-repro {name}")
            recipe.run(config)
            for line in closing_lines(name, config):
                logger.info("%s", line)
            code = 0
        except BaseException as error:
            with hold_signals():
                code = _report(error)
        with hold_signals():
            # Without it gloo aborts some exits. Only a run that trained has loaded torch's side of it.
            distributed = sys.modules.get("torch.distributed")
            if distributed is not None and distributed.is_initialized():
                distributed.destroy_process_group()
    sys.exit(code)


def console() -> NoReturn:
    """Runs `bert-repro RECIPE [flags]`."""
    asked, *arguments = sys.argv[1:] or ["--help"]
    name = asked if asked.startswith("-") else asked.replace("-", "_")
    if name in RECIPES:
        main(name, arguments)
    if name in ("-h", "--help", "--help_all", "help"):
        sys.stdout.write(_list_of_recipes())
        sys.exit(0)
    if name in ("-V", "--version", "version"):
        sys.stdout.write(f"bert-repro {importlib.metadata.version('bert-repro')}\n")
        sys.exit(0)
    advice = did_you_mean(name, RECIPES) or "bert-repro --help lists them"
    sys.stderr.write(f"error: there is no recipe {asked[:60]!r}; {advice}\n")
    sys.exit(2)


def parse(config_class: type[Config], argv: Sequence[str], *, prog: str = "") -> Any:
    """Builds a configuration from `--preset`, `--config` and flags; see `bert_repro.arguments.parse`."""
    with registration.postponed():  # it would import torch, which neither help nor a refusal needs
        from bert_repro import arguments
    return arguments.parse(config_class, argv, prog=prog)


def closing_lines(recipe: str, config: Any) -> list[str]:
    """Returns the lines for the end of a run: what it made, and the command that comes next."""
    folder = shlex.quote(getattr(config, "output_dir", None) or "")
    if getattr(config, "dry_run", False) or getattr(config, "list", False) or not is_main_process():
        return []
    if recipe == "train_tokenizer":
        files = shlex.join(config.input_files)
        return [
            f"tokenizer: {folder}",
            f"next: bert-repro prepare_corpus --input_files {files} --tokenizer {folder} --output_dir runs/corpus",
        ]
    if recipe == "prepare_corpus":
        tokenizer = Path(config.tokenizer)
        of_checkpoint = not tokenizer.exists() or (tokenizer / "config.json").exists()
        counts = json.loads((Path(config.output_dir) / "manifest.json").read_text("utf-8"))["counts"]
        steps = max(100, min(10_000, 10 * counts["tokens"] // (32 * 128)))  # ten passes over a small corpus
        continued = f"--model_name_or_path {shlex.quote(config.tokenizer)} --train_batch_size 32 --max_steps {steps}"
        start = f"{continued} --learning_rate 3e-5" if of_checkpoint else "--preset cpu-trial"
        step = f"next: bert-repro run_pretraining {start} --corpus {folder} --output_dir runs/bert"
        enough = counts["documents"] >= FEWEST_DOCUMENTS
        return [f"corpus: {folder} (manifest.json says what was kept and dropped)", *[step] * enough]
    if recipe == "run_pretraining":
        from huggingface_hub import constants

        online = f"run_glue --model_name_or_path {folder} --task_name mrpc --do_train --do_eval --output_dir runs/mrpc"
        offline = f"push_to_hub --folder {folder} --hub_model_id ORG/{Path(config.output_dir).name} --dry_run"
        step = online if hub_is_reachable() and not constants.HF_HUB_OFFLINE else offline
        return [f"model, card and scores: {folder} (README.md, results.json)", f"next: bert-repro {step}"]
    if recipe == "run_study":
        return [f"next: bert-repro report --runs_dir {folder}/records --report_dir runs/report"]
    if not isinstance(config, FinetuningConfig):
        return []
    if not config.do_train:
        return [f"scores and predictions: {folder} (results.json)"]
    file = getattr(config, "test_file", None) or getattr(config, "validation_file", None)
    step = f"bert-repro predict --model_name_or_path {folder}"
    results = read_results(Path(config.output_dir))
    data, example = results["data"], results["data"].get("example") or {}
    if file:
        step += f" --input_file {shlex.quote(file)} --output_file answers.csv"
        step += " --input_format conll" * (isinstance(config, NerConfig) and file.endswith(".txt"))
    elif set(example) == {"text"}:
        step = f"echo {shlex.quote(example['text'])} | {step}"
    else:
        step = f"bert-repro push_to_hub --folder {folder} --hub_model_id ORG/{Path(config.output_dir).name} --dry_run"
    scores = "scores" if config.do_eval else "no scores, as there is no --validation_file or --do_eval"
    shows = "; both show a training text" * bool(example and data.get("files"))
    made = f"model, card and {scores}: {folder} (README.md, results.json{shows})"
    return [made, f"next: {step}"] if not results.get("degenerate") else [made]


def _list_of_recipes() -> str:
    width = max(map(len, RECIPES))
    rows = (f"  {name:{width}}  {(recipe.config.__doc__ or '').splitlines()[0]}\n" for name, recipe in RECIPES.items())
    return (
        "usage: bert-repro RECIPE [flags]\n"
        "       bert-repro RECIPE --help     an example and the most important flags\n"
        "       accelerate launch -m bert_repro RECIPE [flags]     on several devices\n\nrecipes:\n" + "".join(rows)
    )


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
