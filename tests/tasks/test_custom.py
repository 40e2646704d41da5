"""Several labels a row, weighted and smoothed labels, rows held out: what they compute, and a run of each."""

import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from errors import user_error
from running import recipe, results
from sklearn.metrics import f1_score
from transformers import AutoConfig

from bert_repro.configs import GlueConfig
from bert_repro.tasks import TASKS, configured_task
from bert_repro.tasks.data import as_dataset
from bert_repro.tasks.thresholds import best_f1_threshold

WORDS = {"river": "water", "stone": "hard", "tree": "green"}


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def topics(path: Path, count: int, seed: int) -> Path:
    """Each of three words in a text gives the text a label."""
    generator = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        there = [word for word in WORDS if generator.random() < 0.4]
        text = " ".join(generator.permutation(["the", "runs", *there]))
        rows.append({"text": text, "label": [WORDS[word] for word in there], "number": len(rows)})
    return write_rows(path, rows)


class TestSeveralLabels:
    def test_lists_and_separated_texts_say_the_same(self, tmp_path: Path) -> None:
        lists = write_rows(tmp_path / "a.jsonl", [{"text": "x", "label": ["b", "a"]}, {"text": "y", "label": []}])
        (tmp_path / "a.csv").write_text("text,label\nx,b| a\ny,\n")
        for path in (lists, tmp_path / "a.csv"):
            config = GlueConfig(model_name_or_path="-", do_train=True, train_file=str(path), multi_label=True)
            task = configured_task(config)
            assert task.label_names == ("a", "b")
            assert task.load(None, ["train"])["train"]["label"][:] == [[1, 1], [0, 0]]
        assert task.model_settings()["problem_type"] == "multi_label_classification"
        with pytest.raises(ValueError, match="label 'c' is not known"):
            task.parse_label("a|c")

    @pytest.mark.parametrize(
        "rows",
        [
            "x,\"['b', 'a']\"\ny,[]\n",
            'x,"b, a"\ny,\n',
            'x,"[""b"", ""a""]"\ny,\n',
            # NumPy's lists have no commas, which Python would read as one text.
            "x,['b' 'a']\ny,[]\n",
            "x,\"{'b', 'a'}\"\ny,()\n",
            "x,\"('b', 'a')\"\ny,\n",
            "x,b; a\ny,\n",
        ],
    )
    def test_lists_as_text_and_commas_are_several_labels(self, tmp_path: Path, rows: str) -> None:
        path = tmp_path / "a.csv"
        path.write_text("text,label\n" + rows)
        task = configured_task(
            GlueConfig(model_name_or_path="-", do_train=True, train_file=str(path), multi_label=True)
        )
        assert task.label_names == ("a", "b")
        assert task.load(None, ["train"])["train"]["label"][:] == [[1, 1], [0, 0]]

    def test_a_comma_in_a_name_stays_where_labels_are_separated_otherwise(self, tmp_path: Path) -> None:
        path = tmp_path / "a.csv"
        path.write_text('text,label\nx,"food, drinks|staff"\ny,"food, drinks"\n')
        task = configured_task(
            GlueConfig(model_name_or_path="-", do_train=True, train_file=str(path), multi_label=True)
        )
        assert task.label_names == ("food, drinks", "staff")
        assert task.load(None, ["train"])["train"]["label"][:] == [[1, 1], [1, 0]]

    @pytest.mark.parametrize("spelled", [[1, 0, 0, 1], "[1, 0, 0, 1]", "1|0|0|1", "1 0 0 1"])
    def test_zeros_and_ones_are_no_names(self, tmp_path: Path, spelled: Any) -> None:
        other = [0, 1, 0, 1] if isinstance(spelled, list) else spelled[::-1].replace("]", "<").replace("[", "]")
        other = other.replace("<", "[") if isinstance(other, str) else other
        path = write_rows(tmp_path / "a.jsonl", [{"text": "x", "label": spelled}, {"text": "y", "label": other}])
        with user_error(path, "label", "zeros and ones"):
            configured_task(GlueConfig(model_name_or_path="-", do_train=True, train_file=str(path), multi_label=True))

    def test_booleans_are_no_names(self, tmp_path: Path) -> None:
        rows = [{"text": "x", "label": [True, False, False]}, {"text": "y", "label": [False, True, False]}]
        path = write_rows(tmp_path / "a.jsonl", rows)
        with user_error(path, "label", "zeros and ones"):
            configured_task(GlueConfig(model_name_or_path="-", do_train=True, train_file=str(path), multi_label=True))

    def test_each_labels_threshold_has_its_best_f1(self) -> None:
        generator, limits = np.random.default_rng(0), np.linspace(0.005, 1, 200)
        for _ in range(50):
            labels = generator.integers(0, 2, 40)
            probabilities = np.round(np.clip(labels * 0.3 + generator.random(40) * 0.7, 0, 1), 2)
            chosen = f1_score(labels, probabilities >= best_f1_threshold(probabilities, labels), zero_division=0)
            predicted = probabilities >= limits[:, None]
            every = 2 * (predicted & (labels == 1)).sum(1) / (predicted.sum(1) + labels.sum())
            assert chosen == pytest.approx(every.max())
        assert best_f1_threshold(np.array([0.1, 0.9]), np.array([0, 0])) == 0.5

    def test_a_run_stores_thresholds_that_a_later_run_finds_again(self, untrained: Path, tmp_path: Path) -> None:
        train = topics(tmp_path / "train.jsonl", 200, 0)
        first, again = tmp_path / "first", tmp_path / "again"
        data = ["--max_seq_length 16 --validation_file", topics(tmp_path / "dev.jsonl", 60, 1)]
        training = "--do_train --do_eval --bias_correction true --learning_rate 1e-2 --train_batch_size 8"
        command = ["--model_name_or_path", untrained, "--train_file", train, "--output_dir", first, *data]
        assert recipe("run_glue", training, "--multi_label --num_train_epochs 3", *command) == 0
        found = results(first)
        rows = [json.loads(line) for line in (tmp_path / "dev.jsonl").read_text().splitlines()]
        share = sum(len(row["label"]) for row in rows) / (3 * len(rows))
        every_label = 2 * share / (1 + share)  # F1 of giving every label to every row
        assert found["metrics"]["micro_f1"] > every_label + 0.1
        assert set(found["metrics"]) == {"micro_f1", "macro_f1", "exact_match"}
        stored = AutoConfig.from_pretrained(first)
        assert len(stored.label_thresholds) == 3 and stored.problem_type == "multi_label_classification"
        assert recipe("run_glue", "--do_eval --model_name_or_path", first, "--output_dir", again, *data) == 0
        assert results(again)["metrics"] == found["metrics"]
        head, row, *_ = (again / "predictions.validation.tsv").read_text().splitlines()
        assert head.split("\t")[:3] == ["index", "prediction", "label"] and head.endswith("\ttext\tnumber")
        assert len(row.split("\t")) == 8


