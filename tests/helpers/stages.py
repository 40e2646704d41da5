"""Recipes in processes of their own that wait at a stage of the run until they are stopped there.

A process is forked from the tests', which has the libraries loaded already; it has signals, pipes, children and an exit
code like any other, and takes a second where a new interpreter takes ten.
"""

import contextlib
import functools
import importlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tqdm.std

from bert_repro import cli

PATIENCE = 240.0  # seconds; the machines of tests can be busy

_started: list[int] = []


def end_all() -> None:
    """Ends what a failed test has left running."""
    for group in _started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(group, 0)
    _started.clear()


class Process:
    """A recipe that runs in a process of its own.

    Args:
        name: of the recipe.
        arguments: of its command line.
        stage: `module:attribute` of a function before whose call the process waits, or None.
        call: which of its calls.
        log: file that takes its output; None: a pipe, which `output` reads.
        setup: called in the process first.
    """

    def __init__(
        self,
        name: str,
        *arguments: object,
        stage: str | None = None,
        call: int = 1,
        log: Path | None = None,
        setup: Callable[[], None] | None = None,
    ) -> None:
        self._reached, reached = os.pipe()
        go, self._go = os.pipe()
        self._output, output = os.pipe() if log is None else (-1, os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND))
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid:
            _started.append(self.pid)
            for end in (reached, go, output):
                os.close(end)
            return
        code = 70
        try:
            os.setpgid(0, 0)
            for end in (self._reached, self._go, self._output):
                if end >= 0:
                    os.close(end)
            _become(output)
            if setup:
                setup()
            if stage:
                _wait_before(stage, call, reached, go)
            words = [word for argument in arguments for word in str(argument).split(" ")]
            try:
                cli.main(name, argv=words)
            except SystemExit as end_of_run:
                code = int(end_of_run.code or 0)
            importlib.import_module("multiprocessing.util")._exit_function()
        finally:
            os._exit(code)

    def wait_for_stage(self) -> None:
        """Returns when the process waits at its stage."""
        assert select.select([self._reached], [], [], PATIENCE)[0], "the process did not come to its stage"
        assert os.read(self._reached, 1) == b".", "the process ended before its stage"

    def go(self) -> None:
        """Lets the process continue, once what was sent to it has arrived."""
        os.write(self._go, b".")

    def output(self) -> str:
        """Returns what it writes, once it has ended."""
        with os.fdopen(self._output, encoding="utf-8") as file:
            self._output = -1
            return file.read()

    def send(self, number: int) -> None:
        """Sends it a signal."""
        os.kill(self.pid, number)

    def children(self) -> list[int]:
        """Returns the processes that it has started."""
        return [pid for pid, (parent, _) in _processes().items() if parent == self.pid]

    def wait(self) -> int:
        """Returns its exit code, or minus the signal that killed it."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            pid, ended = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                for end in (self._reached, self._go, self._output):
                    if end >= 0:
                        os.close(end)
                return os.waitstatus_to_exitcode(ended)
            time.sleep(0.02)
        os.killpg(self.pid, signal.SIGKILL)
        raise AssertionError("the process did not end")

    def has_orphans(self, seconds: float = 60.0) -> bool:
        """Returns whether processes that it has started are still there after some time."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if not any(group == self.pid for _, group in _processes().values()):
                return False
            time.sleep(0.1)
        return True


def run(name: str, *arguments: object, **options: Any) -> int:
    """Runs a recipe in a process of its own; returns its exit code."""
    return Process(name, *arguments, **options).wait()


def _processes() -> dict[int, tuple[int, int]]:
    """Returns the parent and the group of every process that runs."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] not in "ZX":
                found[int(folder.name)] = int(fields[1]), int(fields[2])
    return found


def _become(output: int) -> None:
    for number, end in enumerate((os.open(os.devnull, os.O_RDONLY), output, output)):
        os.dup2(end, number)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    # The lock of progress bars is shared among forked processes, and some are killed while they have it.
    tqdm.std.TqdmDefaultWriteLock.mp_lock = None
    tqdm.std.tqdm.set_lock(threading.RLock())


def resolved(stage: str) -> tuple[Any, str, Any]:
    """Returns what holds a function named `module:attribute`, the last part of its name, and the function."""
    module, _, name = stage.partition(":")
    *owners, attribute = name.split(".")
    owner = functools.reduce(getattr, owners, importlib.import_module(module))
    return owner, attribute, getattr(owner, attribute)


def _wait_before(stage: str, call: int, reached: int, go: int) -> None:
    """Has the process wait before a call: for a signal, whose handler may raise, and then for the word to continue."""
    owner, attribute, original = resolved(stage)
    calls = 0

    @functools.wraps(original)
    def waiting(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            os.write(reached, b".")
            os.read(go, 1)
        return original(*arguments, **options)

    setattr(owner, attribute, waiting)
