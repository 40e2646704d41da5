"""XLA's lazy graphs compute what the CPU computes, and few of them (`make test-xla`, an environment of its own)."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from running import TINY, results

from bert_repro import BertReproConfig, BertReproForPreTraining
from bert_repro.training import logs

pytestmark = pytest.mark.xla
RECIPE = Path(__file__).parents[2] / "recipes" / "run_pretraining.py"
STEPS, MOST_GRAPHS = 20, 3
ON = {"xla": {"PJRT_DEVICE": "CPU"}, "cpu": {"ACCELERATE_USE_CPU": "true"}}


@pytest.fixture(scope="module", params=[0.0, 0.1], ids=["no dropout", "dropout"])
def start(world: Any, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("start")
    torch.manual_seed(0)
    shape = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
    dropout = {"hidden_dropout_prob": request.param, "attention_probs_dropout_prob": request.param}
    BertReproForPreTraining(BertReproConfig(vocab_size=150, **dropout, **shape)).save_pretrained(folder)
    AutoTokenizer.from_pretrained(world.tokenizer).save_pretrained(folder)
    return folder


def train(device: str, world: Any, start: Path, folder: Path, *arguments: object) -> list[float]:
    """Runs 20 steps in a process of its own; sequences of all lengths, a warm-up from rate 0, uneven micro-batches."""
    given = [
        TINY,
        "--corpus",
        world.corpus,
        "--model_name_or_path",
        start,
        "--output_dir",
        folder,
        "--max_steps",
        STEPS,
    ]
    given += ["--warmup_steps 5 --per_device_train_batch_size 7 --save_steps 10", *arguments]
    command = [sys.executable, str(RECIPE), *(part for argument in given for part in str(argument).split(" "))]
    done = subprocess.run(command, env=os.environ | ON[device], text=True, stderr=subprocess.PIPE, timeout=500)
    assert done.returncode == 0, done.stderr[-4000:]
    return [row["loss"] for row in logs.read(folder / logs.FILE_NAME) if "loss" in row]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(folder / "model.safetensors")


def test_losses_are_those_of_the_cpu_with_few_graphs(world: Any, start: Path, tmp_path: Path) -> None:
    lazy = train("xla", world, start, tmp_path / "xla")
    record = results(tmp_path / "xla")
    assert record["hardware"]["device"] == "xla"
    assert 0 < record["train"]["compiled_graphs"] <= MOST_GRAPHS
    assert len(lazy) == STEPS
    if "no dropout" in os.environ["PYTEST_CURRENT_TEST"]:
        assert lazy == pytest.approx(train("cpu", world, start, tmp_path / "cpu"), abs=1e-5)
        metrics = results(tmp_path / "cpu")["metrics"]
        assert record["metrics"] == pytest.approx(metrics, abs=1e-3)
    else:
        assert len(set(lazy)) == STEPS


def test_checkpoints_are_plain_and_resume_bit_identically(world: Any, start: Path, tmp_path: Path) -> None:
    train("xla", world, start, tmp_path / "whole")
    step = tmp_path / "whole" / "checkpoints" / "step-10"
    train("xla", world, start, tmp_path / "resumed", "--resume_from_checkpoint", step)
    before, after = weights(tmp_path / "whole"), weights(tmp_path / "resumed")
    assert all(torch.equal(before[name], after[name]) for name in before)
    train("cpu", world, start, tmp_path / "cpu", "--resume_from_checkpoint", step)
    assert before.keys() == weights(tmp_path / "cpu").keys()
