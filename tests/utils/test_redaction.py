"""Nothing secret leaves through a record."""

import json
from pathlib import Path

import pytest
from running import recipe

from bert_repro.utils.redaction import REMOVED, redacted, without_machine_paths

TOKEN = "hf_" + "aB3" * 8


def test_tokens_and_the_home_folder_are_removed_in_a_copy(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    record = {"command": f"push --token {TOKEN}", "list": [f"{Path.home()}/runs", 1.5, True]}
    assert redacted(record) == {"command": f"push --token {REMOVED}", "list": ["~/runs", 1.5, True]}
    assert TOKEN in record["command"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/the_home", "~"),
        ("/the_home/x.csv", "~/x.csv"),
        ("--file=/the_home/x.csv", "--file=~/x.csv"),
        ("file:///the_home/x.csv", "file://~/x.csv"),
        ("It is in /the_home.", "It is in ~."),
        ("/data/the_home/x.csv", "/data/the_home/x.csv"),
        ("/data//the_home/x.csv", "/data//the_home/x.csv"),
        ("/the_homes /the_home-2 /the_home.old", "/the_homes /the_home-2 /the_home.old"),
    ],
)
def test_the_home_folder_is_whole_components(monkeypatch, text, expected):
    monkeypatch.setenv("HOME", "/the_home")
    assert redacted(text) == expected


def test_keys_and_short_values_stay_and_nothing_is_replaced_twice(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "e")
    assert redacted({"seed": "one e"}) == {"seed": "one e"}
    monkeypatch.setenv("HF_TOKEN", "accuracy")
    assert redacted({"accuracy": "the accuracy"}) == {"accuracy": f"the {REMOVED}"}
    # One token may begin with another one.
    monkeypatch.setenv("WANDB_API_KEY", "accuracy_and_more")
    assert redacted("accuracy_and_more") == REMOVED


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/data/glue", "glue"),
        ("~/glue", "glue"),
        ("../glue/", "glue"),
        ("org/bert", "org/bert"),
        ("A text.", "A text."),
    ],
)
def test_paths_of_a_machine_are_shown_by_their_last_part(path, shown):
    record = {"settings": {"given": path, "list": [path, 3]}, "command": f"run --flag {path}"}
    expected = {"settings": {"given": shown, "list": [shown, 3]}, "command": f"run --flag {shown}"}
    assert without_machine_paths(record) == expected
    labels = {"model": {"labels": ["/location/city"]}}
    assert without_machine_paths(labels) == labels


def test_the_reason_in_status_json_is_redacted(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    model = f"/no/model?token={TOKEN}"
    assert recipe("run_glue", f"--task_name sst2 --do_eval --output_dir {tmp_path} --model_name_or_path {model}") == 2
    status = tmp_path / "status.json"
    assert "/no/model?token=" in json.loads(status.read_text())["reason"] and TOKEN not in status.read_text()
