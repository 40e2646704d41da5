"""Text: read strictly, shown in messages, cleaned before it is published.

Whatever is wrong with a file is a `UserError` of one line that names the file, the line, the value and the fix. Line
numbers are those of an editor, from 1.
"""

import gzip
import json
import lzma
import os
import zlib
from collections.abc import Hashable, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
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


def format_of(path: Path) -> str:
    """Returns the ending of a file's name that says its format, as `csv`; .gz and .xz after it only compress."""
    return Path(path.name.removesuffix(".gz").removesuffix(".xz")).suffix[1:]


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


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's text that says something, or its type."""
    return next((line.strip()[:300] for line in str(error).splitlines() if line.strip()), type(error).__name__)


def json_rows(lines: Iterable[tuple[int, str]], path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields the JSON object of each line that is not empty, with the line's number.

    Raises:
        UserError: a line holds something else.
    """
    for number, line in lines:
        if line.strip():
            row = parse_json(line, f"{path}, line {number}", "write one object per line")
            if not isinstance(row, dict):
                raise UserError(f"{path}, line {number}: is not a JSON object; write one object per line")
            yield number, row


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
        seen: set[str] = set()
        for key, _ in node.value:
            if str(key.value) in seen:
                raise ValueError(f"line {key.start_mark.line + 1}: {key.value!r} is given twice; leave one out")
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


REMOVED = "[removed]"
_SECRETS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", "GITHUB_TOKEN", "AWS_SECRET_ACCESS_KEY")


def redacted(value: Any) -> Any:
    """Returns a copy of results without the tokens of this environment, and with `~` for the user's home folder.

    Args:
        value: mappings, sequences, strings, numbers, nested as JSON is.
    """
    if isinstance(value, Mapping):
        return {redacted(key): redacted(element) for key, element in value.items()}
    if isinstance(value, list | tuple):
        return [redacted(element) for element in value]
    if not isinstance(value, str):
        return value
    for secret in filter(None, map(os.environ.get, _SECRETS)):
        value = value.replace(secret, REMOVED)
    home = str(Path.home())
    return value.replace(home, "~") if len(home) > 1 else value


def without_machine_paths(value: Any) -> Any:
    """Returns a copy of results in which each path of this machine is shown by its last part alone.

    Paths are texts, and words of a command, that begin with `/`, `~/`, `./` or `../`; `org/name` may be an id on the
    Hub and stays.
    """
    if isinstance(value, Mapping):
        return {
            name: element if name == "labels" else without_machine_paths(element) for name, element in value.items()
        }
    if isinstance(value, list | tuple):
        return [without_machine_paths(element) for element in value]
    if not isinstance(value, str) or "\n" in value:
        return value
    words = (
        PurePosixPath(word).name if word.startswith(("/", "~/", "./", "../")) else word for word in value.split(" ")
    )
    return " ".join(words)
