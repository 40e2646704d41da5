"""What --dry_run says, and the warnings that a run gives."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from running import TINY, recipe
from toy import ToyConfig

from bert_repro import BertReproConfig
from bert_repro.configs import DryRunConfig, Phase, PretrainingConfig
from bert_repro.corpus.prepared_corpus import PreparedCorpus
from bert_repro.corpus.tokenizer import load_tokenizer
from bert_repro.errors import UserError
from bert_repro.presets import PAPER_PHASES
from bert_repro.pretraining import cost_estimate
from bert_repro.pretraining.evaluation import HealthChecks, HeldOutEvaluation
from bert_repro.training import training_log
from bert_repro.training.performance import PUBLISHED_TFLOPS, assumed_speed, measured_peak
from bert_repro.utils.files import TRAIN_LOG


def test_the_cost_estimate_of_the_papers_phases() -> None:
    text = cost_estimate.describe(
        PretrainingConfig(), BertReproConfig(), PAPER_PHASES, 3_300_000_000, 790e12, 1, "a device"
    )
    assert "42,598,400,000" in text and "131,072,000,000" in text
    assert "14 hours to 28 hours, at 60% to 30% of a device" in text
    assert "disk      about 0.4 GB: the model and 0 checkpoint(s)" in text
    assert "2.38e+19" in text  # 29.5e9 tokens of 545 MFLOP and 13.1e9 of 588


def test_an_estimate_is_for_the_device_that_is_named() -> None:
    def named(**settings: Any) -> tuple[float, str]:
        return assumed_speed(PretrainingConfig(dry_run=True, **settings), settings.get("mixed_precision", "no"))

    assert set(PUBLISHED_TFLOPS) == set(DryRunConfig.__dataclass_fields__["device_name"].metadata["choices"])
    assert named(tflops=50.0) == (50e12, "the 50 TFLOP/s given")
    assert named(device_name="a100", mixed_precision="bf16") == (312e12, "the 312 TFLOP/s (16-bit) published for a100")
    assert named(device_name="a100")[0] == 19.5e12
    with pytest.raises(UserError, match="--tflops needs --dry_run"):
        PretrainingConfig(tflops=50.0)


def test_a_dry_run_prints_the_estimate_and_starts_nothing(world: Any, tmp_path: Path, capsys: Any) -> None:
    arguments = ["--corpus", world.corpus, "--output_dir", tmp_path / "run", "--max_steps 7 --dry_run"]
    assert recipe("run_pretraining", TINY, *arguments) == 0
    assert "7 steps of 16 sequences of 64 tokens" in capsys.readouterr().out
    assert not (tmp_path / "run" / "results.json").exists()


def test_measured_peak_is_a_speed() -> None:
    assert 1e8 < measured_peak(torch.device("cpu"), "no") < 1e14


def figures(**changes: float) -> dict[str, float]:
    return {"tokens": 1e9, "mlm_loss": 2.0, "nsp_accuracy": 0.9} | changes


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (figures(mlm_loss=7.0), "token frequency"),
        (figures(nsp_accuracy=1.0), "reveals the label"),
        (figures(nsp_accuracy=0.5), "still 0.5"),
        (figures(), None),
        (figures(mlm_loss=7.0, nsp_accuracy=0.5, tokens=1e5), None),
    ],
)
def test_warnings_say_what_is_wrong_once(
    row: dict[str, float], message: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    health = HealthChecks(PretrainingConfig())
    with caplog.at_level("WARNING", logger="bert_repro"):
        health.check_row(row)
        health.check_row(row)
    assert len(caplog.records) == (message is not None)
    assert message is None or message in caplog.text


def test_warnings_about_the_data(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", logger="bert_repro"):
        HealthChecks(PretrainingConfig()).check_data(not_next_share=0.5, unknown_share=0.0)
        HealthChecks(PretrainingConfig(nsp_sampling="original")).check_data(not_next_share=0.57, unknown_share=0.0)
        assert not caplog.records
        HealthChecks(PretrainingConfig()).check_data(not_next_share=0.57, unknown_share=0.05)
    assert len(caplog.records) == 2


@pytest.mark.parametrize(("most", "warns"), [(1024, True), (16, False)])
def test_a_small_held_out_set_is_warned_of(
    world: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, most: int, warns: bool
) -> None:
    config = PretrainingConfig(corpus=str(world.corpus), output_dir=str(tmp_path), max_steps=1, max_eval_sequences=most)
    corpus, tokenizer = PreparedCorpus.load(world.corpus), load_tokenizer(world.tokenizer)
    HeldOutEvaluation(config, Phase(64, 1, 8, per_device_batch=8), corpus, np.arange(4), tokenizer)
    assert ("held-out sequences: their metrics are uncertain" in caplog.text) == warns


def test_a_gradient_that_is_not_finite_leaves_the_log_json(tmp_path: Path) -> None:
    config = ToyConfig(output_dir=str(tmp_path), logging_steps=2)
    given = {"loss": 1.0, "learning_rate": 0.1, "tokens": 5, "flops": 0}
    with training_log.TrainingLog(Accelerator(cpu=True), config, 0, 4) as log:
        for step, norm in enumerate((math.inf, 3.0, math.nan, math.inf), start=1):
            log.step(step, {**given, "grad_norm": norm})
    text = (tmp_path / TRAIN_LOG).read_text()
    rows = [json.loads(line, parse_constant=pytest.fail) for line in text.splitlines()]
    assert [row["grad_norm"] for row in rows] == [3.0, None]
