"""The pre-training recipe as users run it, in processes of its own: two at once, and refused."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from running import ON_CPU, RECIPES, SHORT, TINY, TORCHRUN, launch, recipe
from tiny_models import NO_DROPOUT, save_model

from bert_repro.training import training_log
from bert_repro.utils.files import TRAIN_LOG

RECIPE = RECIPES / "run_pretraining.py"
# What stands in for SLURM on one machine: the job's first start gets TERM once it trains, as at its time limit, and
# `scontrol requeue` starts it a second time.
SLURM = {
    "srun": """
"$@" & task=$!
if [ ! -e "$STATE/limit" ]; then
  touch "$STATE/limit"
  until [ -s "$OUTPUT_DIR/train_log.jsonl" ]; do kill -0 $task; sleep 0.02; done
  kill -TERM $task
fi
wait $task""",
    "scontrol": """
if [ "$1" = requeue ]; then echo "$2" >> "$STATE/requeued"; touch "$STATE/again"; else echo localhost; fi""",
    "sbatch": """
code=0; bash "$@" || code=$?
if [ -e "$STATE/again" ]; then rm "$STATE/again"; echo "the first start gave $code"; exec "$0" "$@"; fi
exit $code""",
    "torchrun": f'exec "{sys.executable}" -m torch.distributed.run "$@"',
    "bert-repro": f'exec "{sys.executable}" -m bert_repro "$@"',
}


@pytest.mark.slow
def test_two_processes_equal_one(world: Any, tmp_path: Path) -> None:
    save_model(world, tmp_path / "new", "ForPreTraining", seed=1, num_hidden_layers=2, **NO_DROPOUT)
    given = [SHORT, "--corpus", world.corpus, "--max_steps 100 --model_name_or_path", tmp_path / "new", "--output_dir"]
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


def test_one_of_two_processes_that_see_no_gpu_is_refused(
    world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # As torchrun starts each: Accelerate would let it train for itself, all of them into one folder.
    for name, value in {"WORLD_SIZE": "2", "USE_AGENT_STORE": "True", "MAX_RESTARTS": "3"}.items():
        monkeypatch.setenv(name if name == "WORLD_SIZE" else f"TORCHELASTIC_{name}", value)
    run = tmp_path / "run"
    assert recipe("run_pretraining", TINY, "--corpus", world.corpus, "--output_dir", run, "--max_steps 1") == 2
    shown = capsys.readouterr().err
    assert "ACCELERATE_USE_CPU=true" in shown and "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in shown
    assert json.loads((run / "status.json").read_text())["code"] == 2


@pytest.mark.parametrize("launched", [True, False])
def test_a_launcher_that_starts_one_process_in_place_of_two_is_said(world, tmp_path, monkeypatch, capsys, launched):
    # What `accelerate launch --cpu --num_processes 2` sets, and what it does not: WORLD_SIZE and RANK.
    variables = {"ACCELERATE_USE_CPU": "True", "ACCELERATE_MIXED_PRECISION": "no"}
    if launched:
        variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    arguments = ["--corpus", world.corpus, "--output_dir", tmp_path / "run", "--max_steps 1"]
    assert recipe("run_pretraining", TINY, *arguments) == 0
    assert ("torchrun --nproc_per_node" in capsys.readouterr().err) is launched


@pytest.mark.slow
@pytest.mark.parametrize(("script", "code"), [("pretraining", 1), ("study", 143)])
def test_a_slurm_job_queues_again_at_its_time_limit(world: Any, tmp_path: Path, script: str, code: int) -> None:
    given = " ".join(map(str, (TINY, "--corpus", world.corpus, "--max_steps 100")))
    whole, cut, programs = tmp_path / "whole", tmp_path / "cut", tmp_path / "programs"
    programs.mkdir()
    for name, lines in SLURM.items():
        (programs / name).write_text(f"#!/bin/bash\nset -eu\n{lines.strip()}\n")
        (programs / name).chmod(0o755)
    if script == "pretraining":
        arguments = given.split()
    else:
        flags = f"{given} --output_dir {cut} --resume_from_checkpoint auto"
        (tmp_path / "study.txt").write_text(f"false\nbert-repro run_pretraining {flags}\n")
        arguments = [str(tmp_path / "study.txt")]
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    variables = {"PATH": f"{programs}:{os.environ['PATH']}", "STATE": str(tmp_path), "OUTPUT_DIR": str(cut)}
    variables |= {"SLURM_NTASKS": "1", "SLURM_JOB_NODELIST": "localhost", "SLURM_JOB_ID": "7", "PORT": str(port)}
    variables |= {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2", "PROCESSES_PER_TASK": "2"}
    command = ["sbatch", f"recipes/slurm/{script}.sbatch", *arguments]
    done = subprocess.run(
        command, cwd=RECIPES.parent, env=os.environ | ON_CPU | variables, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert f"the first start gave {code}" in done.stdout and "Resuming from" in done.stderr
    assert (tmp_path / "requeued").read_text() == ("7\n" if script == "pretraining" else "7_2\n")
    launch(TORCHRUN if script == "pretraining" else "", RECIPE, given, "--output_dir", whole)
    expected, found = (safetensors.torch.load_file(folder / "model.safetensors") for folder in (whole, cut))
    assert all(torch.equal(value, found[name]) for name, value in expected.items())
