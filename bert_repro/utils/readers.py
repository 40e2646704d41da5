"""Reads text, JSON and YAML strictly, and writes values into messages.

Anything wrong with a file is a `UserError` of one line that names the file, the line, the value and what to do. Lines
are numbered from 1, as in an editor.
"""

import gzip
import io
import json
import lzma
import math
import zlib
from collections.abc import Hashable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, NoReturn, cast

import yaml

from bert_repro.errors import UserError
from bert_repro.utils.text_encodings import (
    UTF_8,
    WrongEncodingCheck,
    decode,
    has_plain_line_feeds,
    is_utf8,
)

LONGEST_VALUE = 60  # characters of one value in a message
LONGEST_LIST = 200  # characters of a list of names in a message
_LONGEST_REASON = 300  # characters of another library's error in a message
_MOST_YAML_VALUES = 100_000  # with every reference counted as a copy

DAMAGED_COMPRESSION = (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error)
"""Errors that mean that a compressed file is damaged or not compressed."""


# --- Values in messages -----------------------------------------------------------------------------------------------


def quoted(value: object) -> str:
    """Returns a value for a message: quoted, with control characters escaped, shortened to a readable length."""
    return _shortened(repr(value), LONGEST_VALUE)


def comma_separated(names: Iterable[str]) -> str:
    """Returns names for a message, separated by commas, escaped and shortened like `quoted` but without quotes."""
    return _shortened(repr(", ".join(names))[1:-1], LONGEST_LIST)


