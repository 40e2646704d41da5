"""The training log: rows of metrics that any JSON reader takes."""

import json
import math
import time
from pathlib import Path

import pytest
from accelerate import Accelerator
from toy import ToyConfig

from bert_repro.training import training_log
from bert_repro.training.performance import training_totals
from bert_repro.utils.files import TRAIN_LOG


def test_a_gradient_that_is_not_finite_leaves_the_log_json(tmp_path: Path) -> None:
    config = ToyConfig(output_dir=str(tmp_path), logging_steps=2)
    given = {"loss": 1.0, "learning_rate": 0.1, "tokens": 5, "flops": 0}
    with training_log.TrainingLog(Accelerator(cpu=True), config, 4) as log:
        for step, norm in enumerate((math.inf, 3.0, math.nan, math.inf), start=1):
            log.step(step, {**given, "grad_norm": norm})
    text = (tmp_path / TRAIN_LOG).read_text()
    rows = [json.loads(line, parse_constant=pytest.fail) for line in text.splitlines()]
    assert [row["grad_norm"] for row in rows] == [3.0, None]


def test_mfu_is_of_real_tokens_and_of_the_peak_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_log, "measured_peak", lambda *_: 2e12)
    config = ToyConfig(output_dir=str(tmp_path), logging_steps=2)
    with training_log.TrainingLog(Accelerator(cpu=True), config, 2) as log:
        for step, tokens in enumerate((5, 9), start=1):
            log.step(step, {"loss": 1.0, "learning_rate": 0.1, "tokens": tokens, "flops": 100 * tokens})
    (row,) = training_log.read(tmp_path / TRAIN_LOG)
    assert (row["tokens"], row["flops"]) == (14, 1400)
    assert row["mfu"] == pytest.approx(row["tokens_per_second"] * 100 / 2e12)


def test_an_mfu_above_one_is_neither_logged_nor_part_of_the_totals(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(training_log, "measured_peak", lambda *_: 1.0)
    config = ToyConfig(output_dir=str(tmp_path), logging_steps=1)
    with (
        caplog.at_level("INFO", logger="bert_repro"),
        training_log.TrainingLog(Accelerator(cpu=True), config, 3) as log,
    ):
        for step in (1, 2, 3):
            log.step(step, {"loss": 1.0, "learning_rate": 0.1, "tokens": 5, "flops": 500})
    rows = training_log.read(tmp_path / TRAIN_LOG)
    assert len(rows) == 3 and not any("mfu" in row for row in rows)
    assert len(caplog.records) == 1 and "MFU" in caplog.text
    # The log of an older run may have such rows; they do not count.
    older = [{"step": 1, "tokens": 10, "seconds": 1.0, "tokens_per_second": 10.0, "mfu": 1.86}]
    assert "mfu" not in training_totals(older)
    later = {"step": 2, "tokens": 20, "seconds": 2.0, "tokens_per_second": 10.0, "mfu": 0.5}
    assert training_totals([*older, later])["mfu"] == 0.5


def test_an_evaluation_does_not_slow_training_down_in_the_log(tmp_path: Path) -> None:
    def evaluate() -> dict[str, float]:
        time.sleep(1)
        return {"f1": 0.5}

    given = {"loss": 1.0, "learning_rate": 0.1, "tokens": 1000, "flops": 0}
    with training_log.TrainingLog(
        Accelerator(cpu=True), ToyConfig(output_dir=str(tmp_path), logging_steps=1), 2
    ) as log:
        log.step(1, given)
        assert log.evaluation(1, evaluate) == {"f1": 0.5}
        log.step(2, given)
    _, scores, after = training_log.read(tmp_path / TRAIN_LOG)
    assert scores["eval_f1"] == 0.5 and after["tokens_per_second"] > 2000


@pytest.mark.parametrize("stop", range(1, 9))
def test_a_log_set_back_to_a_checkpoint_writes_what_it_would_have_written(tmp_path: Path, stop: int) -> None:
    def log(folder: str) -> training_log.TrainingLog:
        config = ToyConfig(output_dir=str(tmp_path / folder), logging_steps=3)
        return training_log.TrainingLog(Accelerator(cpu=True), config, 8)

    def step(log: training_log.TrainingLog, number: int) -> None:
        row = {"loss": 1 / number, "learning_rate": 0.1, "tokens": number, "flops": number}
        log.step(number, row | {"grad_norm": math.inf if number == 4 else 1.0})

    for folder in ("complete", "stopped"):
        (tmp_path / folder).mkdir()
        with log(folder) as first:
            first.begin(0, None)
            for number in range(1, 9):
                step(first, number)
                if number == stop:
                    state = json.loads(json.dumps(first.state(), allow_nan=False))
    with log("stopped") as again:
        again.begin(stop, state)
        for number in range(stop + 1, 9):
            step(again, number)
    rows = [training_log.read(tmp_path / folder / TRAIN_LOG) for folder in ("complete", "stopped")]
    for row in (*rows[0], *rows[1]):
        del row["seconds"], row["tokens_per_second"], row["mfu"]
    assert rows[0] == rows[1] and rows[0][-1]["tokens"] == rows[0][-1]["flops"] == 36
