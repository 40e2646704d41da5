"""Makes the independent parts of a large piece of work, in this process, in several processes, or on a Ray cluster.

A part is a small description of work, such as "documents 1,000 to 2,000 of this file". Making it writes files. Making
it again writes the same files, so a part can be repeated after a worker was killed, and a run that is started again
skips the parts that are done.

    make_parts(parts, make, is_done=is_done, engine=Engine(num_proc=8), weights=sizes, label="preparing")

`make` and the parts travel to other processes and other machines. Both must be picklable, and paths in them absolute.
`utils/parts_on_ray.py` has the part of the work that is about Ray.
"""

import logging
import multiprocessing
import os
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Generic, Literal, TypeVar

from bert_repro.errors import ProcessKilledError, flag
from bert_repro.utils.process import leave_signals_to_parent

logger = logging.getLogger("bert_repro")

MAX_ATTEMPTS = 3
"""How often a part is tried if its worker is killed. An exception in `make` is never repeated."""
Part = TypeVar("Part")


@dataclass(frozen=True)
class Engine:
    """Where parts are made.

    Args:
        kind: `local` for processes of this machine, `ray` for tasks on a Ray cluster.
        num_proc: processes of the local engine. One makes all parts in this process.
        ray_address: `host:port` of a running cluster; None starts Ray on this machine only.
        prefers_gpu: whether each part gets a GPU of its own if the Ray cluster has any.
    """

    kind: Literal["local", "ray"] = "local"
    num_proc: int = 1
    ray_address: str | None = None
    prefers_gpu: bool = False

    @property
    def is_this_process(self) -> bool:
        """Whether the parts are made in this process, one after the other."""
        return self.kind == "local" and self.num_proc == 1

    def session(self) -> AbstractContextManager[object]:
        """Connects to Ray for a block, so that several calls of `make_parts` share one connection.

        Raises:
            UserError: Ray is not installed, or no cluster answers at the address.
        """
        if self.kind == "local":
            return nullcontext()
        from bert_repro.utils.parts_on_ray import ray_cluster

        return ray_cluster(self.ray_address)


def make_parts(
    parts: Sequence[Part],
    make: Callable[[Part], None],
    *,
    is_done: Callable[[Part], bool],
    engine: Engine,
    weights: Sequence[int],
    label: str,
    needs: Sequence[Sequence[int]] | None = None,
) -> None:
    """Makes all parts that are not done yet.

    Args:
        parts: what to make; their order is the order in which they are started.
        make: makes one part. It must have written everything when it returns.
        is_done: returns whether a part needs no work any more; called in this process.
        engine: where the parts are made.
        weights: size of each part, for the progress bar, in any unit.
        label: what the progress bar and messages call the work.
        needs: for each part the numbers of earlier parts that must be made before it; None if the parts are
            independent.

    Raises:
        ProcessKilledError: the worker of a part was killed `MAX_ATTEMPTS` times.
        UserError: from `make`, or Ray is missing or cannot be reached.
    """
    from tqdm.auto import tqdm

    pending = [number for number, part in enumerate(parts) if not is_done(part)]
    if len(pending) < len(parts):
        logger.info("%s: %d of %d parts are already done.", label, len(parts) - len(pending), len(parts))
    weight_done = sum(weights) - sum(weights[number] for number in pending)
    queue = PartQueue(pending, needs)
    with tqdm(total=sum(weights), initial=weight_done, unit_scale=True, desc=label, disable=None) as bar:
        if engine.kind == "ray" and pending:
            # Only a driver of Ray needs this module.
            from bert_repro.utils.parts_on_ray import make_on_ray

            finished = make_on_ray(parts, queue, make, engine, label)
        elif engine.is_this_process or len(pending) <= 1:
            finished = _in_this_process(parts, pending, make)
        else:
            finished = _Pool(parts, queue, make, engine.num_proc, label).run()
        for number in finished:
            bar.update(weights[number])


class PartQueue:
    """The parts that nobody has started, in order.

    Args:
        pending: numbers of the parts to make.
        needs: see `make_parts`.
    """

    def __init__(self, pending: Sequence[int], needs: Sequence[Sequence[int]] | None) -> None:
        self._waiting = list(pending)
        self._unfinished = set(pending)
        self._needs = needs

    def __bool__(self) -> bool:
        """Returns whether a part is left to start, now or later."""
        return bool(self._waiting)

    def take(self) -> int | None:
        """Returns the first part whose needs are made; None if there is no such part now."""
        for place, number in enumerate(self._waiting):
            needed = self._needs[number] if self._needs is not None else ()
            if self._unfinished.isdisjoint(needed):
                return self._waiting.pop(place)
        return None

    def put_back(self, number: int) -> None:
        """Returns a part whose worker died. It is the next one to be started."""
        self._waiting.insert(0, number)

    def finish(self, number: int) -> None:
        """Records that a part was made, so that others that need it can start."""
        self._unfinished.remove(number)


