"""Training a fine-tuned model further: its head keeps its rows, whatever the order of labels in the new data."""

import logging

import pytest
import torch

import bert_repro
from bert_repro.finetuning.head_labels import matching_rows

ROWS = [{"text": "What a bright morning.", "label": "good"}, {"text": "The road was cold.", "label": "bad"}] * 6
WORDS = [{"tokens": ["Ada", "sings"], "tags": ["B-PER", "O"]}, {"tokens": ["the", "river"], "tags": ["O", "O"]}] * 4
# One step at a rate that changes nothing.
STILL = {"max_steps": 1, "learning_rate": 1e-9, "train_batch_size": 4}


@pytest.mark.parametrize(
    ("old", "new", "rows"),
    [
        (["bad", "good"], ["good", "bad"], [1, 0]),
        (["a", "b"], ["a", "b", "c"], [0, 1, None]),
        (["a", "b", "c"], ["c", "a"], [2, 0]),
        (["LABEL_0", "LABEL_1"], ["no", "yes"], [0, 1]),
        (["LABEL_0", "LABEL_1"], ["LABEL_1", "LABEL_0"], [1, 0]),
        (["LABEL_0", "LABEL_1"], ["no", "yes", "maybe"], [None, None, None]),
        (["NEGATIVE", "POSITIVE"], ["positive", "negative"], [1, 0]),
        (["A", "a"], ["B", "b"], [None, None]),
        (["x", "y"], ["p", "q"], [None, None]),
        (["score"], ["stars"], [0]),
    ],
)
def test_rows_are_matched_by_name(old, new, rows):
    assert matching_rows(old, new) == rows


def swapped(folder, target, order):
    """A copy of a fine-tuned model that has its labels, and the rows of its head, in another order."""
    model = bert_repro.RunResult(folder).model
    names = [model.config.id2label[index] for index in range(len(order))]
    with torch.no_grad():
        model.classifier.weight.copy_(model.classifier.weight[order].clone())
        model.classifier.bias.copy_(model.classifier.bias[order].clone())
    model.config.id2label = {index: names[place] for index, place in enumerate(order)}
    model.config.label2id = {name: index for index, name in model.config.id2label.items()}
    model.save_pretrained(target)
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        if (folder / name).exists():
            (target / name).write_bytes((folder / name).read_bytes())
    return target


@pytest.mark.parametrize("settings", [{}, {"peft": "lora"}, {"bilstm_size": 8}], ids=["plain", "adapter", "bilstm"])
def test_a_classifier_with_its_labels_in_another_order_goes_on_where_it_was(untrained, tmp_path, settings):
    head = {name: value for name, value in settings.items() if name == "bilstm_size"}
    first = bert_repro.finetune(
        model=untrained, train=ROWS, validation=ROWS, num_train_epochs=2, train_batch_size=4, learning_rate=5e-3,
        output_dir=tmp_path / "first", **head,
    )  # fmt: skip
    other = swapped(first.folder, tmp_path / "swapped", [1, 0])
    again = bert_repro.finetune(
        model=other, train=ROWS, validation=ROWS, output_dir=tmp_path / "again", **STILL, **settings
    )
    texts = [row["text"] for row in ROWS[:2]]
    for before, after in zip(first.predict(texts), again.predict(texts), strict=True):
        assert before["prediction"] == after["prediction"]
        assert before["probability"] == pytest.approx(after["probability"], abs=1e-4)


def test_a_tagger_with_its_tags_in_another_order_goes_on_where_it_was(untrained, tmp_path):
    first = bert_repro.finetune(
        model=untrained, train=WORDS, validation=WORDS, num_train_epochs=2, train_batch_size=4, learning_rate=5e-3,
        output_dir=tmp_path / "first",
    )  # fmt: skip
    labels = len(first.model.config.id2label)
    other = swapped(first.folder, tmp_path / "swapped", list(reversed(range(labels))))
    again = bert_repro.finetune(model=other, train=WORDS, validation=WORDS, output_dir=tmp_path / "again", **STILL)
    assert again["metrics"] == first["metrics"]
    assert again.model.config.id2label == first.model.config.id2label
    assert torch.allclose(again.model.classifier.weight, first.model.classifier.weight, atol=1e-5)


def test_new_labels_get_new_rows_and_other_names_a_new_head(untrained, tmp_path, caplog):
    first = bert_repro.finetune(
        model=untrained, train=ROWS, num_train_epochs=1, train_batch_size=4, output_dir=tmp_path / "first"
    )
    known = first.model.classifier.weight
    more = [*ROWS, {"text": "Perhaps.", "label": "fair"}]
    with caplog.at_level(logging.INFO, "bert_repro"):
        wider = bert_repro.finetune(model=first.folder, train=more, output_dir=tmp_path / "wider", **STILL)
    assert wider.model.config.id2label == {0: "bad", 1: "fair", 2: "good"}
    assert torch.allclose(wider.model.classifier.weight[[0, 2]], known, atol=1e-5)
    assert "fair" in caplog.text
    renamed = [{"text": row["text"], "label": row["label"][0]} for row in ROWS]
    with caplog.at_level(logging.WARNING, "bert_repro"):
        other = bert_repro.finetune(model=first.folder, train=renamed, output_dir=tmp_path / "other", **STILL)
    assert "bad, good" in caplog.text and "b, g" in caplog.text
    assert not torch.allclose(other.model.classifier.weight, known, atol=1e-3)
