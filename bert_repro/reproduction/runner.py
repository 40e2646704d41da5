"""Makes the runs of a study, one after another; any number of processes may work on the same study.

Processes that share a folder, on one machine or on several, share the work: each claims a run that is ready and that
nobody else has claimed. A run that was killed resumes from its newest checkpoint, in whichever process comes next.
`--list` makes no run and prints one command for each, for an array script (recipes/slurm/study.sbatch) or any
scheduler. `store` describes the folders.
"""

import dataclasses
import functools
import logging
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bert_repro.configs import FinetuningConfig, PretrainingConfig, StudyConfig
from bert_repro.errors import NonFiniteError, StopRequested, UserError, flag
from bert_repro.finetuning.data import load_splits
from bert_repro.finetuning.recipe import run_finetuning
from bert_repro.hub.corpora import corpus_folder
from bert_repro.models.loading import load_tokenizer
from bert_repro.pretraining.run import run_pretraining
from bert_repro.recipes import RECIPES
from bert_repro.reproduction.cost import cost_estimate
from bert_repro.reproduction.leaderboard import write_leaderboard_zips
from bert_repro.reproduction.size_presets import AX, TASK_RECIPES, find_size_preset
from bert_repro.reproduction.store import RunStore
from bert_repro.reproduction.suite import (
    DATA_DIRS,
    PlannedRun,
    corpus_fingerprint,
    given_models,
    plan_runs,
    task_fingerprint,
)
from bert_repro.results import read_results
from bert_repro.tasks import configured_task
from bert_repro.utils.claims import describe_claim, release_claim, take_claim
from bert_repro.utils.files import CHECKPOINTS, STEP, file_digest
from bert_repro.utils.process import record_outcome, world_size
from bert_repro.utils.tokenizer_losses import is_uncased

logger = logging.getLogger("bert_repro")

# A stop writes one checkpoint more, which must not push out one that Figure 5 starts from.
_ALL_CHECKPOINTS = 1_000_000
_POLL_SECONDS = 2.0
_SECONDS_BETWEEN_WAITING_LINES = 600.0


def run_study(config: StudyConfig) -> None:
    """Makes the runs behind some of the paper's tables, estimates their cost, or lists commands that make one run each.

    Raises:
        UserError: the size preset, the corpus or the data do not fit, a named run is not part of the study, or a
            launcher started several processes.
        NonFiniteError: a run's loss was not finite, and the runs that start from it could not be made; all others are
            done.
        StopRequested: a signal came; the current run has a checkpoint, and the same command resumes.
    """
    if world_size() != 1:
        raise UserError(
            f"A launcher started {world_size()} processes, but each run of a study is one process. Start run_study "
            f"without a launcher. To share the work, start it several times with the same {flag('output_dir')}."
        )
    runs = planned_runs(config)
    store = RunStore(config)
    if config.dry_run:
        remaining = [run for run in runs if not store.is_over(run)]
        sys.stdout.write(cost_estimate(remaining, len(runs)) + "\n")
    elif config.list:
        command = shlex.join(_command(config))
        sys.stdout.writelines(f"{command} --only {run.id}\n" for run in runs if not store.is_done(run))
    elif config.engine == "ray":
        run_on_ray(config, runs)
    else:
        work(config, runs)


def _command(config: StudyConfig) -> Iterator[str]:
    """Yields the words of a study's command, with a flag for each setting that is not its default."""
    yield from ("bert-repro", "run_study")
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        if value == item.default or item.name in ("list", "only", "engine"):
            continue
        yield f"--{item.name}"
        if isinstance(value, tuple):
            yield from map(str, value)
        else:
            yield str(value)


def planned_runs(config: StudyConfig) -> list[PlannedRun]:
    """Returns the runs of a study, those that others start from first.

    Raises:
        UserError: the size preset, the corpus, a finished model or a task's files cannot be read, or `only` or `tasks`
            names a run or a task that the study does not have.
    """
    models = given_models(config.model_name_or_path)
    corpus = "" if models else corpus_fingerprint(config.corpus)
    cased_corpus = None
    if config.cased_corpus:
        cased_corpus = corpus_fingerprint(config.cased_corpus)
        _require_cased(config.cased_corpus)
    triviaqa = file_digest(Path(config.triviaqa_file))[:16] if config.triviaqa_file else None

    @functools.cache
    def name_data(task: str) -> str:
        recipe = "run_glue" if task == AX else TASK_RECIPES[task]
        return task_fingerprint(task, getattr(config, DATA_DIRS[recipe]))

    preset = find_size_preset(config.size)
    if config.pretraining_seed != StudyConfig.pretraining_seed:
        preset = dataclasses.replace(preset, pretraining={**preset.pretraining, "seed": config.pretraining_seed})
    runs = plan_runs(
        config.table,
        preset,
        corpus,
        name_data,
        models=models,
        tasks=config.tasks,
        cased_corpus=cased_corpus,
        triviaqa=triviaqa,
    )
    for task in config.tasks:
        if not any(run.name.startswith(f"{task}-seed") for run in runs):
            raise UserError(
                f"{flag('tasks', task)}: none of the chosen tables ({', '.join(config.table)}) needs this task.",
                setting="tasks",
            )
    if not config.only:
        return runs
    return _only(config.only, runs)


