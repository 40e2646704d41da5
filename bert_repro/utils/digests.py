"""SHA-256 of large files, remembered on this machine while a file does not change.

What is remembered is bound to size, inode, time of modification and time of change of a file; the last of these cannot
be set back, so a file written again, even with as many bytes, is read again.
"""

import hashlib
import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bert_repro.errors import UserError
from bert_repro.utils.files import write_json

_SETTLED_SECONDS = 2.0  # a younger file may be written again within the resolution of its times


def file_digest(path: Path) -> str:
    """Reads a file and returns its SHA-256 in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def json_digest(content: Any) -> str:
    """Returns the SHA-256 of a JSON value, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def known_digests(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Returns the SHA-256 of files, and reads only those that have changed since this machine last read them.

    Args:
        folder: where the files are.
        names: their paths in it.
    """
    memory = _memory_of(folder)
    known = _read_memory(memory)
    digests: dict[str, str] = {}
    remembered: dict[str, list[Any]] = {}
    for name in names:
        path = folder / name
        state = _state(path)
        entry = known.get(name)
        is_known = isinstance(entry, list) and entry[:-1] == state
        digests[name] = entry[-1] if is_known and entry else file_digest(path)
        if _state(path) == state and time.time() - path.stat().st_ctime > _SETTLED_SECONDS:
            remembered[name] = [*state, digests[name]]
    if {**known, **remembered} != known:
        _write_memory(memory, {**known, **remembered})
    return digests


def _state(path: Path) -> list[int]:
    found = path.stat()
    return [found.st_size, found.st_ino, found.st_mtime_ns, found.st_ctime_ns]


def _memory_of(folder: Path) -> Path:
    """Returns the file of what is known of a folder, beside what this package keeps of tokenized splits."""
    from huggingface_hub.constants import HF_HOME

    cache = Path(os.environ.get("HF_DATASETS_CACHE") or Path(HF_HOME) / "datasets")
    name = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:32]
    return cache / "bert_repro" / "digests" / f"{name}.json"


def _read_memory(path: Path) -> dict[str, list[Any]]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _write_memory(path: Path, content: dict[str, list[Any]]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, content, indent=None)
    except (OSError, UserError):
        return  # a cache: without it the files are read again
