"""The breakdown of held-out accuracy counts what a plain loop counts, and adds up to the held-out metrics."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from running import TINY, recipe, results

from bert_repro.configs import PretrainingConfig
from bert_repro.pretraining.evaluation import MlmBreakdown

MASK, IGNORE = 4, -100


def one_hot(tokens: list[int], size: int) -> torch.Tensor:
    return torch.nn.functional.one_hot(torch.tensor(tokens), size).float()


def test_predictions_are_counted_by_action_and_frequency() -> None:
    breakdown = MlmBreakdown(PretrainingConfig(), np.array([0, 0, 0, 0, 0, 9, 10, 1000]), MASK)
    # Places 1 to 4 are predicted: [MASK] twice, itself, random; place 0 is [CLS], with which static shapes fill up.
    inputs = {
        "input_ids": torch.tensor([[2, MASK, MASK, 6, 7, 3]]),
        "labels": torch.tensor([[IGNORE, 5, 7, 6, 6, IGNORE]]),
        "prediction_positions": torch.tensor([1, 2, 3, 4, 0, 0]),
    }
    said = one_hot([5, 6, 6, 5, 2, 2], 8)
    breakdown.add(SimpleNamespace(prediction_logits=said), inputs)
    record = breakdown.results(Accelerator(cpu=True))
    actions = {name: (row["right"], row["predictions"]) for name, row in record["by_action"].items()}
    assert actions == {"mask": (1, 2), "same": (1, 1), "random": (0, 1)}
    frequencies = [(row["at_least"], row["below"], row["right"], row["predictions"]) for row in record["by_frequency"]]
    assert frequencies == [(1, 10, 1, 1), (10, 100, 1, 2), (1000, 10000, 0, 1)]


@pytest.mark.parametrize(
    "settings",
    ["", "--static_shapes true --packing false", "--next_sentence_prediction false", "--mask_replace_prob 0"],
)
def test_they_add_up_to_the_held_out_metrics(world: Any, tmp_path: Any, settings: str) -> None:
    arguments = ("--corpus", world.corpus, "--output_dir", tmp_path / "run", "--max_steps 3 --heldout_fraction 0.3")
    assert recipe("run_pretraining", TINY, *arguments, *filter(None, [settings])) == 0
    record = results(tmp_path / "run")
    found, metrics = record["mlm_breakdown"], record["metrics"]
    for rows in (found["by_action"].values(), found["by_frequency"]):
        right, total = (sum(row[name] for row in rows) for name in ("right", "predictions"))
        assert total > 100
        assert right / total == pytest.approx(metrics["mlm_accuracy"])
    assert set(found["by_action"]) == ({"same", "random"} if "mask" in settings else {"mask", "same", "random"})
