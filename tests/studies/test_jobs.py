"""Job scripts that a scheduler can take, and a Ray cluster."""

import os
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
import toy_study

from bert_repro.configs import StudyConfig
from bert_repro.studies import engine, slurm
from bert_repro.studies.data import task_fingerprint
from bert_repro.studies.plan import expand
from bert_repro.studies.scales import SCALES


def test_slurm_scripts_name_every_run_once_and_what_each_waits_for(tmp_path: Path) -> None:
    config = StudyConfig(table=("8",), corpus="my corpus", output_dir=str(tmp_path), keep_models=True)
    runs = expand(config.table, SCALES["trial"], "data", str)
    submit = slurm.write_jobs(config, runs)
    folder = submit.parent
    listed = [line for name in ("pretraining", "finetuning") for line in (folder / f"{name}.txt").read_text().split()]
    assert listed == [run.id for run in runs]
    script = (folder / "finetuning.sbatch").read_text()
    assert "#SBATCH --array=1-54" in script
    assert "--table 8 --corpus 'my corpus'" in script
    assert "--keep_models true" in script
    for name in ("pretraining.sbatch", "finetuning.sbatch", "submit.sh"):
        subprocess.run(["bash", "-n", str(folder / name)], check=True)


def test_the_jobs_make_the_study_when_each_runs_its_line(tmp_path: Path) -> None:
    """What SLURM does, by hand: each line of the two arrays, in the order of their dependency."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/bash\nexec {sys.executable} {toy_study.__file__} {tmp_path / "log"} "${{@:2}}"\n')
    python.chmod(0o755)
    config = StudyConfig(table=("8",), corpus="toy", output_dir=str(tmp_path / "study"))
    runs = expand(config.table, SCALES["trial"], "toy corpus", lambda task: task_fingerprint(task, None))[:8]
    folder = slurm.write_jobs(config, runs).parent
    for name, lines in (("pretraining", 6), ("finetuning", 2)):
        for line in range(1, lines + 1):
            environment = {**os.environ, "SLURM_ARRAY_TASK_ID": str(line), "PYTHON": str(python)}
            subprocess.run(["bash", str(folder / f"{name}.sbatch")], env=environment, check=True, capture_output=True)
    begun = [line.split()[1] for line in (tmp_path / "log").read_text().splitlines() if line.startswith("begin")]
    assert begun == [run.id for run in runs]


@pytest.mark.slow
def test_on_a_ray_cluster_of_two_workers_each_run_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")
    log = tmp_path / "log"
    for name in ("RECIPES", "evidence", "corpus_fingerprint"):
        monkeypatch.setattr(engine, name, getattr(engine, name))
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
        engine.run_study(StudyConfig(table=("8",), corpus="toy", output_dir=str(tmp_path / "study"), engine="ray"))
    finally:
        ray.shutdown()
    lines = log.read_text().splitlines()
    begun = Counter(line.split()[1] for line in lines if line.startswith("begin"))
    assert len(begun) == 6 + 6 * 3 * 3
    assert set(begun.values()) == {1}
    assert any(one.startswith("begin") and two.startswith("begin") for one, two in pairwise(lines))
