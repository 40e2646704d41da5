"""Every score on our pages stands in a stored file."""

import sys
from pathlib import Path

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "docs"))
import measured

SOURCES = yaml.safe_load(measured.SOURCES.read_text("utf-8"))


@pytest.mark.parametrize("page", measured.pages())
def test_every_score_has_its_file(page: str) -> None:
    missing = [score for score in measured.scores_of(page) if measured.source_of(score, SOURCES.get(page, {})) is None]
    assert not missing, f"name their files in docs/measured.yaml: {missing}"


def test_every_named_file_exists() -> None:
    for page, sources in SOURCES.items():
        assert (measured.ROOT / page).is_file()
        for pattern in (*sources.get("stored", ()), *sources.get("means", ())):
            assert list(measured.ROOT.glob(pattern)), pattern


def test_a_wrong_score_is_noticed() -> None:
    sources = SOURCES["docs/how-to/small_machine.md"]
    assert measured.source_of("0.480", sources) == "checkpoints/bert-repro-mini/results.json"
    assert measured.source_of("0.4799", sources) is None


def test_the_list_is_current() -> None:
    page = measured.ROOT / "docs" / "report" / "numbers.md"
    assert page.read_text("utf-8") == measured.list_of_scores(), "run make docs"
