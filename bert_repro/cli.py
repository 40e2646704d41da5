"""The command line: from the name of a recipe and its arguments to an exit code.

`python recipes/NAME.py`, `accelerate launch recipes/NAME.py`, `bert-repro NAME` and `python -m bert_repro NAME` run the
same code.
"""

import errno
import importlib.metadata
import logging
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from bert_repro import registration
from bert_repro.configs import Config
from bert_repro.configs.base import did_you_mean
from bert_repro.errors import NonFiniteError, ProcessKilledError, StopRequested, UserError, outcome
from bert_repro.recipes import RECIPES
from bert_repro.utils.process import hold_signals, is_main_process, stop_on_signals
from bert_repro.utils.streams import BROKEN_PIPE_EXIT_CODE, PlainFormatter, discard_output, prepare_streams

logger = logging.getLogger("bert_repro")


def main(name: str | None = None, argv: Sequence[str] | None = None) -> NoReturn:
    """Runs a recipe and ends the process with the exit code that the contract gives to its outcome.

    Args:
        name: a key of `RECIPES`; default: the name of the script, for `accelerate launch --tpu recipes/NAME.py`, which
            calls this function of the script in each process.
        argv: arguments; default: those of the process.
    """
    name = name or Path(sys.argv[0]).stem
    arguments = sys.argv[1:] if argv is None else argv
    prepare_streams()
    with stop_on_signals():
        _log_to_stderr()
        _say_that_it_starts(name, arguments)
        try:
            run(name, arguments)
            sys.stdout.flush()
            code = 0
        except BaseException as error:
            with hold_signals():
                code = _report(error)
        with hold_signals():
            _leave_process_group()
    sys.exit(code)


def run(name: str, argv: Sequence[str]) -> None:
    """Runs a recipe and prints its closing lines."""
    recipe = RECIPES[name]
    config = parse(recipe.config, argv, prog=f"bert-repro {name}")
    recipe.run(config)

    # A dry run or a list of commands has made nothing, so nothing can follow from it.
    only_prints = getattr(config, "dry_run", False) or getattr(config, "list", False)
    if is_main_process() and not only_prints:
        for line in recipe.closing_lines(config):
            logger.info("%s", line)


def console() -> NoReturn:
    """Runs `bert-repro RECIPE [flags]`."""
    prepare_streams()
    first, *arguments = sys.argv[1:] or ["--help"]
    name = first if first.startswith("-") else first.replace("-", "_")
    if name in RECIPES:
        main(name, arguments)
    if name in ("-h", "--help", "--help_all", "help"):
        _print_and_exit(_list_of_recipes())
    if name in ("-V", "--version", "version"):
        _print_and_exit(f"bert-repro {importlib.metadata.version('bert-repro')}\n")
    advice = did_you_mean(name, RECIPES) or "bert-repro --help lists them"
    sys.stderr.write(f"error: there is no recipe {first[:60]!r}; {advice}\n")
    sys.exit(2)


def parse(config_class: type[Config], argv: Sequence[str], *, prog: str = "") -> Any:
    """Builds a configuration from `--preset`, `--config` and flags; see `bert_repro.arguments.parse`."""
    # Registering the models imports torch, which takes seconds. Neither help nor an argument error needs it.
    with registration.postponed():
        from bert_repro import arguments
    return arguments.parse(config_class, argv, prog=prog)


def _print_and_exit(text: str) -> NoReturn:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        sys.exit(_report(error))
    sys.exit(0)


def _log_to_stderr() -> None:
    """Sends this package's log to stderr: everything in the main process, errors in the others."""
    handler = logging.StreamHandler()
    handler.setFormatter(PlainFormatter("%(message)s"))
    logger.handlers[:] = [handler]
    if is_main_process():
        logger.setLevel(logging.INFO)
    else:
        logger.setLevel(logging.ERROR)


def _say_that_it_starts(name: str, arguments: Sequence[str]) -> None:
    """Writes a line to a terminal at once, because importing the libraries takes seconds. Help needs no such line."""
    asks_for_help = any(word in ("-h", "--help", "--help_all", "--help-all") for word in arguments)
    if is_main_process() and sys.stderr.isatty() and not asks_for_help:
        sys.stderr.write(f"Starting {name} ...\n")
        sys.stderr.flush()


def _leave_process_group() -> None:
    """Ends torch's process group; without it gloo aborts some exits. Only a run that trained has one."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_initialized():
        distributed.destroy_process_group()


def _list_of_recipes() -> str:
    width = max(map(len, RECIPES))
    text = (
        "usage: bert-repro RECIPE [flags]\n"
        "       bert-repro RECIPE --help     an example and the most important flags\n"
        "       accelerate launch -m bert_repro RECIPE [flags]     on several devices\n\nrecipes:\n"
    )
    for name, recipe in RECIPES.items():
        summary = (recipe.config.__doc__ or "").splitlines()[0]
        text += f"  {name:{width}}  {summary}\n"
    return text


def _report(error: BaseException) -> int:
    """Prints to stderr how the run ended and returns the exit code."""
    if isinstance(error, BrokenPipeError):
        # `bert-repro predict ... | head` has read all it wanted.
        discard_output()
        return BROKEN_PIPE_EXIT_CODE
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        # Recipes turn the errors of their files into a UserError, so this one comes from standard output.
        discard_output()
        error = UserError(
            f"standard output cannot be written ({error.strerror}). Free some space, or send it elsewhere."
        )
    code, reason = outcome(error)
    match error:
        case StopRequested():
            if is_main_process():
                sys.stderr.write(f"{reason}\n")
        case UserError() | NonFiniteError() | ProcessKilledError():
            if is_main_process():
                sys.stderr.write(f"error: {reason}\n")
        case SystemExit() | KeyboardInterrupt():
            pass
        case _:
            traceback.print_exception(error)
    return code
