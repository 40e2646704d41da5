"""fp16 with loss scaling: steps that the scaler skips are no fault, everything else that is not finite is.

PyTorch's scaler works on the CPU as on a GPU; Accelerate makes one for GPUs only, so it is put in by hand here.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
import safetensors.torch
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from running import TINY, recipe, results
from toy import ToyConfig, ToyModel, ToySource, ToyTokenizer, losses

from bert_repro.configs import PretrainingConfig
from bert_repro.errors import NonFiniteError
from bert_repro.training import performance, training_log
from bert_repro.training.batches import batch_sizes
from bert_repro.training.trainer import Trainer
from bert_repro.utils.files import TRAIN_LOG
from bert_repro.utils.process import recorded_exit_code


@pytest.fixture(autouse=True)
def own_accelerator_state() -> Iterator[None]:
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


def fp16_trainer(config: ToyConfig, *, scale: float = 2.0**16, backoff: float = 0.5) -> Trainer:
    Path(config.output_dir).mkdir(parents=True, exist_ok=True)
    accelerator = Accelerator(cpu=True, mixed_precision="fp16")
    accelerator.native_amp = True
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=scale, backoff_factor=backoff, growth_interval=1000)
    torch.manual_seed(config.seed)
    source = ToySource(config, batch_sizes(config, 1, 8).micro)
    return Trainer(accelerator, ToyModel(config.dropout), source, config, tokenizer=ToyTokenizer())


def test_skipped_steps_change_nothing_and_do_not_advance_the_rate(tmp_path: Path) -> None:
    config = ToyConfig(output_dir=str(tmp_path), max_steps=30, warmup_steps=10, save_steps=1, save_total_limit=30)
    trainer = fp16_trainer(config, scale=2.0**30)
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    trainer.train()
    skipped = trainer.state.skipped
    assert 0 < skipped < 20
    rows = training_log.read(tmp_path / TRAIN_LOG)
    # One update at learning rate 0 follows the skipped steps; until then weights and learning rate do not change.
    assert [row["learning_rate"] for row in rows[: skipped + 2]] == [0.0] * (skipped + 1) + [config.learning_rate / 10]
    first = safetensors.torch.load_file(tmp_path / "checkpoints" / f"step-{skipped + 1}" / "model.safetensors")
    assert all(torch.equal(first[name], value) for name, value in before.items())
    assert losses(config)[-1] < losses(config)[0]
    assert all(torch.isfinite(value).all() for value in trainer.model.state_dict().values())


def test_resume_with_a_scaler_is_bit_identical(tmp_path: Path) -> None:
    config = ToyConfig(output_dir=str(tmp_path / "complete"), max_steps=16, save_steps=4, save_total_limit=4)
    complete = fp16_trainer(config, scale=2.0**30)
    complete.train()
    for step in (4, 12):
        start = str(tmp_path / "complete" / "checkpoints" / f"step-{step}")
        resumed = fp16_trainer(
            dataclasses.replace(config, output_dir=str(tmp_path / str(step)), resume_from_checkpoint=start)
        )
        resumed.train()
        assert resumed.state == complete.state
        for name, value in complete.model.state_dict().items():
            assert torch.equal(value, resumed.model.state_dict()[name]), name


def test_twenty_skipped_steps_in_a_row_or_a_loss_that_is_not_finite_stop_the_run(tmp_path: Path) -> None:
    trainer = fp16_trainer(ToyConfig(output_dir=str(tmp_path)), scale=2.0**60, backoff=0.99)
    with pytest.raises(NonFiniteError, match="20 fp16 steps"):
        trainer.train()
    trainer = fp16_trainer(ToyConfig(output_dir=str(tmp_path / "loss"), nan_at=30))
    with pytest.raises(NonFiniteError, match="step 3"):
        trainer.train()


def test_fp16_on_the_cpu_is_refused(world, tmp_path, refused):
    arguments = ["--corpus", world.corpus, "--output_dir", tmp_path / "run", "--max_steps 1 --mixed_precision fp16"]
    assert "--mixed_precision fp16" in refused("run_pretraining", *arguments)


def test_auto_is_what_the_device_has_in_the_estimate_the_results_and_on_resume(
    world, untrained, tmp_path, refused, capsys, monkeypatch
):
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    run = [TINY, "--corpus", world.corpus, "--max_steps 2 --save_steps 1 --mixed_precision auto"]
    assert recipe("run_pretraining", *run, "--dry_run") == 0 and "FLOPs in bf16\n" in capsys.readouterr().out
    assert recipe("run_pretraining", *run, "--output_dir", tmp_path / "run") == 0
    assert results(tmp_path / "run")["settings"]["mixed_precision"] == "bf16"
    sst2 = ["--task_name sst2 --data_dir", world.glue, "--model_name_or_path", untrained, "--mixed_precision auto"]
    assert recipe("run_glue", *sst2, "--do_train --max_steps 1 --output_dir", tmp_path / "sst2") == 0
    assert results(tmp_path / "sst2")["settings"]["mixed_precision"] == "bf16"

    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    capsys.readouterr()
    resumed = [*run, "--output_dir", tmp_path / "run", "--resume_from_checkpoint", tmp_path / "run/checkpoints/step-1"]
    line = refused("run_pretraining", *resumed)
    assert "--mixed_precision" in line and "bf16" in line and "--allow_changed_settings" in line
    assert recorded_exit_code(tmp_path / "run") == 0, "a refusal leaves what a finished run says of itself"
    assert recipe("run_pretraining", *run, "--dry_run") == 0 and "FLOPs in float32\n" in capsys.readouterr().out


@pytest.mark.parametrize(("native", "tpu"), [(True, False), (False, True), (False, False)])
def test_bf16_that_the_device_emulates_is_warned_of_and_not_taken_by_auto(caplog, monkeypatch, native, tpu):
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: native)
    monkeypatch.setattr(performance, "is_torch_xla_available", lambda check_is_tpu: tpu)
    fast = native or tpu
    assert performance.resolve_precision(PretrainingConfig(mixed_precision="bf16")).mixed_precision == "bf16"
    assert ("--mixed_precision bf16" in caplog.text) is not fast
    auto = performance.resolve_precision(PretrainingConfig(mixed_precision="auto")).mixed_precision
    assert auto == ("bf16" if fast else "no")
