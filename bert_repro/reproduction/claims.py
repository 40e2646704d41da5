"""The ledger of the paper's claims: where each one is in the code, what tests it, and what came of it.

Claims about the method stand in claims.yaml, with a status that tests hold against the code and DEVIATIONS.md. The
orderings of the paper's tables and of Figure 5 stand in verdicts.json, which `make report` writes from the results of
finished runs, so their status cannot be edited by hand.
"""

import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TypedDict

import yaml

from bert_repro.configs.reproduction import ClaimsConfig
from bert_repro.reproduction.paper_results import table_name
from bert_repro.utils.readers import read_json_object

SAME, DEVIATES, NEVER_RUN = "same", "deviates", "never run"
METHOD_STATUSES = (SAME, DEVIATES, NEVER_RUN)

# The section of the paper that each table belongs to.
_SECTIONS = {
    "1": "4.1",
    "2": "4.2",
    "3": "4.3",
    "4": "4.4",
    "5": "5.1",
    "6": "5.2",
    "7": "5.3",
    "8": "C.2",
    "figure5": "C.1",
}
_ORDERING_TEST = "reproduction/test_paper_tables.py::test_orderings_appear_are_inconclusive_are_reversed_or_not_run"

_PAGE_INTRODUCTION = """# The paper's claims, one by one

Every claim that can be implemented or measured: where it is in the code, the test that checks it, the command that puts
it to use, and its status. `bert-repro claims --status reversed` prints a part of this page in a terminal.

Tests check the status of a claim about the method: `same`, `deviates` (with the reason in
[DEVIATIONS](../DEVIATIONS.md)), or `never run` if only the paper's own size could tell. The status of an ordering
(`appears`, `reversed`, `inconclusive`, `failed`, `not run`) comes from the stored results of [the report](report.md).
"""


class Verdict(TypedDict):
    """One ordering of the paper in verdicts.json."""

    table: str
    statement: str
    column: str
    paper: float | None
    size_preset: str | None
    verdict: str
    difference: float | None
    low: float | None
    high: float | None
    p_value: float | None


@dataclass(frozen=True)
class Claim:
    """One claim of the paper.

    Args:
        section: section of the paper.
        claim: what it says, in our words.
        code: `module:name` of the code behind it, below `bert_repro`.
        test: `file::function` of the test that checks it, below `tests/`.
        command: the recipe, with flags, that puts it to use.
        status: one of METHOD_STATUSES or of the report's verdicts.
        by: who decides this if not the paper: "original code" or "ours".
        deviation: words of the line of DEVIATIONS.md that gives the reason.
        result: for an ordering, our difference with its interval.
    """

    section: str
    claim: str
    code: str
    test: str
    command: str
    status: str
    by: str = "paper"
    deviation: str = ""
    result: str = ""


def print_claims(config: ClaimsConfig) -> None:
    """Prints the ledger, or the part with some statuses and sections, and counts by status."""
    claims = [claim for claim in read_claims() if _is_wanted(claim, config)]
    for claim in claims:
        sys.stdout.write(_entry(claim))
    counts = Counter(claim.status for claim in claims)
    summary = ", ".join(f"{count} {status}" for status, count in counts.most_common())
    sys.stdout.write(f"{len(claims)} claims: {summary or 'none with this status and section'}\n")


def _is_wanted(claim: Claim, config: ClaimsConfig) -> bool:
    if config.status and claim.status not in config.status:
        return False
    return not config.section or claim.section in config.section


def _entry(claim: Claim) -> str:
    """Returns a claim as a paragraph: what it says, its status, and where to look."""
    status = claim.status
    if claim.result:
        status += f", ours {claim.result}"
    if claim.deviation:
        status += f" (DEVIATIONS.md: {claim.deviation})"
    text = textwrap.fill(f"{claim.section}  {claim.claim}: {status}", 100, subsequent_indent="     ")
    return f"{text}\n     code {claim.code}, test {claim.test}\n     bert-repro {claim.command}\n"


def read_claims() -> list[Claim]:
    """Returns all claims, sorted by section: those about the method, then the orderings of the tables."""
    claims = [*method_claims(), *ordering_claims(read_verdicts())]
    return sorted(claims, key=lambda claim: _section_key(claim.section))


def method_claims() -> list[Claim]:
    """Returns the claims in claims.yaml."""
    text = resources.files("bert_repro.reproduction").joinpath("claims.yaml").read_text("utf-8")
    return [Claim(**row) for row in yaml.safe_load(text)]


def read_verdicts() -> list[Verdict]:
    """Returns the orderings in verdicts.json."""
    with resources.as_file(resources.files("bert_repro.reproduction").joinpath("verdicts.json")) as path:
        verdicts: list[Verdict] = read_json_object(Path(path))["orderings"]
    return verdicts


def ordering_claims(verdicts: Iterable[Verdict]) -> list[Claim]:
    """Returns a claim for each ordering and size at which its table was run, or one if it was not run."""
    claims = []
    for verdict in verdicts:
        key = verdict["table"]
        where = f"{table_name(key)}, {verdict['column']}"
        if verdict["size_preset"]:
            where += f", our size {verdict['size_preset']}"
        claims.append(
            Claim(
                section=_SECTIONS[key],
                claim=f"{verdict['statement']} ({where})",
                code="reproduction.orderings:orderings_of",
                test=_ORDERING_TEST,
                command=f"run_study --table {key}",
                status=verdict["verdict"],
                result=_result(verdict),
            )
        )
    return claims


def _result(verdict: Verdict) -> str:
    """Returns our difference with its interval; empty if there is none."""
    if verdict["difference"] is None:
        return ""
    text = f"{verdict['difference']:+.1f}"
    if verdict["low"] is not None:
        text += f" ({verdict['low']:+.1f} to {verdict['high']:+.1f})"
    return text


def _section_key(section: str) -> tuple[bool, list[str]]:
    """Sorts sections as they come in the paper, the appendices last."""
    return section[0].isalpha(), section.split(".")


def claims_page() -> str:
    """Returns the ledger as a Markdown page."""
    claims = read_claims()
    counts = Counter(claim.status for claim in claims)
    summary = ", ".join(f"{count} {status}" for status, count in counts.most_common())
    lines = [_PAGE_INTRODUCTION, f"{len(claims)} claims: {summary}.\n"]
    for section in dict.fromkeys(claim.section for claim in claims):
        lines += _section_lines(section, [claim for claim in claims if claim.section == section])
    return "\n".join(lines) + "\n"


def _section_lines(section: str, claims: Sequence[Claim]) -> list[str]:
    lines = [f"## Section {section}\n", "| claim | status | code | test | command |", "| --- | --- | --- | --- | --- |"]
    for claim in claims:
        status = claim.status
        if claim.result:
            status += f": {claim.result}"
        if claim.deviation:
            status += f": {claim.deviation}"
        cells = (claim.claim, status, f"`{claim.code}`", f"`{claim.test}`", f"`{claim.command}`")
        lines.append(f"| {' | '.join(map(_cell, cells))} |")
    return [*lines, ""]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("[MASK]", "`[MASK]`")
