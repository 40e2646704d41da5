"""Packed batches of every head for a tiny model, of several shapes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tiny_models import word_tokenizer

from bert_repro.pretraining.collator import DataCollatorForBertPreTraining, ExampleBatch
from bert_repro.training.batches import collate_features
from bert_repro.utils.randomness import draw

TOKENIZER = word_tokenizer(" ".join(f"word{number}" for number in range(55)))
SHAPE = {"num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 128}
CONFIG = {"vocab_size": len(TOKENIZER), "problem_type": "single_label_classification", **SHAPE}
BATCHES = [(24, 9, 17, 8), (22, 23, 11, 9), (24, 12, 13, 8, 7, 9)]


def pretraining_batch(lengths: tuple[int, ...]) -> dict[str, Any]:
    """A masked batch of random examples of these lengths."""
    sizes = np.array(lengths)
    tokens = np.random.default_rng(0).integers(5, len(TOKENIZER), sizes.sum()).astype(np.int32)
    keys, labels = draw(0, np.arange(len(sizes))), np.zeros(len(sizes), dtype=np.int64)
    collate = DataCollatorForBertPreTraining(TOKENIZER, packing=True, return_prediction_positions=True)
    return collate(ExampleBatch(tokens, sizes, sizes // 2, labels, keys))


def task_batch(**labels: Callable[[int, int], torch.Tensor]) -> Callable[[tuple[int, ...]], dict[str, Any]]:
    """Makes batches of a task: `labels` from the numbers of sequences and tokens."""

    def batch(lengths: tuple[int, ...]) -> dict[str, Any]:
        features = [{"input_ids": [1] * length, "token_type_ids": [0] * length} for length in lengths]
        inputs = collate_features(features, pad_token_id=0, packing=True)
        return inputs | {name: made(len(lengths), sum(lengths)) for name, made in labels.items()}

    return batch


def of_sequences(sequences: int, tokens: int) -> torch.Tensor:
    return torch.zeros(sequences, dtype=torch.int64)


HEADS: dict[str, tuple[tuple[str, ...], Any]] = {
    "PreTraining": (("mlm_loss", "nsp_loss"), pretraining_batch),
    "SequenceClassification": (("loss",), task_batch(labels=of_sequences)),
    "TokenClassification": (("loss",), task_batch(labels=lambda _, tokens: torch.zeros(1, tokens, dtype=torch.int64))),
    "QuestionAnswering": (("loss",), task_batch(start_positions=of_sequences, end_positions=of_sequences)),
    "MultipleChoice": (("loss",), task_batch(labels=lambda sequences, _: of_sequences(sequences // 2, 0))),
}
