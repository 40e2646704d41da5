"""Makes the runs of a study, one after another; any number of processes may work on the same study.

Processes that share a folder share the work: each takes a run that is ready and that nobody else has. A run that was
killed goes on from its newest checkpoint, by whoever comes next.
"""

import functools
import logging
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from bert_repro.configs import StudyConfig
from bert_repro.errors import NonFiniteError, StopRequested, UserError
from bert_repro.recipes import RECIPES
from bert_repro.reproduction.evidence import evidence
from bert_repro.reproduction.size_presets import TASK_RECIPES, find_scale, scale_name
from bert_repro.reproduction.slurm import write_jobs
from bert_repro.reproduction.store import Store
from bert_repro.reproduction.study_data import DATA_DIRS, corpus_fingerprint, task_fingerprint
from bert_repro.reproduction.suite import Run, expand

logger = logging.getLogger("bert_repro")

_ALL = 1_000_000  # checkpoints: a stop writes one more, which must not push out one that Figure 5 starts from
_PATIENCE = 2.0  # seconds between two looks at what other processes do


def run_study(config: StudyConfig) -> None:
    """Makes the runs behind some of the paper's tables, or lists them, or writes job scripts for them.

    Raises:
        UserError: the scale, the corpus or the data do not fit, a named run is not part of the study, or a launcher
            started several processes.
        NonFiniteError: a run's loss was not finite, and what starts from it could not be made; all others are done.
        StopRequested: a signal came; the run under way has a checkpoint, and the same command goes on.
    """
    refuse_launcher()
    runs = plan(config)
    if config.dry_run:
        from bert_repro.reproduction.cost import describe

        sys.stdout.write(describe(runs, Store(config.output_dir, config.records_dir), config.corpus))
    elif config.emit == "slurm":
        logger.info("submit the study with: %s", write_jobs(config, runs))
    elif config.engine == "ray":
        from bert_repro.reproduction.ray import submit

        submit(config, runs)
    else:
        Worker(config).work(runs)


def refuse_launcher() -> None:
    """Refuses to be one of several processes of a launcher.

    They would take a run each, as any processes on one study do, and train these as if they were one run.

    Raises:
        UserError: it is.
    """
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if processes > 1:
        raise UserError(
            f"run_study was started as {processes} processes by a launcher, but each run of a study is one process; "
            "start it with python, several times on the same --output_dir to share the work, or use --emit slurm or "
            "--engine ray"
        )


def plan(config: StudyConfig) -> list[Run]:
    """The runs that a configuration asks for.

    Raises:
        UserError: the scale, the corpus or a task's files cannot be read, or `only` names a run that is not among
            them.
    """
    corpus = corpus_fingerprint(config.corpus) if config.corpus else "no corpus"

    @functools.cache
    def data_of(task: str) -> str:
        return task_fingerprint(task, _data_dir(config, TASK_RECIPES[task]))

    runs = expand(config.table, find_scale(config.size_preset), corpus, data_of)
    if not config.only:
        return runs
    known = {run.id: run for run in runs}
    for name in config.only:
        if name not in known:
            raise UserError(f"--only {name}: no such run in this study; --dry_run lists them")
    wanted = {name for name in config.only} | {start.id for name in config.only if (start := known[name].start)}
    return [run for run in runs if run.id in wanted]


class Worker:
    """Makes runs of a study.

    Args:
        config: folders, and the name of the scale.
    """

    def __init__(self, config: StudyConfig) -> None:
        self.config, self.store = config, Store(config.output_dir, config.records_dir)

    def work(self, runs: Sequence[Run]) -> None:
        """Makes every run that is not done, as soon as what it starts from is there.

        Raises:
            NonFiniteError: some runs could not be made; all others are done.
        """
        told: set[str] = set()
        while pending := [run for run in runs if not self._is_settled(run, runs)]:
            ready = (run for run in pending if run.start is None or self.store.can_start(run))
            if not any(self.make(run, runs) for run in ready):
                waiting = ", ".join(run.id for run in pending[:3])
                if waiting not in told:
                    logger.info("waiting for other processes: %s%s", waiting, " ..." if len(pending) > 3 else "")
                told.add(waiting)
                time.sleep(_PATIENCE)
        for run in runs:
            if self.store.is_done(run):
                self.store.update_cells(run)
        failed = [run.id for run in runs if self.store.has_failed(run)]
        if failed:
            raise NonFiniteError(f"not finite: {', '.join(failed)}; every run that does not start from them is done")

    def make(self, run: Run, runs: Sequence[Run]) -> bool:
        """Makes a run, unless it is settled by now or another process is at it.

        Args:
            run: the run.
            runs: all of the study.

        Returns:
            Whether this process made it.
        """
        if not self.store.claim(run):
            return False
        if self._is_settled(run, runs):
            self.store.let_go(run)
            return False
        logger.info("run %s", run.id)
        try:
            config = self._configuration(run)
            RECIPES[run.recipe].load()(config)
            self.store.keep(run, scale_name(self.config.size_preset), evidence(config))
        except NonFiniteError as error:
            logger.warning("%s: %s", run.id, error)
            self.store.release(run, error.exit_code, str(error))
            return True
        except StopRequested as stop:
            self.store.release(run, stop.exit_code, str(stop))
            raise
        except UserError as error:
            self.store.release(run, error.exit_code, str(error))
            raise UserError(f"{run.id}: {error}") from error
        if not (run.pretrains or self.config.keep_models):
            self.store.drop_weights(run)
        self.store.release(run, 0, "done")
        return True

    def _is_settled(self, run: Run, runs: Sequence[Run]) -> bool:
        """Done and complete, failed, or without hope because what it starts from failed."""
        if run.pretrains and self.store.is_done(run):
            return not self._is_missed(run, runs)
        failed = self.store.has_failed(run) or (run.start is not None and self.store.has_failed(run.start))
        return failed or self.store.is_done(run)

    def _is_missed(self, pretraining: Run, runs: Sequence[Run]) -> bool:
        """Whether a run that is still to be made starts from a model or a checkpoint of it that is gone."""
        dependent = (run for run in runs if run.start is not None and run.start.id == pretraining.id)
        return any(not self.store.is_done(run) and not self.store.can_start(run) for run in dependent)

    def _configuration(self, run: Run) -> Any:
        begun = self.store.is_begun(run)
        folders: dict[str, Any] = {"output_dir": str(self.store.folder(run))}
        if run.start is None:
            folders |= {"corpus": self.config.corpus, "save_steps": run.save_steps, "save_total_limit": _ALL}
        else:
            folders["model_name_or_path"] = str(self.store.start_folder(run))
            folders["data_dir"] = _data_dir(self.config, run.recipe)
            if "feature_based" in run.settings:
                folders["feature_cache_dir"] = str(self.store.output_dir / "features")
        going_on = {"resume_from_checkpoint": "latest" if begun else None, "overwrite_output_dir": not begun}
        config_class = RECIPES[run.recipe].config
        return config_class(**{**run.settings, **folders, **going_on})


def _data_dir(config: StudyConfig, recipe: str) -> str | None:
    folder: str | None = getattr(config, DATA_DIRS[recipe])
    return folder
