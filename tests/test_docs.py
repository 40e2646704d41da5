"""README.md and docs/ keep their promises: commands parse, internal links lead somewhere, every page is in the menu."""

import json
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from bert_repro import cli
from bert_repro.errors import UserError
from bert_repro.recipes import RECIPES

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if "report" not in path.relative_to(DOCS).parts)
LINK = re.compile(r"\[[^\]\n]+\]\(([^)\s]+)\)")
FENCE = re.compile(r"```.*?```", re.DOTALL)
YAML = re.compile(r"```yaml\n(.*?)```", re.DOTALL)
CONFIG_FILE = re.compile(r"--config (\w+\.yaml)")
NAMED_FILE = re.compile(r"(?<![\w/])(?:tests|bert_repro|docs|recipes|benchmarks)/[\w/.-]*\.\w+\b(?!\*)")
COMMAND = re.compile(r"(?:bert-repro |recipes/)(\w+)(?:\.py)? ([^`\n|#&)]*)")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def commands(page: Path) -> list[tuple[str, str]]:
    """Recipe and flags of every command of a page, one line each."""
    text = re.sub(r"\\\n\s*", " ", page.read_text("utf-8"))
    return [(recipe, flags) for recipe, flags in COMMAND.findall(text) if flags.startswith("--") and "..." not in flags]


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=name_of)
def test_every_command_parses(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if page.name == "LOG.md":
        return  # quotes commands as they were typed
    monkeypatch.chdir(tmp_path)
    text = page.read_text("utf-8")
    for name, block in zip(CONFIG_FILE.findall(text), YAML.findall(text), strict=False):
        Path(name).write_text(block, encoding="utf-8")  # the file that the page shows
    for recipe, flags in commands(page):
        assert recipe in RECIPES, f"{recipe} {flags}"
        try:
            cli.parse(RECIPES[recipe].config, shlex.split(flags, comments=True))
        except UserError as error:
            raise AssertionError(f"{recipe} {flags}: {error}") from error


def test_every_internal_link_leads_to_a_file() -> None:
    for page in [*PAGES, ROOT / "README.md"]:
        for target in LINK.findall(FENCE.sub("", page.read_text("utf-8"))):
            if not re.match(r"[a-z]+:|#", target):
                assert (page.parent / target.split("#")[0]).exists(), f"{page}: {target}"


def test_the_scores_of_longer_inputs_are_those_of_the_measurement() -> None:
    rows = json.loads((DOCS / "reference_curves" / "longer_inputs.json").read_text("utf-8"))
    section = (
        (DOCS / "tutorials" / "own_domain.md").read_text("utf-8").split("\n## Longer inputs\n")[1].split("\n## ")[0]
    )
    table = [line.strip("|") for line in section.splitlines() if line.startswith("|")]
    head, _, *lines = [[cell.strip() for cell in line.split("|")] for line in table]
    measured = {(row["length"], row["steps"], row["way"]): row["accuracy"] for row in rows if "accuracy" in row}
    for length, steps, *cells in lines:
        expected = [measured.get((int(length.replace(",", "")), int(steps), way)) for way in head[2:]]
        assert cells == ["" if value is None else f"{value:.3f}" for value in expected], length
    stored = {f"{value:.3f}" for row in rows for value in row.values() if isinstance(value, float)}
    assert len(lines) > 3 and set(re.findall(r"\d\.\d{3}", section)) <= stored


def test_every_named_file_exists() -> None:
    """A promise of SECURITY.md without its test, a page that names a module of yesterday."""
    missing = [
        f"{name_of(page)}: {path}"
        for page in [*PAGES, *(ROOT / f"{name}.md" for name in ("README", "SECURITY", "CONTRIBUTING"))]
        for path in NAMED_FILE.findall(page.read_text("utf-8"))
        if "NAME" not in path and not (ROOT / path).exists()
    ]
    assert missing == []


def test_the_menu_of_the_website_names_every_page_once() -> None:
    def pages(entry: object) -> list[str]:
        if isinstance(entry, str):
            return [entry]
        children = entry.values() if isinstance(entry, dict) else entry
        return [page for child in children for page in pages(child)]  # type: ignore[attr-defined]

    listed = pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"])
    reports = {"report/report.md", "report/models/report.md", "report/claims.md", "report/numbers.md"}
    pages_of_the_menu = {path.relative_to(DOCS).as_posix() for path in PAGES} - {"LOG.md"}
    assert sorted(listed) == sorted(pages_of_the_menu | reports)


def test_every_guide_has_headings() -> None:
    guides = [*DOCS.glob("how-to/*.md"), *DOCS.glob("tutorials/*.md"), *DOCS.glob("explanations/*.md")]
    without = [name_of(page) for page in guides if "\n## " not in FENCE.sub("", page.read_text("utf-8"))]
    assert without == []


def test_the_website_builds_without_a_warning(tmp_path: Path) -> None:
    """Links that lead out of docs/, and anchors that no page has, are warnings; --strict makes them errors."""
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert built.returncode == 0, built.stderr


def test_the_configuration_reference_is_current(monkeypatch: pytest.MonkeyPatch) -> None:
    # A script finds the modules beside it.
    monkeypatch.syspath_prepend(DOCS)
    made = runpy.run_path(str(DOCS / "make_reference.py"))["configuration_reference"]()
    assert (DOCS / "CONFIGURATION.md").read_text("utf-8") == made, "run: make docs"