def _require_cased(corpus: str) -> None:
    """Refuses an uncased corpus where a cased one is meant, so that Table 7 cannot be made with the wrong one."""
    if is_uncased(load_tokenizer(corpus_folder(corpus) / "tokenizer")):
        raise UserError(
            f"{flag('cased_corpus', corpus)} has an uncased vocabulary. Prepare the corpus with a cased tokenizer: "
            f"bert-repro train_tokenizer {flag('lowercase', False)}",
            setting="cased_corpus",
        )


def _only(names: Sequence[str], runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    """Returns the named runs and those that they start from."""
    by_id = {run.id: run for run in runs}
    wanted = set(names)
    for name in names:
        if name not in by_id:
            raise UserError(
                f"{flag('only', name)}: the study has no run of this name. {flag('list')} prints the names.",
                setting="only",
            )
        wanted.update(run.id for run in by_id[name].ancestors)
    return [run for run in runs if run.id in wanted]


def work(config: StudyConfig, runs: Sequence[PlannedRun]) -> None:
    """Makes every run that is not done, as soon as the run that it starts from is done.

    Raises:
        NonFiniteError: some runs could not be made; all others are done.
    """
    store = RunStore(config)
    last_line = None
    while pending := [run for run in runs if not store.is_over(run)]:
        # Make the first run that is ready and that nobody else makes, then look again.
        ready = filter(store.is_ready, pending)
        if any(_make(run, store, config) for run in ready):
            continue
        # Other processes have claimed all runs that are ready.
        if last_line is None or time.monotonic() - last_line > _SECONDS_BETWEEN_WAITING_LINES:
            last_line = time.monotonic()
            _log_waiting(store, pending)
        time.sleep(_POLL_SECONDS)

    for run in runs:
        if store.is_done(run):
            store.update_entries(run)
    write_leaderboard_zips(runs, store)
    failed = [run.id for run in runs if store.has_failed(run)]
    if failed:
        raise NonFiniteError(
            f"The loss of {', '.join(failed)} is not finite. Every run that does not start from them is done."
        )


def _log_waiting(store: RunStore, pending: Sequence[PlannedRun]) -> None:
    """Says which processes hold the runs, so that a claim of a machine that died can be removed."""
    logger.info("%d runs wait for other processes.", len(pending))
    for run in pending[:3]:
        claim = store.claim(run)
        if claim.exists():
            logger.info("%s", describe_claim(claim))


def _make(run: PlannedRun, store: RunStore, config: StudyConfig) -> bool:
    """Makes a run and returns True, unless it is over by now or another process has claimed it."""
    claim = store.claim(run)
    if not take_claim(claim):
        return False
    try:
        if store.is_over(run):
            return False
        _make_claimed(run, store, config)
        return True
    finally:
        release_claim(claim)


def _make_claimed(run: PlannedRun, store: RunStore, config: StudyConfig) -> None:
    """Makes a run, records its results, and removes weights that no other run needs."""
    folder = store.folder(run)
    folder.mkdir(parents=True, exist_ok=True)
    logger.info("run %s, from %s", run.id, run.start.name if run.start else "scratch")
    try:
        settings = _configuration(run, store, config)
        start_run(settings)
        store.keep(run, config.size, example_scores(settings))
    except NonFiniteError as error:
        # The study goes on with the runs that do not start from this one.
        record_outcome(str(folder), error.exit_code, str(error))
        logger.warning("%s: %s", run.id, error)
        return
    except StopRequested as error:
        record_outcome(str(folder), error.exit_code, str(error))
        raise
    except UserError as error:
        record_outcome(str(folder), error.exit_code, str(error))
        raise UserError(f"{run.id}: {error}", setting=error.setting) from error
    if not (run.is_pretraining or run.keeps_model):
        store.drop_weights(run)
    record_outcome(str(folder), 0, "done")


def start_run(config: PretrainingConfig | FinetuningConfig) -> None:
    """Runs the recipe that a configuration belongs to."""
    if isinstance(config, PretrainingConfig):
        run_pretraining(config)
    else:
        run_finetuning(config, configured_task(config))


def example_scores(config: PretrainingConfig | FinetuningConfig) -> dict[str, Any]:
    """Returns split -> metric -> the score of every example of a finished run, for paired statistics.

    Empty for pre-training and for a run that only trained or predicted.
    """
    if isinstance(config, PretrainingConfig):
        return {}
    folder = Path(config.output_dir)
    splits = [name for name, scored in read_results(folder).get("splits", {}).items() if scored.get("metrics")]
    if not splits:
        return {}
    task = configured_task(config).prepared(config, load_tokenizer(config.model_name_or_path))
    data = load_splits(task, config.data_dir, splits)
    return {split: task.example_scores(split, data[split], folder) for split in splits}


def _configuration(run: PlannedRun, store: RunStore, config: StudyConfig) -> Any:
    """Returns the configuration of a run: its settings and the folders of this study."""
    settings: dict[str, Any] = {
        **run.settings,
        "output_dir": str(store.folder(run)),
        "resume_from_checkpoint": "auto",
    }
    if run.start is None:
        settings["corpus"] = getattr(config, run.corpus)
        settings["save_steps"] = run.save_steps
        settings["save_total_limit"] = _ALL_CHECKPOINTS
        return RECIPES[run.recipe].config(**settings)

    model = _model_of(run.start, store)
    if run.step is not None:
        model = f"{model}/{CHECKPOINTS}/{STEP}{run.step}"
    settings["model_name_or_path"] = model
    if run.ensemble:
        settings["ensemble_with"] = tuple(_model_of(member, store) for member in run.ensemble)
    if run.search:
        settings |= _best_configuration(store.folder(run.search))

    if run.reads_triviaqa:
        settings["train_file"] = config.triviaqa_file
    else:
        settings["data_dir"] = getattr(config, DATA_DIRS[run.recipe])
    if "feature_based" in run.settings:
        # Several runs read the same hidden states.
        settings["feature_cache_dir"] = str(store.output_dir / "features")
    return RECIPES[run.recipe].config(**settings)


def _model_of(run: PlannedRun, store: RunStore) -> str:
    """Returns the folder of a run's model, or the folder or Hub id of the finished model that it stands for."""
    return run.model or str(store.folder(run))


def _best_configuration(folder: Path) -> dict[str, Any]:
    """Returns learning rate, batch and epochs of the best run of a sweep."""
    best = read_results(folder)["sweep"]["best"]
    if best is None:
        raise UserError(f"{folder}: no configuration of the search has a score.")
    return {
        "learning_rate": best["learning_rate"],
        "train_batch_size": best["batch"],
        "num_train_epochs": best["epochs"],
    }


# --- Ray --------------------------------------------------------------------------------------------------------------


def run_on_ray(config: StudyConfig, runs: Sequence[PlannedRun]) -> None:
    """Makes the runs on the cluster of RAY_ADDRESS or, without one, on a cluster of this machine.

    Each run is a task, and runs that need its model wait for it. A task requires one GPU if the cluster has any,
    otherwise one CPU. All nodes must see the folders of the study.

    Raises:
        UserError: Ray is not installed.
        NonFiniteError: some runs could not be made; all others are done.
    """
    try:
        import ray
    except ImportError as error:
        raise UserError(
            f"{flag('engine', 'ray')} requires Ray, which is not installed. Run: pip install ray", setting="engine"
        ) from error
    if not ray.is_initialized():
        ray.init(log_to_driver=False)
    resources: dict[str, Any] = {"num_gpus": 1} if ray.cluster_resources().get("GPU") else {"num_cpus": 1}
    task = ray.remote(**resources)(_ray_task)
    local = dataclasses.replace(config, engine="local")
    results: dict[str, Any] = {}
    for run in runs:
        results[run.id] = task.remote(work, local, run, *(results[needed.id] for needed in run.needed))
    for number, (name, reference) in enumerate(results.items(), start=1):
        ray.get(reference)
        logger.info("%d of %d: %s", number, len(results), name)
    # Nothing is left to make; this reports the runs that failed.
    work(local, runs)


def _ray_task(work: Callable[..., None], config: StudyConfig, run: PlannedRun, *before: object) -> None:  # noqa: ARG001
    """Makes one run. Ray passes `before` when the runs that it needs are over, so the task starts after them."""
    try:
        work(config, [*run.ancestors, run])
    except NonFiniteError:
        # The other runs continue.
        return
