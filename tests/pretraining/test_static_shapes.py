"""Batches of one shape have room for their predictions (that what fills them changes no loss: test_run.py)."""

import numpy as np
import pytest

from bert_repro.configs import ExampleConfig
from bert_repro.pretraining.masking import most_predictions, num_predictions
from bert_repro.training.batches import StaticShape


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
