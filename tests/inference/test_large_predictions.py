"""Predictions in parts: equal to those of all rows at once, in bounded memory, and continued after an interruption."""

import csv
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from errors import user_error
from running import recipe
from tiny_models import save_model

import bert_repro
from bert_repro.inference import input_rows, predict
from bert_repro.inference.predictor import Predictor

LABELS = {"id2label": {0: "cold", 1: "warm"}, "label2id": {"cold": 0, "warm": 1}}
TAGS = {"id2label": {0: "O", 1: "B-X"}, "label2id": {"O": 0, "B-X": 1}}
TEXTS = ("the river falls", "", "a stone", 'bright "old" house', "two\nlines", "the light", " ", "  ", "", "green tree")


@pytest.fixture(scope="module")
def classifier(world: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classifier")
    return save_model(
        world, folder, "ForSequenceClassification", problem_type="single_label_classification", initializer_range=0.5,
        **LABELS,
    )  # fmt: skip


@pytest.fixture(scope="module")
def tagger(world: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(world, tmp_path_factory.mktemp("tagger"), "ForTokenClassification", **TAGS)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_rows, "ROWS_PER_PART", 3)


def table(path: Path) -> Path:
    rows = [{"n": number, "text": text, "label": "warm"} for number, text in enumerate(TEXTS)]
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".parquet":
        pd.DataFrame(rows).to_parquet(path)
    else:
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), delimiter={".csv": ",", ".tsv": "\t"}[path.suffix])
            writer.writeheader()
            writer.writerows(rows)
    return path


def read(path: Path) -> pd.DataFrame:
    if path.suffix == ".jsonl":
        return pd.DataFrame([json.loads(line) for line in path.read_text().splitlines()])
    if path.suffix == ".parquet":
        return pd.read_parquet(path)
    return pd.read_csv(path, sep={".csv": ",", ".tsv": "\t"}[path.suffix], keep_default_na=False)


@pytest.mark.parametrize("output", [".csv", ".tsv", ".jsonl", ".parquet"])
@pytest.mark.parametrize("given", [".csv", ".jsonl", ".parquet"])
def test_parts_are_joined_to_the_file_of_a_single_part(classifier, tmp_path, monkeypatch, caplog, given, output):
    command = ["predict", "--model_name_or_path", classifier, "--input_file", table(tmp_path / f"in{given}")]
    assert recipe(*command, "--output_file", tmp_path / f"whole{output}") == 0
    scores = [message for message in caplog.messages if message.startswith("accuracy")]
    monkeypatch.setattr(input_rows, "ROWS_PER_PART", 3)
    caplog.clear()
    assert recipe(*command, "--output_file", tmp_path / f"parts{output}") == 0
    whole, parts = read(tmp_path / f"whole{output}"), read(tmp_path / f"parts{output}")
    pd.testing.assert_frame_equal(parts, whole, atol=2e-6, check_dtype=False)
    assert [message for message in caplog.messages if message.startswith("accuracy")] == scores != []
    assert "4 of 10 rows have no text" in caplog.text and not list(tmp_path.glob("*.predicting"))
    assert [int(number) for number in parts["n"]] == list(range(10))


def test_an_interrupted_prediction_continues_and_writes_the_same_file(
    classifier, tmp_path, monkeypatch, small_parts, caplog
):
    command = [
        "predict",
        "--model_name_or_path",
        classifier,
        "--input_file",
        table(tmp_path / "in.csv"),
        "--output_file",
    ]
    assert recipe(*command, tmp_path / "whole.csv") == 0
    answered: list[str] = []
    answer = Predictor.answer

    def interrupted(self: Predictor, rows: Any, where: str, **options: Any) -> Any:
        if len(answered) == 2:
            raise KeyboardInterrupt
        answered.append(where)
        return answer(self, rows, where, **options)

    monkeypatch.setattr(Predictor, "answer", interrupted)
    assert recipe(*command, tmp_path / "out.csv") == 130
    folder = tmp_path / "out.csv.predicting"
    assert not (tmp_path / "out.csv").exists() and "6 of 10 rows are answered" in caplog.text
    # A part whose file is damaged is made again.
    (folder / "part-00001.csv").write_text("half")
    answered.clear()
    monkeypatch.setattr(
        Predictor, "answer", lambda self, *given, **more: (answered.append(given[1]), answer(self, *given, **more))[1]
    )
    assert recipe(*command, tmp_path / "out.csv") == 0
    assert len(set(answered)) == 3 and not folder.exists(), "parts 2 to 4"
    assert (tmp_path / "out.csv").read_text() == (tmp_path / "whole.csv").read_text()


