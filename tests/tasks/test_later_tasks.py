"""Text tasks: rows as their official files and the Hub's datasets have them, and the scores of the later tasks."""

import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from errors import user_error
from running import recipe, results
from text_tasks import labels_of, rows_of, write_official_file
from tiny_models import save_model, word_tokenizer

from bert_repro.configs import GlueConfig, SwagConfig
from bert_repro.configs.base import choices_of, help_of
from bert_repro.tasks import CHOICE_TASKS, SPLIT_ROWS, TASKS, TEXT_TASKS
from bert_repro.tasks.official_files import GlueTask

PAIR = {"premise": "A dog runs.", "hypothesis": "An animal moves."}
COPA_ROW = {"premise": "It fell.", "choice1": "It broke.", "choice2": "It flew.", "question": "effect", "label": 0}


@pytest.mark.parametrize("task", TEXT_TASKS, ids=lambda task: task.name)
def test_official_files_of_every_text_task_are_read(task: GlueTask, tmp_path: Path) -> None:
    for split, file in task.files.items():
        write_official_file(task, tmp_path, split)
        read = task.load(tmp_path, [split])[split]
        assert task.is_labelled(read) is file.labelled
        expected = rows_of(task)
        for place, row in enumerate(expected):
            row["idx"] = place
            if not file.labelled:
                del row["label"]
        assert read.to_list() == expected


def test_the_settings_know_every_task_and_a_typo_is_named() -> None:
    for config_class, tasks in ((GlueConfig, TEXT_TASKS), (SwagConfig, CHOICE_TASKS)):
        assert choices_of(config_class, "task_name") == tuple(task.name for task in tasks)
        help_text = help_of(config_class, "task_name")
        in_paper, newer = help_text.split("Not in the paper: ")
        for task in tasks:
            first = next(other.name for other in tasks if other.title == task.title)
            assert first in (in_paper if task.in_paper else newer)
        with user_error("did you mean", tasks[0].name, setting="task_name"):
            config_class(model_name_or_path="x", do_eval=True, task_name=f"{tasks[0].name}x")


def test_rows_of_published_splits_are_those_of_the_tasks() -> None:
    for task in TASKS.values():
        # Every split that a run scores or trains on, except the diagnostic's labelled file, which is not on the Hub.
        splits = {task.train_split, *task.eval_splits} - {None}
        if task.name != "ax":
            assert splits <= set(task.split_rows), task.name
        for split, num_rows in task.split_rows.items():
            assert SPLIT_ROWS[task.name, split] == num_rows > 0


def test_every_text_task_is_described_for_the_card() -> None:
    for task in TEXT_TASKS:
        description = task.data_description()
        assert description["dataset"] and description["license"] and description["language"]
        assert description["text_columns"] == list(task.text_columns)
        assert len(labels_of(task)) >= 2 and task.primary_metric in task.metrics


def test_published_labels_that_are_texts_become_numbers() -> None:
    published = datasets.Dataset.from_list([{**PAIR, "label": label} for label in ("neutral", "entailment")])
    assert TASKS["cb"].from_published(published)["label"][:] == [2, 0]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_copa_becomes_a_choice(tmp_path: Path) -> None:
    write_rows(tmp_path / "COPA" / "val.jsonl", [COPA_ROW])
    read = TASKS["copa"].load(tmp_path, ["validation"])["validation"]
    choice = {"sent1": "It fell. What happened as a result?", "ending0": "It broke.", "ending1": "It flew."}
    assert choice.items() <= read[0].items() and read["label"][:] == [0]
    published = datasets.Dataset.from_list([{**COPA_ROW, "question": "cause", "label": 1, "idx": 7}])
    assert TASKS["copa"].from_published(published)[0]["label"] == 1


def test_a_split_without_an_official_file_is_said(tmp_path: Path) -> None:
    with user_error("train is not published as a file", setting="data_dir"):
        TASKS["xnli_de"].load(tmp_path, ["train"])


def test_rows_of_the_hub_have_the_same_columns() -> None:
    published = datasets.Dataset.from_list([{**PAIR, "label": 1, "uid": "x"}, {**PAIR, "label": 0, "uid": "y"}])
    assert TASKS["anli_r1"].from_published(published)[0] == {**PAIR, "label": 1, "idx": 0}


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
    hans = [
        {"gold_label": "non-entailment", "sentence1": "x", "sentence2": "y"},
        {"gold_label": "entailment", "sentence1": "x", "sentence2": "y"},
    ]
    path = TASKS["hans"].official_file(tmp_path, "validation")
    path.parent.mkdir()
    path.write_text("\n".join("\t".join(line) for line in (hans[0], *(row.values() for row in hans * 2))) + "\n")
    for split in ("train", "val"):
        write_rows(tmp_path / "COPA" / f"{split}.jsonl", [COPA_ROW] * 4)
    common = ["--data_dir", tmp_path, "--do_eval --max_seq_length 32"]
    arguments = ["--task_name hans --model_name_or_path", model]
    assert recipe("run_glue", *arguments, *common, "--output_dir", tmp_path / "h") == 0
    assert results(tmp_path / "h")["rows_scored"] == 4
    start = save_model(world, tmp_path / "start")
    arguments = ["--task_name copa --do_train --max_steps 2 --train_batch_size 2 --model_name_or_path", start]
    assert recipe("run_swag", *arguments, *common, "--output_dir", tmp_path / "c") == 0
    assert "accuracy" in results(tmp_path / "c")["metrics"]
    # All four rows have the same label, and the results say so.
    assert "All 4 rows" in results(tmp_path / "c")["splits"]["validation"]["details"]["notes"][0]
