"""Short runs of pre-training, for tests that compare layouts of the work, and examples in memory."""

from typing import Any

import numpy as np
import pytest
from running import TINY, recipe, results

from bert_repro.pretraining.masking import ExampleBatch
from bert_repro.training import training_log
from bert_repro.utils.arrays import draw
from bert_repro.utils.files import TRAIN_LOG


@pytest.fixture(scope="module")
def short_losses(world, tmp_path_factory) -> Any:
    """Losses and tokens counted of five steps from a saved model; of a left-to-right one also its held-out loss."""

    def run(model, *flags: str) -> list[float]:
        folder = tmp_path_factory.mktemp("layout")
        arguments = ["--model_name_or_path", model, "--corpus", world.corpus, "--output_dir", folder, "--max_steps 5"]
        assert recipe("run_pretraining", TINY, *arguments, *flags) == 0
        rows = [row for row in training_log.read(folder / TRAIN_LOG) if "loss" in row]
        assert len(rows) == 5
        steps = [row["loss"] for row in rows] + [row["tokens"] for row in rows]
        return steps + [value for name, value in results(folder)["metrics"].items() if name == "lm_loss"]

    return run


@pytest.fixture
def pair_examples() -> Any:
    """Makes examples [CLS] A [SEP] B [SEP] of random tokens below a size of vocabulary."""

    def make(lengths: Any, first_lengths: Any, vocab_size: int) -> ExampleBatch:
        lengths, first_lengths = np.array(lengths), np.array(first_lengths)
        tokens = np.random.default_rng(0).integers(5, vocab_size, lengths.sum()).astype(np.int32)
        ends = np.cumsum(lengths)
        tokens[ends - lengths] = 2
        tokens[ends - lengths + first_lengths - 1] = tokens[ends - 1] = 3
        numbers = np.arange(len(lengths))
        return ExampleBatch(tokens, lengths, first_lengths, numbers % 2, draw(0, numbers))

    return make
