"""The written report: the same bytes every time, and clear words about bad input."""

import os
import re
from pathlib import Path

import pytest
from made_up import entry, finetuning, row
from running import recipe

ROOT = Path(__file__).resolve().parents[2]
REPORT = ROOT / "docs" / "report"
TEXTS = {"report.md", "verdicts.json"}


def command(runs, folder):
    return ["report", "--runs_dir", runs, "--report_dir", folder]


def report(runs, folder):
    return recipe(*command(runs, folder))


def files_of(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The committed runs' report."""
    folder = tmp_path_factory.mktemp("report")
    assert report(REPORT / "runs", folder) == 0
    return folder


def test_the_report_opens_with_what_was_found_and_shows_the_papers_numbers_and_ours(written):
    text = (written / "report.md").read_text()
    table = text.split("| verdict |\n")[1].split("\n\n")[0]
    counts = {name: table.count(f"| {name} |") for name in ("appears", "reversed", "inconclusive", "failed")}
    assert sum(counts.values()) == len(table.splitlines()) - 1
    summary = text.splitlines()[2]
    assert f"{counts['appears']} of the {sum(counts.values()) - counts['failed']} orderings" in summary
    assert f"{counts['reversed']} are reversed and {counts['inconclusive']} are inconclusive" in summary
    assert "| BERT-base | paper | 84.4 | 88.4 | 86.7 | 92.7 | 88.5 |" in text
    plots = re.findall(r"\]\(plots/(.+?)\)", text)
    assert plots == ["along_pretraining.svg", "orderings.svg", "figure5.svg"]
    assert {path.name for path in (written / "plots").iterdir()} == set(plots)
    assert "Table 2 (" in text.split("## Not run")[1]


def test_finished_models_have_a_table_and_a_forest_of_differences(tmp_path):
    for place, (name, share) in enumerate((("first", 0.8), ("worse", 0.7))):
        known = {"task": "sst2", "split": "validation", "place": place, "trained": 500}
        row(tmp_path / "runs", [entry(1, name, "SST-2")], share, **known)
    assert report(tmp_path / "runs", tmp_path / "report") == 0
    text = (tmp_path / "report" / "report.md").read_text()
    assert re.search(r"worse against first: \*\*−10\.\d \(−\d+\.\d to −\d\.\d\)\*\*\.", text.splitlines()[2])
    assert re.search(r"\| Table 1 \| SST-2 \| \*\*−10\.\d \(", text)
    assert "| worse<br>next to BERT-base | ours |" in text and "Which orderings" not in text
    assert "ours is fine-tuned on 500 rows, the published set has 67,349" in text
    assert re.findall(r"\]\(plots/(.+?)\)", text) == ["models.svg"]
    assert (tmp_path / "report" / "plots" / "models.svg").exists()


def test_the_same_runs_give_the_same_bytes(tmp_path):
    for name in ("MLM", "LTR"):
        entries = [entry(5, {"MLM": "BERT-base", "LTR": "No NSP"}[name], "MNLI-m"), entry("figure5", name, 2000)]
        row(tmp_path / "runs", entries, 0.6, rows=400, step=2000)
    for folder in ("one", "two"):
        assert report(tmp_path / "runs", tmp_path / folder) == 0
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")
    assert files_of(tmp_path / "one").keys() == {*TEXTS, "plots/orderings.svg", "plots/figure5.svg"}
    for results in (tmp_path / "runs").glob("*/results.json"):
        if "BERT-base" in results.read_text():
            results.unlink()
    assert report(tmp_path / "runs", tmp_path / "one") == 0
    assert files_of(tmp_path / "one").keys() == {*TEXTS, "plots/figure5.svg"}, "a plot of runs that are gone goes"


def test_a_full_disk_leaves_the_old_report(tmp_path, refused, monkeypatch):
    folder = tmp_path / "report"
    finetuning(tmp_path / "runs", [], 0.7)
    assert report(tmp_path / "runs", folder) == 0
    old = files_of(folder)

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert "No space left on device" in refused(*command(tmp_path / "runs", folder))
    assert files_of(folder) == old


def test_two_runs_of_one_seed_in_a_configuration_and_a_missing_folder_are_refused(tmp_path, refused):
    row(tmp_path / "a", [entry(5, "BERT-base", "SST-2")], 0.7, task="sst2", split="validation")
    finetuning(tmp_path / "b", [entry(5, "BERT-base", "SST-2")], 0.8, task="sst2", split="validation", seed=2)
    for runs, message in (
        (tmp_path, "both fill Table 5, BERT-base, SST-2"),
        (tmp_path / "nowhere", f"--runs_dir {tmp_path / 'nowhere'}"),
    ):
        assert message in refused(*command(runs, tmp_path / "report"))


def test_the_committed_report_is_that_of_the_committed_runs(written):
    # Another matplotlib than the pinned one draws other bytes.
    assert (written / "report.md").read_text() == (REPORT / "report.md").read_text(), "run make report"
    assert files_of(written).keys() - TEXTS == {f"plots/{path.name}" for path in (REPORT / "plots").iterdir()}
