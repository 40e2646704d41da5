"""Signals that end a run: TERM, INT, HUP and USR1, and a terminal that went away (`| head`).

Anywhere in a recipe they raise `StopRequested`, so that what is half written is removed and status.json says how the
run ended. Inside the training loop they are collected instead, and answered by a checkpoint at the end of the step.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from bert_repro.errors import StopRequested

_HANDLED = [getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1") if hasattr(signal, name)]

_collected: list[int] | None = None
_process = os.getpid()


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """Has signals raise `StopRequested`, wherever the process is; a recipe runs inside."""
    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _Terminal(sys.stdout), _Terminal(sys.stderr)  # type: ignore[assignment]
    try:
        with _handlers():
            yield
        with suppress(StopRequested):
            sys.stdout.flush()
    finally:
        sys.stdout, sys.stderr = streams


@contextmanager
def collect_signals() -> Iterator[list[int]]:
    """Collects signals instead; the list that is yielded holds those that came."""
    global _collected
    before, _collected = _collected, []
    try:
        with _handlers():
            yield _collected
    finally:
        _collected = before


def request_stop(number: int) -> None:
    """Does what a signal of this number would do."""
    if _collected is None:
        raise StopRequested(number)
    _collected.append(number)


def leave_signals_to_parent() -> None:
    """Has a helper process ignore what reaches the complete process group; its parent ends it by TERM."""
    for number in _HANDLED:
        signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.SIG_IGN)


@contextmanager
def _handlers() -> Iterator[None]:
    global _process
    _process = os.getpid()
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


class _Terminal:
    """A stream that asks the run to stop when its reader is gone, and drops what is written from then on."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            written: int = self._stream.write(text)
            return written
        except BrokenPipeError:
            self._drop()
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._drop()

    def _drop(self) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
        request_stop(signal.SIGPIPE)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
