"""Files and folders of a run: their names, the one way to write them, and locks.

A file is written next to its place, flushed to disk, then renamed. A reader sees the old file or the new one, never a
part, whatever interrupts the writing. Nothing unfinished stays: an error removes it at once, and what a killed process
left is removed by the next one that writes the same file. A disk that is full or read-only ends in one `UserError` that
names the file, whichever library noticed it.

A lock is the system's own (`flock`) on the folder itself, so it leaves no file in what is later published and ends with
its process, however that ends. The `filelock` library keeps a file of its own in or next to the folder, which a killed
process leaves behind, and which every listing of a run's folder would have to know.
"""

import errno
import glob
import hashlib
import json
import os
import re
import shutil
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from bert_repro.errors import UserError

if TYPE_CHECKING:
    import numpy as np

RESULTS = "results.json"
TRAIN_LOG = "train_log.jsonl"
STATUS = "status.json"
CARD = "README.md"
POOLING_MODULES = "modules.json"
POOLING_TEXT = "sentence_bert_config.json"
POOLING = "1_Pooling"
TRAINING_PLOT = "training.png"
SCORES_PLOT = "scores.png"
CHECKPOINTS = "checkpoints"
"""Folder of `step-N` folders."""
MANIFEST = "manifest.json"
"""In a checkpoint: SHA-256 of its files."""
TRAINER_STATE = "trainer_state"
"""Folder in a checkpoint: what resuming needs in addition to the weights."""
SAMPLE_INDEX = "sample_index"
"""Folder of the examples that pre-training draws; removed when the run succeeds."""
BEST = "best"
"""Folder of the weights that are best on dev so far; removed when training ends."""
ADAPTER = "adapter"
"""Folder of an adapter alone; the weights next to it hold it merged."""
SWEEP = "sweep"
"""Folder of a sweep's runs."""
SWEEP_STATE = "sweep.json"
"""In that folder: settings of the sweep and what it has found so far."""
CONVERSION = "conversion.json"
"""What a conversion read, decided and compared."""

UNFINISHED = (".writing-", ".removing-")
"""How the name of a file or folder begins that is being written or removed."""
_PREFIX = UNFINISHED[0]
_MASK = os.umask(0)
os.umask(_MASK)
_DISK_ERRORS = frozenset({
    errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG, errno.EIO, errno.ENAMETOOLONG,
    errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP,
})  # fmt: skip
STEP = "step-"
"""A checkpoint's folder is named by this and the number of its step."""


def write_text(path: Path, text: str) -> None:
    """Writes a text file in UTF-8.

    Raises:
        UserError: the disk is full or not writable.
    """
    with atomic_file(path) as file:
        file.write(text)


def write_json(path: Path, content: Any, *, ensure_ascii: bool = True) -> None:
    """Writes strict JSON; the bare words NaN and Infinity, which are none, are refused.

    Raises:
        UserError: the disk is full or not writable.
        ValueError: a number is not finite.
    """
    write_text(path, json.dumps(content, indent=2, ensure_ascii=ensure_ascii, allow_nan=False) + "\n")


