"""Batches filled up to one shape: the same losses and gradients, whatever fills them."""

from typing import Any

import numpy as np
import pytest
import torch

from bert_repro import BertReproConfig, BertReproForPreTraining
from bert_repro.configs import ExampleConfig
from bert_repro.pretraining.masking import (
    DataCollatorForBertPreTraining,
    ExampleBatch,
    most_predictions,
    num_predictions,
)
from bert_repro.training.batches import StaticShape
from bert_repro.utils.arrays import draw

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"word{number}" for number in range(55))]
LENGTH = 24
SHAPES = {
    "packed": StaticShape(sequences=5, length=LENGTH, tokens=100),
    "full": StaticShape(sequences=3, length=LENGTH, tokens=50),
    "padded": StaticShape(sequences=5, length=LENGTH),
}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from transformers import BertTokenizer

    return BertTokenizer(vocab={word: number for number, word in enumerate(WORDS)})


def examples(lengths: tuple[int, ...] = (24, 9, 17)) -> ExampleBatch:
    sizes = np.array(lengths)
    tokens = np.random.default_rng(0).integers(5, len(WORDS), sizes.sum()).astype(np.int32)
    ends = np.cumsum(sizes)
    tokens[np.concatenate([[0], ends[:-1]])] = 2
    tokens[ends - 1] = 3
    labels = (np.arange(len(sizes)) % 2).astype(np.int64)
    return ExampleBatch(tokens, sizes, np.maximum(sizes // 2, 3), labels, draw(0, np.arange(len(sizes))))


def collate(tokenizer: Any, shape: StaticShape | None, packing: bool, batch: ExampleBatch) -> dict[str, Any]:
    options: dict[str, Any] = {"packing": packing, "shape": shape, "return_prediction_positions": True}
    return DataCollatorForBertPreTraining(tokenizer, **options)(batch)


def shapes(inputs: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value.shape) if torch.is_tensor(value) else value for name, value in inputs.items()}


@pytest.mark.parametrize("name", SHAPES)
def test_filled_batches_give_the_same_losses_and_gradients(tokenizer: Any, name: str) -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = BertReproConfig(vocab_size=60, max_position_embeddings=LENGTH, initializer_range=0.2, **sizes)
    model = BertReproForPreTraining(config).double().eval()
    packing, found = name != "padded", []
    for shape in (None, SHAPES[name]):
        model.zero_grad()
        output = model(**collate(tokenizer, shape, packing, examples()))
        output.loss.backward()
        gradients = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
        found.append((output.mlm_loss.detach(), output.nsp_loss.detach(), gradients))
    for plain, filled in zip(*found, strict=True):
        torch.testing.assert_close(filled, plain, rtol=0, atol=1e-12)


@pytest.mark.parametrize("most", [None, 4])
def test_no_batch_has_more_predictions_than_its_shape_has_room_for(most: int | None) -> None:
    generator = np.random.default_rng(0)
    shape = StaticShape(sequences=40, length=128, tokens=3000)
    room, largest = most_predictions(shape, 0.15, most), 0
    for _ in range(300):
        lengths = generator.integers(3, 129, 40)
        lengths = lengths[np.cumsum(lengths) <= 3000]
        largest = max(largest, int(num_predictions(lengths, 0.15, most).sum()))
    assert largest <= room
    assert most or room < 0.15 * 3000 * 1.06
    # The worst lengths there are: each rounds up by half a prediction.
    assert num_predictions(np.full(40, 10), ExampleConfig().masked_lm_prob, None).sum() <= room
