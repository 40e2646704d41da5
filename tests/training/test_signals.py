"""TERM to a recipe's process, at any stage, and to torchrun: a valid checkpoint and the right status.json."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from running import TINY, recipe

from bert_repro.training import checkpoint

RECIPE = Path(__file__).parents[2] / "recipes" / "run_pretraining.py"
TORCHRUN = "-m torch.distributed.run --nproc_per_node 2 --rdzv_backend c10d --rdzv_endpoint localhost:0 "
TORCHRUN += "--signals_to_handle SIGTERM,SIGINT,SIGUSR1"
PATIENT = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "300"}  # a variable, since torch 2.11's torchrun has no flag for it


@pytest.mark.parametrize("launcher", ["", pytest.param(TORCHRUN, marks=pytest.mark.slow)], ids=["python", "torchrun"])
def test_term_ends_in_a_whole_checkpoint(world: Any, tmp_path: Path, launcher: str) -> None:
    arguments = f"{launcher} {RECIPE} {TINY} --corpus {world.corpus} --output_dir {tmp_path / 'run'}"
    command = [sys.executable, *f"{arguments} --max_steps 100000 --save_steps 100000".split()]
    environment = os.environ | PATIENT | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    log = tmp_path / "run" / "train_log.jsonl"
    deadline = time.monotonic() + 120
    while not (log.exists() and log.read_text().count("\n") >= 3):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=120)
    assert json.loads((tmp_path / "run" / "status.json").read_text()) == {
        "code": 143,
        "reason": "stopped by signal 15",
    }
    steps = int(checkpoint.find(tmp_path / "run", "latest").name.removeprefix("step-"))
    assert steps >= 3
    if not launcher:
        assert process.returncode == 143
        assert "Traceback" not in errors


@pytest.fixture(scope="module")
def uninterrupted(world: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    folder = tmp_path_factory.mktemp("uninterrupted")
    assert recipe("run_pretraining", TINY, "--max_steps 2 --corpus", world.corpus, "--output_dir", folder) == 0
    assert not (folder / "checkpoints").exists(), "what was saved for the case of a stop is gone"
    return safetensors.torch.load_file(folder / "model.safetensors")


@pytest.mark.parametrize(
    "stage",
    [
        pytest.param("bert_repro.pretraining.run.load_tokenizer", id="reading"),
        pytest.param("bert_repro.pretraining.run.build_model", id="building"),
        pytest.param("bert_repro.pretraining.evaluation.HeldOutEvaluation.measure", id="evaluation"),
        pytest.param("bert_repro.training.run.export_checkpoint", id="export"),
    ],
)
def test_term_outside_the_training_loop_loses_nothing(
    world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uninterrupted: dict[str, torch.Tensor], stage: str
) -> None:
    flags = (TINY, "--max_steps 2 --corpus", world.corpus, "--output_dir", tmp_path / "run")
    with monkeypatch.context() as patched:
        patched.setattr(stage, lambda *_, **__: signal.raise_signal(signal.SIGTERM))
        assert recipe("run_pretraining", *flags) == 143
    ended = json.loads((tmp_path / "run" / "status.json").read_text())
    assert ended == {"code": 143, "reason": "stopped by signal 15"}
    trained = (tmp_path / "run" / "checkpoints").exists()
    assert trained == (stage.rpartition(".")[2] in ("measure", "export_checkpoint"))
    resume = "--resume_from_checkpoint latest" if trained else "--overwrite_output_dir"
    assert recipe("run_pretraining", *flags, resume) == 0
    weights = safetensors.torch.load_file(tmp_path / "run" / "model.safetensors")
    assert all(torch.equal(value, uninterrupted[name]) for name, value in weights.items())
