"""The edge where data enters: every form becomes the same dataset, everyday mistakes are one clear line."""

import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas
import pytest
from errors import user_error

from bert_repro.configs import GlueConfig, NerConfig, SquadConfig, SwagConfig
from bert_repro.errors import UserError
from bert_repro.tasks import configured_task
from bert_repro.tasks.base import Task
from bert_repro.tasks.columns import values
from bert_repro.tasks.data import as_dataset, read_file
from bert_repro.tasks.held_out import held_out_rows
from bert_repro.tasks.squad_questions import questions_of

ROWS = [{"text": 'Good, "really".', "label": "yes"}, {"text": "bad\tthing", "label": "no"}]
CHOICE = {"sent2": "", "ending0": "x", "ending1": "y"}
CONTEXT = "The old mill by the river burned down in 1907."


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_every_form_of_rows_is_the_same_dataset(tmp_path: Path) -> None:
    names = datasets.ClassLabel(names=["no", "yes"])
    columns = {name: [row[name] for row in ROWS] for name in ("text", "label")}
    rows = datasets.Dataset.from_list(ROWS)
    rows.to_parquet(tmp_path / "a.parquet")
    forms: list[Any] = [
        ROWS, columns, rows, rows.cast_column("label", names), pandas.DataFrame(ROWS),
        write(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n\n" for row in ROWS)),
        write(tmp_path / "a.json", json.dumps(ROWS)), tmp_path / "a.parquet",
        write(tmp_path / "a.csv", '\ufefftext,label\r\n"Good, ""really"".",yes \r\nbad\tthing,no\r\n'),
        write(tmp_path / "b.csv", 'text;label\n"Good, ""really"".";yes\nbad\tthing;no\n\n'),
    ]  # fmt: skip
    config = GlueConfig(model_name_or_path="m", do_train=True, train_file="x")
    for form in forms:
        task = configured_task(config, {"train": as_dataset(form, "train")})
        assert task.label_names == ("no", "yes")
        assert task.load(None, ["train"])["train"].to_list() == [
            {"text": row["text"], "label": label, "idx": place}
            for place, (row, label) in enumerate(zip(ROWS, (1, 0), strict=True))
        ]


@pytest.mark.parametrize(
    ("name", "content", "contained"),
    [
        ("x.csv", "text,label\na,yes\nb\n", ("line 3", "1 columns", "2")),
        ("x.csv", "text,label\na,yes\n\nb,no\n", ("line 3", "empty")),
        ("x.csv", 'text,label\na,yes\n"b,no\nc,no\n', ("line 3", "unexpected end of data")),
        ("x.csv", "text,text\na,yes\n", ("'text'", "twice")),
        ("x.csv", "text,label\n", ("no rows",)),
        ("x.csv", "", ("no rows",)),
        ("x.csv", b"text,label\n\xff,yes\n", ("line 2", "0xff", "UTF-8")),
        ("x.tsv", "text\tlabel\na\tb\tyes\n", ("line 2", "3 columns", "2")),
        ("x.jsonl", '{"text": "a", "label": "yes"}\n{"text": \n', ("line 2", "JSON")),
        ("x.jsonl", "[1]\n[2]\n", ("line 1", "JSON object")),
        ("x.jsonl", '{"label": 1}\n{"label": "a"}\n', ("'label'", "row 1 is 1", "row 2 is 'a'")),
        ("x.jsonl", "", ("no rows",)),
        ("x.json", '{"data": [{"title": "x"}]}', ("SQuAD", "'paragraphs'", "question 1")),
        ("x.xls", "a", ("format", ".parquet")),
        ("x.parquet", "text,label\na,yes\n", ("Parquet",)),
        ("x.parquet", "", ("Parquet",)),
        ("gone.csv", None, ("no such file",)),
    ],
)
def test_a_bad_file_is_refused_with_its_line(tmp_path: Path, name: str, content: Any, contained: Any) -> None:
    path = tmp_path / name if content is None else write(tmp_path / name, content)
    with user_error(path, *contained):
        read_file(path)


def test_a_damaged_parquet_file_and_one_without_rows_are_refused(tmp_path: Path) -> None:
    datasets.Dataset.from_list(ROWS).to_parquet(tmp_path / "whole.parquet")
    content = bytearray((tmp_path / "whole.parquet").read_bytes())
    for name, damaged in (("cut", content[:-20]), ("damaged", content[:4] + bytes(20) + content[24:])):
        path = write(tmp_path / f"{name}.parquet", bytes(damaged))
        with user_error(path, "Parquet"):
            read_file(path)
    datasets.Dataset.from_dict({"text": [], "label": []}).to_parquet(tmp_path / "empty.parquet")
    with user_error("empty.parquet", "no rows"):
        read_file(tmp_path / "empty.parquet")


@pytest.mark.parametrize(
    ("column", "contained"),
    [
        ([1, "x"], ("numbers and texts", "row 1 is 1", "row 2 is 'x'")),
        ([None, "x", 1.5], ("texts and numbers", "row 2 is 'x'", "row 3 is 1.5")),
        # pyarrow would read these two as 1.5 and 1.0, and as two values of bytes.
        ([1.5, True], ("numbers and booleans", "row 2 is True")),
        ([b"x", "x"], ("bytes and texts", "row 1 is b'x'")),
        ([["x"], "x"], ("lists and texts", "row 1 is ['x']")),
    ],
)
def test_a_column_of_several_types_is_refused_in_every_form(column: list[Any], contained: Any) -> None:
    columns = {"text": ["a"] * len(column), "label": column}
    rows = [{"text": "a", "label": value} for value in column]
    for data in (columns, rows, pandas.DataFrame(columns)):
        with user_error("train=", "'label'", *contained):
            as_dataset(data, "train=")


def test_columns_that_are_not_a_column_each_are_refused() -> None:
    with user_error("train=", "'t'", "twice"):
        as_dataset(pandas.DataFrame([["a", "b"]], columns=["t", "t"]), "train=")
    # A text is a sequence of its characters.
    with user_error("train=", "'text'", "'ab'"):
        as_dataset({"text": "ab", "label": "xy"}, "train=")


@pytest.mark.parametrize("format_name", ["torch", "numpy", "pandas", "arrow"])
def test_a_dataset_is_read_alike_in_every_format(format_name: str) -> None:
    dataset = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [0, 1], "labels": [[1, 0], [0, 1]]})
    read = as_dataset(dataset.with_format(format_name), "train=")
    assert read.to_list() == dataset.to_list()
    assert values(read, "label", "x") == ["0", "1"] and values(read, "labels", "x") == [["1", "0"], ["0", "1"]]
    assert classify({"train": read}).label_names == ("0", "1")


