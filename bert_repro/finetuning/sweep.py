"""A sweep: a grid of learning rates, batch sizes and epochs, each configuration with random restarts (paper 4.1, A.3).

Every run of a sweep is an ordinary fine-tuning run in its own folder, named by what the sweep varies:

    OUTPUT/sweep/lr5e-05-batch32-epochs3/seed42/   results.json, predictions, log; for the best run also the model
    OUTPUT/sweep/sweep.json                        the settings that all runs share
    OUTPUT/                                        the best model, published like that of a single run

The order of events:

1. The output folder is locked. If it contains the same sweep, that one continues.
2. All runs are planned, and what would stop one of them later is refused now.
3. The runs are made, one after the other. A run is done when its results exist; an interrupted one resumes from its
   newest checkpoint. Models that are not the best one so far are removed.
4. The best run on dev predicts the test set, unless the test set has labels: then every run was scored on it.
5. The best run's model is published in the output folder, with the results of the sweep.

So the same command resumes an interrupted sweep, and a wider grid keeps the runs that are done.

Mean and deviation are over all runs of a configuration that have a score, degenerate ones included. Deviations are
those of a sample (n - 1).
"""

import json
import logging
import shutil
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import groupby, product
from pathlib import Path
from typing import Any, Literal, cast

from accelerate import Accelerator

from bert_repro.configs import SWEPT, AdapterConfig, FinetuningConfig, deciding_settings
from bert_repro.errors import NonFiniteError, StopRequested, UserError, flag
from bert_repro.finetuning.data import SplitCache, load_splits
from bert_repro.finetuning.run import SweepMember, finetune, log_baselines
from bert_repro.hub.export import republish
from bert_repro.hub.push import push_folder
from bert_repro.models.loading import load_tokenizer
from bert_repro.results import RunResults, SweepResults, read_results
from bert_repro.tasks.base import Task
from bert_repro.training import checkpoint, run
from bert_repro.training.batches import batch_sizes
from bert_repro.training.trackers import run_name
from bert_repro.utils import process
from bert_repro.utils.files import ADAPTER, CARD, CHECKPOINTS, RESULTS, STATUS, SWEEP, SWEEP_STATE, write_json
from bert_repro.utils.process import broadcast, is_main_process
from bert_repro.utils.readers import read_json_object
from bert_repro.utils.redaction import redacted

logger = logging.getLogger("bert_repro")

RunState = Literal["done", "not finite", "begun", "new"]
"""`not finite`: the loss became NaN or infinite. `begun`: there is a checkpoint to resume from."""

_TRAINING_SETTINGS = {
    "bilstm_size", "feature_based", "freeze_layers", "early_stopping_patience", "load_best_model_at_end",
    *(item.name for item in fields(AdapterConfig)),
}  # fmt: skip
"""Settings that a run that does not train refuses."""

_CHANGEABLE_SETTINGS = {*SWEPT, *SWEPT.values(), "seed", "num_restarts", "max_steps", "output_dir", "do_predict"}
"""Settings that may differ when a sweep is resumed: what it varies, and how much of it is done."""


@dataclass(frozen=True)
class PlannedRun:
    """A run of the sweep.

    Args:
        varied: what distinguishes it from the others, as in results.json: learning rate, batch (sequences per optimizer
            step over all devices), epochs or steps, seed, and its folder below the sweep's.
        config: its settings.
    """

    varied: Mapping[str, Any]
    config: FinetuningConfig

    @property
    def path(self) -> Path:
        """Its output folder."""
        return Path(self.config.output_dir)

    @property
    def folder(self) -> str:
        """Its output folder, relative to the sweep's."""
        return str(self.varied["folder"])


