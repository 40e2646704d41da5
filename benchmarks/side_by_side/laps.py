"""Timing contenders against each other: each in a process of its own, in turn, again and again.

A contender is a function `run(spec, lap)` that works without end and calls `lap(...)` after each stretch of work; the
call blocks until it is that contender's turn again. So building, compiling and warming up (the first stretch) are timed
apart, nobody works while another is timed, and what is reported is the median and spread of several turns of each.
"""

import multiprocessing
import resource
import statistics
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

_START = multiprocessing.get_context("forkserver")
# The server finds installed modules only, not those beside a script.
_START.set_forkserver_preload(
    ["torch", "accelerate", "transformers.models.bert.modeling_bert", "bert_repro.training.trainer",
     "bert_repro.pretraining.dataset", "bert_repro.corpus.tokenizer"]
)  # fmt: skip


@dataclass(frozen=True)
class Lap:
    """One stretch of work.

    Args:
        seconds: wall time.
        cpu_seconds: processor time of the contender's process, all threads; loader processes apart.
        amount: what was done: real tokens, sequences ...
        figures: anything else the contender says.
    """

    seconds: float
    cpu_seconds: float
    amount: float
    figures: dict[str, Any]


Run = Callable[[Any, Callable[..., None]], None]


class _Over(BaseException):
    """Ends a contender from inside its lap call."""


class Contender:
    """A running contender.

    Args:
        run: module-level function.
        spec: its first argument; picklable.
        threads: threads of PyTorch's operations.
    """

    def __init__(self, run: Run, spec: Any, threads: int) -> None:
        self._ours, theirs = _START.Pipe()
        self._process = _START.Process(target=_serve, args=(theirs, run, spec, threads), daemon=False)
        self._process.start()
        theirs.close()

    def lap(self) -> Lap:
        """Lets the contender work for one stretch.

        Raises:
            RuntimeError: it failed; the message is its traceback.
        """
        self._ours.send("go")
        try:
            answer = self._ours.recv()
        except EOFError:
            self._process.join()
            raise RuntimeError(f"the contender was killed (exit code {self._process.exitcode})") from None
        if isinstance(answer, str):
            raise RuntimeError(answer)
        return Lap(*answer)

    def stop(self) -> None:
        """Ends the process."""
        if self._process.is_alive():
            self._ours.send("stop")
        self._process.join()


def _serve(connection: Connection, run: Run, spec: Any, threads: int) -> None:
    import torch

    # A loader process is forked from its contender, as in any script; the default here would be another server.
    multiprocessing.set_start_method("fork", force=True)
    torch.set_num_threads(threads)
    began: list[float] = []

    def wait() -> None:
        if connection.recv() == "stop":
            raise _Over
        began[:] = [time.perf_counter(), time.process_time()]

    def lap(amount: float, **figures: Any) -> None:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        seconds, cpu_seconds = time.perf_counter() - began[0], time.process_time() - began[1]
        connection.send((seconds, cpu_seconds, amount, figures))
        wait()

    try:
        wait()
        run(spec, lap)
        connection.send("the contender ended before it was told to")
    except _Over:
        pass
    except Exception:
        connection.send(traceback.format_exc())


def race(contenders: dict[str, tuple[Run, Any]], repeats: int, threads: int | dict[str, int]) -> dict[str, list[Lap]]:
    """Lets contenders work in turn, A B C, B C A, ...

    Args:
        contenders: name -> (run, spec).
        repeats: timed laps of each.
        threads: threads of each, or by name.

    Returns:
        Name -> the warm-up lap, then the timed ones; lap k of all were made one after another.
    """
    running: dict[str, Contender] = {}
    laps: dict[str, list[Lap]] = {}
    try:
        for name, (run, spec) in contenders.items():
            running[name] = Contender(run, spec, threads[name] if isinstance(threads, dict) else threads)
            laps[name] = [running[name].lap()]
        order = list(contenders)
        for _ in range(repeats):
            for name in order:
                laps[name].append(running[name].lap())
            order = order[1:] + order[:1]
    finally:
        for contender in running.values():
            contender.stop()
    return laps


def once(run: Run, spec: Any, threads: int) -> Lap:
    """The first lap of a contender in a fresh process."""
    contender = Contender(run, spec, threads)
    try:
        return contender.lap()
    finally:
        contender.stop()


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, least and most."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def rates(laps: Sequence[Lap]) -> dict[str, Any]:
    """Speed of a contender: amount per second of wall and of processor time, over the timed laps."""
    timed = laps[1:]
    return {
        "per_second": spread([lap.amount / lap.seconds for lap in timed]),
        "per_cpu_second": spread([lap.amount / lap.cpu_seconds for lap in timed]),
        "seconds_per_lap": [round(lap.seconds, 4) for lap in timed],
        "warm_up_seconds": round(laps[0].seconds, 2),
    }


def ratio(laps: Sequence[Lap], against: Sequence[Lap]) -> dict[str, float]:
    """How many times faster, turn by turn: each turn is compared with the other's turn beside it."""
    pairs = zip(laps[1:], against[1:], strict=True)
    return spread([(own.amount / own.seconds) / (other.amount / other.seconds) for own, other in pairs])


def peak_memory() -> float:
    """Most resident memory that this process ever had, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
