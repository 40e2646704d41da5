"""Runs recipes in this process, through the entry point that their scripts call, or in processes of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bert_repro import cli

SHORT = "--max_seq_length 64 --train_batch_size 16 --learning_rate 2e-3 --max_eval_sequences 32 --logging_steps 1"
TINY = f"--num_hidden_layers 2 --hidden_size 32 --num_attention_heads 2 {SHORT}"  # of a model from scratch


RECIPES = Path(__file__).parents[2] / "recipes"
TORCHRUN = "-m torch.distributed.run --nproc_per_node 2 --rdzv_backend c10d --rdzv_endpoint localhost:0"
ON_CPU = {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}


def recipe(name: str, *arguments: object) -> int:
    with pytest.raises(SystemExit) as raised:
        cli.main(name, argv=[part for argument in arguments for part in str(argument).split(" ")])
    return int(raised.value.code or 0)


def launch(launcher: str, script: Path, *arguments: object, code: int = 0, **variables: str) -> str:
    """Runs a script to its end, by Python or by what a launcher starts, and returns what it wrote to stderr."""
    words = [part for argument in arguments for part in str(argument).split(" ")]
    command = [sys.executable, *launcher.split(), str(script), *words]
    done = subprocess.run(command, env=os.environ | ON_CPU | variables, text=True, stderr=subprocess.PIPE, timeout=500)
    assert done.returncode == code, done.stderr[-4000:]
    return done.stderr


def error_line(stderr: str) -> str:
    """The one line that a refusal shows; fails where there is another or a traceback."""
    assert "Traceback" not in stderr
    (line,) = [line for line in stderr.splitlines() if line.startswith("error: ")]
    return line


def results(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return content
