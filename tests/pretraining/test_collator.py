import numpy as np
import pytest
import torch
from tiny_models import word_tokenizer
from transformers import BertConfig, BertForPreTraining, Trainer, TrainingArguments

from bert_repro.pretraining.masking import DataCollatorForBertPreTraining, ExampleBatch, num_predictions
from bert_repro.training.batches import collate_features

FEATURES = [
    {"input_ids": [2, 7, 8, 3, 9, 3], "token_type_ids": [0, 0, 0, 0, 1, 1], "label": 1},
    {"input_ids": [2, 5, 3], "token_type_ids": [0, 0, 0], "label": 0},
]


def test_features_are_padded_to_the_longest_or_a_multiple():
    batch = collate_features(FEATURES, pad_token_id=4, packing=False)
    assert batch["input_ids"].tolist() == [[2, 7, 8, 3, 9, 3], [2, 5, 3, 4, 4, 4]]
    assert batch["token_type_ids"].tolist() == [[0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 0, 0]]
    assert batch["attention_mask"].tolist() == [[1] * 6, [1, 1, 1, 0, 0, 0]]
    assert set(batch) == {"input_ids", "token_type_ids", "attention_mask"}
    assert collate_features(FEATURES, pad_token_id=4, packing=False, pad_to_multiple_of=8)["input_ids"].shape == (2, 8)


def test_features_are_packed_end_to_end():
    batch = collate_features(FEATURES, pad_token_id=4, packing=True)
    assert batch["input_ids"].tolist() == [[2, 7, 8, 3, 9, 3, 2, 5, 3]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 3, 4, 5, 0, 1, 2]]
    assert batch["cu_seq_lens_q"].tolist() == [0, 6, 9]
    assert batch["cu_seq_lens_k"].dtype == torch.int32
    assert (batch["max_length_q"], batch["max_length_k"]) == (6, 6)
    assert "attention_mask" not in batch


# -------------------------------------------------------------------------------------------------------- pre-training

LENGTHS, FIRST_LENGTHS = np.array([30, 12, 50, 5]), np.array([10, 6, 26, 3])


@pytest.fixture(scope="module")
def tokenizer():
    return word_tokenizer(" ".join(f"word{number}" for number in range(95)))


@pytest.fixture
def examples(pair_examples):
    return pair_examples(LENGTHS, FIRST_LENGTHS, 100)


def features_of(batch: ExampleBatch, ids=None) -> list[dict]:
    parts = np.split(batch.tokens, np.cumsum(batch.lengths)[:-1])
    features = [{"input_ids": part.tolist()} for part in parts]
    for number, (feature, label) in enumerate(zip(features, batch.next_sentence_labels, strict=True)):
        feature |= {"next_sentence_label": int(label)} | ({"example_id": ids[number]} if ids else {})
    return features


def test_padded_batch(tokenizer, examples):
    batch = DataCollatorForBertPreTraining(tokenizer, pad_to_length=64, return_prediction_positions=True)(examples)
    inside = torch.arange(64) < torch.tensor(LENGTHS)[:, None]
    assert batch["input_ids"].shape == batch["labels"].shape == (4, 64)
    assert torch.equal(batch["attention_mask"], inside.long())
    second = torch.arange(64) >= torch.tensor(FIRST_LENGTHS)[:, None]
    assert torch.equal(batch["token_type_ids"], (inside & second).long())
    assert not batch["input_ids"][~inside].any()
    assert batch["next_sentence_label"].tolist() == [0, 1, 0, 1]
    predicted = batch["labels"] != -100
    assert predicted.sum(1).tolist() == num_predictions(LENGTHS, 0.15, None).tolist()
    restored = torch.where(predicted, batch["labels"], batch["input_ids"])
    assert restored[inside].tolist() == examples.tokens.tolist()


def test_prediction_positions_depend_on_the_shape_alone(tokenizer, examples):
    options = {"pad_to_length": 64, "return_prediction_positions": True}
    batch = DataCollatorForBertPreTraining(tokenizer, **options)(examples)
    positions, labels = batch["prediction_positions"], batch["labels"].flatten()
    assert positions.shape == (4 * 10,)
    count = int((labels != -100).sum())
    assert torch.equal(positions[:count], torch.nonzero(labels != -100).flatten())
    assert not positions[count:].any() and labels[0] == -100
    limited = DataCollatorForBertPreTraining(tokenizer, **options, max_predictions_per_seq=3)(examples)
    assert limited["prediction_positions"].shape == (4 * 3,)


def test_packed_batch_holds_what_the_padded_one_holds(tokenizer, examples):
    padded = DataCollatorForBertPreTraining(tokenizer)(examples)
    packed = DataCollatorForBertPreTraining(tokenizer, packing=True, return_prediction_positions=True)(examples)
    inside = padded["attention_mask"].bool()
    assert padded["input_ids"].shape == (4, 50)
    for name in ("input_ids", "token_type_ids", "labels"):
        assert torch.equal(packed[name], padded[name][inside][None])
    assert packed["position_ids"].tolist() == [[place for length in LENGTHS for place in range(length)]]
    assert packed["cu_seq_lens_q"].tolist() == [0, 30, 42, 92, 97] and packed["max_length_k"] == 50
    assert torch.equal(packed["prediction_positions"], torch.nonzero(packed["labels"][0] != -100).flatten())
    assert torch.equal(packed["next_sentence_label"], padded["next_sentence_label"])
    assert "prediction_positions" not in padded and "attention_mask" not in packed


def test_masks_follow_the_example_id_or_torch(tokenizer, examples):
    collator = DataCollatorForBertPreTraining(tokenizer, seed=1)
    named = features_of(examples, [5, 6, 7, 8])
    assert torch.equal(collator(named)["labels"], collator(named)["labels"])
    assert torch.equal(collator(named[::-1])["labels"].flip(0), collator(named)["labels"])
    other_seed = DataCollatorForBertPreTraining(tokenizer, seed=2)
    assert not torch.equal(other_seed(named)["labels"], collator(named)["labels"])
    drawn = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        drawn.append(collator(features_of(examples))["labels"])
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])


def test_the_upstream_trainer_and_model_learn_from_it(tokenizer, examples, tmp_path):
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    quiet = {"report_to": "none", "use_cpu": True, "save_strategy": "no", "disable_tqdm": True, "logging_steps": 1}
    arguments = TrainingArguments(tmp_path, max_steps=12, per_device_train_batch_size=4, learning_rate=5e-3, **quiet)
    collator = DataCollatorForBertPreTraining(tokenizer, pad_to_multiple_of=8)
    model, dataset = BertForPreTraining(BertConfig(vocab_size=100, **sizes)), features_of(examples)
    trainer = Trainer(model, arguments, data_collator=collator, train_dataset=dataset)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert np.isfinite(losses).all() and losses[-1] < losses[0] - 0.1
