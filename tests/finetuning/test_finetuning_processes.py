"""Fine-tuning by one process and by two, complete and interrupted: the same model, every dev example counted once.

`accelerate launch --cpu --num_processes 2` starts one process only; on a CPU two are started as here.
"""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import stages
import torch
from accelerate.state import AcceleratorState
from families import NAMES, Family, families, save_start
from running import ON_CPU, TORCHRUN, launch, recipe, results

from bert_repro.training import training_log
from bert_repro.utils.files import TRAIN_LOG

ACCELERATE = "-m accelerate.commands.launch --multi_gpu --num_processes 2 --num_machines 1 --mixed_precision no "
ACCELERATE += "--dynamo_backend no --rdzv_backend c10d --main_process_port 0"
TRAIN = "--do_train --do_eval --train_batch_size 8 --bias_correction true --learning_rate 5e-3 --max_steps 5 "
TRAIN += "--logging_steps 1 --per_device_eval_batch_size 4"


@pytest.fixture(scope="module")
def all_families(world: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Family]:
    return families(world, tmp_path_factory.mktemp("families"))


@pytest.fixture(scope="module")
def start(world: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_start(world, tmp_path_factory.mktemp("start"), dropout=0.1)


@pytest.fixture(scope="module")
def without_dropout(world: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Dropout draws by process, so only without it one process and two see the same."""
    return save_start(world, tmp_path_factory.mktemp("without"), dropout=0.0)


def flags(family: Family, model: Path, folder: Path, *more: object) -> list[object]:
    return [*family.flags, "--model_name_or_path", model, "--output_dir", folder, *more]


@pytest.mark.parametrize(
    "name", ["run_squad", *(pytest.param(name, marks=pytest.mark.slow) for name in NAMES if name != "run_squad")]
)
def test_resume_after_every_step_is_bit_identical(all_families, start, tmp_path, name):
    family, complete = all_families[name], tmp_path / "complete"
    assert recipe(name, *flags(family, start, complete, TRAIN, "--save_steps 1 --save_total_limit 5")) == 0
    for step in range(1, 5):
        checkpoint, again = complete / "checkpoints" / f"step-{step}", tmp_path / str(step)
        assert recipe(name, *flags(family, start, again, TRAIN, "--resume_from_checkpoint", checkpoint)) == 0
        ours, after = (safetensors.torch.load_file(folder / "model.safetensors") for folder in (complete, again))
        assert all(torch.equal(value, after[name]) for name, value in ours.items())
        assert results(again)["metrics"] == results(complete)["metrics"]
        assert (again / family.predictions).read_bytes() == (complete / family.predictions).read_bytes()


def fork_two(name: str, folder: Path, *arguments: object) -> None:
    """Runs a recipe in two forks of this process, which find each other as torchrun's processes do."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        place = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": "2"}

    def member(rank: int) -> Callable[[], None]:
        def join() -> None:
            os.environ |= ON_CPU | place | {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"}
            AcceleratorState._reset_state(reset_partial_state=True)

        return join

    logs = [folder / f"process-{rank}.txt" for rank in range(2)]
    both = [stages.Process(name, *arguments, log=log, setup=member(rank)) for rank, log in enumerate(logs)]
    try:
        assert [process.wait() for process in both] == [0, 0], [log.read_text()[-2000:] for log in logs]
    finally:
        stages.end_all()


@pytest.mark.parametrize(
    ("launcher", "name"),
    [
        ("", "run_squad"),  # the others have the same duty, and start Python three times for it
        *(
            pytest.param(launcher, name, marks=pytest.mark.slow)
            for launcher in (TORCHRUN, ACCELERATE)
            for name in NAMES
        ),
    ],
    ids=lambda value: value.removeprefix("-m ").split(".")[0] or "forks",
)
def test_two_processes_score_as_one(all_families, without_dropout, tmp_path, launcher, name):
    family, one, two = all_families[name], tmp_path / "one", tmp_path / "two"
    assert recipe(name, *flags(family, without_dropout, one, TRAIN)) == 0
    given = flags(family, without_dropout, two, TRAIN)
    launch(launcher, family.script, *given) if launcher else fork_two(name, tmp_path, *given)
    assert [results(folder)["hardware"]["processes"] for folder in (one, two)] == [1, 2]
    for folder in (one, two):
        assert results(folder)["rows_scored"] == family.written(folder) == family.rows
    assert results(two)["metrics"] == pytest.approx(results(one)["metrics"], abs=1e-6)
    # Not the weights: where a gradient is zero but for rounding (biases before a softmax), Adam enlarges the rounding.
    losses = [[row["loss"] for row in training_log.read(folder / TRAIN_LOG)] for folder in (one, two)]
    assert len(losses[0]) == 5
    assert losses[1] == pytest.approx(losses[0], abs=1e-5)
