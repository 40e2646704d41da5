"""Makes the runs of a study, one after another; any number of processes may work on the same study.

Processes that share a folder share the work: each takes a run that is ready and that nobody else has. A run that was
killed resumes from its newest checkpoint, in whichever process comes next. `--dry_run` makes no run and says the cost.
"""

import functools
import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bert_repro.configs import FinetuningConfig, PretrainingConfig, StudyConfig
from bert_repro.corpus.prepared_corpus import read_manifest
from bert_repro.errors import NonFiniteError, StopRequested, UserError
from bert_repro.finetuning.run import run_finetuning
from bert_repro.hub.corpora import corpus_folder
from bert_repro.presets import ORIGINAL_VOCAB_SIZES, tokens_including_padding
from bert_repro.pretraining.run import new_model_config, resolve_phases, run_pretraining
from bert_repro.reproduction import schedulers
from bert_repro.reproduction.run_store import RunStore, report_files_of
from bert_repro.reproduction.size_presets import RECIPE_CONFIGS, TASK_RECIPES, find_size_preset, size_preset_name
from bert_repro.reproduction.suite import (
    DATA_DIRS,
    TRIVIAQA,
    PlannedRun,
    corpus_fingerprint,
    file_fingerprint,
    plan_runs,
    task_fingerprint,
)
from bert_repro.tasks import get_task
from bert_repro.tasks.split_rows import SPLIT_ROWS
from bert_repro.training.performance import assumed_speed, flops_per_token, pretraining_flops_per_token
from bert_repro.utils.process import world_size

logger = logging.getLogger("bert_repro")

# Mean tokens of one sequence with the original uncased vocabulary.
_MEAN_TOKENS = {
    "mnli": 39, "qnli": 50, "mrpc": 53, "sst2": 13, "qqp": 30, "cola": 11, "stsb": 32, "rte": 70, "squad": 175,
    "squad_v2": 175, "swag": 40, "conll2003": 20,
}  # fmt: skip
# Labelled splits beside the training set; of MNLI's two dev sets the estimate counts one.
_SCORED_SPLITS = {"mnli": ("validation_matched",), "conll2003": ("validation", "test")}
_USUAL_MFU = 0.4

_NO_CORPUS = "without --corpus finished runs cannot be recognized, as a run's name depends on the corpus"

_ALL = 1_000_000  # checkpoints: a stop writes one more, which must not push out one that Figure 5 starts from
_POLL_SECONDS = 2.0


def run_study(config: StudyConfig) -> None:
    """Makes the runs behind some of the paper's tables, or lists them, or writes job scripts for them.

    Raises:
        UserError: the size preset, the corpus or the data do not fit, a named run is not part of the study, or a
            launcher started several processes.
        NonFiniteError: a run's loss was not finite, and what starts from it could not be made; all others are done.
        StopRequested: a signal came; the current run has a checkpoint, and the same command resumes.
    """
    refuse_launcher()
    runs = planned_runs(config)
    if config.dry_run:
        sys.stdout.write(describe(runs, RunStore(config.output_dir, config.records_dir), config))
    elif config.emit == "slurm":
        logger.info("submit the study with: %s", schedulers.write_slurm_jobs(config, runs))
    elif config.engine == "ray":
        schedulers.run_on_ray(config, runs, work)
    else:
        work(config, runs)


def refuse_launcher() -> None:
    """Refuses to be one of several processes of a launcher.

    They would take a run each, as any processes on one study do, and train these as if they were one run.

    Raises:
        UserError: it is.
    """
    processes = world_size()
    if processes > 1:
        raise UserError(
            f"run_study was started as {processes} processes by a launcher, but each run of a study is one process; "
            "start it with python, several times on the same --output_dir to share the work, or use --emit slurm or "
            "--engine ray"
        )


def planned_runs(config: StudyConfig) -> list[PlannedRun]:
    """Returns the runs that a configuration asks for.

    Raises:
        UserError: the size preset, the corpus or a task's files cannot be read, or `only` names a run that is not
            among them.
    """
    corpus = corpus_fingerprint(config.corpus) if config.corpus else "no corpus"

    @functools.cache
    def name_data(task: str) -> str:
        return task_fingerprint(task, _data_dir(config, TASK_RECIPES[task]))

    triviaqa = file_fingerprint(Path(config.triviaqa_file)) if config.triviaqa_file else None
    runs = plan_runs(config.table, find_size_preset(config.size_preset), corpus, name_data, triviaqa)
    if not config.only:
        return runs
    known = {run.id: run for run in runs}
    for name in config.only:
        if name not in known:
            raise UserError(f"--only {name}: no such run in this study; --dry_run lists them")
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
    dependent = (run for run in runs if any(needed.id == done.id for needed in run.dependencies))
    return any(not store.is_done(run) and not store.has_model_for(run, done) for run in dependent)


