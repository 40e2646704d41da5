"""The pipeline through the recipes' entry point: text, corpus, pre-trained, fine-tuned, loaded by upstream."""

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from errors import user_error
from running import TINY, recipe, results
from tiny_models import NO_DROPOUT, save_model
from transformers import AutoModelForPreTraining, AutoModelForSequenceClassification, AutoTokenizer

from bert_repro import BertReproConfig
from bert_repro.configs import PretrainingConfig
from bert_repro.configs.presets import PAPER_PHASES
from bert_repro.models.loading import load_config, load_tokenizer
from bert_repro.pretraining.cost import cost_estimate
from bert_repro.pretraining.model import build_model
from bert_repro.training import training_log
from bert_repro.training.resume import require_same_settings, stored_settings

SHAPE = "--num_hidden_layers 2 --hidden_size 32 --num_attention_heads 2"
TWO_PHASES = "phases:\n- {max_seq_length: 32, steps: 6, batch: 8}\n- {max_seq_length: 64, steps: 4, batch: 4}\n"


def test_pretraining_learns_and_leaves_everything_the_contract_names(pretrained: Path) -> None:
    rows = training_log.read(pretrained / "train_log.jsonl")
    losses = [row["mlm_loss"] for row in rows if "mlm_loss" in row]
    assert sum(losses[-5:]) / 5 < sum(losses[:5]) / 5 - 0.5
    assert {row["step"] for row in rows if "eval_mlm_accuracy" in row} == {30, 60}
    training = [row for row in rows if "mlm_loss" in row]
    assert all(row["loss"] == pytest.approx(row["mlm_loss"] + row["nsp_loss"]) for row in training)
    assert all(0 <= row["mlm_accuracy"] <= 1 and row["mfu"] > 0 for row in training)
    record = results(pretrained)
    assert set(record["metrics"]) == {"mlm_loss", "mlm_accuracy", "mlm_perplexity", "nsp_loss", "nsp_accuracy"}
    assert {"seed", "settings", "versions", "hardware", "command", "wall_time_seconds", "git_commit"} <= record.keys()
    assert not (pretrained / "sample_index").exists(), "what only a running training needs is removed"
    for name in ("README.md", "training.png", "status.json", "config.json", "model.safetensors", "tokenizer.json"):
        assert (pretrained / name).is_file(), name
    assert json.loads((pretrained / "status.json").read_text()) == {"code": 0, "reason": "done"}
    steps = {path.name for path in (pretrained / "checkpoints").iterdir()}
    assert steps == {"step-20", "step-40", "step-60"}
    assert list(pretrained.rglob("events.out.tfevents*"))
    assert not list(pretrained.rglob("*.pkl")) + list(pretrained.rglob("*.pt")) + list(pretrained.rglob("*.bin"))
    assert record["data"]["sources"] == ["text.txt"]
    for folder in (pretrained, pretrained / "checkpoints" / "step-20"):
        assert AutoTokenizer.from_pretrained(folder).model_max_length == 64  # of 512 positions
        assert json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"] == 64
    assert "at most 64 tokens at once (`truncation=True` cuts" in (pretrained / "README.md").read_text()
    model, info = AutoModelForPreTraining.from_pretrained(pretrained, output_loading_info=True)
    assert type(model).__module__.startswith("transformers.")
    assert not info["missing_keys"] and not info["unexpected_keys"]


def test_resumed_pretraining_is_bit_identical(world: Any, pretrained: Path) -> None:
    folder = world.root / "resumed"
    arguments = ["--corpus", world.corpus, "--output_dir", folder, "--max_steps 60 --eval_steps 30"]
    resume = ["--resume_from_checkpoint", pretrained / "checkpoints" / "step-40"]
    assert recipe("run_pretraining", TINY, *arguments, *resume) == 0
    before, after = (safetensors.torch.load_file(path / "model.safetensors") for path in (pretrained, folder))
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert results(folder)["metrics"] == results(pretrained)["metrics"]


