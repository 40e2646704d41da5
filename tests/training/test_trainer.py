"""The training step: independence of the layout, exact resume, refusals, signals."""

import dataclasses
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from accelerate import Accelerator
from errors import user_error
from running import TORCHRUN, launch, recipe
from tiny_models import NO_DROPOUT, word_model, word_tokenizer
from toy import ToyConfig, ToyModel, losses, make_trainer

from bert_repro.configs import RunConfig
from bert_repro.errors import NonFiniteError, UserError
from bert_repro.training import checkpoint, training_log
from bert_repro.training.batches import BatchSizes, batch_sizes
from bert_repro.training.trainer import ParallelModel, Trainer
from bert_repro.utils.files import TRAIN_LOG

TOY = Path(__file__).parents[1] / "helpers" / "toy.py"


def trained(config: ToyConfig) -> Trainer:
    trainer = make_trainer(config)
    trainer.train()
    return trainer


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in trainer.model.state_dict().items()}


def assert_identical(left: Trainer, right: Trainer) -> None:
    for name, value in weights(left).items():
        assert torch.equal(value, weights(right)[name]), name
    for a, b in zip(left.model.parameters(), right.model.parameters(), strict=True):
        for key, value in left.optimizer.optimizer.state[a].items():
            assert torch.equal(value, right.optimizer.optimizer.state[b][key]), key


@pytest.mark.parametrize(
    ("settings", "processes", "expected"),
    [
        ({}, 1, BatchSizes(32, 32)),
        ({}, 2, BatchSizes(32, 16)),
        ({"per_device_train_batch_size": 8}, 2, BatchSizes(16, 8)),
        ({"per_device_train_batch_size": 8, "gradient_accumulation_steps": 4}, 1, BatchSizes(32, 8)),
        ({"train_batch_size": 256, "per_device_train_batch_size": 32}, 2, BatchSizes(256, 32)),
        ({"gradient_accumulation_steps": 4}, 2, BatchSizes(32, 4)),
        ({"train_batch_size": 32, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 3}, 2, None),
        ({"train_batch_size": 33}, 2, None),
    ],
)
def test_batch_settings(settings: dict[str, int], processes: int, expected: BatchSizes | None) -> None:
    with nullcontext() if expected else pytest.raises(UserError):
        assert batch_sizes(RunConfig(**settings), processes, default=32) == expected


def test_accumulation_does_not_change_the_update(tmp_path: Path) -> None:
    runs = {}
    for micro in (8, 4, 3):
        given = {"dropout": 0.0, "float64": True, "per_device_train_batch_size": micro}
        runs[micro] = losses(trained(ToyConfig(output_dir=str(tmp_path / str(micro)), **given)).config)
    assert len(runs[8]) == 40
    assert runs[3] == pytest.approx(runs[8], abs=1e-12)
    assert runs[4] == pytest.approx(runs[8], abs=1e-12)


@pytest.mark.parametrize("steps", [8, pytest.param(40, marks=pytest.mark.slow)])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_resume_after_every_step_is_bit_identical(tmp_path: Path, accumulation: int, steps: int) -> None:
    options: dict[str, Any] = {"gradient_accumulation_steps": accumulation, "save_steps": 1, "save_total_limit": steps}
    options |= {"train_batch_size": 8, "max_steps": steps}
    complete = trained(ToyConfig(output_dir=str(tmp_path), **options))
    log = losses(complete.config)
    for step in range(1, steps):
        start = str(tmp_path / "checkpoints" / f"step-{step}")
        options = {"output_dir": str(tmp_path / f"from-{step}"), "resume_from_checkpoint": start, "save_steps": None}
        config = dataclasses.replace(complete.config, **options)
        resumed = trained(config)
        assert_identical(complete, resumed)
        assert losses(config) == log[step:]
    assert len(set(log)) == steps


def test_loader_processes_change_nothing(tmp_path: Path) -> None:
    here = trained(ToyConfig(output_dir=str(tmp_path / "0"), max_steps=6))
    there = trained(ToyConfig(output_dir=str(tmp_path / "2"), max_steps=6, dataloader_num_workers=2))
    assert_identical(here, there)


def test_a_step_that_is_not_finite_is_refused_before_the_update(tmp_path: Path) -> None:
    trainer = make_trainer(ToyConfig(output_dir=str(tmp_path), nan_at=30, save_steps=1))
    with pytest.raises(NonFiniteError, match="step 3"):
        trainer.train()
    assert trainer.state.step == 3
    assert all(torch.isfinite(value).all() for value in weights(trainer).values())
    assert checkpoint.find(tmp_path, "latest").name == "step-3"
    # Read late, as with a GPU: the finite step behind it was begun by then, and is not taken either.
    late = make_trainer(ToyConfig(output_dir=str(tmp_path / "late"), nan_at=30, beside=True))
    with pytest.raises(NonFiniteError, match="step 3"):
        late.train()
    assert late.state.step == 3
    assert_identical(trainer, late)
    assert losses(late.config) == losses(trainer.config)
    assert not (tmp_path / "late" / "checkpoints").exists()


