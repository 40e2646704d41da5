"""Names of settings, choices and presets that an earlier version used."""

from dataclasses import replace
from pathlib import Path

import pytest

from bert_repro import cli
from bert_repro.configs import GlueConfig, PretrainingConfig, SquadConfig, current_names
from bert_repro.errors import UserError
from bert_repro.reproduction.size_presets import SIZE_PRESETS
from bert_repro.reproduction.suite import plan_runs

GLUE = ["--model_name_or_path", "m", "--do_train", "--do_eval"]


def test_an_earlier_flag_is_accepted_with_one_notice(caplog: pytest.LogCaptureFixture) -> None:
    config = cli.parse(GlueConfig, [*GLUE, "--search-learning-rates", "1e-4", "2e-4", "--search_keep_models=true"])
    assert (config.sweep_learning_rates, config.sweep_keep_models) == ((1e-4, 2e-4), True)
    assert [line.partition(" is now called ")[::2] for line in caplog.messages] == [
        ("--search_learning_rates", "--sweep_learning_rates; the old name works for one more release"),
        ("--search_keep_models", "--sweep_keep_models; the old name works for one more release"),
    ]


def test_an_earlier_choice_or_preset_is_accepted_with_a_notice(caplog: pytest.LogCaptureFixture) -> None:
    config = cli.parse(SquadConfig, [*GLUE, "--decoding", "released"])
    assert config == cli.parse(SquadConfig, [*GLUE, "--decoding", "original"])
    assert caplog.messages == ["--decoding released is now called original; the old name works for one more release"]
    assert cli.parse(GlueConfig, [*GLUE, "--preset", "glue-search"]).sweep_learning_rates == (5e-5, 4e-5, 3e-5, 2e-5)
    assert "glue-sweep" in caplog.messages[1]


def test_an_earlier_yaml_key_is_accepted_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("mask_share: 0.5\nplan: true\n")
    config = cli.parse(PretrainingConfig, ["--config", str(file)])
    assert (config.mask_replace_prob, config.dry_run, len(caplog.messages)) == (0.5, True, 2)
    file.write_text("mask_share: 0.5\nmask_replace_prob: 0.6\n")
    with pytest.raises(UserError, match="mask_share is the old name of mask_replace_prob; leave one of the two out"):
        cli.parse(PretrainingConfig, ["--config", str(file)])


def test_stored_settings_and_runs_of_before_the_renaming_are_found_under_the_names_of_today() -> None:
    stored = {"fixed_shapes": True, "answer_text": "released", "note": "released", "seed": 1}
    assert current_names(stored) == {"static_shapes": True, "answer_text": "original", "note": "released", "seed": 1}
    assert current_names(current_names(stored)) == current_names(stored)
    before = {  # the trial size of then
        "max_seq_length": 128,
        "train_batch_size": 32,
        "max_steps": 1_200,
        "packing": False,
        "initializer_range": 0.1,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "learning_rate": 1.5e-3,
        "warmup_ratio": 0.06,
        "bias_correction": True,
    }
    shape = {"num_hidden_layers": 4, "hidden_size": 96, "num_attention_heads": 2}
    preset = replace(
        SIZE_PRESETS["trial"], base="4-96-2", sizes={"4-96-2": shape}, pretraining=before, checkpoints=(240, 1_200)
    )
    runs = {run.id for run in plan_runs(["8"], preset, "corpus", str)}
    assert "pretraining-4-96-2-masks-0-0-100-981bc088" in runs
