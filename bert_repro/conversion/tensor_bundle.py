"""Reads TensorFlow's checkpoint format (`tf.train.Saver`, version 2) without TensorFlow.

A checkpoint with the prefix P is P.index, a sorted table of names, and P.data-00000-of-00001 and so on, the bytes of
the tensors: little-endian, last dimension fastest. Nothing of it is executed. The table is LevelDB's, uncompressed:

    file     block ... block, a block of metadata, a block of the index, the footer
    footer   the places of the metadata and of the index, zeros up to 40 bytes, the magic number in 8
    place    offset and size, as varints; after those bytes come the compression (1 byte, 0: none) and a checksum
    block    entries; then, as uint32, the offsets of the entries that spell their key in full, and their number
    entry    three varints (bytes shared with the last key, bytes of the key's own, bytes of the value), key, value
    index    an entry for each block: a key that is not before its last, and its place

The value of the empty key is a BundleHeaderProto, that of a tensor's name a BundleEntryProto, of which these fields
matter (tensor_bundle.proto; number, then meaning):

    header   1 number of data files
    entry    1 data type, 2 shape {2 dimension {1 size}}, 3 data file, 4 offset, 5 bytes
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bert_repro.configs import require
from bert_repro.errors import UserError

Array = npt.NDArray[Any]

_MAGIC = 0xDB4775248B80FB57
_FOOTER_BYTES = 48
_BFLOAT16 = 14
_TYPES: Mapping[int, str] = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8", _BFLOAT16: "<u2", 19: "<f2"}
"""Number of a data type -> its numpy type; bfloat16 is read as float32."""


@dataclass(frozen=True)
class Entry:
    """Where a tensor is.

    Args:
        data_type: TensorFlow's number of it.
        shape: its dimensions.
        file: number of the data file.
        offset: of its first byte there.
        size: its bytes.
    """

    data_type: int
    shape: tuple[int, ...]
    file: int
    offset: int
    size: int


class TensorBundle:
    """A checkpoint, opened. `entries` maps the names of its tensors to where they are, sorted by name.

    Args:
        prefix: the path of its files without `.index` and `.data-...`.

    Raises:
        UserError: the index is damaged, or a data file is missing.
    """

    def __init__(self, prefix: Path) -> None:
        index = prefix.with_name(f"{prefix.name}.index")
        try:
            table = dict(_table_entries(index.read_bytes()))
            files = dict(_fields(table.pop(b"")))[1]
            self.entries = {name.decode(): _entry(value) for name, value in sorted(table.items())}
        except (ValueError, KeyError, IndexError, TypeError, struct.error) as error:
            raise UserError(f"{index}: is no index of a TensorFlow checkpoint ({error}); get it again") from error
        self._files = [prefix.with_name(f"{prefix.name}.data-{n:05d}-of-{files:05d}") for n in range(files)]
        for path in self._files:
            require(path.is_file(), f"{path}: no such file, and {index.name} needs it; get the checkpoint again")

    def read(self, name: str) -> Array:
        """Reads a tensor.

        Raises:
            UserError: the data file is too short.
        """
        entry = self.entries[name]
        fault = f"{name} has TensorFlow's data type {entry.data_type}, which no weight of a BERT has"
        require(entry.data_type in _TYPES, fault)
        path = self._files[entry.file]
        with path.open("rb") as file:
            file.seek(entry.offset)
            data = file.read(entry.size)
        require(len(data) == entry.size, f"{path}: ends within {name}; get the checkpoint again")
        values = np.frombuffer(data, _TYPES[entry.data_type]).reshape(entry.shape)
        return (values.astype("<u4") << np.uint32(16)).view("<f4") if entry.data_type == _BFLOAT16 else values


def _table_entries(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields keys and values of a table, in order."""
    footer = content[-_FOOTER_BYTES:]
    if struct.unpack("<Q", footer[-8:])[0] != _MAGIC:
        raise ValueError("its end is not that of a table")
    _, place = _place(footer, 0)
    index, _ = _place(footer, place)
    for _, handle in _block_entries(_block(content, *index)):
        yield from _block_entries(_block(content, *_place(handle, 0)[0]))


def _block(content: bytes, offset: int, size: int) -> bytes:
    end = offset + size
    if content[end]:
        raise ValueError("a block is compressed, which TensorFlow does not write")
    return content[offset:end]


def _block_entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    end = len(block) - 4 * (1 + struct.unpack("<I", block[-4:])[0])
    key, place = b"", 0
    while place < end:
        shared, place = _varint(block, place)
        own, place = _varint(block, place)
        length, place = _varint(block, place)
        key = key[:shared] + block[place : place + own]
        place += own + length
        yield key, block[place - length : place]


def _place(data: bytes, at: int) -> tuple[tuple[int, int], int]:
    offset, at = _varint(data, at)
    size, at = _varint(data, at)
    return (offset, size), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Returns a number, seven bits a byte and the lowest first, and the place after it."""
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if not data[at - 1] & 128:
            return value, at


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yields number and value of each field of a protocol buffer: a number, or the bytes of a nested one."""
    place = 0
    while place < len(message):
        tag, place = _varint(message, place)
        kind = tag & 7
        if kind == 0:
            value, place = _varint(message, place)
            yield tag >> 3, value
        elif kind == 2:
            size, place = _varint(message, place)
            yield tag >> 3, message[place : place + size]
            place += size
        elif kind == 5:
            yield tag >> 3, int.from_bytes(message[place : place + 4], "little")
            place += 4
        else:
            raise ValueError("a field of an entry is damaged")


def _entry(message: bytes) -> Entry:
    fields = dict(_fields(message))
    dimensions = [content for number, content in _fields(fields.get(2, b"")) if number == 2]
    shape = tuple(dict(_fields(dimension)).get(1, 0) for dimension in dimensions)
    return Entry(fields[1], shape, *(fields.get(number, 0) for number in (3, 4, 5)))