def test_reading_late_changes_no_number_and_logs_every_step(tmp_path: Path) -> None:
    scores: dict[str, list[int]] = {}
    runs = []
    for name in ("now", "late"):
        options: dict[str, Any] = {"max_steps": 11, "eval_steps": 4, "save_steps": 3, "save_total_limit": 9}
        trainer = make_trainer(ToyConfig(output_dir=str(tmp_path / name), beside=name == "late", **options))

        def evaluate(name: str = name, folder: Path = trainer.output_dir) -> dict[str, Any]:
            scores.setdefault(name, []).append(len(training_log.read(folder / TRAIN_LOG)))
            return {"rows": 1}

        trainer.evaluate = evaluate
        trainer.train()
        runs.append(trainer)
    assert_identical(*runs)
    rows = [
        [{name: value for name, value in row.items() if name not in ("seconds", "tokens_per_second")} for row in read]
        for read in (training_log.read(trainer.output_dir / TRAIN_LOG) for trainer in runs)
    ]
    assert rows[0] == rows[1] and len(rows[0]) == 11 + 2
    assert scores["now"] == scores["late"]  # an evaluation finds the steps before it in the log
    for step in (3, 6, 9, 11):
        now, late = (checkpoint.read_state(trainer.output_dir / f"checkpoints/step-{step}") for trainer in runs)
        assert now.position == late.position
        for file in ("model.safetensors", "trainer_state/optimizer.safetensors"):
            left, right = ((trainer.output_dir / f"checkpoints/step-{step}" / file).read_bytes() for trainer in runs)
            assert left == right  # of a snapshot: the steps after it were taken while it was written


def test_log_holds_the_sum_of_the_losses_and_accuracies_apart(tmp_path: Path) -> None:
    trained(ToyConfig(output_dir=str(tmp_path), max_steps=4, per_device_train_batch_size=3))
    for row in training_log.read(tmp_path / TRAIN_LOG):
        assert row["loss"] == pytest.approx(row["token_loss"] + row["row_loss"])
        assert row["row_accuracy"] * 8 == pytest.approx(round(row["row_accuracy"] * 8), abs=1e-5)


@pytest.mark.slow
def test_a_job_that_is_started_again_begins_or_resumes(tmp_path: Path) -> None:
    """torchrun starts all processes again when one is killed; the first time there is no checkpoint yet."""
    settings: dict[str, Any] = {"max_steps": 12, "resume_from_checkpoint": "auto"}
    for name, more in {"whole": {}, "early": {"die_at": 1}, "late": {"die_at": 81, "save_steps": 2}}.items():
        config = {**settings, "output_dir": str(tmp_path / name), **more}
        alone = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}  # else torchrun keeps the addresses of dead processes
        stderr = launch(f"{TORCHRUN} --max-restarts 3", TOY, json.dumps(config, separators=(",", ":")), **alone)
        assert ("Resuming from" in stderr) == (name == "late")
    whole, early, late = (
        safetensors.torch.load_file(tmp_path / name / "model.safetensors") for name in ("whole", "early", "late")
    )
    assert all(torch.equal(value, early[name]) and torch.equal(value, late[name]) for name, value in whole.items())


def test_auto_leaves_a_finished_run_and_other_folders_alone(tmp_path: Path) -> None:
    for name, status in {"finished": {"code": 0, "reason": "done"}, "other": None}.items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / "mine.txt").write_text("x")
        if status:
            (folder / "status.json").write_text(json.dumps(status))
        arguments = f"--corpus {tmp_path} --max_steps 1 --resume_from_checkpoint auto --output_dir {folder}"
        assert recipe("run_pretraining", arguments) == 2
        assert (folder / "mine.txt").exists()


def test_recomputed_dropout_in_a_compiled_step_is_refused_where_bits_are_promised(tmp_path: Path) -> None:
    config = ToyConfig(output_dir=str(tmp_path), deterministic=True, gradient_checkpointing=True)
    with user_error("--torch_compile false", setting="torch_compile"):
        Trainer(Accelerator(cpu=True), ToyModel(0.1), None, config, tokenizer=None, compile_options={})  # type: ignore[arg-type]


def test_layers_are_compiled_for_training_only() -> None:
    model = word_model(word_tokenizer("a b c"), "ForMaskedLM", **NO_DROPOUT).train()
    inputs = {"input_ids": torch.tensor([[2, 5, 3]]), "labels": torch.tensor([[-100, 5, -100]])}
    expected = model(**inputs).loss
    options = {"backend": "eager", "dynamic": True}
    parallel = ParallelModel(Accelerator(cpu=True), model, compile_options=options, by_layer=True)
    means, _ = parallel.wrapped(("loss",), inputs)
    assert torch.equal(means["loss"], expected) and parallel.compiled_graphs() == 1
    parallel.unwrap()
    model(**{name: value.repeat(3, 1) for name, value in inputs.items()})
    assert parallel.compiled_graphs() == 1


def test_many_models_in_one_process_are_each_compiled_once() -> None:
    inputs, graphs = {"rows": torch.ones(3, 6), "picked": torch.ones(3, dtype=torch.bool)}, []
    for number in range(12):  # PyTorch gives up on a piece of code after eight versions
        options = {"backend": "eager", "dynamic": False}
        parallel = ParallelModel(Accelerator(cpu=True), ToyModel(number / 100), compile_options=options)
        for _ in range(2):
            parallel.wrapped(("token_loss",), inputs)
        graphs.append(parallel.compiled_graphs())
    assert set(graphs) == {2}  # the rows are picked between them