def test_parts_of_other_input_are_not_mixed(classifier, tmp_path, monkeypatch, small_parts, refused):
    path = table(tmp_path / "in.csv")
    command = [
        "predict",
        "--model_name_or_path",
        classifier,
        "--input_file",
        path,
        "--output_file",
        tmp_path / "out.csv",
    ]

    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(predict, "write_part", stop)
        assert recipe(*command) == 130
    path.write_text("text\nother\n")
    assert "out.csv.predicting" in refused(*command)
    assert recipe(*command, "--overwrite_output_file") == 0
    assert [row["text"] for row in read(tmp_path / "out.csv").to_dict("records")] == ["other"]


def test_a_foreign_folder_is_left_alone(classifier, tmp_path, refused):
    folder = tmp_path / "out.csv.predicting"
    folder.mkdir()
    (folder / "mine").touch()
    command = ["predict", "--model_name_or_path", classifier, "--input_file", table(tmp_path / "in.csv")]
    assert str(folder) in refused(*command, "--output_file", tmp_path / "out.csv")
    assert (folder / "mine").exists()


@pytest.mark.parametrize(
    ("name", "content", "values"),
    [
        ("x.csv", "text,n\na,1\nb,2\nc,3\nd,4\ne\n", ["line 6", "1 columns"]),
        ("x.csv", 'text,n\na,1\nb,2\nc,3\n"d,4\n', ["line 5"]),
        ("x.csv", "text,n\na,1\nb,2\nc,3\n\nd,4\n", ["line 5", "empty"]),
        ("x.csv", "text,text\na,1\n", ["'text'", "twice"]),
        ("x.jsonl", '{"text": "a"}\n' * 4 + "{\n", ["line 5"]),
        ("x.jsonl", '{"text": "a"}\n' * 4 + '{"text": [1]}\n', ["from row 4"]),
        ("x.parquet", "none", ["x.parquet"]),
        ("x.tsv", "text\tn\na\t1\nb\n", ["line 3"]),
    ],
)
def test_a_bad_row_is_refused_before_anything_is_predicted(
    classifier, tmp_path, monkeypatch, small_parts, refused, name, content, values
):
    monkeypatch.setattr(Predictor, "answer", lambda *_, **__: pytest.fail("predicted before all rows were read"))
    (tmp_path / name).write_text(content)
    command = ["predict", "--model_name_or_path", classifier, "--input_file", tmp_path / name]
    message = refused(*command, "--output_file", tmp_path / "out.csv")
    assert all(value in message for value in [name, *values]), message
    assert not list(tmp_path.glob("out.csv*"))


def test_rows_that_are_all_blank_are_refused(classifier, small_parts):
    with user_error(setting="text_columns"):
        bert_repro.predict(classifier, [{"text": " "}] * 7)


@pytest.mark.parametrize("mark", ["", "-DOCSTART- O\n\n"])
def test_documents_are_not_divided(tagger, tmp_path, monkeypatch, mark):
    sentences = [f"the O\nriver{number} B-X\n\n" for number in range(8)]
    text = sentences[0] + mark + "".join(sentences[1:5]) + mark + "".join(sentences[5:])
    (tmp_path / "in.conll").write_text(text)
    command = ["predict", "--model_name_or_path", tagger, "--input_file", tmp_path / "in.conll", "--output_file"]
    assert recipe(*command, tmp_path / "whole.jsonl") == 0
    monkeypatch.setattr(input_rows, "ROWS_PER_PART", 2)
    sizes: list[int] = []
    answer = Predictor.answer
    monkeypatch.setattr(
        Predictor, "answer", lambda self, *given, **more: (sizes.append(len(given[0])), answer(self, *given, **more))[1]
    )
    assert recipe(*command, tmp_path / "parts.jsonl") == 0
    assert (tmp_path / "parts.jsonl").read_text() == (tmp_path / "whole.jsonl").read_text()
    # Sentences before the first mark belong to the first document.
    assert sizes == ([5, 3] if mark else [2, 2, 2, 2])


def test_quotes_in_tsv_mean_the_same_in_every_part(classifier, tmp_path, small_parts):
    (tmp_path / "in.tsv").write_text('text\n"the ""old"" river"\n' + "a stone\n" * 3 + '"the ""new"" river"\n')
    (tmp_path / "raw.tsv").write_text('text\n"the ""old"" river"\n' + "a stone\n" * 3 + '"the new river\n')
    texts = []
    for name in ("in", "raw"):
        command = ["predict", "--model_name_or_path", classifier, "--input_file", tmp_path / f"{name}.tsv"]
        assert recipe(*command, "--output_file", tmp_path / f"{name}.jsonl") == 0
        rows = read(tmp_path / f"{name}.jsonl")["text"].to_list()
        texts.append((rows[0], rows[-1]))
    assert texts == [('the "old" river', 'the "new" river'), ('"the ""old"" river"', '"the new river')]
