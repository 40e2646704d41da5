"""Strict readers of lines, JSON and YAML, and how messages show what was found; tables are in `tables`.

Whatever is wrong with a file is a `UserError` of one line that names the file, the line, the value and the fix. Line
numbers are those of an editor, from 1; a row of CSV that holds line breaks is named by its first line.
"""

import gzip
import json
import lzma
import math
import zlib
from collections.abc import Callable, Hashable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import yaml

from bert_repro.errors import UserError

_LONGEST_SHOWN, _LONGEST_LIST = 60, 200
_LONGEST_LINE = 100_000_000  # bytes; a text of that length is a library
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def shown(value: object) -> str:
    """Spells a value for a message: quoted, control characters escaped, cut to a readable length."""
    return _cut(repr(value), _LONGEST_SHOWN)


def listed(names: Iterable[str]) -> str:
    """Lists names for a message, separated by commas; as `shown`, without quotes."""
    return _cut(repr(", ".join(names))[1:-1], _LONGEST_LIST)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}..."


def half_surrogate(text: str) -> int | None:
    """Finds half a surrogate pair, which JSON can spell, no UTF-8 file can hold and no tokenizer accepts.

    Returns:
        The character's number from 1; None: there is none.
    """
    try:
        text.isascii() or text.encode()
    except UnicodeEncodeError as error:
        return error.start + 1
    return None


# --------------------------------------------------------------------------------------------------------------- lines


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Reads lines with their numbers, without line ends and byte-order mark; .gz and .xz are decompressed.

    A line ends at a line feed alone, so the other line separators of Unicode stay in the text.

    Raises:
        UserError: the file is missing, cannot be read, is damaged or is not UTF-8, or a line is beyond all reason long,
            as one that a small compressed file unpacks to.
    """
    opened: Callable[..., IO[bytes]] = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)  # type: ignore[assignment]
    number = 0
    try:
        with opened(path, "rb") as file:
            while line := file.readline(_LONGEST_LINE + 1):
                number += 1
                if len(line) > _LONGEST_LINE:
                    raise UserError(f"{path}, line {number}: is longer than {_LONGEST_LINE:,} bytes; split it")
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
        return path.read_text(encoding="utf-8")
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


# ---------------------------------------------------------------------------------------------------------------- JSON


def read_json(
    path: Path,
    *,
    missing: str = "name an existing JSON file",
    damaged: str = "get or write the file again",
    any_text: bool = False,
) -> Any:
    """Reads a JSON file.

    Args:
        path: the file.
        missing: what to do where it is missing.
        damaged: what to do where it is damaged.
        any_text: see `parse_json`.

    Raises:
        UserError: it is missing, not UTF-8 or not JSON; see `parse_json`.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); {missing}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is not valid JSON ({error}); {damaged}") from error
    return parse_json(text, str(path), damaged, any_text=any_text)


def read_json_object(path: Path, *, damaged: str = "get or write the file again") -> dict[str, Any]:
    """Reads a JSON file that holds an object; see `read_json`."""
    content = read_json(path, damaged=damaged)
    if not isinstance(content, dict):
        raise UserError(f"{path}: holds {shown(content)}, not an object; {damaged}")
    return content


def parse_json(text: str, where: str, fix: str, *, any_text: bool = False) -> Any:
    """Parses a JSON text.

    Args:
        text: the text.
        where: file and line, for messages.
        fix: what to do about a text that is not JSON.
        any_text: let half of a surrogate pair pass, for a caller that says exactly where it is.

    Raises:
        UserError: it is not JSON, nests too deep, has a number of thousands of digits or one that is not finite, half
            of a surrogate pair, or an object a key twice.
    """

    def without_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        content = dict(pairs)
        if len(content) < len(pairs):
            twice = first_repeated([name for name, _ in pairs])
            raise UserError(f"{where}: key {shown(twice)} occurs twice in one object; remove one")
        return content

    def finite(number: str) -> float:
        value = float(number)
        if not math.isfinite(value):
            raise UserError(f"{where}: the number {shown(number)} is not finite; {fix}")
        return value

    try:
        value = json.loads(text, object_pairs_hook=without_repeated_keys, parse_constant=finite, parse_float=finite)
    except UserError:
        raise
    except RecursionError:
        raise UserError(f"{where}: nests too deep to be read; {fix}") from None
    except ValueError as error:  # no JSON, or a number too long for an integer
        raise UserError(f"{where}: is not valid JSON ({error}); {fix}") from None
    if not any_text and "\\ud" in text.lower() and half_surrogate(json.dumps(value, ensure_ascii=False)):
        raise UserError(f"{where}: a text in it has half a surrogate pair; repair it")
    return value


# ---------------------------------------------------------------------------------------------------------------- YAML


class _StrictLoader(yaml.SafeLoader):
    """Refuses aliases and repeated keys."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event: Any = self.peek_event()  # type: ignore[no-untyped-call]
            raise ValueError(f"line {event.start_mark.line + 1}: aliases are not accepted; write the value")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key, _ in node.value:
            name = key.value
            if isinstance(name, Hashable) and name in seen:
                raise ValueError(f"line {key.start_mark.line + 1}: {str(name)[:60]!r} is given twice; leave one out")
            seen.add(name) if isinstance(name, Hashable) else None
        return super().construct_mapping(node, deep)


def parse_yaml(text: str) -> Any:
    """Parses a YAML text; an alias can grow without end, and a key given twice hides a value.

    Raises:
        ValueError: it is not valid YAML, has aliases or a repeated key, or a value that cannot be read.
    """
    try:
        return yaml.load(text, _StrictLoader)
    except RecursionError:
        raise ValueError("nests too deep to be read") from None
    except (yaml.YAMLError, AttributeError, LookupError, TypeError, OverflowError) as error:
        raise ValueError(str(error)) from error  # the last four: of the library's own constructors, for odd tags


def first_repeated(names: Iterable[str]) -> str | None:
    """Returns the first name that occurs a second time, or None."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None
