"""Finds the stored file of every score on our pages, from measured.yaml; `make docs` writes the list of them."""

import json
import re
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
SOURCES = Path(__file__).with_name("measured.yaml")
CODE_BLOCK = re.compile(r"```.*?```", re.DOTALL)
# Three or four decimals: scores. Fewer are settings, sections of the paper and rounded differences.
DECIMAL = re.compile(r"(?<![\w.])\d+\.\d+(?:e-?\d+)?")
SCORE = re.compile(r"(?<![\w.])\d+\.\d{3,4}(?![\w.]*\d)")
MARKDOWN_OF_THE_REPOSITORY = ("README.md", "docs/*.md", "docs/*/*.md", "examples/*.md")
# Generated from stored results by tested code, or a diary whose entries name their records.
NOT_CHECKED = ("docs/report/", "docs/reference/", "docs/CONFIGURATION.md", "docs/LOG.md")

INTRODUCTION = """# Where the scores come from

*Generated from `docs/measured.yaml`; a test looks for every score in its file.*

Every number of three or four decimals on our pages, outside of code blocks. The tables of the reproduction reports are
made from the results below `docs/report`.
"""


def pages() -> list[str]:
    """Returns the pages whose scores are checked, as paths below the repository's root."""
    paths: list[str] = []
    for pattern in MARKDOWN_OF_THE_REPOSITORY:
        for path in sorted(ROOT.glob(pattern)):
            name = path.relative_to(ROOT).as_posix()
            if not name.startswith(NOT_CHECKED):
                paths.append(name)
    return paths


def scores_of(page: str) -> list[str]:
    """Returns the scores on a page, as printed, each once."""
    text = CODE_BLOCK.sub("", (ROOT / page).read_text("utf-8"))
    return list(dict.fromkeys(SCORE.findall(text)))


def source_of(score: str, sources: dict[str, Any]) -> str | None:
    """Returns where a score of a page comes from; None if its sources do not have it.

    Args:
        score: the score as printed.
        sources: the page's entry in measured.yaml.
    """
    for pattern in sources.get("stored", ()):
        for path in sorted(ROOT.glob(pattern)):
            if _contains(path, score):
                return path.relative_to(ROOT).as_posix()
    for pattern in sources.get("means", ()):
        if score in _means(pattern, score):
            return f"mean or deviation over {pattern}"
    return sources.get("others", {}).get(score)


def _contains(path: Path, score: str) -> bool:
    """Returns whether a file has the number, as text or as a value that is printed so."""
    numbers = DECIMAL.findall(path.read_text("utf-8"))
    return any(_printed(float(number), score) == score for number in numbers)


def _means(pattern: str, score: str) -> set[str]:
    """Returns mean and deviation of every number, over the seeds of a run or over all numbers of a list."""
    groups: dict[tuple[str, str], list[float]] = {}
    for path in sorted(ROOT.glob(pattern)):
        # Folders of one run differ in their seed: model-task, or model-task/seed2.
        run = re.sub(r"[-/]?seed\d+", "", path.parent.relative_to(ROOT).as_posix())
        for name, value in _values(json.loads(path.read_text("utf-8"))):
            # A list of records keeps them apart; the numbers of the lists below a record belong together.
            groups.setdefault((run, re.sub(r"(?<=.)\[\d+\]", "[]", name)), []).append(value)
    printed = set()
    for values in groups.values():
        printed.add(_printed(statistics.fmean(values), score))
        if len(values) > 1:
            printed.add(_printed(statistics.stdev(values), score))
    return printed


def _printed(value: float, score: str) -> str:
    """Returns a value with as many decimals as a printed score."""
    return f"{value:.{len(score.partition('.')[2])}f}"


def _values(document: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Yields path and value of every number in a JSON document."""
    if isinstance(document, dict):
        for key, value in document.items():
            yield from _values(value, f"{name}.{key}")
    elif isinstance(document, list):
        for place, value in enumerate(document):
            yield from _values(value, f"{name}[{place}]")
    elif isinstance(document, int | float) and not isinstance(document, bool):
        yield name, float(document)


def list_of_scores() -> str:
    """Returns the page that names the file of every score."""
    sources = yaml.safe_load(SOURCES.read_text("utf-8"))
    parts = [INTRODUCTION]
    for page in pages():
        scores = scores_of(page)
        if not scores:
            continue
        lines = [f"## {page}", "", "| score | from |", "| --- | --- |"]
        for score in scores:
            lines.append(f"| {score} | {source_of(score, sources.get(page, {}))} |")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)
