"""Reads TensorFlow's checkpoint format (`tf.train.Saver`, version 2) without TensorFlow.

A checkpoint with the prefix P consists of P.index, a sorted table of names, and P.data-00000-of-00001 and so on, the
bytes of the tensors: little-endian, last dimension fastest. Nothing in it is executed. The table has LevelDB's format,
uncompressed:

    file     block ... block, a block of metadata, a block of the index, the footer
    footer   the handles of the metadata and of the index, zeros up to 40 bytes, the magic number in 8
    handle   offset and size, as varints; after those bytes come the compression (1 byte, 0: none) and a checksum
    block    entries; then, as uint32, the offsets of the entries that write their key in full, and their number
    entry    three varints (bytes shared with the last key, bytes of the key's own, bytes of the value), key, value
    index    an entry for each block: a key that is not before its last, and its handle

The value of the empty key is a BundleHeaderProto, that of a tensor's name a BundleEntryProto. These fields matter
(tensor_bundle.proto; number, then meaning):

    header   1 number of data files
    entry    1 data type, 2 shape {2 dimension {1 size}}, 3 data file, 4 offset, 5 bytes

The files come from elsewhere, so every number is checked before anything is allocated.
"""

import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bert_repro.errors import UserError
from bert_repro.utils.readers import quoted

Array = npt.NDArray[np.generic]

_MAGIC = 0xDB4775248B80FB57
_FOOTER_BYTES = 48
_MOST_DATA_FILES = 100_000  # the number in a file's name has five digits
_BFLOAT16 = 14
_TYPES: Mapping[int, str] = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8", _BFLOAT16: "<u2", 19: "<f2"}
"""TensorFlow's number of a data type -> its numpy type. bfloat16 is read as integers and then widened to float32."""

# The wire types of protocol buffers that occur here.
_VARINT, _BYTES, _FIXED32 = 0, 2, 5

_GET_AGAIN = "Download the checkpoint again."


@dataclass(frozen=True)
class Entry:
    """Where a tensor is.

    Args:
        data_type: TensorFlow's number of it.
        shape: its dimensions.
        file: number of the data file.
        offset: its first byte there.
        size: its length in bytes.
    """

    data_type: int
    shape: tuple[int, ...]
    file: int
    offset: int
    size: int


class TensorBundle:
    """An open checkpoint. `entries` maps the names of its tensors to where they are, sorted by name.

    Args:
        prefix: the path of its files without `.index` and `.data-...`.

    Raises:
        UserError: the index is damaged, or a data file is missing.
    """

    def __init__(self, prefix: Path) -> None:
        # Any error while reading the bytes means that they are not such a table.
        index = prefix.with_name(f"{prefix.name}.index")
        try:
            table = dict(_table_entries(index.read_bytes()))
            num_files = _read_header(table.pop(b""))
            self.entries = {name.decode(): _read_entry(value) for name, value in sorted(table.items())}
        except (ValueError, KeyError, IndexError, TypeError, struct.error) as error:
            raise UserError(f"{index}: this is no index of a TensorFlow checkpoint ({error}). {_GET_AGAIN}") from error

        self._files = [prefix.with_name(f"{prefix.name}.data-{n:05d}-of-{num_files:05d}") for n in range(num_files)]
        for path in self._files:
            if not path.is_file():
                raise UserError(f"{path}: no such file, and {index.name} needs it. {_GET_AGAIN}")

    def read(self, name: str) -> Array:
        """Reads a tensor.

        Raises:
            UserError: its type is unknown, its sizes contradict each other, or the data file is too short.
        """
        entry = self.entries[name]
        if entry.data_type not in _TYPES:
            raise UserError(f"{name} has TensorFlow's data type {entry.data_type}, which no weight of a BERT has.")
        # The index could name a size that does not fit the shape, and make numpy fail or allocate too much.
        dtype = np.dtype(_TYPES[entry.data_type])
        if entry.size != dtype.itemsize * math.prod(entry.shape) or entry.file >= len(self._files):
            raise UserError(
                f"{name} has the shape {quoted(entry.shape)} and {entry.size} bytes, which contradict each other. "
                f"{_GET_AGAIN}"
            )

        # The file is smaller than its index says if a download broke off.
        path = self._files[entry.file]
        if entry.offset + entry.size > path.stat().st_size:
            raise UserError(f"{path}: ends within {name}. {_GET_AGAIN}")
        with path.open("rb") as file:
            file.seek(entry.offset)
            values: Array = np.frombuffer(file.read(entry.size), dtype).reshape(entry.shape)
        if entry.data_type == _BFLOAT16:
            # bfloat16 is the upper half of a float32.
            return (values.astype("<u4") << np.uint32(16)).view("<f4")
        return values


