"""Each run of a study once, whatever kills it, and the same records in the end. The runs are toys."""

import json
import multiprocessing
import os
import shlex
import shutil
import sys
import time
import zipfile
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import toy_study
from running import recipe

from bert_repro import cli
from bert_repro.configs import ReportConfig, SquadConfig, StudyConfig
from bert_repro.errors import NonFiniteError
from bert_repro.reproduction import runner
from bert_repro.reproduction.report import write_report
from bert_repro.tasks.glue_leaderboard import FILES

FLAGS = ["--table", "8", "--corpus", "toy"]
RUNS = 6 + 6 * 3 * 3  # mixes of masks; each with three tasks and three seeds


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name in ("start_run", "example_scores", "corpus_fingerprint"):
        monkeypatch.setattr(runner, name, getattr(runner, name))
    toy_study.install(tmp_path / "log")
    return tmp_path / "log"


def study(*flags: object) -> int:
    return recipe("run_study", *flags)


def begun(log: Path) -> Counter[str]:
    return Counter(line.split()[1] for line in log.read_text().splitlines() if line.startswith("begin"))


def records(folder: Path) -> dict[str, Any]:
    return {path.parent.name: json.loads(path.read_text()) for path in folder.glob("*/results.json")}


def test_every_run_is_recorded_once_without_machine_paths_and_only_pre_trained_weights_stay(log, tmp_path):
    assert study(*FLAGS, "--output_dir", tmp_path / "study") == 0
    assert len(begun(log)) == RUNS
    assert set(begun(log).values()) == {1}
    found = records(tmp_path / "study" / "records")
    assert set(found) == set(begun(log))
    assert str(tmp_path) not in json.dumps(found)
    study_of = found[next(name for name in found if name.startswith("features"))]["study"]
    assert study_of["size_preset"] == "trial"
    assert study_of["pretraining"] in found
    assert [entry["column"] for entry in study_of["table_entries"]] == ["NER feature-based"]
    kept = {path.parent.name for path in (tmp_path / "study" / "runs").glob("*/model.safetensors")}
    assert kept == {name for name in begun(log) if name.startswith("pretraining")}


def test_a_second_command_makes_nothing_and_a_wider_one_only_what_is_new(log: Path, tmp_path: Path) -> None:
    where = ("--output_dir", tmp_path / "study")
    assert study(*FLAGS, *where) == 0
    assert study(*FLAGS, *where) == 0
    assert begun(log).total() == RUNS
    assert study("--table", "6", "8", "--corpus", "toy", *where) == 0
    assert set(begun(log).values()) == {1}
    found = records(tmp_path / "study" / "records").values()
    assert {"6", "8"} in [{entry["table"] for entry in record["study"]["table_entries"]} for record in found]


def test_another_seed_of_pretraining_stands_beside_the_first(log: Path, tmp_path: Path) -> None:
    where = ("--table 6 --corpus toy --output_dir", tmp_path / "study")
    assert study(*where) == study(*where, "--pretraining_seed 43") == 0
    by_entry = Counter(
        (entry["row"], entry["column"], record["study"]["pretraining_seed"] or 42)
        for record in records(tmp_path / "study" / "records").values()
        for entry in record["study"]["table_entries"]
    )
    for seed in (42, 43):  # a perplexity, and three seeds of a task
        assert {count for (*_, of), count in by_entry.items() if of == seed} == {1, 3}
    write_report(ReportConfig(runs_dir=str(tmp_path / "study" / "records"), report_dir=str(tmp_path / "report")))
    text = (tmp_path / "report" / "report.md").read_text()
    assert "6 scores have two or more pre-training seeds: their means lie " in text
    assert "of a single pre-training" not in text


def test_a_loss_that_is_not_finite_costs_its_own_rows_only(log, tmp_path, monkeypatch):
    run = toy_study.ToyRun.__call__

    def fails(self: Any, config: Any) -> None:
        if "mask-100" in config.output_dir:
            raise NonFiniteError("loss nan")
        run(self, config)

    monkeypatch.setattr(toy_study.ToyRun, "__call__", fails)
    assert study(*FLAGS, "--output_dir", tmp_path / "study") == 3
    assert len(records(tmp_path / "study" / "records")) == RUNS - 10


