"""Job scripts for SLURM: an array of the pre-training runs, then an array of all that start from them."""

import shlex
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from bert_repro.configs import StudyConfig
from bert_repro.studies.plan import Run

FOLDER = "slurm"
_NOT_PASSED_ON = {"only", "emit", "dry_run", "engine"}

_JOB = """#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --array=1-{count}
#SBATCH --output={folder}/{name}-%a.log
#SBATCH --signal=B:TERM@300
# Every run of the array is one of {name}.txt. A run that was stopped goes on when its job is submitted again.
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
# Submits both arrays; arguments go to sbatch, for example --partition=gpu --gres=gpu:1 --time=24:00:00
pretraining=$(sbatch --parsable "$@" {folder}/pretraining.sbatch) || exit 1
sbatch --dependency=afterok:"${{pretraining%%;*}}" "$@" {folder}/finetuning.sbatch
"""


def write_jobs(config: StudyConfig, runs: Sequence[Run]) -> Path:
    """Writes `slurm/` in the output folder: `submit.sh`, and for each array a script and the list of its runs.

    Args:
        config: what the study was told; each job repeats it for one run.
        runs: the plan.

    Returns:
        The script that submits all.
    """
    folder = Path(config.output_dir).resolve() / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    command = '"${PYTHON:-python}" ' + shlex.join(["recipes/run_study.py", *_flags(config)])
    for name, members in (
        ("pretraining", [run.id for run in runs if run.pretrains]),
        ("finetuning", [run.id for run in runs if not run.pretrains]),
    ):
        (folder / f"{name}.txt").write_text("".join(f"{member}\n" for member in members), encoding="utf-8")
        script = _JOB.format(name=name, count=len(members), folder=shlex.quote(str(folder)), command=command)
        (folder / f"{name}.sbatch").write_text(script, encoding="utf-8")
    submit = folder / "submit.sh"
    submit.write_text(_SUBMIT.format(folder=shlex.quote(str(folder))), encoding="utf-8")
    submit.chmod(0o755)
    return submit


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
