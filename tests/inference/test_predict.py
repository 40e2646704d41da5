"""`bert-repro predict`: texts of a file or the standard input in, answers with their probabilities out."""

import csv
import io
import json
import shutil
import sys
from pathlib import Path

import pytest
from running import recipe
from tiny_models import save_model

import bert_repro
from bert_repro.configs import TokenizerConfig
from bert_repro.recipes import RECIPES

LABELS = {"id2label": {0: "cold", 1: "warm"}, "label2id": {"cold": 0, "warm": 1}}
HEADS = {
    "classifier": ("ForSequenceClassification", {**LABELS, "problem_type": "single_label_classification"}),
    "several": (
        "ForSequenceClassification",
        {**LABELS, "problem_type": "multi_label_classification", "label_thresholds": [0.0, 1.0]},
    ),
    "tagger": ("ForTokenClassification", {"id2label": {0: "O", 1: "B-X"}, "label2id": {"O": 0, "B-X": 1}}),
    "answers": ("ForQuestionAnswering", {}),
    "choices": ("ForMultipleChoice", {}),
    "encoder": ("Model", {}),
}


@pytest.fixture(scope="module")
def models(world, tmp_path_factory) -> Path:
    """An untrained model with each head."""
    root = tmp_path_factory.mktemp("models")
    for name, (head, settings) in HEADS.items():
        save_model(world, root / name, head, **settings)
    return root


def test_lines_of_the_standard_input_become_rows_of_csv(models, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'the river falls\n\na, "quoted" stone\n')))
    assert recipe("predict", "--model_name_or_path", models / "classifier") == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["text"] for row in rows] == ["the river falls", "", 'a, "quoted" stone']
    assert list(rows[0]) == ["text", "prediction", "probability", "probability_cold", "probability_warm"]
    answered, blank, _ = rows
    assert float(answered["probability"]) == float(answered[f"probability_{answered['prediction']}"]) >= 0.5
    assert [blank[name] for name in ("prediction", "probability", "probability_cold")] == ["", "", ""]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"text,the river\n")))
    assert recipe("predict", "--model_name_or_path", models / "classifier", "--input_format", "text") == 0


def test_of_several_processes_one_writes(models, monkeypatch, capsys, tmp_path, refused):
    (tmp_path / "x.txt").write_text("the river\n")
    flags = ("--model_name_or_path", models / "classifier", "--input_file", tmp_path / "x.txt")
    monkeypatch.setattr("bert_repro.inference.predict.is_main_process", lambda: False)
    assert recipe("predict", *flags) == 0 and capsys.readouterr().out == ""
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "--input_file" in refused("predict", *flags[:2])
    monkeypatch.setenv("RANK", "1")
    config = TokenizerConfig(input_files=(str(tmp_path / "x.txt"),), output_dir=str(tmp_path / "tokenizer"))
    assert RECIPES["train_tokenizer"].run(config) is None and not (tmp_path / "tokenizer").exists()


def test_rows_without_text_are_no_part_of_the_score(models, tmp_path, caplog):
    rows = [{"text": text, "label": "warm"} for text in ("the river", " ", "a stone")]
    answers = bert_repro.predict(models / "classifier", rows)
    right = sum(answer["prediction"] == "warm" for answer in answers)
    assert f"accuracy {right / 2:.4f}" in caplog.text and answers[1]["prediction"] is None
    assert "1 of 3 rows have no text and get no answer" in caplog.text
    assert bert_repro.predict(models / "classifier", [{"text": "a", "label": "never"}])[0]["prediction"]
    assert "the data, row 1" in caplog.text and "'never'" in caplog.text


def test_a_table_keeps_its_columns(models, tmp_path, refused):
    table = tmp_path / "new.csv"
    table.write_text("ticket;text;label\nA7;the river;warm\nA9;a stone;cold\n")
    out = tmp_path / "answers.jsonl"
    flags = ("--model_name_or_path", models / "classifier", "--input_file", table, "--output_file", out)
    assert recipe("predict", *flags) == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    kept = [(row["ticket"], row["text"], row["label"]) for row in rows]
    assert kept == [("A7", "the river", "warm"), ("A9", "a stone", "cold")]
    assert rows[0]["probability_cold"] + rows[0]["probability_warm"] == pytest.approx(1, abs=1e-5)
    assert "answers.jsonl exists" in refused("predict", *flags)
    assert recipe("predict", *flags[:-1], tmp_path / "answers.tsv") == 0
    assert (tmp_path / "answers.tsv").read_text().startswith("ticket\ttext\tlabel\tprediction\t")
    assert "answers.conll" in refused("predict", *flags[:-1], tmp_path / "answers.conll")


def test_the_columns_of_training_are_read_and_named_where_they_are_missing(models, tmp_path, refused, capsys):
    model = shutil.copytree(models / "classifier", tmp_path / "model")
    trained = {"data": {"text_columns": ["review"]}, "settings": {"label_column": "mood"}}
    (model / "results.json").write_text(json.dumps(trained))
    rows = [{"text": "a stone", "review": "the river", "mood": "warm"}]
    (answer,), (alone,) = bert_repro.predict(model, rows), bert_repro.predict(model, ["the river"])
    assert answer["probability_warm"] == alone["probability_warm"], "the column of training wins over the usual name"
    (foreign,) = bert_repro.predict(model, [{"review": "the river", "label": "A17"}])
    assert (foreign["label"], foreign["prediction"]) == ("A17", alone["prediction"]), "nor are other labels its own"
    capsys.readouterr()
    (tmp_path / "x.csv").write_text("body,mood\na,warm\n")
    flags = ("--model_name_or_path", model, "--input_file", tmp_path / "x.csv")
    assert "no column of text (review in training); found body, mood; name it" in refused("predict", *flags)
    (tmp_path / "x.csv").write_text("text_a,text_b\na,b\n")
    assert "but the model was trained on single texts (review)" in refused("predict", *flags)


