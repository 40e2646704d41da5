"""Reads a pytorch_model.bin, which is a pickle: with `weights_only`, and in a process of its own with bounded memory.

`weights_only=True` lets torch build tensors and nothing else from the pickle. The other process has no more than that
to lose: it writes the tensors as safetensors, which is all that this one reads.

    python -P -m bert_repro.conversion.torch_weights SOURCE ... TARGET
"""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt

from bert_repro.errors import UserError
from bert_repro.utils.files import disk_errors
from bert_repro.utils.readers import read_json, shown

_SECONDS = 600
_MEMORY = 1 << 34  # bytes beside four times the files: torch itself, and what it maps
_REFUSED = 2
_LONGEST_REASON = 200


def read_torch_weights(path: Path, work_dir: Path) -> dict[str, npt.NDArray[Any]]:
    """Reads the tensors of a pytorch_model.bin, or of the files that its index names, as float32 where they are floats.

    Args:
        path: pytorch_model.bin or pytorch_model.bin.index.json.
        work_dir: where the other process writes.

    Raises:
        UserError: a file is missing or damaged, or holds anything but tensors by name.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    files = [path] if path.suffix == ".bin" else _parts(path)
    with disk_errors(work_dir):
        work_dir.mkdir(parents=True, exist_ok=True)
        place = tempfile.TemporaryDirectory(prefix=".reading-", dir=work_dir)
    with place as folder:
        target = Path(folder) / "weights.safetensors"
        command = [sys.executable, "-P", "-m", __name__, *map(str, (*files, target))]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, errors="replace")
        except subprocess.TimeoutExpired as error:
            raise UserError(f"{path}: was not read within {_SECONDS} seconds; get it again") from error
        if done.returncode:
            last = (done.stderr.strip().splitlines() or [f"the process ended with {done.returncode}"])[-1]
            raise UserError(f"{path}: cannot be read as weights ({last[:_LONGEST_REASON]}); get it again")
        try:
            return load_file(target)  # type: ignore[no-any-return]
        except (OSError, SafetensorError) as error:
            raise UserError(f"{path}: cannot be read as weights ({error}); get it again") from error


def _parts(path: Path) -> list[Path]:
    index = read_json(path)
    names = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(names, dict) or not names or not all(isinstance(name, str) for name in names.values()):
        raise UserError(f"{path}: has no weight_map of file names; get it again")
    for name in set(names.values()):
        if Path(name).name != name or not name.endswith(".bin") or not (path.parent / name).is_file():
            raise UserError(f"{path}: names {shown(name)}, which is no .bin file beside it; get it again")
    return [path.parent / name for name in sorted(set(names.values()))]


def _write_safetensors(sources: Sequence[str], target: str) -> None:
    """Runs in the other process."""
    import torch
    from safetensors.torch import save_file

    _bound_memory(_MEMORY + 4 * sum(Path(source).stat().st_size for source in sources))
    tensors: dict[str, torch.Tensor] = {}
    for source in sources:
        content = torch.load(source, map_location="cpu", weights_only=True)
        if not isinstance(content, dict):
            raise ValueError("it holds no dictionary of tensors")
        for name, value in content.items():
            if not isinstance(name, str) or not isinstance(value, torch.Tensor) or value.layout != torch.strided:
                raise ValueError(f"{shown(name)} is no tensor")
            dense = value.detach().float() if value.is_floating_point() else value.detach()
            tensors[name] = dense.contiguous().clone()
    save_file(tensors, target)


def _bound_memory(size: int) -> None:
    try:
        import resource
    except ImportError:  # not on Windows
        return
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _main(arguments: Sequence[str]) -> int:
    try:
        _write_safetensors(arguments[:-1], arguments[-1])
    except Exception as error:  # whatever torch raises about a file, it is the file that is wrong
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = lines[0] if lines else type(error).__name__
        sys.stderr.write("".join(filter(str.isprintable, reason)) + "\n")
        return _REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
