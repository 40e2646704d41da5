"""A claim belongs to one process; stale ones are taken over on the same host only."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from errors import user_error

from bert_repro.utils import claims
from bert_repro.utils.claims import (
    claim_owner,
    describe_claim,
    exclusive_claim,
    holds_claim,
    release_claim,
    take_claim,
)

TAKE = """
import pathlib, sys, time
from bert_repro.utils.claims import take_claim
print(take_claim(pathlib.Path(sys.argv[1])), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "work.claim"


def other_process(path: Path) -> subprocess.Popen[str]:
    """Starts a process that takes the claim, and waits until it has."""
    command = [sys.executable, "-c", TAKE, str(path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "True\n"
    return process


def change(path: Path, **values: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_a_claim_is_taken_once_and_released(path: Path) -> None:
    assert take_claim(path) and holds_claim(path)
    assert take_claim(path)  # by the process that has it
    release_claim(path)
    assert not path.exists() and not holds_claim(path)


def test_a_living_process_keeps_its_claim_and_a_killed_one_loses_it(path: Path) -> None:
    other = other_process(path)
    assert not take_claim(path)
    release_claim(path)
    owner = claim_owner(path)
    assert owner is not None and owner.pid == other.pid
    with (
        user_error("runs/corpus", path, other.pid, setting="output_dir"),
        exclusive_claim(path, "runs/corpus", setting="output_dir"),
    ):
        pass
    other.kill()
    other.communicate()
    with exclusive_claim(path, "runs/corpus"):
        assert holds_claim(path)
    assert not path.exists()


def test_a_later_process_with_the_same_id_is_not_the_owner(path: Path) -> None:
    assert take_claim(path)
    change(path, started=1.0)
    assert not holds_claim(path)
    assert take_claim(path) and holds_claim(path)


def test_the_claim_of_another_host_is_only_named(path: Path) -> None:
    assert take_claim(path)
    change(path, host="node7", pid=2**22 + 1)
    assert not take_claim(path)
    assert "node7" in describe_claim(path) and str(path) in describe_claim(path)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"host": "here"}', '{"host": "a", "pid": "x"}'])
def test_an_unreadable_claim_is_not_taken_over(path: Path, content: str) -> None:
    path.write_text(content)
    assert not take_claim(path) and claim_owner(path) is None
    assert str(path) in describe_claim(path) and path.read_text() == content


def test_a_file_system_that_ignores_exclusive_creation_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create = os.open
    monkeypatch.setattr(claims.os, "open", lambda name, flags, mode=0o777: create(name, flags & ~os.O_EXCL, mode))
    with user_error(path.parent):
        take_claim(path)
    assert not path.exists()


def test_of_many_processes_one_takes_a_stale_claim(path: Path) -> None:
    assert take_claim(path)
    change(path, started=1.0)
    code = (
        "import pathlib, sys, time; from bert_repro.utils.claims import take_claim\n"
        "print(take_claim(pathlib.Path(sys.argv[1])), flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(path)]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    answers = [process.stdout.readline() for process in processes if process.stdout is not None]
    for process in processes:
        process.communicate("")
    assert sorted(answers) == ["False\n"] * 3 + ["True\n"]
