"""Makes the runs of a study, one after another; any number of processes may work on the same study.

Processes that share a folder share the work: each takes a run that is ready and that nobody else has. A run that was
killed resumes from its newest checkpoint, in whichever process comes next. `--list` makes no run and prints one command
for each, which an array script (recipes/slurm/study.sbatch) or any scheduler runs.
"""

import dataclasses
import functools
import logging
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from bert_repro.configs import FinetuningConfig, PretrainingConfig, StudyConfig
from bert_repro.errors import NonFiniteError, StopRequested, UserError
from bert_repro.finetuning.run import run_finetuning
from bert_repro.pretraining.run import run_pretraining
from bert_repro.reproduction.run_store import RunStore, report_files_of
from bert_repro.reproduction.size_presets import RECIPE_CONFIGS, TASK_RECIPES, find_size_preset, size_preset_name
from bert_repro.reproduction.suite import (
    DATA_DIRS,
    PlannedRun,
    corpus_fingerprint,
    plan_runs,
    task_fingerprint,
)
from bert_repro.utils.process import world_size

logger = logging.getLogger("bert_repro")

_ALL = 1_000_000  # checkpoints: a stop writes one more, which must not push out one that Figure 5 starts from
_POLL_SECONDS = 2.0


def run_study(config: StudyConfig) -> None:
    """Makes the runs behind some of the paper's tables, or lists commands that make one run each.

    Raises:
        UserError: the size preset, the corpus or the data do not fit, a named run is not part of the study, or a
            launcher started several processes.
        NonFiniteError: a run's loss was not finite, and what starts from it could not be made; all others are done.
        StopRequested: a signal came; the current run has a checkpoint, and the same command resumes.
    """
    if world_size() > 1:  # they would take a run each and train these as if they were one
        raise UserError(
            f"run_study was started as {world_size()} processes by a launcher, but each run of a study is one process; "
            "start it with python, several times on the same --output_dir to share the work"
        )
    runs = planned_runs(config)
    if config.list:
        store, command = RunStore(config.output_dir, config.records_dir), shlex.join(_command(config))
        sys.stdout.writelines(f"{command} --only {run.id}\n" for run in runs if not store.is_done(run))
    elif config.engine == "ray":
        run_on_ray(config, runs)
    else:
        work(config, runs)


def _command(config: StudyConfig) -> Iterator[str]:
    """Yields the command of a study, with the settings that are not their defaults as flags."""
    yield from ("bert-repro", "run_study")
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        if value != item.default and item.name not in ("list", "only", "engine"):
            yield f"--{item.name}"
            yield from map(str, value if isinstance(value, tuple) else (value,))


def planned_runs(config: StudyConfig) -> list[PlannedRun]:
    """Returns the runs that a configuration asks for.

    Raises:
        UserError: the size preset, the corpus or a task's files cannot be read, or `only` names a run that is not
            among them.
    """
    corpus = corpus_fingerprint(config.corpus)

    @functools.cache
    def name_data(task: str) -> str:
        return task_fingerprint(task, _data_dir(config, TASK_RECIPES[task]))

    runs = plan_runs(config.table, find_size_preset(config.size_preset), corpus, name_data)
    if not config.only:
        return runs
    known = {run.id: run for run in runs}
    for name in config.only:
        if name not in known:
            raise UserError(f"--only {name}: no such run in this study; --list lists them")
    wanted = {*config.only, *(run.id for name in config.only for run in known[name].ancestors)}
    return [run for run in runs if run.id in wanted]


def work(config: StudyConfig, runs: Sequence[PlannedRun]) -> None:
    """Makes every run that is not done, as soon as what it starts from is there.

    Raises:
        NonFiniteError: some runs could not be made; all others are done.
    """
    store = RunStore(config.output_dir, config.records_dir)
    announced: set[str] = set()
    while pending := [run for run in runs if not _is_over(run, runs, store)]:
        ready = (run for run in pending if store.can_start(run))
        if not any(_make(run, runs, store, config) for run in ready):
            waiting = ", ".join(run.id for run in pending[:3])
            if waiting not in announced:
                logger.info("waiting for other processes: %s%s", waiting, " ..." if len(pending) > 3 else "")
            announced.add(waiting)
            time.sleep(_POLL_SECONDS)
    for run in runs:
        if store.is_done(run):
            store.update_entries(run)
    failed = [run.id for run in runs if store.has_failed(run)]
    if failed:
        raise NonFiniteError(f"not finite: {', '.join(failed)}; every run that does not start from them is done")


