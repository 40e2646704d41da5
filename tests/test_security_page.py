"""Every promise of SECURITY.md names a test that exists."""

import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]


def test_the_tests_of_the_security_page_exist() -> None:
    text = (REPOSITORY / "SECURITY.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith(("| ---", "| promise"))]
    assert rows
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row)
        assert named, f"no test: {row}"
        for path, name in named:
            assert f"def {name}(" in (REPOSITORY / path).read_text(encoding="utf-8"), f"{path}::{name}"
