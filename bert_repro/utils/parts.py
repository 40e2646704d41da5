"""Makes the independent parts of a large piece of work, in this process, in several processes, or on a Ray cluster.

A part is a small description of work, such as "documents 1,000 to 2,000 of this file". Making it writes files. Making
it again writes the same files, so a part can be repeated after a worker was killed, and a run that is started again
skips the parts that are done.

    make_parts(parts, make, is_done=is_done, engine=Engine(num_proc=8), weights=sizes, label="preparing")

`make` and the parts travel to other processes and other machines. Both must be picklable, and paths in them absolute.
"""

import logging
import multiprocessing
import os
import socket
import threading
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Generic, Literal, TypeVar

from bert_repro.errors import ProcessKilledError, UserError, flag
from bert_repro.utils.process import leave_signals_to_parent

logger = logging.getLogger("bert_repro")

MAX_ATTEMPTS = 3
"""How often a part is tried if its worker is killed. An exception in `make` is never repeated."""
TASKS_PER_CPU = 2
"""Ray tasks that are submitted ahead for each CPU of the cluster."""
CONNECTION_TIMEOUT = 5.0  # seconds

Part = TypeVar("Part")


@dataclass(frozen=True)
class Engine:
    """Where parts are made.

    Args:
        kind: `local` for processes of this machine, `ray` for tasks on a Ray cluster.
        num_proc: processes of the local engine. One makes all parts in this process.
        ray_address: `host:port` of a running cluster; None starts Ray on this machine only.
    """

    kind: Literal["local", "ray"] = "local"
    num_proc: int = 1
    ray_address: str | None = None


def make_parts(
    parts: Sequence[Part],
    make: Callable[[Part], None],
    *,
    is_done: Callable[[Part], bool],
    engine: Engine,
    weights: Sequence[int],
    label: str,
) -> None:
    """Makes all parts that are not done yet.

    Args:
        parts: what to make; their order is the order in which they are started.
        make: makes one part. It must have written everything when it returns.
        is_done: returns whether a part needs no work any more; called in this process.
        engine: where the parts are made.
        weights: size of each part, for the progress bar, in any unit.
        label: what the progress bar and messages call the work.

    Raises:
        ProcessKilledError: the worker of a part was killed `MAX_ATTEMPTS` times.
        UserError: from `make`, or Ray is missing or cannot be reached.
    """
    from tqdm.auto import tqdm

    pending = [number for number, part in enumerate(parts) if not is_done(part)]
    if len(pending) < len(parts):
        logger.info("%s: %d of %d parts are already done.", label, len(parts) - len(pending), len(parts))
    weight_done = sum(weights) - sum(weights[number] for number in pending)
    with tqdm(total=sum(weights), initial=weight_done, unit_scale=True, desc=label, disable=None) as bar:
        if engine.kind == "ray":
            finished = _on_ray(parts, pending, make, engine, label)
        elif engine.num_proc == 1 or len(pending) <= 1:
            finished = _in_this_process(parts, pending, make)
        else:
            finished = _Pool(parts, pending, make, engine.num_proc, label).run()
        for number in finished:
            bar.update(weights[number])


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
    pending: list[int]
    make: Callable[[Part], None]
    num_proc: int
    label: str
    _queue: deque[int] = field(default_factory=deque)
    _workers: list[_Worker] = field(default_factory=list)
    _attempts: Counter[int] = field(default_factory=Counter)

    def run(self) -> Iterator[int]:
        """Yields the number of each finished part, in the order in which they finish."""
        self._queue.extend(self.pending)
        try:
            for _ in range(min(self.num_proc, len(self._queue))):
                self._start_worker()
            while self._workers:
                for worker in self._ready_workers():
                    number = self._answer(worker)
                    if number is not None:
                        yield number
        finally:
            for worker in self._workers:
                worker.process.terminate()
                worker.process.join()

    def _start_worker(self) -> None:
        # Workers start as a fresh interpreter. A fork would copy locks that threads of other libraries hold.
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, self.make), daemon=True)
        process.start()
        # The worker has its own copy. If ours stayed open, its death would not close the connection.
        theirs.close()
        worker = _Worker(process, ours, self._queue.popleft())
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
        if self._queue:
            worker.number = self._queue.popleft()
            self._send_part(worker)
        else:
            self._workers.remove(worker)
            worker.connection.close()
            worker.process.join()
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
        self._queue.appendleft(worker.number)
        remaining = max(1, len(self._workers))
        logger.warning(
            "%s: a worker process was %s. Its part is made again; processes from here on: %d.",
            self.label,
            reason,
            remaining,
        )
        if not self._workers:
            self._start_worker()


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


# --- Ray --------------------------------------------------------------------------------------------------------------


def _on_ray(
    parts: Sequence[Part], pending: list[int], make: Callable[[Part], None], engine: Engine, label: str
) -> Iterator[int]:
    """Makes parts as tasks of a Ray cluster and yields the number of each finished one."""
    with _ray_cluster(engine.ray_address) as ray:
        # Ray repeats a task whose worker or machine died. Exceptions of `make` are not repeated.
        remote_make = ray.remote(max_retries=MAX_ATTEMPTS - 1, num_cpus=1)(_make_one)
        shared_make = ray.put(make)  # sent once to each machine
        limit = max(1, int(TASKS_PER_CPU * ray.cluster_resources().get("CPU", 1)))
        queue = deque(pending)
        running: dict[Any, int] = {}
        while queue or running:
            while queue and len(running) < limit:
                number = queue.popleft()
                running[remote_make.remote(shared_make, parts[number])] = number
            finished, _ = ray.wait(list(running), num_returns=1)
            for task in finished:
                try:
                    ray.get(task)
                except ray.exceptions.RayTaskError as error:
                    cause = error.cause
                    if isinstance(cause, UserError):
                        raise cause from None
                    raise
                except ray.exceptions.RayError as error:
                    raise ProcessKilledError(
                        f"{label}: a Ray worker was killed {MAX_ATTEMPTS} times ({type(error).__name__}). "
                        "Started again, the work continues with the unfinished parts."
                    ) from error
                yield running.pop(task)


def _make_one(make: Callable[[Part], None], part: Part) -> None:
    make(part)


@contextmanager
def _ray_cluster(address: str | None) -> Iterator[Any]:
    """Connects to a Ray cluster, or starts Ray on this machine, for a block; yields the module `ray`.

    Raises:
        UserError: Ray is not installed, or no cluster answers at the address.
    """
    try:
        import ray
    except ImportError:
        raise UserError(
            f"{flag('engine', 'ray')} requires the package ray. Run: pip install ray", setting="engine"
        ) from None
    if ray.is_initialized():
        yield ray
        return

    if address is not None:
        _check_address(address)
    # Without an address Ray would join whatever cluster a file in /tmp names, which may be a stale one.
    if address is None:
        ray.init(address="local", log_to_driver=False, include_dashboard=False)
    else:
        ray.init(address=address, log_to_driver=False)
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_address(address: str) -> None:
    """Refuses an address at which nothing answers. Ray itself would try for minutes without a message."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise UserError(
            f"{flag('ray_address', address)} is not an address. Pass host:port, as `ray start --head` printed it.",
            setting="ray_address",
        )
    try:
        socket.create_connection((host, int(port)), timeout=CONNECTION_TIMEOUT).close()
    except OSError as error:
        raise UserError(
            f"No Ray cluster answers at {flag('ray_address', address)} ({error}). Start one with "
            "`ray start --head`, or correct the address.",
            setting="ray_address",
        ) from error
