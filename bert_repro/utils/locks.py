"""Locks on folders: one process writes in a folder, and every other is told.

The lock is the system's own (`flock`) on the folder itself, so it leaves no file in what is later published and ends
with its process, however that ends. The `filelock` library keeps a file of its own in or beside the folder, which a
killed process leaves behind, and which every listing of a run's folder would have to know.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: two runs in one folder are then not noticed
    fcntl = None  # type: ignore[assignment]

_held: dict[Path, int] = {}


def lock(folder: Path, *, shared: bool = False) -> bool:
    """Keeps an existing folder or file for this process until `unlock` or the process's end, however it ends.

    Args:
        folder: the folder.
        shared: let others have it too, who take it so.

    Returns:
        False if another process has it. A file system without locks never says so.
    """
    if fcntl is None or folder.resolve() in _held:
        return True
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return False
    except OSError:
        os.close(descriptor)
        return True
    _held[folder.resolve()] = descriptor
    return True


def unlock(folder: Path) -> None:
    """Gives a folder back that `lock` took."""
    held = _held.pop(folder.resolve(), None)
    if held is not None:
        os.close(held)


@contextmanager
def waiting_lock(folder: Path) -> Iterator[None]:
    """Holds an existing folder for a block, after waiting for whoever else holds it; without locks it goes ahead."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if fcntl is not None:
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