def run_sweep(config: FinetuningConfig, task: Task) -> RunResults:
    """Makes every run of a sweep that is not done yet and publishes the model with the best score on dev.

    The first dev split of the task counts, and the best run has the highest primary metric. A run whose loss is not
    finite is counted, and the sweep continues.

    Returns:
        The results of the best run, with those of the sweep under `sweep`.

    Raises:
        UserError: the output folder contains something else or another sweep, or a run cannot be made.
        NonFiniteError: no run has a score.
        StopRequested: see `bert_repro.training.trainer.Trainer.train`. The run's checkpoint has been written.
    """
    # Lock the folder and plan the runs.
    begun = _begin(config)
    accelerator = begun.accelerator
    test_set_is_labelled = _check_data(config, task, accelerator)
    runs = list(_planned_runs(config, task, accelerator.num_processes, each_predicts=test_set_is_labelled))
    begun.clear()
    state_file = _folder(config) / SWEEP_STATE
    if accelerator.is_main_process and not state_file.exists():
        write_json(state_file, _settings(config))

    # Make them. The best run needs its model, which a wider sweep may have removed earlier.
    sweep = _Sweep(config, task, accelerator, runs)
    for number, planned in enumerate(runs, start=1):
        logger.info("run %d of %d: %s", number, len(runs), planned.folder)
        sweep.ensure_done(planned)
    best = sweep.best()
    sweep.ensure_done(best, with_model=True)
    if config.do_predict and not test_set_is_labelled:
        sweep.predict(best)

    # Publish the best one.
    results: Any = None
    if accelerator.is_main_process:
        metric = task.primary_metric
        _publish(config, best, sweep_results(sweep.outcomes(), split=sweep.split(), metric=metric), sweep.baselines())
        results = read_results(Path(config.output_dir))
        score = results["metrics"][metric]
        logger.info("Best of %d runs: %s %.4f, %s. The card lists all of them.", len(runs), metric, score, best.path)
        log_baselines(best.config, results)
    shared_results: RunResults = broadcast(results)
    accelerator.end_training()
    return shared_results


