"""The command line: recipes by name, and from the end of a run to an exit code.

`python recipes/NAME.py`, `accelerate launch recipes/NAME.py`, `bert-repro NAME` and `python -m bert_repro NAME` run the
same code.
"""

import difflib
import importlib.metadata
import logging
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

from bert_repro.cli.arguments import parse
from bert_repro.cli.next_steps import closing_lines
from bert_repro.errors import NonFiniteError, StopRequested, UserError, outcome
from bert_repro.recipes import RECIPES, SHORT_NAMES, help_text
from bert_repro.utils.process import is_main_process, stop_on_signals

__all__ = ["console", "main", "parse"]

logger = logging.getLogger("bert_repro")


def main(name: str, argv: Sequence[str] | None = None, *, script: bool = True) -> NoReturn:
    """Runs a recipe and ends the process with the exit code of the contract.

    Args:
        name: a key of `RECIPES`.
        argv: arguments; default: those of the process.
        script: whether a script of `recipes/` was called; the examples of `--help` are then written as such calls.
    """
    with stop_on_signals():
        _log_on_main_process()
        try:
            recipe, arguments = RECIPES[name], sys.argv[1:] if argv is None else argv
            config = parse(recipe.config, arguments, prog=name, description=help_text(name, as_script=script))
            result = recipe.run(config)
            for line in closing_lines(name, config, result, as_script=script):
                logger.info("%s", line)
            code = 0
        except BaseException as error:
            code = _report(error)
        _leave_process_group()
    sys.exit(code)


def console() -> NoReturn:
    """Runs `bert-repro RECIPE [flags]`."""
    asked, *arguments = sys.argv[1:] or ["--help"]
    asked = SHORT_NAMES.get(asked.replace("-", "_"), asked.replace("-", "_") if asked[:1] != "-" else asked)
    if asked in RECIPES:
        main(asked, arguments, script=False)
    if asked in ("-h", "--help"):
        sys.stdout.write(_list_of_recipes())
        sys.exit(0)
    if asked == "--version":
        sys.stdout.write(f"bert-repro {importlib.metadata.version('bert-repro')}\n")
        sys.exit(0)
    close = difflib.get_close_matches(asked, [*RECIPES, *SHORT_NAMES], n=1, cutoff=0.4)
    meant = f"did you mean {close[0]}?" if close else "bert-repro --help lists them"
    sys.stderr.write(f"error: there is no recipe {sys.argv[1][:60]!r}; {meant}\n")
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
    """Says on stderr how the run ended and returns the exit code."""
    code, reason = outcome(error)
    match error:
        case UserError() | NonFiniteError() | StopRequested():
            if is_main_process():
                sys.stderr.write(f"{'error: ' if code in (2, 3) else ''}{reason}\n")
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
