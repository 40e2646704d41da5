"""The folder `<output_dir>.preparing`, where a corpus is written part by part; several machines may share it.

    settings.json             what decides the parts; every process that writes here must have the same
    part-00000.arrow ...      finished parts, each with its counts in part-00000.json
    shard-3-of-16.json ...    shards that have finished
    (the files of the corpus  once all parts are joined, the manifest last; see prepared_corpus.py)

Shard k of n prepares the parts whose number leaves k - 1 when divided by n. So every shard reads all of the input,
which is cheap beside splitting and tokenizing, and the parts are those of a preparation without shards.
"""

import importlib.metadata
import os
import re
import shutil
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bert_repro.corpus.cleaning import RULES
from bert_repro.corpus.prepared_corpus import (
    FORMAT_VERSION,
    MANIFEST,
    Block,
    manifest_digest,
    read_manifest,
    require_equal,
    same_settings,
)
from bert_repro.corpus.tokenizer import save_tokenizer
from bert_repro.errors import UserError
from bert_repro.utils.digests import file_digest, read_record, write_record
from bert_repro.utils.files import atomic_file, atomic_files, create_array, lock, replace_folder, unlock, write_json
from bert_repro.utils.ragged import row_starts
from bert_repro.utils.readers import read_json_object

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SETTINGS_FILE = "settings.json"
_PART_COUNTS = re.compile(r"part-(\d{5,})\.json")
_SHARD_FILE = re.compile(r"shard-\d+-of-\d+\.json")


