import gzip

import pytest

from bert_repro.errors import UserError
from bert_repro.utils.readers import listed, parse_yaml, read_json, shown
from bert_repro.utils.tables import read_csv, read_json_lines, read_tsv


@pytest.fixture
def write(tmp_path):
    def write_file(content: bytes):
        path = tmp_path / "dev.tsv"
        path.write_bytes(content)
        return path

    return write_file


def test_tables_are_read_by_column_with_quotes_marks_and_empty_fields_as_they_are(write):
    table = read_tsv(write(b"b\tx\ta\n1\t-\t2\n3\t-\t4\n"), ["a", "b"], optional=["c"])
    assert table.columns == {"a": ["2", "4"], "b": ["1", "3"]}
    assert table.lines == [2, 3]
    assert read_tsv(write(b"\xef\xbb\xbfa\tb\r\n1\t2\r\n3\t4"), ["a", "b"]).columns == {
        "a": ["1", "3"],
        "b": ["2", "4"],
    }
    text = 'say "a " b " \u2028\x85\x0b\x1c'
    assert read_tsv(write(f"a\tb\n1\t{text}\n2\tc\n".encode()), ["b"]).columns["b"] == [text, "c"]
    assert read_tsv(write(b"a\tb\n\tx\ny\t\n\n\n"), ["a", "b"]).columns == {"a": ["", "y"], "b": ["x", ""]}
    table = read_tsv(write(b"\xef\xbb\xbfgj04\t1\t\tOne .\n"), ["mark", "text"], header=["source", "y", "mark", "text"])
    assert table.columns == {"mark": [""], "text": ["One ."]}
    assert table.lines == [1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a\tb\n1\t2\n1\t2\t3\n", r"dev\.tsv, line 3: 3 columns, expected 2; "),
        (b"a\tb\n1\n", r"dev\.tsv, line 2: 1 columns, expected 2; "),
        (b"a\tb\n\n1\t2\n", r"dev\.tsv, line 2: 1 columns, expected 2; "),
        (b"x\tb\n1\t2\n", r"dev\.tsv: no column 'a'; found x, b; "),
        (b"a\tb\n1\tcaf\xe9\n", r"dev\.tsv, line 2: byte 0xe9 at position 5 is not UTF-8; "),
        (b"a\tb\n", r"dev\.tsv: no rows; "),
    ],
)
def test_a_bad_table_is_refused_with_its_place_and_the_fix(write, content, message):
    with pytest.raises(UserError, match=message) as caught:
        read_tsv(write(content), ["a", "b"])
    assert "\n" not in str(caught.value)


def test_an_empty_or_missing_file_is_named(write, tmp_path):
    with pytest.raises(UserError, match="no rows"):
        read_tsv(write(b""), ["a"], header=["a"])
    with pytest.raises(UserError, match="no column 'a'"):
        read_tsv(write(b""), ["a"])
    with pytest.raises(UserError, match=r"none\.tsv: no such file; "):
        read_tsv(tmp_path / "none.tsv", ["a"])


def test_incomplete_rows_are_dropped_only_on_demand_and_counted(write, caplog):
    path = write(b"a\tb\n1\t2\n3\n4\t5\n")
    table = read_tsv(path, ["a"], drop_incomplete_rows=True)
    assert table.columns["a"] == ["1", "4"] and table.lines == [2, 4]
    assert "dropped 1 rows" in caplog.text
    with pytest.raises(UserError, match="line 2: 3 columns"):
        read_tsv(write(b"a\tb\n1\t2\t3\n"), ["a"], drop_incomplete_rows=True)


class TestCsv:
    @pytest.mark.parametrize(("delimiter", "name"), [(";", "semicolons"), ("\t", "tabs")])
    def test_another_delimiter_is_recognized_and_logged(self, tmp_path, caplog, delimiter, name):
        path = tmp_path / "x.csv"
        path.write_text(f'text{delimiter}label\n"gut{delimiter} ja, sehr"{delimiter}1\n', encoding="utf-8")
        with caplog.at_level("INFO", logger="bert_repro"):
            assert read_csv(path, ["text", "label"]).columns == {"text": [f"gut{delimiter} ja, sehr"], "label": ["1"]}
        assert f"x.csv: its columns are separated by {name}" in caplog.text

    @pytest.mark.parametrize("wanted", ["text", "label"])
    def test_a_column_that_occurs_twice_is_refused_but_some_without_a_name_are_not(self, tmp_path, wanted):
        path = tmp_path / "x.csv"
        path.write_text("text,text,label,,\na,b,1,,\n")
        with pytest.raises(UserError, match="column 'text' occurs twice; give every column a name of its own"):
            read_csv(path, [wanted])
        path.write_text("text,label,,\na,1,,\n")
        assert read_csv(path, ["label"]).columns == {"label": ["1"]}

    def test_a_quote_that_is_never_closed_is_named_by_the_line_of_its_row(self, tmp_path):
        path = tmp_path / "x.csv"
        path.write_text('text,label\n\n"one\ntwo",a\n"open,b\n' + "more,c\n" * 100)
        with pytest.raises(UserError, match=r"x\.csv, line 5: unexpected end of data; quote texts as CSV does"):
            read_csv(path, ["text"])


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
        for read in (read_json, lambda path: read_json_lines(path, ["text"])):
            with pytest.raises(UserError, match=message) as caught:
                read(path)
            assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


def test_messages_and_the_values_in_them_are_one_readable_line():
    assert shown("a\x1b[2J\n") == r"'a\x1b[2J\n'" and shown(7) == "7" and listed(["a", "\x07"]) == r"a, \x07"
    assert len(shown("x" * 10_000)) < 70 and len(listed(["x"] * 10_000)) < 210
    message = str(UserError("a.txt:\x1b[2J\n\u2028 \ud800" + "x" * 10_000 + "; fix it"))
    assert message.isprintable() and len(message) < 1100
    assert message.startswith("a.txt:\\x1b[2J \\ud800xxx") and message.endswith("; fix it")


def test_a_line_and_a_table_of_gigabytes_in_a_small_file_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "x.jsonl.gz"
    monkeypatch.setattr("bert_repro.utils.readers._LONGEST_LINE", 1000)
    path.write_bytes(gzip.compress(b'{"text": "' + b"a" * 10_000_000 + b'"}'))
    with pytest.raises(UserError, match=r"x\.jsonl\.gz, line 1: is longer than 1,000 bytes; split it"):
        read_json_lines(path, ["text"])
    monkeypatch.setattr("bert_repro.utils.tables._LARGEST_UNPACKED", 1000)
    path.write_bytes(gzip.compress(b'{"text": "a"}\n' * 100))
    with pytest.raises(UserError, match="unpacks to more than 1,000 bytes; unpack it, or split it"):
        read_json_lines(path, ["text"])


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
