"""Warnings about a pre-training: on the plateau of token frequencies, at chance, with data that does not fit."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import TINY, recipe

from bert_repro.configs import PretrainingConfig
from bert_repro.pretraining.health import HealthChecks
from bert_repro.pretraining.objectives import objective_of, token_entropy

CURVES = Path(__file__).parents[2] / "docs" / "reference_curves"
# Entropy of the 8,192 word pieces of the corpus of both reference curves, Wikipedia and novels.
ENTROPY = 6.947
LEARNED = {"tokens": 1e9, "mlm_loss": 2.0, "nsp_accuracy": 0.9}


def warnings(caplog: pytest.LogCaptureFixture, *rows: dict[str, float], **settings: Any) -> list[str]:
    """The warnings that rows of a log lead to."""
    health = HealthChecks(PretrainingConfig(**settings), ENTROPY)
    caplog.clear()
    with caplog.at_level("WARNING", logger="bert_repro"):
        for row in rows:
            health.check_row(row)
    return [record.getMessage() for record in caplog.records]


def training_rows(name: str) -> list[dict[str, float]]:
    rows = [json.loads(line) for line in (CURVES / name).read_text().splitlines()]
    return [row for row in rows if "mlm_loss" in row]


def test_our_own_run_that_stayed_on_the_plateau_is_warned_of_and_the_one_that_left_it_is_not(caplog):
    plateau = training_rows("mini-4-256-two-phases.jsonl")
    late = [row for row in plateau if row["tokens"] > 5e6]
    assert max(row["mlm_loss"] for row in late) < 6.5, "a fixed threshold of 6.5 would miss it"
    (warning,) = warnings(caplog, *plateau)
    assert "6.39" in warning and "--learning_rate" in warning
    assert not warnings(caplog, *training_rows("bert-repro-mini.jsonl"))


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({}, 0),
        ({"mlm_loss": 6.3}, 1),
        ({"mlm_loss": 6.3, "tokens": 1e5}, 0),
        ({"mlm_loss": 6.0}, 0),
        ({"nsp_accuracy": 0.5}, 1),
        ({"nsp_accuracy": 0.5, "tokens": 2e7}, 0),
        ({"mlm_loss": 6.3, "nsp_accuracy": 0.5}, 2),
    ],
)
def test_each_warning_is_shown_once_and_not_before_a_run_can_have_learned(caplog, changes, count):
    assert len(warnings(caplog, *[LEARNED | changes] * 3)) == count


def test_a_short_run_is_judged_at_its_end(caplog):
    health = HealthChecks(PretrainingConfig(), ENTROPY)
    with caplog.at_level("WARNING", logger="bert_repro"):
        health.check_end({"mlm_loss": 4.0, "nsp_accuracy": 0.7}, tokens=1e5)
        assert not caplog.records
        health.check_end({"mlm_loss": 6.8, "nsp_accuracy": 0.5}, tokens=1e5)
    assert len(caplog.records) == 2


def test_every_run_is_judged_at_its_end(world, tmp_path, caplog):
    arguments = [TINY, "--corpus", world.corpus, "--output_dir", tmp_path / "run", "--max_steps 2"]
    with caplog.at_level("WARNING", logger="bert_repro"):
        assert recipe("run_pretraining", *arguments) == 0
    assert "token frequency" in caplog.text


def test_a_left_to_right_run_is_judged_by_its_own_loss(caplog):
    settings = {"left_to_right": True, "next_sentence_prediction": False}
    assert warnings(caplog, {"tokens": 1e9, "loss": 6.8}, **settings)
    assert not warnings(caplog, {"tokens": 1e9, "loss": 5.0}, **settings)


def test_the_loss_of_guessing_is_that_of_the_best_guesser() -> None:
    counts = np.array([0, 600, 300, 100])
    entropy = token_entropy(counts)
    shares = counts[1:] / 1000
    assert entropy == pytest.approx(-(shares * np.log(shares)).sum())
    # [MASK] in 80%, the token itself or a random one in 10% each: half of the tokens that are read are right.
    expected = 0.8 * entropy + 0.1 * math.log(2) + 0.1 * (entropy + math.log(2))
    config = PretrainingConfig()
    assert objective_of(config).loss_of_guessing(entropy) == pytest.approx(min(expected, entropy))
    all_masked = PretrainingConfig(mask_replace_prob=1.0, random_replace_prob=0.0)
    assert objective_of(all_masked).loss_of_guessing(entropy) == pytest.approx(entropy)
    none_random = PretrainingConfig(mask_replace_prob=0.8, random_replace_prob=0.0)
    assert objective_of(none_random).loss_of_guessing(entropy) == pytest.approx(0.8 * entropy)


def test_warnings_about_the_data(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", logger="bert_repro"):
        HealthChecks(PretrainingConfig(), ENTROPY).check_data(not_next_share=0.5, unknown_share=0.0)
        original = HealthChecks(PretrainingConfig(nsp_sampling="original"), ENTROPY)
        original.check_data(not_next_share=0.57, unknown_share=0.0)
        assert not caplog.records
        HealthChecks(PretrainingConfig(), ENTROPY).check_data(not_next_share=0.57, unknown_share=0.05)
    assert len(caplog.records) == 2
