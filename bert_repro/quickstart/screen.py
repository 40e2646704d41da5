"""What the quickstart puts on the screen: stages with a plain explanation, short lines, a table at the end."""

import logging
import textwrap
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

logger = logging.getLogger("bert_repro")

WIDTH = 88


class Screen:
    """Numbers the stages and keeps their times."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._began = time.perf_counter()

    @property
    def total_seconds(self) -> float:
        """Seconds since the screen was made."""
        return time.perf_counter() - self._began

    def clock(self) -> str:
        """The same as minutes and seconds, 3:07."""
        seconds = int(self.total_seconds)
        return f"{seconds // 60}:{seconds % 60:02d}"

    @contextmanager
    def stage(self, title: str, explanation: str) -> Iterator[None]:
        """A heading, what BERT does here in plain words, and the time that the stage takes."""
        began = time.perf_counter()
        heading(f"{len(self.seconds) + 1}. {title}", self.clock())
        say(explanation)
        logger.info("")
        yield
        self.seconds[title] = round(time.perf_counter() - began, 1)


def heading(title: str, clock: str = "") -> None:
    """Logs a line with a title at its left and the time at its right end."""
    rule = "-" * (WIDTH - len(title) - len(clock) - 2)
    logger.info("\n%s", f"{title} {rule} {clock}".rstrip())


def say(text: str, label: str = "") -> None:
    """Logs a text in lines of at most `WIDTH` characters, all beginning after a label at the left."""
    filled = textwrap.fill(
        " ".join(text.split()),
        WIDTH,
        initial_indent=label,
        subsequent_indent=" " * len(label),
        break_long_words=False,
        break_on_hyphens=False,
    )
    logger.info("%s", filled)


def table(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """Lays out rows in columns.

    Args:
        rows: cells; all rows of the same length.
        right: columns that are set to the right, for numbers.
    """
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = (
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  " + "  ".join(cells).rstrip())
    return lines


def show(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> None:
    """Logs a table."""
    logger.info("%s", "\n".join(table(rows, right)))


def percent(value: float) -> str:
    """A fraction as a percentage with one decimal."""
    return f"{100 * value:.1f}%"
