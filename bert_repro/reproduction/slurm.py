"""Job scripts for SLURM: an array of the pre-training runs, then an array of all that start from them.

The scripts run where they were written, so that relative folders mean what they meant there, with the very
installation that wrote them.
"""

import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from bert_repro.configs import StudyConfig
from bert_repro.reproduction.suite import Run

FOLDER = "slurm"
_NOT_PASSED_ON = {"only", "emit", "dry_run", "engine"}

_JOB = """#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --array=1-{count}
#SBATCH --output={folder}/{name}-%a.log
#SBATCH --signal=B:TERM@300
# Every run of the array is one of {name}.txt. A run that was stopped goes on when its job is submitted again.
cd {here} || exit 1
run=$(sed -n "${{SLURM_ARRAY_TASK_ID}}p" {folder}/{name}.txt)
# In the background, so that this shell hears the signal and hands it on: the run then writes a checkpoint.
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
_FIRST = 'first=$(sbatch --parsable "$@" {folder}/{name}.sbatch) || exit 1\n'
# Whatever became of the first array: a run whose start failed says so, and the others are made.
_SECOND = 'sbatch --dependency=afterany:"${{first%%;*}}" "$@" {folder}/{name}.sbatch\n'


def write_jobs(config: StudyConfig, runs: Sequence[Run]) -> Path:
    """Writes `slurm/` in the output folder: `submit.sh`, and for each array a script and the list of its runs.

    An array without runs is left out: SLURM takes none.

    Args:
        config: what the study was told; each job repeats it for one run.
        runs: the plan.

    Returns:
        The script that submits all.
    """
    folder = Path(config.output_dir).resolve() / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    members = {
        "pretraining": [run.id for run in runs if run.pretrains],
        "finetuning": [run.id for run in runs if not run.pretrains],
    }
    parts = {"folder": shlex.quote(str(folder)), "here": shlex.quote(str(Path.cwd()))}
    parts["command"] = shlex.join([_entry_point(), "run_study", *_flags(config)])
    orders = iter((_FIRST, _SECOND))
    script = _SUBMIT
    for name, listed in members.items():
        for path in (folder / f"{name}.txt", folder / f"{name}.sbatch"):
            path.unlink(missing_ok=True)
        if not listed:
            continue
        (folder / f"{name}.txt").write_text("".join(f"{member}\n" for member in listed), encoding="utf-8")
        job = _JOB.format(name=name, count=len(listed), **parts)
        (folder / f"{name}.sbatch").write_text(job, encoding="utf-8")
        script += next(orders).format(name=name, **parts)
    submit = folder / "submit.sh"
    submit.write_text(script, encoding="utf-8")
    submit.chmod(0o755)
    return submit


def _entry_point() -> str:
    """The command `bert-repro` of this installation."""
    beside = Path(sys.executable).with_name("bert-repro")
    return str(beside) if beside.exists() else shutil.which("bert-repro") or "bert-repro"


def _flags(config: StudyConfig) -> list[str]:
    """The settings that are not their defaults, as flags."""
    flags = []
    for item in fields(config):
        value = getattr(config, item.name)
        if item.name in _NOT_PASSED_ON or value == item.default:
            continue
        values = value if isinstance(value, tuple) else (value,)
        flags += [f"--{item.name}", *(str(one).lower() if isinstance(one, bool) else str(one) for one in values)]
    return flags