def _shortened(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    return f"{text[:limit]}..."


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's text that is not empty, or the error's type if there is none.

    A line that ends with a colon announces the reason, so the next line is part of it.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    text = lines[0]
    if text.endswith(":") and len(lines) > 1:
        text += f" {lines[1]}"
    return text[:_LONGEST_REASON]


# --- Lines ------------------------------------------------------------------------------------------------------------


def format_of(path: Path) -> str:
    """Returns the suffix that names a file's format, for example `csv`. A final .gz or .xz is ignored."""
    return Path(path.name.removesuffix(".gz").removesuffix(".xz")).suffix[1:]


def decompressed(file: IO[bytes], suffix: str) -> IO[bytes]:
    """Returns a file of bytes to read lines from, decompressed if the suffix is .gz or .xz."""
    if suffix == ".gz":
        return cast(IO[bytes], gzip.open(file))
    if suffix == ".xz":
        return cast(IO[bytes], lzma.open(file))
    return file


def numbered_lines(path: Path, encoding: str = UTF_8) -> Iterator[tuple[int, str]]:
    """Reads lines with their numbers, without line ends and byte-order mark; .gz and .xz are decompressed.

    Only a line feed ends a line. The other line separators of Unicode stay in the text.

    Args:
        path: the file.
        encoding: its encoding.

    Raises:
        UserError: the file is missing, cannot be read, is damaged or has another encoding.
    """
    try:
        with path.open("rb") as file:
            yield from decoded_lines(decompressed(file, path.suffix), path, encoding)
    except DAMAGED_COMPRESSION as error:
        raise UserError(
            f"{path} is damaged or not a {path.suffix} file ({error}). Download or write the file again."
        ) from None
    except OSError as error:
        raise _unreadable(path, error) from error


def decoded_lines(file: IO[bytes], name: Path | str, encoding: str = UTF_8) -> Iterator[tuple[int, str]]:
    """Yields the lines of an open file with their numbers, see `numbered_lines`.

    Args:
        file: the file.
        name: what messages call it.
        encoding: its encoding.

    Raises:
        UserError: the file has another encoding.
    """
    if not has_plain_line_feeds(encoding):
        yield from _lines_of_wide_characters(file, name, encoding)
        return
    check = None if is_utf8(encoding) else WrongEncodingCheck(name, encoding)
    for number, line in enumerate(file, start=1):
        if check is not None:
            check.add(line)
        yield number, decode_line(line, name, number, encoding)
    if check is not None:
        check.warn()


def _lines_of_wide_characters(file: IO[bytes], name: Path | str, encoding: str) -> Iterator[tuple[int, str]]:
    """Yields the lines of UTF-16 and UTF-32, in which a line feed has several bytes."""
    number = 0
    try:
        for number, line in enumerate(io.TextIOWrapper(file, encoding, newline="\n"), start=1):
            # UTF-16-LE and the like keep the byte-order mark as a character.
            yield number, (line.removeprefix("\ufeff") if number == 1 else line).rstrip("\r\n")
    except UnicodeError as error:
        raise UserError(
            f"{name}, after line {number}: the file is not {encoding} ({error}). Give the name of its encoding.",
            setting="encoding",
        ) from None


def read_utf8(path: Path) -> str:
    """Reads a complete text file. All kinds of line ends become line feeds.

    Raises:
        UserError: the file is missing, cannot be read or is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: byte {error.start} is not UTF-8. Save the file as UTF-8.") from None
    except OSError as error:
        raise _unreadable(path, error) from error


def decode_line(line: bytes, path: Path | str, number: int, encoding: str = UTF_8) -> str:
    """Decodes one line of a file and removes its line end. The first line also loses the byte-order mark.

    Args:
        line: its bytes.
        path: the file, for messages.
        number: its number, from 1.
        encoding: an encoding in which a line feed is one byte.

    Raises:
        UserError: the line has another encoding.
    """
    return decode(line, f"{path}, line {number}", encoding, is_first=number == 1)


def _unreadable(path: Path, error: OSError) -> UserError:
    if isinstance(error, FileNotFoundError):
        return UserError(f"{path}: no such file. Check the path.")
    return UserError(f"{path} cannot be read ({error.strerror}). Choose a file that can be read.")


# --- JSON -------------------------------------------------------------------------------------------------------------


def read_json(path: Path, *, damaged: str = "Download or write the file again.") -> Any:
    """Reads a JSON file.

    Args:
        path: the file.
        damaged: what to do about a file that is not JSON, for the message.

    Raises:
        UserError: the file is missing, not UTF-8 or not JSON.
    """
    return parse_json(read_utf8(path), str(path), damaged)


def read_json_object(path: Path, *, damaged: str = "Download or write the file again.") -> dict[str, Any]:
    """Reads a JSON file that contains an object; see `read_json`."""
    content = read_json(path, damaged=damaged)
    if not isinstance(content, dict):
        raise UserError(f"{path} contains {quoted(content)}, which is not a JSON object. {damaged}")
    return content


def parse_json(text: str, where: str, remedy: str) -> Any:
    """Parses a JSON text. The words NaN and Infinity are refused, because they are not JSON.

    Args:
        text: the text.
        where: file and line, for the message.
        remedy: what to do about a text that is not JSON.

    Raises:
        UserError: the text is not JSON.
    """
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: is not valid JSON ({error}). {remedy}") from None


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number")


def json_rows(lines: Iterable[tuple[int, str]], path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields the JSON object of each line that is not empty, with the line's number.

    Raises:
        UserError: a line is not a JSON object.
    """
    for number, line in lines:
        if not line.strip():
            continue
        place = f"{path}, line {number}"
        row = parse_json(line, place, "Write one object per line.")
        if not isinstance(row, dict):
            raise UserError(f"{place}: is not a JSON object. Write one object per line.")
        yield number, row


# --- YAML -------------------------------------------------------------------------------------------------------------


def parse_yaml(text: str) -> Any:
    """Parses a YAML text of plain values.

    Raises:
        ValueError: the text is not valid YAML, a key occurs twice and one of the two values would be lost, or
            references (`*name`) make the text much larger than it looks.
    """
    try:
        return yaml.load(text, _YamlLoader)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


class _YamlLoader(yaml.SafeLoader):
    """The safe loader, which also refuses a key that occurs twice, and references that multiply the text."""

    def get_single_node(self) -> Any:
        node = super().get_single_node()
        if node is not None and _expanded_size(node, {}) > _MOST_YAML_VALUES:
            raise ValueError(f"its references (*name) expand to more than {_MOST_YAML_VALUES:,} values")
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        keys: set[str] = set()
        for key, _ in node.value:
            if str(key.value) in keys:
                line = key.start_mark.line + 1
                raise ValueError(f"line {line}: {key.value!r} occurs twice; remove one of the two")
            keys.add(str(key.value))
        return super().construct_mapping(node, deep)


def _expanded_size(node: Any, sizes: dict[int, float]) -> float:
    """Returns how many values a YAML node stands for if each reference counts as a copy.

    Args:
        node: the node.
        sizes: the sizes that are known, by the identity of the node. A node that contains itself is infinite.
    """
    if id(node) not in sizes:
        sizes[id(node)] = math.inf
        size = 1.0
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                size += _expanded_size(key, sizes) + _expanded_size(value, sizes)
        elif isinstance(node, yaml.SequenceNode):
            for item in node.value:
                size += _expanded_size(item, sizes)
        sizes[id(node)] = size
    return sizes[id(node)]
