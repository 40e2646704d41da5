"""Files in other encodings than UTF-8: read with --encoding, and otherwise refused with the encoding that fits."""

import gzip
import logging

import pytest
from errors import user_error

from bert_repro.configs import GlueConfig, PredictConfig, TokenizerConfig
from bert_repro.utils.readers import numbered_lines

TEXT = "Tür\nкот\n日本\n"


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("cp1252", "Tür,“a”\r\n€ 5\n"),
        ("latin-1", "Tür\nñ\n"),
        ("mac-roman", "Tür\n"),
        ("cp1251", "кот\nпёс\n"),
        ("gbk", "中文\n商品\n"),
        ("shift_jis", "表示\nソフト\n"),
        ("utf-16", TEXT),
        ("utf-16-le", TEXT),
        ("utf-32", TEXT),
        ("utf-8-sig", TEXT),
    ],
)
@pytest.mark.parametrize("suffix", [".txt", ".txt.gz"])
def test_lines_are_decoded_as_told(tmp_path, encoding, text, suffix):
    path = tmp_path / f"x{suffix}"
    content = text.encode(encoding)
    path.write_bytes(gzip.compress(content) if suffix.endswith(".gz") else content)
    lines = text.replace("\r", "").rstrip("\n").split("\n")
    assert list(numbered_lines(path, encoding)) == list(enumerate(lines, start=1))


@pytest.mark.parametrize(
    ("content", "contained"),
    [
        ("ok\nÄnderung der Tür\n".encode("cp1252"), ("line 2", "Änderung", "--encoding cp1252")),
        (TEXT.encode("utf-16"), ("line 1", "--encoding utf-16")),
        (TEXT.encode("utf-32"), ("line 1", "--encoding utf-32")),
        # This byte does not exist in cp1252.
        (b"\x81\x8d\n", ("line 1", "--encoding")),
    ],
)
def test_a_file_that_is_not_utf8_is_refused_with_the_encoding_that_fits(tmp_path, content, contained):
    path = tmp_path / "x.txt"
    path.write_bytes(content)
    with user_error(path, *contained, setting="encoding"):
        list(numbered_lines(path))


def test_a_wrong_encoding_is_refused_or_warned_about(tmp_path, caplog):
    path = tmp_path / "x.txt"
    path.write_text("Tür\n", encoding="utf-8")
    with caplog.at_level(logging.WARNING, "bert_repro"):
        assert list(numbered_lines(path, "cp1252")) == [(1, "TÃ¼r")]
    assert "looks like UTF-8" in caplog.text and "--encoding" in caplog.text
    for encoding in ("ascii", "utf-16"):
        with user_error(path, encoding, setting="encoding"):
            list(numbered_lines(path, encoding))


@pytest.mark.parametrize(("name", "contained"), [("ANSI", "cp1252"), ("utf9", "utf-8"), ("hex", "not an encoding")])
def test_a_name_that_is_no_encoding_is_refused(name, contained):
    with user_error(name, contained, setting="encoding"):
        PredictConfig(model_name_or_path="m", encoding=name)
    with user_error(name, contained, setting="encoding"):
        GlueConfig(model_name_or_path="m", train_file="x.csv", output_dir="o", encoding=name)


def test_a_corpus_is_not_read_in_wide_characters():
    with user_error("utf-16", "iconv", setting="encoding"):
        TokenizerConfig(input_files=("x.txt",), encoding="utf-16").text_sources  # noqa: B018 (a property that checks)
