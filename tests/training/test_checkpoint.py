"""Checkpoints: what damages them is found, what interrupts them harms nothing."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from errors import user_error
from running import recipe, results
from tiny_models import save_model
from torch import nn
from toy import ToyConfig, make_trainer
from transformers import AutoModel

from bert_repro.errors import NonFiniteError
from bert_repro.models.loading import require_undamaged
from bert_repro.training import checkpoint
from bert_repro.training.best_model import BestModel
from bert_repro.training.resume import require_same_data


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    make_trainer(ToyConfig(output_dir=str(folder), max_steps=4, save_steps=2)).train()
    return folder


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "copy"))


FILES = ["model.safetensors", "trainer_state/optimizer.safetensors", "trainer_state/state.json", "manifest.json"]


def test_layout_has_no_pickle_and_an_empty_folder_no_checkpoint(run: Path, tmp_path: Path) -> None:
    files = {str(path.relative_to(run / "checkpoints/step-4")) for path in (run / "checkpoints/step-4").rglob("*.*")}
    assert files == {*FILES, "vocab.txt", "tokenizer_config.json"}
    with user_error("--resume_from_checkpoint latest", tmp_path, setting="resume_from_checkpoint"):
        checkpoint.find(tmp_path, "latest")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("harm", ["truncate", "flip", "remove"])
def test_a_damaged_file_is_found_and_the_next_checkpoint_used(copy, name, harm, caplog):
    path = copy / "checkpoints/step-4" / name
    content = path.read_bytes()
    flipped = content[:40] + bytes([content[40] ^ 1]) + content[41:]
    path.write_bytes(flipped if harm == "flip" else content[:-3])
    if harm == "remove":
        path.unlink()
    with caplog.at_level("WARNING", logger="bert_repro"):
        assert checkpoint.find(copy, "latest").name == "step-2"
    assert "step-4" in caplog.text and path.name in caplog.text
    with user_error(path.name, setting="resume_from_checkpoint"):
        checkpoint.find(copy, str(copy / "checkpoints/step-4"))


@pytest.mark.parametrize(
    ("name", "is_damage"),
    [
        ("added_tokens.json", True),
        ("trainer_state/more.safetensors", True),
        ("README.md", False),
        ("onnx/x.onnx", False),
    ],
)
def test_a_file_that_was_added_later_is_refused_if_a_loader_might_read_it(copy, name, is_damage):
    folder = copy / "checkpoints/step-4"
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("{}")
    assert checkpoint.find(copy, "latest").name == ("step-2" if is_damage else "step-4")
    if is_damage:
        with user_error(folder, name, setting="resume_from_checkpoint"):
            checkpoint.find(copy, str(folder))
        with user_error(name):
            require_undamaged(folder)


def test_a_folder_left_by_a_kill_is_no_checkpoint_and_goes_with_the_next_one(copy: Path) -> None:
    shutil.copytree(copy / "checkpoints/step-4", copy / "checkpoints/.writing-step-6")
    assert checkpoint.find(copy, "latest").name == "step-4"
    make_trainer(ToyConfig(output_dir=str(copy), max_steps=5)).save()
    assert not list(copy.glob("checkpoints/.*"))


def test_a_last_update_that_is_not_finite_is_never_saved(tmp_path: Path) -> None:
    config = ToyConfig(output_dir=str(tmp_path), max_steps=1, learning_rate=3e38, warmup_steps=0, save_steps=1)
    with pytest.raises(NonFiniteError, match="weights"):
        make_trainer(config).train()
    assert not list(tmp_path.glob("checkpoints/*"))


def test_settings_that_decide_the_result_stay_and_others_are_reported(copy, caplog):
    given = {"save_steps": 3, "logging_steps": 2, "resume_from_checkpoint": "latest"}
    config = ToyConfig(output_dir=str(copy), max_steps=4, **given)
    with caplog.at_level("INFO", logger="bert_repro"):
        make_trainer(config).train()
    assert "--logging_steps 2, was 1" in caplog.text
    other = replace(config, adam_beta1=0.5, dropout=0.0)
    with user_error("--adam_beta1 0.9", "0.5", "--dropout 0.2", "0.0", "--allow_changed_settings"):
        make_trainer(other).train()
    make_trainer(replace(other, allow_changed_settings=True, seed=7)).train()  # the seed is in the data's fingerprint


def test_other_data_is_refused_whatever_settings_may_change(copy: Path) -> None:
    config = ToyConfig(output_dir=str(copy), max_steps=4, resume_from_checkpoint="latest", allow_changed_settings=True)
    trainer = make_trainer(config)
    state = checkpoint.read_state(copy / "checkpoints/step-4")
    with user_error("documents 3", "4", "--overwrite_output_dir"):
        trainer.source.data_fingerprint["documents"] = 4
        require_same_data(copy, replace(state, data_fingerprint={"documents": 3}), trainer.source, config)


def test_rotation_keeps_the_newest(tmp_path: Path) -> None:
    make_trainer(ToyConfig(output_dir=str(tmp_path), max_steps=5, save_steps=1, save_total_limit=2)).train()
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-4", "step-5"]


def test_rotation_never_counts_a_damaged_later_checkpoint(copy: Path) -> None:
    (copy / "checkpoints/step-4/model.safetensors").write_bytes(b"")
    changes = {"resume_from_checkpoint": "latest", "allow_changed_settings": True}
    make_trainer(ToyConfig(output_dir=str(copy), max_steps=3, save_steps=3, save_total_limit=1, **changes)).train()
    assert checkpoint.find(copy, "latest").name == "step-3"


def test_another_environment_is_reported(copy: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = copy / "checkpoints/step-4"
    trainer = make_trainer(ToyConfig(output_dir=str(copy)))
    now = json.loads((folder / "manifest.json").read_text())["environment"]
    now |= {"cpu_threads": 99, "versions": now["versions"] | {"transformers": "4.0"}}
    with caplog.at_level("WARNING", logger="bert_repro"):
        checkpoint.load(folder, trainer.model, trainer.optimizer.optimizer, now)
    assert re.search(r"cpu_threads 99 \(was \d+\), transformers 4\.0 \(was [\d.]+\)", caplog.text)


def test_weights_of_another_model_are_refused(copy: Path) -> None:
    weights = copy / "checkpoints/step-4/model.safetensors"
    safetensors.torch.save_file({"other": safetensors.torch.load_file(weights)["head.bias"]}, weights)
    trainer = make_trainer(ToyConfig(output_dir=str(copy)))
    with user_error(weights.parent, "other"):
        checkpoint.load(weights.parent, trainer.model, trainer.optimizer.optimizer, {})


def test_the_best_weights_are_one_state_with_a_checkpoint(tmp_path):
    """A run that is killed after a better evaluation and before the next checkpoint resumes with the older best."""
    assert not scored(tmp_path / "free", [0.9, *[0.1] * 20], patience=None).should_stop
    best = scored(tmp_path, [0.5, 0.7])
    state = best.state()  # of the checkpoint
    best.forget_others()
    best.consider({"accuracy": float("nan")}, 3, Line(3.0), write=True)
    best.consider({"accuracy": 0.9}, 4, Line(4.0), write=True)
    resumed, model = BestModel(tmp_path, "accuracy", patience=2), Line(0.0)
    resumed.load(state)
    resumed.restore(model)
    assert (resumed.step, resumed.score, resumed.stale, model.weight.item()) == (2, 0.7, 0, 2.0)
    assert [path.name for path in sorted((tmp_path / "best").iterdir())] == ["step-2.safetensors", "step-4.safetensors"]


RUN = "--task_name sst2 --do_train --do_eval --max_steps 40 --eval_steps 5 --bias_correction true --logging_steps 1"


class Line(nn.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([value]))


def scored(folder: Path, scores: list[float], patience: int | None = 2) -> BestModel:
    best = BestModel(folder, "accuracy", patience=patience)
    for step, score in enumerate(scores, start=1):
        best.consider({"accuracy": score}, step, Line(float(step)), write=True)
        if best.should_stop:
            break
    return best


@pytest.mark.parametrize(
    ("scores", "best_step", "stale", "stops"),
    [([0.5, 0.6, 0.7], 3, 0, False), ([0.5, 0.7, 0.6, 0.7], 2, 2, True), ([0.5, 0.5, 0.6, 0.1], 3, 1, False)],
)
def test_the_first_of_the_highest_scores_is_kept(tmp_path, scores, best_step, stale, stops):
    best = scored(tmp_path, scores)
    model = Line(0.0)
    best.restore(model)
    assert (best.step, best.stale, best.should_stop, model.weight.item()) == (best_step, stale, stops, best_step)


def finetune(world, model: Path, folder: Path, *more: str) -> dict:
    where = f"--model_name_or_path {model} --data_dir {world.glue} --output_dir {folder}"
    assert recipe("run_glue", RUN, where, *more) == 0
    return results(folder)


def test_a_run_stops_early_and_publishes_its_best_weights(world, tmp_path):
    model = save_model(world, tmp_path / "model", "ForPreTraining")
    found = finetune(world, model, tmp_path / "run", "--learning_rate 1e-3 --early_stopping_patience 2")
    assert found["train"]["steps"] == found["train"]["best_step"] + 2 * 5 < 40
    again = tmp_path / "again"
    data = ["--task_name sst2 --do_eval --data_dir", world.glue, "--output_dir", again]
    assert recipe("run_glue", *data, "--model_name_or_path", tmp_path / "run") == 0
    assert results(again)["metrics"] == found["metrics"]
    assert not (tmp_path / "run" / "best").exists()


@pytest.mark.parametrize(("frozen", "moving"), [(0, {0, 1, 2}), (2, {2})])
def test_frozen_layers_keep_their_weights_and_the_others_move(world, tmp_path, frozen, moving):
    model = save_model(world, tmp_path / "model", "ForPreTraining", num_hidden_layers=3)
    finetune(world, model, tmp_path / "run", f"--freeze_layers {frozen} --learning_rate 1e-3 --max_steps 5")
    before, after = (AutoModel.from_pretrained(folder).state_dict() for folder in (model, tmp_path / "run"))
    moved = {name.rsplit(".", 1)[0] for name in before if not torch.equal(before[name], after[name])}
    layers = {f"encoder.layer.{layer}.output.dense" for layer in range(3)}
    assert moved & layers == {f"encoder.layer.{layer}.output.dense" for layer in moving}
    assert "pooler.dense" in moved and not any(name.startswith("embeddings") for name in moved)
