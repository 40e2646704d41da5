"""The encodings of text files: checks their names, decodes lines, and says what a file may be that is not UTF-8.

UTF-8 is the default everywhere. Older programs and spreadsheets write others, above all cp1252 (Western European
Windows), and UTF-16 ("Unicode text").
"""

import codecs
import logging
from pathlib import Path

from bert_repro.errors import UserError, flag

logger = logging.getLogger("bert_repro")

UTF_8 = "utf-8"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_MARKS_OF_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_MARKS_OF_UTF_32 = (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)
_USUAL = "cp1252"
"""The encoding that a file most often has if it is not UTF-8."""
_NAMES_IN_PROGRAMS = {"ansi": _USUAL, "windows": _USUAL, "western": _USUAL, "unicode": "utf-16", "excel": _USUAL}
"""What spreadsheets and editors call an encoding -> Python's name of it."""
_LONGEST_SAMPLE = 40  # characters of a decoded line in a message


def require_encoding(name: str) -> None:
    """Refuses a name that is not an encoding of text.

    Raises:
        UserError: Python has no such encoding, or it is not one of text (such as `hex`).
    """
    try:
        is_text = codecs.lookup(name)._is_text_encoding
    except (LookupError, ValueError):
        is_text = False
    if not is_text:
        likely = _NAMES_IN_PROGRAMS.get(name.lower())
        advice = f"Did you mean {likely}?" if likely else "Usual ones are utf-8, cp1252, latin-1, utf-16, cp1251, gbk."
        raise UserError(f"{flag('encoding', name)} is not an encoding of text. {advice}", setting="encoding")


def is_utf8(name: str) -> bool:
    """Returns whether a name is one of those of UTF-8, with or without byte-order mark."""
    return codecs.lookup(name).name in ("utf-8", "utf-8-sig")


def has_plain_line_feeds(name: str) -> bool:
    """Returns whether a line feed is one byte, so that a file can be cut into lines before it is decoded."""
    return "\n".encode(name) == b"\n"


def decode(line: bytes, place: str, encoding: str, *, is_first: bool) -> str:
    """Decodes a line of a file and removes its line end. The first line also loses the byte-order mark.

    Args:
        line: the bytes.
        place: file and line, for the message.
        encoding: an encoding in which a line feed is one byte.
        is_first: whether it is the first line of the file.

    Raises:
        UserError: the line is not in that encoding.
    """
    if is_first and is_utf8(encoding):
        line = line.removeprefix(_BYTE_ORDER_MARK)
    try:
        return line.rstrip(b"\r\n").decode(UTF_8 if is_utf8(encoding) else encoding)
    except UnicodeDecodeError as error:
        byte = f"byte 0x{line[error.start]:02x} at position {error.start}"
        advice = advice_about(line, error.start, is_first=is_first) if is_utf8(encoding) else _other_encoding()
        title = "UTF-8" if is_utf8(encoding) else encoding
        raise UserError(f"{place}: {byte} is not {title}. {advice}", setting="encoding") from None


def advice_about(line: bytes, position: int, *, is_first: bool) -> str:
    """Returns what to do about a line that is not UTF-8.

    Args:
        line: its bytes.
        position: the first byte that is not UTF-8.
        is_first: whether it is the first line, which shows the byte-order mark.
    """
    if is_first and line.startswith(_MARKS_OF_UTF_32):
        return f"The file begins like UTF-32. Add {flag('encoding', 'utf-32')}, or save it as UTF-8."
    if is_first and line.startswith(_MARKS_OF_UTF_16):
        return f"The file begins like UTF-16. Add {flag('encoding', 'utf-16')}, or save it as UTF-8."
    try:
        text = line.decode(_USUAL)
    except UnicodeDecodeError:
        return f"Save the file as UTF-8, or add {flag('encoding')} with the name of its encoding, for example cp1251."
    sample = _around(text, position)
    return (
        f"As {_USUAL} (Windows) the text reads {sample!r}. If that is right, add {flag('encoding', _USUAL)}; otherwise "
        f"give {flag('encoding')} another name, for example cp1251 or gbk, or save the file as UTF-8."
    )


def _around(text: str, position: int) -> str:
    """Returns the word at a position, with a little of its surroundings."""
    start = max(0, position - _LONGEST_SAMPLE // 2)
    return text[start : start + _LONGEST_SAMPLE].strip()


def _other_encoding() -> str:
    return f"Leave {flag('encoding')} out if the file is UTF-8, or give the name of its encoding."


class WrongEncodingCheck:
    """Warns if a file that is read in another encoding is really UTF-8, whose umlauts would read as two characters.

    Args:
        path: the file.
        encoding: the encoding in which it is read.
    """

    def __init__(self, path: Path | str, encoding: str) -> None:
        self._path = path
        self._encoding = encoding
        # Only lines with other characters than those of ASCII tell encodings apart.
        self._telling_lines = 0
        self._utf8_lines = 0

    def add(self, line: bytes) -> None:
        """Looks at the bytes of a line."""
        if line.isascii():
            return
        self._telling_lines += 1
        try:
            line.decode(UTF_8)
        except UnicodeDecodeError:
            return
        self._utf8_lines += 1

    def warn(self) -> None:
        """Logs the warning, at the end of the file."""
        if self._telling_lines and self._telling_lines == self._utf8_lines:
            logger.warning(
                "%s looks like UTF-8, but is read as %s. If letters are wrong, leave out %s.",
                self._path,
                self._encoding,
                flag("encoding"),
            )