@contextmanager
def atomic_file(path: Path, *, binary: bool = False) -> Iterator[IO[Any]]:
    """Opens a file for writing that takes its name when the block ends without an error.

    Args:
        path: the file. What is no ordinary file, such as /dev/stdout, is written directly.
        binary: yield a file of bytes; else of UTF-8 text with `\\n` line ends.

    Raises:
        UserError: the disk is full or not writable.
    """
    options: dict[str, Any] = {"mode": "wb"} if binary else {"mode": "w", "encoding": "utf-8", "newline": "\n"}
    with disk_errors(path):
        if path.exists() and not path.is_file() and not path.is_dir():
            with path.open(**options) as file:
                yield file
            return
    with atomic_path(path) as temporary, temporary.open(**options) as file:
        yield file


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yields a name for a library to write a file to; it becomes `path` when the block ends without an error.

    Args:
        path: the file; its folder is made if need be. The name that is yielded lies next to it and has its suffix.

    Raises:
        UserError: the disk is full or not writable.
    """
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = _temporary(path)
        try:
            yield temporary
            _set_usual_mode(temporary)
            flush(temporary)
            os.replace(temporary, path)
            flush(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yields an empty folder that becomes `path`, in the place of an earlier one, when the block ends without an error.

    Args:
        path: the folder. Its parents are made.

    Raises:
        UserError: the disk is full or not writable.
    """
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = _temporary(path)
        try:
            temporary.mkdir()
            yield temporary
            _flush_all(temporary)
            replace_folder(temporary, path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def atomic_files(
    folder: Path, *, before_moving: Callable[[], None] | None = None, last: Sequence[str] = ()
) -> Iterator[Path]:
    """Yields an empty folder whose files move into `folder`, each complete, when the block ends without an error.

    Files of other names stay. None is replaced before all are written.

    Args:
        folder: the folder; made if need be.
        before_moving: called when all files are on disk and before the first one moves.
        last: names of files that move after all others.

    Raises:
        UserError: the disk is full or not writable.
    """
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        temporary = _temporary(folder / "files")
        try:
            temporary.mkdir()
            yield temporary
            _flush_all(temporary)
            names = [path.relative_to(temporary) for path in temporary.rglob("*") if path.is_file()]
            if before_moving is not None:
                before_moving()
            for name in sorted(names, key=lambda name: (str(name) in last, name)):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                os.replace(temporary / name, folder / name)
            flush(folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def create_array(path: Path, dtype: Any, *shape: int) -> "np.memmap[Any, Any]":
    """Creates a .npy file of zeros and maps it for writing; its room on the disk is taken at once.

    Without that a full disk would end the process by a signal (SIGBUS) when the map is written.

    Raises:
        OSError: the disk is full or not writable.
    """
    import numpy as np

    array: np.memmap[Any, Any] = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, max(1, path.stat().st_size))
    return array


def replace_folder(source: Path, target: Path) -> None:
    """Renames a folder; an earlier one of that name is moved aside first and removed last."""
    if target.exists():
        remove_folder(target, before_removal=lambda: os.replace(source, target))
    else:
        os.replace(source, target)
    flush(target.parent)


def remove_folder(path: Path, *, before_removal: Any = None) -> None:
    """Removes a folder that others may read: renamed first, so that its name never leads to a part of it."""
    aside = path.with_name(f".removing-{path.name}")
    shutil.rmtree(aside, ignore_errors=True)
    os.replace(path, aside)
    if before_removal is not None:
        before_removal()
    shutil.rmtree(aside, ignore_errors=True)


def _flush_all(folder: Path) -> None:
    for path in folder.rglob("*"):
        _set_usual_mode(path)
        flush(path)
    flush(folder)


def _set_usual_mode(path: Path) -> None:
    """Gives a file the mode that open() gives a new one; safetensors and temporary files have a stricter one."""
    if path.is_file() and os.name == "posix":
        path.chmod(0o666 & ~_MASK)


def flush(path: Path) -> None:
    """Waits until a file, or the list of a folder's files, is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL or not path.is_dir():  # some network file systems know no flushing of folders
            raise
    finally:
        os.close(descriptor)


@contextmanager
def disk_errors(path: Path, what: str = "cannot be written") -> Iterator[None]:
    """Turns errors of the disk, of any library, into one `UserError` that names the file.

    Args:
        path: what is written, named where the error itself names no file.
        what: what the message says of it.
    """
    try:
        yield
    except Exception as error:
        reason = error.strerror if isinstance(error, OSError) and error.errno in _DISK_ERRORS else None
        if "(os error " in str(error):  # as libraries written in Rust name the system's errors
            reason = str(error)
        if reason is None or isinstance(error, UserError):
            raise
        if isinstance(error, OSError) and isinstance(error.filename, str) and f"/{_PREFIX}" not in error.filename:
            path = Path(error.filename2 if isinstance(error.filename2, str) else error.filename)
        raise UserError(f"{path}: {what} ({reason}); free or unlock the disk, or name another place") from error


def _temporary(path: Path) -> Path:
    """Returns a name next to a file that no other process uses; what ended processes left under theirs is removed.

    The process comes before the file's name, whose suffix some libraries read.
    """
    import psutil

    host = re.sub(r"\W", "", socket.gethostname())[:20]
    for left in path.parent.glob(f"{_PREFIX}*-{glob.escape(path.name)}"):
        owner = left.name.removeprefix(_PREFIX).removesuffix(f"-{path.name}")
        machine, _, process = owner.rpartition(".")
        ended = process.isdigit() and (int(process) == os.getpid() or not psutil.pid_exists(int(process)))
        if machine == host and ended:
            shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink(missing_ok=True)
    return path.with_name(f"{_PREFIX}{host}.{os.getpid()}-{path.name}")


try:
    import fcntl
except ImportError:  # Windows: two runs in one folder are then not noticed
    fcntl = None  # type: ignore[assignment]

_held: dict[Path, int] = {}


def _forget_locks() -> None:
    """Closes in a forked process what its parent holds: a loader process outlives a killed run by seconds, and the run
    that is started again must find the folder free."""
    while _held:
        os.close(_held.popitem()[1])


if fcntl is not None:
    os.register_at_fork(after_in_child=_forget_locks)


def lock(folder: Path) -> bool:
    """Keeps an existing folder or file for this process until `unlock` or the process's end, however it ends.

    Args:
        folder: the folder.

    Returns:
        False if another process has it. A file system without locks never says so.
    """
    if fcntl is None or folder.resolve() in _held:
        return True
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        return not isinstance(error, BlockingIOError)
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


def file_digest(path: Path) -> str:
    """Reads a file and returns its SHA-256 in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def json_digest(content: Any) -> str:
    """Returns the SHA-256 of a JSON value, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def step_of(folder: Path) -> int | None:
    """Returns the step of a checkpoint's folder; None: it is no checkpoint."""
    number = folder.name.removeprefix(STEP)
    return int(number) if folder.name.startswith(STEP) and number.isdecimal() else None


def write_manifest(folder: Path, environment: dict[str, Any]) -> None:
    """Writes the manifest of all files in a folder, with their SHA-256 and its own.

    Args:
        folder: the checkpoint, complete but for the manifest.
        environment: versions, threads and processes of the run.
    """
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)
    files = {path.relative_to(folder).as_posix(): {"sha256": file_digest(path)} for path in paths}
    manifest = {"environment": environment, "files": files}
    write_json(folder / MANIFEST, {**manifest, "sha256": json_digest(manifest)})


def find_damage(folder: Path) -> str | None:
    """Returns what is wrong with a checkpoint, or None when every file is as its manifest says."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if manifest.pop("sha256") != json_digest(manifest):
            return f"{MANIFEST} does not match its own SHA-256"
        for name, entry in manifest["files"].items():
            path = folder / name
            if not path.is_file():
                return f"{name} is missing"
            if file_digest(path) != entry["sha256"]:
                return f"{name} does not match its SHA-256"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} is missing or damaged"
    return None
