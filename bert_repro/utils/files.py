"""The one way to write a file: beside its place, flushed to disk, then renamed.

A reader sees the old file or the new one, never a part, whatever interrupts the writing. Nothing unfinished stays: an
error removes it at once, and what a killed process left is removed by the next one that writes the same file.
A disk that is full or read-only ends in one `UserError` that names the file, whichever library noticed it.
"""

import errno
import glob
import json
import os
import re
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from bert_repro.errors import UserError

_PREFIX = ".writing-"
_DISK_ERRORS = frozenset({
    errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG, errno.EIO, errno.ENAMETOOLONG,
    errno.ENOTDIR, errno.EISDIR,
})  # fmt: skip
_FOREIGN_ERROR = re.compile(r"\(os error (\d+)\)")
"""How safetensors and tokenizers, which are written in Rust, name an error of the system in their own exceptions."""


def write_text(path: Path, text: str) -> None:
    """Writes a text file in UTF-8.

    Raises:
        UserError: the disk is full or not writable.
    """
    with atomic_file(path) as file:
        file.write(text)


def write_json(path: Path, content: Any, *, indent: int | None = 2, ensure_ascii: bool = True) -> None:
    """Writes strict JSON; the bare words NaN and Infinity, which are none, are refused.

    Raises:
        UserError: the disk is full or not writable.
        ValueError: a number is not finite.
    """
    separators = (",", ":") if indent is None else None
    text = json.dumps(content, indent=indent, ensure_ascii=ensure_ascii, separators=separators, allow_nan=False)
    write_text(path, text + "\n")


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
    if path.exists() and not path.is_file() and not path.is_dir():
        with disk_errors(path), path.open(**options) as file:
            yield file
        return
    with atomic_path(path) as temporary, temporary.open(**options) as file:
        yield file


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yields a name for a library to write a file to; it becomes `path` when the block ends without an error.

    Args:
        path: the file. The name that is yielded lies beside it and has its suffix.

    Raises:
        UserError: the disk is full or not writable.
    """
    with disk_errors(path):
        temporary = _temporary(path)
        try:
            yield temporary
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
            for file in temporary.rglob("*"):
                flush(file)
            flush(temporary)
            replace_folder(temporary, path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def replace_folder(source: Path, target: Path) -> None:
    """Renames a folder; an earlier one of that name is moved aside first and removed last."""
    if target.exists():
        remove_folder(target, before_removal=lambda: os.replace(source, target))
    else:
        os.replace(source, target)
    flush(target.parent)


def remove_folder(path: Path, *, before_removal: Any = None) -> None:
    """Removes a folder that others may read: renamed first, so that its name never stands for a part of it."""
    aside = path.with_name(f".removing-{path.name}")
    shutil.rmtree(aside, ignore_errors=True)
    os.replace(path, aside)
    if before_removal is not None:
        before_removal()
    shutil.rmtree(aside, ignore_errors=True)


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
def disk_errors(path: Path) -> Iterator[None]:
    """Turns errors of the disk, of any library, into one `UserError` that names the file."""
    try:
        yield
    except Exception as error:
        reason = disk_error(error)
        if reason is None or isinstance(error, UserError):
            raise
        raise UserError(
            f"{path}: cannot be written ({reason}); free or unlock the disk, or name another place"
        ) from error


def disk_error(error: BaseException) -> str | None:
    """Returns what the system says of the disk, where that is what an exception is about; else None."""
    number = error.errno if isinstance(error, OSError) else None
    if number is None and (found := _FOREIGN_ERROR.search(str(error))):
        number = int(found[1])
    return os.strerror(number) if number in _DISK_ERRORS else None


def _temporary(path: Path) -> Path:
    """A name beside a file that no other process uses; names of processes that are gone are removed with their files.

    The process comes before the file's name, whose suffix some libraries read.
    """
    host = re.sub(r"\W", "", socket.gethostname())[:20]
    for left in path.parent.glob(f"{_PREFIX}*-{glob.escape(path.name)}"):
        owner = left.name.removeprefix(_PREFIX).removesuffix(f"-{path.name}")
        machine, _, process = owner.rpartition(".")
        if owner == f"{host}.{os.getpid()}" or (machine == host and process.isdigit() and not is_running(int(process))):
            shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink(missing_ok=True)
    return path.with_name(f"{_PREFIX}{host}.{os.getpid()}-{path.name}")


def is_running(process: int) -> bool:
    """Returns whether a process of this machine is running."""
    if os.name != "posix":  # elsewhere asking would end it
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