def test_a_transform_of_a_dataset_is_applied_and_a_dict_of_splits_refused() -> None:
    dataset = datasets.Dataset.from_list(ROWS)
    upper = dataset.with_transform(lambda batch: {"text": [text.upper() for text in batch["text"]]})
    assert as_dataset(upper, "train=")["text"][:] == [row["text"].upper() for row in ROWS]
    splits = datasets.IterableDatasetDict({"dev": dataset.to_iterable_dataset()})
    with user_error("train=", "dev"):
        as_dataset(splits, "train=")


def test_a_tsv_of_pandas_has_its_quotes_taken_off_and_one_without_doubled_quotes_is_as_it_stands(
    tmp_path: Path,
) -> None:
    kept = ['he said "no" twice', "a, b", "plain", '"open']
    pandas.DataFrame({"text": kept, "label": ["x"] * 4}).to_csv(tmp_path / "a.tsv", sep="\t", index=False)
    assert read_file(tmp_path / "a.tsv")["text"][:] == kept
    for content in ('"quoted"', '"open ""', 'say ""no""'):
        assert read_file(write(tmp_path / "b.tsv", f"text\tlabel\n{content}\tx\n"))["text"][:] == [content]


def test_numbers_that_pandas_made_fractions_are_whole_again() -> None:
    rows = as_dataset({"label": [1.0, 0.0, 2.5, None]}, "train")
    assert values(rows, "label", "train") == ["1", "0", "2.5", None]


def test_a_table_without_words_is_no_tagged_text(tmp_path: Path) -> None:
    with user_error("x.csv", "text, label", ".txt", ".jsonl"):
        read_file(write(tmp_path / "x.csv", "text,label\na,b\n"), tagged=True)


def classify(data: dict[str, datasets.Dataset], **settings: Any) -> Task:
    return configured_task(GlueConfig(model_name_or_path="m", do_train=True, train_file="train.csv", **settings), data)


