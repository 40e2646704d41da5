"""The errors that end a run, one class for each exit code, and how their messages name settings.

A message names a setting with `flag`. On the command line it reads `--max_seq_length 512`, in Python
`max_seq_length=512`, because people look for the spelling that they typed.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_LONGEST_MESSAGE = 1000  # characters

_NO_VALUE = object()

# None on the command line. In Python: the names of those settings that have another name as an argument.
_argument_names: ContextVar[Mapping[str, str] | None] = ContextVar("argument_names", default=None)


def one_line(message: str) -> str:
    """Returns a message as one line that is safe to print, even if it quotes the content of a file.

    White space becomes single spaces, unprintable characters are escaped, and the middle of a long message is left out.
    """
    if not message.isprintable():
        message = " ".join(message.split())
        message = "".join(mark if mark.isprintable() else ascii(mark)[1:-1] for mark in message)
    if len(message) <= _LONGEST_MESSAGE:
        return message
    half = _LONGEST_MESSAGE // 2
    return f"{message[:half]} ... {message[-half:]}"


@contextmanager
def settings_as_arguments(names: Mapping[str, str]) -> Iterator[None]:
    """Makes `flag` write settings as Python arguments inside the `with` block.

    Args:
        names: setting -> argument, for the settings whose argument has another name (`train_file` -> `train`).
    """
    token = _argument_names.set(names)
    try:
        yield
    finally:
        _argument_names.reset(token)


def flag(name: str, value: Any = _NO_VALUE) -> str:
    """Returns a setting, with its value if one is given, as the reader of the message would type it.

        flag("max_seq_length", 512)  # --max_seq_length 512 or max_seq_length=512
        flag("train_file")           # --train_file, or train= inside bert_repro.finetune

    Args:
        name: the setting's name in its configuration class.
        value: its value; True and False are written as `true` and `false` on the command line, several values with
            spaces between them.
    """
    argument_names = _argument_names.get()
    if argument_names is not None:
        argument = argument_names.get(name, name)
        if value is _NO_VALUE:
            return argument
        return f"{argument}={value!r}"

    if value is _NO_VALUE:
        return f"--{name}"
    if isinstance(value, bool):
        return f"--{name} {str(value).lower()}"
    if isinstance(value, tuple | list):
        return f"--{name} {' '.join(map(str, value))}"
    return f"--{name} {value}"


class UserError(ValueError):
    """The user's input or arguments are wrong. Exit code 2, printed as one line without a traceback.

    Args:
        message: what is wrong, the place and the value, and what to do; stored as `one_line` of it.
        setting: name of the setting to change, if the error is about one.
    """

    exit_code = 2

    def __init__(self, message: str, *, setting: str | None = None) -> None:
        super().__init__(one_line(message))
        self.setting = setting


class NonFiniteError(ArithmeticError):
    """A loss or gradient norm is not finite. Exit code 3; the update is not made and nothing is saved from it."""

    exit_code = 3


class ProcessKilledError(RuntimeError):
    """A process started by the run was killed, most often because memory ran out. Exit code 1, one line."""

    exit_code = 1


class StopRequested(KeyboardInterrupt):
    """A signal stopped the process after it wrote a valid checkpoint. Exit code 128 + signal.

    It is a KeyboardInterrupt because libraries remove half-written files when they see one.

    Args:
        signum: the number of the signal, for example 15 for SIGTERM.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(f"stopped by signal {signum}")
        self.signum = signum

    @property
    def exit_code(self) -> int:
        """128 + signal, the number that shells report."""
        return 128 + self.signum


def outcome(error: BaseException) -> tuple[int, str]:
    """Returns the exit code for an exception that ended a run, and the reason in one line."""
    match error:
        case SystemExit():
            code = 1 if isinstance(error.code, str) else int(error.code or 0)
            return code, "exited"
        case UserError() | NonFiniteError() | ProcessKilledError() | StopRequested():
            return error.exit_code, " ".join(str(error).split())
        case KeyboardInterrupt():
            return 130, "interrupted"
        case _:
            return 1, " ".join(f"{type(error).__name__}: {error}".split())
