"""Claims: small files that give a piece of work to one process, also across machines that share a folder.

The locks of `utils/files.py` (`flock`) are held by the kernel of one machine. On NFS they are often not passed on to
the server, so two machines can hold the same lock at the same time. A claim is a file that is created with `O_EXCL`:
the file system lets exactly one process create it, on NFS too.

The file contains the host, the process and the time, so that a claim can be judged later:

- The claim of a process of this host that has ended is stale, and the next process takes it over.
- The claim of another host is never taken over, because its process cannot be checked from here. Messages name the
  file, so that the user can delete it.

A claim is deleted when the work ends. A killed process leaves its claim behind.
"""

import json
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypedDict

from bert_repro.errors import UserError
from bert_repro.utils.files import disk_errors, waiting_lock

logger = logging.getLogger("bert_repro")

# Two readings of a process's start time can differ by rounding.
START_TIME_TOLERANCE = 2.0  # seconds

# The inode of the process namespace outside of containers; a constant of the Linux kernel.
_HOST_NAMESPACE = 4026531836


@dataclass(frozen=True)
class ClaimOwner:
    """The process that holds a claim.

    Args:
        host: name of its machine, with the number of its process namespace if it runs in a container.
        pid: its process id.
        started: when the process started, in seconds since 1970. It tells a process from a later one with its id.
        since: when it took the claim, as text in UTC.
    """

    host: str
    pid: int
    started: float
    since: str

    def is_this_process(self) -> bool:
        """Returns whether the claim belongs to the process that asks."""
        return (self.host, self.pid) == (_host(), os.getpid()) and self._has_this_start(os.getpid())

    def has_ended(self) -> bool:
        """Returns whether the owner is known to have ended. Processes of other hosts are never known to have."""
        import psutil

        if self.host != _host():
            return False
        return not psutil.pid_exists(self.pid) or not self._has_this_start(self.pid)

    def _has_this_start(self, pid: int) -> bool:
        return abs(_start_time(pid) - self.started) <= START_TIME_TOLERANCE


class _ClaimContent(TypedDict):
    """The JSON object in a claim file."""

    host: str
    pid: int
    started: float
    since: str


def take_claim(path: Path) -> bool:
    """Takes a claim for this process, or finds that this process already holds it.

        if take_claim(folder / "claim.json"):
            try:
                ...
            finally:
                release_claim(folder / "claim.json")

    Args:
        path: the claim file. Its folder is created if necessary.

    Returns:
        False if another process holds the claim; `describe_claim` says which one.

    Raises:
        UserError: the file cannot be written, or the file system does not support exclusive creation.
    """
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if _create(path):
            _check_exclusive_creation(path)
            return True

        owner = claim_owner(path)
        if owner is not None and owner.is_this_process():
            return True
        if owner is None or not owner.has_ended():
            return False

        # Two processes of this host may find the same stale claim. The second one must not delete the new claim of
        # the first. A lock of this host is enough, because claims of other hosts are never taken over.
        try:
            with waiting_lock(path):
                if claim_owner(path) != owner:
                    return False
                logger.warning("Taking over %s: process %d, which held it, has ended.", path, owner.pid)
                path.unlink()
                return _create(path)
        except FileNotFoundError:
            # The other process has deleted the stale claim between the two readings.
            return False


def release_claim(path: Path) -> None:
    """Deletes a claim of this process. A claim of another process stays."""
    if holds_claim(path):
        path.unlink(missing_ok=True)


def holds_claim(path: Path) -> bool:
    """Returns whether this process holds a claim. It no longer does if a user deleted the file."""
    owner = claim_owner(path)
    return owner is not None and owner.is_this_process()


def claim_owner(path: Path) -> ClaimOwner | None:
    """Returns the process that holds a claim, or None if there is no claim or its file cannot be read.

    A file may be unreadable for a moment after another process created it.
    """
    try:
        content: _ClaimContent = json.loads(path.read_text(encoding="utf-8"))
        return ClaimOwner(str(content["host"]), int(content["pid"]), float(content["started"]), str(content["since"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def describe_claim(path: Path) -> str:
    """Returns for messages which process holds a claim, and how to remove a claim that is no longer true."""
    owner = claim_owner(path)
    if owner is None:
        return f"The claim {path} has no readable owner. If no process works on it any more, delete this file."
    return (
        f"Process {owner.pid} on {owner.host} has held {path} since {owner.since}. "
        "If that process has ended, delete this file."
    )


@contextmanager
def exclusive_claim(path: Path, work: str, *, setting: str | None = None) -> Iterator[None]:
    """Holds a claim for a block and deletes it afterwards.

    Args:
        path: the claim file.
        work: what the claim protects, as the subject of the message, for example "runs/corpus".
        setting: the setting that names it.

    Raises:
        UserError: another process holds the claim.
    """
    if not take_claim(path):
        raise UserError(f"{work} is in use by another process. {describe_claim(path)}", setting=setting)
    try:
        yield
    finally:
        release_claim(path)


def _create(path: Path) -> bool:
    """Creates a claim file for this process; returns False if the file already exists."""
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    owner = ClaimOwner(host=_host(), pid=os.getpid(), started=_start_time(os.getpid()), since=now)
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    except FileExistsError:
        return False
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(asdict(owner), file)
        file.write("\n")
        # On NFS other machines see the content once the file is on the server.
        file.flush()
        os.fsync(file.fileno())
    return True


def _check_exclusive_creation(path: Path) -> None:
    """Tests on a claim that was just created that nobody can create it again.

    Raises:
        UserError: the file system ignores `O_EXCL`, so claims are worthless there.
    """
    if _create(path):
        path.unlink(missing_ok=True)
        raise UserError(
            f"The file system of {path.parent} lets two processes create the same file, so it cannot be shared. "
            "Use a folder on another file system."
        )


def _host() -> str:
    """Returns the name of this machine. Containers can share a name but not process ids, so theirs is extended."""
    name = socket.gethostname()
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return name
    return name if namespace == _HOST_NAMESPACE else f"{name}/{namespace}"


def _start_time(pid: int) -> float:
    """Returns when a process started, in seconds since 1970; 0 if it has ended or may not be inspected."""
    import psutil

    try:
        return float(psutil.Process(pid).create_time())
    except psutil.Error:
        return 0.0