# --- The table --------------------------------------------------------------------------------------------------------


class _Handle(NamedTuple):
    """The place of a block in the file."""

    offset: int
    size: int


def _table_entries(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields keys and values of a table, in order."""
    footer = content[-_FOOTER_BYTES:]
    if struct.unpack("<Q", footer[-8:])[0] != _MAGIC:
        raise ValueError("its end is not that of a table")
    # The handle of the metadata comes first and is not needed.
    _, position = _read_handle(footer, 0)
    index, _ = _read_handle(footer, position)
    for _, value in _block_entries(_read_block(content, index)):
        block, _ = _read_handle(value, 0)
        yield from _block_entries(_read_block(content, block))


def _read_block(content: bytes, handle: _Handle) -> bytes:
    end = handle.offset + handle.size
    if content[end]:
        raise ValueError("a block is compressed, which TensorFlow does not write")
    return content[handle.offset : end]


def _block_entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    # After the entries there is a list of offsets, which is only needed for a search.
    num_full_keys = struct.unpack("<I", block[-4:])[0]
    end = len(block) - 4 * (1 + num_full_keys)
    key, position = b"", 0
    while position < end:
        num_shared, position = _read_varint(block, position)
        num_own, position = _read_varint(block, position)
        value_size, position = _read_varint(block, position)
        # A key shares its beginning with the key before it.
        key = key[:num_shared] + block[position : position + num_own]
        position += num_own
        yield key, block[position : position + value_size]
        position += value_size


def _read_handle(data: bytes, position: int) -> tuple[_Handle, int]:
    """Returns a handle and the position after it."""
    offset, position = _read_varint(data, position)
    size, position = _read_varint(data, position)
    return _Handle(offset, size), position


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Returns a number and the position after it. Each byte has seven bits of it, the lowest first."""
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 127) << shift
        position, shift = position + 1, shift + 7
        # The highest bit says that more bytes follow.
        if not byte & 128:
            return value, position


# --- Protocol buffers -------------------------------------------------------------------------------------------------


class _Message:
    """The fields of a protocol buffer, by number. Of a repeated number field the last value counts.

    Args:
        content: its bytes.
    """

    def __init__(self, content: bytes) -> None:
        self._numbers: dict[int, int] = {}
        self._nested: dict[int, list[bytes]] = {}
        position = 0
        while position < len(content):
            tag, position = _read_varint(content, position)
            field, wire_type = tag >> 3, tag & 7
            if wire_type == _VARINT:
                self._numbers[field], position = _read_varint(content, position)
            elif wire_type == _BYTES:
                size, position = _read_varint(content, position)
                self._nested.setdefault(field, []).append(content[position : position + size])
                position += size
            elif wire_type == _FIXED32:
                self._numbers[field] = int.from_bytes(content[position : position + 4], "little")
                position += 4
            else:
                raise ValueError("a field of an entry is damaged")

    def number(self, field: int) -> int:
        """Returns a number; 0 if it is missing, as protocol buffers leave zeros out."""
        return self._numbers.get(field, 0)

    def nested(self, field: int) -> list[bytes]:
        """Returns all nested messages of a field."""
        return self._nested.get(field, [])


def _read_header(content: bytes) -> int:
    """Returns the number of data files."""
    num_files = _Message(content).number(1)
    if not 0 < num_files < _MOST_DATA_FILES:
        raise ValueError(f"it names {num_files} data files")
    return num_files


def _read_entry(content: bytes) -> Entry:
    message = _Message(content)
    shape: list[int] = []
    for shape_message in message.nested(2):
        for dimension in _Message(shape_message).nested(2):
            shape.append(_Message(dimension).number(1))
    return Entry(
        data_type=message.number(1),
        shape=tuple(shape),
        file=message.number(3),
        offset=message.number(4),
        size=message.number(5),
    )
