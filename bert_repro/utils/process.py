"""A run's process: which one of a launch it is, the signals that end it, and status.json, which says how it ended.

TERM, INT, HUP and USR1 raise `StopRequested` anywhere in a recipe, so that
what is half written is removed and status.json says how the run ended. Inside the training loop they are collected
instead, and answered by a checkpoint at the end of the step. status.json survives launchers, which turn every exit code
into 1.
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
from typing import Any, TypeVar, cast

from bert_repro.errors import StopRequested, UserError
from bert_repro.utils.files import STATUS, UNFINISHED, unlock, write_json
from bert_repro.utils.readers import read_json_object, redacted

T = TypeVar("T")


def rank() -> int:
    """Returns the number of this process, as its launcher gave it; 0 where there is one process."""
    return _from_launcher("RANK", "global_ordinal", 0)


def world_size() -> int:
    """Returns how many processes the launcher started."""
    return _from_launcher("WORLD_SIZE", "world_size", 1)


def is_main_process() -> bool:
    """Returns whether this is the process that writes files and prints."""
    return rank() == 0


def is_local_main_process() -> bool:
    """Returns whether this is the process that does what is done once on each machine."""
    return _from_launcher("LOCAL_RANK", "local_ordinal", 0) == 0


_tpu_facts = threading.local()


def _from_launcher(variable: str, on_tpu: str, alone: int) -> int:
    """Reads what a launcher says in the environment; on TPUs, where it says nothing, torch_xla knows."""
    if variable not in os.environ and "torch_xla" in sys.modules and os.environ.get("PJRT_DEVICE") == "TPU":
        # Once in each thread, as two may share a process; loader processes are forks and must not touch the device.
        if not hasattr(_tpu_facts, on_tpu):
            runtime = importlib.import_module("torch_xla.runtime")
            setattr(_tpu_facts, on_tpu, int(getattr(runtime, on_tpu)()))
        return int(getattr(_tpu_facts, on_tpu))
    return int(os.environ.get(variable, alone))


def broadcast(value: T) -> T:
    """Returns the main process's value; all processes must call this together. Values are pickled between them."""
    from accelerate.utils import broadcast_object_list

    return cast(T, broadcast_object_list([value])[0])


_HANDLED = [getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1") if hasattr(signal, name)]

_collected: list[int] | None = None
_process = os.getpid()


@contextmanager
def hold_signals() -> Iterator[list[int]]:
    """Collects the signals that a handler of ours gets, so that no launcher cuts what a run writes at its end."""
    global _collected
    before, _collected = _collected, []
    try:
        yield _collected
    finally:
        _collected = before


@contextmanager
def collect_signals() -> Iterator[list[int]]:
    """Collects signals instead of raising; yields the list that they are added to."""
    with hold_signals() as received, stop_on_signals():
        yield received


def request_stop(number: int) -> None:
    """Does what a signal of this number would do."""
    if _collected is None:
        raise StopRequested(number)
    _collected.append(number)


def leave_signals_to_parent() -> None:
    """Makes a helper process ignore signals to its process group; its parent ends it by TERM."""
    for number in _HANDLED:
        signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.SIG_IGN)


@contextmanager
def keep_child_signal_handler() -> Iterator[None]:
    """Restores the handler of SIGCHLD, the signal that a child process has ended, after a block that replaces it.

    torch's data loader would raise, in the middle of whatever runs, as soon as one of its processes is killed: half an
    update could be made, or a checkpoint be lost. Without that the loader finds it when the next batch is asked for.
    """
    number = getattr(signal, "SIGCHLD", None)
    if number is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(number)
    try:
        yield
    finally:
        signal.signal(number, before)


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """Makes signals raise `StopRequested`, wherever the process is; a recipe runs inside."""
    global _process
    _process = os.getpid()
    if threading.current_thread() is not threading.main_thread():  # as on TPUs: Python lets no other thread set them
        yield
        return
    before = {number: signal.signal(number, _answer) for number in _HANDLED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _answer(number: int, _: Any) -> None:
    if os.getpid() != _process:  # a helper process that was forked from this one
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        return
    request_stop(number)


def claim_folder(output_dir: Path) -> None:
    """Marks the folder as this process's run: code null, reason "running"."""
    output_dir.mkdir(parents=True, exist_ok=True)
    write_json(output_dir / STATUS, {"code": None, "reason": "running", "pid": os.getpid()})


def write_status(folder: Path, code: int, reason: str) -> None:
    """Records how a run ended, once it has."""
    write_json(folder / STATUS, {"code": code, "reason": redacted(reason)})


def record_outcome(output_dir: str | None, code: int, reason: str) -> None:
    """Records how the run ended. A run that was refused its folder leaves the record of the earlier run alone."""
    if output_dir is None:
        return
    with hold_signals() as received:
        if is_main_process():
            _record_here(Path(output_dir), code, reason)
    for number in received:  # a sweep stops after a run whose end is written
        request_stop(number)


def _record_here(folder: Path, code: int, reason: str) -> None:
    try:
        unlock(folder)
        if code == 0 or is_free_folder(folder) or _read_status(folder).get("pid") == os.getpid():
            folder.mkdir(parents=True, exist_ok=True)
            try:
                write_status(folder, code, reason)
            except UserError:  # on a full disk there is room for what takes the place of "running"
                with (folder / STATUS).open("r+b", buffering=0) as file:
                    file.write(json.dumps({"code": code, "reason": "see what was printed"}).encode())
                    file.truncate()
    except (OSError, UserError):
        return  # a full or read-only disk has already been reported as the reason of the exit


def is_free_folder(folder: Path) -> bool:
    """Returns whether the folder is absent or holds nothing but the status of a run that produced nothing."""
    return not folder.exists() or all(
        entry.name == STATUS or entry.name.startswith(UNFINISHED) for entry in folder.iterdir()
    )


def recorded_exit_code(folder: Path) -> int | None:
    """Returns the exit code of the run that ended in a folder; None where none ended there."""
    code = _read_status(folder).get("code")
    return code if isinstance(code, int) else None


def is_unfinished_run(folder: Path) -> bool:
    """Returns whether a run was begun in a folder and has not ended well."""
    return (folder / STATUS).exists() and recorded_exit_code(folder) != 0


def _read_status(folder: Path) -> dict[str, Any]:
    """Returns what status.json says; nothing where it is missing or damaged."""
    try:
        return read_json_object(folder / STATUS)
    except UserError:
        return {}