def _in_this_process(parts: Sequence[Part], pending: list[int], make: Callable[[Part], None]) -> Iterator[int]:
    """Makes the parts one after the other and yields the number of each finished one."""
    for number in pending:
        make(parts[number])
        yield number


# --- Processes of this machine ----------------------------------------------------------------------------------------


@dataclass
class _Worker:
    process: BaseProcess
    connection: Connection
    number: int
    """Number of the part that it is making."""


@dataclass
class _Failure:
    """An exception of a worker with its traceback there."""

    error: Exception
    traceback: str


@dataclass
class _Pool(Generic[Part]):
    """Processes that make one part after the other.

    Unlike `concurrent.futures`, it knows which part a killed worker was making, so only that part is repeated, and it
    can stop its workers at once.
    """

    parts: Sequence[Part]
    queue: PartQueue
    make: Callable[[Part], None]
    num_proc: int
    label: str
    _workers: list[_Worker] = field(default_factory=list)
    _attempts: Counter[int] = field(default_factory=Counter)
    _limit: int = 1

    def run(self) -> Iterator[int]:
        """Yields the number of each finished part, in the order in which they finish."""
        self._limit = self.num_proc
        try:
            self._start_workers()
            while self._workers:
                for worker in self._ready_workers():
                    number = self._answer(worker)
                    if number is not None:
                        yield number
        finally:
            for worker in self._workers:
                worker.process.terminate()
                worker.process.join()

    def _start_workers(self) -> None:
        """Starts a worker for each part that can be made now, up to the limit."""
        while len(self._workers) < self._limit:
            number = self.queue.take()
            if number is None:
                return
            self._start_worker(number)

    def _start_worker(self, number: int) -> None:
        # Workers start as a fresh interpreter. A fork would copy locks that threads of other libraries hold.
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, self.make), daemon=True)
        process.start()
        # The worker has its own copy. If ours stayed open, its death would not close the connection.
        theirs.close()
        worker = _Worker(process, ours, number)
        self._workers.append(worker)
        self._send_part(worker)

    def _send_part(self, worker: _Worker) -> None:
        try:
            worker.connection.send(self.parts[worker.number])
        except OSError:
            # The worker is dead. Waiting for it reports that.
            return

    def _ready_workers(self) -> list[_Worker]:
        """Waits until at least one worker has answered or died."""
        ready = wait([worker.connection for worker in self._workers])
        return [worker for worker in self._workers if worker.connection in ready]

    def _answer(self, worker: _Worker) -> int | None:
        """Handles the answer or the death of a worker; returns the number of the part that it finished."""
        try:
            failure: _Failure | None = worker.connection.recv()
        except (EOFError, OSError):
            self._replace_dead_worker(worker)
            return None
        if failure is not None:
            failure.error.add_note(f"In a worker process:\n{failure.traceback}")
            raise failure.error

        finished = worker.number
        self.queue.finish(finished)
        next_number = self.queue.take()
        if next_number is not None:
            worker.number = next_number
            self._send_part(worker)
        else:
            self._workers.remove(worker)
            worker.connection.close()
            worker.process.join()
        # The finished part may have been what several others needed.
        self._start_workers()
        return finished

    def _replace_dead_worker(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        worker.process.join()
        self._attempts[worker.number] += 1
        exit_code = worker.process.exitcode
        reason = f"killed by signal {-exit_code}" if exit_code and exit_code < 0 else f"ended with code {exit_code}"
        if self._attempts[worker.number] >= MAX_ATTEMPTS:
            raise ProcessKilledError(
                f"{self.label}: the worker process of part {worker.number} was {reason} {MAX_ATTEMPTS} times, most "
                f"often because memory ran out. Use fewer processes than {flag('num_proc', self.num_proc)}, or a "
                "machine with more memory. Started again, the work continues with the unfinished parts."
            )

        # The part is made first, before others. Memory is the usual reason, so the remaining workers go on without
        # a replacement, and only the last one is replaced.
        self.queue.put_back(worker.number)
        self._limit = max(1, len(self._workers))
        logger.warning(
            "%s: a worker process was %s. Its part is made again; processes from here on: %d.",
            self.label,
            reason,
            self._limit,
        )
        if not self._workers:
            self._start_workers()


def _work(connection: Connection, make: Callable[[Part], None]) -> None:
    """Makes parts in a worker process until the connection is closed."""
    leave_signals_to_parent()
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    # Each worker has one core; the tokenizers library would start a thread for every core.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    while True:
        try:
            part = connection.recv()
        except (EOFError, OSError):
            return
        try:
            make(part)
        except Exception as error:
            _send_failure(connection, error)
        else:
            connection.send(None)


def _send_failure(connection: Connection, error: Exception) -> None:
    text = traceback.format_exc()
    try:
        connection.send(_Failure(error, text))
    except Exception:
        # Some exceptions cannot be pickled.
        connection.send(_Failure(RuntimeError(f"{type(error).__name__}: {error}"), text))


def _exit_with_parent() -> None:
    """Ends a worker whose parent was killed. Otherwise it would finish its part and then wait."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
