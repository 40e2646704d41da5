"""What a GPU would compile, seen without one: a packed training step is one graph, whatever its batches hold."""

import json
import subprocess
import sys

import pretended_gpu
import pytest


def test_a_packed_training_step_is_one_graph() -> None:
    """Without gradients, which PyTorch's CPU build cannot record on a GPU; the slow test below has them."""
    options = {"recompute": False, "by_layer": False, "gradients": False}
    found = pretended_gpu.traced("PreTraining", "bfloat16", pretended_gpu.AMPERE, **options)
    assert found == {"graphs": 2, "flash": 2}, "one, and another for the batch of one sequence"


@pytest.mark.slow
def test_every_step_is_traced_with_its_gradients() -> None:
    """All heads and precisions, with and without recomputed activations, as one graph and by layer, and under DDP."""
    done = subprocess.run(
        [sys.executable, pretended_gpu.__file__], stdout=subprocess.PIPE, text=True, timeout=1200, check=True
    )
    cases = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(cases) == 29
    assert [case for case in cases if "error" in case] == []
    for case in cases:
        uses_flash = case["dtype"] != "float32" and case["capability"][0] >= 8
        assert (case["flash"] > 0) == uses_flash, case
        if uses_flash and case["ddp"] and not case["by_layer"]:  # split where a bucket of gradients is full
            assert case["graphs"] >= 12, case
        elif uses_flash:  # forward and backward; DDP may split a layer, a batch of one sequence may have its own graph
            assert case["graphs"] == 2 or (case["graphs"] == 4 and (case["ddp"] or not case["by_layer"])), case