def test_baselines_are_the_most_frequent_label_and_words() -> None:
    words = ("good", "bad", "poor")
    rows = [{"text": f"a {word} day {number}", "label": int(word == "good")} for word in words for number in range(20)]
    train, dev = (datasets.Dataset.from_list(rows[start:]) for start in (0, 10))
    found = TASKS["sst2"].baselines(train.rename_column("text", "sentence"), dev.rename_column("text", "sentence"))
    assert found["bag of words"]["accuracy"] == 1.0
    assert found["most frequent label"]["accuracy"] == pytest.approx(40 / 50)
    assert TASKS["swag"].baselines(train, dev) == {}


def test_baselines_of_numbers_weigh_words_and_the_overlap_of_a_pair() -> None:
    generator = np.random.default_rng(0)
    alphabet = [f"{first}{second}" for first in "bdfgklmnpr" for second in "aeiou"]
    rows = []
    for _ in range(500):  # no word says anything by itself; how many are common says all
        common, words = generator.integers(0, 6), generator.choice(alphabet, 11, replace=False)
        left, right = words[:6], [*words[:common], *words[6 : 12 - common]]
        rows.append({"sentence1": " ".join(left), "sentence2": " ".join(right), "label": float(common)})
    train, dev = datasets.Dataset.from_list(rows[:400]), datasets.Dataset.from_list(rows[400:])
    found = TASKS["stsb"].baselines(train, dev)
    assert found.keys() == {"bag of words"} and found["bag of words"].keys() == {"pearson", "spearmanr"}
    assert found["bag of words"]["spearmanr"] > 0.9


def test_baselines_of_several_labels_have_the_best_thresholds_too(tmp_path: Path) -> None:
    files = {"train_file": topics(tmp_path / "a.jsonl", 200, 0), "validation_file": topics(tmp_path / "b.jsonl", 60, 1)}
    settings = {name: str(path) for name, path in files.items()}
    task = configured_task(GlueConfig(model_name_or_path="-", multi_label=True, **settings))
    splits = task.load(None, ["train", "validation"])
    found = task.baselines(splits["train"], splits["validation"])["bag of words"]
    assert found == {"micro_f1": 1.0, "macro_f1": 1.0, "exact_match": 1.0}


def test_labels_that_differ_only_in_case_and_dev_rows_of_the_training_data_are_said(tmp_path: Path, caplog) -> None:
    (path := tmp_path / "moods.csv").write_text("text,label\nsun,Good\nrain,bad\nsnow,good\n")
    with caplog.at_level("WARNING", "bert_repro"):
        (dev := tmp_path / "dev.csv").write_text("text,label\nrain,bad\nhail,bad\n")
        task = GlueConfig(model_name_or_path="-", do_train=True, train_file=str(path), validation_file=str(dev))
        made = configured_task(task)
    assert "labels Good and good are different, although only their case differs" in caplog.text
    assert "1 of 2 dev rows have the texts of training rows" in caplog.text
    assert "only their case differs" in made.data_description()["note"]


def test_labels_that_are_the_same_number_are_said(caplog: pytest.LogCaptureFixture) -> None:
    for labels, spellings in ((["1", "1.0", "2", "x"], ("'1'", "'1.0'")), (["07", "7", "8"], ("'07'", "'7'"))):
        caplog.clear()
        data = {"train": as_dataset({"text": list("abcd")[: len(labels)], "label": labels}, "train=")}
        task = configured_task(GlueConfig(model_name_or_path="-", do_train=True, train_file="x"), data)
        assert task.label_names == tuple(labels)
        warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
        assert len(warnings) == 1 and all(spelling in warnings[0] for spelling in spellings)
        assert warnings[0] in task.data_description()["note"]
    caplog.clear()
    data = {"train": as_dataset({"text": ["a", "b"], "label": ["1", "2.0"]}, "train=")}
    configured_task(GlueConfig(model_name_or_path="-", do_train=True, train_file="x"), data)
    assert not caplog.records or "same number" not in caplog.text
