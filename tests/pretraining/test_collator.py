import numpy as np
import pytest
import torch
from tiny_models import word_tokenizer

from bert_repro.configs import ExampleConfig
from bert_repro.pretraining.collator import DataCollatorForBertPreTraining, ExampleBatch
from bert_repro.pretraining.masking import num_predictions
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


# ------------------------------------------------------------------------------------------------------ padded features


def padded_features(lengths: list[int], width: int, *, left: bool = False) -> list[dict]:
    """Features as a tokenizer returns them with padding="max_length" and return_special_tokens_mask=True."""
    features = []
    for number, length in enumerate(lengths):
        ids = [2, *range(5 + number, 3 + number + length), 3]
        padding, special = [0] * (width - length), [1, *[0] * (length - 2), 1]
        columns = {"input_ids": ids, "attention_mask": [1] * length, "special_tokens_mask": special}
        fill = {"input_ids": padding, "attention_mask": padding, "special_tokens_mask": [1] * (width - length)}
        features.append(
            {name: fill[name] + column if left else column + fill[name] for name, column in columns.items()}
        )
    return features


@pytest.mark.parametrize("left", [False, True])
def test_padding_of_features_is_neither_read_nor_predicted(tokenizer, left):
    collator = DataCollatorForBertPreTraining(tokenizer, return_prediction_positions=True)
    for seed in range(50):
        torch.manual_seed(seed)
        batch = collator(padded_features([10, 7], 32, left=left))
        assert batch["input_ids"].shape == (2, 32), "the width of the features stays"
        assert batch["attention_mask"].sum(1).tolist() == [10, 7]
        predicted = batch["labels"] != -100
        assert predicted.sum(1).tolist() == num_predictions(np.array([10, 7]), 0.15, None).tolist()
        assert not predicted[batch["attention_mask"] == 0].any()
        assert batch["input_ids"][:, 0].tolist() == [2, 2]
        restored = torch.where(predicted, batch["labels"], batch["input_ids"])
        assert restored[1, :7].tolist() == [2, 6, 7, 8, 9, 10, 3]
    packed = DataCollatorForBertPreTraining(tokenizer, packing=True)(padded_features([10, 7], 32, left=left))
    assert packed["input_ids"].shape == (1, 17) and packed["cu_seq_lens_q"].tolist() == [0, 10, 17]


def test_padded_features_get_the_attention_mask_of_upstreams_collator(tokenizer):
    from transformers import DataCollatorForLanguageModeling

    features = padded_features([10, 7], 32)
    theirs = DataCollatorForLanguageModeling(tokenizer)([dict(feature) for feature in features])
    ours = DataCollatorForBertPreTraining(tokenizer)(features)
    assert torch.equal(ours["attention_mask"], theirs["attention_mask"])


def test_special_tokens_of_features_are_never_predicted(tokenizer):
    whole_words = ExampleConfig(masked_lm_prob=0.5, whole_word_masking=True)
    for config in (ExampleConfig(masked_lm_prob=0.5), whole_words):
        collator = DataCollatorForBertPreTraining(tokenizer, config)
        for seed in range(50):
            torch.manual_seed(seed)
            feature = padded_features([12], 12)[0]
            feature["special_tokens_mask"][3:7] = [1] * 4
            labels = collator([feature])["labels"][0]
            assert (labels[3:7] == -100).all()
            assert (labels != -100).sum() == 6, "as many others are predicted"


def test_added_special_tokens_are_never_predicted():
    tokenizer = word_tokenizer(" ".join(f"word{number}" for number in range(95)))
    tokenizer.add_special_tokens({"additional_special_tokens": ["[USER]", "[URL]"]})
    added = tokenizer.convert_tokens_to_ids(["[USER]", "[URL]"])
    feature = {"input_ids": [2, *added, *range(5, 30), *added, 3]}
    collator = DataCollatorForBertPreTraining(tokenizer, ExampleConfig(masked_lm_prob=0.5))
    for _ in range(50):
        labels = collator([feature, feature])["labels"]
        assert not torch.isin(labels, torch.tensor(added)).any()


def test_a_feature_of_padding_alone_is_refused(tokenizer):
    features = padded_features([10, 7], 32)
    features[1]["attention_mask"] = [0] * 32
    with pytest.raises(ValueError, match="1"):
        DataCollatorForBertPreTraining(tokenizer)(features)
