"""Reads and writes TensorFlow's checkpoint format (`tf.train.Saver`, version 2) without TensorFlow.

A checkpoint with the prefix P is P.index, a sorted table of names, and P.data-00000-of-00001 and so on, the bytes of
the tensors: little-endian, last dimension fastest. Nothing of it is executed. The table is LevelDB's, uncompressed:

    file     block ... block, a block of metadata, a block of the index, the footer
    footer   the places of the metadata and of the index, zeros up to 40 bytes, the magic number in 8
    place    offset and size, as varints; after those bytes come the compression (1 byte, 0: none) and a masked CRC-32C
    block    entries; then, as uint32, the offsets of the entries that spell their key in full, and their number
    entry    three varints (bytes shared with the last key, bytes of the key's own, bytes of the value), key, value
    index    an entry for each block: a key that is not before its last, and its place

The value of the empty key is a BundleHeaderProto, that of a tensor's name a BundleEntryProto, of which these fields
matter (tensor_bundle.proto; number, then meaning):

    header   1 number of data files, 2 byte order (0: little-endian), 3 version {1 producer, 2 oldest reader}
    entry    1 data type, 2 shape {2 dimension {1 size}, 3 unknown rank}, 3 data file, 4 offset, 5 bytes,
             6 masked CRC-32C (fixed 32 bits), 7 slices of a partitioned variable
"""

import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bert_repro.conversion.crc32c import checksum_bytes, crc32c, masked
from bert_repro.errors import UserError
from bert_repro.utils.files import atomic_file
from bert_repro.utils.readers import shown

Array = npt.NDArray[Any]

_MAGIC = 0xDB4775248B80FB57
_FOOTER_BYTES, _TRAILER_BYTES = 48, 5
_LARGEST_INDEX = 1 << 26  # bytes; BERT-large with its optimizer has 100 KB
_MOST_DIMENSIONS, _LONGEST_NAME = 8, 1 << 12
_BLOCK_BYTES, _RESTART_INTERVAL = 1 << 12, 16  # of what is written
_READ_AT_ONCE = 1 << 24
_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5
_BFLOAT16, _STRING = 14, 7
_TYPES: Mapping[int, str] = {
    1: "<f4", 2: "<f8", 3: "<i4", 4: "u1", 5: "<i2", 6: "i1", 9: "<i8", 10: "?", _BFLOAT16: "<u2", 17: "<u2",
    19: "<f2", 22: "<u4", 23: "<u8",
}  # fmt: skip
"""Number of a data type -> its numpy type; bfloat16 is read as float32."""
_WRITTEN = {"float32": 1, "float64": 2, "int32": 3, "int64": 9}
_GET_AGAIN = "get the checkpoint again"


class _DamagedError(ValueError):
    """What is wrong with a file, without its name."""


@dataclass(frozen=True)
class Entry:
    """Where a tensor is.

    Args:
        data_type: TensorFlow's number of it.
        shape: its dimensions.
        file: number of the data file.
        offset: of its first byte there.
        size: its bytes.
        checksum: masked CRC-32C of them.
    """

    data_type: int
    shape: tuple[int, ...]
    file: int
    offset: int
    size: int
    checksum: int

    @property
    def is_text(self) -> bool:
        """Whether it holds strings, which are not read."""
        return self.data_type == _STRING


class TensorBundle:
    """A checkpoint, opened. `entries` maps the names of its tensors to where they are, sorted by name.

    Args:
        prefix: the path of its files without `.index` and `.data-...`.

    Raises:
        UserError: the index is missing or damaged, or a data file is missing.
    """

    def __init__(self, prefix: Path) -> None:
        self._index = prefix.with_name(f"{prefix.name}.index")
        try:
            table = dict(_table_entries(_content(self._index)))
            files = _number_of_files(table.pop(b"", b""))
            self.entries = {_text(name): _entry(value, files) for name, value in sorted(table.items())}
        except _DamagedError as error:
            raise UserError(f"{self._index}: is no index of a TensorFlow checkpoint ({error}); {_GET_AGAIN}") from error
        self._files = [prefix.with_name(f"{prefix.name}.data-{n:05d}-of-{files:05d}") for n in range(files)]
        for path in self._files:
            if not path.is_file():
                raise UserError(f"{path}: no such file, and {self._index.name} needs it; {_GET_AGAIN}")
        size = sum(path.stat().st_size for path in self._files)
        if sum(entry.size for entry in self.entries.values()) > size:
            raise UserError(f"{self._index}: its tensors are larger than the {size:,} bytes of data; {_GET_AGAIN}")

    def read(self, name: str) -> Array:
        """Reads a tensor.

        Raises:
            UserError: the data file is too short, or its bytes are not those that were written.
        """
        entry = self.entries[name]
        path = self._files[entry.file]
        try:
            return _values(entry, _checked_bytes(path, entry))
        except _DamagedError as error:
            raise UserError(f"{path}: the tensor {shown(name)} {error}; {_GET_AGAIN}") from error
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror}); {_GET_AGAIN}") from error


