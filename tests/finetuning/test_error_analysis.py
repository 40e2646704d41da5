"""Scores of each class equal scikit-learn's, wrong rows are found in every form of prediction file."""

import json
from pathlib import Path

import numpy as np
import pytest
from errors import user_error
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

import bert_repro
from bert_repro.finetuning.error_analysis import class_scores, never_predicted, wrong_rows

ROWS = [{"text": "bright river", "label": "good"}, {"text": "cold stone", "label": "bad"}] * 4


def test_scores_of_classes_equal_those_of_scikit_learn():
    generator = np.random.default_rng(0)
    true, predicted = generator.integers(0, 4, 60), generator.integers(0, 3, 60)
    matrix = confusion_matrix(true, predicted).tolist()
    names = ["a", "b", "c", "d"]
    expected = precision_recall_fscore_support(true, predicted, zero_division=0)
    for name, values in zip(names, zip(*expected, strict=True), strict=True):
        assert list(class_scores(names, matrix)[name].values()) == pytest.approx(list(values))
    assert never_predicted(names, matrix) == ["d"]


def test_a_run_reports_its_classes_and_wrong_rows(untrained, tmp_path, caplog):
    with caplog.at_level("INFO", "bert_repro"):
        result = bert_repro.finetune(
            model=untrained, train=ROWS, validation=ROWS, max_steps=1, train_batch_size=4, learning_rate=1e-6,
            output_dir=tmp_path,
        )  # fmt: skip
    wrong = result.errors()
    assert len(wrong) == round(8 * (1 - result.metrics["accuracy"])) > 0
    assert all(row["prediction"] != row["label"] and row["text"] for row in wrong)
    assert f"{len(wrong)} of 8 wrong: {tmp_path / 'predictions.validation.tsv'}" in caplog.text
    details = result["splits"]["validation"]["details"]
    assert {name: scores["rows"] for name, scores in details["classes"].items()} == {"bad": 4, "good": 4}
    card = (tmp_path / "README.md").read_text()
    assert "| label | precision | recall | F1 | rows |" in card
    # An untrained head gives one label to every row.
    (never,) = details["never_predicted"]
    assert f"never predicts {never}" in card and f"never predicts {never}" in caplog.text
    with user_error("test"):
        result.errors("test")


@pytest.mark.parametrize(
    ("name", "content", "wrong"),
    [
        ("x.tsv", 'index\tprediction\tlabel\ttext\n0\ta\ta\t"x\n1\ta\tb\ty\n', ["1"]),
        ("x.csv", 'index,prediction,label,text\n0,1,1,"a, b"\n1,0,1,"c"\n', ["1"]),
    ],
)
def test_wrong_rows_of_tables(tmp_path: Path, name: str, content: str, wrong: list[str]) -> None:
    (tmp_path / name).write_text(content)
    assert [row["index"] for row in wrong_rows(tmp_path / name)] == wrong


def test_wrong_rows_of_answers_and_tags(tmp_path: Path) -> None:
    rows = [
        {"id": 0, "prediction": "the river", "label": ["River", "stone"]},
        {"id": 1, "prediction": "", "label": []},
        {"id": 2, "prediction": "x", "label": []},
        {"id": 3, "prediction": ["O", "B-X"], "label": ["O", "O"]},
        {"id": 4, "prediction": ["O"], "label": ["O"]},
    ]
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [row["id"] for row in wrong_rows(path)] == [2, 3]
    path.write_text(json.dumps({"prediction": "a"}) + "\n")
    with user_error(path):
        wrong_rows(path)