@dataclass(frozen=True)
class Shard:
    """One share of the parts: shard `number` (from 1) of `count`."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """Reads `3/16`, whose form `CorpusConfig.validate` has checked."""
        number, _, count = text.partition("/")
        return cls(int(number), int(count))

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def holds(self, part: int) -> bool:
        """Returns whether a part, counted from 0, belongs to this shard."""
        return part % self.count == self.number - 1


def preparation_folder(output_dir: Path) -> Path:
    """Returns where the corpus of `output_dir` is prepared."""
    return output_dir.with_name(output_dir.name + ".preparing")


def open_folder(folder: Path, settings: dict[str, Any], overwrite: bool) -> None:
    """Creates the folder, or accepts the one of an interrupted preparation or of other shards.

    Args:
        folder: from `preparation_folder`.
        settings: all that decides what the parts hold.
        overwrite: remove what was prepared there with other settings.

    Raises:
        UserError: the folder holds something else.
    """
    if not folder.exists():
        _create(folder, settings)
    found = _found_settings(folder)
    if same_settings(settings, found):
        return
    if not overwrite:
        if found is None:
            raise UserError(f"{folder} is not a corpus in preparation; remove it or choose another --output_dir")
        require_equal(settings, found, str(folder), "choose another --output_dir or give --overwrite_output_dir")
    with held(folder, None):
        shutil.rmtree(folder)
    _create(folder, settings)


@contextmanager
def held(folder: Path, shard: str | None) -> Iterator[None]:
    """Keeps a preparation folder for this process; shards share it, but no two processes prepare the same one.

    Args:
        folder: from `preparation_folder`.
        shard: as in `CorpusConfig.shard`; None prepares or joins all of it.

    Raises:
        UserError: another process is at work there.
    """
    own = folder / f"shard-{shard.replace('/', '-of-')}.lock" if shard else None
    taken = []
    try:
        for path, shared in ((folder, shard is not None), (own, False)):
            if path is None:
                continue
            if path is own:
                own.touch()
            if not lock(path, shared=shared):
                raise UserError(
                    f"{folder}: another process is preparing {f'shard {shard}' if path is own else 'it'}; wait for it, "
                    "stop it, or choose another --output_dir"
                )
            taken.append(path)
        yield
    finally:
        for path in taken:
            unlock(path)


def write_parts(folder: Path, blocks: Iterable[tuple[int, Block]]) -> None:
    """Writes parts as soon as all blocks of each have come; `blocks` are (number of the part, block), in order."""
    for number, of_part in groupby(blocks, key=lambda pair: pair[0]):
        write_part(folder, number, [block for _, block in of_part])


def write_part(folder: Path, number: int, blocks: list[Block]) -> None:
    """Writes a part and then its counts; a part without counts does not count as finished.

    Args:
        folder: from `preparation_folder`.
        number: index of the part in the corpus, from 0.
        blocks: what it holds, in order.
    """
    import pyarrow as pa

    tokens = np.concatenate([block.tokens for block in blocks])
    sentence_lengths = np.concatenate([block.sentence_lengths for block in blocks])
    document_sentences = np.concatenate([block.document_sentences for block in blocks])
    keys = np.concatenate([block.document_keys for block in blocks])
    sentence_offsets = row_starts(document_sentences)
    token_offsets = row_starts(sentence_lengths)[sentence_offsets]
    features = _features(tokens.dtype)
    batch = pa.record_batch(
        [
            pa.ListArray.from_arrays(pa.array(token_offsets, pa.int32()), pa.array(tokens)),
            pa.ListArray.from_arrays(pa.array(sentence_offsets, pa.int32()), pa.array(sentence_lengths)),
            pa.array(keys),
        ],
        schema=features.arrow_schema,
    )
    name = f"part-{number:05d}.arrow"
    with atomic_file(folder / name, binary=True) as file, pa.ipc.new_stream(file, batch.schema) as writer:
        writer.write_batch(batch)
    counts: Counter[str] = Counter()
    for block in blocks:
        counts.update(block.counts)
    part = {
        "file": name,
        "size": os.path.getsize(folder / name),
        "sha256": file_digest(folder / name),
        "token_dtype": str(tokens.dtype),
        "counts": counts,
    }
    write_record(folder / f"part-{number:05d}.json", part)


def finished_parts(folder: Path) -> dict[int, dict[str, Any]]:
    """Returns what `write_part` noted of each finished part of a folder, by number; damaged parts are not finished."""
    finished = {}
    for path in folder.iterdir():
        if match := _PART_COUNTS.fullmatch(path.name):
            part = read_record(path)
            file = folder / part["file"] if part else path
            if part and file.is_file() and file.stat().st_size == part["size"] and part["sha256"] == file_digest(file):
                finished[int(match[1])] = part
    return finished


def finish_shard(folder: Path, shard: Shard, num_parts: int, settings: dict[str, Any]) -> None:
    """Notes that a shard has written all its parts.

    Args:
        folder: from `preparation_folder`.
        shard: the shard.
        num_parts: parts of the complete input.
        settings: those the shard was prepared with; the join compares them, wherever the files were copied from.
    """
    finished = {"shard": str(shard), "num_parts": num_parts, "settings": settings}
    write_record(folder / f"shard-{shard.number}-of-{shard.count}.json", finished)


def require_all_parts(folder: Path, settings: dict[str, Any]) -> None:
    """Checks that the shards in a folder make a complete corpus.

    Args:
        folder: from `preparation_folder`.
        settings: those of the join.

    Raises:
        UserError: no shard has finished; one has other settings; parts are missing or damaged. Names the shards.
    """
    finished = _finished_shards(folder)
    if not finished:
        raise UserError(f"--join: no shard has finished in {folder}; run them with --shard and the same --output_dir")
    for shard in finished:
        fix = "prepare that shard again with the settings of the others"
        require_equal(settings, shard["settings"], f"shard {shard['shard']} in {folder}", fix)
        if shard["num_parts"] != finished[0]["num_parts"]:
            raise UserError(
                f"--join: shard {shard['shard']} read {shard['num_parts']} parts, shard {finished[0]['shard']}"
                f" {finished[0]['num_parts']}: their input differs; prepare one of them again"
            )
    count = max(Shard.parse(shard["shard"]).count for shard in finished)
    missing = set(range(finished[0]["num_parts"])) - set(finished_parts(folder))
    if missing:
        shards = [str(Shard(number, count)) for number in sorted({part % count + 1 for part in missing})]
        raise UserError(
            f"--join: {len(missing)} of {finished[0]['num_parts']} parts are missing or damaged in {folder}; prepare"
            f" shard {', '.join(shards)} first"
        )


def is_joined(folder: Path, settings: dict[str, Any]) -> bool:
    """Returns whether the folder already holds a complete corpus with these settings that was not yet put in place."""
    return (folder / MANIFEST).is_file() and same_settings(settings, _found_settings(folder))


def join_parts(folder: Path, tokenizer: "PreTrainedTokenizerFast", settings: dict[str, Any]) -> None:
    """Makes one corpus of the finished parts of a folder: index arrays, tokenizer, `datasets` files, last the manifest.

    Raises:
        UserError: no part holds a document; the folder is removed.
    """
    parts = [part for _, part in sorted(finished_parts(folder).items())]
    counts: Counter[str] = Counter()
    for part in parts:
        counts.update(part["counts"])
    if not counts["documents"]:
        shutil.rmtree(folder)
        dropped = f"; {counts['documents_read']} documents were read and none kept" if counts["documents_read"] else ""
        raise UserError(f"the corpus is empty: no text in {', '.join(s[0] for s in settings['sources'])}{dropped}")
    _write_index(folder, parts)
    _write_datasets_files(folder, parts)
    save_tokenizer(tokenizer, folder / "tokenizer")
    manifest = {
        "format_version": FORMAT_VERSION,
        "tokenizer_fingerprint": settings["tokenizer_fingerprint"],
        "vocab_size": len(tokenizer),
        "token_dtype": parts[0]["token_dtype"],
        "special_ids": {name: getattr(tokenizer, f"{name}_token_id") for name in ("pad", "unk", "cls", "sep", "mask")},
        "counts": {name: value for name, value in sorted(counts.items()) if not name.startswith("dropped_")},
        "dropped_lines": {rule: counts[f"dropped_{rule}"] for rule in RULES},
        "settings": settings,
        "versions": {
            name: importlib.metadata.version(name) for name in ("nupunkt", "tokenizers", "transformers", "pyarrow")
        },
        "parts": parts,
        "files": _corpus_files(folder),
    }
    digests = {part["file"]: part["sha256"] for part in parts}
    manifest["sha256"] = {name: digests.get(name) or file_digest(folder / name) for name in manifest["files"]}
    manifest["manifest_sha256"] = manifest_digest(manifest)
    write_json(folder / MANIFEST, manifest)


def put_in_place(folder: Path, output_dir: Path) -> None:
    """Makes a joined folder the output folder; an earlier corpus there is removed."""
    for path in [path for path in folder.iterdir() if _is_leftover(path)]:
        path.unlink()
    replace_folder(folder, output_dir)


def _create(folder: Path, settings: dict[str, Any]) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Shards start at the same time: the folder appears with its settings or not at all.
    temporary = folder.with_name(f"{folder.name}.{uuid.uuid4().hex}")
    try:
        temporary.mkdir()
        write_json(temporary / SETTINGS_FILE, settings)
        temporary.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _found_settings(folder: Path) -> dict[str, Any] | None:
    again = "remove the folder and prepare the corpus again"
    if (folder / SETTINGS_FILE).is_file():
        return read_json_object(folder / SETTINGS_FILE, damaged=again)
    if (folder / MANIFEST).is_file():
        return dict(read_manifest(folder)["settings"])
    return None


def _finished_shards(folder: Path) -> list[dict[str, Any]]:
    if not folder.is_dir():
        return []
    paths = sorted(path for path in folder.iterdir() if _SHARD_FILE.fullmatch(path.name))
    found = {path: read_record(path) for path in paths}
    for path in (path for path, shard in found.items() if shard is None):
        raise UserError(f"{path}: is damaged; remove it and prepare that shard again")
    return [shard for shard in found.values() if shard is not None]


def _corpus_files(folder: Path) -> dict[str, int]:
    """Returns the sizes in bytes of the files that belong to the corpus, by name."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not _is_leftover(path))
    return {path.relative_to(folder).as_posix(): os.path.getsize(path) for path in files}


