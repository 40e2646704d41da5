import numpy as np
import pytest
import torch
from tiny_models import word_tokenizer

from bert_repro.pretraining.masking import DataCollatorForBertPreTraining, ExampleBatch, num_predictions
from bert_repro.training.batches import collate_features
from bert_repro.utils.randomness import draw

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


# -------------------------------------------------------------------------------------------------------- pre-training

LENGTHS, FIRST_LENGTHS = np.array([30, 12, 50, 5]), np.array([10, 6, 26, 3])


@pytest.fixture(scope="module")
def tokenizer():
    return word_tokenizer(" ".join(f"word{number}" for number in range(95)))


@pytest.fixture
def examples():
    """Examples [CLS] A [SEP] B [SEP] of random tokens."""
    tokens = np.random.default_rng(0).integers(5, 100, LENGTHS.sum()).astype(np.int32)
    ends = np.cumsum(LENGTHS)
    tokens[ends - LENGTHS] = 2
    tokens[ends - LENGTHS + FIRST_LENGTHS - 1] = tokens[ends - 1] = 3
    return ExampleBatch(tokens, LENGTHS, FIRST_LENGTHS, np.arange(4) % 2, draw(0, np.arange(4)))


def features_of(batch: ExampleBatch) -> list[dict]:
    parts = np.split(batch.tokens, np.cumsum(batch.lengths)[:-1])
    features = [{"input_ids": part.tolist()} for part in parts]
    for feature, label in zip(features, batch.next_sentence_labels, strict=True):
        feature["next_sentence_label"] = int(label)
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
    packed = DataCollatorForBertPreTraining(tokenizer, packing=True, return_prediction_positions=True)(examples)
    assert packed["prediction_positions"].shape == (32,) and packed["labels"][0, 0] == -100


def test_masks_of_features_are_drawn_by_torch(tokenizer, examples):
    collator = DataCollatorForBertPreTraining(tokenizer)
    drawn = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        drawn.append(collator(features_of(examples))["labels"])
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
