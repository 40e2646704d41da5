"""status.json: how a run ended, in one place that survives launchers, which turn every exit code into 1."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # Windows: two runs in one folder are then not noticed
    fcntl = None  # type: ignore[assignment]

FILE_NAME = "status.json"

_locks: dict[Path, int] = {}


def lock(folder: Path) -> bool:
    """Keeps an existing folder for this process until `finish` or the process's end, however it ends.

    Returns:
        False if another process has it. A file system without locks never says so.
    """
    if fcntl is None or folder.resolve() in _locks:
        return True
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return False
    except OSError:
        os.close(descriptor)
        return True
    _locks[folder.resolve()] = descriptor
    return True


def unlock(folder: Path) -> None:
    """Gives a folder back that `lock` took."""
    held = _locks.pop(folder.resolve(), None)
    if held is not None:
        os.close(held)


def try_writing(folder: Path) -> None:
    """Raises OSError where nothing can be written in a folder, before hours are spent on what belongs there."""
    with tempfile.TemporaryFile(dir=folder):
        pass


def claim(output_dir: Path) -> None:
    """Marks the folder as this process's run: code null, reason "running"."""
    output_dir.mkdir(parents=True, exist_ok=True)
    write_json(output_dir / FILE_NAME, {"code": None, "reason": "running", "pid": os.getpid()})


def finish(output_dir: str | None, code: int, reason: str) -> None:
    """Records how the run ended. A run that was refused its folder leaves the record of the earlier run alone."""
    if output_dir is None or int(os.environ.get("RANK", "0")) != 0:
        return
    folder = Path(output_dir)
    unlock(folder)
    if code == 0 or is_free(folder) or _claimed_here(folder):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / FILE_NAME, {"code": code, "reason": reason})
        except OSError:
            return  # a full or read-only disk has already been reported as the reason of the exit


def is_free(folder: Path) -> bool:
    """Whether the folder is absent or holds nothing but the record of a run that produced nothing."""
    return not folder.exists() or all(entry.name == FILE_NAME for entry in folder.iterdir())


def write_json(path: Path, content: Any) -> None:
    """Writes JSON so that a reader sees the old file or the new one, never a part."""
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Writes a file so that a reader sees the old one or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8", newline="\n")
    os.replace(temporary, path)


def _claimed_here(folder: Path) -> bool:
    try:
        return bool(json.loads((folder / FILE_NAME).read_text(encoding="utf-8")).get("pid") == os.getpid())
    except (OSError, ValueError):
        return False
