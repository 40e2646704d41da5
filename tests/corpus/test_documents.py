import gzip
import json
import lzma
from types import SimpleNamespace

import datasets
import huggingface_hub
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from errors import user_error

from bert_repro.configs import TextConfig
from bert_repro.corpus.documents import find_sources, read_documents

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
    with user_error(tmp_path / "a.parquet", "'text'", "body, head, other", setting="text_column"):
        read(tmp_path / "a.parquet")
    with user_error("row 1", "'other'", "int"):
        read(tmp_path / "a.parquet", text_column="other")


def test_folders_and_patterns_come_sorted_and_names_as_given(tmp_path):
    (tmp_path / "sub").mkdir()
    for name in ("b.txt", "a.txt", "sub/c.txt", "notes.md"):
        (tmp_path / name).write_text(f"{name}\n")
    assert [document.text for document in read(tmp_path)] == ["a.txt", "b.txt", "sub/c.txt"]
    assert [document.text for document in read(tmp_path / "*.txt")] == ["a.txt", "b.txt"]
    assert [document.text for document in read(tmp_path / "b.txt", tmp_path / "a.txt")] == ["b.txt", "a.txt"]


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("a.txt", b"fine\n\nbad \xff here\n", ["a.txt", "line 3", "0xff", "position 4"]),
        ("a.jsonl", b'{"text": "fine"}\n{"text": \n', ["a.jsonl", "line 2"]),
        ("a.jsonl", b'["text"]\n', ["line 1", "list"]),
        ("a.jsonl", b'{"text": "fine"}\n{"body": "x"}\n', ["line 2", "'text'", "body", "--text_column"]),
        ("a.jsonl", b'{"text": null}\n', ["line 1", "'text'", "NoneType"]),
        ("a.parquet", b"PAR1 no", ["a.parquet"]),
        ("a.txt.gz", gzip.compress(b"text\n" * 99, mtime=0)[:-12], ["a.txt.gz", "line"]),
        ("a.txt.xz", lzma.compress(b"text\n" * 99)[:-12], ["a.txt.xz", "line"]),
        ("a.parquet.gz", b"", ["a.parquet.gz"]),
        ("a.xml", b"text\n", ["a.xml", ".txt"]),
        ("b.csv", b"title\na\n", ["b.csv, line 2", "title"]),
    ],
)
def test_bad_input_names_file_and_place(tmp_path, name, content, named):
    (tmp_path / name).write_bytes(content)
    with user_error(*named):
        read(tmp_path / name)


def test_names_that_lead_nowhere_are_refused(tmp_path, monkeypatch):
    for names, named in (
        (["none.txt"], tmp_path / "none.txt"),
        (["*.txt"], "*.txt"),
        (["."], tmp_path),
        ([], "--input_files"),
    ):
        with user_error(named, setting="input_files"):
            find_sources(TextConfig(input_files=tuple(str(tmp_path / name) for name in names)))
    path = write(tmp_path / "a.txt", "text\n")
    monkeypatch.chdir(tmp_path)
    for spelling in (str(tmp_path), "a.txt", "../" + tmp_path.name + "/a.txt"):
        with user_error("a.txt", setting="input_files"):
            find_sources(TextConfig(input_files=(str(path), spelling)))

    def dataset_info(self, name):
        raise OSError("404\nnot found")

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", dataset_info)
    with user_error("'data/corpus'", 404):
        find_sources(TextConfig(input_files=("data/corpus",)))


@pytest.mark.parametrize("form", [".txt", ".jsonl", ".parquet"])
def test_a_source_is_read_from_any_document_on(tmp_path, form):
    texts = [f"Text {number} é." for number in range(600)]
    path = tmp_path / f"a{form}"
    if form == ".parquet":
        pq.write_table(pa.table({"text": [*texts[:5], "", *texts[5:]]}), path, row_group_size=70)
    elif form == ".jsonl":
        write(path, "\ufeff" + "\n" + json_lines([{"text": text} for text in texts]))
    else:
        write(path, "\ufeff" + "\n\n\n".join(texts))
    (source,) = find_sources(TextConfig(input_files=(str(path),)))
    documents = list(read_documents(source))
    assert [document.text for document in documents] == texts
    for number in (0, 1, 5, 70, 71, 599):
        assert list(read_documents(source, documents[number].start)) == documents[number:]


def test_files_behind_a_url_are_read_and_identified(tmp_path):
    import fsspec

    memory = fsspec.filesystem("memory")
    for name, content in {"b.jsonl": json_lines(ROWS), "a.txt.gz": AS_TEXT}.items():
        memory.pipe(f"/corpus/{name}", write(tmp_path / name, content).read_bytes())
    memory.pipe("/corpus/a.txt.gz", gzip.compress(AS_TEXT.encode()))
    for name in ("memory://corpus", "memory://corpus/*"):
        sources = find_sources(TextConfig(input_files=(name,)))
        assert [source.name for source in sources] == ["memory:///corpus/a.txt.gz", "memory:///corpus/b.jsonl"]
        assert [document.text for document in read(name)] == ["First.\nSecond é.", "Third."] * 2
    assert sources[0].digest == find_sources(TextConfig(input_files=("memory://corpus",)))[0].digest
    with user_error("memory://corpus/none.txt", setting="input_files"):
        read("memory://corpus/none.txt")
    with user_error("nodriver://x/a.txt", setting="input_files"):
        read("nodriver://x/a.txt")


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


@pytest.mark.parametrize(("rows", "place"), [(0, "503"), (2, "row 2")])
def test_a_stream_that_breaks_off_is_a_user_error(stream, rows, place):
    def load_dataset(*args, **options):
        yield from ROWS[:rows]
        raise ConnectionError("503\nagain")

    stream(load_dataset)
    with user_error("wikimedia/wikipedia", "configuration None", "split train", place):
        read("wikimedia/wikipedia")


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.xlsx", "a.txt", "a.jsonl"])
def test_tables_and_other_encodings_are_corpora_too(tmp_path, name):
    path = tmp_path / name
    frame = pd.DataFrame({"text": ["Tür eins", "zwei"], "title": ["A", "B"]})
    if name.endswith("xlsx"):
        frame.to_excel(path, index=False)
    elif name.endswith("txt"):
        path.write_text("Tür eins\n\nzwei\n", encoding="cp1252")
    elif name.endswith("jsonl"):
        path.write_text('{"text": "Tür eins"}\n{"text": "zwei"}\n', encoding="cp1252")
    else:
        frame.to_csv(path, index=False, encoding="cp1252", sep="\t" if name.endswith("tsv") else ",")
    assert [document.text for document in read(path, encoding="cp1252")] == ["Tür eins", "zwei"]
