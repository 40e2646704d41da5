"""Texts of other people in Markdown: shown as they are, and never read as markup."""

import json
import re
from typing import Any

_SPECIAL = re.compile(r"([\\`*\[\]<>|]|(?<!\w)_|_(?!\w))")


def line(text: Any) -> str:
    """Returns a text as Markdown that shows it on one line; characters with a meaning in Markdown are escaped."""
    return _SPECIAL.sub(r"\\\1", one_line(text))


def one_line(text: Any) -> str:
    """Returns a text with single spaces and without unprintable characters."""
    words = ["".join(filter(str.isprintable, word)) for word in str(text).split()]
    return " ".join(words)


def code(text: Any) -> str:
    """Returns a text as inline code, whatever backticks it contains."""
    content = one_line(text)
    if "`" not in content:
        return f"`{content}`"
    fence = "`" * (1 + _longest_run_of_backticks(content))
    return f"{fence} {content} {fence}"


def fenced(text: Any) -> str:
    """Returns a text as a code block, whatever backticks it contains."""
    fence = "`" * max(3, 1 + _longest_run_of_backticks(str(text)))
    return f"{fence}\n{one_line(text)}\n{fence}"


def literal(text: str) -> str:
    """Returns a text as a Python string that cannot end the code block around it."""
    return json.dumps(text, ensure_ascii=False).replace("```", r"\x60\x60\x60")


def cell(value: Any) -> str:
    """Returns a value as the content of a table cell; large numbers with commas."""
    if isinstance(value, list | tuple):
        return ", ".join(cell(element) for element in value)
    if isinstance(value, float) and value >= 1e3:
        return f"{value:,.0f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return line(value)


def score(value: Any) -> str:
    """Returns a score with four decimals, and a dash if there is none."""
    if isinstance(value, int | float):
        return f"{value:.4f}"
    return "-"


def _longest_run_of_backticks(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0)
