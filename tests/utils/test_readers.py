import gzip

import pytest

from bert_repro.errors import UserError
from bert_repro.utils.readers import listed, numbered_lines, parse_yaml, read_json, shown


class TestJson:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("[" * 100_000, "nests too deep to be read"),
            ('{"a": ' + "7" * 5_000 + "}", "is not valid JSON"),
            ('{"text": 1, "text": 2}', "key 'text' occurs twice in one object; remove one"),
            ('{"te\\u0007xt": 1, "te\\u0007xt": 2}', r"key 'te\\x07xt' occurs twice"),
            ("{", "is not valid JSON"),
            ('{"text": NaN}', "the number 'NaN' is not finite"),
            ('{"text": -1e999}', "the number '-1e999' is not finite"),
            ('{"text": "\\ud800"}', "half a surrogate pair"),
        ],
    )
    def test_hostile_json_is_refused_in_one_line(self, tmp_path, text, message):
        path = tmp_path / "x.json"
        path.write_text(text)
        with pytest.raises(UserError, match=message) as caught:
            read_json(path)
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


def test_messages_and_the_values_in_them_are_one_readable_line():
    assert shown("a\x1b[2J\n") == r"'a\x1b[2J\n'" and shown(7) == "7" and listed(["a", "\x07"]) == r"a, \x07"
    assert len(shown("x" * 10_000)) < 70 and len(listed(["x"] * 10_000)) < 210
    message = str(UserError("a.txt:\x1b[2J\n\u2028 \ud800" + "x" * 10_000 + "; fix it"))
    assert message.isprintable() and len(message) < 1100
    assert message.startswith("a.txt:\\x1b[2J \\ud800xxx") and message.endswith("; fix it")


def test_a_line_of_gigabytes_in_a_small_file_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "x.jsonl.gz"
    monkeypatch.setattr("bert_repro.utils.readers._LONGEST_LINE", 1000)
    path.write_bytes(gzip.compress(b'{"text": "' + b"a" * 10_000_000 + b'"}'))
    with pytest.raises(UserError, match=r"x\.jsonl\.gz, line 1: is longer than 1,000 bytes; split it"):
        list(numbered_lines(path))


class TestYaml:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("a: &a [1]\nb: *a\n", "line 2: aliases are not accepted"),
            ("a: 1\na: 2\n", "line 2: 'a' is given twice"),
            ("[" * 10_000, "deep|recursion"),
            ("{a: " * 5_000, "deep|recursion"),
            ("a: !!timestamp 2001-99-99\n", "month"),
            ("a: !!python/object/apply:os.system [ls]\n", "could not determine a constructor"),
        ],
    )
    def test_what_no_settings_need_is_refused(self, text, message):
        with pytest.raises(ValueError, match=message):
            parse_yaml(text)
