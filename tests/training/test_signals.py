"""TERM to a recipe that its users started: a valid checkpoint and the right status.json.

All stages of a run, and other ways to end it, are in test_stopped_runs.py.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from running import TINY

from bert_repro.training import checkpoint

RECIPE = Path(__file__).parents[2] / "recipes" / "run_pretraining.py"
TORCHRUN = "-m torch.distributed.run --nproc_per_node 2 --rdzv_backend c10d --rdzv_endpoint localhost:0 "
TORCHRUN += "--signals_to_handle SIGTERM,SIGINT,SIGUSR1"
PATIENT = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "300"}  # a variable, since torch 2.11's torchrun has no flag for it


@pytest.mark.parametrize("launcher", ["", pytest.param(TORCHRUN, marks=pytest.mark.slow)], ids=["python", "torchrun"])
def test_term_ends_in_a_complete_checkpoint(world: Any, tmp_path: Path, launcher: str) -> None:
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
