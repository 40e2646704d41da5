"""The written report: the same bytes every time, one page without resources, and clear words about bad input."""

import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import matplotlib
import pytest
from made_up import entry, finetuning, pretraining, row
from running import recipe

from bert_repro.reproduction.collect import collect
from bert_repro.reproduction.report import report_files

ROOT = Path(__file__).resolve().parents[2]
REPORT = ROOT / "docs" / "report"
VOID = {"meta", "br", "link", "img", "hr", "input"}


def command(runs, folder):
    return ["report", "--runs_dir", runs, "--report_dir", folder]


def report(runs, folder):
    return recipe(*command(runs, folder))


def files_of(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def written(trial, tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    assert report(trial, folder) == 0
    return folder


class Page(HTMLParser):
    """Checks that elements close in order; gathers ids and attributes."""

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.attributes = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.attributes += [(tag, name, value or "") for name, value in attributes]
        self.ids += [value for name, value in attributes if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.attributes += [(tag, name, value or "") for name, value in attributes]
        self.ids += [value for name, value in attributes if name == "id"]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> at {self.getpos()}"


def test_the_page_asks_the_network_for_nothing(written):
    text = (written / "index.html").read_text()
    page = Page(text)
    outside = [
        (tag, name, value) for tag, name, value in page.attributes if name in ("src", "srcset", "data", "action")
    ]
    assert outside == []
    links = [value for _, name, value in page.attributes if name in ("href", "xlink:href")]
    assert links and all(link.startswith("#") for link in links)
    assert all(link[1:] in page.ids for link in links)
    assert set(re.findall(r"url\((.)", text)) <= {"#"} and "@import" not in text
    assert not {"script", "link", "img", "iframe", "object"} & {tag for tag, _, _ in page.attributes}
    assert "default-src 'none'" in text
    names = ("http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink")  # names of languages, never fetched
    assert set(re.findall(r"https?://[^\s\"'<>]+", text)) <= set(names)


def test_the_page_is_complete_and_tables_scroll_in_their_own_box(written):
    text = (written / "index.html").read_text()
    page = Page(text)
    assert len(page.ids) == len(set(page.ids))
    assert {f"table{number}" for number in (1, 2, 3, 4)} <= set(page.ids)
    assert {"table5-trial", "table8-trial", "figure5-trial", "summary", "plots"} <= set(page.ids)
    assert [value for _, name, value in page.attributes if name == "name"] == ["viewport"]
    boxed = re.findall(r'<div class="box"[^>]*>\s*<table', text)
    assert len(boxed) == text.count("<table") > 8
    assert re.search(r"\.box \{[^}]*overflow-x: auto", text) and re.search(r"\.box \{[^}]*max-width: 100%", text)


def test_captions_rows_and_numbers_say_what_is_the_papers_and_what_is_ours(written):
    for name in ("index.html", "report.md"):
        text = (written / name).read_text()
        assert "Paper: The masked model converges marginally slower" in text
        assert "ours: 2 layers of 128, 3 seeds" in text
        assert "Our model in the row BERT-base has 2 layers of 128; the paper's has 12 layers of 768." in text.replace(
            "&#39;", "'"
        )
    numbers = json.loads((written / "numbers.json").read_text())
    table = next(table for table in numbers["tables"] if table["table"] == "5")
    ours = next(row for row in table["rows"] if row["row"] == "LTR & no NSP")["ours"]["SST-2"]
    assert ours["mean"] == pytest.approx(56, abs=0.2) and len(ours["seeds"]) == 3
    printed = f"{ours['mean']:.1f} ± {ours['deviation']:.1f}"
    assert printed in (written / "index.html").read_text() and printed in (written / "report.md").read_text()
    assert ours["difference"] == pytest.approx(ours["mean"] - 92.1, abs=1e-3)
    assert table["conditions"]["pre-training data"].startswith("29,361 documents, 82.0 M words")


def test_the_summary_counts_what_the_lists_show(written):
    numbers = json.loads((written / "numbers.json").read_text())
    verdicts = [ordering["verdict"] for ordering in numbers["orderings"]]
    appear, absent, unmeasurable, not_run = (
        sum(verdict in kinds for verdict in verdicts)
        for kinds in (("appears",), ("within our noise", "reversed"), ("not measurable",), ("not run",))
    )
    for name in ("index.html", "report.md"):
        text = " ".join((written / name).read_text().split())
        counted = (
            f"{appear} appear, {absent} do not appear, {unmeasurable} are not measurable and {not_run} were not run"
        )
        assert counted in text
    assert min(appear, absent, not_run) > 5 and unmeasurable == 2


def test_plots_are_drawn_of_what_was_run(written):
    names = {path.stem for path in (written / "plots").glob("*.svg")}
    breakdowns = {"breakdown-action-trial", "breakdown-frequency-trial", "breakdown-nsp-trial"}
    assert names == breakdowns | {"figure5-trial", "loss-mlm-trial", "loss-lm-trial", "loss-nsp-trial"}
    assert all(f"](plots/{name}.svg)" in (written / "report.md").read_text() for name in names)


@pytest.mark.slow
def test_the_same_runs_give_the_same_bytes(trial, written, tmp_path):
    command = [sys.executable, "recipes/report.py", "--runs_dir", str(trial), "--report_dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": "7"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert files_of(tmp_path) == files_of(written)


def test_a_plot_of_runs_that_are_gone_goes_too(tmp_path):
    runs = tmp_path / "runs"
    pretraining(runs, "one")
    finetuning(runs, [], 0.7)  # has no curve
    assert report(runs, tmp_path / "report") == 0
    assert list((tmp_path / "report" / "plots").glob("*.svg"))
    (runs / "one" / "results.json").unlink()
    assert report(runs, tmp_path / "report") == 0
    assert not list((tmp_path / "report" / "plots").glob("*.svg"))


def test_without_runs_everything_is_not_run_and_the_recipe_says_so(tmp_path, refused):
    files = report_files([])
    text = files["report.md"]
    assert "0 appear, 0 do not appear, 0 are not" in text
    assert "ours − paper" not in text and text.count("| paper |") == 0  # every table is folded into one line
    assert all(f"Table {number} (" in text.split("\n## Not run\n")[1] for number in range(1, 9))
    numbers = json.loads(files["numbers.json"])
    assert {row.get("ours", "not run") for table in numbers["tables"] for row in table["rows"]} == {"not run"}
    Page(files["index.html"])
    (tmp_path / "runs").mkdir()
    assert "no results.json below it; name the folder of finished runs" in refused(
        *command(tmp_path / "runs", tmp_path / "report")
    )
    assert not (tmp_path / "report").exists()


def test_a_run_of_no_study_fills_nothing(tmp_path):
    record = json.loads((finetuning(tmp_path / "runs", [], 0.7) / "results.json").read_text())
    del record["study"]
    (tmp_path / "runs" / "stray").mkdir()
    (tmp_path / "runs" / "stray" / "results.json").write_text(json.dumps(record))
    files = report_files(collect(tmp_path / "runs"))
    assert "stray" in files["index.html"] and "± " not in files["report.md"].split("How it is counted")[0]


NAMES = ("../up.yaml", "very " * 80 + "ä|b", "")


def test_any_name_of_a_size_preset_makes_a_complete_report(tmp_path):
    # Results of older versions name a custom preset by its file's path.
    for number, size_preset in enumerate(NAMES):
        runs = tmp_path / "runs" / str(number)
        name = pretraining(runs, f"start-{number}")
        finetuning(runs, [entry("figure5", "MLM", 100), entry(5, "BERT-base", "MNLI-m")], 0.7, size_preset=size_preset)
        record = json.loads((runs / name / "results.json").read_text())
        change(runs / name / "results.json", study={**record["study"], "size_preset": size_preset})
    assert report(tmp_path / "runs", tmp_path / "out" / "report") == 0
    page = Page((tmp_path / "out" / "report" / "index.html").read_text())
    assert len(page.ids) == len(set(page.ids)) and not any(" " in name for name in page.ids)
    plots = [path.name for path in (tmp_path / "out" / "report" / "plots").iterdir()]
    assert len(plots) == 6 * len(NAMES) and [path.name for path in (tmp_path / "out").iterdir()] == ["report"]
    text = (tmp_path / "out" / "report" / "report.md").read_text()
    assert all(f"](plots/{name})" in text for name in plots)


@pytest.mark.parametrize("blocked", ["numbers.json", "plots"])
def test_a_report_that_cannot_be_written_leaves_the_old_one(tmp_path, refused, blocked):
    folder = tmp_path / "report"
    pretraining(tmp_path / "runs", "one")
    assert report(tmp_path / "runs", folder) == 0
    if blocked == "plots":
        shutil.rmtree(folder / "plots")
        (folder / "plots").write_text("a file")
    else:
        (folder / blocked).unlink()
        (folder / blocked).mkdir()
    old = files_of(folder)
    row(tmp_path / "runs", STUDY["table_entries"], 0.7, task="sst2", split="validation")
    line = refused(*command(tmp_path / "runs", folder))
    assert str(folder / blocked) in line and ("Is a directory" in line or "Not a directory" in line)
    assert files_of(folder) == old


def test_a_full_disk_leaves_the_old_report(tmp_path, refused, monkeypatch):
    folder = tmp_path / "report"
    finetuning(tmp_path / "runs", [], 0.7)
    assert report(tmp_path / "runs", folder) == 0
    old = files_of(folder)
    pretraining(tmp_path / "runs", "one")
    write = Path.write_text

    def full(path, text, **options):
        write(path, text[:100], **options)
        if path.suffix != ".json" and "plots" in str(path):
            raise OSError(28, "No space left on device", str(path))
        return len(text)

    monkeypatch.setattr(Path, "write_text", full)
    assert "No space left on device" in refused(*command(tmp_path / "runs", folder))
    assert files_of(folder) == old


def change(path, **changes):
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, **changes}))


STUDY = {"size_preset": "trial", "table_entries": [entry(5, "BERT-base", "SST-2")]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": None}, "field task is None"),
        ({"splits": {"validation": {"metrics": {"f1": 1.0}, "rows_scored": 3}}}, "has no accuracy on validation"),
        (
            {"splits": {"validation": {"metrics": {"accuracy": float("nan")}, "rows_scored": 3}}},
            "the number 'NaN' is not finite",
        ),
        ({"study": [1]}, "field study is [1]"),
        ({"study": {**STUDY, "table_entries": {}}}, "study: table_entries is {}"),
        ({"study": {**STUDY, "table_entries": [{"table": 5}]}}, "each needs table, row and column"),
        ({"study": {**STUDY, "table_entries": [entry(9, "x", "y")]}}, "tables are 1, 2, 3, 4, 5, 6, 7, 8 and figure5"),
        (
            {"study": {**STUDY, "table_entries": [entry(5, "x", "SST2")]}},
            "Table 5 has columns MNLI-m, QNLI, MRPC, SST-2, SQuAD",
        ),
        ({"study": {**STUDY, "table_entries": [entry("figure5", "MLM", "end")]}}, "columns are steps"),
    ],
)
def test_results_that_no_run_writes_are_one_line_and_exit_code_2(tmp_path, refused, changes, message):
    path = finetuning(tmp_path, STUDY["table_entries"], 0.7, task="sst2", split="validation") / "results.json"
    change(path, **changes)
    line = refused(*command(tmp_path, tmp_path / "report"))
    assert str(path) in line and message in line
    assert not (tmp_path / "report").exists()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("results.json", '{"task": ', "is not valid JSON"),
        ("examples.json", '{"validation": [1, 0]}', "holds no scores"),
        ("examples.json", '{"validation": {"accuracy": ["a"]}}', "holds no scores"),
        ("examples.json", '{"validation": {"accuracy": []}}', "must be finite numbers"),
        ("examples.json", '{"validation": {"accuracy": [1, 0]}}', "2 examples give accuracy 0.5000"),
        ("curve.json", "{", "is not valid JSON"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, refused, name, text, message):
    folder = finetuning(tmp_path, STUDY["table_entries"], 0.7, task="sst2", split="validation")
    (folder / name).write_text(text)
    line = refused(*command(tmp_path, tmp_path / "report"))
    assert str(folder / name) in line and message in line


