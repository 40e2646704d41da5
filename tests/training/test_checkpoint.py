"""Checkpoints: what damages them is found, what interrupts them harms nothing."""

import errno
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors
import safetensors.torch
import torch
from toy import ToyConfig, make_trainer

from bert_repro.errors import NonFiniteError, UserError
from bert_repro.models.modeling_bert_repro import BertReproModel
from bert_repro.training import checkpoint
from bert_repro.training.model_loading import load_pretrained
from bert_repro.training.trainer import Trainer


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    make_trainer(ToyConfig(output_dir=str(folder), max_steps=4, save_steps=2)).train()
    return folder


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "copy"))


FILES = ["model.safetensors", "trainer_state/optimizer.safetensors", "trainer_state/state.json", "manifest.json"]


def test_layout_has_no_pickle(run: Path) -> None:
    files = {str(path.relative_to(run / "checkpoints/step-4")) for path in (run / "checkpoints/step-4").rglob("*.*")}
    assert files == {*FILES, "vocab.txt"}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("harm", ["truncate", "flip", "remove"])
def test_a_damaged_file_is_found_and_the_next_checkpoint_used(
    copy: Path, name: str, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = copy / "checkpoints/step-4" / name
    content = path.read_bytes()
    match harm:
        case "truncate":
            path.write_bytes(content[:-3])
        case "flip":
            path.write_bytes(content[:40] + bytes([content[40] ^ 1]) + content[41:])
        case "remove":
            path.unlink()
    with caplog.at_level("WARNING", logger="bert_repro"):
        assert checkpoint.find(copy, "latest").name == "step-2"
    assert "passing over" in caplog.text and path.name in caplog.text
    with pytest.raises(UserError, match=path.name):
        checkpoint.find(copy, str(copy / "checkpoints/step-4"))


def test_no_whole_checkpoint_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no valid checkpoint"):
        checkpoint.find(tmp_path, "latest")


def test_a_folder_left_by_a_kill_is_no_checkpoint_and_goes_with_the_next_one(copy: Path) -> None:
    shutil.copytree(copy / "checkpoints/step-4", copy / "checkpoints/.writing-step-6")
    assert checkpoint.find(copy, "latest").name == "step-4"
    make_trainer(ToyConfig(output_dir=str(copy), max_steps=5)).save()
    assert not list(copy.glob("checkpoints/.*"))


def test_a_checkpoint_that_is_not_finite_is_passed_over(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As version 0.1 could write one."""
    trainer = make_trainer(ToyConfig(output_dir=str(copy), max_steps=5))
    trainer.state = checkpoint.TrainerState(step=5)
    torch.nn.init.constant_(next(trainer.model.parameters()), float("nan"))
    monkeypatch.setattr(Trainer, "_require_finite_weights", lambda self: None)
    trainer.save()
    assert checkpoint.find_damage(copy / "checkpoints/step-5") == "model.safetensors holds values that are not finite"
    assert checkpoint.find(copy, "latest").name == "step-4"


def test_a_last_update_that_is_not_finite_is_never_saved(tmp_path: Path) -> None:
    config = ToyConfig(output_dir=str(tmp_path), max_steps=1, learning_rate=3e38, warmup_steps=0, save_steps=1)
    with pytest.raises(NonFiniteError, match="weights are not finite"):
        make_trainer(config).train()
    assert not list(tmp_path.glob("checkpoints/*"))


def test_settings_that_decide_the_result_stay_and_others_are_reported(
    copy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = ToyConfig(
        output_dir=str(copy), max_steps=4, save_steps=3, logging_steps=2, resume_from_checkpoint="latest"
    )
    with caplog.at_level("INFO", logger="bert_repro"):
        make_trainer(config).train()
    assert "resuming with --logging_steps 2, was 1" in caplog.text
    other = replace(config, adam_beta1=0.5, dropout=0.0)
    with pytest.raises(UserError, match=r"its run had --adam_beta1 0\.9, now 0\.5; --dropout 0\.2, now 0\.0"):
        make_trainer(other).train()
    make_trainer(replace(other, allow_changed_settings=True)).train()


def test_rotation_keeps_the_newest(tmp_path: Path) -> None:
    make_trainer(ToyConfig(output_dir=str(tmp_path), max_steps=5, save_steps=1, save_total_limit=2)).train()
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-4", "step-5"]


def test_rotation_never_counts_a_damaged_later_checkpoint(copy: Path) -> None:
    (copy / "checkpoints/step-4/model.safetensors").write_bytes(b"")
    config = ToyConfig(output_dir=str(copy), max_steps=3, save_steps=3, save_total_limit=1)
    trainer = make_trainer(config)
    changes = {"resume_from_checkpoint": "latest", "allow_changed_settings": True}
    trainer.config = ToyConfig(**{**vars(config), **changes})
    trainer.train()
    assert checkpoint.find(copy, "latest").name == "step-3"


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        safetensors.SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
        Exception("No space left on device (os error 28)"),  # of tokenizers
    ],
    ids=lambda error: type(error).__name__,
)
def test_disk_full_is_one_clear_line_and_harms_nothing(
    copy: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def full(*args: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(safetensors.torch, "save_file", full)
    trainer = make_trainer(ToyConfig(output_dir=str(copy), max_steps=5))
    with pytest.raises(UserError, match="No space left on device"):
        trainer.save()
    assert checkpoint.find(copy, "latest").name == "step-4"
    assert not list(copy.glob("checkpoints/.writing*"))


def test_another_environment_is_reported(copy: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = copy / "checkpoints/step-4"
    trainer = make_trainer(ToyConfig(output_dir=str(copy)))
    now = json.loads((folder / "manifest.json").read_text())["environment"] | {"cpu_threads": 99}
    with caplog.at_level("WARNING", logger="bert_repro"):
        checkpoint.load(folder, trainer.model, trainer.optimizer.optimizer, now)
    assert "another cpu_threads (99" in caplog.text


def test_weights_of_another_model_are_refused(copy: Path) -> None:
    folder = copy / "checkpoints/step-4"
    safetensors.torch.save_file({"other": safetensors.torch.load_file(folder / "model.safetensors")["head.bias"]},
                                folder / "model.safetensors")  # fmt: skip
    trainer = make_trainer(ToyConfig(output_dir=str(copy)))
    with pytest.raises(UserError, match="not those of this model"):
        checkpoint.load(folder, trainer.model, trainer.optimizer.optimizer, {})


@pytest.mark.parametrize("name", ["step-4", ".writing-step-4"])
def test_a_damaged_or_unfinished_checkpoint_is_no_model(copy: Path, name: str) -> None:
    folder = copy / "checkpoints/step-4"
    (folder / "model.safetensors").write_bytes(b"x" + (folder / "model.safetensors").read_bytes()[1:])
    folder = folder.rename(folder.with_name(name))
    with pytest.raises(UserError, match=r"does not match its SHA-256|is an unfinished checkpoint"):
        load_pretrained(BertReproModel, str(folder))
