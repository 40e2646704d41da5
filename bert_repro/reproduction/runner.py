"""Makes the runs of a study, one after another; any number of processes may work on the same study.

    OUTPUT/runs/RUN/        the run's own output folder; of pre-training runs the model and its checkpoints stay
    OUTPUT/records/RUN/     results.json with the table entries that it fills, and of fine-tuning runs examples.json

A run is done when its results are kept, and its name holds a digest of its settings: what was made is found again, and
never taken for something else. Processes that share a folder share the work: each takes a run that is ready and that
nobody else has. A run that was killed resumes from its newest checkpoint, in whichever process comes next. `--list`
makes no run and prints one command for each, which an array script (recipes/slurm/study.sbatch) or any scheduler runs.
"""

import dataclasses
import functools
import json
import logging
import math
import shlex
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bert_repro.configs import FinetuningConfig, PretrainingConfig, StudyConfig, require
from bert_repro.configs.finetuning import SWEPT
from bert_repro.configs.presets import ORIGINAL_VOCAB_SIZES
from bert_repro.errors import NonFiniteError, StopRequested, UserError
from bert_repro.finetuning.data import load_splits
from bert_repro.finetuning.run import run_finetuning
from bert_repro.models.loading import load_config, load_tokenizer
from bert_repro.pretraining.model import new_model_config
from bert_repro.pretraining.run import resolve_phases, run_pretraining
from bert_repro.recipes import RECIPES
from bert_repro.reproduction.paper_results import EXAMPLES_FILE
from bert_repro.reproduction.size_presets import MEAN_TOKENS, TASK_RECIPES, find_size_preset
from bert_repro.reproduction.suite import (
    DATA_DIRS,
    PlannedRun,
    corpus_fingerprint,
    given_models,
    plan_runs,
    task_fingerprint,
)
from bert_repro.results import read_results, write_results
from bert_repro.tasks import TASKS, configured_task
from bert_repro.tasks.data import SPLIT_ROWS
from bert_repro.training.performance import estimated_times, flops_per_token, pretraining_flops
from bert_repro.utils.files import CHECKPOINTS, RESULTS, STEP, SWEEP, atomic_folder, lock, unlock, write_text
from bert_repro.utils.process import record_outcome, recorded_exit_code, world_size

logger = logging.getLogger("bert_repro")

_ALL = 1_000_000  # checkpoints: a stop writes one more, which must not push out one that Figure 5 starts from
_POLL_SECONDS = 2.0
_WEIGHTS = "*.safetensors*"
# Folders of one machine decide nothing and do not belong into results that are published.
_FOLDER_SETTINGS = ("output_dir", "corpus", "data_dir", "model_name_or_path", "feature_cache_dir")