@dataclass
class _Sweep:
    """The runs of a sweep. The main process reads their state from disk, and all processes act on what it found.

    Args:
        config: settings of the sweep.
        task: the task.
        accelerator: devices and processes.
        runs: all runs, in order.
        cache: tokenized splits that the runs share.
    """

    config: FinetuningConfig
    task: Task
    accelerator: Accelerator
    runs: list[PlannedRun]
    cache: SplitCache = field(default_factory=dict)

    def ensure_done(self, planned: PlannedRun, *, with_model: bool = False) -> None:
        """Makes a run unless it is done.

        Args:
            planned: the run.
            with_model: also make it again if its model was removed.
        """
        state = broadcast(self._state(planned))
        if state == "not finite":
            return
        lacks_model = with_model and broadcast(not list(planned.path.glob("*.safetensors*")))
        if state == "done" and not lacks_model:
            self._close(planned, 0, "done")
            return

        resume = "latest" if state == "begun" else None
        config = replace(planned.config, resume_from_checkpoint=resume, overwrite_output_dir=resume is None)
        member = SweepMember(self.cache, computes_baselines=broadcast(self._is_first_finite(planned)))
        try:
            finetune(config, self.task, member)
            self._close(planned, 0, "done")
        except NonFiniteError as error:
            logger.warning("%s: %s", planned.folder, error)
            self._close(planned, error.exit_code, str(error))
        except StopRequested as stop:
            self._close(planned, stop.exit_code, str(stop))
            raise

    def _is_first_finite(self, planned: PlannedRun) -> bool:
        """Returns whether all runs before this one have a loss that is not finite.

        The baselines are computed once, by the first run that has results. That does not depend on interruptions.
        """
        earlier = self.runs[: self.runs.index(planned)]
        return all(self._state(other) == "not finite" for other in earlier)

    def best(self) -> PlannedRun:
        """Returns the run with the best score on dev.

        Raises:
            NonFiniteError: no run has a score.
        """
        best = broadcast(best_run(self.outcomes(), self.split(), self.task.primary_metric))
        if best is None:
            raise NonFiniteError(
                f"{self.config.output_dir}: none of the {len(self.runs)} runs kept a finite loss. Lower the learning "
                f"rates or lengthen the warm-up, and start again with {flag('overwrite_output_dir')}."
            )
        if best["degenerate"]:
            logger.warning(
                "The best run gives the same answer for every row, or no right one, and no other run scores higher."
            )
        return next(planned for planned in self.runs if planned.folder == best["folder"])

    def predict(self, best: PlannedRun) -> None:
        """Predicts the test set with the best run's model, in a folder below that run's."""
        path = best.path / "test"
        if broadcast((path / RESULTS).exists()):
            return
        changes: dict[str, Any] = {
            "model_name_or_path": str(best.path),
            "output_dir": str(path),
            "overwrite_output_dir": True,
            "do_train": False,
            "do_eval": False,
            "do_predict": True,
        }
        for item in fields(best.config):
            if item.name in _TRAINING_SETTINGS:
                changes[item.name] = item.default
        finetune(replace(best.config, **changes), self.task, SweepMember(self.cache, computes_baselines=False))

    def _close(self, planned: PlannedRun, code: int, reason: str) -> None:
        """Records how a run ended. Then removes checkpoints of finished runs, and models that are not the best."""
        if not self.accelerator.is_main_process:
            return
        process.record_outcome(str(planned.path), code, reason)
        best = best_run(self.outcomes(), self.split(), self.task.primary_metric)
        for other in self._done():
            shutil.rmtree(other.path / CHECKPOINTS, ignore_errors=True)
            if best is None or other.folder == best["folder"]:
                continue
            for file in (*other.path.glob("*.safetensors*"), other.path / CARD):
                file.unlink(missing_ok=True)
            shutil.rmtree(other.path / ADAPTER, ignore_errors=True)

    def outcomes(self) -> list[dict[str, Any]]:
        """Returns the runs that have ended, in order, in the form of results.json."""
        outcomes = []
        for planned in self.runs:
            state = self._state(planned)
            if state == "done":
                results = read_results(planned.path)
                scores = {name: split["metrics"] for name, split in results["splits"].items() if "metrics" in split}
                outcomes.append({**planned.varied, "splits": scores, "degenerate": results["degenerate"]})
            elif state == "not finite":
                outcomes.append({**planned.varied, "not_finite": True})
        return outcomes

    def baselines(self) -> dict[str, dict[str, float]]:
        """Returns the scores of the baselines, from the run that computed them."""
        for planned in self._done():
            results = read_results(planned.path)
            if "baselines" in results:
                return dict(results["baselines"])
        return {}

    def split(self) -> str:
        """Returns the dev split that decides: the first one that exists."""
        done = self._done()
        if not done:
            return self.task.eval_splits[0]
        return str(read_results(done[0].path)["split"])

    def _done(self) -> list[PlannedRun]:
        return [planned for planned in self.runs if self._state(planned) == "done"]

    def _state(self, planned: PlannedRun) -> RunState:
        """Returns the state of a run from the files in its folder."""
        path = planned.path
        if (path / RESULTS).exists():
            # An earlier sweep may have made the run without predicting the test set.
            splits = read_results(path)["splits"]
            has_predictions = any(name in splits for name in self.task.predict_splits)
            return "done" if has_predictions or not planned.config.do_predict else "new"
        if (path / STATUS).exists() and read_json_object(path / STATUS).get("code") == NonFiniteError.exit_code:
            return "not finite"
        try:
            checkpoint.find(path, "latest")
        except UserError:
            return "new"
        return "begun"


# --- Before the first run ---------------------------------------------------------------------------------------------


def _begin(config: FinetuningConfig) -> run.Run[FinetuningConfig]:
    """Locks the output folder, for a new sweep or to resume the one that it contains, and sets up the devices.

    Raises:
        UserError: the folder contains another sweep or something else.
    """
    # Each run reports to the trackers itself.
    config_of_sweep = replace(config, report_to=("none",))
    starts_over = config.overwrite_output_dir and not config.resume_from_checkpoint
    if is_main_process() and not starts_over:
        state_file = _folder(config) / SWEEP_STATE
        if state_file.exists():
            _require_same_settings(config, state_file)
            config_of_sweep = replace(config_of_sweep, resume_from_checkpoint="latest")
        elif not process.is_free_folder(Path(config.output_dir)):
            raise UserError(
                f"{flag('output_dir', config.output_dir)} is not empty and contains no sweep. Choose another folder, "
                f"or add {flag('overwrite_output_dir')}.",
                setting="output_dir",
            )
    return run.begin(config_of_sweep)


