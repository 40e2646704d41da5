"""Files of features, written batch by batch.

Parquet: a row per text; `tokens` and `features`, a vector per token, or one vector where texts are pooled.
safetensors: `features` (T, D) of all tokens one after another with `lengths` (N) and `input_ids` (T), or (N, D) pooled.
"""

import json
import shutil
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bert_repro.errors import UserError

FEATURE_SUFFIXES = (".parquet", ".safetensors")
_ROW_GROUP = 32 << 20  # bytes of features
_LARGEST = 10**18  # stands for sizes that are not known yet


class EncodedText(NamedTuple):
    """A text and its features.

    Args:
        input_ids: its token ids, special tokens included, (length,).
        tokens: the same as text.
        features: (length, D), or (1, D) where it is pooled.
    """

    input_ids: npt.NDArray[np.int32]
    tokens: list[str]
    features: npt.NDArray[np.float32]


Write = Callable[[Sequence[EncodedText]], None]


@contextmanager
def writer_for(path: Path, dimension: int, pooling: str, facts: Mapping[str, Any]) -> Iterator[Write]:
    """Opens a file of features for writing; its ending says the format. The file appears when it is complete.

    Args:
        path: the file.
        dimension: D.
        pooling: `none` for a vector per token.
        facts: JSON, kept in the file's metadata.

    Raises:
        UserError: another ending, or a folder that cannot be written.
    """
    if path.suffix not in FEATURE_SUFFIXES:
        raise UserError(f"--output_file {path}: name a file that ends in {' or '.join(FEATURE_SUFFIXES)}")
    opened = _parquet if path.suffix == ".parquet" else _safetensors
    part = path.with_name(f"{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.touch()
    except OSError as error:
        raise UserError(f"--output_file {path} cannot be written ({error.strerror}); name another") from error
    try:
        with opened(part, dimension, pooling == "none", json.dumps(facts)) as write:
            yield write
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _parquet(part: Path, dimension: int, per_token: bool, facts: str) -> Iterator[Write]:
    import pyarrow
    import pyarrow.parquet

    vector = pyarrow.list_(pyarrow.float32(), dimension)
    fields = [("tokens", pyarrow.list_(pyarrow.string())), ("features", pyarrow.list_(vector))]
    schema = pyarrow.schema(fields if per_token else [("features", vector)], metadata={"bert_repro": facts})

    waiting: list[EncodedText] = []

    with pyarrow.parquet.ParquetWriter(part, schema) as writer:

        def write(texts: Sequence[EncodedText]) -> None:
            # The file's index has an entry for every group, so that groups of a batch each would fill the memory.
            waiting.extend(texts)
            if sum(text.features.nbytes for text in waiting) >= _ROW_GROUP:
                write_group()

        def write_group() -> None:
            texts = waiting.copy()
            waiting.clear()
            flat = pyarrow.array(np.concatenate([text.features.reshape(-1) for text in texts]))
            columns = [pyarrow.FixedSizeListArray.from_arrays(flat, dimension)]
            if per_token:
                ends = np.cumsum([0, *(len(text.features) for text in texts)], dtype=np.int32)
                tokens = pyarrow.array([text.tokens for text in texts], schema.field("tokens").type)
                columns = [tokens, pyarrow.ListArray.from_arrays(ends, columns[0])]
            writer.write_batch(pyarrow.record_batch(columns, schema=schema))

        yield write
        if waiting:
            write_group()


@contextmanager
def _safetensors(part: Path, dimension: int, per_token: bool, facts: str) -> Iterator[Write]:
    """The format opens with a header that says all sizes, so room is kept for it; the small columns wait in files."""
    room = len(_header(_LARGEST, _LARGEST, dimension, per_token, facts))
    rows = count = 0
    with part.open("wb") as file, TemporaryFile(dir=part.parent) as lengths, TemporaryFile(dir=part.parent) as ids:
        file.seek(room)

        def write(texts: Sequence[EncodedText]) -> None:
            nonlocal rows, count
            for text in texts:
                file.write(text.features.astype("<f4").tobytes())
                lengths.write(struct.pack("<i", len(text.input_ids)))
                ids.write(text.input_ids.astype("<i4").tobytes())
                rows += len(text.features)
            count += len(texts)

        yield write
        for column in (lengths, ids) if per_token else ():
            _append(file, column)
        file.seek(0)
        header = _header(rows, count, dimension, per_token, facts)
        # Spaces after the header are part of the format.
        file.write(struct.pack("<Q", room - 8) + header[8:].ljust(room - 8))


def _append(file: IO[bytes], column: IO[bytes]) -> None:
    column.seek(0)
    shutil.copyfileobj(column, file)


def _header(rows: int, texts: int, dimension: int, per_token: bool, facts: str) -> bytes:
    """Length and JSON of the header, as the safetensors format describes it; padded to a multiple of 8 bytes."""
    shapes = {"features": ("F32", [rows, dimension])}
    if per_token:
        shapes |= {"lengths": ("I32", [texts]), "input_ids": ("I32", [rows])}
    entries: dict[str, Any] = {"__metadata__": {"bert_repro": facts}}
    end = 0
    for name, (dtype, shape) in shapes.items():
        start, end = end, end + 4 * int(np.prod(shape, dtype=object))
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(entries).encode("utf-8")
    return struct.pack("<Q", len(text)) + text.ljust(-(-len(text) // 8) * 8)