def _is_leftover(path: Path) -> bool:
    counts_or_shard = _SHARD_FILE.fullmatch(path.name) or _PART_COUNTS.fullmatch(path.name)
    return (
        bool(counts_or_shard)
        or path.name == SETTINGS_FILE
        or path.name.startswith(".writing-")
        or path.suffix == ".lock"
    )


def _write_index(folder: Path, parts: list[dict[str, Any]]) -> None:
    """Writes the index arrays through memory maps, part by part, so that memory stays flat."""
    documents = sum(part["counts"]["documents"] for part in parts)
    sentences = sum(part["counts"]["sentences"] for part in parts)
    document_starts = create_array(folder / "document_starts.npy", np.int64, documents + 1)
    sentence_starts = create_array(folder / "sentence_starts.npy", np.int64, sentences + 1)
    document_sentences = create_array(folder / "document_sentences.npy", np.int64, documents + 1)
    keys = create_array(folder / "document_keys.npy", np.uint64, documents)
    document = sentence = token = 0
    for lengths, counts, part_keys in _read_parts(folder, parts):
        starts = token + row_starts(lengths)
        sentence_offsets = row_starts(counts)
        sentence_starts[sentence : sentence + len(starts)] = starts
        document_starts[document : document + len(counts) + 1] = starts[sentence_offsets]
        document_sentences[document : document + len(counts) + 1] = sentence + sentence_offsets
        keys[document : document + len(counts)] = part_keys
        document, sentence, token = document + len(counts), sentence + len(lengths), int(starts[-1])
    for array in (document_starts, sentence_starts, document_sentences, keys):
        array.flush()


def _write_datasets_files(folder: Path, parts: list[dict[str, Any]]) -> None:
    """Writes the two files with which `datasets.load_from_disk` opens the folder without a copy of the parts."""
    from datasets import DatasetInfo

    with atomic_files(folder) as unfinished:
        DatasetInfo(features=_features(np.dtype(parts[0]["token_dtype"]))).write_to_directory(str(unfinished))
    state: dict[str, Any] = {
        "_data_files": [{"filename": part["file"]} for part in parts],
        "_fingerprint": "bert_repro_corpus",
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": None,
    }
    write_json(folder / "state.json", state)


def _features(dtype: np.dtype[Any]) -> Any:
    from datasets import Features, Sequence, Value

    return Features(
        {
            "input_ids": Sequence(Value(str(dtype))),
            "sentence_lengths": Sequence(Value("int32")),
            "key": Value("uint64"),
        }
    )


def _read_parts(
    folder: Path, parts: list[dict[str, Any]]
) -> Iterator[tuple[npt.NDArray[np.int32], npt.NDArray[np.int64], npt.NDArray[np.uint64]]]:
    """Yields (sentence lengths, sentences of each document, keys) of each part."""
    import pyarrow as pa

    for part in parts:
        with pa.memory_map(str(folder / part["file"])) as file, pa.ipc.open_stream(file) as reader:
            batch = reader.read_next_batch()
            lengths = batch.column("sentence_lengths")
            counts = np.diff(lengths.offsets.to_numpy()).astype(np.int64)
            yield lengths.values.to_numpy(), counts, batch.column("key").to_numpy()
