"""Every optimization for speed off by its flag: the same losses, but for the order of sums."""

from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState
from running import TINY, recipe, results

from bert_repro.models import modeling_bert_repro as modeling
from bert_repro.models.modeling_bert_repro import use_cpu_kernels
from bert_repro.pretraining.dataset import PretrainingSource
from bert_repro.training import training_log
from bert_repro.utils.files import TRAIN_LOG

FLAGS = "packing decode_predicted_only cpu_kernels fast_float32 keep_freed_memory fused_optimizer".split()
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
        use_cpu_kernels(True)
        torch.set_float32_matmul_precision(before)
    assert not any(results(tmp_path / "off")["settings"][flag] for flag in FLAGS)
    assert losses["off"] == pytest.approx(losses["on"], rel=1e-5)
    assert max(decoded[:3]) < 0.5
    assert min(decoded[3:]) == 1.0


def test_residuals_of_16_bits_are_asked_of_a_run(world, tmp_path, refused):
    given = [TINY, NO_DROPOUT, "--corpus", world.corpus, "--output_dir", tmp_path / "run", "--bf16_residual true"]
    assert "--bf16_residual needs --mixed_precision bf16, not no" in refused("run_pretraining", *given)
    AcceleratorState._reset_state(reset_partial_state=True)  # a process has one precision
    try:
        assert recipe("run_pretraining", *given, "--mixed_precision bf16 --max_steps 1") == 0
        assert modeling._bf16_residual
    finally:
        modeling.use_bf16_residual(False)
        AcceleratorState._reset_state(reset_partial_state=True)