def _make(run: PlannedRun, runs: Sequence[PlannedRun], store: RunStore, config: StudyConfig) -> bool:
    """Makes a run, unless it is over by now or another process works on it; says whether this process made it."""
    if not store.claim(run):
        return False
    if _is_over(run, runs, store):
        store.release(run)
        return False
    logger.info("run %s", run.id)
    try:
        settings = _configuration(run, store, config)
        start_run(settings)
        store.keep(run, size_preset_name(config.size_preset), report_files_of(settings))
    except NonFiniteError as error:
        logger.warning("%s: %s", run.id, error)
        store.finish(run, error.exit_code, str(error))
        return True
    except StopRequested as stop:
        store.finish(run, stop.exit_code, str(stop))
        raise
    except UserError as error:
        store.finish(run, error.exit_code, str(error))
        raise UserError(f"{run.id}: {error}") from error
    if not (run.is_pretraining or run.keeps_model or config.keep_models):
        store.drop_weights(run)
    store.finish(run, 0, "done")
    return True


def start_run(config: PretrainingConfig | FinetuningConfig) -> None:
    """Runs the recipe that a configuration belongs to."""
    if isinstance(config, PretrainingConfig):
        run_pretraining(config)
    else:
        run_finetuning(config)


def _is_over(run: PlannedRun, runs: Sequence[PlannedRun], store: RunStore) -> bool:
    """Whether a run is done and complete, has failed, or cannot start because what it starts from has failed."""
    if store.is_done(run):
        return not _is_missed(run, runs, store)
    return any(store.has_failed(needed) for needed in (run, *run.ancestors))


def _is_missed(done: PlannedRun, runs: Sequence[PlannedRun], store: RunStore) -> bool:
    """Whether a run that is still to be made needs a model or a checkpoint of it that is gone."""
    dependent = (run for run in runs if run.start is not None and run.start.id == done.id)
    return any(not store.is_done(run) and not store.can_start(run) for run in dependent)


def _configuration(run: PlannedRun, store: RunStore, config: StudyConfig) -> PretrainingConfig | FinetuningConfig:
    resumes = store.can_resume(run)
    settings: dict[str, Any] = {**run.settings, "output_dir": str(store.folder(run))}
    if run.start is None:
        settings |= {"corpus": config.corpus, "save_steps": run.save_steps, "save_total_limit": _ALL}
    else:
        settings |= {"model_name_or_path": str(store.start_folder(run)), "data_dir": _data_dir(config, run.recipe)}
        if "feature_based" in run.settings:
            settings["feature_cache_dir"] = str(store.output_dir / "features")
    settings |= {"resume_from_checkpoint": "latest" if resumes else None, "overwrite_output_dir": not resumes}
    return RECIPE_CONFIGS[run.recipe](**settings)


def _data_dir(config: StudyConfig, recipe: str) -> str | None:
    folder: str | None = getattr(config, DATA_DIRS[recipe])
    return folder


# ----------------------------------------------------------------------------------------------------------------- Ray


def run_on_ray(config: StudyConfig, runs: Sequence[PlannedRun]) -> None:
    """Makes the runs on the cluster of RAY_ADDRESS or, without one, on a cluster of this machine.

    Each run is a task, and what needs its model waits for it. A task asks for one GPU where the cluster has any, else
    for one CPU. All nodes must see the folders of the study.

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
        results[run.id] = task.remote(work, local, run, *(results[needed.id] for needed in run.ancestors[-1:]))
    for number, (name, reference) in enumerate(results.items(), start=1):
        ray.get(reference)
        logger.info("%d of %d: %s", number, len(results), name)
    work(local, runs)  # nothing is left to make: it reports the runs that failed


def _ray_task(work: Callable[..., None], config: StudyConfig, run: PlannedRun, *before: object) -> None:
    """Makes one run; what is `before` it is there once the runs that it needs are over."""
    try:
        work(config, [*run.ancestors, run])
    except NonFiniteError:
        return  # the other runs continue
