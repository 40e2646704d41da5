"""Short runs of pre-training, for tests that compare layouts of the work."""

from typing import Any

import pytest
from memory_corpus import MemoryCorpus, corpus_of
from running import TINY, recipe, results

from bert_repro.training import training_log
from bert_repro.utils.files import TRAIN_LOG


@pytest.fixture(scope="session")
def corpus() -> MemoryCorpus:
    return corpus_of(80)


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
