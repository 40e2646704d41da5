"""A sweep: a grid of learning rates, batch sizes and epochs, each configuration with random restarts (paper 4.1, A.3).

Every run of a sweep is an ordinary fine-tuning run in a folder of its own, named by what the sweep varies:

    OUTPUT/sweep/lr5e-05-batch32-epochs3/seed42/   results.json, predictions, log; for the best run also the model
    OUTPUT/sweep/sweep.json                        the settings that all runs share
    OUTPUT/                                        the best model, published like that of a single run

The same command resumes an interrupted sweep, and a wider grid keeps the runs that are done: a run is done when its
results exist, and an interrupted run resumes from its newest checkpoint.

Mean and deviation are over all runs of a configuration that have a score, degenerate ones included. Deviations are
those of a sample (n - 1).
"""

import json
import logging
import shutil
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import groupby, product
from pathlib import Path
from typing import Any, cast

from accelerate import Accelerator

from bert_repro.configs import SWEPT, AdapterConfig, FinetuningConfig, deciding_settings, require
from bert_repro.errors import NonFiniteError, StopRequested, UserError
from bert_repro.finetuning.data import SplitCache, load_splits
from bert_repro.finetuning.run import finetune, log_baselines
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
from bert_repro.utils.readers import read_json_object, redacted

logger = logging.getLogger("bert_repro")

_ONLY_TRAINING = {
    "bilstm_size", "feature_based", "freeze_layers", "early_stopping_patience", "load_best_model_at_end",
    *(item.name for item in fields(AdapterConfig)),
}  # fmt: skip
# What a resumed sweep may change, apart from what changes no result: what it varies, and how much of it is done.
_MAY_CHANGE = {*SWEPT, *SWEPT.values(), "seed", "num_restarts", "max_steps", "output_dir", "do_predict"}


@dataclass(frozen=True)
class SweepRun:
    """A run of the sweep.

    Args:
        varied: what it has for itself, as in results.json: learning rate, batch (sequences per optimizer step over all
            devices), epochs or steps, seed, and its folder below the sweep's.
        config: its settings.
    """

    varied: Mapping[str, Any]
    config: FinetuningConfig

    @property
    def path(self) -> Path:
        """Its output folder."""
        return Path(self.config.output_dir)


def run_sweep(config: FinetuningConfig, task: Task) -> RunResults:
    """Makes every run of a sweep that is not done yet and publishes the model that is best on dev.

    Dev is the task's first dev split and best is the highest primary metric. A run whose loss is not finite is counted,
    and the sweep continues.

    Returns:
        The results of the best run, with those of the sweep under `sweep`.

    Raises:
        UserError: the output folder holds something else or another sweep, or a run cannot be made as asked.
        NonFiniteError: no run has a score.
        StopRequested: see `bert_repro.training.trainer.Trainer.train`; the run's checkpoint is written.
    """
    begun = _begin(config)
    accelerator = begun.accelerator
    labelled = _test_set_is_labelled(config, task, accelerator)
    planned_runs = list(_planned_runs(config, task, accelerator.num_processes, each_predicts=labelled))
    begun.clear()
    if accelerator.is_main_process and not (_folder(config) / SWEEP_STATE).exists():
        write_json(_folder(config) / SWEEP_STATE, _settings(config))
    sweep = _Sweep(config, task, accelerator, planned_runs)
    for number, planned in enumerate(planned_runs, start=1):
        logger.info("run %d of %d: %s", number, len(planned_runs), planned.varied["folder"])
        sweep.ensure_done(planned)
    best = sweep.best()
    sweep.ensure_done(best, with_model=True)
    if config.do_predict and not labelled:
        sweep.predict(best)
    results: Any = None
    if accelerator.is_main_process:
        metric = task.primary_metric
        found = sweep_results(sweep.outcomes(), split=sweep.split(), metric=metric)
        _publish(config, best, found, sweep.baselines())
        results = read_results(Path(config.output_dir))
        score = results["metrics"][metric]
        logger.info("best of %d runs: %s %.4f, %s; all are on the card", len(planned_runs), metric, score, best.path)
        log_baselines(best.config, results)
    agreed: RunResults = broadcast(results)
    accelerator.end_training()
    return agreed


