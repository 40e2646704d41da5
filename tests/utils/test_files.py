"""Files appear complete or not at all, and nothing unfinished stays."""

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from errors import user_error

from bert_repro.utils import process
from bert_repro.utils.files import atomic_file, atomic_folder, atomic_path, lock, scratch_path, write_json

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


def write_folder(path, content):
    with atomic_folder(path) as folder:
        (folder / "file.txt").write_text(content)
        (folder / "inner").mkdir()
        (folder / "inner" / "more.txt").write_text(content)


def test_a_mount_point_gets_the_new_content(mount_point):
    (mount_point / "old.txt").write_text("old")
    for content in ("first", "second"):
        write_folder(mount_point, content)
        names = sorted(path.relative_to(mount_point).as_posix() for path in mount_point.rglob("*"))
        assert names == ["file.txt", "inner", "inner/more.txt"]
        assert (mount_point / "inner" / "more.txt").read_text() == content
    assert mount_point.is_mount()


@pytest.mark.parametrize("number", [errno.EBUSY, errno.EXDEV])
def test_a_folder_that_cannot_be_renamed_gets_the_new_content(tmp_path, monkeypatch, number):
    target = tmp_path / "target"
    write_folder(target, "old")
    replace = os.replace

    def fail(source, destination):
        if Path(source) == target:
            raise OSError(number, os.strerror(number), str(source))
        replace(source, destination)

    monkeypatch.setattr(os, "replace", fail)
    inode = target.stat().st_ino
    write_folder(target, "new")
    assert (target / "inner" / "more.txt").read_text() == "new" and target.stat().st_ino == inode
    assert list(tmp_path.iterdir()) == [target]


def test_a_file_that_cannot_be_renamed_gets_the_new_content(tmp_path, monkeypatch):
    target = tmp_path / "file.txt"
    target.write_text("old")

    def fail(source, destination):
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(source), None, str(destination))

    monkeypatch.setattr(os, "replace", fail)
    with atomic_file(target) as file:
        file.write("new")
    assert target.read_text() == "new" and list(tmp_path.iterdir()) == [target]


def test_links_stay_and_what_they_point_to_is_replaced(tmp_path):
    disk = tmp_path / "other_disk"
    disk.mkdir()
    (tmp_path / "file.txt").symlink_to(disk / "file.txt")
    with atomic_file(tmp_path / "file.txt") as file:
        file.write("new")
    write_folder(disk / "folder", "old")
    (tmp_path / "folder").symlink_to(disk / "folder")
    write_folder(tmp_path / "folder", "new")
    assert (tmp_path / "file.txt").is_symlink() and (disk / "file.txt").read_text() == "new"
    assert (tmp_path / "folder").is_symlink() and (disk / "folder" / "file.txt").read_text() == "new"
    assert sorted(path.name for path in disk.iterdir()) == ["file.txt", "folder"]


def test_libraries_write_to_devices_and_pipes_through_a_temporary_file(tmp_path):
    with atomic_path(Path("/dev/null")) as temporary:
        temporary.write_bytes(b"x")
    assert Path("/dev/null").is_char_device()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE)
    with atomic_path(pipe) as temporary:
        temporary.write_bytes(b"through the pipe")
    assert reader.communicate()[0] == b"through the pipe" and pipe.is_fifo()


def test_a_redirected_standard_stream_is_added_to(tmp_path):
    code = (
        "from pathlib import Path; from bert_repro.utils.files import atomic_path\n"
        "print('first', flush=True)\n"
        "with atomic_path(Path('/dev/stdout')) as temporary: temporary.write_text('second')"
    )
    with (tmp_path / "out.txt").open("w") as out:
        subprocess.run([sys.executable, "-c", code], stdout=out, check=True)
    assert (tmp_path / "out.txt").read_text() == "first\nsecond"


def test_a_full_device_is_named_in_one_line():
    with user_error("/dev/full", os.strerror(errno.ENOSPC)), atomic_file(Path("/dev/full")) as file:
        file.write("x" * 100_000)


def test_unfinished_work_is_on_the_disk_of_its_target(tmp_path, mount_point):
    assert scratch_path(tmp_path / "corpus", "preparing") == tmp_path / "corpus.preparing"
    (tmp_path / "link").symlink_to(mount_point / "corpus")
    assert scratch_path(tmp_path / "link", "preparing") == mount_point / "corpus.preparing"
    assert scratch_path(mount_point, "preparing").parent == mount_point
