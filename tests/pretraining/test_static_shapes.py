"""Batches filled up to one shape: the same losses and gradients, whatever fills them."""

from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import word_tokenizer

from bert_repro import BertReproConfig, BertReproForPreTraining
from bert_repro.configs import ExampleConfig
from bert_repro.pretraining.masking import DataCollatorForBertPreTraining, most_predictions, num_predictions
from bert_repro.training.batches import StaticShape

LENGTH = 24
SHAPES = {
    "packed": StaticShape(sequences=5, length=LENGTH, tokens=100),
    "full": StaticShape(sequences=3, length=LENGTH, tokens=50),
    "padded": StaticShape(sequences=5, length=LENGTH),
}


@pytest.mark.parametrize("name", SHAPES)
def test_filled_batches_give_the_same_losses_and_gradients(pair_examples: Any, name: str) -> None:
    tokenizer = word_tokenizer(" ".join(f"word{number}" for number in range(55)))
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = BertReproConfig(vocab_size=60, max_position_embeddings=LENGTH, initializer_range=0.2, **sizes)
    model = BertReproForPreTraining(config).double().eval()
    options, found = {"packing": name != "padded", "return_prediction_positions": True}, []
    for shape in (None, SHAPES[name]):
        model.zero_grad()
        collator = DataCollatorForBertPreTraining(tokenizer, shape=shape, **options)
        output = model(**collator(pair_examples((24, 9, 17), (12, 4, 8), 60)))
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
