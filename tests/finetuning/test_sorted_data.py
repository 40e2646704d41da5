"""Files sorted by label: training on a part of them and the baseline see every label."""

import logging

import numpy as np
import pytest

import bert_repro
from bert_repro.tasks import text_baselines
from bert_repro.utils.randomness import Stream, drawn_rows

SORTED = [{"text": "bright river", "label": "good"}] * 40 + [{"text": "cold stone", "label": "bad"}] * 40


def test_drawn_rows_are_a_seeded_sample_in_order():
    rows = drawn_rows(Stream.TRAINING_ROWS, 10_000, 500)
    assert len(set(rows)) == 500 and (np.diff(rows) > 0).all()
    assert (rows == drawn_rows(Stream.TRAINING_ROWS, 10_000, 500)).all()
    assert 4_000 < rows.mean() < 6_000
    assert drawn_rows(Stream.TRAINING_ROWS, 3, 5).tolist() == [0, 1, 2]


def test_a_part_of_a_sorted_file_has_all_labels(untrained, tmp_path, caplog):
    found = bert_repro.finetune(
        model=untrained, train=SORTED, validation=SORTED, max_train_samples=20, max_steps=1, train_batch_size=4,
        output_dir=tmp_path / "out",
    )  # fmt: skip
    assert found["baselines"]["bag of words"]["accuracy"] == 1.0
    assert found["train"]["examples"] == 20 and "No training row" not in caplog.text


def test_a_label_that_no_training_row_has_is_named(untrained, tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "bert_repro"):
        bert_repro.finetune(
            model=untrained, train=[*SORTED, {"text": "grey", "label": "rare"}], max_train_samples=4, max_steps=1,
            train_batch_size=4, output_dir=tmp_path / "out",
        )  # fmt: skip
    assert "rare" in caplog.text and "No training row" in caplog.text


def test_the_baseline_of_a_large_sorted_file_learns_every_label(untrained, tmp_path, monkeypatch):
    monkeypatch.setattr(text_baselines, "BASELINE_ROWS", 30)
    found = bert_repro.finetune(
        model=untrained, train=SORTED, validation=SORTED, max_steps=1, train_batch_size=4, output_dir=tmp_path / "out"
    )
    assert found["baselines"]["bag of words"]["accuracy"] == 1.0


@pytest.mark.parametrize(("positive", "negative"), [("😀", "😡"), ("!", "?"), (":)", ":(")])
def test_texts_without_words_have_baselines_too(untrained, tmp_path, positive, negative):
    train = [{"text": 2 * positive, "label": "good"}, {"text": 2 * negative, "label": "bad"}] * 6
    dev = [{"text": positive, "label": "good"}, {"text": negative, "label": "bad"}]
    found = bert_repro.finetune(
        model=untrained, train=train, validation=dev, max_steps=1, train_batch_size=4, output_dir=tmp_path / "out"
    )
    assert found["baselines"]["bag of words"]["accuracy"] == 1.0
    assert found["baselines"]["most frequent label"]["accuracy"] == 0.5


@pytest.mark.parametrize(
    ("positive", "negative"), [("这部电影很好看", "这部电影不很看"), ("สวยมาก", "แย่มาก"), ("たのしい", "かなしい")]
)
def test_the_baseline_reads_scripts_without_spaces(untrained, tmp_path, positive, negative):
    # No text of the dev data is one of the training data: whole sentences as words would know nothing.
    train = [{"text": mark + positive, "label": "good"} for mark in "一二三四五"]
    train += [{"text": mark + negative, "label": "bad"} for mark in "一二三四五"]
    dev = [{"text": "六" + positive, "label": "good"}, {"text": "六" + negative, "label": "bad"}]
    found = bert_repro.finetune(
        model=untrained, train=train, validation=dev, max_steps=1, train_batch_size=4, output_dir=tmp_path / "out"
    )
    assert found["baselines"]["bag of words"]["accuracy"] == 1.0
