"""What is brought to the machine beside the repository: a corpus in three pieces, the tasks' files, wheels.

    python benchmarks/gpu_half_hour/carry.py --corpus runs/corpus --data_dir glue --output_dir carried

A prepared corpus of 128 million tokens is 290 MB; its parts, each compressed on its own, are 132 MiB at 8.7 bits a
token. Whatever pieces are there make a corpus of their own (`unpack`), so that training can begin with the first.
"""

import argparse
import json
import lzma
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bert_repro.corpus.writer import join_parts
from bert_repro.utils.digests import write_record

from bert_repro.corpus.prepared_corpus import read_manifest
from bert_repro.models.loading import load_tokenizer
from bert_repro.utils.files import file_digest, write_json

ROOT = Path(__file__).resolve().parents[2]
MEBIBYTE = 1 << 20
LIMIT = 64 * MEBIBYTE  # of what travels with a command
WHEELS = 2 * MEBIBYTE  # and settings, records, a tokenizer
PIECES = 3
TASKS = ("MRPC", "SST-2", "MNLI")
# A token is two bytes, whose high one says more about the next high one than about the low one beside it.
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 6, "lp": 1, "lc": 3, "pb": 1}]


def main(arguments: list[str] | None = None) -> None:
    """Packs everything, and says what each command is to bring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True, help="prepared corpus")
    parser.add_argument("--data_dir", type=Path, required=True, help=f"official files of {', '.join(TASKS)}")
    parser.add_argument("--output_dir", type=Path, default=Path("carried"))
    options = parser.parse_args(arguments)
    most = LIMIT - WHEELS - repository_size(ROOT)
    print(f"room for a piece beside repository and wheels: {most / MEBIBYTE:.1f} MiB", flush=True)
    sizes = pack_corpus(options.corpus, options.output_dir)
    print("\n".join(f"piece-{number}: {size / MEBIBYTE:.1f} MiB" for number, size in enumerate(sizes, 1)))
    if max(sizes) > most:
        sys.exit(f"{(max(sizes) - most) / MEBIBYTE:.1f} MiB too much: see the README on the weights in checkpoints/")
    for task in TASKS:
        folder = options.output_dir / "tasks" / task
        folder.mkdir(parents=True, exist_ok=True)
        for path in sorted((options.data_dir / task).glob("*.tsv")):
            if not path.name.startswith("test"):
                shutil.copyfile(path, folder / path.name)
    tasks = sum(path.stat().st_size for path in (options.output_dir / "tasks").rglob("*.tsv"))
    print(f"tasks: {tasks / MEBIBYTE:.1f} MiB")


def repository_size(root: Path) -> int:
    """Returns the bytes of the working tree, without what git ignores and what was deleted from it."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=root, capture_output=True, check=True,
    ).stdout.decode().split("\0")  # fmt: skip
    return sum((root / name).stat().st_size for name in listed if name and (root / name).is_file())


def pack_corpus(corpus: Path, folder: Path, pieces: int = PIECES) -> list[int]:
    """Writes `piece-1` ... with the compressed parts of a prepared corpus; returns the bytes of each."""
    manifest = read_manifest(corpus)
    settings = dict(manifest["settings"])
    settings["sources"] = [[Path(source[0]).name, *source[1:]] for source in settings["sources"]]  # no places here
    numbered = list(enumerate(manifest["parts"]))
    share = -(-len(numbered) // pieces)
    sizes = []
    for number in range(pieces):
        piece = folder / f"piece-{number + 1}"
        shutil.rmtree(piece, ignore_errors=True)
        piece.mkdir(parents=True)
        write_json(piece / "settings.json", settings)
        shutil.copytree(corpus / "tokenizer", piece / "tokenizer")
        for place, part in numbered[number * share : (number + 1) * share]:
            path = corpus / part["file"]
            compressed = lzma.compress(path.read_bytes(), lzma.FORMAT_XZ, filters=FILTERS)
            (piece / f"{path.name}.xz").write_bytes(compressed)
            # Corpora of earlier versions have no digests of their parts.
            write_record(piece / f"part-{place:05d}.json", {"sha256": file_digest(path)} | part)
        sizes.append(sum(path.stat().st_size for path in piece.rglob("*") if path.is_file()))
    return sizes


def unpack(pieces: list[Path], corpus: Path) -> dict[str, Any]:
    """Makes a prepared corpus of the pieces that are there; returns its counts.

    Args:
        pieces: folders of `pack_corpus`.
        corpus: folder to write; what it held before is replaced.
    """
    shutil.rmtree(corpus, ignore_errors=True)
    corpus.mkdir(parents=True)
    compressed = [path for piece in pieces for path in sorted(piece.glob("part-*.arrow.xz"))]
    with ThreadPoolExecutor(os.cpu_count()) as threads:  # lzma works beside others
        list(threads.map(lambda path: _decompress(path, corpus / path.stem), compressed))
    for piece in pieces:
        for path in piece.glob("part-*.json"):
            shutil.copyfile(path, corpus / path.name)
    settings = json.loads((pieces[0] / "settings.json").read_text("utf-8"))
    join_parts(corpus, load_tokenizer(str(pieces[0] / "tokenizer")), settings)
    counts: dict[str, Any] = read_manifest(corpus)["counts"]
    return counts


def _decompress(path: Path, target: Path) -> None:
    with lzma.open(path) as source, target.open("wb") as file:
        shutil.copyfileobj(source, file, MEBIBYTE)


if __name__ == "__main__":
    main()
