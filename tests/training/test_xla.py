"""XLA's lazy graphs compute what the CPU computes, and few of them (`make test-xla`, an environment of its own)."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from families import NAMES, families, save_start
from running import SHORT, results
from tiny_models import save_model

from bert_repro import BertReproConfig
from bert_repro.training import training_log
from bert_repro.utils.files import TRAIN_LOG

pytestmark = pytest.mark.xla
RECIPES = Path(__file__).parents[2] / "recipes"
STEPS, MOST_GRAPHS = 20, 3
ON = {"xla": {"PJRT_DEVICE": "CPU"}, "cpu": {"USE_TORCH_XLA": "false", "ACCELERATE_USE_CPU": "true"}}


@pytest.fixture(scope="module", params=[0.0, 0.1], ids=["no dropout", "dropout"])
def start(world: Any, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    dropout = {"hidden_dropout_prob": request.param, "attention_probs_dropout_prob": request.param}
    return save_model(world, tmp_path_factory.mktemp("start"), "ForPreTraining", num_hidden_layers=2, **dropout)


def train(device: str, world: Any, start: Path, folder: Path, *arguments: object) -> list[float]:
    """Runs 20 steps in a process of its own; sequences of all lengths, a warm-up from rate 0, uneven micro-batches."""
    given = [SHORT, "--corpus", world.corpus, "--model_name_or_path", start, "--output_dir", folder]
    given += ["--train_batch_size 13 --per_device_train_batch_size 7", "--max_steps", STEPS, "--warmup_steps 5"]
    given += ["--save_steps 10 --max_eval_sequences 7", *arguments]
    run("run_pretraining", device, given)
    return logged_losses(folder)


def run(name: str, device: str, given: list[object]) -> None:
    parts = (part for argument in given for part in str(argument).split(" "))
    command = [sys.executable, str(RECIPES / f"{name}.py"), *parts]
    done = subprocess.run(command, env=os.environ | ON[device], text=True, stderr=subprocess.PIPE, timeout=1200)
    assert done.returncode == 0, done.stderr[-4000:]


def logged_losses(folder: Path) -> list[float]:
    return [row["loss"] for row in training_log.read(folder / TRAIN_LOG) if "loss" in row]


@dataclass(frozen=True)
class Run:
    start: Path
    dropout: float
    folder: Path
    losses: list[float]


@pytest.fixture(scope="module")
def complete(world: Any, start: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """An uninterrupted run on XLA."""
    folder = tmp_path_factory.mktemp("runs") / "complete"
    dropout = BertReproConfig.from_pretrained(start).hidden_dropout_prob
    return Run(start, dropout, folder, train("xla", world, start, folder))


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(folder / "model.safetensors")


def test_losses_are_those_of_the_cpu_with_few_graphs(world: Any, complete: Run, tmp_path: Path) -> None:
    record = results(complete.folder)
    assert record["hardware"]["device"] == "xla"
    assert 0 < record["train"]["compiled_graphs"] <= MOST_GRAPHS
    assert len(complete.losses) == len(set(complete.losses)) == STEPS
    if complete.dropout == 0:
        assert complete.losses == pytest.approx(train("cpu", world, complete.start, tmp_path), abs=1e-5)
        assert record["metrics"] == pytest.approx(results(tmp_path)["metrics"], abs=1e-3)


def test_checkpoints_are_plain_and_resume_bit_identically(world: Any, complete: Run, tmp_path: Path) -> None:
    step = complete.folder / "checkpoints" / "step-10"
    train("xla", world, complete.start, tmp_path / "resumed", "--resume_from_checkpoint", step)
    before, after = weights(complete.folder), weights(tmp_path / "resumed")
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert results(tmp_path / "resumed")["train"]["compiled_graphs"] <= MOST_GRAPHS
    train("cpu", world, complete.start, tmp_path / "cpu", "--resume_from_checkpoint", step)
    assert before.keys() == weights(tmp_path / "cpu").keys()


@pytest.mark.parametrize("name", NAMES)
def test_fine_tuning_is_that_of_the_cpu_with_few_graphs(world: Any, tmp_path: Path, name: str) -> None:
    family, start = families(world, tmp_path)[name], save_start(world, tmp_path / "start", dropout=0.0)
    for device in ("xla", "cpu"):
        given = ["--model_name_or_path", start, "--output_dir", tmp_path / device, *family.flags]
        given += ["--do_train --do_eval --max_steps 10 --logging_steps 1 --train_batch_size 8 --warmup_ratio 0.2"]
        run(family.recipe, device, given)
    assert logged_losses(tmp_path / "xla") == pytest.approx(logged_losses(tmp_path / "cpu"), abs=1e-5)
    assert 0 < results(tmp_path / "xla")["train"]["compiled_graphs"] <= MOST_GRAPHS
    assert family.written(tmp_path / "xla") == family.rows