def test_a_finished_run_trains_longer_with_its_learning_rate_for_the_new_length(world, pretrained, tmp_path):
    arguments = ["--corpus", world.corpus, "--output_dir", tmp_path, "--max_steps 70 --logging_steps 1"]
    resume = ["--resume_from_checkpoint", pretrained / "checkpoints" / "step-60", "--allow_changed_settings"]
    assert recipe("run_pretraining", TINY, *arguments, *resume) == 0
    rows = [row for row in training_log.read(tmp_path / "train_log.jsonl") if "loss" in row]
    assert [row["step"] for row in rows] == list(range(61, 71))
    assert rows[0]["learning_rate"] == pytest.approx(2e-3 * 10 / 70)
    assert results(tmp_path)["train"]["steps"] == 70


@pytest.mark.parametrize(
    "change",
    [
        {"nsp_sampling": "original"},
        {"mask_replace_prob": 0.7},
        {"masked_lm_prob": 0.2},
        {"warmup_steps": 3},
        {"heldout_fraction": 0.4},
        {"weight_decay": 0.0},
        {"max_predictions_per_seq": 5},
        {"seed": 3},
    ],
    ids=str,
)
def test_what_decides_the_weights_is_compared_on_resume(tmp_path: Path, change: dict[str, Any]) -> None:
    options: dict[str, Any] = {"corpus": "corpus", "output_dir": str(tmp_path), "max_steps": 9}
    before = stored_settings(PretrainingConfig(**options))
    with user_error(f"--{next(iter(change))}", "--allow_changed_settings"):
        require_same_settings(tmp_path, before, PretrainingConfig(**options, **change))
    divides = {"packing": False, "per_device_train_batch_size": 4, "dataloader_num_workers": 2, "save_steps": 7}
    require_same_settings(tmp_path, before, PretrainingConfig(**options, **divides))


@pytest.fixture(scope="module")
def plain(world, short_losses, tmp_path_factory) -> tuple[Path, list[float]]:
    folder = tmp_path_factory.mktemp("model")
    model = save_model(world, folder, "ForPreTraining", num_hidden_layers=2, **NO_DROPOUT)
    return model, short_losses(model)


@pytest.mark.parametrize(
    "layout",
    [
        "--packing false",
        "--packing false --cpu_kernels false",
        "--per_device_train_batch_size 5",
        "--dataloader_num_workers 2",
        "--static_shapes true --per_device_train_batch_size 8",
        "--static_shapes true --packing false --per_device_train_batch_size 7",
        "--gradient_checkpointing true",
    ],
)
def test_layout_of_the_work_changes_neither_losses_nor_tokens_counted(short_losses, plain, layout):
    model, expected = plain
    assert short_losses(model, layout) == pytest.approx(expected, abs=2e-5)


def test_two_phases_are_one_run_and_resume_across_the_border(world: Any, tmp_path: Path, caplog: Any) -> None:
    phases = tmp_path / "phases.yaml"
    phases.write_text(TWO_PHASES)
    common = ["--config", phases, "--corpus", world.corpus, SHAPE, "--logging_steps 1"]
    every = "--save_steps 5 --eval_steps 2"
    assert recipe("run_pretraining", *common, "--output_dir", tmp_path / "complete", every) == 0
    rows = training_log.read(tmp_path / "complete" / "train_log.jsonl")
    assert len([row for row in rows if "loss" in row]) == 10
    lengths = [(row["step"], row["eval_max_seq_length"]) for row in rows if "eval_mlm_loss" in row]
    assert lengths == [(2, 32), (4, 32), (6, 32), (8, 64), (10, 64)]
    assert results(tmp_path / "complete")["metrics"]["mlm_loss"] == pytest.approx(rows[-1]["eval_mlm_loss"], abs=1e-6)
    checkpoint = tmp_path / "complete" / "checkpoints" / "step-5"
    again = ["--output_dir", tmp_path / "cut", "--resume_from_checkpoint", checkpoint]
    assert recipe("run_pretraining", *common, *again) == 0
    before, after = (safetensors.torch.load_file(tmp_path / name / "model.safetensors") for name in ("complete", "cut"))
    assert all(torch.equal(before[name], after[name]) for name in before)
    phases.write_text(phases.read_text().replace("steps: 4", "steps: 5"))
    with caplog.at_level("INFO", logger="bert_repro"):
        assert recipe("run_pretraining", *common, *again, "--overwrite_output_dir", "--allow_changed_settings") == 0
    assert "--phases[1].steps 5, was 4\n" in caplog.text