class _Sweep:
    """The runs of a sweep. All processes take the same decisions, based on what the main one finds on disk."""

    def __init__(self, config: FinetuningConfig, task: Task, accelerator: Accelerator, runs: list[SweepRun]) -> None:
        self.config, self.task, self.accelerator, self.runs = config, task, accelerator, runs
        self._cache: SplitCache = {}

    def ensure_done(self, planned: SweepRun, *, with_model: bool = False) -> None:
        """Makes a run unless it is done.

        Args:
            planned: the run.
            with_model: make it again if its model was removed, as after a wider sweep with a better one.
        """
        state = broadcast(self._state(planned))
        if state == "not finite":
            return
        if state == "done" and not (with_model and broadcast(not list(planned.path.glob("*.safetensors*")))):
            self._close(planned, 0, "done")
            return
        resume = "latest" if state == "begun" else None
        config = replace(planned.config, resume_from_checkpoint=resume, overwrite_output_dir=resume is None)
        try:
            finetune(config, self.task, last=False, cache=self._cache)
            self._close(planned, 0, "done")
        except NonFiniteError as error:
            logger.warning("%s: %s", planned.varied["folder"], error)
            self._close(planned, error.exit_code, str(error))
        except StopRequested as stop:
            self._close(planned, stop.exit_code, str(stop))
            raise

    def best(self) -> SweepRun:
        """Returns the run that is best on dev.

        Raises:
            NonFiniteError: no run has a score.
        """
        best = broadcast(best_run(self.outcomes(), self.split(), self.task.primary_metric))
        if best is None:
            raise NonFiniteError(
                f"{self.config.output_dir}: none of the {len(self.runs)} runs kept a finite loss; lower the learning "
                "rates or lengthen the warm-up, and start again with --overwrite_output_dir"
            )
        if best["degenerate"]:
            logger.warning("the best run gives one answer for every row, and no other run scores higher")
        return next(planned for planned in self.runs if planned.varied["folder"] == best["folder"])

    def predict(self, best: SweepRun) -> None:
        """Predicts the test set with the best run's model, in a folder of that run."""
        path = best.path / "test"
        if broadcast((path / RESULTS).exists()):
            return
        only: dict[str, Any] = {"do_train": False, "do_eval": False, "do_predict": True, "output_dir": str(path)}
        # A run that does not train refuses these.
        only |= {item.name: item.default for item in fields(best.config) if item.name in _ONLY_TRAINING}
        config = replace(best.config, model_name_or_path=str(best.path), overwrite_output_dir=True, **only)
        finetune(config, self.task, last=False, cache=self._cache)

    def _close(self, planned: SweepRun, code: int, reason: str) -> None:
        """Writes how a run ended; of the runs that are done, removes what is no longer needed."""
        if not self.accelerator.is_main_process:
            return
        process.record_outcome(str(planned.path), code, reason)
        best = best_run(self.outcomes(), self.split(), self.task.primary_metric)
        for other in self.runs:
            if self._state(other) != "done":
                continue
            shutil.rmtree(other.path / CHECKPOINTS, ignore_errors=True)
            if best is not None and other.varied["folder"] != best["folder"]:
                for file in (*other.path.glob("*.safetensors*"), other.path / CARD):
                    file.unlink(missing_ok=True)
                shutil.rmtree(other.path / ADAPTER, ignore_errors=True)

    def outcomes(self) -> list[dict[str, Any]]:
        """Returns the runs that ended by themselves, in order, as results.json holds them."""
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
        """Returns the scores of the baselines on the runs' splits, which the first run has."""
        done = (read_results(planned.path) for planned in self.runs if self._state(planned) == "done")
        return next((dict(results["baselines"]) for results in done if "baselines" in results), {})

    def split(self) -> str:
        """Returns the dev split that chooses: the first that exists."""
        done = next((planned for planned in self.runs if self._state(planned) == "done"), None)
        return str(read_results(done.path)["split"]) if done else self.task.eval_splits[0]

    def _state(self, planned: SweepRun) -> str:
        """Returns done, not finite, begun (a checkpoint exists) or new."""
        path, predicts = planned.path, planned.config.do_predict
        if (path / RESULTS).exists():
            splits = read_results(path)["splits"]
            return "done" if not predicts or any(name in splits for name in self.task.predict_splits) else "new"
        if (path / STATUS).exists() and read_json_object(path / STATUS).get("code") == NonFiniteError.exit_code:
            return "not finite"
        try:
            checkpoint.find(path, "latest")
        except UserError:
            return "new"
        return "begun"


