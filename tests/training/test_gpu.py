"""What only a GPU shows: `pytest -m gpu` on a machine that has one."""

import time
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from running import TINY, recipe, results

from bert_repro.training import training_log
from bert_repro.utils.files import TRAIN_LOG

pytestmark = pytest.mark.gpu
STEPS = 20


def train(world: Any, folder: Path, *arguments: object) -> list[dict[str, Any]]:
    given = [TINY, "--corpus", world.corpus, "--output_dir", folder, "--max_steps", STEPS, "--save_steps 10"]
    assert recipe("run_pretraining", *given, *arguments) == 0
    return [row for row in training_log.read(folder / TRAIN_LOG) if "loss" in row]


@pytest.mark.parametrize("precision", ["no", "bf16", "fp16"])
def test_training_is_finite_and_compiles_one_graph(world: Any, tmp_path: Path, precision: str) -> None:
    rows = train(world, tmp_path / "run", "--mixed_precision", precision)
    assert len(rows) == STEPS
    record = results(tmp_path / "run")
    assert record["settings"]["torch_compile"] and record["settings"]["static_shapes"]
    assert record["train"]["compiled_graphs"] == 1
    weights = safetensors.torch.load_file(tmp_path / "run" / "model.safetensors")
    assert all(torch.isfinite(value).all() for value in weights.values())


@pytest.mark.parametrize("flags", ["", "--torch_compile false", "--packing false --torch_compile false"])
def test_resume_is_bit_identical(world: Any, tmp_path: Path, flags: str) -> None:
    given = ["--deterministic true --mixed_precision bf16", *([flags] if flags else [])]
    train(world, tmp_path / "complete", *given)
    step = tmp_path / "complete" / "checkpoints" / "step-10"
    train(world, tmp_path / "resumed", *given, "--resume_from_checkpoint", step)
    before, after = (
        safetensors.torch.load_file(tmp_path / name / "model.safetensors") for name in ("complete", "resumed")
    )
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_batches_are_ready_before_the_step_that_needs_them(world: Any, tmp_path: Path) -> None:
    """BERT-base's shape at 128 tokens: once the loaders have started, waiting takes under a twentieth of the time."""
    from bert_repro.training import batches

    began: list[float] = []
    waited: list[float] = []
    original = batches.DataLoader.__iter__

    def timed(loader: Any) -> Any:
        steps = original(loader)
        while True:
            began.append(time.perf_counter())
            step = next(steps, None)
            waited.append(time.perf_counter() - began[-1])
            if step is None:
                return
            yield step

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches.DataLoader, "__iter__", timed)
        size = "--num_hidden_layers 12 --hidden_size 768 --num_attention_heads 12 --max_seq_length 128"
        given = [size, "--corpus", world.corpus, "--output_dir", tmp_path, "--max_steps 320 --train_batch_size 256"]
        assert recipe("run_pretraining", *given, "--mixed_precision bf16 --torch_compile false --logging_steps 1") == 0
    started = 20  # steps, more than loaders are ahead
    assert sum(waited[started:]) < 0.05 * (began[-1] - began[started])