def write_bundle(prefix: Path, tensors: Mapping[str, Array]) -> None:
    """Writes a checkpoint in one data file, which `tf.train.Saver` restores and `tf.train.load_checkpoint` reads.

    Args:
        prefix: the path of its files without `.index` and `.data-...`.
        tensors: by name; float32, float64, int32 or int64.

    Raises:
        UserError: the disk is full or not writable.
    """
    rows: list[tuple[bytes, bytes]] = [(b"", _field(1, 1) + _field(3, _field(1, 1)))]
    offset = 0
    with atomic_file(prefix.with_name(f"{prefix.name}.data-00000-of-00001"), binary=True) as file:
        for name in sorted(tensors, key=str.encode):
            array = np.asarray(tensors[name])
            data = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
            file.write(data)
            rows.append((name.encode(), _entry_proto(array, offset, data)))
            offset += len(data)
    with atomic_file(prefix.with_name(f"{prefix.name}.index"), binary=True) as file:
        file.write(_table(rows))


# ------------------------------------------------------------------------------------------------------------- reading


def _content(path: Path) -> bytes:
    try:
        if path.stat().st_size > _LARGEST_INDEX:
            raise _DamagedError(f"it has more than {_LARGEST_INDEX:,} bytes")
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); name an original checkpoint") from error


