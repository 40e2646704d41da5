"""How a run can end other than in success: each class is one exit code of the contract."""

_LONGEST_MESSAGE = 1000


def one_line(message: str) -> str:
    """Returns a message as one line that a terminal shows as it is, whatever text of a file is quoted in it.

    White space becomes single spaces, what does not print is escaped, and of a long message the middle is left out.
    """
    if not message.isprintable():
        message = " ".join(message.split())
        message = "".join(mark if mark.isprintable() else ascii(mark)[1:-1] for mark in message)
    half = _LONGEST_MESSAGE // 2
    return message if len(message) <= _LONGEST_MESSAGE else f"{message[:half]} ... {message[-half:]}"


class UserError(ValueError):
    """The user's input or arguments are wrong. Exit code 2, printed as one line without a traceback.

    Args:
        message: names the file, row or field, the value found there, and the fix; kept as `one_line` of it.
    """

    exit_code = 2

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


class NonFiniteError(ArithmeticError):
    """A loss or gradient norm is not finite. Exit code 3; the update is not made and nothing is saved from it."""

    exit_code = 3


class ProcessKilledError(RuntimeError):
    """A process that the run had started was killed, most often for want of memory. Exit code 1, one line."""

    exit_code = 1


class StopRequested(KeyboardInterrupt):
    """A signal stopped the process, which has written a valid checkpoint. Exit code 128 + signal.

    Libraries remove what they have half written when they are interrupted by the keyboard, so it is one of those.

    Args:
        signum: the number of the signal, for example 15 for SIGTERM.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(f"stopped by signal {signum}")
        self.signum = signum

    @property
    def exit_code(self) -> int:
        """128 + signal, as shells report it."""
        return 128 + self.signum


def outcome(error: BaseException) -> tuple[int, str]:
    """Returns the exit code of the contract and the reason, in one line, of a run that ended with an exception."""
    match error:
        case SystemExit():
            return (int(error.code or 0) if not isinstance(error.code, str) else 1), "exited"
        case UserError() | NonFiniteError() | ProcessKilledError() | StopRequested():
            return error.exit_code, " ".join(str(error).split())
        case KeyboardInterrupt():
            return 130, "interrupted"
        case _:
            return 1, " ".join(f"{type(error).__name__}: {error}".split())
