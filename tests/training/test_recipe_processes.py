"""The pre-training recipe as users run it, in processes: stopped and resumed, two at once, an absurd learning rate."""

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

from bert_repro import BertReproConfig, BertReproForPreTraining
from bert_repro.corpus.tokenizer import load_tokenizer
from bert_repro.utils.files import TRAIN_LOG

RECIPE = Path(__file__).parents[2] / "recipes" / "run_pretraining.py"
TORCHRUN = "-m torch.distributed.run --nproc_per_node 2 --rdzv_backend c10d --rdzv_endpoint localhost:0 "
TORCHRUN += "--signals_to_handle SIGTERM,SIGINT,SIGUSR1"
PATIENT = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "300"}  # a variable, since torch 2.11's torchrun has no flag for it
STOP_AT = (5, 12, 19, 26, 33)


def start(world: Any, output: Path, launcher: str, *flags: str) -> subprocess.Popen[bytes]:
    command = f"{launcher} {RECIPE} {TINY} --corpus {world.corpus} --output_dir {output} {' '.join(flags)}"
    environment = os.environ | PATIENT | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, *command.split()], env=environment, stderr=subprocess.DEVNULL)


def stop_after(process: subprocess.Popen[bytes], output: Path, step: int) -> None:
    deadline = time.monotonic() + 120
    while not any(row["step"] >= step for row in read_log(output)):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=120)
    assert json.loads((output / "status.json").read_text())["code"] == 143


def read_log(output: Path) -> list[dict[str, Any]]:
    """The log of a run that may just be writing its last line."""
    path = output / TRAIN_LOG
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def final_state(output: Path) -> dict[str, torch.Tensor]:
    """Weights and optimiser of the last checkpoint, by file and name."""
    folder = max((output / "checkpoints").iterdir(), key=lambda path: int(path.name.removeprefix("step-")))
    files = sorted(folder.rglob("*.safetensors"))
    assert len(files) >= 2
    return {f"{file.name}/{name}": value for file in files for name, value in safetensors.torch.load_file(file).items()}


@pytest.mark.slow
@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("launcher", ["", TORCHRUN], ids=["python", "torchrun"])
def test_stopped_at_five_points_ends_bit_identical(
    world: Any, tmp_path: Path, launcher: str, accumulation: int
) -> None:
    flags = ("--max_steps 40 --save_steps 40", f"--gradient_accumulation_steps {accumulation}")
    assert start(world, tmp_path / "complete", launcher, *flags).wait(timeout=200) == 0
    resume = ""
    for step in STOP_AT:
        stop_after(start(world, tmp_path / "cut", launcher, *flags, resume), tmp_path / "cut", step)
        resume = "--resume_from_checkpoint latest"
    assert start(world, tmp_path / "cut", launcher, *flags, resume).wait(timeout=200) == 0
    complete, cut = final_state(tmp_path / "complete"), final_state(tmp_path / "cut")
    assert complete.keys() == cut.keys()
    assert [name for name in complete if not torch.equal(complete[name], cut[name])] == []
    metrics = ("step", "loss", "mlm_loss", "nsp_loss", "learning_rate", "tokens", "grad_norm")
    assert [[row.get(metric) for metric in metrics] for row in read_log(tmp_path / "cut")] == [
        [row.get(metric) for metric in metrics] for row in read_log(tmp_path / "complete")
    ]


def new_model_without_dropout(world: Any) -> BertReproForPreTraining:
    shape = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 128}
    vocab_size = len(load_tokenizer(world.tokenizer))
    torch.manual_seed(1)
    return BertReproForPreTraining(
        BertReproConfig(vocab_size=vocab_size, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **shape)
    )


@pytest.mark.slow
def test_two_processes_equal_one(world: Any, tmp_path: Path) -> None:
    new_model_without_dropout(world).save_pretrained(tmp_path / "new")
    flags = f"--max_steps 100 --model_name_or_path {tmp_path / 'new'}"
    curves = []
    for name, launcher in (("one", ""), ("two", TORCHRUN)):
        assert start(world, tmp_path / name, launcher, flags).wait(timeout=300) == 0
        curves.append([row["loss"] for row in read_log(tmp_path / name) if "loss" in row])
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
    hidden = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    environment = {name: value for name, value in os.environ.items() if name != "ACCELERATE_USE_CPU"} | hidden
    command = f"{TORCHRUN} {RECIPE} {TINY} --corpus {world.corpus} --output_dir {tmp_path / 'run'} --max_steps 1"
    done = subprocess.run([sys.executable, *command.split()], env=environment, capture_output=True, text=True)
    assert done.returncode != 0 and "set ACCELERATE_USE_CPU=true" in done.stderr
    assert json.loads((tmp_path / "run" / "status.json").read_text())["code"] == 2
