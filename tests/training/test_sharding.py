"""Shards (FSDP2) and replicas (DDP) over two processes train as one process does, and write the same checkpoints."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import toy
from running import RECIPES, TINY, TORCHRUN, launch, recipe, results
from tiny_models import NO_DROPOUT, save_model
from toy import ToyConfig, losses, make_trainer
from transformers import AutoModelForPreTraining

from bert_repro.configs import RunConfig
from bert_repro.errors import UserError
from bert_repro.training import training_log
from bert_repro.training.parallelism import launched_with_fsdp
from bert_repro.utils.files import TRAIN_LOG

TOY = Path(toy.__file__)
PRETRAIN = RECIPES / "run_pretraining.py"


def on_two(resume_everywhere: int, *configs: ToyConfig) -> None:
    """Trains toys one after the other by two processes; the first of them again from every step."""
    settings = (json.dumps(vars(config), separators=(",", ":")) for config in configs)
    launch(TORCHRUN, TOY, *settings, "--resume_everywhere", resume_everywhere)


def replicas(folder: Path, accumulation: int, **more: Any) -> ToyConfig:
    batch = {"train_batch_size": 8, "gradient_accumulation_steps": accumulation}
    return ToyConfig(output_dir=str(folder), **batch, **more)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ToyConfig]:
    """Shards and replicas that two processes trained, and each alone; all started at once, which takes most time."""
    root = tmp_path_factory.mktemp("runs")
    exact = {"dropout": 0.0, "float64": True}
    options = {**exact, "max_steps": 10, "gradient_accumulation_steps": 2, "max_grad_norm": 0.05}
    clipped = ToyConfig(output_dir=str(root / "one"), **options)
    made = {
        "shards": dataclasses.replace(clipped, output_dir=str(root / "shards"), fsdp=True),
        "dropout": replicas(root / "dropout", 2, max_steps=10),
        "replicas": replicas(root / "replicas", 2, max_steps=100, **exact),
    }
    on_two(2, *made.values())
    made |= {"alone": clipped, "replicas alone": dataclasses.replace(made["replicas"], output_dir=str(root / "two"))}
    for name in ("alone", "replicas alone"):
        make_trainer(made[name]).train()
    return made


def test_shards_equal_one_process_and_resume_bit_identically(runs: dict[str, ToyConfig], tmp_path: Path) -> None:
    sharded, alone = runs["shards"], runs["alone"]
    assert losses(sharded) == pytest.approx(losses(alone), abs=1e-12)
    norms = [
        [row["grad_norm"] for row in training_log.read(Path(config.output_dir) / TRAIN_LOG)]
        for config in (sharded, alone)
    ]
    assert norms[0] == pytest.approx(norms[1], abs=1e-12)
    assert min(norms[1]) > alone.max_grad_norm  # so clipping took part in every step

    start = f"{sharded.output_dir}/checkpoints/step-5"
    went_on = dataclasses.replace(alone, output_dir=str(tmp_path), resume_from_checkpoint=start)
    make_trainer(went_on).train()
    assert losses(went_on) == pytest.approx(losses(alone)[5:], abs=1e-12)


def test_replicas_equal_one_process_and_resume_bit_identically(runs: dict[str, ToyConfig]) -> None:
    assert len(losses(runs["dropout"])) == 10, "resumed after every step"
    assert len(losses(runs["replicas"])) == 100
    assert losses(runs["replicas"]) == pytest.approx(losses(runs["replicas alone"]), abs=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("accumulation", [1, 2])
def test_replicas_resume_after_each_of_forty_steps_bit_identically(tmp_path: Path, accumulation: int) -> None:
    config = replicas(tmp_path / "run", accumulation, max_steps=40)
    on_two(1, config)
    assert len(losses(config)) == 40


def test_sharding_is_asked_of_accelerate_launch_too(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not launched_with_fsdp()
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    monkeypatch.setenv("FSDP_VERSION", "2")
    assert launched_with_fsdp()
    assert "ACCELERATE_USE_FSDP" not in os.environ
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    monkeypatch.setenv("FSDP_VERSION", "1")
    with pytest.raises(UserError, match="--fsdp_version 2"):
        launched_with_fsdp()


def test_sharding_an_adapter_is_refused() -> None:
    with pytest.raises(UserError, match="--fsdp and --peft lora exclude each other"):
        RunConfig(fsdp=True, peft="lora")


@pytest.fixture(scope="module")
def start(world: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model without dropout, whose draws depend on the layout."""
    folder = tmp_path_factory.mktemp("start")
    return save_model(world, folder, "ForPreTraining", num_hidden_layers=3, **NO_DROPOUT)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["--fsdp true", "--fsdp true --gradient_checkpointing true", ""])
def test_bert_on_two_processes_is_bert_on_one(world: Any, start: Path, tmp_path: Path, layout: str) -> None:
    """30 steps of pre-training with evaluations and checkpoints; published, resumed, and gone on with alone."""
    given = [TINY, "--corpus", world.corpus, "--model_name_or_path", start, "--max_steps 30 --save_steps 10"]
    given += ["--eval_steps 10 --per_device_train_batch_size 4 --save_total_limit 3"]
    given += ["--max_eval_sequences 33 --per_device_eval_batch_size 8"]  # three forward passes on one, two on the other
    alone, two, resumed, went_on = (tmp_path / name for name in ("alone", "two", "resumed", "went_on"))
    shared = [layout] if layout else []
    assert recipe("run_pretraining", *given, "--output_dir", alone) == 0
    launch(TORCHRUN, PRETRAIN, *given, *shared, "--output_dir", two)
    for name in ("loss", "grad_norm", "eval_mlm_loss", "eval_nsp_accuracy"):
        one, other = (
            [row[name] for row in training_log.read(folder / TRAIN_LOG) if name in row] for folder in (alone, two)
        )
        assert len(one) == (3 if "eval" in name else 30)
        assert other == pytest.approx(one, abs=1e-5), name
    assert results(two)["metrics"] == pytest.approx(results(alone)["metrics"], abs=1e-4)

    step = two / "checkpoints" / "step-20"
    launch(TORCHRUN, PRETRAIN, *given, *shared, "--output_dir", resumed, "--resume_from_checkpoint", step)
    before, after = (safetensors.torch.load_file(folder / "model.safetensors") for folder in (two, resumed))
    assert before.keys() == safetensors.torch.load_file(alone / "model.safetensors").keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    upstream = AutoModelForPreTraining.from_pretrained(two).state_dict()
    assert all(torch.equal(upstream[name], value) for name, value in before.items())

    assert recipe("run_pretraining", *given, "--output_dir", went_on, "--resume_from_checkpoint", step) == 0
    rest = [row["loss"] for row in training_log.read(went_on / TRAIN_LOG) if "loss" in row]
    complete = [row["loss"] for row in training_log.read(alone / TRAIN_LOG) if "loss" in row]
    assert rest == pytest.approx(complete[20:], abs=1e-5)


@pytest.mark.slow
def test_accelerate_launch_shards(world: Any, start: Path, tmp_path: Path) -> None:
    variables = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}  # what accelerate launch --use_fsdp sets
    given = [TINY, "--corpus", world.corpus, "--model_name_or_path", start, "--max_steps 2 --output_dir"]
    launch(TORCHRUN, PRETRAIN, *given, tmp_path / "run", **variables)
    assert results(tmp_path / "run")["settings"]["fsdp"] is True
