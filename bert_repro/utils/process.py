"""A run's process: its rank in a launch, the signals that end it, and status.json, which records how it ended.

TERM, INT, HUP and USR1 raise `StopRequested` anywhere in a recipe. What is half written is then removed, and
status.json records the signal. Inside the training loop the signals are only collected; the loop writes a checkpoint at
the end of its step and then stops. status.json is needed because launchers turn every exit code into 1.
"""

import importlib
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TypedDict, TypeVar, cast

from bert_repro.errors import StopRequested, UserError
from bert_repro.utils.files import STATUS, UNFINISHED, unlock, write_json
from bert_repro.utils.readers import read_json_object
from bert_repro.utils.redaction import redacted

T = TypeVar("T")


# --- Rank -------------------------------------------------------------------------------------------------------------


def rank() -> int:
    """Returns the number of this process in its launch; 0 if there is only one process."""
    return _from_launcher("RANK", "global_ordinal", default=0)


def world_size() -> int:
    """Returns how many processes the launcher started."""
    return _from_launcher("WORLD_SIZE", "world_size", default=1)


def is_main_process() -> bool:
    """Returns whether this process writes the files and prints."""
    return rank() == 0


def is_local_main_process() -> bool:
    """Returns whether this process does the work that is done once on each machine."""
    return _from_launcher("LOCAL_RANK", "local_ordinal", default=0) == 0


_tpu_facts = threading.local()


def _from_launcher(variable: str, tpu_function: str, default: int) -> int:
    """Returns a number that a launcher put into the environment, or asks torch_xla for it on TPUs.

    Args:
        variable: the environment variable.
        tpu_function: the function of `torch_xla.runtime` that returns the same number.
        default: the number without a launcher.
    """
    if variable in os.environ:
        return int(os.environ[variable])
    if "torch_xla" not in sys.modules or os.environ.get("PJRT_DEVICE") != "TPU":
        return default

    # The answer is stored for each thread, because two ranks may be threads of one process. Data loader processes are
    # forks; they must find the stored answer, because they must not touch the device.
    if not hasattr(_tpu_facts, tpu_function):
        runtime = importlib.import_module("torch_xla.runtime")
        setattr(_tpu_facts, tpu_function, int(getattr(runtime, tpu_function)()))
    return int(getattr(_tpu_facts, tpu_function))


def broadcast(value: T) -> T:
    """Returns the main process's value. All processes must call this together; the value is pickled."""
    from accelerate.utils import broadcast_object_list

    return cast(T, broadcast_object_list([value])[0])


# --- Signals ----------------------------------------------------------------------------------------------------------

# Windows has only some of them.
_SIGNAL_NAMES = ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1")
_HANDLED = [getattr(signal, name) for name in _SIGNAL_NAMES if hasattr(signal, name)]

_collected: list[int] | None = None
_process = os.getpid()


@contextmanager
def hold_signals() -> Iterator[list[int]]:
    """Collects the signals that our handler receives in a list, so that the end of a run is written completely."""
    global _collected
    outer, _collected = _collected, []
    try:
        yield _collected
    finally:
        _collected = outer


@contextmanager
def collect_signals() -> Iterator[list[int]]:
    """Installs our signal handler and collects signals in the list that it yields, instead of raising."""
    with hold_signals() as received, stop_on_signals():
        yield received


def request_stop(number: int) -> None:
    """Does what the signal with this number would do: raises `StopRequested`, or collects the signal."""
    if _collected is None:
        raise StopRequested(number)
    _collected.append(number)


def leave_signals_to_parent() -> None:
    """Makes a helper process ignore the signals that its whole process group gets. Its parent ends it with TERM."""
    for number in _HANDLED:
        if number == signal.SIGTERM:
            signal.signal(number, signal.SIG_DFL)
        else:
            signal.signal(number, signal.SIG_IGN)


@contextmanager
def keep_child_signal_handler() -> Iterator[None]:
    """Restores the handler of SIGCHLD (a child process has ended) after a block that replaces it.

    The handler of torch's data loader raises wherever the process is as soon as a loader process is killed. Half an
    update could be made, or a checkpoint lost. Without it, torch notices at the next batch.
    """
    number = getattr(signal, "SIGCHLD", None)
    if number is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(number)
    try:
        yield
    finally:
        signal.signal(number, handler)


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """Makes signals raise `StopRequested` inside the block. Every recipe runs in it."""
    global _process
    _process = os.getpid()
    # Python lets only the main thread set handlers. On TPUs a recipe runs in another one.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.signal(number, _answer) for number in _HANDLED}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _answer(number: int, _: FrameType | None) -> None:
    # A helper process that was forked from this one inherits the handler. It ends as it would without one.
    if os.getpid() != _process:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        return
    request_stop(number)


# --- status.json ------------------------------------------------------------------------------------------------------


class Status(TypedDict, total=False):
    """The JSON object in status.json."""

    code: int | None
    reason: str
    pid: int


def claim_folder(output_dir: Path) -> None:
    """Records in status.json that this process is running in the folder."""
    output_dir.mkdir(parents=True, exist_ok=True)
    write_json(output_dir / STATUS, Status(code=None, reason="running", pid=os.getpid()))


def write_status(folder: Path, code: int, reason: str) -> None:
    """Records the exit code of a run and the reason for it."""
    write_json(folder / STATUS, Status(code=code, reason=redacted(reason)))


def record_outcome(output_dir: str | None, code: int, reason: str) -> None:
    """Records how a run ended. A run that was refused its folder does not change the record of the earlier run."""
    if output_dir is None:
        return
    with hold_signals() as received:
        if is_main_process():
            _record_here(Path(output_dir), code, reason)
    # A sweep that was asked to stop does so after a run whose end has been recorded.
    for number in received:
        request_stop(number)


def _record_here(folder: Path, code: int, reason: str) -> None:
    try:
        unlock(folder)
        is_own_folder = code == 0 or is_free_folder(folder) or _read_status(folder).get("pid") == os.getpid()
        if is_own_folder:
            folder.mkdir(parents=True, exist_ok=True)
            _write_status_even_if_full(folder, code, reason)
    except (OSError, UserError):
        # A full or read-only disk has already been reported as the reason of the exit.
        return


def _write_status_even_if_full(folder: Path, code: int, reason: str) -> None:
    try:
        write_status(folder, code, reason)
    except UserError:
        # A full disk still has room for a text that is no longer than the one it overwrites.
        status = Status(code=code, reason="see what was printed")
        with (folder / STATUS).open("r+b", buffering=0) as file:
            file.write(json.dumps(status).encode())
            file.truncate()


def is_free_folder(folder: Path) -> bool:
    """Returns whether a folder does not exist, is empty, or contains only the status of a run without output."""
    if not folder.exists():
        return True
    return all(entry.name == STATUS or entry.name.startswith(UNFINISHED) for entry in folder.iterdir())


def recorded_exit_code(folder: Path) -> int | None:
    """Returns the exit code of the run that ended in a folder, or None if no run has ended there."""
    code = _read_status(folder).get("code")
    return code if isinstance(code, int) else None


def is_unfinished_run(folder: Path) -> bool:
    """Returns whether a run started in a folder and has not ended successfully."""
    return (folder / STATUS).exists() and recorded_exit_code(folder) != 0


def _read_status(folder: Path) -> Status:
    """Returns the content of status.json, or an empty object if it is missing or damaged."""
    try:
        return cast(Status, read_json_object(folder / STATUS))
    except UserError:
        return {}