def _configuration(run: PlannedRun, store: RunStore, config: StudyConfig) -> PretrainingConfig | FinetuningConfig:
    resumes = store.can_resume(run)
    settings: dict[str, Any] = {**run.settings, "output_dir": str(store.folder(run))}
    if run.start is None:
        settings |= {"corpus": config.corpus, "save_steps": run.save_steps, "save_total_limit": _ALL}
    else:
        settings |= {"model_name_or_path": str(store.start_folder(run)), "data_dir": _data_dir(config, run.recipe)}
        if run.members:
            settings["ensemble_with"] = tuple(str(store.folder(member)) for member in run.members)
        if run.name.startswith(TRIVIAQA):
            settings |= {"train_file": config.triviaqa_file, "data_dir": None}
        if "feature_based" in run.settings:
            settings["feature_cache_dir"] = str(store.output_dir / "features")
    settings |= {"resume_from_checkpoint": "latest" if resumes else None, "overwrite_output_dir": not resumes}
    return RECIPE_CONFIGS[run.recipe](**settings)


def _data_dir(config: StudyConfig, recipe: str) -> str | None:
    folder: str | None = getattr(config, DATA_DIRS[recipe])
    return folder


def describe(runs: Sequence[PlannedRun], store: RunStore, config: StudyConfig) -> str:
    """Lists every run with its table entries, FLOPs and hours, and the sums.

    Fine-tuning is estimated from the size of the official data sets; hours are those of one device at 40% of
    what a large matrix product reaches on it.

    Args:
        runs: the planned runs.
        store: knows what is done.
        config: its prepared corpus, for the vocabulary (without one: the original uncased vocabulary's size, and what
            is done is not known), and the device that the hours are for.
    """
    corpus = config.corpus
    vocab_size = read_manifest(corpus_folder(corpus))["vocab_size"] if corpus else ORIGINAL_VOCAB_SIZES["uncased"]
    peak, origin = assumed_speed(config, str(runs[0].settings.get("mixed_precision", "no")))
    speed = _USUAL_MFU * peak
    rows = [("state", "FLOPs", "hours", "run", "fills")]
    costs = [run_flops(run, vocab_size) for run in runs]
    for run, flops in zip(runs, costs, strict=True):
        state = _state(run, store) if corpus else "?"
        fills = ", ".join(f"{entry.table}: {entry.row}, {entry.column}" for entry in run.entries)
        rows.append((state, f"{flops:.1e}", _hours(flops / speed), run.id, fills))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = [
        "  ".join([*(f"{text:<{width}}" for text, width in zip(row, widths, strict=False)), row[4]]) for row in rows
    ]
    remaining = sum(cost for run, cost in zip(runs, costs, strict=True) if not store.is_done(run))
    pretraining = sum(run.is_pretraining for run in runs)
    done = f"{sum(store.is_done(run) for run in runs)} done" if corpus else _NO_CORPUS
    lines += [
        "",
        f"{len(runs)} runs: {pretraining} pre-training, {len(runs) - pretraining} fine-tuning; {done}",
        f"{sum(costs):.1e} FLOPs, {remaining:.1e} of them to do: about {_hours(remaining / speed)} hours on one device "
        f"at {_USUAL_MFU:.0%} of {origin}",
    ]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def run_flops(run: PlannedRun, vocab_size: int) -> float:
    """Returns useful FLOPs of a run, evaluation at its end included; an estimate for fine-tuning."""
    if run.start is None:
        return _pretraining_flops(run, vocab_size)
    known: dict[str, Any] = {**run.settings, "model_name_or_path": "its pre-trained model"}
    config: Any = RECIPE_CONFIGS[run.recipe](**known)
    name = config.task_name
    rows = SPLIT_ROWS[name, "train"] if config.do_train else 0  # TriviaQA: about as many as SQuAD
    scored = sum(SPLIT_ROWS[name, split] for split in _SCORED_SPLITS.get(name, ("validation",)))
    rows = min(rows, config.max_train_samples or rows)
    scored = min(scored, config.max_eval_samples or scored) * (1 + len(run.members)) if config.do_eval else 0
    tokens = get_task(name).sequences_per_example * _MEAN_TOKENS[name]
    shape = _shape(run.pretraining, vocab_size)
    per_token = flops_per_token(shape.num_hidden_layers, shape.hidden_size, vocab_size, tokens, predicted_fraction=0.0)
    # The features of a frozen encoder are computed in one forward pass, a third of a training step.
    passes = 1 / 3 if "feature_based" in run.settings else config.num_train_epochs or 3.0
    learning_rates = len(config.sweep_learning_rates) or 1
    return learning_rates * per_token * tokens * (rows * passes + scored / 3)


def _pretraining_flops(run: PlannedRun, vocab_size: int) -> float:
    config: Any = RECIPE_CONFIGS[run.recipe](**run.settings)
    shape = _shape(run, vocab_size)
    return sum(
        tokens_including_padding([phase]) * pretraining_flops_per_token(shape, config, phase.max_seq_length)
        for phase in resolve_phases(config, 1)
    )


def _shape(pretraining: PlannedRun, vocab_size: int) -> Any:
    config: Any = RECIPE_CONFIGS[pretraining.recipe](**pretraining.settings)
    return new_model_config(config, vocab_size)


def _state(run: PlannedRun, store: RunStore) -> str:
    return "done" if store.is_done(run) else "failed" if store.has_failed(run) else "to do"


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.2f}" if seconds < 360_000 else f"{seconds / 3600:,.0f}"
