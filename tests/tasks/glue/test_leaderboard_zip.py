"""The leaderboard's zip, in the official layout with the official row counts."""

import json
import re
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from running import recipe

from bert_repro.errors import UserError
from bert_repro.tasks.glue.leaderboard_zip import (
    FILES,
    HEADER,
    WNLI_MAJORITY,
    LeaderboardFile,
    find_faults,
    find_runs,
    read_zip,
)

ROWS = {  # the sizes of the official test sets
    "AX.tsv": 1104, "CoLA.tsv": 1063, "MNLI-m.tsv": 9796, "MNLI-mm.tsv": 9847, "MRPC.tsv": 1725, "QNLI.tsv": 5463,
    "QQP.tsv": 390965, "RTE.tsv": 3000, "SST-2.tsv": 1821, "STS-B.tsv": 1379, "WNLI.tsv": 146,
}  # fmt: skip
SPELLINGS = {
    name: labels
    for labels, names in {
        ("0", "1"): ("CoLA.tsv", "MRPC.tsv", "QQP.tsv", "SST-2.tsv", "WNLI.tsv"),
        ("entailment", "neutral", "contradiction"): ("MNLI-m.tsv", "MNLI-mm.tsv", "AX.tsv"),
        ("entailment", "not_entailment"): ("QNLI.tsv", "RTE.tsv"),
    }.items()
    for name in names
}


def write_run(folder: Path, task: str, predictions: dict[str, list[str]], **results: Any) -> Path:
    """A finished run with its predictions, as `run_glue --do_train --do_predict` leaves it."""
    folder.mkdir(parents=True)
    splits: dict[str, Any] = {"test_other": {"missing": True}}
    for split, values in predictions.items():
        rows = [f"{number}\t{value}\t0.5\n" for number, value in enumerate(values)]
        (folder / f"predictions.{split}.tsv").write_text(f"{HEADER}\tprobability_x\n{''.join(rows)}")
        splits[split] = {"rows": len(rows), "files": [f"predictions.{split}.tsv"]}
    record = {"task": task, "train": {"steps": 1}, "settings": {"model_name_or_path": "start"}, "splits": splits}
    (folder / "results.json").write_text(json.dumps(record | results))
    return folder