def _table_entries(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields keys and values of a table, in order."""
    footer = content[-_FOOTER_BYTES:]
    if len(footer) < _FOOTER_BYTES or struct.unpack("<Q", footer[-8:])[0] != _MAGIC:
        raise _DamagedError("its end is not that of a table")
    _, place = _place(footer, 0)
    (offset, size), _ = _place(footer, place)
    last: bytes | None = None
    for _, handle in _block_entries(_block(content, offset, size)):
        (offset, size), _ = _place(handle, 0)
        for key, value in _block_entries(_block(content, offset, size)):
            if last is not None and key <= last:
                raise _DamagedError("its names are not in order")
            last = key
            yield key, value


def _block(content: bytes, offset: int, size: int) -> bytes:
    end = offset + size
    if end + _TRAILER_BYTES > len(content) - _FOOTER_BYTES:
        raise _DamagedError("a block leads out of the file")
    if struct.pack("<I", masked(crc32c(content[offset : end + 1]))) != content[end + 1 : end + _TRAILER_BYTES]:
        raise _DamagedError("the checksum of a block is wrong")
    if content[end]:
        raise _DamagedError("a block is compressed, which TensorFlow does not write")
    return content[offset:end]


def _block_entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    if len(block) < 4:
        raise _DamagedError("a block is too short")
    end = len(block) - 4 * (1 + struct.unpack("<I", block[-4:])[0])
    if end < 0:
        raise _DamagedError("a block is too short")
    key, place = b"", 0
    while place < end:
        shared, place = _varint(block, place, end)
        own, place = _varint(block, place, end)
        length, place = _varint(block, place, end)
        if shared > len(key) or place + own + length > end or shared + own > _LONGEST_NAME:
            raise _DamagedError("an entry leads out of its block")
        key = key[:shared] + block[place : place + own]
        place += own + length
        yield key, block[place - length : place]


def _place(data: bytes, at: int) -> tuple[tuple[int, int], int]:
    offset, at = _varint(data, at, len(data))
    size, at = _varint(data, at, len(data))
    return (offset, size), at


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= end:
            break
        value |= (data[at] & 127) << shift
        at += 1
        if not data[at - 1] & 128:
            return value & (1 << 64) - 1, at
    raise _DamagedError("a number does not end")


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yields number and value of each field of a protocol buffer."""
    place, end = 0, len(message)
    while place < end:
        tag, place = _varint(message, place, end)
        kind, size = tag & 7, 0
        if kind == _VARINT:
            value, place = _varint(message, place, end)
            yield tag >> 3, value
            continue
        if kind == _BYTES:
            size, place = _varint(message, place, end)
        elif kind in (_FIXED_32, _FIXED_64):
            size = 4 if kind == _FIXED_32 else 8
        if kind not in (_BYTES, _FIXED_32, _FIXED_64) or place + size > end:
            raise _DamagedError("a field of an entry is damaged")
        content = message[place : place + size]
        yield tag >> 3, content if kind == _BYTES else int.from_bytes(content, "little")
        place += size


def _number(value: int | bytes) -> int:
    if isinstance(value, bytes):
        raise _DamagedError("a field of an entry is damaged")
    return value


def _message(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise _DamagedError("a field of an entry is damaged")
    return value


def _number_of_files(header: bytes) -> int:
    fields = dict(_fields(header))
    if _number(fields.get(2, 0)):
        raise _DamagedError("it was written on a big-endian machine")
    version = dict(_fields(_message(fields.get(3, b""))))
    if _number(version.get(2, 0)) > 1:
        raise _DamagedError("it asks for a later version of the format")
    count = _number(fields.get(1, 0))
    if not 1 <= count <= 1000:
        raise _DamagedError(f"it counts {count} data files")
    return count


def _entry(message: bytes, files: int) -> Entry:
    fields: dict[int, int | bytes] = dict(_fields(message))
    if 7 in fields:
        raise _DamagedError("it holds variables in partitions, which no original checkpoint has")
    shape = []
    for number, value in _fields(_message(fields.get(2, b""))):
        if number == 3:
            raise _DamagedError("a tensor has no shape")
        if number == 2:
            shape.append(_number(dict(_fields(_message(value))).get(1, 0)))
    numbers = [_number(fields.get(number, 0)) for number in (1, 3, 4, 5, 6)]
    entry = Entry(numbers[0], tuple(shape), numbers[1], numbers[2], numbers[3], numbers[4])
    if entry.file >= files or len(shape) > _MOST_DIMENSIONS:
        raise _DamagedError("an entry is damaged")
    return entry


def _text(name: bytes) -> str:
    try:
        return name.decode("utf-8")
    except UnicodeDecodeError:
        raise _DamagedError("a name is not UTF-8") from None


def _checked_bytes(path: Path, entry: Entry) -> bytearray:
    if entry.data_type not in _TYPES:
        raise _DamagedError(f"has the data type {entry.data_type}, which is not read")
    count = 1
    for length in entry.shape:
        count *= length
    if count * np.dtype(_TYPES[entry.data_type]).itemsize != entry.size:
        raise _DamagedError(f"has {entry.size:,} bytes, which do not fit its shape {list(entry.shape)}")
    if entry.offset + entry.size > os.stat(path).st_size:
        raise _DamagedError("ends beyond the end of the file")
    data = bytearray(entry.size)
    view, crc = memoryview(data), 0
    with path.open("rb") as file:
        file.seek(entry.offset)
        for start in range(0, entry.size, _READ_AT_ONCE):
            part = view[start : start + _READ_AT_ONCE]
            if file.readinto(part) != len(part):
                raise _DamagedError("ends beyond the end of the file")
            crc = crc32c(part, crc)
    if masked(crc) != entry.checksum:
        raise _DamagedError("is not as it was written (its checksum is wrong)")
    return data


def _values(entry: Entry, data: bytearray) -> Array:
    values = np.frombuffer(data, _TYPES[entry.data_type]).reshape(entry.shape)
    if entry.data_type == _BFLOAT16:
        return (values.astype("<u4") << np.uint32(16)).view("<f4")
    return values


# ------------------------------------------------------------------------------------------------------------- writing


def _entry_proto(array: Array, offset: int, data: bytes) -> bytes:
    shape = b"".join(_field(2, _field(1, length) if length else b"") for length in array.shape)
    numbers = _field(4, offset) if offset else b""
    head = _field(1, _WRITTEN[array.dtype.name]) + _field(2, shape)
    return head + numbers + _field(5, len(data)) + bytes([6 << 3 | _FIXED_32]) + checksum_bytes(data)


def _field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return _as_varint(number << 3 | _VARINT) + _as_varint(value)
    return _as_varint(number << 3 | _BYTES) + _as_varint(len(value)) + value


def _as_varint(value: int) -> bytes:
    written = bytearray()
    while value >= 128:
        written.append(value & 127 | 128)
        value >>= 7
    written.append(value)
    return bytes(written)


def _table(rows: list[tuple[bytes, bytes]]) -> bytes:
    """Returns the table of sorted keys and values."""
    content, index, block = bytearray(), [], list[tuple[bytes, bytes]]()
    for number, row in enumerate(rows, start=1):
        block.append(row)
        if number == len(rows) or sum(len(key) + len(value) for key, value in block) >= _BLOCK_BYTES:
            index.append((row[0], _append_block(content, block)))
            block = []
    metadata = _append_block(content, [])
    places = metadata + _append_block(content, index)
    return bytes(content) + places.ljust(_FOOTER_BYTES - 8, b"\0") + struct.pack("<Q", _MAGIC)


def _append_block(content: bytearray, rows: list[tuple[bytes, bytes]]) -> bytes:
    """Appends a block with its trailer; returns its place."""
    block, restarts, last = bytearray(), [0], b""
    for number, (key, value) in enumerate(rows):
        shared = _shared(last, key)
        if number % _RESTART_INTERVAL == 0:
            shared, restarts = 0, [*restarts, len(block)] if number else restarts
        block += b"".join(map(_as_varint, (shared, len(key) - shared, len(value)))) + key[shared:] + value
        last = key
    block += struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))
    place = _as_varint(len(content)) + _as_varint(len(block))
    content += block + b"\0" + checksum_bytes(bytes(block) + b"\0")
    return place


def _shared(first: bytes, second: bytes) -> int:
    """Returns how many bytes two keys begin with alike."""
    pairs = zip(first, second, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))
