"""Files appear complete or not at all, and nothing unfinished stays."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from bert_repro.utils import process
from bert_repro.utils.files import atomic_file, atomic_folder, lock, write_json

KILLED = """
import os, pathlib, sys
from bert_repro.utils.files import {manager}
with {manager}(pathlib.Path(sys.argv[1])) as unfinished:
    {begin}
    os.kill(os.getpid(), 9)
"""


def test_the_old_file_stays_until_the_new_one_is_complete(tmp_path):
    old = tmp_path / "file.txt"
    old.write_text("old")
    with pytest.raises(KeyError), atomic_file(old) as file:
        file.write("new")
        raise KeyError
    assert old.read_text() == "old" and list(tmp_path.iterdir()) == [old]
    with atomic_file(old) as file:
        file.write("new")
    assert old.read_text() == "new" and list(tmp_path.iterdir()) == [old]


@pytest.mark.parametrize(
    ("manager", "begin"),
    [("atomic_file", "unfinished.write('new'); unfinished.flush()"), ("atomic_folder", "(unfinished / 'x').touch()")],
)
def test_what_a_killed_process_left_goes_with_the_next_writing(tmp_path, manager, begin):
    path = tmp_path / "target"
    subprocess.run([sys.executable, "-c", KILLED.format(manager=manager, begin=begin), str(path)], check=False)
    assert not path.exists() and len(list(tmp_path.iterdir())) == 1
    with atomic_file(path) as file:
        file.write("new")
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_takes_the_place_of_an_earlier_one(tmp_path):
    for name in ("a", "b"):
        with atomic_folder(tmp_path / "made" / "folder") as folder:
            (folder / name).touch()
    assert [path.name for path in (tmp_path / "made" / "folder").iterdir()] == ["b"]
    assert len(list((tmp_path / "made").iterdir())) == 1


def test_a_device_is_written_directly_and_json_is_strict(tmp_path):
    with atomic_file(Path("/dev/null")) as file:
        file.write("x")
    assert Path("/dev/null").is_char_device()
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "x.json", {"loss": float("nan")})
    assert list(tmp_path.iterdir()) == []


HOLD = """
import multiprocessing, os, pathlib, sys, time
from bert_repro.utils.files import lock

def load():
    print(held, os.getpid(), flush=True)
    time.sleep(30)

held = lock(pathlib.Path(sys.argv[1]))
multiprocessing.get_context("fork").Process(target=load, daemon=True).start()
sys.stdin.read()
"""


def other_process(folder):
    command = [sys.executable, "-c", HOLD, str(folder)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_folder_belongs_to_one_process_until_it_ends_however_it_ends(tmp_path):
    other = other_process(tmp_path)
    held, loader = other.stdout.readline().split()
    assert held == "True" and not lock(tmp_path)
    other.kill()
    other.wait()
    assert lock(tmp_path) and psutil.pid_exists(int(loader))  # which may live on for some seconds
    assert lock(tmp_path)
    os.kill(int(loader), signal.SIGKILL)


def test_a_finished_run_releases_the_folder_and_says_how_it_ended(tmp_path):
    process.claim_folder(tmp_path)
    assert lock(tmp_path)
    assert process.recorded_exit_code(tmp_path) is None
    process.record_outcome(str(tmp_path), 0, "done")
    assert json.loads((tmp_path / "status.json").read_text()) == {"code": 0, "reason": "done"}
    assert process.recorded_exit_code(tmp_path) == 0
    with other_process(tmp_path) as other:
        assert other.stdout.readline().startswith("True ")
        other.communicate("")