def some_predictions(file: LeaderboardFile) -> list[str]:
    if file.task.number_range:
        return [f"{-0.2 + 5.5 * row / file.rows:.9g}" for row in range(file.rows)]
    names = file.task.label_names
    return [names[row % len(names)] for row in range(file.rows)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of every task, MNLI's as a search leaves it."""
    folder = tmp_path_factory.mktemp("runs")
    for task in {file.task.name: file.task for file in FILES}.values():
        predictions = {file.split: some_predictions(file) for file in FILES if file.task is task}
        if task.name == "ax":
            write_run(folder / "ax", "ax", predictions, train=None)
            record = json.loads((folder / "ax/results.json").read_text())
            del record["train"]
            record["settings"]["model_name_or_path"] = str(folder / "mnli")
            (folder / "ax/results.json").write_text(json.dumps(record))
        else:
            write_run(folder / task.name, task.name, predictions)
    write_run(folder / "mnli/search/configuration/seed42", "mnli", {})
    write_run(folder / "mnli/search/configuration/seed42/test", "mnli", {"test_matched": ["neutral"]})
    write_run(folder / "squad", "squad", {})
    return folder


@pytest.fixture(scope="module")
def contents(runs: Path) -> dict[str, bytes]:
    """What a right zip holds."""
    target = runs.parent / "complete.zip"
    assert recipe("make_glue_zip", "--runs", runs, "--output_file", target) == 0
    with zipfile.ZipFile(target) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def pack(path: Path, contents: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    return path


def test_the_zip_has_the_official_names_counts_order_and_spellings(contents: dict[str, bytes]) -> None:
    assert {name: content.count(b"\n") - 1 for name, content in contents.items()} == ROWS
    for name, content in contents.items():
        lines = content.decode().splitlines()
        assert lines[0] == "index\tprediction"
        indices, predictions = zip(*(line.split("\t") for line in lines[1:]), strict=True)
        assert list(indices) == [str(row) for row in range(ROWS[name])]
        if name == "STS-B.tsv":
            assert min(map(float, predictions)) == 0.0 and max(map(float, predictions)) == 5.0
            assert predictions[690] == f"{-0.2 + 5.5 * 690 / 1379:.6f}"
        elif name == "WNLI.tsv":
            assert set(predictions) == {"0"}
        else:
            assert set(predictions) == set(SPELLINGS[name])
    # Labels go by their names: an acceptable sentence is 1, a question with its answer "entailment".
    assert contents["CoLA.tsv"].decode().splitlines()[1:3] == ["0\t0", "1\t1"]
    assert contents["QNLI.tsv"].decode().splitlines()[1:3] == ["0\tentailment", "1\tnot_entailment"]
    assert contents["AX.tsv"].decode().splitlines()[1:4] == ["0\tentailment", "1\tneutral", "2\tcontradiction"]
    wnli = next(file for file in FILES if file.name == "WNLI.tsv")
    assert (wnli.task.label_names[0], wnli.spelled(WNLI_MAJORITY)) == (WNLI_MAJORITY, "0")


def test_the_same_predictions_make_the_same_bytes(runs: Path, contents: dict[str, bytes], tmp_path: Path) -> None:
    again = tmp_path / "again.zip"
    assert recipe("make_glue_zip", "--runs", runs, "--output_file", again) == 0
    assert again.read_bytes() == (runs.parent / "complete.zip").read_bytes()
    assert recipe("make_glue_zip", "--runs", runs, "--output_file", again) == 2
    assert recipe("make_glue_zip", "--runs", runs, "--output_file", again, "--overwrite_output_file") == 0


def test_a_right_zip_passes_whoever_made_it(contents, tmp_path, caplog):
    windows = {name: content.replace(b"\n", b"\r\n").removesuffix(b"\r\n") for name, content in contents.items()}
    for made in (contents, windows):
        assert find_faults(made) == []
    assert recipe("check_glue_zip", "--zip_file", pack(tmp_path / "right.zip", contents)) == 0
    assert "11 files, ready for the leaderboard" in caplog.text


def edit(line: int, text: str | None) -> Callable[[bytes], bytes]:
    """Changes one line of a file (the header is 1); None takes it away."""

    def change(content: bytes) -> bytes:
        lines = content.decode().splitlines()
        lines[line - 1 : line] = [] if text is None else [text]
        return "".join(f"{kept}\n" for kept in lines).encode()

    return change


@pytest.mark.parametrize(
    ("name", "change", "faults"),
    [
        ("CoLA.tsv", edit(7, "5\t2"), ["CoLA.tsv, line 7: prediction '2'; it must be one of: 0, 1"]),
        ("CoLA.tsv", edit(7, "5\tacceptable"), ["CoLA.tsv, line 7: prediction 'acceptable'; it must be one of: 0, 1"]),
        ("QNLI.tsv", edit(2, "0\tnot entailment"),
         ["QNLI.tsv, line 2: prediction 'not entailment'; it must be one of: entailment, not_entailment"]),
        ("AX.tsv", edit(3, "1\tnot_entailment"),
         ["AX.tsv, line 3: prediction 'not_entailment'; it must be one of: entailment, neutral, contradiction"]),
        ("STS-B.tsv", edit(2, "0\t5.01"), ["STS-B.tsv, line 2: prediction '5.01'; it must be a number from 0 to 5"]),
        ("STS-B.tsv", edit(2, "0\tnan"), ["STS-B.tsv, line 2: prediction 'nan'; it must be a number from 0 to 5"]),
        ("STS-B.tsv", edit(2, "0\t-0.1"), ["STS-B.tsv, line 2: prediction '-0.1'; it must be a number from 0 to 5"]),
        ("RTE.tsv", edit(3001, None), ["RTE.tsv: 2999 predictions; the official test set has 3000 rows"]),
        ("RTE.tsv", lambda content: content + b"3000\tentailment\n",
         ["RTE.tsv: 3001 predictions; the official test set has 3000 rows"]),
        ("MRPC.tsv", edit(4, "3\t1"), ["MRPC.tsv, line 4: index '3'; it must be 2, rows are in the order of the test"]),
        ("MRPC.tsv", edit(4, "2 1"), ["MRPC.tsv, line 4: '2 1' has 1 columns; it must have index and prediction"]),
        ("SST-2.tsv", edit(1, "id\tlabel"), ["SST-2.tsv, line 1: 'id\\tlabel'; it must be index and prediction"]),
        ("SST-2.tsv", edit(1, "\ufeffindex\tprediction"), ["SST-2.tsv, line 1: '\\ufeffindex\\tprediction'; it must"]),
        ("WNLI.tsv", lambda content: b"", ["WNLI.tsv, line 1: ''", "WNLI.tsv: 0 predictions; the official test"]),
        ("WNLI.tsv", lambda content: content.replace(b"0\t0", b"0\t\xff", 1), ["WNLI.tsv: byte 0xff is not UTF-8"]),
    ],
)  # fmt: skip
def test_every_kind_of_fault_is_named(contents, name, change, faults):
    found = [fault for fault in find_faults({name: change(contents[name])}) if ": missing" not in fault]
    assert len(found) == len(faults), found
    for line, fault in zip(found, faults, strict=True):
        assert line.startswith(fault)


def test_missing_and_unknown_files_are_named_and_many_faults_counted(contents: dict[str, bytes]) -> None:
    wrong = {name: content for name, content in contents.items() if name not in ("QQP.tsv", "MNLI-mm.tsv")}
    wrong |= {"glue/QQP.tsv": contents["QQP.tsv"], "mnli-mm.tsv": contents["MNLI-mm.tsv"]}
    assert find_faults(wrong) == [
        "glue/QQP.tsv: is none of the eleven files; they lie at the top of the zip, in this spelling",
        "mnli-mm.tsv: is none of the eleven files; they lie at the top of the zip, in this spelling",
        "MNLI-mm.tsv: missing; it needs 9847 predictions for test_mismatched of MNLI",
        "QQP.tsv: missing; it needs 390965 predictions for test of QQP",
    ]
    found = find_faults({**contents, "RTE.tsv": contents["RTE.tsv"].replace(b"\tnot_", b"\tnon_")})
    assert len(found) == 6 and found[-1] == "RTE.tsv: 1495 more faults of this kind"


def test_a_zip_that_is_damaged_or_holds_a_file_twice_is_refused(contents, tmp_path, caplog, capsys):
    path = pack(tmp_path / "damaged.zip", contents)
    data = bytearray(path.read_bytes())
    data[data.index(b"RTE.tsv") + 100] ^= 1
    path.write_bytes(data)
    assert recipe("check_glue_zip", "--zip_file", path) == 2
    assert "RTE.tsv: cannot be read (Bad CRC-32" in caplog.text
    assert re.search(r"^error: .*damaged.zip is not ready .*in RTE.tsv$", capsys.readouterr().err, re.MULTILINE)
    with pytest.warns(UserWarning), zipfile.ZipFile(path := tmp_path / "twice.zip", "w") as archive:
        for name, content in [*contents.items(), ("AX.tsv", contents["AX.tsv"])]:
            archive.writestr(name, content)
    assert recipe("check_glue_zip", "--zip_file", path) == 2
    assert "AX.tsv: is in the zip more than once" in caplog.text


@pytest.mark.parametrize(("name", "message"), [("none.zip", "No such file"), ("no.zip", "is no zip")])
def test_what_is_no_zip_is_refused(tmp_path: Path, name: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "no.zip").write_text("index\tprediction\n")
    assert recipe("check_glue_zip", "--zip_file", tmp_path / name) == 2
    assert message in capsys.readouterr().err


def test_without_all_runs_no_zip_is_written_and_every_absent_part_is_named(runs, tmp_path, caplog, capsys):
    target = tmp_path / "part.zip"
    wanted = [runs / name for name in ("cola", "sst2", "mrpc", "stsb", "qnli", "rte")]
    matched = write_run(tmp_path / "mnli", "mnli", {"test_matched": some_predictions(FILES[2])})
    assert recipe("make_glue_zip", "--runs", *wanted, matched, "--output_file", target) == 2
    assert not target.exists()
    messages = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert [line.split(":")[0] for line in messages] == ["AX.tsv", "MNLI-mm.tsv", "QQP.tsv"]
    assert f"--task_name ax --model_name_or_path {matched} --do_predict" in messages[0]
    assert "it needs 9847 predictions for test_mismatched of MNLI" in messages[1]
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == f"error: {target} is not written: 3 faults, listed above, in AX.tsv, MNLI-mm.tsv, QQP.tsv"


def test_predictions_of_another_size_and_an_ax_of_another_model_are_refused(runs, tmp_path, caplog):
    short = write_run(tmp_path / "rte", "rte", {"test": ["entailment", "maybe"]})
    foreign = write_run(tmp_path / "ax", "ax", {"test": some_predictions(FILES[0])})
    record = json.loads((foreign / "results.json").read_text())
    del record["train"]
    record["settings"]["model_name_or_path"] = str(runs / "rte")
    (foreign / "results.json").write_text(json.dumps(record))
    others = [runs / name for name in ("cola", "sst2", "mrpc", "stsb", "mnli", "qnli")]
    assert recipe("make_glue_zip", "--runs", *others, short, foreign, "--output_file", tmp_path / "a.zip") == 2
    assert "RTE.tsv: 2 predictions; the official test set has 3000 rows" in caplog.text
    assert "RTE.tsv, line 3: prediction 'maybe'; it must be one of: entailment, not_entailment" in caplog.text
    assert f"AX.tsv: predicted by {runs / 'rte'}, but MNLI by {runs / 'mnli'}" in caplog.text


def test_two_runs_of_a_task_are_not_chosen_between(runs: Path, tmp_path: Path, capsys: Any) -> None:
    write_run(tmp_path / "again", "rte", {"test": ["entailment"]})
    write_run(tmp_path / "dev-only", "rte", {})
    assert recipe("make_glue_zip", "--runs", runs, tmp_path, "--output_file", tmp_path / "a.zip") == 2
    assert f"{runs / 'rte'} and {tmp_path / 'again'} predict test of rte all" in capsys.readouterr().err
    with pytest.raises(UserError, match="no such folder"):
        find_runs([tmp_path / "nowhere"])
    assert len(find_runs([runs, runs / "rte"])) == 10


def test_a_zip_bomb_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("RTE.tsv", "other.tsv"):
            archive.writestr(name, b"0" * 20_000_000)
    tracemalloc.start()
    contents, faults = read_zip(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert contents == {"RTE.tsv": b"", "other.tsv": b""} and peak < 1_000_000
    assert faults == ["RTE.tsv: unpacks to 20,000,000 bytes; it cannot have more than 300,100"]
