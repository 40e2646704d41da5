"""Damages files as disks, transfers, editors and enemies do; the same seed gives the same damage."""

import copy
import gzip
import io
import json
import lzma
import random
import re
import struct
import zipfile
from collections.abc import Callable
from typing import Any

Mutation = Callable[[random.Random, bytes], bytes]

_FRAGMENTS = (
    b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\xc3", b"\r", b"\r\n", b"\t", b"\n", b"\n\n",
    b"\x0b\x1c", b"\xe2\x80\xa8", b"\x1b[2J\x07", b'"', b'""', b"'", b"\\", b"\\ud800", b"{", b"}", b"[", b"]", b",",
    b":", b"#", b"&a", b"*a", b"<<", b"!!python/object/apply:os.system", b"!!timestamp 2001-99-99", b"!!int x", b"|",
    b"NaN", b"-Infinity", b"1e999", b"-1", b"0x10", b"null", b"true", b"../../", b"/etc/passwd", b"9" * 5000,
    b"[" * 20_000, b'{"a":' * 2_000, b"x" * 100_000, b"&nbsp;" * 2_000, b"-DOCSTART- -X- -X- O\n",
    "\U0001f600é中".encode(),
)  # fmt: skip
_NUMBERS = (
    b"-1", b"0", b"1", b"2", b"255", b"65536", b"2147483648", b"9223372036854775808", b"1e308", b"1e999", b"-0.0",
    b"NaN", b"1.5", b"9" * 400,
)  # fmt: skip
_VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 3, 1.5, 2**31, 2**63, 10**30, -(10**400), 1e308, float("nan"), float("inf"), "", " ",
    "x", "\x00", "\x1b[2J", "\ud800", "x" * 100_000, "../../../etc/passwd", "/etc/passwd", "a\nb", [], {}, [[]], [None],
    [1.5], {"": None}, ["x"] * 1000,
)  # fmt: skip


def bytes_of_any_file(generator: random.Random, content: bytes) -> bytes:
    """Changes bytes here and there: cut off, flipped, removed, repeated, put in, overwritten."""
    data = bytearray(content)
    for _ in range(generator.choice((1, 1, 1, 2, 4))):
        place = generator.randrange(len(data) + 1)
        size = generator.choice((1, 2, 8, 64, 512))
        match generator.randrange(7):
            case 0:
                del data[place:]
            case 1:
                if place < len(data):
                    data[place] ^= 1 << generator.randrange(8)
            case 2:
                del data[place : place + size]
            case 3:
                data[place:place] = data[place : place + size] * generator.choice((1, 3))
            case 4:
                data[place:place] = generator.choice(_FRAGMENTS)
            case 5:
                data[place : place + size] = generator.randbytes(size)
            case 6:
                data[place : place + size] = bytes(size)
    return bytes(data)


def text(generator: random.Random, content: bytes) -> bytes:
    """Changes a text file: its bytes, or its lines, words and numbers."""
    if generator.random() < 0.5:
        return bytes_of_any_file(generator, content)
    lines = content.split(b"\n")
    place = generator.randrange(len(lines))
    match generator.randrange(6):
        case 0:
            del lines[place]
        case 1:
            lines.insert(place, lines[generator.randrange(len(lines))])
        case 2:
            other = generator.randrange(len(lines))
            lines[place], lines[other] = lines[other], lines[place]
        case 3:
            lines[place] = re.sub(rb"-?\d+(\.\d+)?", lambda _: generator.choice(_NUMBERS), lines[place])
        case 4:
            words = re.split(rb"(\W)", lines[place])
            words[generator.randrange(len(words))] = generator.choice(_FRAGMENTS)
            lines[place] = b"".join(words)
        case 5:
            lines[place] = b"\t".join(reversed(lines[place].split(b"\t")))
    return b"\n".join(lines)


def json_file(generator: random.Random, content: bytes) -> bytes:
    """Changes a JSON file: its text, or one value, name or object in it."""
    if generator.random() < 0.3:
        return text(generator, content)
    return _json_text(generator, changed(generator, json.loads(content)))


def json_lines(generator: random.Random, content: bytes) -> bytes:
    """Changes a file of JSON lines: its text, or one value, name or object in one line."""
    if generator.random() < 0.5:
        return text(generator, content)
    lines = content.rstrip(b"\n").split(b"\n")
    place = generator.randrange(len(lines))
    lines[place] = _json_text(generator, changed(generator, json.loads(lines[place])))
    return b"\n".join(lines) + b"\n"


