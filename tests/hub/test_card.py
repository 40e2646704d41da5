"""A card says what the results of a run say, in the Hub's own form."""

import ast
import json
import re
from pathlib import Path

import pytest
import yaml
from running import recipe

from bert_repro.hub.card import make_card, renamed
from bert_repro.hub.metadata import HUB_TASKS, find_card_errors

RESULTS = {
    "task": "mrpc",
    "split": "validation",
    "metrics": {"accuracy": 0.8578, "f1": 0.9},
    "rows_scored": 408,
    "splits": {
        "validation": {"metrics": {"accuracy": 0.8578, "f1": 0.9}, "rows_scored": 408},
        "test": {"missing": True},
    },
    "seed": 7,
    "base_model": "org/bert-mini",
    "settings": {"model_name_or_path": "org/bert-mini", "learning_rate": 5e-5, "data_dir": None},
    "versions": {"python": "3.11.7", "torch": "2.13.0"},
    "git_commit": "0123abc",
    "hardware": {"device": "cpu", "cores": 2},
    "wall_time_seconds": 61.2,
    "command": "python recipes/run_glue.py --task_name mrpc",
    "model": {"class": "BertReproForSequenceClassification", "parameters": 11_171_074, "labels": ["no", "not_yes"]},
    "data": {"dataset": "nyu-mll/glue", "config": "mrpc", "language": "en", "text_columns": ["sentence1", "sentence2"]},
    "train": {"steps": 344, "rows": 3668},
}


def metadata(card: str) -> dict:
    return yaml.safe_load(card.split("---\n")[1])


def test_text_says_what_the_results_say():
    text = make_card(RESULTS, "org/bert-mini-mrpc")
    for part in (
        "# org/bert-mini-mrpc\n",
        "| validation | accuracy | 0.8578 | 408 |",
        "| test | any | not run |",
        "seed 7",
        "11,171,074 parameters",
        "Labels: no, not_yes.",
        "python recipes/run_glue.py --task_name mrpc",
        "| optimizer steps | 344 |",
        "| learning_rate | 5e-05 |",
        "torch 2.13.0",
        "`0123abc`",
        "Wall time: 61 s.",
        "The license of the training data is not recorded.",
        '"text_pair"',
    ):
        assert part in text, part
    assert "data_dir" not in text
    assert "None" not in text
    assert "{{" not in text.replace("{{BERT}", "")


def test_without_results_a_card_claims_nothing():
    text = make_card({}, "org/unknown")
    assert "Not run." in text
    assert "Training: not run, or not recorded." in text
    assert "How to use it" not in text
    assert not {"model-index", "base_model", "datasets", "language", "pipeline_tag", "widget"} & metadata(text).keys()


@pytest.mark.parametrize("key", RESULTS)
def test_any_key_may_be_missing(key):
    card = make_card({name: value for name, value in RESULTS.items() if name != key}, "org/x")
    assert find_card_errors(card) == []
    assert ("base_model" in metadata(card)) is (key != "base_model"), "a model_name_or_path may be a folder"


def test_names_of_older_versions_are_read():
    spread = {"mean": 0.5, "standard_deviation": 0.1, "best": 0.6}
    row = {"learning_rate": 1e-4, "batch": 8, "epochs": 3.0, "steps": None, "runs": 2, "collapsed": 1, "not_finite": 0}
    cells = [{**row, "splits": {"validation": {"accuracy": spread}}}]
    search = {"split": "validation", "metric": "accuracy", "runs_done": 2, "cells": cells}
    text = make_card({**RESULTS, "collapsed": True, "search": search}, "org/x")
    assert "**This run is degenerate**" in text
    assert "| 0.0001 | 8 | 3.0 | 2 | 0.5000 | 0.1000 | 0.6000 | 1 | 0 |" in text


def test_renaming_a_card_equals_making_it_with_the_other_name():
    for results in (RESULTS, {**RESULTS, "revision": "step-5"}, {**RESULTS, "data": {"dataset": None}}, {}):
        for name in ("toy", 'odd "name" of_ a [run]'):
            card = make_card(results, name)
            assert renamed(card, "org/bert-toy") == make_card(results, "org/bert-toy") != card
            assert renamed(card, name) == card
    assert renamed("No title.\n", "org/x") == "No title.\n"
    by_hand = make_card(RESULTS, "toy") + '\nIt is called "toy" at home.\n'
    assert renamed(by_hand, "org/x").endswith('\nIt is called "toy" at home.\n')


HOSTILE = '"]) # \n---\n```\nimport os; os.system("x")\n```\n# <b>Title</b> | a | `b` [c](http://d)\x1b[0m'


