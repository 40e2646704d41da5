import hashlib
import os

import pytest
from bert_repro.utils.digests import known_digests

from bert_repro.utils import digests


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(digests, "_SETTLED_SECONDS", -1)
    (tmp_path / "data").mkdir()
    for name in ("a", "b"):
        (tmp_path / "data" / name).write_text(name)
    return tmp_path / "data"


@pytest.fixture
def read(monkeypatch):
    names = []
    right = digests.file_digest
    monkeypatch.setattr(digests, "file_digest", lambda path: (names.append(path.name), right(path))[1])
    return names


def sha256(text):
    return hashlib.sha256(text.encode()).hexdigest()


def test_a_file_is_read_once_until_it_changes(folder, read):
    assert known_digests(folder, ["a", "b"]) == {"a": sha256("a"), "b": sha256("b")} and read == ["a", "b"]
    assert known_digests(folder, ["a", "b"]) == {"a": sha256("a"), "b": sha256("b")} and read == ["a", "b"]
    times = (folder / "a").stat()
    (folder / "a").write_text("c")  # as many bytes, and as old as before
    os.utime(folder / "a", ns=(times.st_atime_ns, times.st_mtime_ns))
    assert known_digests(folder, ["a", "b"])["a"] == sha256("c") and read == ["a", "b", "a"]


def test_a_file_that_was_just_written_is_not_remembered(folder, read, monkeypatch):
    monkeypatch.setattr(digests, "_SETTLED_SECONDS", 60)
    for _ in range(2):
        known_digests(folder, ["a"])
    assert read == ["a", "a"]


@pytest.mark.parametrize("content", ["{", "[]", '{"a": 1}'])
def test_a_damaged_or_missing_memory_costs_time_only(folder, read, tmp_path, content):
    known_digests(folder, ["a"])
    (memory,) = (tmp_path / "cache").rglob("*.json")
    memory.write_text(content)
    assert known_digests(folder, ["a"]) == {"a": sha256("a")}
    memory.unlink()
    memory.parent.rmdir()
    memory.parent.write_text("not a folder")
    assert known_digests(folder, ["a"]) == {"a": sha256("a")} and read == ["a"] * 3
