"""Files and folders of a run: their names, the one way to write them, locks and checksums.

**Writing.** A file is written under a temporary name next to its place, flushed to disk and then renamed. A reader sees
the old file or the new one, never a part of it, whatever interrupts the writing. An error removes the temporary file at
once. What a killed process left behind is removed by the next process that writes the same file. A full or read-only
disk ends in one `UserError` that names the file, whichever library noticed it.

**Paths that are not plain files.** One rule for everything that is written:

- A symbolic link is followed: the file or folder that it points to is replaced, the link stays.
- A device, a pipe or a standard stream (`/dev/null`, `/dev/stdout`) receives the bytes and is never replaced.
- A mount point cannot be renamed. New content is written inside it and takes the place of the old content there.

**Locks** are the kernel's own (`flock`) on the folder itself. They leave no file in what is later published and end
with their process, even if it is killed. Across machines they are not reliable; `utils/claims.py` is for that.
"""

import errno
import glob
import hashlib
import json
import os
import re
import shutil
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from bert_repro.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# --- Names ------------------------------------------------------------------------------------------------------------

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
STEP = "step-"
"""Prefix of a checkpoint folder's name; the number of its step follows."""
MANIFEST = "manifest.json"
"""In a checkpoint or prepared corpus: SHA-256 of the other files."""
TRAINER_STATE = "trainer_state"
"""Folder in a checkpoint: what resuming needs in addition to the weights."""
SAMPLE_INDEX = "sample_index"
"""Folder of the examples that pre-training draws; removed when the run succeeds."""
BEST = "best"
"""Folder of the weights with the best dev score so far; removed when training ends."""
ADAPTER = "adapter"
"""Folder of an adapter alone; the weights next to it contain it, merged."""
SWEEP = "sweep"
"""Folder of a sweep's runs."""
SWEEP_STATE = "sweep.json"
"""In that folder: settings and results of the sweep so far."""
CONVERSION = "conversion.json"
"""Report of a conversion: what was read, decided and compared."""

UNFINISHED = (".writing-", ".removing-")
"""Prefixes of the names of files and folders that are being written or removed."""
_WRITING, _REMOVING = UNFINISHED

# The mode bits that this process removes from new files. They can only be read by setting them.
_MASK = os.umask(0)
os.umask(_MASK)

_DISK_ERRORS = frozenset({
    errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG, errno.EIO, errno.ENAMETOOLONG,
    errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP, errno.EBUSY, errno.EXDEV,
})  # fmt: skip

# `rename` fails with these for a mount point (EBUSY) and between file systems or overlay layers (EXDEV).
_CANNOT_RENAME = frozenset({errno.EBUSY, errno.EXDEV})

_LOADED_SUFFIXES = (".json", ".safetensors", ".bin", ".pt", ".model", ".jinja", ".py")
"""Endings of the files that transformers, tokenizers and peft look for in a folder."""

_STANDARD_STREAMS = ("/dev/stdout", "/dev/stderr")
_STREAM_FOLDERS = ("/dev/fd", "/proc/self/fd")


# --- Writing ----------------------------------------------------------------------------------------------------------


def write_text(path: Path, text: str) -> None:
    """Writes a text file in UTF-8.

    Raises:
        UserError: the disk is full or not writable.
    """
    with atomic_file(path) as file:
        file.write(text)


def write_json(path: Path, content: object, *, ensure_ascii: bool = True) -> None:
    """Writes strict JSON. NaN and Infinity are refused, because they are not JSON and many readers reject them.

    Raises:
        UserError: the disk is full or not writable.
        ValueError: a number is not finite.
    """
    write_text(path, json.dumps(content, indent=2, ensure_ascii=ensure_ascii, allow_nan=False) + "\n")


@contextmanager
def atomic_file(path: Path, *, binary: bool = False) -> Iterator[IO[Any]]:
    """Opens a file for writing. It appears under its name when the block ends without an error.

    Args:
        path: the file.
        binary: yield a file of bytes. The default is UTF-8 text with `\\n` as line end.

    Raises:
        UserError: the disk is full or not writable.
    """
    with atomic_path(path) as temporary, _open_for_writing(temporary, binary) as file:
        yield file