def _begin(config: FinetuningConfig) -> run.Run[FinetuningConfig]:
    """Locks the output folder, for a new sweep or to resume the one that it holds, and sets up the devices."""
    claim = replace(config, report_to=("none",))
    starts_over = config.overwrite_output_dir and not config.resume_from_checkpoint
    if is_main_process() and not starts_over:
        folder = Path(config.output_dir)
        if (state := _folder(config) / SWEEP_STATE).exists():
            before = read_json_object(state)
            for name, value in _settings(config).items():
                if before.get(name, value) != value:
                    raise UserError(
                        f"{state}: this sweep has --{name} {before[name]}, not {value}; name another --output_dir, or "
                        "start again with --overwrite_output_dir"
                    )
            claim = replace(claim, resume_from_checkpoint="latest")
        elif not process.is_free_folder(folder):
            raise UserError(
                f"--output_dir {folder} is not empty and holds no sweep; name another folder, or give "
                "--overwrite_output_dir"
            )
    return run.begin(claim)


def _test_set_is_labelled(config: FinetuningConfig, task: Task, accelerator: Accelerator) -> bool:
    """Returns whether the test set has labels (CoNLL-2003), so that every run is scored on it, not only the best.

    Raises:
        UserError: the tokenizer, the training set or, if asked for, the test set is missing, or a batch is larger than
            the data; found here, before an earlier sweep is removed or hours are spent.
    """
    with accelerator.main_process_first():
        prepared = task.prepared(config, load_tokenizer(config.model_name_or_path))
        if task.train_split is not None:
            rows = len(load_splits(prepared, config.data_dir, [task.train_split]).get(task.train_split, ()))
            fault = f"--sweep_batch_sizes: there are {rows:,} training rows; lower those above"
            require(max(config.sweep_batch_sizes, default=0) <= min(rows, config.max_train_samples or rows), fault)
        found = load_splits(prepared, config.data_dir, prepared.predict_splits) if config.do_predict else {}
    return any(prepared.is_labelled(dataset) for dataset in found.values())


def _planned_runs(config: FinetuningConfig, task: Task, processes: int, *, each_predicts: bool) -> Iterator[SweepRun]:
    """Yields all runs, configuration by configuration."""
    once: dict[str, Any] = {**dict.fromkeys(SWEPT, ()), "num_restarts": 1, "do_predict": each_predicts}
    once |= {"resume_from_checkpoint": None, "push_to_hub": False, "hub_model_id": None}
    learning_rates = config.sweep_learning_rates or (config.learning_rate,)
    batches = config.sweep_batch_sizes or (config.train_batch_size,)
    lengths = config.sweep_num_train_epochs or (config.num_train_epochs,)
    for learning_rate, batch, epochs in product(learning_rates, batches, lengths):
        chosen = replace(config, learning_rate=learning_rate, train_batch_size=batch, num_train_epochs=epochs, **once)
        sequences = batch_sizes(chosen, processes, task.paper_batch).batch
        passes = None if config.max_steps else epochs or task.paper_epochs
        varied = {"learning_rate": learning_rate, "batch": sequences, "epochs": passes, "steps": config.max_steps}
        name = f"lr{learning_rate:g}-batch{sequences}-" + (
            f"epochs{passes:g}" if passes else f"steps{config.max_steps}"
        )
        for seed in range(config.seed, config.seed + config.num_restarts):
            folder, own_name = f"{name}/seed{seed}", f"{run_name(config)}-{name}-seed{seed}"
            run_config = replace(chosen, seed=seed, output_dir=str(_folder(config) / folder), run_name=own_name)
            yield SweepRun({**varied, "seed": seed, "folder": folder}, run_config)


