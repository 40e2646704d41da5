"""Nothing secret leaves through a record."""

import json
import shlex
from pathlib import Path

import pytest
from running import recipe

from bert_repro.utils.redaction import REMOVED, redacted, without_machine_paths

TOKEN = "hf_" + "aB3" * 8


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        (f"push --hub_token {TOKEN}", f"push --hub_token {REMOVED}"),
        (f"curl -H 'Bearer {TOKEN}'", f"curl -H 'Bearer {REMOVED}'"),
        ("run --token=abc --seed 1", f"run --token={REMOVED} --seed 1"),
        ("run --api_key secret123", f"run --api_key {REMOVED}"),
        ("run --hub-token='a b' --seed 1", f"run --hub-token={REMOVED} --seed 1"),
        ("https://host/x?token=abc&page=2", f"https://host/x?token={REMOVED}&page=2"),
        ("https://host/x?page=2&access_token=abc", f"https://host/x?page=2&access_token={REMOVED}"),
        ("github_pat_11ABCDEFG0abcdef and ghp_0123456789abcdef", f"{REMOVED} and {REMOVED}"),
        ("Authorization: Bearer abc.def-123", f"Authorization: Bearer {REMOVED}"),
        ('{"token": "a b", "seed": 1}', f'{{"token": {REMOVED}, "seed": 1}}'),
        ("OPENAI_API_KEY=abc python x.py", f"OPENAI_API_KEY={REMOVED} python x.py"),
        ("aws_secret_access_key: abc", f"aws_secret_access_key: {REMOVED}"),
        (
            "the tokenizer has no mask token: expected one of BERT",
            "the tokenizer has no mask token: expected one of BERT",
        ),
        ("mask_token=[MASK] pad_token: [PAD] tokens: 5", "mask_token=[MASK] pad_token: [PAD] tokens: 5"),
        ("https://user:word@host/x", "https://host/x"),
        ("run --pool_token last --random_token_source vocab", "run --pool_token last --random_token_source vocab"),
        ("the hf_hub cache", "the hf_hub cache"),
        (f"{Path.home()}/runs/mrpc", "~/runs/mrpc"),
        (f"{Path.home()}er/runs", f"{Path.home()}er/runs"),
    ],
)
def test_text(text, clean):
    assert redacted(text) == clean


def test_nested_records_are_redacted_in_a_copy():
    record = {
        "settings": {"token": "x", "tokenizer": "y", "max_steps": 3, "password": None},
        "keys": {"OPENAI_API_KEY": "x", "s3_access_key": "y", "pad_token": "[PAD]", "key": "z"},
        "list": [TOKEN, 1.5, True],
    }
    assert redacted(record) == {
        "settings": {"token": REMOVED, "tokenizer": "y", "max_steps": 3, "password": None},
        "keys": {"OPENAI_API_KEY": REMOVED, "s3_access_key": REMOVED, "pad_token": "[PAD]", "key": "z"},
        "list": [REMOVED, 1.5, True],
    }
    record = {"command": f"x {TOKEN}"}
    redacted(record)
    assert record == {"command": f"x {TOKEN}"}


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


def test_the_name_of_a_label_is_no_path():
    record = {"model": {"labels": ["/location/city", "O"], "class": "X"}, "settings": {"data_dir": "/srv/ner"}}
    shown = without_machine_paths(record)
    assert shown["model"]["labels"] == ["/location/city", "O"] and shown["settings"]["data_dir"] == "ner"


def test_the_reason_in_status_json_is_redacted(tmp_path):
    model = f"/no/model?token={TOKEN}"
    assert recipe("run_glue", f"--task_name sst2 --do_eval --output_dir {tmp_path} --model_name_or_path {model}") == 2
    status = tmp_path / "status.json"
    assert "/no/model?token=" in json.loads(status.read_text())["reason"] and TOKEN not in status.read_text()
