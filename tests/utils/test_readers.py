import gzip

import pytest
from errors import user_error

from bert_repro.errors import UserError
from bert_repro.utils.readers import comma_separated, numbered_lines, quoted, read_json


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("{", "line 1 column 2"),
        ('{"text": NaN}', "NaN"),
        ("[" * 100_000, "JSON"),
        ("caf\udce9", "byte 3"),
    ],
)
def test_what_is_no_json_is_refused_in_one_line(tmp_path, content, named):
    path = tmp_path / "x.json"
    path.write_text(content, errors="surrogateescape")
    with user_error(path, named):
        read_json(path)


def test_lines_end_at_line_feeds_and_lose_mark_and_line_end(tmp_path):
    path = tmp_path / "x.txt.gz"
    path.write_bytes(gzip.compress(b"\xef\xbb\xbfone\r\ntwo\xe2\x80\xa8\x0b2\n\nlast"))
    assert list(numbered_lines(path)) == [(1, "one"), (2, "two\u2028\x0b2"), (3, ""), (4, "last")]
    path.write_bytes(path.read_bytes()[:-5])
    with user_error(path, ".gz"):
        list(numbered_lines(path))


def test_messages_and_the_values_in_them_are_one_readable_line():
    assert quoted("a\x1b[2J\n") == r"'a\x1b[2J\n'" and quoted(7) == "7" and comma_separated(["a", "\x07"]) == r"a, \x07"
    assert len(quoted("x" * 10_000)) < 70 and len(comma_separated(["x"] * 10_000)) < 210
    message = str(UserError("a.txt:\x1b[2J\n\u2028 \ud800" + "x" * 10_000 + "; fix it"))
    assert message.isprintable() and len(message) < 1100
