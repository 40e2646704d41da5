"""Every optimization for speed off by its flag: the same losses, but for the order of sums."""

from typing import Any

import pytest
import torch
from running import TINY, recipe, results

from bert_repro.pretraining.dataset import PretrainingSource
from bert_repro.training import training_log
from bert_repro.utils.files import TRAIN_LOG

FLAGS = ("packing", "cpu_kernels")
NO_DROPOUT = "--hidden_dropout_prob 0 --attention_probs_dropout_prob 0 --max_steps 3 --logging_steps 1"


def test_with_all_optimizations_off_the_losses_are_the_same(world, tmp_path, monkeypatch):
    decoded, load, losses = [], PretrainingSource.load, {}

    def watched(source: PretrainingSource, *arguments: Any) -> Any:
        made = load(source, *arguments)
        decoded.append(made.inputs["prediction_positions"].numel() / made.inputs["labels"].numel())
        return made

    monkeypatch.setattr(PretrainingSource, "load", watched)
    before = torch.get_float32_matmul_precision()
    try:
        for name, switches in (("on", []), ("off", [f"--{flag} false" for flag in FLAGS])):
            folder = tmp_path / name
            given = [TINY, NO_DROPOUT, "--corpus", world.corpus, "--output_dir", folder, *switches]
            assert recipe("run_pretraining", *given) == 0
            losses[name] = [row["loss"] for row in training_log.read(folder / TRAIN_LOG) if "loss" in row]
    finally:
        torch.set_float32_matmul_precision(before)
    assert not any(results(tmp_path / "off")["settings"][flag] for flag in FLAGS)
    assert losses["off"] == pytest.approx(losses["on"], rel=1e-5)
    assert max(decoded) < 0.5
