"""Nothing secret leaves through a record."""

import shlex
from pathlib import Path

import pytest

from bert_repro.hub.redaction import REMOVED, redacted, without_machine_paths

TOKEN = "hf_" + "aB3" * 8


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        (f"push --hub_token {TOKEN}", f"push --hub_token {REMOVED}"),
        (f"curl -H 'Bearer {TOKEN}'", f"curl -H 'Bearer {REMOVED}'"),
        ("run --token=abc --seed 1", f"run --token={REMOVED} --seed 1"),
        ("run --api_key secret123", f"run --api_key {REMOVED}"),
        ("https://user:word@host/x", "https://host/x"),
        ("run --pool_token last --random_token_source vocab", "run --pool_token last --random_token_source vocab"),
        ("the hf_hub cache", "the hf_hub cache"),
        (f"{Path.home()}/runs/mrpc", "~/runs/mrpc"),
        (f"{Path.home()}er/runs", f"{Path.home()}er/runs"),
    ],
)
def test_text(text, clean):
    assert redacted(text) == clean


def test_nested_records():
    record = {
        "settings": {"token": "x", "tokenizer": "y", "max_steps": 3, "password": None},
        "list": [TOKEN, 1.5, True],
    }
    assert redacted(record) == {
        "settings": {"token": REMOVED, "tokenizer": "y", "max_steps": 3, "password": None},
        "list": [REMOVED, 1.5, True],
    }


def test_the_value_of_the_login_variable_is_removed_wherever_it_stands(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "an-odd-looking-token")
    assert redacted({"note": "used an-odd-looking-token here"}) == {"note": f"used {REMOVED} here"}


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/data/glue", "glue"),
        ("~/glue", "glue"),
        ("./runs/a", "a"),
        ("../glue/", "glue"),
        ("/run/here/checkpoints/step-5", "checkpoints/step-5"),
        ("org/bert", "org/bert"),
        ("A text.", "A text."),
    ],
)
def test_paths_of_a_machine_are_shown_by_their_last_part(path, shown):
    settings = {"output_dir": "/run/here", "given": path, "list": [path, 3]}
    found = without_machine_paths({"settings": settings, "command": f"run '{path}' --flag='{path}'"})
    assert found["settings"] == {"output_dir": "here", "given": shown, "list": [shown, 3]}
    assert shlex.split(found["command"]) == ["run", shown, f"--flag={shown}"]


def test_the_record_itself_is_left_alone():
    record = {"command": f"x {TOKEN}"}
    redacted(record)
    assert record == {"command": f"x {TOKEN}"}


def test_the_name_of_a_label_is_no_path():
    record = {"model": {"labels": ["/location/city", "O"], "class": "X"}, "settings": {"data_dir": "/srv/ner"}}
    shown = without_machine_paths(record)
    assert shown["model"]["labels"] == ["/location/city", "O"] and shown["settings"]["data_dir"] == "ner"
