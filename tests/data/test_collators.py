import pytest
import torch

from bert_repro.data.collators import collate_features

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


def test_features_without_segments_and_bad_calls():
    bare = [{"input_ids": [2, 3]}]
    assert "token_type_ids" not in collate_features(bare, pad_token_id=0, packing=True)
    with pytest.raises(ValueError, match="empty"):
        collate_features([], pad_token_id=0, packing=False)
    with pytest.raises(ValueError, match="pad_to_multiple_of is 8"):
        collate_features(bare, pad_token_id=0, packing=True, pad_to_multiple_of=8)
