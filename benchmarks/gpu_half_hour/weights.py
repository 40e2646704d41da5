"""Brings a model back through a limit on files: bfloat16, high and low bytes apart, compressed, in numbered files.

    python benchmarks/gpu_half_hour/weights.py join results/ runs/bert-8-512       # here, when they have come back

Rounded to bfloat16 a 8/512 model is 79 MiB. The high bytes, sign and exponent, take less than half when compressed on
their own; the low ones hardly shrink. All but the weights lies beside them in one small archive.
"""

import argparse
import hashlib
import io
import json
import lzma
import os
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import safetensors.torch
import torch

WEIGHTS, INDEX, REST = "model.safetensors", "weights.json", "model.tar.xz"
CHUNK = 4 << 20  # bytes compressed on their own, so that all cores work
FILE = 15_900 << 10  # below 16 MiB, and four of them below 64
LEFT_OUT = ("checkpoints", "sample_index", "predictions")


def split(model: Path, folder: Path) -> dict[str, int]:
    """Writes a published folder as small files; returns their sizes in bytes.

    Args:
        model: folder with model.safetensors.
        folder: for `weights-00.bin` ..., `weights.json` and `model.tar.xz`.
    """
    tensors = safetensors.torch.load_file(model / WEIGHTS)
    data = safetensors.torch.save(
        {name: value.to(torch.bfloat16) if value.is_floating_point() else value for name, value in tensors.items()},
        {"format": "pt"},
    )
    planes = np.frombuffer(data + b"\0" * (len(data) % 2), np.uint8).reshape(-1, 2)
    # The header's length decides on which side the high bytes come; either way they come together.
    flat = np.concatenate([planes[:, 0], planes[:, 1]]).tobytes()
    chunks = [flat[start : start + CHUNK] for start in range(0, len(flat), CHUNK)]
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        packed = list(threads.map(lambda chunk: lzma.compress(chunk, preset=6), chunks))
    sizes, files = [len(chunk) for chunk in packed], b"".join(packed)
    for number, start in enumerate(range(0, len(files), FILE)):
        (folder / f"weights-{number:02d}.bin").write_bytes(files[start : start + FILE])
    index = {"bytes": len(data), "chunks": sizes, "sha256": hashlib.sha256(data).hexdigest()}
    (folder / INDEX).write_text(json.dumps(index) + "\n", "utf-8")
    with tarfile.open(folder / REST, "w:xz") as archive:
        for path in sorted(model.iterdir()):
            if path.is_file() and path.name != WEIGHTS and not path.name.startswith(LEFT_OUT):
                archive.add(path, path.name)
    names = (*sorted(folder.glob("weights-*.bin")), folder / INDEX, folder / REST)
    return {path.name: path.stat().st_size for path in names}


def join(folder: Path, model: Path) -> None:
    """Makes the published folder of what `split` wrote.

    Raises:
        SystemExit: a file is missing or has changed.
    """
    index = json.loads((folder / INDEX).read_text("utf-8"))
    stream = io.BytesIO(b"".join(path.read_bytes() for path in sorted(folder.glob("weights-*.bin"))))
    try:
        flat = b"".join(lzma.decompress(stream.read(size)) for size in index["chunks"])
    except (lzma.LZMAError, EOFError) as error:
        raise SystemExit(f"{folder}: a file of the weights is missing or damaged") from error
    half = len(flat) // 2
    data = np.stack([np.frombuffer(flat[:half], np.uint8), np.frombuffer(flat[half:], np.uint8)], axis=1).tobytes()
    data = data[: index["bytes"]]
    if hashlib.sha256(data).hexdigest() != index["sha256"]:
        raise SystemExit(f"{folder}: the weights are not those that were sent")
    model.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / REST) as archive:
        archive.extractall(model, filter="data")
    (model / WEIGHTS).write_bytes(data)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["split", "join"])
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    options = parser.parse_args()
    if options.what == "join":
        join(options.source, options.target)
    else:
        options.target.mkdir(parents=True, exist_ok=True)
        print(json.dumps(split(options.source, options.target)))
