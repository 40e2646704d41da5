"""The leaderboard's zip, in the official layout with the official row counts."""

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from running import recipe

from bert_repro.tasks.glue_leaderboard import FILES, HEADER

ROWS = {  # the sizes of the official test sets
    "AX.tsv": 1104, "CoLA.tsv": 1063, "MNLI-m.tsv": 9796, "MNLI-mm.tsv": 9847, "MRPC.tsv": 1725, "QNLI.tsv": 5463,
    "QQP.tsv": 390965, "RTE.tsv": 3000, "SST-2.tsv": 1821, "STS-B.tsv": 1379, "WNLI.tsv": 146,
}  # fmt: skip


def write_run(folder: Path, task: str, predictions: dict[str, list[str]]) -> Path:
    """A finished run with its predictions, as `run_glue --do_train --do_predict` leaves it."""
    folder.mkdir(parents=True)
    for split, values in predictions.items():
        rows = "".join(f"{number}\t{value}\t0.5\n" for number, value in enumerate(values))
        (folder / f"predictions.{split}.tsv").write_text(f"{HEADER}\tprobability_x\n{rows}")
    (folder / "results.json").write_text(json.dumps({"task": task, "train": {"steps": 1}, "settings": {}}))
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of every task, below other folders."""
    folder = tmp_path_factory.mktemp("runs")
    found: dict[str, dict[str, list[str]]] = {}
    for name, (task, split) in FILES.items():
        labels = [f"{-0.2 + 5.5 * row / 500:.9g}" for row in range(500)] if task.number_range else task.label_names
        found.setdefault(task.name, {})[split] = [labels[row % len(labels)] for row in range(ROWS[name])]
    for name, predictions in found.items():
        write_run(folder / "below" / name, name, predictions)
    return folder


def test_the_zip_has_the_official_names_counts_order_and_spellings(runs: Path, tmp_path: Path) -> None:
    target = tmp_path / "a.zip"
    assert recipe("make_glue_zip", "--runs", runs, "--output_file", target) == 0
    with zipfile.ZipFile(target) as archive:
        contents = {name: archive.read(name).decode() for name in archive.namelist()}
    assert {name: content.count("\n") - 1 for name, content in contents.items()} == ROWS
    assert {content.splitlines()[0] for content in contents.values()} == {"index\tprediction"}
    # Labels go by their names: an acceptable sentence is 1, a question with its answer "entailment".
    assert contents["CoLA.tsv"].splitlines()[1:3] == ["0\t0", "1\t1"]
    assert contents["QNLI.tsv"].splitlines()[1:3] == ["0\tentailment", "1\tnot_entailment"]
    assert contents["AX.tsv"].splitlines()[1:4] == ["0\tentailment", "1\tneutral", "2\tcontradiction"]
    assert contents["STS-B.tsv"].splitlines()[1] == "0\t0.000000" and "\t5.000000\n" in contents["STS-B.tsv"]
    assert {line.split("\t")[1] for line in contents["WNLI.tsv"].splitlines()[1:]} == {"0"}


def test_what_is_missing_short_or_there_twice_is_named(runs: Path, tmp_path: Path, refused: Any) -> None:
    target = tmp_path / "x.zip"
    short = write_run(tmp_path / "short", "cola", {"test": ["acceptable"]})
    others = [path for path in (runs / "below").iterdir() if path.name != "cola"]
    for folders, message in (
        ([runs / "below" / "ax"], "CoLA.tsv: no run predicts test of CoLA"),
        ([runs, short], "all predict test of CoLA"),
        ([short, *others], "0 to 1062"),
        ([tmp_path / "none"], "no such folder; check the path"),
    ):
        assert message in refused("make_glue_zip", "--output_file", target, "--runs", *folders)
        assert not target.exists()
