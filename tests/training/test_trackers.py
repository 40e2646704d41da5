"""Trackers get settings, log and final results, without secrets, and end however the run ends."""

from pathlib import Path
from typing import ClassVar

import pytest
from accelerate import tracking
from accelerate.utils import LoggerType
from running import error_line, recipe

from bert_repro.configs import GlueConfig
from bert_repro.configs.training import TRACKERS
from bert_repro.training import trackers


class Recorder(tracking.GeneralTracker):
    """Stands for trackio."""

    name, requires_logging_directory = "trackio", False
    made: ClassVar[list["Recorder"]] = []
    fails = False

    def __init__(self, project: str, **options: object) -> None:
        super().__init__(_blank=True)
        self.project, self.options, self.config, self.rows, self.ended = project, options, {}, [], 0
        self.made.append(self)

    @property
    def tracker(self) -> None: ...

    def start(self) -> None: ...

    def store_init_configuration(self, values: dict) -> None:
        self.config = values

    def log(self, values: dict, step: int, **kwargs: object) -> None:
        if self.fails:
            raise ConnectionError("the server is gone")
        self.rows.append((step, values))

    def finish(self) -> None:
        self.ended += 1


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> type[Recorder]:
    monkeypatch.setitem(tracking.LOGGER_TYPE_TO_CLASS, "trackio", Recorder)
    monkeypatch.setattr(tracking, "_available_trackers", [LoggerType.TRACKIO])
    monkeypatch.setattr(Recorder, "made", [])
    monkeypatch.setattr(Recorder, "fails", False)
    return Recorder


@pytest.fixture
def run(world, untrained, tmp_path):
    def make(*flags: object) -> int:
        task = ["--task_name sst2 --data_dir", world.glue, "--model_name_or_path", untrained, "--report_to trackio"]
        steps = "--do_train --do_eval --max_steps 3 --train_batch_size 4"
        return recipe("run_glue", *task, steps, "--output_dir", tmp_path / "out", *flags)

    return make


def test_every_tracker_of_accelerate_is_known_and_gets_no_secret(monkeypatch):
    assert set(TRACKERS) == set(tracking.LOGGER_TYPE_TO_CLASS)
    secret = "hf_" + "x1Y" * 9
    monkeypatch.setenv("HF_TOKEN", secret)
    config = GlueConfig(model_name_or_path="m", task_name="sst2", do_eval=True, data_dir=f"/data/{secret}")
    assert secret not in str(trackers._settings(config))


def test_a_run_sends_settings_log_and_results(recorder, run, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_" + "x1Y" * 9)
    assert run("--run_name try-1 --project reviews --model_name_or_path runs/none") == 2
    assert recorder.made == [], "a run that cannot begin leaves no trace"
    assert run("--run_name try-1 --project reviews") == 0
    (sent,) = recorder.made
    assert (sent.project, sent.options["name"], sent.ended) == ("reviews", "try-1", 1)
    assert sent.config["max_steps"] == 3 and sent.config["task_name"] == "sst2"
    assert sent.config["model_name_or_path"] == "untrained", "folders of this machine are left out"
    assert all(isinstance(value, str | int | float) for value in sent.config.values())
    assert [step for step, row in sent.rows if "loss" in row] == [1, 2, 3]
    step, last = sent.rows[-1]
    assert step == 3 and {"final/validation/accuracy", "final/train/tokens"} <= last.keys()


def test_the_output_folder_names_a_run_and_a_stop_ends_it(recorder, run, monkeypatch):
    monkeypatch.setattr("bert_repro.training.trainer.Trainer._step", lambda *args, **kwargs: 1 / 0)
    assert run() == 1
    (sent,) = recorder.made
    assert (sent.options["name"], sent.ended) == ("out", 1)


def test_a_tracker_that_fails_does_not_end_training(recorder, run, monkeypatch, capsys):
    monkeypatch.setattr(recorder, "fails", True)
    assert run() == 0
    assert capsys.readouterr().err.count("the server is gone") == 1


def test_a_missing_package_is_named(run, tmp_path: Path, capsys, monkeypatch):
    monkeypatch.setattr(tracking, "_available_trackers", [])
    assert run() == 2
    line = error_line(capsys.readouterr().err)
    assert "--report_to trackio" in line and "pip install trackio" in line