@pytest.mark.parametrize(
    ("rows", "settings", "contained"),
    [
        ({"text": ["a"], "mark": ["x"]}, {}, ("'label'", "text, mark", "--label_column")),
        ({"body": ["a"], "label": ["x"]}, {}, ("text, text_a and text_b,", "body, label", "--text_columns")),
        ({"body": ["a"], "label": ["x"]}, {"text_columns": ("txt",)}, ("'txt'", "body, label", "--text_columns")),
        ({"text": [["a"], ["b"]], "label": ["x", "y"]}, {}, ("row 1", "'text' is ['a']")),
        ({"text": ["a", "b"], "label": ["x", " "]}, {}, ("'label'", "empty", "row 2")),
        ({"text": ["a", "b"], "label": ["x", "x "]}, {}, ("'label' is 'x'", "two labels")),
        ({"text": ["a"] * 99, "label": [n % 30 / 10 for n in range(99)]}, {}, ("30 different labels in 99",)),
        ({"text": ["a"] * 30, "label": list(range(30))}, {}, ("30 different labels in 30 rows", "'0'", "--regression")),
        ({"text": ["a", "b"], "label": ["1", "inf"]}, {"regression": True}, ("row 2", "'label'", "'inf'")),
        ({"text": ["a", "b"], "label": ["1", ""]}, {"regression": True}, ("row 2", "'label'", "''")),
    ],
)  # fmt: skip
def test_columns_and_labels_that_are_wrong(rows: Any, settings: Any, contained: Any) -> None:
    with user_error("train.csv", *contained):
        classify({"train": as_dataset(rows, "train")}, **settings)


def test_rows_without_text_are_left_out_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    task = classify({"train": as_dataset({"text": ["a", None, "", "b"], "label": ["x", "y", "y", "y"]}, "train")})
    assert task.load(None, ["train"])["train"]["idx"][:] == [0, 3]
    assert "train.csv: 2 of 4 rows have no text and are left out" in caplog.text
    pairs = {"text_a": ["a", "b", "", ""], "text_b": ["c", None, "d", " "], "label": ["x", "y", "y", "x"]}
    assert classify({"train": as_dataset(pairs, "train")}).load(None, ["train"])["train"]["idx"][:] == [0, 1, 2]
    assert "train.csv: 2 of 4 rows have one of their two texts, read alone" in caplog.text


def test_a_label_of_dev_that_training_does_not_know() -> None:
    with pytest.raises(UserError, match="validation, row 2: column 'label': label 'never' is not known; it must"):
        dev = as_dataset({"text": ["a", "b"], "label": ["yes", "never"]}, "dev")
        classify({"train": as_dataset(ROWS, "train"), "validation": dev})


def test_questions_of_files_tables_and_the_hub_are_the_same(tmp_path: Path) -> None:
    answers = [{"text": "the river", "answer_start": 16}]
    asked = {"id": "q", "question": "Where was it?", "answers": answers}
    content = {"data": [{"paragraphs": [{"context": CONTEXT, "qas": [asked]}]}]}
    row = {"id": "q", "question": "Where was it?", "context": CONTEXT}
    forms = [
        write(tmp_path / "a.json", json.dumps(content)), [row | {"answer": "the river"}], [row | {"answers": answers}],
        [row | {"answers": {"text": ["the river"], "answer_start": [16]}}],
    ]  # fmt: skip
    for form in forms:
        found = questions_of(as_dataset(form, "x"), "x", unanswerable=False)
        assert found.to_list() == [row | {"answers": {"text": ["the river"], "answer_start": [16]}}]
    assert questions_of(as_dataset([row], "x"), "x", unanswerable=False).column_names == ["id", "question", "context"]


def test_questions_that_are_wrong() -> None:
    row = {"id": "q", "question": "Where?", "context": CONTEXT}
    for changes, message in (
        ([{"answers": []}], "question 'q': has no answer. Give it one, or use --task_name squad_v2"),
        ([{"answers": [{"text": "mill", "answer_start": 900}]}], "answer 'mill' at 900 lies outside its context of 46"),
        ([{"answers": [{"text": "mill"}]}], "It must be a list of objects with text and answer_start"),
        ([{"answer": "the sea"}], "answer 'the sea' does not occur in its context"),
        ([{"question": None, "answer": "mill"}], "row 1: column 'question' is None"),
        ([{"answer": "mill"}] * 2, "question 'q': this id occurs twice"),
    ):
        with pytest.raises(UserError, match=rf"^[^\n]*{message}[^\n]*$"):
            questions_of(as_dataset([row | change for change in changes], "x"), "x", unanswerable=False)


