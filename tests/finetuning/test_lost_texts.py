"""Texts of which the tokenizer loses much are reported, and a batch that cannot be filled is refused early."""

from typing import Any

import pytest
from errors import user_error

import bert_repro
from bert_repro.tasks.classification import ClassificationTask

CHINESE = [{"text": "这部电影很好看", "label": "good"}, {"text": "这部电影不很看", "label": "bad"}]
GERMAN = [
    {"text": "Die Änderungen wären schön über die Straße", "label": "good"},
    {"text": "nur früher", "label": "bad"},
]
ENGLISH = [{"text": "the bright river", "label": "good"}, {"text": "a cold stone", "label": "bad"}]


def finetune(model: Any, rows: list[dict[str, str]], folder: Any, **settings: Any) -> Any:
    few = {"max_steps": 1, "train_batch_size": 2, "output_dir": folder}
    return bert_repro.finetune(model=model, train=rows, **{**few, **settings})


@pytest.mark.parametrize(
    ("rows", "loss"),
    [(CHINESE, "are [UNK]"), (GERMAN, "accents or vowel signs"), (ENGLISH, None)],
    ids=["zh", "de", "en"],
)
def test_what_the_tokenizer_loses_is_reported_in_training_and_in_predicting(untrained, tmp_path, caplog, rows, loss):
    model = finetune(untrained, rows, tmp_path / "run").folder
    trained = [message for message in caplog.messages if "[UNK]" in message or "accents" in message]
    caplog.clear()
    bert_repro.predict(model, [row["text"] for row in rows])
    predicted = [message for message in caplog.messages if "[UNK]" in message or "accents" in message]
    if loss is None:
        assert not trained and not predicted
        return
    for messages in (trained, predicted):
        assert any(loss in message and "%" in message and "checkpoint" in message for message in messages), messages


def test_a_batch_larger_than_the_data_is_refused_before_the_texts_are_tokenized(untrained, tmp_path, monkeypatch):
    def encode_batch(*_: Any) -> Any:
        raise AssertionError("tokenized before the batch was refused")

    monkeypatch.setattr(ClassificationTask, "encode_batch", encode_batch)
    with user_error(3, "2 inputs", setting="train_batch_size"):
        finetune(untrained, ENGLISH, tmp_path / "run", train_batch_size=3)