def run_study(config: StudyConfig) -> None:
    """Makes the runs behind some of the paper's tables, estimates their cost, or lists commands that make one run each.

    Raises:
        UserError: the size preset, the corpus or the data do not fit, a named run is not part of the study, or a
            launcher started several processes.
        NonFiniteError: a run's loss was not finite, and what starts from it could not be made; all others are done.
        StopRequested: a signal came; the current run has a checkpoint, and the same command resumes.
    """
    fix = "start run_study without a launcher, several times on one --output_dir to share the work"
    require(world_size() == 1, f"each run of a study is one process, and a launcher started {world_size()}; {fix}")
    runs, store = planned_runs(config), RunStore(config)
    if config.dry_run:
        sys.stdout.write(cost_estimate([run for run in runs if not store.is_over(run)], len(runs)) + "\n")
    elif config.list:
        command = shlex.join(_command(config))
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
        UserError: the size preset, the corpus, a finished model or a task's files cannot be read, or `only` or `tasks`
            names what is not among them.
    """
    models = given_models(config.model_name_or_path)
    corpus = "" if models else corpus_fingerprint(config.corpus)

    @functools.cache
    def name_data(task: str) -> str:
        return task_fingerprint(task, getattr(config, DATA_DIRS[TASK_RECIPES[task]]))

    preset = find_size_preset(config.size)
    if config.pretraining_seed != StudyConfig.pretraining_seed:
        preset = dataclasses.replace(preset, pretraining={**preset.pretraining, "seed": config.pretraining_seed})
    runs = plan_runs(config.table, preset, corpus, name_data, models=models, tasks=config.tasks)
    for task in config.tasks:
        if not any(run.name.startswith(f"{task}-seed") for run in runs):
            raise UserError(f"--tasks {task}: none of the chosen tables ({', '.join(config.table)}) needs it")
    if not config.only:
        return runs
    known = {run.id: run for run in runs}
    for name in config.only:
        if name not in known:
            raise UserError(f"--only {name}: no such run in this study; --list lists them")
    wanted = {*config.only, *(run.id for name in config.only for run in known[name].ancestors)}
    return [run for run in runs if run.id in wanted]


def cost_estimate(runs: Sequence[PlannedRun], planned: int) -> str:
    """Estimates the runs that are not done, as text: examples, FLOPs, time here and on devices of makers.

    Fine-tuning is counted with the mean lengths of its tasks and the rows of the published sets, a frozen encoder as if
    it were trained.

    Args:
        runs: those that are not done.
        planned: how many runs the study has.
    """
    trained = scored = flops = 0.0
    for run in runs:
        config: Any = RECIPES[run.recipe].config(**{**run.settings, "model_name_or_path": "model"})
        start = run.pretraining
        new = new_model_config(PretrainingConfig(**start.settings), ORIGINAL_VOCAB_SIZES["uncased"])
        model = load_config(start.model) if start.model else new
        if isinstance(config, PretrainingConfig):
            flops += pretraining_flops(model, config, resolve_phases(config, 1))
            continue
        task = TASKS[config.task_name]
        configurations = config.num_restarts * math.prod(len(getattr(config, name)) or 1 for name in SWEPT)
        epochs = statistics.fmean(config.sweep_num_train_epochs or [config.num_train_epochs or task.paper_epochs])
        rows = configurations * min(SPLIT_ROWS[task.name, "train"], config.max_train_samples or math.inf) * epochs
        limit = config.max_eval_samples or math.inf
        predictions = configurations * sum(min(SPLIT_ROWS[task.name, split], limit) for split in task.eval_splits)
        trained, scored, length = trained + rows, scored + predictions, MEAN_TOKENS[task.name]
        per_token = flops_per_token(
            model.num_hidden_layers, model.hidden_size, model.vocab_size, length, predicted_fraction=0
        )
        flops += (rows + predictions / 3) * length * per_token  # a forward pass is a third
    precision = runs[0].settings.get("mixed_precision", "no") if runs else "no"
    lines = [
        f"runs      {len(runs):,} to make of {planned:,}",
        f"examples  at most {trained:,.0f} to fine-tune on, {scored:,.0f} to score",
        f"compute   {flops:.2e} FLOPs, estimated",
    ]
    return "\n".join(lines + estimated_times(flops, precision, 1))


def work(config: StudyConfig, runs: Sequence[PlannedRun]) -> None:
    """Makes every run that is not done, as soon as what it starts from is there.

    Raises:
        NonFiniteError: some runs could not be made; all others are done.
    """
    store, waits = RunStore(config), False
    while pending := [run for run in runs if not store.is_over(run)]:
        ready = (run for run in pending if run.start is None or store.is_done(run.start))
        if not any(_make(run, store, config) for run in ready):
            if not waits:
                logger.info("waiting for other processes: %s", ", ".join(run.id for run in pending[:3]))
            waits = True
            time.sleep(_POLL_SECONDS)
    for run in runs:
        if store.is_done(run):
            store.update_entries(run)
    failed = [run.id for run in runs if store.has_failed(run)]
    if failed:
        raise NonFiniteError(f"not finite: {', '.join(failed)}; every run that does not start from them is done")


def _make(run: PlannedRun, store: "RunStore", config: StudyConfig) -> bool:
    """Makes a run, unless it is over by now or another process works on it; says whether this process made it."""
    folder = store.folder(run)
    folder.mkdir(parents=True, exist_ok=True)
    if not lock(folder):  # until it is unlocked or the process ends
        return False
    if store.is_over(run):
        unlock(folder)
        return False
    logger.info("run %s, from %s", run.id, run.start.name if run.start else "scratch")
    try:
        settings = _configuration(run, store, config)
        start_run(settings)
        store.keep(run, config.size, example_scores(settings))
    except (NonFiniteError, StopRequested, UserError) as error:
        record_outcome(str(folder), error.exit_code, str(error))
        if isinstance(error, UserError):
            raise UserError(f"{run.id}: {error}") from error
        if isinstance(error, StopRequested):
            raise
        logger.warning("%s: %s", run.id, error)
        return True
    if not (run.is_pretraining or run.keeps_model):
        store.drop_weights(run)
    record_outcome(str(folder), 0, "done")
    return True


def start_run(config: PretrainingConfig | FinetuningConfig) -> None:
    """Runs the recipe that a configuration belongs to."""
    if isinstance(config, PretrainingConfig):
        run_pretraining(config)
    else:
        run_finetuning(config, configured_task(config))


def example_scores(config: PretrainingConfig | FinetuningConfig) -> dict[str, Any]:
    """Returns split -> metric -> the score of every example of a finished run, for paired statistics.

    Pre-training has none.
    """
    if isinstance(config, PretrainingConfig):
        return {}
    folder = Path(config.output_dir)
    splits = [name for name, scored in read_results(folder).get("splits", {}).items() if scored.get("metrics")]
    task = configured_task(config).prepared(config, load_tokenizer(config.model_name_or_path))
    data = load_splits(task, config.data_dir, splits)
    return {split: task.example_scores(split, data[split], folder) for split in splits}


def _configuration(run: PlannedRun, store: "RunStore", config: StudyConfig) -> Any:
    folder = store.folder(run)
    settings: dict[str, Any] = {**run.settings, "output_dir": str(folder), "resume_from_checkpoint": "auto"}
    if run.start is None:
        settings |= {"corpus": config.corpus, "save_steps": run.save_steps, "save_total_limit": _ALL}
    else:
        start = str(store.folder(run.start)) if run.start.model is None else run.start.model
        start = start if run.step is None else f"{start}/{CHECKPOINTS}/{STEP}{run.step}"
        settings |= {"model_name_or_path": start, "data_dir": getattr(config, DATA_DIRS[run.recipe])}
        if "feature_based" in run.settings:
            settings["feature_cache_dir"] = str(store.output_dir / "features")
    return RECIPES[run.recipe].config(**settings)


def _model(run: PlannedRun) -> dict[str, Any]:
    """Returns what results say about a finished model that a run starts from."""
    given = run.pretraining
    return {} if given.model is None else {"model": {"name": given.name, "content": given.data, "place": given.place}}


class RunStore:
    """The folders of a study: where its runs are made, which are done, and what is kept of them for the report.

    Args:
        config: names the folders.
    """

    def __init__(self, config: StudyConfig) -> None:
        self.output_dir = Path(config.output_dir)
        self.records = self.output_dir / "records"

    def folder(self, run: PlannedRun) -> Path:
        """Returns the run's output folder."""
        return self.output_dir / "runs" / run.id

    def is_done(self, run: PlannedRun) -> bool:
        """Whether the run's results are kept, or it is a finished model."""
        return run.model is not None or (self.records / run.id / RESULTS).exists()

    def has_failed(self, run: PlannedRun) -> bool:
        """Whether the run ended with a loss that is not finite."""
        return not self.is_done(run) and recorded_exit_code(self.folder(run)) == NonFiniteError.exit_code

    def is_over(self, run: PlannedRun) -> bool:
        """Whether a run is done, has failed, or cannot start because what it starts from has failed."""
        return self.is_done(run) or any(self.has_failed(needed) for needed in (run, *run.ancestors))

    def keep(self, run: PlannedRun, size_preset: str, examples: dict[str, Any]) -> None:
        """Keeps the results of a finished run: complete in one move, so that a kill leaves no half of them.

        Args:
            run: the run; its output folder holds results.json.
            size_preset: the size preset's name; of a file, results have its name without folder and ending.
            examples: the scores of its examples.
        """
        results = read_results(self.folder(run))
        results["study"] = {
            "run": run.id,
            "size_preset": Path(size_preset).stem,
            "table_entries": [vars(entry) for entry in run.entries],
            "pretraining": run.pretraining.id,
            "pretraining_seed": run.pretraining.settings.get("seed"),
            "start": run.start.id if run.start else None,
            "checkpoint_step": run.step,
            **_model(run),
        }
        results["settings"] |= {name: None for name in _FOLDER_SETTINGS if name in results["settings"]}
        results.pop("command", None)
        with atomic_folder(self.records / run.id) as folder:
            if examples:
                text = json.dumps(examples, separators=(",", ":"), allow_nan=False)
                write_text(folder / EXAMPLES_FILE, f"{text}\n")
            write_results(folder, results)

    def update_entries(self, run: PlannedRun) -> None:
        """Adds table entries to results that were kept for fewer tables, or with the models in another order.

        Those of a model that had another name are replaced.
        """
        results = read_results(self.records / run.id)
        study, model = results["study"], _model(run)
        renamed = study.get("model", {}).get("name") != model.get("model", {}).get("name")
        known = [] if renamed else study["table_entries"]
        now = {"table_entries": known + [vars(entry) for entry in run.entries if vars(entry) not in known]}
        if study != study | now | model:
            results["study"] = study | now | model
            write_results(self.records / run.id, results)

    def drop_weights(self, run: PlannedRun) -> None:
        """Removes the weights of a fine-tuned model and its checkpoints."""
        for folder in (self.folder(run), *self.folder(run).glob(f"{SWEEP}/*/*")):
            for path in folder.glob(_WEIGHTS):
                path.unlink()
        shutil.rmtree(self.folder(run) / CHECKPOINTS, ignore_errors=True)


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