def test_finished_models_are_scored_without_pre_training_and_the_first_is_the_baseline(
    log, pretrained, untrained, tmp_path, capsys
):
    one, two = pretrained, untrained
    flags = ("--size_preset", "evaluation", "--tasks", "sst2", "squad", "--output_dir", tmp_path / "study")
    assert study("--model_name_or_path", one, two, *flags, "--dry_run") == 0
    estimate = capsys.readouterr().out
    # 3 seeds of 2 models: 3 epochs of 2,000 rows, and 3 of 200; 3 models of an ensemble score 500 rows once more.
    assert "runs      14 to make of 14\nexamples  at most 39,600 to fine-tune on, 11,232 to score" in estimate
    # 13 tokens a row of SST-2, 161 an input of SQuAD; a row that is scored costs a third of one that is trained on.
    assert "compute   2.41e+11 FLOPs" in estimate
    assert not (tmp_path / "study").exists() and "estimated" in estimate.splitlines()[-1]
    assert study("--model_name_or_path", one, two, *flags) == 0
    found = records(tmp_path / "study" / "records")
    assert len(begun(log)) == len(found) == 14 and str(tmp_path) not in json.dumps(found)
    assert study("--model_name_or_path", two, one, *flags) == 0
    assert len(begun(log)) == 14
    assert study("--model_name_or_path", one, *flags, "--table", "2", "--tasks", "sst2") == 2  # no run has it
    found = records(tmp_path / "study" / "records")
    places = {record["study"]["model"]["name"]: record["study"]["model"]["place"] for record in found.values()}
    assert places == {"untrained": 0, "pretrained": 1}
    shutil.copytree(two, tmp_path / "renamed")
    assert study("--model_name_or_path", tmp_path / "renamed", *flags) == 0
    assert len(begun(log)) == 14
    found = records(tmp_path / "study" / "records")
    rows = {entry["row"] for record in found.values() for entry in record["study"]["table_entries"]}
    assert rows == {"renamed", "pretrained", "renamed: ensemble", "pretrained: ensemble"}