def test_phases_in_which_a_checkpoint_was_not_trained_are_refused(world: Any, tmp_path: Path, refused: Any) -> None:
    phases = tmp_path / "phases.yaml"
    phases.write_text(TWO_PHASES)
    common = ["--config", phases, "--corpus", world.corpus, "--output_dir", tmp_path / "run", SHAPE, "--save_steps 8"]
    assert recipe("run_pretraining", *common) == 0
    begin = ["--resume_from_checkpoint", tmp_path / "run/checkpoints/step-8", "--allow_changed_settings"]
    for before, after, message in (
        ("- {max_seq_length: 64, steps: 4, batch: 4}\n", "", "2 steps of phases[1], which has 0 now"),
        ("steps: 4", "steps: 1", "which has 1 now"),
        ("steps: 6", "steps: 5", "which has 5 now"),
    ):
        phases.write_text(TWO_PHASES.replace(before, after))
        assert message in refused("run_pretraining", *common, *begin)


def test_finetuning_learns_scores_and_predicts(finetuned: Path) -> None:
    record = results(finetuned)
    assert record["metrics"]["accuracy"] > 0.9
    assert (record["rows_scored"], record["splits"]["test"]["rows"]) == (21, 5)
    assert (finetuned / "predictions.validation.tsv").read_text().count("\n") == 22
    model = AutoModelForSequenceClassification.from_pretrained(finetuned)
    assert model.config.id2label == {0: "negative", 1: "positive"}
    assert AutoTokenizer.from_pretrained(finetuned).model_max_length == 64  # as pre-trained
    assert "at most 64 tokens at once (`truncation=True`" in (finetuned / "README.md").read_text()


def test_continuing_from_a_checkpoint(world: Any, pretrained: Path, tmp_path: Path) -> None:
    arguments = ["--model_name_or_path", pretrained, "--corpus", world.corpus, "--output_dir", tmp_path / "on"]
    shorter = TINY.replace("--max_seq_length 64", "--max_seq_length 32")
    assert recipe("run_pretraining", shorter, *arguments, "--max_steps 2") == 0
    assert AutoTokenizer.from_pretrained(tmp_path / "on").model_max_length == 64, "the checkpoint's were trained before"
    first = training_log.read(tmp_path / "on" / "train_log.jsonl")[0]["mlm_loss"]
    assert first < training_log.read(pretrained / "train_log.jsonl")[0]["mlm_loss"] - 0.5


def test_a_checkpoint_keeps_its_shape_and_takes_the_dropout_that_is_asked_for(world: Any, pretrained: Path) -> None:
    tokenizer = load_tokenizer(pretrained)
    asked = {"corpus": str(world.corpus), "model_name_or_path": str(pretrained), "max_steps": 1}
    config = build_model(PretrainingConfig(**asked), tokenizer).config
    assert config.hidden_dropout_prob == load_config(str(pretrained)).hidden_dropout_prob > 0
    without = build_model(PretrainingConfig(**asked, hidden_dropout_prob=0.0), tokenizer)
    assert without.config.hidden_dropout_prob == 0 and without.bert.embeddings.dropout.p == 0
    with user_error("--num_hidden_layers 3", config.num_hidden_layers, setting="num_hidden_layers"):
        build_model(PretrainingConfig(**asked, num_hidden_layers=3), tokenizer)


def test_the_cost_estimate_of_the_papers_phases() -> None:
    text = cost_estimate(PretrainingConfig(mixed_precision="bf16"), BertReproConfig(), PAPER_PHASES, 3_300_000_000, 1)
    assert "42,598,400,000" in text and "131,072,000,000" in text
    assert "2.38e+19" in text  # 29.5e9 tokens of 545 MFLOP and 13.1e9 of 588
    assert "estimated on one device" in text and "h200 17 hours" in text and "a100 53 hours" in text


def test_a_dry_run_prints_the_estimate_and_starts_nothing(world: Any, tmp_path: Path, capsys: Any) -> None:
    arguments = ["--corpus", world.corpus, "--output_dir", tmp_path / "run", "--max_steps 7 --dry_run"]
    assert recipe("run_pretraining", TINY, *arguments) == 0
    estimate = capsys.readouterr().out
    assert "7 steps of 16 sequences of 64 tokens" in estimate and "for a forward pass of 1,024 tokens" in estimate
    assert not (tmp_path / "run" / "results.json").exists()
