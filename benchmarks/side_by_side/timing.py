"""Timing workloads against each other: each in a process of its own, alternating.

A workload is a function `run(spec, report)` that works without end and calls `report(...)` after each iteration; the
call blocks until that workload is timed again. So building, compiling and warming up (the first iteration) are
timed apart, nobody works while another is timed, and what is reported is the median and spread of several iterations.
"""

import multiprocessing
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

_START = multiprocessing.get_context("forkserver")
# The server finds installed modules only, not those next to a script.
_START.set_forkserver_preload(
    ["torch", "accelerate", "transformers.models.bert.modeling_bert", "bert_repro.training.trainer",
     "bert_repro.pretraining.dataset", "bert_repro.corpus.tokenizer"]
)  # fmt: skip


@dataclass(frozen=True)
class Iteration:
    """What a workload did between two reports.

    Args:
        seconds: wall time.
        cpu_seconds: processor time of the workload's process, all threads; loader processes apart.
        amount: what was done: real tokens, sequences ...
        metrics: anything else the workload reports.
    """

    seconds: float
    cpu_seconds: float
    amount: float
    metrics: dict[str, Any]


Workload = Callable[[Any, Callable[..., None]], None]


class _Stopped(BaseException):
    """Ends a workload from inside its report."""


class RunningWorkload:
    """A workload in a process of its own.

    Args:
        run: module-level function.
        spec: its first argument; picklable.
        threads: threads of PyTorch.
    """

    def __init__(self, run: Workload, spec: Any, threads: int) -> None:
        self._ours, theirs = _START.Pipe()
        self._process = _START.Process(target=_serve, args=(theirs, run, spec, threads), daemon=False)
        self._process.start()
        theirs.close()

    def iterate(self) -> Iteration:
        """Lets the workload make one iteration.

        Raises:
            RuntimeError: it failed; the message is its traceback.
        """
        self._ours.send("continue")
        try:
            answer = self._ours.recv()
        except EOFError:
            self._process.join()
            raise RuntimeError(f"the workload was killed (exit code {self._process.exitcode})") from None
        if isinstance(answer, str):
            raise RuntimeError(answer)
        return Iteration(*answer)

    def stop(self) -> None:
        """Ends the process."""
        if self._process.is_alive():
            self._ours.send("stop")
        self._process.join()


def _serve(connection: Connection, run: Workload, spec: Any, threads: int) -> None:
    import torch

    # A loader process is forked from its workload, as in any script; the default here would be another server.
    multiprocessing.set_start_method("fork", force=True)
    torch.set_num_threads(threads)
    began: list[float] = []

    def wait() -> None:
        if connection.recv() == "stop":
            raise _Stopped
        began[:] = [time.perf_counter(), time.process_time()]

    def report(amount: float, **metrics: Any) -> None:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        seconds, cpu_seconds = time.perf_counter() - began[0], time.process_time() - began[1]
        connection.send((seconds, cpu_seconds, amount, metrics))
        wait()

    try:
        wait()
        run(spec, report)
        connection.send("the workload ended before it was stopped")
    except _Stopped:
        pass
    except Exception:
        connection.send(traceback.format_exc())


def compare(
    workloads: Mapping[str, tuple[Workload, Any]], repeats: int, threads: int | dict[str, int]
) -> dict[str, list[Iteration]]:
    """Lets workloads alternate, A B C, B C A, ...

    Args:
        workloads: name -> (run, spec).
        repeats: timed iterations of each.
        threads: threads of each, or by name.

    Returns:
        Name -> the warm-up iteration, then the timed ones; iteration k of all were made one after another.
    """
    running: dict[str, RunningWorkload] = {}
    iterations: dict[str, list[Iteration]] = {}
    try:
        for name, (run, spec) in workloads.items():
            running[name] = RunningWorkload(run, spec, threads[name] if isinstance(threads, dict) else threads)
            iterations[name] = [running[name].iterate()]
        order = list(workloads)
        for _ in range(repeats):
            for name in order:
                made = running[name].iterate()
                iterations[name].append(made)
                # So that a measurement that is cut short has left what it saw.
                print(f"  ({name}: {made.amount:,.0f} in {made.seconds:.3f} s)", file=sys.stderr, flush=True)
            order = order[1:] + order[:1]
    finally:
        for workload in running.values():
            workload.stop()
    return iterations


def run_once(run: Workload, spec: Any, threads: int) -> Iteration:
    """Makes the first iteration of a workload in a fresh process."""
    workload = RunningWorkload(run, spec, threads)
    try:
        return workload.iterate()
    finally:
        workload.stop()


def spread(values: Sequence[float]) -> dict[str, float]:
    """Returns median, minimum and maximum."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def speeds(iterations: Sequence[Iteration]) -> dict[str, Any]:
    """Returns the amount per second of wall and of processor time, over the timed iterations."""
    timed = iterations[1:]
    return {
        "per_second": spread([one.amount / one.seconds for one in timed]),
        "per_cpu_second": spread([one.amount / one.cpu_seconds for one in timed]),
        "seconds_per_iteration": [round(one.seconds, 4) for one in timed],
        "warm_up_seconds": round(iterations[0].seconds, 2),
    }


def speedup(iterations: Sequence[Iteration], against: Sequence[Iteration]) -> dict[str, float]:
    """Returns how many times faster one is; each iteration is compared with the other's beside it."""
    pairs = zip(iterations[1:], against[1:], strict=True)
    return spread([(own.amount / own.seconds) / (other.amount / other.seconds) for own, other in pairs])
