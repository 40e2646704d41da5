"""SECURITY.md names tests that exist, and `make audit` never takes what was not asked for a pass."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
AUDIT = ROOT / ".ci" / "audit"
CLEAN = {"name": "a", "version": "1", "vulns": []}
FAULTY = {"name": "b", "version": "1", "vulns": [{"id": "CVE-1", "fix_versions": ["2"]}]}
UNKNOWN = {"name": "c", "skip_reason": "not found"}
ANSWERS = {
    "all clean": ([CLEAN], 0, "audit: 0 known vulnerabilities; 1 of 1 packages asked for"),
    "one is vulnerable": ([CLEAN, FAULTY], 1, "b 1: CVE-1, fixed in 2"),
    "one is not known": ([CLEAN, UNKNOWN], 2, "c: not run (not found)"),
    "none is known": ([UNKNOWN], 2, "audit: not run (the service knows none of 1 packages"),
    "no service": (None, 2, "audit: not run (ConnectionError: no route)"),
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_the_audit_says_what_was_not_run(tmp_path, kind):
    packages, code, message = ANSWERS[kind]
    tool = tmp_path / "pip-audit"
    answer = f"open(sys.argv[sys.argv.index('--output') + 1], 'w').write({json.dumps({'dependencies': packages})!r})"
    failure = "sys.exit('ConnectionError: no route')"
    tool.write_text(f"#!{sys.executable}\nimport sys\n{failure if packages is None else answer}\n")
    tool.chmod(0o755)
    done = subprocess.run([sys.executable, AUDIT, tool], capture_output=True, text=True)
    assert done.returncode == code
    assert message in done.stdout + done.stderr


def test_every_promise_of_the_security_policy_names_a_test_that_exists():
    table = (ROOT / "SECURITY.md").read_text("utf-8").partition("| promise |")[2].partition("\n\n")[0]
    rows = table.splitlines()[2:]
    assert len(rows) > 5
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)`", row)
        assert named, row
        assert all((ROOT / name).is_file() for name in named), row
