"""The edge where data enters: every form becomes the same dataset, everyday mistakes are one clear line."""

import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas
import pytest

from bert_repro.configs import GlueConfig, NerConfig, SquadConfig, SwagConfig
from bert_repro.errors import UserError
from bert_repro.tasks import configured_task
from bert_repro.tasks.base import Task
from bert_repro.tasks.data import as_dataset, held_out_rows, read_file, values
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
    ("name", "content", "message"),
    [
        ("x.csv", "text,label\na,yes\nb\n", "line 3: 1 columns, expected 2; give every row all columns"),
        ("x.csv", "text,label\na,yes\n\nb,no\n", "line 3: is empty; remove it"),
        ("x.csv", 'text,label\na,yes\n"b,no\nc,no\n', "line 3: unexpected end of data; quote texts as CSV does"),
        ("x.csv", "text,text\na,yes\n", "column 'text' occurs twice"),
        ("x.csv", "text,label\n", "no rows"),
        ("x.csv", "", "no rows"),
        ("x.csv", b"text,label\n\xff,yes\n", "line 2: byte 0xff at position 0 is not UTF-8"),
        ("x.tsv", "text\tlabel\na\tb\tyes\n", "line 2: 3 columns, expected 2; give every row all columns"),
        ("x.jsonl", '{"text": "a", "label": "yes"}\n{"text": \n', "line 2: is not valid JSON"),
        ("x.jsonl", "[1]\n[2]\n", "line 1: is not a JSON object"),
        ("x.jsonl", '{"label": 1}\n{"label": "a"}\n', "the rows are no table"),
        ("x.jsonl", "", "no rows"),
        ("x.json", '{"data": [{"title": "x"}]}', "is not as SQuAD's files are"),
        ("x.xlsx", "a", "unknown format; name a .csv, .tsv, .jsonl, .json or .parquet file"),
        ("gone.csv", None, "no such file"),
    ],
)
def test_a_bad_file_is_refused_with_its_line(tmp_path: Path, name: str, content: Any, message: str) -> None:
    path = tmp_path / name if content is None else write(tmp_path / name, content)
    with pytest.raises(UserError, match=r"^[^\n]*$") as raised:
        read_file(path)
    assert str(path) in str(raised.value) and message in str(raised.value)


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


def test_a_table_is_no_tagged_text(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"x.csv: tagged words are no CSV; write a word and its tag on each line"):
        read_file(write(tmp_path / "x.csv", "words,tags\n"), tagged=True)


def classify(data: dict[str, datasets.Dataset], **settings: Any) -> Task:
    return configured_task(GlueConfig(model_name_or_path="m", do_train=True, train_file="train.csv", **settings), data)


@pytest.mark.parametrize(
    ("rows", "settings", "message"),
    [
        ({"text": ["a"], "mark": ["x"]}, {}, "no column 'label'; found text, mark; name the column of labels with"),
        ({"body": ["a"], "label": ["x"]}, {}, "no column of text (text, text_a and text_b,"),
        ({"body": ["a"], "label": ["x"]}, {"text_columns": ("txt",)}, "no column 'txt'; found body, label; name"),
        ({"text": [["a"], ["b"]], "label": ["x", "y"]}, {}, "row 1: column 'text' is ['a']; it must be a text"),
        ({"text": ["a", "b"], "label": ["x", " "]}, {}, "'label' is empty in row 2; label every row"),
        ({"text": ["a", "b"], "label": ["x", "x "]}, {}, "column 'label' is 'x' in every row; two labels are needed"),
        ({"text": ["a"] * 99, "label": [n % 30 / 10 for n in range(99)]}, {}, "30 different labels in 99"),
        ({"text": ["a"] * 30, "label": list(range(30))}, {}, "30 different labels in 30 rows, such as '0'; name"),
        ({"text": ["a", "b"], "label": ["1", "inf"]}, {"regression": True}, "row 2: column 'label': 'inf' is not a"),
        ({"text": ["a", "b"], "label": ["1", ""]}, {"regression": True}, "row 2: column 'label': '' is not a number"),
    ],
)  # fmt: skip
def test_columns_and_labels_that_are_wrong(rows: Any, settings: Any, message: str) -> None:
    with pytest.raises(UserError, match=r"^[^\n]*$") as raised:
        classify({"train": as_dataset(rows, "train")}, **settings)
    assert message in str(raised.value)


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
    with pytest.raises(UserError, match=r"--validation_fraction 0.2: leaves no row for one of the splits"):
        configured_task(config, {"train": as_dataset(rows[:2], "x")})
