"""Strict readers of lines and JSON, and how messages show what was found.

Whatever is wrong with a file is a `UserError` of one line that names the file, the line, the value and the fix. Line
numbers are those of an editor, from 1.
"""

import gzip
import json
import lzma
import zlib
from collections.abc import Hashable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, NoReturn

import yaml

from bert_repro.errors import UserError

_LONGEST_SHOWN, _LONGEST_LIST = 60, 200
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def shown(value: object) -> str:
    """Spells a value for a message: quoted, control characters escaped, cut to a readable length."""
    return _cut(repr(value), _LONGEST_SHOWN)


def listed(names: Iterable[str]) -> str:
    """Lists names for a message, separated by commas; as `shown`, without quotes."""
    return _cut(repr(", ".join(names))[1:-1], _LONGEST_LIST)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}..."


def decompressed(file: IO[bytes], suffix: str) -> Any:
    """Returns a file of bytes to read lines from: of .gz and .xz the decompressed one."""
    return {".gz": gzip.open, ".xz": lzma.open}.get(suffix, lambda raw: raw)(file)  # type: ignore[operator]


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Reads lines with their numbers, without line ends and byte-order mark; .gz and .xz are decompressed.

    A line ends at a line feed alone, so the other line separators of Unicode stay in the text.

    Raises:
        UserError: the file is missing, cannot be read, is damaged or is not UTF-8.
    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(decompressed(file, path.suffix), start=1):
                yield number, decode_line(line, path, number)
    except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
        raise UserError(f"{path}: is damaged or not a {path.suffix} file ({error}); get it again") from None
    except OSError as error:
        raise _unreadable(path, error) from error


def read_utf8(path: Path) -> str:
    """Reads a text file at once, with line feeds for all its line ends.

    Raises:
        UserError: the file is missing, cannot be read or is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8") from None
    except OSError as error:
        raise _unreadable(path, error) from error


def decode_line(line: bytes, path: Path, number: int) -> str:
    """Decodes one line of a file, and takes its end and, of the first line, the byte-order mark away.

    Raises:
        UserError: it is not UTF-8.
    """
    content = line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line
    try:
        return content.rstrip(b"\r\n").decode("utf-8")
    except UnicodeDecodeError as error:
        byte = f"byte 0x{content[error.start]:02x} at position {error.start}"
        raise UserError(f"{path}, line {number}: {byte} is not UTF-8; save the file as UTF-8") from None


def _unreadable(path: Path, error: OSError) -> UserError:
    if isinstance(error, FileNotFoundError):
        return UserError(f"{path}: no such file")
    return UserError(f"{path}: cannot be read ({error.strerror}); name a file that can")


def read_json(path: Path, *, damaged: str = "get or write the file again") -> Any:
    """Reads a JSON file.

    Raises:
        UserError: it is missing, not UTF-8 or not JSON; `damaged` says what to do then.
    """
    return parse_json(read_utf8(path), str(path), damaged)


def read_json_object(path: Path, *, damaged: str = "get or write the file again") -> dict[str, Any]:
    """Reads a JSON file that holds an object; see `read_json`."""
    content = read_json(path, damaged=damaged)
    if not isinstance(content, dict):
        raise UserError(f"{path}: holds {shown(content)}, not an object; {damaged}")
    return content


def parse_json(text: str, where: str, fix: str) -> Any:
    """Parses a JSON text.

    Args:
        text: the text.
        where: file and line, for messages.
        fix: what to do about a text that is not JSON.

    Raises:
        UserError: it is not JSON; NaN and Infinity are not.
    """

    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is no number")

    try:
        return json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: is not valid JSON ({error}); {fix}") from None


def parse_yaml(text: str) -> Any:
    """Parses a YAML text of plain values.

    Raises:
        ValueError: it is not valid YAML, or a key is given twice, of which one would be lost.
    """
    try:
        return yaml.load(text, _YamlLoader)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


class _YamlLoader(yaml.SafeLoader):
    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        twice = first_repeated(str(key.value) for key, _ in node.value)
        if twice is not None:
            raise ValueError(f"line {node.start_mark.line + 1}: {twice!r} is given twice; leave one out")
        return super().construct_mapping(node, deep)


def first_repeated(names: Iterable[str]) -> str | None:
    """Returns the first name that occurs a second time, or None."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None
