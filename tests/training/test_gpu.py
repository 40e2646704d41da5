"""What only a GPU shows: `pytest -m gpu` on a machine that has one."""

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


@pytest.mark.parametrize("flags", ["no", "bf16", "fp16", "bf16 --static_shapes true", "bf16 --packing false"])
def test_training_is_finite_and_compiles_one_graph(world: Any, tmp_path: Path, flags: str) -> None:
    assert len(train(world, tmp_path / "run", "--mixed_precision", flags)) == STEPS
    assert results(tmp_path / "run")["train"]["compiled_graphs"] == 1
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


def test_fine_tuning_compiles_one_graph(world: Any, tmp_path: Path) -> None:
    start = tmp_path / "start"
    train(world, start)
    given = ["--model_name_or_path", start, "--data_dir", world.glue, "--output_dir", tmp_path / "run"]
    given += ["--task_name sst2 --do_train --do_eval --max_steps 20 --train_batch_size 8 --torch_compile true"]
    assert recipe("run_glue", *given, "--mixed_precision bf16 --max_seq_length 64") == 0
    assert results(tmp_path / "run")["train"]["compiled_graphs"] == 1


def test_a_step_that_is_not_finite_is_refused_by_the_device(world: Any, tmp_path: Path) -> None:
    """The step after it has begun by the time that this is seen; the weights saved are those before both."""
    folder = tmp_path / "run"
    given = [TINY, "--corpus", world.corpus, "--output_dir", folder, "--mixed_precision bf16 --save_steps 1"]
    assert recipe("run_pretraining", *given, "--max_steps 20 --learning_rate 1e30 --warmup_steps 3") == 3
    for file in folder.rglob("*.safetensors"):
        assert all(torch.isfinite(value).all() for value in safetensors.torch.load_file(file).values())