def changed(generator: random.Random, value: Any) -> Any:
    """Returns a copy of a JSON value in which one value, anywhere in it, is another, is missing or has another name."""
    value = copy.deepcopy(value)
    holders = list(_holders(value))
    if not holders:
        return generator.choice(_VALUES)
    holder = generator.choice(holders)
    key = generator.choice([*holder]) if isinstance(holder, dict) else generator.randrange(len(holder))
    match generator.randrange(5):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder[f"{key}{generator.choice(('', '_', 's', ' '))}x"] = holder.pop(key)
        case 2 if isinstance(holder[key], int | float) and not isinstance(holder[key], bool):
            holder[key] = generator.choice((holder[key] + 1, -holder[key], holder[key] * 10**5, holder[key] / 2))
        case _:
            holder[key] = copy.deepcopy(generator.choice(_VALUES))
    return value


def _holders(value: Any) -> Any:
    if isinstance(value, dict | list) and value:
        yield value
        for element in value.values() if isinstance(value, dict) else value:
            yield from _holders(element)


def _json_text(generator: random.Random, value: Any) -> bytes:
    text = json.dumps(value)
    if generator.random() < 0.1 and (names := re.findall(r'"\w+": (?:"\w*"|\d+)', text)):
        twice = generator.choice(names)  # the same name again in one object
        text = text.replace(twice, f"{twice}, {twice}", 1)
    return text.encode()


def compressed(pack: Callable[[bytes], bytes], unpack: Callable[[bytes], bytes], inner: Mutation) -> Mutation:
    """Returns a mutation of a compressed file: of its bytes, or of what was compressed."""

    def mutate(generator: random.Random, content: bytes) -> bytes:
        if generator.random() < 0.5:
            return bytes_of_any_file(generator, content)
        return pack(inner(generator, unpack(content)))

    return mutate


def gzipped(inner: Mutation) -> Mutation:
    return compressed(lambda data: gzip.compress(data, mtime=0), gzip.decompress, inner)


def xz(inner: Mutation) -> Mutation:
    return compressed(lzma.compress, lzma.decompress, inner)


def zipped(generator: random.Random, content: bytes) -> bytes:
    """Changes a zip: its bytes, or one of its files, or their names."""
    if generator.random() < 0.5:
        return bytes_of_any_file(generator, content)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    name = generator.choice([*files])
    match generator.randrange(4):
        case 0:
            files[f"../{name}"] = files.pop(name)
        case 1:
            files[name] = bytes(1_000_000)
        case _:
            files[name] = text(generator, files[name])
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def parquet(generator: random.Random, content: bytes) -> bytes:
    """Changes a Parquet file: its bytes, or the type or the values of its columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if generator.random() < 0.5:
        return bytes_of_any_file(generator, content)
    table = pq.read_table(io.BytesIO(content)).to_pydict()
    name = generator.choice([*table])
    rows = len(table[name])
    texts = [str(value) for value in table[name]]
    other: Any = generator.choice((
        pa.array([3] * rows), pa.array([None] * rows, pa.string()), pa.array([b"\xff"] * rows, pa.binary()),
        pa.array([["x"]] * rows), pa.array([{"x": 1}] * rows), pa.array(["x" * 100_000] * rows), pa.array([""] * rows),
        pa.Array.from_buffers(pa.string(), rows, pa.array([b"\xff\xfe"] * rows, pa.binary()).buffers()),
        pa.array(texts).dictionary_encode(), pa.array(texts, pa.large_string()), pa.array([1e308] * rows),
    ))  # fmt: skip
    columns = {key: pa.array(values) for key, values in table.items()}
    columns[name if generator.random() < 0.7 else f"{name}x"] = other
    if generator.random() < 0.2:
        columns.pop(name)
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


def safetensors(generator: random.Random, content: bytes) -> bytes:
    """Changes a safetensors file: its bytes, its header, or one value of a tensor to one that is not finite."""
    size = struct.unpack("<Q", content[:8])[0]
    header, data = content[8 : 8 + size], bytearray(content[8 + size :])
    kind = generator.random()
    if kind < 0.4:
        return bytes_of_any_file(generator, content)
    if kind < 0.8:
        header = _json_text(generator, changed(generator, json.loads(header)))
    else:
        tensors = [entry for name, entry in json.loads(header).items() if name != "__metadata__"]
        begin, end = generator.choice(tensors)["data_offsets"]
        place = begin + 4 * generator.randrange((end - begin) // 4)
        data[place : place + 4] = struct.pack("<f", generator.choice((float("nan"), float("inf"), -float("inf"))))
    return struct.pack("<Q", len(header)) + header + bytes(data)
