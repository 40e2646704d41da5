"""The ledger of claims names code, tests, commands and deviations that exist; verdicts are those of the stored runs."""

import ast
import importlib
import json
import shlex
from pathlib import Path

import pytest
from running import recipe

from bert_repro.arguments import parse
from bert_repro.errors import UserError
from bert_repro.recipes import RECIPES
from bert_repro.reproduction.claims import METHOD_STATUSES, claims_page, method_claims, ordering_claims, read_claims
from bert_repro.reproduction.orderings import VERDICTS
from bert_repro.utils.process import is_main_process

ROOT = Path(__file__).resolve().parents[2]
DEVIATIONS = " ".join((ROOT / "docs" / "DEVIATIONS.md").read_text("utf-8").split())


@pytest.mark.parametrize("claim", read_claims(), ids=lambda claim: f"{claim.section}-{claim.claim[:50]}")
def test_a_claim_names_what_exists(claim):
    module, name = claim.code.split(":")
    assert hasattr(importlib.import_module(f"bert_repro.{module}"), name), claim.code

    file, function = claim.test.split("::")
    tree = ast.parse((ROOT / "tests" / file).read_text("utf-8"))
    assert function in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, claim.test

    command, *flags = shlex.split(claim.command)
    # Flags that need a value of the user's own end the command.
    values = {"--ensemble_with": ["other"]}
    flags += values.get(flags[-1] if flags else "", [])
    try:
        parse(RECIPES[command].config, flags)
    except UserError as error:
        # Required settings are the reader's; a flag or value that does not exist is the ledger's fault.
        assert "unknown flag" not in str(error) and "must be" not in str(error), (claim.command, error)


def test_statuses_follow_from_their_evidence():
    for claim in method_claims():
        assert claim.status in METHOD_STATUSES, claim
        assert (claim.status == "deviates") == bool(claim.deviation), claim
        assert claim.deviation in DEVIATIONS, f"docs/DEVIATIONS.md does not say: {claim.deviation}"
        assert claim.by in ("paper", "original code", "ours")
    verdicts = json.loads((ROOT / "docs" / "report" / "verdicts.json").read_text())["orderings"]
    packaged = json.loads((ROOT / "bert_repro" / "reproduction" / "verdicts.json").read_text())["orderings"]
    assert verdicts == packaged, "run make report"
    claims = ordering_claims(packaged)
    assert len(claims) == len(packaged) and {claim.status for claim in claims} <= set(VERDICTS)
    report = (ROOT / "docs" / "report" / "report.md").read_text("utf-8")
    for verdict in (item for item in packaged if item["verdict"] in ("appears", "reversed")):
        row = next(line for line in report.splitlines() if f"| {verdict['statement']} | {verdict['column']} |" in line)
        assert row.endswith(f"| {verdict['verdict']} |")


def test_the_page_is_current_and_a_part_is_printed(capsys):
    assert claims_page() == (ROOT / "docs" / "report" / "claims.md").read_text("utf-8"), "run make docs"
    assert is_main_process() and recipe("claims", "--status deviates --section A.2") == 0
    printed = capsys.readouterr().out
    assert "Adam corrects the bias" in printed and "DEVIATIONS.md" in printed
    assert printed.splitlines()[-1] == "2 claims: 2 deviates"
    assert recipe("claims", "--status wrong") == 2
