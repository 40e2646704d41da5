"""Job scripts that a scheduler can take, and a Ray cluster."""

import os
import shlex
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
import toy_study

from bert_repro.configs import StudyConfig
from bert_repro.reproduction import runner, schedulers
from bert_repro.reproduction.size_presets import SIZE_PRESETS
from bert_repro.reproduction.suite import PlannedRun, plan_runs, task_fingerprint


def test_slurm_scripts_name_every_run_once_and_what_each_waits_for(tmp_path: Path) -> None:
    config = StudyConfig(table=("8",), corpus="my corpus", output_dir=str(tmp_path), keep_models=True)
    runs = plan_runs(config.table, SIZE_PRESETS["trial"], "data", str)
    submit = schedulers.write_slurm_jobs(config, runs)
    folder = submit.parent
    listed = [line for name in ("pretraining", "finetuning") for line in (folder / f"{name}.txt").read_text().split()]
    assert listed == [run.id for run in runs]
    script = (folder / "finetuning.sbatch").read_text()
    assert "#SBATCH --array=1-54" in script
    assert "--table 8 --corpus 'my corpus'" in script
    assert "--keep_models true" in script
    command = shlex.quote(str(Path(sys.executable).with_name("bert-repro")))
    assert f"{command} run_study --table 8" in (folder / "pretraining.sbatch").read_text()
    for name in ("pretraining.sbatch", "finetuning.sbatch", "submit.sh"):
        subprocess.run(["bash", "-n", str(folder / name)], check=True)


@pytest.fixture
def emitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, list[PlannedRun]]:
    """Scripts of a study with relative folders, and its runs; the installed command is a toy."""
    command = tmp_path / "bert-repro"
    toy = f'exec {sys.executable} {toy_study.__file__} {tmp_path / "log"} "${{@:2}}"'
    command.write_text(f"#!/bin/bash\n[ $1 = run_study ] || exit 9\n{toy}\n")
    command.chmod(0o755)
    monkeypatch.setattr(schedulers, "_entry_point", lambda: str(command))
    (tmp_path / "my place").mkdir()
    monkeypatch.chdir(tmp_path / "my place")
    config = StudyConfig(table=("8",), corpus="toy", output_dir="study")
    plan = plan_runs(config.table, SIZE_PRESETS["trial"], "toy corpus", lambda task: task_fingerprint(task, None))
    runs = [plan[0], next(run for run in plan if run.start)]
    return schedulers.write_slurm_jobs(config, runs).parent, runs


@pytest.mark.slow
def test_the_jobs_make_the_study_when_each_runs_its_line(emitted, tmp_path, monkeypatch):
    """What SLURM does, by hand: each line of the two arrays, in the order of their dependency, wherever it is."""
    folder, runs = emitted
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for name in ("pretraining", "finetuning"):
        environment = {**os.environ, "SLURM_ARRAY_TASK_ID": "1"}
        subprocess.run(["bash", str(folder / f"{name}.sbatch")], env=environment, check=True, capture_output=True)
    begun = [line.split()[1] for line in (tmp_path / "log").read_text().splitlines() if line.startswith("begin")]
    assert begun == [run.id for run in runs]
    assert {path.name for path in (tmp_path / "my place/study/records").iterdir()} == {run.id for run in runs}


def submitted(folder: Path, tmp_path: Path) -> list[str]:
    """What submit.sh asks of SLURM."""
    sbatch = tmp_path / "sbatch"
    sbatch.write_text(f'#!/bin/bash\necho "$@" >> {tmp_path / "asked"}\necho "17;cluster"\n')
    sbatch.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run([str(folder / "submit.sh"), "--time=1:00"], env=environment, check=True, capture_output=True)
    return (tmp_path / "asked").read_text().splitlines()


def test_a_failed_pre_training_holds_no_other_row_back_and_an_empty_array_is_not_submitted(emitted, tmp_path) -> None:
    folder, runs = emitted
    first, second = submitted(folder, tmp_path)
    assert first == f"--parsable --time=1:00 {folder}/pretraining.sbatch"
    assert second == f"--parsable --dependency=afterany:17 --time=1:00 {folder}/finetuning.sbatch"
    config = StudyConfig(table=("8",), corpus="toy", output_dir="study")
    folder = schedulers.write_slurm_jobs(config, runs[:1]).parent
    (tmp_path / "asked").unlink()
    assert submitted(folder, tmp_path) == [f"--parsable --time=1:00 {folder}/pretraining.sbatch"]
    assert not list(folder.glob("finetuning*"))


@pytest.mark.slow
def test_on_a_ray_cluster_of_two_workers_each_run_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")
    log = tmp_path / "log"
    for name in ("start_run", "report_files_of", "corpus_fingerprint"):
        monkeypatch.setattr(runner, name, getattr(runner, name))
    toy_study.install(log)
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={
            "worker_process_setup_hook": lambda: toy_study.install(log, 0.1),
            "env_vars": {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])},
        },
    )
    try:
        runner.run_study(StudyConfig(table=("8",), corpus="toy", output_dir=str(tmp_path / "study"), engine="ray"))
    finally:
        ray.shutdown()
    lines = log.read_text().splitlines()
    begun = Counter(line.split()[1] for line in lines if line.startswith("begin"))
    assert len(begun) == 6 + 6 * 3 * 3
    assert set(begun.values()) == {1}
    assert any(one.startswith("begin") and two.startswith("begin") for one, two in pairwise(lines))
