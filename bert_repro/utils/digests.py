"""SHA-256 of files, and the manifest of a checkpoint, which holds those of all its files.

A manifest is compared wherever a checkpoint is used: when a run resumes, when a recipe loads `checkpoints/step-N` as a
model, and before one is pushed. What runs keep for later ones (tokenized splits, hidden states) has a seal of its own,
and is made again where the two do not match. Digests of large files are remembered on this machine while a file does
not change.

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
from bert_repro.utils.files import CHECKPOINTS, MANIFEST, TRAINER_STATE, UNFINISHED, write_json, write_text
from bert_repro.utils.readers import read_json_object

STEP = "step-"
"""A checkpoint's folder is named by this and the number of its step."""
_RECORD_DIGEST = "record_sha256"
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
        return read_json_object(path)
    except UserError:
        return {}


def _write_memory(path: Path, content: dict[str, list[Any]]) -> None:
    try:
        write_json(path, content, indent=None)
    except (OSError, UserError):
        return  # a cache: without it the files are read again


def seal(path: Path) -> None:
    """Writes the SHA-256 of a file that is kept for later runs beside it, for `is_sealed`.

    Raises:
        UserError: the disk is full or not writable.
    """
    write_text(_seal_of(path), f"{file_digest(path)}\n")


def is_sealed(path: Path) -> bool:
    """Returns whether a file is there and as it was when it was sealed; else it is made again.

    It is read for this only where it has changed since this machine last read it.
    """
    try:
        return known_digests(path.parent, [path.name])[path.name] == _seal_of(path).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return False


def _seal_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def write_record(path: Path, content: dict[str, Any]) -> None:
    """Writes a JSON object with its own digest, for `read_record`.

    Raises:
        UserError: the disk is full or not writable.
    """
    write_json(path, {**content, _RECORD_DIGEST: json_digest(content)})


def read_record(path: Path) -> dict[str, Any] | None:
    """Returns what `write_record` wrote; None where it is damaged."""
    try:
        content = read_json_object(path)
    except UserError:
        return None
    return content if content.pop(_RECORD_DIGEST, None) == json_digest(content) else None


def step_of(folder: Path) -> int | None:
    """Returns the step of a checkpoint's folder; None: it is no checkpoint."""
    number = folder.name.removeprefix(STEP)
    return int(number) if folder.name.startswith(STEP) and number.isdecimal() else None


def write_manifest(folder: Path, environment: dict[str, Any]) -> None:
    """Writes the manifest of all files in a folder.

    Args:
        folder: the checkpoint, complete but for the manifest.
        environment: versions, threads and processes of the run.

    Raises:
        UserError: the disk is full or not writable.
    """
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)
    files = {
        path.relative_to(folder).as_posix(): {"sha256": file_digest(path), "bytes": path.stat().st_size}
        for path in paths
    }
    manifest = {"environment": environment, "files": files}
    write_json(folder / MANIFEST, {**manifest, "sha256": json_digest(manifest)})


def find_damage(folder: Path, *, trust_known: bool = False) -> str | None:
    """Returns what is wrong with a checkpoint, or None when every file is as its manifest says and weights are finite.

    Args:
        folder: the checkpoint.
        trust_known: do not read files again that have not changed since this machine last read them.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if manifest.pop("sha256") != json_digest(manifest):
            return f"{MANIFEST} does not match its own SHA-256"
        expected = {name: (entry["sha256"], entry["bytes"]) for name, entry in manifest["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return f"{MANIFEST} is missing or damaged"
    for name, (_, size) in expected.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size} bytes instead of {size}"
    known = known_digests(folder, expected) if trust_known else {}
    for name, (sha256, _) in expected.items():
        if (known.get(name) or file_digest(folder / name)) != sha256:
            return f"{name} does not match its SHA-256"
    weights = (path for path in folder.glob("*.safetensors"))
    return next((f"{path.name} holds values that are not finite" for path in weights if not _is_finite(path)), None)


def require_undamaged(folder: Path) -> None:
    """Refuses a checkpoint that is unfinished, half removed or not as its manifest says; other folders pass.

    Raises:
        UserError: it is.
    """
    if not folder.is_dir():
        return
    folder = Path(os.path.abspath(folder))  # the name of "." is that of the folder; links stay as they are
    if folder.name.startswith(UNFINISHED):
        raise UserError(f"is an unfinished checkpoint; name one of the {STEP}N folders beside it")
    is_checkpoint = step_of(folder) is not None and folder.parent.name == CHECKPOINTS
    if (is_checkpoint or (folder / TRAINER_STATE).is_dir()) and (damage := find_damage(folder, trust_known=True)):
        raise UserError(f"{damage}; name another checkpoint")


def _is_finite(weights: Path) -> bool:
    import safetensors
    import torch

    with safetensors.safe_open(weights, framework="pt") as file:
        return all(bool(torch.isfinite(file.get_tensor(name)).all()) for name in file.keys())  # noqa: SIM118