def test_a_run_that_scored_nothing_has_no_scores_of_examples(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text('{"task": "squad", "seed": 1, "settings": {}, "splits": {}}')
    config = SquadConfig(
        model_name_or_path="model", do_train=True, train_file="triviaqa.json", output_dir=str(tmp_path)
    )
    assert runner.example_scores(config) == {}


TABLE_1 = """
description: a toy that predicts the test sets
seeds: [1, 2]
tasks: {mnli: {}, qqp: {}, qnli: {}, sst2: {}, cola: {}, stsb: {}, mrpc: {}, rte: {}, rte_after_mnli: {}}
table_1: {do_predict: true}
"""


def test_table_1_ends_in_the_leaderboards_zip_with_the_runs_that_are_best_on_dev(log, untrained, tmp_path, caplog):
    preset = tmp_path / "leaderboard.yaml"
    preset.write_text(TABLE_1)
    flags = ("--table", "1", "--size_preset", preset, "--model_name_or_path", untrained, "--output_dir", tmp_path)
    assert study(*flags, "--tasks", "mnli", "rte") == 0
    assert "untrained" in caplog.text and not (tmp_path / "leaderboard").exists()
    assert study(*flags) == 0
    # The predictions of the worse run of each task do not count, so removing them changes nothing.
    found = records(tmp_path / "records")
    for task in ("mnli", "sst2"):
        runs = {name: found[name] for name in found if name.startswith(f"{task}-seed")}
        worse = min(runs, key=lambda name: runs[name]["metrics"]["accuracy"])
        for path in (tmp_path / "runs" / worse).glob("predictions.*"):
            path.unlink()
    (tmp_path / "leaderboard" / "untrained.zip").unlink()
    assert study(*flags) == 0
    with zipfile.ZipFile(tmp_path / "leaderboard" / "untrained.zip") as archive:
        assert set(archive.namelist()) == set(FILES)


def test_tasks_that_differ_in_precision_run_in_one_process(world, untrained, tmp_path):
    rows = "train_batch_size: 8, max_train_samples: 8, num_train_epochs: 1, max_seq_length: 16"
    preset = tmp_path / "mixed.yaml"
    preset.write_text(f"description: two precisions\nseeds: [1]\ntasks: {{sst2: {{{rows}, mixed_precision: bf16}}}}\n")
    where = ("--glue_dir", world.glue, "--output_dir", tmp_path / "study", "--model_name_or_path", untrained)
    assert study("--size_preset", preset, *where) == 0
    preset.write_text(preset.read_text().replace(", mixed_precision: bf16", ""))
    assert study("--size_preset", preset, *where) == 0
    found = records(tmp_path / "study" / "records").values()
    assert {record["settings"]["mixed_precision"] for record in found} == {"bf16", "no"}
    assert {(record["study"]["model"]["name"], record["study"]["size_preset"]) for record in found} == {
        ("untrained", "mixed")
    }


def test_a_list_has_one_command_for_each_run_that_is_not_done_and_makes_none(log, tmp_path, capsys):
    flags = (*FLAGS, "--output_dir", tmp_path / "my study")
    run_study(*flags, "--list")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == RUNS and not log.exists() and not (tmp_path / "my study" / "status.json").exists()
    assert lines[0].startswith(f"bert-repro run_study {' '.join(FLAGS)} --output_dir '{tmp_path}/my study' --only ")
    for line in (lines[0], lines[-1]):  # pre-training comes first
        run_study(*shlex.split(line)[2:])
    capsys.readouterr()
    run_study(*flags, "--list")
    assert len(begun(log)) == 3 and len(capsys.readouterr().out.splitlines()) == RUNS - 3  # one began with its start
    assert study(*FLAGS, "--output_dir", tmp_path / "study", "--only", "mnli") == 2


def run_study(*words: object) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main("run_study", argv=[*map(str, words)])
    assert not ended.value.code


def run_toys(folder: Path, seconds: float) -> None:
    toy_study.install(folder / "log", seconds)
    cli.main("run_study", argv=[*FLAGS, "--output_dir", str(folder / "study")])


def start(folder: Path, seconds: float) -> Any:
    """A study in a process of its own, with the libraries, which take seconds to import."""
    process = multiprocessing.get_context("fork").Process(target=run_toys, args=(folder, seconds))
    process.start()
    return process


@pytest.mark.slow
def test_killed_three_times_it_ends_as_if_it_had_not_been(log: Path, tmp_path: Path) -> None:
    assert study(*FLAGS, "--output_dir", tmp_path / "complete" / "study") == 0
    folder = tmp_path / "killed"
    folder.mkdir()
    for lines in (9, 40, 75, None):
        process = start(folder, 0.02)
        if lines:
            while not (folder / "log").exists() or len((folder / "log").read_text().splitlines()) < lines:
                assert process.is_alive()
                time.sleep(0.01)
            process.kill()
        process.join()
    assert process.exitcode == 0
    complete, killed = (records(tmp_path / name / "study" / "records") for name in ("complete", "killed"))
    assert killed == complete
    assert not list((folder / "study" / "records").glob(".*"))


def assert_shared(log: Path) -> None:
    """Each run was made once, and some run began before the one in front of it had ended."""
    assert len(begun(log)) == RUNS and set(begun(log).values()) == {1}
    starts = [line.startswith("begin") for line in log.read_text().splitlines()]
    assert any(one and two for one, two in pairwise(starts))


def test_two_processes_on_one_study_share_it(tmp_path: Path) -> None:
    processes = [start(tmp_path, 0.05) for _ in range(2)]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert_shared(tmp_path / "log")


@pytest.mark.slow
def test_on_a_ray_cluster_of_two_workers_each_run_is_made_once(log: Path, tmp_path: Path) -> None:
    ray = pytest.importorskip("ray")
    path = os.pathsep.join([str(Path(toy_study.__file__).parent), *filter(None, sys.path)])
    setup = {"worker_process_setup_hook": lambda: toy_study.install(log, 0.1), "env_vars": {"PYTHONPATH": path}}
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env=setup)
    try:
        runner.run_study(StudyConfig(table=("8",), corpus="toy", output_dir=str(tmp_path / "study"), engine="ray"))
    finally:
        ray.shutdown()
    assert_shared(log)
