"""The standard streams: readable output in every encoding, and one line if a stream cannot be written."""

import io
import logging
import os
import sys

BROKEN_PIPE_EXIT_CODE = 141  # 128 + SIGPIPE, as a shell reports `bert-repro predict ... | head`


def prepare_streams() -> None:
    """Makes the standard streams usable; called once, before anything is read or printed.

    A closed stream is opened on the null device. Otherwise the next file that the process opens would get the stream's
    number, and whatever a library prints would be written into that file.

    Output to a file or a pipe is UTF-8 everywhere, because other programs read it. A terminal keeps its encoding, and
    characters that it cannot show are escaped.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is assigned, which is this one.
            os.open(os.devnull, os.O_RDWR)
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 (open until the process ends)
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if not isinstance(stream, io.TextIOWrapper):
            continue  # replaced by a notebook or a test
        if stream.isatty():
            stream.reconfigure(errors="backslashreplace")
        else:
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def without_controls(text: str) -> str:
    """Returns a text with its control characters written out, so that it cannot change a terminal's colors.

    Line ends and tabs stay. Texts and labels come from data files, whose authors may be strangers.
    """
    if text.isprintable():
        return text
    return "".join(mark if mark.isprintable() or mark in "\n\t" else ascii(mark)[1:-1] for mark in text)


class PlainFormatter(logging.Formatter):
    """Formats a log record as its message alone, with control characters written out."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the text of a record."""
        return without_controls(super().format(record))


def discard_output() -> None:
    """Sends standard output to the null device, so that Python's own flush at the end of the process succeeds."""
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, sys.stdout.fileno())
    except (OSError, ValueError):
        return  # not a real stream
    finally:
        os.close(null)