@pytest.mark.parametrize("ending", HUB_TASKS)
def test_text_of_a_run_cannot_change_the_structure_of_its_card(ending):
    plain, odd = (
        make_card(
            {
                **RESULTS,
                "model": {"class": f"BertRepro{ending}", "labels": [text, "b"]},
                "task": text,
                "revision": text,
                "data": {"dataset": "a/b", "config": text, "license": text, "note": text, "sources": [text]},
                "deviations": {text: text},
                "settings": {"model_name_or_path": text, text: text},
                "command": text,
                "git_commit": text,
                "versions": {text: text},
                "base_model": None,
                "metrics": {text: 0.5},
                "splits": {},
            },
            text,
        )
        for text in ("plain", HOSTILE)
    )
    assert metadata(odd)["tags"][-1] == HOSTILE
    shape = re.compile(r"^(#+ |`{3,}(?=\w*$)|\| --- |---$|</?\w+>)", re.MULTILINE)
    body = [card.split("---\n", 2)[2] for card in (plain, odd)]
    shapes = [[found[1].replace("````", "```") for found in shape.finditer(text)] for text in body]
    assert shapes[0] == shapes[1]
    snippets = [re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL) for text in body]
    for one, other in zip(*snippets, strict=True):
        calls = [[ast.unparse(node.func) for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
                 for code in (one, other)]  # fmt: skip
        assert calls[0] == calls[1]
    outside_code = re.sub(r"(?<!\\)(`+)(?!`).*?(?<![\\`])\1(?!`)", "", body[1], flags=re.DOTALL)
    assert not re.search(r"(?<!\\)(<b>|\[c\])", outside_code)


def test_a_class_that_is_no_name_is_refused_and_no_secret_reaches_the_card():
    with pytest.raises(ValueError, match="is no BERT model"):
        make_card({"model": {"class": "x; import os #ForMaskedLM"}}, "org/x")
    token = "hf_" + "x1Y" * 9
    results = {**RESULTS, "command": f"run --token {token}", "settings": {"hub_token": token, "note": token}}
    assert token not in make_card(results, "org/x")


def test_a_model_that_transformers_does_not_have_gets_no_upstream_snippet():
    text = make_card({**RESULTS, "model": {**RESULTS["model"], "model_type": "bert_repro"}}, "org/x")
    assert "refuses this folder" in text
    assert "from transformers import pipeline" not in text
    assert "trust_remote_code=True" in text


def test_departures_parts_and_relative_paths_are_named():
    results = {
        **RESULTS,
        "deviations": {"uncased": "the vocabulary is uncased"},
        "settings": {"max_eval_samples": 50, "max_train_samples": 1000, "data_dir": "/d/glue"},
    }
    text = make_card(results, "org/x")
    for part in (
        "- uncased: the vocabulary is uncased",
        "Scored on the first 50 examples only.",
        "Trained on the first 1,000 examples only.",
        "read from its official files",
    ):
        assert part in text, part
    settings = {"output_dir": "/data/run", "resume_from_checkpoint": "/data/run/checkpoints/step-5"}
    text = make_card({**RESULTS, "settings": settings}, "org/x")
    assert "| resume_from_checkpoint | checkpoints/step-5 |" in text and "| output_dir | run |" in text
    assert "the run was resumed" in text


# --- recipes/make_card.py -------------------------------------------------------------------------------------------

COLA = {
    "task": "cola",
    "split": "validation",
    "metrics": {"matthews_correlation": 0.25, "accuracy": 0.75},
    "primary_metric": "matthews_correlation",
    "rows_scored": 1043,
    "train": {"steps": 10, "batch": 4},
    "seed": 1,
    "settings": {"output_dir": "/srv/runs/cola", "learning_rate": 5e-5, "seed": 1, "model_name_or_path": "/srv/bert"},
    "command": "python recipes/run_glue.py --data_dir /srv/glue --output_dir=/srv/runs/cola --config ../a.yaml",
    "model": {"class": "BertReproForSequenceClassification"},
    "data": {"dataset": "nyu-mll/glue", "config": "cola", "language": "en", "license": "that of its source"},
}


def run_folder(root: Path, name: str = "cola", **changes: object) -> Path:
    folder = root / name
    folder.mkdir()
    (folder / "results.json").write_text(json.dumps({**COLA, **changes}))
    return folder


def test_the_recipe_adds_facts_and_shows_no_path_of_this_machine(tmp_path):
    folder, card = run_folder(tmp_path), tmp_path / "cards" / "of" / "bert-cola.md"
    facts = "--base_model org/bert --license bsd-2-clause --language en de --hub_model_id org/bert-cola"
    assert recipe("make_card", "--folder", folder, "--output_file", card, facts) == 0
    text = card.read_text()
    fields = metadata(text)
    assert (fields["base_model"], fields["license"], fields["language"]) == ("org/bert", "bsd-2-clause", ["en", "de"])
    assert fields["datasets"] == ["nyu-mll/glue"]
    assert "/srv" not in text and "../a.yaml" not in text
    assert "run_glue.py --data_dir glue --output_dir=cola --config a.yaml" in text


def test_seeds_are_shown_with_mean_and_deviation(tmp_path):
    folder = run_folder(tmp_path)
    settings = {**COLA["settings"], "seed": 2, "output_dir": "elsewhere"}
    other = run_folder(
        tmp_path, "cola2", seed=2, settings=settings, metrics={"matthews_correlation": 0.35, "accuracy": 0.75}
    )
    assert recipe("make_card", "--folder", folder, "--same_runs", other) == 0
    text = (folder / "README.md").read_text()
    assert "with the seeds 1, 2" in text
    assert "| validation | Matthews correlation | 2 | 0.3000 | 0.0707 |" in text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 1}, "has the same seed 1"),
        ({"seed": 2, "settings": {**COLA["settings"], "learning_rate": 1e-4}}, "learning_rate is 0.0001, not 5e-05"),
        ({"seed": 2, "task": "rte"}, "task is 'rte', not 'cola'"),
    ],
)
def test_runs_that_are_not_the_same_are_refused(tmp_path, refused, changes, message):
    folder, other = run_folder(tmp_path), run_folder(tmp_path, "other", **changes)
    assert message in refused("make_card", "--folder", folder, "--same_runs", other)