def _require_same_settings(config: FinetuningConfig, state_file: Path) -> None:
    """Refuses to resume a sweep that was started with other settings."""
    before = read_json_object(state_file)
    for name, value in _settings(config).items():
        # A setting that is newer than the sweep is not in its file.
        if before.get(name, value) != value:
            raise UserError(
                f"{state_file}: this sweep has {flag(name, before[name])}, not {value}. Choose another "
                f"{flag('output_dir')}, or start again with {flag('overwrite_output_dir')}.",
                setting=name,
            )


def _check_data(config: FinetuningConfig, task: Task, accelerator: Accelerator) -> bool:
    """Reads the data before an earlier sweep is removed or hours are spent.

    Returns:
        Whether the test set has labels (CoNLL-2003). Then every run is scored on it, not only the best one.

    Raises:
        UserError: the tokenizer, the training set or, if requested, the test set is missing, or a batch is larger than
            the training set.
    """
    with accelerator.main_process_first():
        task = task.prepared(config, load_tokenizer(config.model_name_or_path))
        if task.train_split is not None:
            train = load_splits(task, config.data_dir, [task.train_split]).get(task.train_split, ())
            rows = min(len(train), config.max_train_samples or len(train))
            largest_batch = max(config.sweep_batch_sizes, default=0)
            if largest_batch > rows:
                raise UserError(
                    f"{flag('sweep_batch_sizes', config.sweep_batch_sizes)}: there are only {rows:,} training rows. "
                    "Leave out larger batches.",
                    setting="sweep_batch_sizes",
                )
        test_splits = load_splits(task, config.data_dir, task.predict_splits) if config.do_predict else {}
    return any(task.is_labelled(dataset) for dataset in test_splits.values())


def _planned_runs(config: FinetuningConfig, task: Task, processes: int, *, each_predicts: bool) -> Iterator[PlannedRun]:
    """Yields all runs, configuration by configuration."""
    # A run is not a sweep itself, and only the best one is uploaded.
    single_run: dict[str, Any] = {
        **dict.fromkeys(SWEPT, ()),
        "num_restarts": 1,
        "do_predict": each_predicts,
        "resume_from_checkpoint": None,
        "push_to_hub": False,
        "hub_model_id": None,
    }
    learning_rates = config.sweep_learning_rates or (config.learning_rate,)
    batches = config.sweep_batch_sizes or (config.train_batch_size,)
    all_epochs = config.sweep_num_train_epochs or (config.num_train_epochs,)
    for learning_rate, batch, epochs in product(learning_rates, batches, all_epochs):
        chosen = replace(
            config, learning_rate=learning_rate, train_batch_size=batch, num_train_epochs=epochs, **single_run
        )
        # What the run will do, also where a setting leaves it to the task.
        sequences = batch_sizes(chosen, processes, task.paper_batch).batch
        passes = None if config.max_steps else epochs or task.paper_epochs
        length = f"epochs{passes:g}" if passes else f"steps{config.max_steps}"
        name = f"lr{learning_rate:g}-batch{sequences}-{length}"
        for seed in range(config.seed, config.seed + config.num_restarts):
            folder = f"{name}/seed{seed}"
            varied = {
                "learning_rate": learning_rate,
                "batch": sequences,
                "epochs": passes,
                "steps": config.max_steps,
                "seed": seed,
                "folder": folder,
            }
            run_config = replace(
                chosen,
                seed=seed,
                output_dir=str(_folder(config) / folder),
                run_name=f"{run_name(config)}-{name}-seed{seed}",
            )
            yield PlannedRun(varied, run_config)


# --- After the last run -----------------------------------------------------------------------------------------------


