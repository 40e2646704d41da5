"""Tasks that came after the paper: rows as their official files and the Hub's datasets have them, and their scores."""

import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from running import recipe, results
from tiny_models import save_model, word_tokenizer

from bert_repro.errors import UserError
from bert_repro.tasks import TASKS

PAIR = {"premise": "A dog runs.", "hypothesis": "An animal moves."}
ROWS: dict[str, tuple[str, list[dict[str, Any]], dict[str, Any], list[Any]]] = {
    # task -> file below --data_dir, its rows, the first row as the task has it, labels
    "boolq": (
        "BoolQ/val.jsonl",
        [
            {"question": "is it", "passage": "It is.", "label": True},
            {"question": "no", "passage": "No.", "label": False},
        ],
        {"question": "is it", "passage": "It is."},
        [1, 0],
    ),
    "cb": ("CB/val.jsonl", [{**PAIR, "label": "neutral"}, {**PAIR, "label": "entailment"}], PAIR, [2, 0]),
    "wic": (
        "WiC/val.jsonl",
        [{"word": "bank", "sentence1": "The bank is wet.", "sentence2": "A bank lends.", "label": False}],
        {"word": "bank", "sentence1": "The bank is wet."},
        [0],
    ),
    "anli_r2": (
        "ANLI/R2/dev.jsonl",
        [{"context": "A dog runs.", "hypothesis": "No.", "label": "c"}],
        {"premise": "A dog runs."},
        [2],
    ),
    "paws": (
        "PAWS/dev.tsv",
        [{"id": 1, "sentence1": "a b", "sentence2": "b a", "label": 0}],
        {"sentence1": "a b"},
        [0],
    ),
    "hans": (
        "HANS/heuristics_evaluation_set.txt",
        [{"gold_label": "non-entailment", "sentence1": "x", "sentence2": "y", "heuristic": "subsequence"}],
        {"premise": "x", "hypothesis": "y"},
        [1],
    ),
    "xnli_de": (
        "XNLI/xnli.dev.tsv",
        [
            {"language": "fr", "gold_label": "neutral", "sentence1": "a", "sentence2": "b"},
            {"language": "de", "gold_label": "contradiction", "sentence1": "c", "sentence2": "d"},
        ],
        {"premise": "c", "hypothesis": "d"},
        [2],
    ),
    "copa": (
        "COPA/val.jsonl",
        [{"premise": "It fell.", "choice1": "It broke.", "choice2": "It flew.", "question": "effect", "label": 0}],
        {"sent1": "It fell. What happened as a result?", "ending0": "It broke.", "ending1": "It flew."},
        [0],
    ),
}


def test_published_labels_that_are_texts_become_numbers() -> None:
    published = datasets.Dataset.from_list([{**PAIR, "label": label} for label in ("neutral", "entailment")])
    assert TASKS["cb"].from_published(published)["label"][:] == [2, 0]


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        lines = [list(rows[0]), *(row.values() for row in rows)]
        path.write_text("".join("\t".join(map(str, line)) + "\n" for line in lines))


@pytest.mark.parametrize("name", ROWS)
def test_official_files_are_read(name: str, tmp_path: Path) -> None:
    file, rows, first, labels = ROWS[name]
    write(tmp_path / file, rows)
    task = TASKS[name]
    read = task.load(tmp_path, task.eval_splits)[task.eval_splits[0]]
    assert first.items() <= read[0].items() and read["label"][:] == labels


def test_a_split_without_an_official_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="train is not published as a file: no such file; --data_dir is the folder"):
        TASKS["xnli_de"].load(tmp_path, ["train"])


def test_rows_of_the_hub_have_the_same_columns() -> None:
    published = datasets.Dataset.from_list([{**PAIR, "label": 1, "uid": "x"}, {**PAIR, "label": 0, "uid": "y"}])
    assert TASKS["anli_r1"].from_published(published)[0] == {**PAIR, "label": 1, "idx": 0}
    choice = {"premise": "It fell.", "choice1": "a", "choice2": "b", "question": "cause", "label": 1, "idx": 7}
    assert TASKS["copa"].from_published(datasets.Dataset.from_list([choice]))[0]["label"] == 1


def test_the_word_stands_before_its_first_sentence() -> None:
    tokenizer = word_tokenizer("bank : the is wet a lends .")
    encoded = TASKS["wic"].encode_batch(
        {"word": ["bank"], "sentence1": ["the bank is wet ."], "sentence2": ["a bank lends ."]}, tokenizer, 32
    )
    assert tokenizer.decode(encoded["input_ids"][0]).startswith("[CLS] bank : the bank is wet. [SEP] a bank")


def test_hans_counts_neutral_and_contradiction_as_no_entailment() -> None:
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(50, 3))
    labels = generator.integers(0, 2, 50)
    dataset = datasets.Dataset.from_dict({"premise": ["p"] * 50, "hypothesis": ["h"] * 50, "label": labels})
    task = TASKS["hans"]
    predictions = task.postprocess(dataset, dataset, list(logits))
    expected = np.mean((logits.argmax(1) != 0) == (labels == 1))
    assert task.score(predictions, dataset)["accuracy"] == pytest.approx(expected)


def test_a_model_of_mnli_is_scored_and_choices_are_trained(world: Any, tmp_path: Path) -> None:
    from bert_repro.tasks.later_tasks import NLI

    labels = {"id2label": dict(enumerate(NLI)), "label2id": {name: number for number, name in enumerate(NLI)}}
    model = save_model(world, tmp_path / "mnli", "ForSequenceClassification", **labels)
    for name in ("hans", "copa"):
        for split in ("train", "val"):
            write(tmp_path / ROWS[name][0].replace("val", split), ROWS[name][1] * 4)
    common = ["--data_dir", tmp_path, "--do_eval --max_seq_length 32"]
    arguments = ["--task_name hans --model_name_or_path", model]
    assert recipe("run_glue", *arguments, *common, "--output_dir", tmp_path / "h") == 0
    assert results(tmp_path / "h")["rows_scored"] == 4
    start = save_model(world, tmp_path / "start")
    arguments = ["--task_name copa --do_train --max_steps 2 --train_batch_size 2 --model_name_or_path", start]
    assert recipe("run_swag", *arguments, *common, "--output_dir", tmp_path / "c") == 0
    assert "accuracy" in results(tmp_path / "c")["metrics"]