def _open_for_writing(path: Path, binary: bool) -> IO[Any]:
    if binary:
        return path.open("wb")
    return path.open("w", encoding="utf-8", newline="\n")


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yields a temporary path for a library to write a file to. It becomes `path` if the block ends without an error.

    Args:
        path: the file. Its folder is created if necessary. The temporary path has the same suffix.

    Raises:
        UserError: the disk is full or not writable.
    """
    with disk_errors(path):
        if is_stream(path):
            with _path_for_stream(path) as temporary:
                yield temporary
            return

        path = followed(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = _temporary(path)
        try:
            yield temporary
            _set_usual_mode(temporary)
            flush(temporary)
            _replace_file(temporary, path)
            flush(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yields an empty temporary folder. It replaces `path` if the block ends without an error.

    Args:
        path: the folder. Its parents are created if necessary.

    Raises:
        UserError: the disk is full or not writable.
    """
    with disk_errors(path):
        path = followed(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        # The temporary folder must be on the file system of its target, or it could not be renamed.
        temporary = _temporary(path / path.name if os.path.ismount(path) else path)
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
    """Yields an empty temporary folder. Its files move into `folder` if the block ends without an error.

    Files with other names stay in `folder`. No file is replaced before all are written.

    Args:
        folder: the folder; created if necessary.
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
            if before_moving is not None:
                before_moving()
            for name in _file_names(temporary, last):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                _replace_file(temporary / name, folder / name)
            flush(folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _file_names(folder: Path, last: Sequence[str]) -> list[Path]:
    """Returns the relative paths of all files in a folder, sorted, and those in `last` at the end."""
    names = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    return sorted(names, key=lambda name: (str(name) in last, name))


def create_array(path: Path, dtype: "npt.DTypeLike", *shape: int) -> "np.memmap[Any, Any]":
    """Creates a .npy file of zeros and maps it for writing. Its disk space is allocated at once.

    Without the allocation a full disk would end the process with a signal (SIGBUS) when the map is written.

    Raises:
        OSError: the disk is full or not writable.
    """
    import numpy as np

    array: np.memmap[Any, Any] = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, max(1, path.stat().st_size))
    return array


# --- Paths that are not plain files -----------------------------------------------------------------------------------


def is_stream(path: Path) -> bool:
    """Returns whether bytes written to a path are passed on: a device, a pipe, a socket or a standard stream.

    A standard stream stays one if the shell redirects it to a file, because others write to that file too.
    """
    if str(path) in _STANDARD_STREAMS or str(path.parent) in _STREAM_FOLDERS:
        return True
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def followed(path: Path) -> Path:
    """Returns the path that a symbolic link leads to, which may not exist yet; other paths are returned unchanged."""
    return path.resolve() if path.is_symlink() else path


def scratch_path(target: Path, ending: str) -> Path:
    """Returns the path for unfinished work on a file or folder, on the same file system as its target.

    Args:
        target: the file or folder that the work will become.
        ending: what the path is for; part of its name.

    Returns:
        `target.ending` next to the target. If the target is a mount point, a hidden path inside it.
    """
    target = followed(target)
    if os.path.ismount(target):
        return target / f"{_WRITING}{ending}"
    return target.with_name(f"{target.name}.{ending}")


@contextmanager
def _path_for_stream(path: Path) -> Iterator[Path]:
    """Yields a temporary file and passes its bytes on to a device, a pipe or a standard stream."""
    with tempfile.TemporaryDirectory(prefix="bert_repro-") as folder:
        temporary = Path(folder) / (path.name or "stream")
        yield temporary
        # Append mode: opening a standard stream that is redirected to a file must not empty that file.
        with temporary.open("rb") as source, path.open("ab", buffering=0) as stream:
            shutil.copyfileobj(source, stream)


def _replace_file(source: Path, target: Path) -> None:
    """Renames a file. A file that is itself a mount point is filled with the new content instead."""
    try:
        os.replace(source, target)
    except OSError as error:
        if error.errno not in _CANNOT_RENAME:
            raise
        shutil.copyfile(source, target)
        flush(target)
        source.unlink()


def replace_folder(source: Path, target: Path, *, last: Sequence[str] = ()) -> None:
    """Renames a folder. An earlier folder with the target's name is moved aside first and removed last.

    Args:
        source: the new folder.
        target: its final name. If it is a mount point, its content is replaced, which is not atomic.
        last: names of the files that mark a complete folder. Then the old ones are removed first and the new ones
            are moved last, so that a folder with them is always complete.
    """
    target = followed(target)
    try:
        if target.exists():
            remove_folder(target, before_removal=lambda: os.replace(source, target))
        else:
            os.replace(source, target)
    except OSError as error:
        if error.errno not in _CANNOT_RENAME:
            raise
        _replace_content(source, target, last)
    flush(target.parent)


def _replace_content(source: Path, target: Path, last: Sequence[str]) -> None:
    """Empties a folder that cannot be renamed and moves the content of another one into it."""
    # The new content and the claim of this process may be in the folder, as unfinished files.
    old_entries = [path for path in target.iterdir() if not path.name.startswith(UNFINISHED)]
    for path in sorted(old_entries, key=lambda path: path.name not in last):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()

    new_entries = sorted(source.iterdir(), key=lambda path: (path.name in last, path.name))
    for path in new_entries:
        shutil.move(path, target / path.name)
    source.rmdir()
    flush(target)


def remove_folder(path: Path, *, before_removal: Callable[[], object] | None = None) -> None:
    """Removes a folder that others may be reading.

    It is renamed first, so that its name never leads to a folder that is partly deleted.

    Args:
        path: the folder.
        before_removal: called between the renaming and the removal. If it fails, the folder gets its name back.
    """
    aside = path.with_name(f"{_REMOVING}{path.name}")
    shutil.rmtree(aside, ignore_errors=True)
    os.replace(path, aside)
    if before_removal is not None:
        try:
            before_removal()
        except OSError:
            os.replace(aside, path)
            raise
    shutil.rmtree(aside, ignore_errors=True)


# --- Disk -------------------------------------------------------------------------------------------------------------


def _flush_all(folder: Path) -> None:
    for path in folder.rglob("*"):
        _set_usual_mode(path)
        flush(path)
    flush(folder)


def _set_usual_mode(path: Path) -> None:
    """Gives a file the mode that open() gives to new files; safetensors and temporary files have a stricter one."""
    if path.is_file() and os.name == "posix":
        path.chmod(0o666 & ~_MASK)


def flush(path: Path) -> None:
    """Waits until the content of a file, or the list of a folder's entries, is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot flush folders.
        if error.errno != errno.EINVAL or not path.is_dir():
            raise
    finally:
        os.close(descriptor)


@contextmanager
def disk_errors(path: Path, what: str = "cannot be written") -> Iterator[None]:
    """Turns disk errors, raised by any library, into one `UserError` that names the file.

    Args:
        path: the file that is written; named if the error itself names none.
        what: what went wrong, as the predicate of the message.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        reason = _disk_reason(error)
        if reason is None:
            raise
        name = _file_of(error) or str(path)
        raise UserError(f"{name} {what} ({reason}). Free or unlock the disk, or choose another path.") from error


def _disk_reason(error: Exception) -> str | None:
    """Returns the system's words for a disk error, or None for any other error."""
    # Libraries written in Rust put the system's error into the text of their own.
    if "(os error " in str(error):
        return str(error)
    if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
        return error.strerror
    return None


def _file_of(error: Exception) -> str | None:
    """Returns the file that an error names, or None if it names none or a temporary one."""
    if not isinstance(error, OSError) or not isinstance(error.filename, str):
        return None
    if f"/{_WRITING}" in error.filename:
        return None
    # The second file of a renaming is its target.
    return error.filename2 if isinstance(error.filename2, str) else error.filename


def _temporary(path: Path) -> Path:
    """Returns a temporary name next to a file and removes what processes that have ended left under such names.

    The name contains the host and the process, so that no two processes use the same one. The file's own name comes
    last, because some libraries choose the format by the suffix.
    """
    import psutil

    host = re.sub(r"\W", "", socket.gethostname())[:20]
    for leftover in path.parent.glob(f"{_WRITING}*-{glob.escape(path.name)}"):
        owner = leftover.name.removeprefix(_WRITING).removesuffix(f"-{path.name}")
        owner_host, _, pid = owner.rpartition(".")
        if owner_host != host or not pid.isdigit():
            continue
        if int(pid) == os.getpid() or not psutil.pid_exists(int(pid)):
            _remove(leftover)
    return path.with_name(f"{_WRITING}{host}.{os.getpid()}-{path.name}")


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


# --- Locks ------------------------------------------------------------------------------------------------------------

try:
    import fcntl
except ImportError:  # On Windows two runs in one folder are not noticed.
    fcntl = None  # type: ignore[assignment]

_locks: dict[Path, int] = {}


def _forget_locks() -> None:
    """Closes the locks of the parent process in a forked child.

    A data loader process can outlive a killed run by seconds. The restarted run must find its folder unlocked.
    """
    while _locks:
        os.close(_locks.popitem()[1])


if fcntl is not None:
    os.register_at_fork(after_in_child=_forget_locks)


def lock(path: Path) -> bool:
    """Takes an exclusive lock on an existing file or folder, or finds that this process already has it.

    The lock ends with `unlock` or when the process exits, even if it is killed.

    Returns:
        False if another process has the lock. A file system without locks always returns True.
    """
    if fcntl is None or path.resolve() in _locks:
        return True
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        return not isinstance(error, BlockingIOError)
    _locks[path.resolve()] = descriptor
    return True


def unlock(path: Path) -> None:
    """Ends a lock that `lock` took."""
    descriptor = _locks.pop(path.resolve(), None)
    if descriptor is not None:
        os.close(descriptor)


@contextmanager
def waiting_lock(path: Path) -> Iterator[None]:
    """Locks an existing file or folder for a block, after waiting for the process that has the lock.

    On a file system without locks the block runs at once.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if fcntl is not None:
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


# --- Checksums --------------------------------------------------------------------------------------------------------


def file_digest(path: Path) -> str:
    """Reads a file and returns its SHA-256 in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def json_digest(content: object) -> str:
    """Returns the SHA-256 of a JSON value, independent of the order of its keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def step_of(folder: Path) -> int | None:
    """Returns the step of a checkpoint folder from its name, or None if it is not a checkpoint."""
    number = folder.name.removeprefix(STEP)
    if folder.name.startswith(STEP) and number.isdecimal():
        return int(number)
    return None


def write_manifest(folder: Path, environment: dict[str, Any]) -> None:
    """Writes the manifest of a checkpoint: the SHA-256 of each of its files and of the manifest itself.

    Args:
        folder: the checkpoint, complete except for the manifest.
        environment: versions, threads and processes of the run.
    """
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != MANIFEST:
            files[path.relative_to(folder).as_posix()] = {"sha256": file_digest(path)}
    manifest = {"environment": environment, "files": files}
    write_json(folder / MANIFEST, {**manifest, "sha256": json_digest(manifest)})


def find_damage(folder: Path) -> str | None:
    """Returns what is wrong with a checkpoint, or None if every file matches its manifest.

    A file that the manifest does not list is damage too if a loader might read it: an added `added_tokens.json`
    would change the tokenizer.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if manifest.pop("sha256") != json_digest(manifest):
            return f"{MANIFEST} does not match its own SHA-256"
        for name, entry in manifest["files"].items():
            if Path(name).is_absolute() or ".." in Path(name).parts:
                return f"{name} in {MANIFEST} is not a file of the checkpoint"
            path = folder / name
            if not path.is_file():
                return f"{name} is missing"
            if file_digest(path) != entry["sha256"]:
                return f"{name} does not match its SHA-256"
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder).as_posix()
            if name not in manifest["files"] and _is_read_by_loaders(path):
                return f"{name} is not listed in {MANIFEST}, so it was added later"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} is missing or damaged"
    return None


def _is_read_by_loaders(path: Path) -> bool:
    """Returns whether loading a model or a tokenizer might read a file with this name.

    Cards, plots, ONNX files and the hidden files of file managers may be added later. They change nothing.
    """
    if path.name == MANIFEST or path.name.startswith("."):
        return False
    return path.suffix in _LOADED_SUFFIXES or path.name == "vocab.txt"