def _publish(config: FinetuningConfig, best: PlannedRun, sweep: SweepResults, baselines: dict[str, Any]) -> None:
    """Publishes the best run's model in the output folder, with the sweep in its results."""
    output_dir = Path(config.output_dir)
    results = read_results(best.path)
    settings_of_sweep = (
        "output_dir", "overwrite_output_dir", "do_predict", "push_to_hub", "hub_model_id", "run_name",
    )  # fmt: skip
    for name in settings_of_sweep:
        results["settings"][name] = getattr(config, name)

    # Files that are not made from the model: the adapter alone, and predictions of the test set.
    files = [path for path in (best.path / ADAPTER,) if path.exists()]
    if config.do_predict and not best.config.do_predict:
        test = best.path / "test"
        results["splits"] |= read_results(test)["splits"]
        files += [path for path in test.iterdir() if "prediction" in path.name or "null_odds" in path.name]
    republish(best.path, output_dir, results={**results, "sweep": sweep, "baselines": baselines}, files=files)
    if config.push_to_hub and config.hub_model_id:
        push_folder(output_dir, config.hub_model_id, private=config.hub_private_repo)


def _settings(config: FinetuningConfig) -> dict[str, Any]:
    """Returns the settings that all runs share and that decide results, as they are in JSON."""
    settings = {name: value for name, value in deciding_settings(config).items() if name not in _CHANGEABLE_SETTINGS}
    return cast(dict[str, Any], json.loads(json.dumps(redacted(settings))))


def _folder(config: FinetuningConfig) -> Path:
    return Path(config.output_dir) / SWEEP


# --- Results ----------------------------------------------------------------------------------------------------------


def best_run(runs: Sequence[dict[str, Any]], split: str, metric: str) -> dict[str, Any] | None:
    """Returns the run with the highest score. Of equal runs it is the first that is not degenerate, else the first."""
    scored = [run for run in runs if "splits" in run]
    return max(scored, key=lambda run: (run["splits"][split][metric], not run["degenerate"]), default=None)


def sweep_results(runs: Sequence[dict[str, Any]], *, split: str, metric: str) -> SweepResults:
    """Summarizes a sweep for results.json.

    Args:
        runs: the runs that have ended, configuration by configuration, from `_Sweep.outcomes`.
        split: the dev split that decides.
        metric: the metric that decides.

    Returns:
        How many runs there were, and how many were degenerate or stopped; the best run; every run; and for every
        configuration the mean, the deviation and the best of each metric on each split.
    """
    configurations: list[dict[str, Any]] = []
    for _, group in groupby(runs, key=lambda run: run["folder"].rpartition("/")[0]):
        members = list(group)
        scored = [run for run in members if "splits" in run]
        row = {name: members[0][name] for name in ("learning_rate", "batch", "epochs", "steps")}
        row["runs"] = len(members)
        row["degenerate"] = sum(run["degenerate"] for run in scored)
        row["not_finite"] = len(members) - len(scored)
        row["splits"] = _summaries([run["splits"] for run in scored])
        configurations.append(row)
    return cast(
        SweepResults,
        {
            "split": split,
            "metric": metric,
            "runs_done": len(runs),
            "degenerate": sum(row["degenerate"] for row in configurations),
            "not_finite": sum(row["not_finite"] for row in configurations),
            "best": best_run(runs, split, metric),
            "configurations": configurations,
            "runs": runs,
        },
    )


Summary = dict[str, float | None]
"""Mean, standard deviation (None for a single run) and best of the scores of several runs."""


def _summaries(scores: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, Summary]]:
    """Returns split -> metric -> summary, for each split that all runs have.

    Args:
        scores: for each run, split -> metric -> value.
    """
    summaries: dict[str, dict[str, Summary]] = {}
    for split in scores[0] if scores else ():
        if not all(split in score for score in scores):
            continue
        summaries[split] = {}
        for metric in scores[0][split]:
            values = [score[split][metric] for score in scores]
            deviation = statistics.stdev(values) if len(values) > 1 else None
            summaries[split][metric] = {
                "mean": statistics.fmean(values),
                "standard_deviation": deviation,
                "best": max(values),
            }
    return summaries
