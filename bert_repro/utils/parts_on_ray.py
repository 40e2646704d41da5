"""Makes parts as tasks of a Ray cluster; see `utils/parts.py`.

Ray repeats a task whose worker or machine died, and takes the next part to any machine that is free. Parts write the
same files whenever they are made, so this is all that is needed. All machines must see the folders in the parts.
"""

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from bert_repro.errors import ProcessKilledError, UserError, flag
from bert_repro.utils.parts import MAX_ATTEMPTS
from bert_repro.utils.readers import first_line

if TYPE_CHECKING:
    from bert_repro.utils.parts import Engine, PartQueue

TASKS_PER_SLOT = 2
"""Tasks that are submitted ahead for each CPU, or GPU, of the cluster."""
CONNECTION_TIMEOUT = 5.0  # seconds
_POLL_SECONDS = 1.0
_GRPC_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
"""The first bytes of every HTTP/2 connection, with empty settings. A Ray head answers them, other servers do not."""
_SETTINGS_FRAME = 4

Part = TypeVar("Part")


def make_on_ray(
    parts: Sequence[Part], queue: "PartQueue", make: Callable[[Part], None], engine: "Engine", label: str
) -> Iterator[int]:
    """Makes parts on a cluster and yields the number of each finished one; arguments as in `make_parts`."""
    with ray_cluster(engine.ray_address) as ray:
        num_slots, resources = _slots(ray, prefers_gpu=engine.prefers_gpu)
        # Exceptions of `make` are not repeated.
        remote_make = ray.remote(max_retries=MAX_ATTEMPTS - 1, **resources)(_make_one)
        shared_make = ray.put(make)  # sent once to each machine
        running: dict[Any, int] = {}
        try:
            while queue or running:
                # A few tasks wait in the cluster, so that no machine is idle; not all, because each needs memory here.
                while len(running) < TASKS_PER_SLOT * num_slots:
                    number = queue.take()
                    if number is None:
                        break
                    running[remote_make.remote(shared_make, parts[number])] = number
                # Return now and then, so that a signal is noticed.
                finished, _ = ray.wait(list(running), num_returns=1, timeout=_POLL_SECONDS)
                for task in finished:
                    _raise_failure(ray, task, label)
                    number = running.pop(task)
                    queue.finish(number)
                    yield number
        finally:
            # The cluster may outlive this process, and its workers must not go on with work that was stopped.
            for task in running:
                ray.cancel(task, force=True)


def _make_one(make: Callable[[Part], None], part: Part) -> None:
    # Each task has one core; the tokenizers library would start a thread for every core.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    make(part)


def _slots(ray: Any, *, prefers_gpu: bool) -> tuple[int, dict[str, int]]:
    """Returns how many parts can be made at once, and what each of them requires."""
    resources = ray.cluster_resources()
    if prefers_gpu and resources.get("GPU"):
        return int(resources["GPU"]), {"num_cpus": 1, "num_gpus": 1}
    return max(1, int(resources.get("CPU", 1))), {"num_cpus": 1}


def _raise_failure(ray: Any, task: Any, label: str) -> None:
    """Raises the exception of a finished task, if it has one."""
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


# --- The connection ---------------------------------------------------------------------------------------------------


@contextmanager
def ray_cluster(address: str | None) -> Iterator[Any]:
    """Connects to a Ray cluster, or starts Ray on this machine, for a block; yields the module `ray`.

    A connection that exists already is used and stays open.

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

    if address is None:
        # Without an address Ray would join whatever cluster a file in /tmp names, which may be a stale one.
        ray.init(address="local", log_to_driver=False, include_dashboard=False)
    else:
        _connect(ray, address)
    try:
        yield ray
    finally:
        ray.shutdown()


def _connect(ray: Any, address: str) -> None:
    _check_address(address)
    try:
        ray.init(address=address, log_to_driver=False)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        # For example another version of Ray or of Python runs there.
        raise UserError(
            f"The Ray cluster at {flag('ray_address', address)} cannot be used: {first_line(error)}",
            setting="ray_address",
        ) from error


def _check_address(address: str) -> None:
    """Refuses an address at which no Ray head answers. Ray itself would try for minutes without a message."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise UserError(
            f"{flag('ray_address', address)} is not an address. Pass host:port, as `ray start --head` printed it.",
            setting="ray_address",
        )
    try:
        with socket.create_connection((host, int(port)), timeout=CONNECTION_TIMEOUT) as connection:
            connection.sendall(_GRPC_PREFACE)
            answer = connection.recv(9)
    except (OSError, OverflowError) as error:
        raise _no_cluster(address, str(error)) from error
    # The frame's type is its fourth byte, after three of its length.
    if len(answer) < 4 or answer[3] != _SETTINGS_FRAME:
        raise _no_cluster(address, "another program listens there")


def _no_cluster(address: str, reason: str) -> UserError:
    return UserError(
        f"No Ray cluster answers at {flag('ray_address', address)} ({reason}). Start one with `ray start --head`, or "
        "correct the address.",
        setting="ray_address",
    )