def test_two_runs_of_one_seed_in_a_configuration_and_a_missing_folder_are_refused(tmp_path, refused):
    row(tmp_path / "a", STUDY["table_entries"], 0.7, task="sst2", split="validation")
    finetuning(tmp_path / "b", STUDY["table_entries"], 0.8, task="sst2", split="validation", seed=2)
    assert "both fill Table 5, BERT-base, SST-2 with seed 2; remove one of them" in refused(
        *command(tmp_path, tmp_path / "report")
    )
    assert f"--runs_dir {tmp_path / 'nowhere'}: no such folder" in refused(
        *command(tmp_path / "nowhere", tmp_path / "report")
    )


def test_the_committed_report_is_that_of_the_committed_runs():
    # Without records there must be no report either.
    committed = {} if not REPORT.exists() else files_of(REPORT)
    runs = REPORT / "runs"
    expected = report_files(collect(runs)) if runs.is_dir() else {}
    found = {name: data.decode() for name, data in committed.items() if not name.startswith("runs/")}
    assert found.keys() == expected.keys()
    differing = [name for name in expected if words_of(found[name]) != words_of(expected[name])]
    assert differing == [], "run make report"


def words_of(text):
    """A file of the report. Another matplotlib than the pinned one draws other bytes; there, without the drawings."""
    pinned = f"matplotlib=={matplotlib.__version__}" in (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    return text if pinned else re.sub("<svg.*?</svg>", "", text, flags=re.DOTALL)
