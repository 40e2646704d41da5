import gzip
import json
import lzma
from types import SimpleNamespace

import datasets
import huggingface_hub
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bert_repro.configs import TextConfig
from bert_repro.corpus.documents import find_sources, read_documents
from bert_repro.errors import UserError

ROWS = [{"title": "One", "text": "First.\nSecond é."}, {"text": "Third."}]
AS_TEXT = "First.\nSecond é.\n\n\nThird.\n"
PACKINGS = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}


def write(path, text, packing=""):
    data = text.encode("utf-8") if isinstance(text, str) else text
    path = path.with_name(path.name + packing)
    path.write_bytes(PACKINGS[packing](data))
    return path


def read(*names, **options):
    config = TextConfig(input_files=tuple(map(str, names)), **options)
    return [document for source in find_sources(config) for document in read_documents(source)]


def json_lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("form", [".txt", ".jsonl"])
def test_text_and_json_lines_plain_and_packed(tmp_path, form, packing):
    path = write(tmp_path / f"a{form}", AS_TEXT if form == ".txt" else json_lines(ROWS), packing)
    documents = read(path)
    assert [document.text for document in documents] == ["First.\nSecond é.", "Third."]
    assert [document.title for document in documents] == ([None, None] if form == ".txt" else ["One", None])
    assert documents[-1].position <= path.stat().st_size


def test_windows_line_ends_and_byte_order_mark(tmp_path):
    path = write(tmp_path / "a.txt", b"\xef\xbb\xbfFirst.\r\nSecond.\r\n\r\nThird.\r\n")
    assert [document.text for document in read(path)] == ["First.\nSecond.", "Third."]


def test_parquet_with_other_column_names(tmp_path):
    table = pa.table({"body": ["First.", "", "Third."], "head": ["One", None, "Three"], "other": [1, 2, 3]})
    pq.write_table(table, tmp_path / "a.parquet")
    documents = read(tmp_path / "a.parquet", text_column="body", title_column="head")
    assert [(document.text, document.title) for document in documents] == [("First.", "One"), ("Third.", "Three")]
    with pytest.raises(UserError, match=r"no column 'text'; it has body, head, other"):
        read(tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"row 1: field 'other' is int"):
        read(tmp_path / "a.parquet", text_column="other")


def test_folders_and_patterns_come_sorted_and_names_as_given(tmp_path):
    (tmp_path / "sub").mkdir()
    for name in ("b.txt", "a.txt", "sub/c.txt", "notes.md"):
        (tmp_path / name).write_text(f"{name}\n")
    assert [document.text for document in read(tmp_path)] == ["a.txt", "b.txt", "sub/c.txt"]
    assert [document.text for document in read(tmp_path / "*.txt")] == ["a.txt", "b.txt"]
    assert [document.text for document in read(tmp_path / "b.txt", tmp_path / "a.txt")] == ["b.txt", "a.txt"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"fine\n\nbad \xff here\n", r"a\.txt, line 3: byte 0xff at position 4 is not UTF-8"),
        ("a.jsonl", b'{"text": "fine"}\n{"text": \n', r"a\.jsonl, line 2: is not valid JSON"),
        ("a.jsonl", b'["text"]\n', r"line 1: expected a JSON object, found list"),
        ("a.jsonl", b'{"text": "fine"}\n{"body": "x"}\n', r"line 2: no field 'text'; it has body. Set text_column"),
        ("a.jsonl", b'{"text": null}\n', r"line 1: field 'text' is NoneType"),
        ("a.parquet", b"PAR1 no", r"a\.parquet: damaged or not a Parquet file"),
        ("a.txt.gz", gzip.compress(b"text\n" * 99, mtime=0)[:-12], r"a\.txt\.gz: damaged after line"),
        ("a.txt.xz", lzma.compress(b"text\n" * 99)[:-12], r"a\.txt\.xz: damaged after line"),
        ("a.parquet.gz", b"", r"unknown corpus format"),
        ("a.csv", b"text\n", r"a\.csv: unknown corpus format; expected one of \.txt"),
    ],
)
def test_bad_input_names_file_and_place(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        read(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_names_that_lead_nowhere_are_refused(tmp_path, monkeypatch):
    for names, message in (
        (["none.txt"], r"none\.txt does not exist"),
        (["*.txt"], "no file matches the pattern"),
        (["."], "holds no corpus file"),
        ([], "input_files is missing"),
    ):
        with pytest.raises(UserError, match=message):
            find_sources(TextConfig(input_files=tuple(str(tmp_path / name) for name in names)))
    path = write(tmp_path / "a.txt", "text\n")
    monkeypatch.chdir(tmp_path)
    for spelling in (str(tmp_path), "a.txt", "../" + tmp_path.name + "/a.txt"):
        with pytest.raises(UserError, match="named twice"):
            find_sources(TextConfig(input_files=(str(path), spelling)))

    def dataset_info(self, name):
        raise OSError("404\nnot found")

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", dataset_info)
    with pytest.raises(UserError, match=r"'data/corpus' is neither a local file or folder nor a dataset .*: 404"):
        find_sources(TextConfig(input_files=("data/corpus",)))


@pytest.fixture
def stream(monkeypatch):
    """Has the Hub hold a dataset whose rows a function gives."""

    def install(load_dataset):
        monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", lambda self, name: SimpleNamespace(sha="abc123"))
        monkeypatch.setattr(datasets, "load_dataset", load_dataset)

    return install


def test_hub_dataset_is_read_as_a_stream_of_one_revision(stream):
    calls = []
    stream(lambda *args, **options: calls.append((args, options)) or iter(ROWS))
    documents = read("wikimedia/wikipedia", hub_config="20231101.en", hub_split="test")
    assert [document.title for document in documents] == ["One", None]
    options = {"split": "test", "streaming": True, "revision": "abc123"}
    assert calls == [(("wikimedia/wikipedia", "20231101.en"), options)]


@pytest.mark.parametrize(("rows", "place"), [(0, r"\): 503$"), (2, "503; it failed after row 2; start")])
def test_a_stream_that_breaks_off_is_a_user_error(stream, rows, place):
    def load_dataset(*args, **options):
        yield from ROWS[:rows]
        raise ConnectionError("503\nagain")

    stream(load_dataset)
    with pytest.raises(UserError, match=r"dataset wikimedia/wikipedia \(configuration None, split train.*" + place):
        read("wikimedia/wikipedia")