def _publish(config: FinetuningConfig, best: SweepRun, found: SweepResults, baselines: dict[str, Any]) -> None:
    """Publishes the best run's model in the output folder, with the sweep in its results."""
    output_dir, results = Path(config.output_dir), read_results(best.path)
    files = [path for path in (best.path / ADAPTER,) if path.exists()]
    asked = ("output_dir", "overwrite_output_dir", "do_predict", "push_to_hub", "hub_model_id", "run_name")
    results["settings"] |= {name: getattr(config, name) for name in asked}
    if config.do_predict and not best.config.do_predict:
        test = best.path / "test"
        results["splits"] |= read_results(test)["splits"]
        files += [path for path in test.iterdir() if "prediction" in path.name or "null_odds" in path.name]
    republish(best.path, output_dir, results={**results, "sweep": found, "baselines": baselines}, files=files)
    if config.push_to_hub and config.hub_model_id:
        push_folder(output_dir, config.hub_model_id, private=config.hub_private_repo)


def _settings(config: FinetuningConfig) -> dict[str, Any]:
    kept = {name: value for name, value in deciding_settings(config).items() if name not in _MAY_CHANGE}
    return cast(dict[str, Any], json.loads(json.dumps(redacted(kept))))


def _folder(config: FinetuningConfig) -> Path:
    return Path(config.output_dir) / SWEEP


# --- Results ----------------------------------------------------------------------------------------------------------


def best_run(runs: Sequence[dict[str, Any]], split: str, metric: str) -> dict[str, Any] | None:
    """Returns the run with the highest score; among equals one that is not degenerate, else the first."""
    scored = [run for run in runs if "splits" in run]
    return max(scored, key=lambda run: (run["splits"][split][metric], not run["degenerate"]), default=None)


def sweep_results(runs: Sequence[dict[str, Any]], *, split: str, metric: str) -> SweepResults:
    """Summarizes a sweep for results.json.

    Args:
        runs: as results.json holds them, configuration by configuration.
        split: the dev split that chooses.
        metric: the metric that chooses.

    Returns:
        How many runs there were, degenerate and stopped ones among them; the best run; every run; and for every
        configuration mean, deviation and best of each metric on each split.
    """
    configurations: list[Any] = []
    for _, group in groupby(runs, key=lambda run: run["folder"].rpartition("/")[0]):
        own = list(group)
        scored = [run for run in own if "splits" in run]
        configurations.append(
            {
                **{name: own[0][name] for name in ("learning_rate", "batch", "epochs", "steps")},
                "runs": len(own),
                "degenerate": sum(run["degenerate"] for run in scored),
                "not_finite": len(own) - len(scored),
                "splits": _summaries([run["splits"] for run in scored]),
            }
        )
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


def _summaries(scores: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, dict[str, float | None]]]:
    """Returns mean, deviation and best of each metric on each split that all runs have."""
    found: dict[str, dict[str, dict[str, float | None]]] = {}
    for split in scores[0] if scores else ():
        if all(split in score for score in scores):
            found[split] = {}
            for metric in scores[0][split]:
                values = [score[split][metric] for score in scores]
                mean, deviation = statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None
                found[split][metric] = {"mean": mean, "standard_deviation": deviation, "best": max(values)}
    return found