def test_every_family_answers_in_its_own_form(models, tmp_path):
    rows = [{"question": "what falls", "context": "the river falls over the stone"}]
    rows += [{"question": "what grows", "context": "a tree grows"}]
    choices = [{"sent1": "the river", "sent2": "it", "ending0": "falls", "ending1": "sings", "ending2": "grows"}]
    (several,) = bert_repro.predict(models / "several", ["the river"])
    assert several["prediction"] == ["cold"] and {"probability_cold", "probability_warm"} <= several.keys()
    (tagged,) = bert_repro.predict(models / "tagger", ["The river falls."])
    assert tagged["words"] == ["The", "river", "falls", "."]
    assert set(tagged["prediction"]) <= {"O", "B-X"} and len(tagged["probability"]) == 4
    (tmp_path / "words.conll").write_text("The O\nriver B-X\n\nfalls O\n")
    found = bert_repro.predict(models / "tagger", tmp_path / "words.conll")
    assert [row["words"] for row in found] == [["The", "river"], ["falls"]] and found[0]["tags"] == ["O", "B-X"]
    flags = ("--input_file", tmp_path / "words.conll", "--output_file", tmp_path / "tagged.conll")
    assert recipe("predict", "--model_name_or_path", models / "tagger", *flags) == 0
    (first, second), (third,) = (row["prediction"] for row in found)
    written = f"The O {first}\nriver B-X {second}\n\nfalls O {third}\n\n"
    assert (tmp_path / "tagged.conll").read_text() == written
    answers = bert_repro.predict(models / "answers", rows)
    assert [answer["question"] for answer in answers] == ["what falls", "what grows"]
    assert all(answer["prediction"] in answer["context"] and 0 < answer["probability"] <= 1 for answer in answers)
    (choice,) = bert_repro.predict(models / "choices", choices)
    assert choice["answer"] == choices[0][f"ending{choice['prediction']}"] and choice["probability_ending2"] < 1
    (other,) = bert_repro.predict(models / "tagger", [{"words": ["The", "river"], "tags": ["B-PERSON", "O"]}])
    assert other["tags"] == ["B-PERSON", "O"] and len(other["prediction"]) == 2, "labels of others stop no prediction"
    assert bert_repro.predict(models / "choices", [choices[0] | {"label": 9}])[0]["answer"] == choice["answer"]


@pytest.mark.parametrize(
    ("model", "name", "content", "message"),
    [
        ("encoder", "x.txt", "a\n", "is BertModel without a task"),
        ("classifier", "x.txt", "\n\n", "x.txt contains no text"),
        ("classifier", "x.csv", "words\na\n", "x.csv: no column of text"),
        (
            "classifier",
            "x.data",
            "id,text\n1,a\n",
            "x.data begins like a table: 'id,text'. Say what it is with --input_format",
        ),
        ("tagger", "x.txt", '{"text": "a"}\n', "begins like a table"),
        ("answers", "x.txt", "what\n", "--context_file"),
        ("choices", "x.txt", "what\n", "sent1, sent2, ending0"),
        ("classifier", "gone.csv", None, "--input_file"),
        ("tagger", "x.txt", "rain B-X\nfalls O\n\nstone O\n", "--input_format conll"),
        ("classifier", "x.csv", "text,prediction\na,b\n", "the names of the answers: prediction"),
    ],
)
def test_bad_input_is_one_line(models, tmp_path, refused, model, name, content, message):
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    error = refused("predict", "--model_name_or_path", models / model, "--input_file", path)
    assert message in error and "test_file" not in error


def test_a_length_that_the_model_does_not_have_is_refused(models, tmp_path, refused):
    (tmp_path / "x.txt").write_text("the river\n")
    flags = ("--input_file", tmp_path / "x.txt", "--max_seq_length", 4096)
    error = refused("predict", "--model_name_or_path", models / "classifier", *flags)
    assert "--max_seq_length 4096 exceeds the 512 positions" in error


def test_cells_that_a_spreadsheet_would_run_are_escaped_on_request(finetuned, tmp_path):
    texts = ["=1+1", "-1", "+cmd", "@sum", "the river"]
    with (tmp_path / "in.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["text"], *([text] for text in texts)])
    command = [
        "predict",
        "--model_name_or_path",
        finetuned,
        "--input_file",
        tmp_path / "in.csv",
        "--text_columns",
        "text",
    ]
    written = {}
    for name, flags in (("plain", []), ("escaped", ["--escape_formulas"])):
        assert recipe(*command, "--output_file", tmp_path / f"{name}.csv", *flags) == 0
        with (tmp_path / f"{name}.csv").open(newline="") as file:
            written[name] = [row["text"] for row in csv.DictReader(file)]
    assert written["plain"] == texts
    assert written["escaped"] == ["'=1+1", "-1", "'+cmd", "'@sum", "the river"]
