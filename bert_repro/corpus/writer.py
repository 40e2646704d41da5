"""Parts of a prepared corpus: writing them one by one, and joining finished ones. Layout: tokenized_corpus.py."""

import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bert_repro.corpus.tokenize import Block

if TYPE_CHECKING:
    import pyarrow as pa

RECORD = re.compile(r"part-(\d{5,})\.json")


def write_part(folder: Path, number: int, blocks: list[Block]) -> None:
    """Writes a part and then its record; a part without a record does not count as finished.

    Args:
        folder: of the corpus.
        number: place of the part in the corpus, from 0.
        blocks: what it holds, in order.
    """
    import pyarrow as pa

    tokens = np.concatenate([block.tokens for block in blocks])
    sentence_lengths = np.concatenate([block.sentence_lengths for block in blocks])
    document_sentences = np.concatenate([block.document_sentences for block in blocks])
    keys = np.concatenate([block.document_keys for block in blocks])
    sentence_offsets = _offsets(document_sentences)
    token_offsets = _offsets(sentence_lengths)[sentence_offsets]
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
    _write_batch(folder / name, batch)
    counts: Counter[str] = Counter()
    for block in blocks:
        counts.update(block.counts)
    record = {"file": name, "size": os.path.getsize(folder / name), "token_dtype": str(tokens.dtype), "counts": counts}
    write_json(folder / f"part-{number:05d}.json", record)


def finished_parts(folder: Path) -> dict[int, dict[str, Any]]:
    """Records of the finished parts of a folder, by number."""
    records = {}
    for path in folder.iterdir():
        if match := RECORD.fullmatch(path.name):
            record = json.loads(path.read_text(encoding="utf-8"))
            part = folder / record["file"]
            if part.is_file() and part.stat().st_size == record["size"]:
                records[int(match[1])] = record
    return records


def write_index(folder: Path, records: list[dict[str, Any]]) -> None:
    """Writes the index arrays through memory maps, part by part.

    Args:
        folder: of the corpus.
        records: of all parts, in order.
    """
    documents = sum(record["counts"]["documents"] for record in records)
    sentences = sum(record["counts"]["sentences"] for record in records)
    document_starts = _create(folder / "document_starts.npy", np.int64, documents + 1)
    sentence_starts = _create(folder / "sentence_starts.npy", np.int64, sentences + 1)
    document_sentences = _create(folder / "document_sentences.npy", np.int64, documents + 1)
    keys = _create(folder / "document_keys.npy", np.uint64, documents)
    document = sentence = token = 0
    for lengths, counts, part_keys in _read_parts(folder, records):
        starts = token + _offsets(lengths)
        sentence_offsets = _offsets(counts)
        sentence_starts[sentence : sentence + len(starts)] = starts
        document_starts[document : document + len(counts) + 1] = starts[sentence_offsets]
        document_sentences[document : document + len(counts) + 1] = sentence + sentence_offsets
        keys[document : document + len(counts)] = part_keys
        document, sentence, token = document + len(counts), sentence + len(lengths), int(starts[-1])
    for array in (document_starts, sentence_starts, document_sentences, keys):
        array.flush()


def write_datasets_files(folder: Path, records: list[dict[str, Any]]) -> None:
    """Writes the two files with which `datasets.load_from_disk` opens the folder without a copy of the parts."""
    from datasets import DatasetInfo

    DatasetInfo(features=_features(np.dtype(records[0]["token_dtype"]))).write_to_directory(str(folder))
    state: dict[str, Any] = {
        "_data_files": [{"filename": record["file"]} for record in records],
        "_fingerprint": "bert_repro_corpus",
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": None,
    }
    write_json(folder / "state.json", state)


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file so that it is either whole or not there."""
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=1, ensure_ascii=False)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _features(dtype: np.dtype[Any]) -> Any:
    from datasets import Features, Sequence, Value

    return Features(
        {
            "input_ids": Sequence(Value(str(dtype))),
            "sentence_lengths": Sequence(Value("int32")),
            "key": Value("uint64"),
        }
    )


def _write_batch(path: Path, batch: "pa.RecordBatch") -> None:
    import pyarrow as pa

    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "wb") as file:
        with pa.ipc.new_stream(file, batch.schema) as writer:
            writer.write_batch(batch)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _read_parts(
    folder: Path, records: list[dict[str, Any]]
) -> Iterator[tuple[npt.NDArray[np.int32], npt.NDArray[np.int64], npt.NDArray[np.uint64]]]:
    """Yields (sentence lengths, sentences of each document, keys) of each part."""
    import pyarrow as pa

    for record in records:
        with pa.memory_map(str(folder / record["file"])) as file, pa.ipc.open_stream(file) as reader:
            batch = reader.read_next_batch()
            lengths = batch.column("sentence_lengths")
            counts = np.diff(lengths.offsets.to_numpy()).astype(np.int64)
            yield lengths.values.to_numpy(), counts, batch.column("key").to_numpy()


def _offsets(lengths: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _create(path: Path, dtype: Any, length: int) -> np.memmap[Any, Any]:
    array: np.memmap[Any, Any] = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=(length,))
    return array
