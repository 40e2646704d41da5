"""Schedulers for the runs of a study: job arrays for SLURM, tasks of a Ray cluster."""

import dataclasses
import logging
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bert_repro.configs import StudyConfig
from bert_repro.errors import NonFiniteError, UserError
from bert_repro.reproduction.suite import PlannedRun
from bert_repro.utils.files import write_text

logger = logging.getLogger("bert_repro")

Work = Callable[[StudyConfig, Sequence[PlannedRun]], None]
"""Makes runs, those that others start from first; `runner.work`."""

SLURM_FOLDER = "slurm"
_NOT_PASSED_ON = {"only", "emit", "dry_run", "tflops", "device_name", "engine"}

_JOB = """#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --array=1-{count}
#SBATCH --output={folder}/{name}-%a.log
#SBATCH --signal=B:TERM@300
# Every run of the array is one of {name}.txt. A run that was stopped resumes when its job is submitted again.
cd {here} || exit 1
run=$(sed -n "${{SLURM_ARRAY_TASK_ID}}p" {folder}/{name}.txt)
# In the background, so that this shell receives the signal and passes it on: the run then writes a checkpoint.
{command} --only "$run" &
trap 'kill -TERM $!' TERM
wait $!
code=$?
if [ $code -gt 128 ]; then wait $!; code=$?; fi
exit $code
"""

_SUBMIT = """#!/bin/bash
# Submits all; arguments go to sbatch, for example --partition=gpu --gres=gpu:1 --time=24:00:00
"""
_FIRST = 'job=$(sbatch --parsable "$@" {folder}/{name}.sbatch) || exit 1\n'
# afterany: a run whose pre-training failed says so, and the others are made.
_NEXT = 'job=$(sbatch --parsable --dependency=afterany:"${{job%%;*}}" "$@" {folder}/{name}.sbatch) || exit 1\n'


def write_slurm_jobs(config: StudyConfig, runs: Sequence[PlannedRun]) -> Path:
    """Writes an array of the pre-training runs, and one for each step of runs that need others, to `slurm/`.

    The scripts run where they were written, so that relative folders mean what they meant there, with the very
    installation that wrote them. An array without runs is left out: SLURM takes none.

    Args:
        config: settings of the study; each job repeats them for one run.
        runs: the planned runs.

    Returns:
        The script that submits all.
    """
    folder = Path(config.output_dir).resolve() / SLURM_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    depths = range(max((run.depth for run in runs), default=0) + 1)
    arrays = {_array_name(depth): [run.id for run in runs if run.depth == depth] for depth in depths}
    parts = {"folder": shlex.quote(str(folder)), "here": shlex.quote(str(Path.cwd()))}
    parts["command"] = shlex.join([_entry_point(), "run_study", *_flags_of(config)])
    script, submission = _SUBMIT, _FIRST
    for path in (*folder.glob("*.txt"), *folder.glob("*.sbatch")):
        path.unlink()
    for name, ids in arrays.items():
        if not ids:
            continue
        write_text(folder / f"{name}.txt", "".join(f"{run_id}\n" for run_id in ids))
        write_text(folder / f"{name}.sbatch", _JOB.format(name=name, count=len(ids), **parts))
        script += submission.format(name=name, **parts)
        submission = _NEXT
    submit = folder / "submit.sh"
    write_text(submit, script)
    submit.chmod(0o755)
    return submit


def _array_name(depth: int) -> str:
    return "pretraining" if depth == 0 else "finetuning" if depth == 1 else f"finetuning-{depth}"


def _entry_point() -> str:
    """Returns the command `bert-repro` of this installation."""
    beside = Path(sys.executable).with_name("bert-repro")
    return str(beside) if beside.exists() else shutil.which("bert-repro") or "bert-repro"


def _flags_of(config: StudyConfig) -> list[str]:
    """Returns the settings that are not their defaults, as flags."""
    flags = []
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        if item.name in _NOT_PASSED_ON or value == item.default:
            continue
        values = value if isinstance(value, tuple) else (value,)
        flags += [f"--{item.name}", *(str(one).lower() if isinstance(one, bool) else str(one) for one in values)]
    return flags


def run_on_ray(config: StudyConfig, runs: Sequence[PlannedRun], work: Work) -> None:
    """Makes the runs on the cluster of RAY_ADDRESS or, without one, on a cluster of this machine.

    Each run is a task, and what needs its model waits for it. A task asks for one GPU where the cluster has any, else
    for one CPU. All nodes must see the folders of the study.

    Args:
        config: settings of the study.
        runs: the planned runs.
        work: makes a run in a process of the cluster.

    Raises:
        UserError: Ray is not installed.
        NonFiniteError: some runs could not be made; all others are done.
    """
    try:
        import ray
    except ImportError as error:
        raise UserError("--engine ray: Ray is not installed; run: pip install ray") from error
    if not ray.is_initialized():
        ray.init(log_to_driver=False)
    resources: dict[str, Any] = {"num_gpus": 1} if ray.cluster_resources().get("GPU") else {"num_cpus": 1}
    task = ray.remote(**resources)(_ray_task)
    local = dataclasses.replace(config, engine="local")
    results: dict[str, Any] = {}
    for run in runs:
        results[run.id] = task.remote(work, local, run, *(results[needed.id] for needed in run.dependencies))
    waiting = {reference: name for name, reference in results.items()}
    while waiting:
        ready, _ = ray.wait(list(waiting), num_returns=1)
        for reference in ready:
            ray.get(reference)
            logger.info("%d of %d: %s", len(results) - len(waiting) + 1, len(results), waiting.pop(reference))
    work(local, runs)  # nothing is left to make: it reports the runs that failed


def _ray_task(work: Work, config: StudyConfig, run: PlannedRun, *before: object) -> None:
    """Makes one run; what is `before` it is there once the runs that it needs are over."""
    try:
        work(config, [*run.ancestors, run])
    except NonFiniteError:
        return  # the other runs continue