def test_what_cannot_become_a_card_is_refused_in_one_line(tmp_path, refused):
    folder, empty = run_folder(tmp_path), tmp_path / "empty"
    scored = run_folder(tmp_path, "scored", train=None)
    results = json.loads((scored / "results.json").read_text())
    (scored / "results.json").write_text(json.dumps({key: value for key, value in results.items() if key != "train"}))
    empty.mkdir()
    (tmp_path / "file").touch()
    for arguments, message in (
        (f"--folder {folder} --base_model ../bert", "base_model: '../bert'"),
        (f"--folder {folder} --language English", "language: 'English'"),
        (f"--folder {folder} --output_file {tmp_path}/file/card.md", "lies below the file"),
        (f"--folder {empty}", "results.json: cannot be read"),
        (f"--folder {scored}", "its run made no model"),
    ):
        assert message in refused("make_card", arguments)
        assert not (folder / "README.md").exists() and not (scored / "README.md").exists()


def test_other_data_than_the_tasks_makes_no_claim_about_it(tmp_path):
    folder, card = run_folder(tmp_path), tmp_path / "bert-cola.md"
    for dataset, shown in (("none", None), ("org/other", ["org/other"])):
        assert recipe("make_card", "--folder", folder, "--output_file", card, f"--dataset {dataset}") == 0
        fields = metadata(card.read_text())
        assert fields.get("datasets") == shown
        assert ("model-index" in fields) is (dataset != "none")
        assert "language" not in fields and "The license of the training data is not recorded." in card.read_text()
    custom = run_folder(tmp_path, "custom", data={"dataset": None, "language": "de"})
    assert recipe("make_card", "--folder", custom, "--dataset org/other") == 0
    assert metadata((custom / "README.md").read_text())["language"] == "de", "the run's own facts stay"


def test_a_card_in_the_folder_writes_the_claims_to_benchmarks_again(tmp_path):
    folder = run_folder(tmp_path)
    claim = folder / ".eval_results" / "cola.yaml"
    assert recipe("make_card", "--folder", folder) == 0
    (entry,) = yaml.safe_load(claim.read_text())
    assert (entry["dataset"], entry["value"]) == ({"id": "nyu-mll/glue", "task_id": "cola"}, 0.25)
    elsewhere = tmp_path / "bert-cola.md"
    assert recipe("make_card", "--folder", folder, "--output_file", elsewhere, "--dataset none") == 0
    assert claim.exists(), "a card elsewhere leaves the folder as it is"
    assert recipe("make_card", "--folder", folder, "--dataset org/other") == 0
    (entry,) = yaml.safe_load(claim.read_text())
    assert entry["dataset"]["id"] == "org/other"
    assert recipe("make_card", "--folder", folder, "--dataset none") == 0
    assert not claim.exists()