def test_tags_of_files_and_of_rows_and_what_is_wrong_with_them(tmp_path: Path) -> None:
    config = NerConfig(model_name_or_path="m", do_train=True, train_file="x")
    tagged = read_file(write(tmp_path / "a.txt", "The\tO\naspirin\tI-DRUG\n\nacts\tO\n"), tagged=True)
    rows = {"tokens": [["The", "aspirin"], ["acts"]], "ner_tags": [["O", "I-DRUG"], ["O"]]}
    for data in (tagged, as_dataset(rows, "x")):
        task = configured_task(config, {"train": data})
        assert task.label_names == ("O", "B-DRUG", "I-DRUG") and task.metrics == ("entity_f1",)
        assert task.load(None, ["train"])["train"]["tags"][:] == [[0, 1], [0]]
    other = as_dataset([{"words": ["The", "dog"], "tags": ["DET", "NOUN"]}], "x")
    task = configured_task(config, {"train": other})
    assert task.label_names == ("DET", "NOUN") and task.metrics == ("accuracy",)
    dev = task.load(None, ["train"])["train"]
    assert task.score({"prediction": [["DET", "DET"]]}, dev) == {"accuracy": 0.5}
    assert [task.is_degenerate({"prediction": [["DET", tag]]}, dev) for tag in ("DET", "NOUN")] == [True, False]
    assert task.score_details({"prediction": [["DET", "DET"]]}, dev)["confusion_matrix"] == [[1, 0], [1, 0]]
    for wrong, message in (
        ({"words": [["a"]], "tags": [["X"]]}, "validation, row 1: tag 'X' is not known. It must be one of: DET, NOUN"),
        ({"words": [["a"]], "tags": [["DET", "DET"]]}, "validation, row 1 has 1 words and 2 tags"),
        ({"words": [["a"]]}, "validation: no column 'tags'; found words"),
        ({"words": ["a b"], "tags": [["DET"]]}, "validation, row 1: words is 'a b'. It must be a list of texts"),
    ):
        with pytest.raises(UserError) as raised:
            configured_task(config, {"train": other, "validation": as_dataset(wrong, "x")})
        assert message in str(raised.value)
    with pytest.raises(UserError, match="x has 1 words, for example 'a', and 30 tags"):
        configured_task(config, {"train": as_dataset([{"words": ["a"], "tags": [*map(str, range(30))]}], "x")})


def test_rows_are_held_out_in_proportion_and_by_the_seed() -> None:
    strata = ["a"] * 80 + ["b"] * 20
    held = held_out_rows(strata, 0.25, 1)
    assert (held[:80].sum(), held[80:].sum()) == (20, 5)
    assert not np.array_equal(held, held_out_rows(strata, 0.25, 2))


@pytest.mark.parametrize(
    ("kind", "rows"),
    [
        (GlueConfig, [{"text": f"t{n // 2}", "label": "ab"[n % 2]} for n in range(20)]),
        (NerConfig, [{"words": [f"w{n // 2}"], "tags": ["XY"[n % 2]]} for n in range(20)]),
        (SwagConfig, [{**CHOICE, "sent1": f"t{n // 2}", "label": n % 2} for n in range(20)]),
        (SquadConfig, [{"question": str(n), "context": f"c{n // 2} x", "answer": "x"} for n in range(20)]),
    ],
)  # fmt: skip
def test_each_family_divides_its_training_data(kind: Any, rows: Any) -> None:
    config = kind(model_name_or_path="m", do_train=True, do_eval=True, train_file="x", validation_fraction=0.2)
    splits = configured_task(config, {"train": as_dataset(rows, "x")}).load(None, ["train", "validation"])
    assert (len(splits["train"]), len(splits["validation"])) == (16, 4)
    column = {"SquadConfig": "context", "NerConfig": "words", "SwagConfig": "sent1"}.get(kind.__name__, "text")
    assert not set(map(str, splits["train"][column])) & set(map(str, splits["validation"][column]))
    with user_error("--validation_fraction 0.2", setting="validation_fraction"):
        configured_task(config, {"train": as_dataset(rows[:2], "x")})
