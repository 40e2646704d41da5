"""The pre-training recipe as users run it, in processes of its own: two at once, and refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from running import RECIPES, TINY, TORCHRUN, launch, recipe
from tiny_models import NO_DROPOUT, save_model

from bert_repro.training import training_log
from bert_repro.utils.files import TRAIN_LOG

RECIPE = RECIPES / "run_pretraining.py"


@pytest.mark.slow
def test_two_processes_equal_one(world: Any, tmp_path: Path) -> None:
    save_model(world, tmp_path / "new", "ForPreTraining", seed=1, num_hidden_layers=2, **NO_DROPOUT)
    given = [TINY, "--corpus", world.corpus, "--max_steps 100 --model_name_or_path", tmp_path / "new", "--output_dir"]
    curves = []
    for name, launcher in (("one", ""), ("two", TORCHRUN)):
        launch(launcher, RECIPE, *given, tmp_path / name)
        curves.append([row["loss"] for row in training_log.read(tmp_path / name / TRAIN_LOG) if "loss" in row])
    one, two = curves
    assert len(one) == len(two) == 100
    assert two == pytest.approx(one, abs=1e-5)


def test_an_absurd_learning_rate_ends_with_code_3_and_nothing_corrupt(world: Any, tmp_path: Path) -> None:
    flags = "--max_steps 20 --save_steps 1 --warmup_steps 3 --learning_rate 1e30"
    tiny = TINY.replace("--learning_rate 2e-3 ", "")
    code = recipe("run_pretraining", tiny, "--corpus", world.corpus, "--output_dir", tmp_path / "run", flags)
    assert code == 3
    files = list((tmp_path / "run").rglob("*.safetensors"))
    assert files
    for file in files:
        assert all(torch.isfinite(value).all() for value in safetensors.torch.load_file(file).values()), file


def test_two_processes_that_see_no_gpu_are_refused(world: Any, tmp_path: Path) -> None:
    # The same command on CPUs but for ACCELERATE_USE_CPU: each would train for itself, into one folder.
    hidden = {"CUDA_VISIBLE_DEVICES": "", "ACCELERATE_USE_CPU": "false"}
    given = [TINY, "--corpus", world.corpus, "--output_dir", tmp_path / "run", "--max_steps 1"]
    assert "set ACCELERATE_USE_CPU=true" in launch(TORCHRUN, RECIPE, *given, code=1, **hidden)
    assert json.loads((tmp_path / "run" / "status.json").read_text())["code"] == 2
