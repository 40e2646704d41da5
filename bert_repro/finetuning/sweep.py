"""A sweep: a grid of learning rates, batch sizes and epochs, each configuration with random restarts (paper 4.1, A.3).

Every run of a sweep is an ordinary fine-tuning run in a folder of its own, named by what the sweep varies:

    OUTPUT/sweep/lr5e-05-batch32-epochs3/seed42/   results.json, predictions, log; for the best run also the model
    OUTPUT/sweep/sweep.json, table.txt             results so far
    OUTPUT/                                        the best model, published like that of a single run

The same command resumes an interrupted sweep, and a wider grid keeps the runs that are done: a run is done when its
results exist, and an interrupted run resumes from its newest checkpoint.

Mean and deviation are over all runs of a configuration that have a score, degenerate ones included; what they would be
without the degenerate ones is given apart. Deviations are those of a sample (n - 1).
"""

import json
import logging
import shutil
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import groupby, product
from pathlib import Path
from typing import Any, cast

from accelerate import Accelerator

from bert_repro.configs import SWEPT, AdapterConfig, FinetuningConfig, deciding_settings
from bert_repro.errors import NonFiniteError, StopRequested, UserError
from bert_repro.finetuning.data import SplitCache, load_splits
from bert_repro.finetuning.run import finetune
from bert_repro.hub.export import republish
from bert_repro.hub.push import push_folder
from bert_repro.models.loading import load_tokenizer
from bert_repro.results import RunResults, SweepResults, read_results
from bert_repro.tasks.base import Task
from bert_repro.training import checkpoint, run
from bert_repro.training.batches import batch_sizes
from bert_repro.training.training_log import run_name
from bert_repro.utils import process
from bert_repro.utils.files import (
    ADAPTER,
    CARD,
    CHECKPOINTS,
    RESULTS,
    STATUS,
    SWEEP,
    SWEEP_STATE,
    SWEEP_TABLE,
    write_json,
    write_text,
)
from bert_repro.utils.process import broadcast, is_main_process
from bert_repro.utils.readers import read_json_object, redacted

logger = logging.getLogger("bert_repro")

_TEST = "test"  # folder of the best run's test predictions
_ONLY_TRAINING = {"bilstm_size", "feature_based", *(item.name for item in fields(AdapterConfig))}
# What a resumed sweep may change, apart from what changes no result: what it varies, and how much of it is done.
_MAY_CHANGE = {*SWEPT, *SWEPT.values(), "seed", "num_restarts", "max_steps", "output_dir", "do_predict"}


@dataclass(frozen=True)
class Configuration:
    """What the restarts of a configuration share.

    Args:
        learning_rate: peak learning rate.
        batch: sequences per optimizer step over all devices.
        epochs: passes over the training set; None where steps are given.
        steps: optimizer steps; None where epochs are given.
    """

    learning_rate: float
    batch: int
    epochs: float | None
    steps: int | None = None

    @property
    def name(self) -> str:
        """Name of its folder."""
        length = f"epochs{self.epochs:g}" if self.steps is None else f"steps{self.steps}"
        return f"lr{self.learning_rate:g}-batch{self.batch}-{length}"


@dataclass(frozen=True)
class SweepRun:
    """A run of the sweep: what it varies, its folder below the sweep's, and its settings."""

    varied: Configuration
    folder: str
    config: FinetuningConfig

    @property
    def path(self) -> Path:
        """Its output folder."""
        return Path(self.config.output_dir)


@dataclass(frozen=True)
class Outcome:
    """How one run ended.

    Args:
        varied: what the sweep varies.
        seed: its seed.
        folder: its folder below that of the sweep.
        scores: split -> metrics; None: it was stopped because its loss was not finite.
        degenerate: whether it gives one answer for every row of dev.
    """

    varied: Configuration
    seed: int
    folder: str
    scores: Mapping[str, Mapping[str, float]] | None
    degenerate: bool = False

    def results(self) -> dict[str, Any]:
        """Returns the run for results.json."""
        ended: dict[str, Any] = {"splits": self.scores, "degenerate": self.degenerate}
        if self.scores is None:
            ended = {"not_finite": True}
        return {**asdict(self.varied), "seed": self.seed, "folder": self.folder, **ended}


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
    begun.clear()
    if accelerator.is_main_process and not (_folder(config) / SWEEP_STATE).exists():
        _folder(config).mkdir(exist_ok=True)
        _write(config, None)
    planned_runs = list(_planned_runs(config, task, accelerator.num_processes, each_predicts=labelled))
    sweep = _Sweep(config, task, accelerator, planned_runs)
    for number, planned in enumerate(planned_runs, start=1):
        logger.info("run %d of %d: %s, seed %d", number, len(planned_runs), planned.varied.name, planned.config.seed)
        sweep.ensure_done(planned)
    best = sweep.best()
    sweep.ensure_done(best, with_model=True)
    if config.do_predict and not labelled:
        sweep.predict(best)
    results: Any = None
    if accelerator.is_main_process:
        found = sweep.found()
        _publish(config, best, found)
        results = read_results(Path(config.output_dir))
        logger.info("%s", text_table(found))
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
            logger.warning("%s, seed %d: %s", planned.varied.name, planned.config.seed, error)
            self._close(planned, error.exit_code, str(error))
        except StopRequested as stop:
            self._close(planned, stop.exit_code, str(stop))
            raise

    def best(self) -> SweepRun:
        """Returns the run that is best on dev.

        Raises:
            NonFiniteError: no run has a score.
        """
        best = broadcast(best_run(self._outcomes(), self._split(), self.task.primary_metric))
        if best is None:
            raise NonFiniteError(
                f"{self.config.output_dir}: none of the {len(self.runs)} runs kept a finite loss; lower the learning "
                "rates or lengthen the warm-up, and start again with --overwrite_output_dir"
            )
        if best.degenerate:
            logger.warning("the best run gives one answer for every row, and no other run scores higher")
        return next(planned for planned in self.runs if planned.folder == best.folder)

    def predict(self, best: SweepRun) -> None:
        """Predicts the test set with the best run's model, in a folder of that run."""
        path = best.path / _TEST
        if broadcast((path / RESULTS).exists()):
            return
        only: dict[str, Any] = {"do_train": False, "do_eval": False, "do_predict": True, "output_dir": str(path)}
        # A finished model stores these in its configuration; a run that does not train refuses them.
        only |= {item.name: item.default for item in fields(best.config) if item.name in _ONLY_TRAINING}
        config = replace(best.config, model_name_or_path=str(best.path), overwrite_output_dir=True, **only)
        finetune(config, self.task, last=False, cache=self._cache)

    def found(self) -> SweepResults:
        """Returns the results so far, for results.json."""
        return sweep_results(self._outcomes(), split=self._split(), metric=self.task.primary_metric)

    def _close(self, planned: SweepRun, code: int, reason: str) -> None:
        """Writes how a run ended; of the runs that are done, removes what is no longer needed."""
        if not self.accelerator.is_main_process:
            return
        process.record_outcome(str(planned.path), code, reason)
        outcomes = self._outcomes()
        best = best_run(outcomes, self._split(), self.task.primary_metric)
        for other in self.runs:
            if self._state(other) != "done":
                continue
            shutil.rmtree(other.path / CHECKPOINTS, ignore_errors=True)
            if best is not None and other.folder != best.folder:
                for file in (*other.path.glob("*.safetensors*"), other.path / CARD):
                    file.unlink(missing_ok=True)
                shutil.rmtree(other.path / ADAPTER, ignore_errors=True)
        if outcomes:
            _write(self.config, self.found())

    def _outcomes(self) -> list[Outcome]:
        """Returns the runs that ended by themselves, in order."""
        outcomes = []
        for planned in self.runs:
            state, run_of = self._state(planned), (planned.varied, planned.config.seed, planned.folder)
            if state == "done":
                results = read_results(planned.path)
                scores = {name: split["metrics"] for name, split in results["splits"].items() if "metrics" in split}
                outcomes.append(Outcome(*run_of, scores, results["degenerate"]))
            elif state == "not finite":
                outcomes.append(Outcome(*run_of, None))
        return outcomes

    def _split(self) -> str:
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


def _begin(config: FinetuningConfig) -> run.Run:
    """Locks the output folder, for a new sweep or to resume the one that it holds, and sets up the devices."""
    claim = replace(config, report_to=("none",))
    starts_over = config.overwrite_output_dir and not config.resume_from_checkpoint
    if is_main_process() and not starts_over:
        folder = Path(config.output_dir)
        if (state := _folder(config) / SWEEP_STATE).exists():
            before = read_json_object(state)["settings"]
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
        UserError: the tokenizer, the training set or, if asked for, the test set is missing; found here, before an
            earlier sweep is removed or hours are spent.
    """
    with accelerator.main_process_first():
        prepared = task.prepared(config, load_tokenizer(config.tokenizer_name or config.model_name_or_path))
        if task.train_split is not None:
            load_splits(prepared, config.data_dir, [task.train_split])
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
        varied = Configuration(learning_rate, sequences, passes, config.max_steps)
        for seed in range(config.seed, config.seed + config.num_restarts):
            folder = f"{varied.name}/seed{seed}"
            name = f"{run_name(config)}-{varied.name}-seed{seed}"
            run_config = replace(chosen, seed=seed, output_dir=str(_folder(config) / folder), run_name=name)
            yield SweepRun(varied, folder, run_config)


def _publish(config: FinetuningConfig, best: SweepRun, found: SweepResults) -> None:
    """Publishes the best run's model in the output folder, with the sweep in its results."""
    output_dir, results = Path(config.output_dir), read_results(best.path)
    files = [path for path in (best.path / ADAPTER,) if path.exists()]
    asked = ("output_dir", "overwrite_output_dir", "do_predict", "push_to_hub", "hub_model_id", "run_name")
    results["settings"] |= {name: getattr(config, name) for name in asked}
    if config.do_predict and not best.config.do_predict:
        test = best.path / _TEST
        results["splits"] |= read_results(test)["splits"]
        files += [path for path in test.iterdir() if "prediction" in path.name or "null_odds" in path.name]
    republish(best.path, output_dir, results={**results, "sweep": found}, files=files)
    if config.push_to_hub and config.hub_model_id:
        push_folder(output_dir, config.hub_model_id, private=config.hub_private_repo)


def _settings(config: FinetuningConfig) -> dict[str, Any]:
    kept = {name: value for name, value in deciding_settings(config).items() if name not in _MAY_CHANGE}
    settings: dict[str, Any] = json.loads(json.dumps(redacted(kept)))
    return settings


def _write(config: FinetuningConfig, found: SweepResults | None) -> None:
    """Writes the results so far."""
    write_json(_folder(config) / SWEEP_STATE, {"settings": _settings(config), "found": found})
    if found is not None:
        write_text(_folder(config) / SWEEP_TABLE, text_table(found))


def _folder(config: FinetuningConfig) -> Path:
    return Path(config.output_dir) / SWEEP


# --- Results ----------------------------------------------------------------------------------------------------------


def best_run(outcomes: Sequence[Outcome], split: str, metric: str) -> Outcome | None:
    """Returns the run with the highest score; among equals one that is not degenerate, else the first."""
    scored = [(outcome, outcome.scores[split][metric]) for outcome in outcomes if outcome.scores is not None]
    best = max(scored, key=lambda pair: (pair[1], not pair[0].degenerate), default=None)
    return None if best is None else best[0]


def sweep_results(outcomes: Sequence[Outcome], *, split: str, metric: str) -> SweepResults:
    """Summarizes a sweep for results.json.

    Args:
        outcomes: its runs, configuration by configuration.
        split: the dev split that chooses.
        metric: the metric that chooses.

    Returns:
        How many runs there were, degenerate and stopped ones among them; the best run; every run; and for every
        configuration mean, deviation and best of each metric on each split, `without_degenerate` where some are.
    """
    best = best_run(outcomes, split, metric)
    configurations: list[Any] = []
    for varied, group in groupby(outcomes, key=lambda outcome: outcome.varied):
        runs = list(group)
        scored = [run for run in runs if run.scores is not None]
        kept = [run for run in scored if not run.degenerate]
        best_restart = best_run(runs, split, metric)
        summary = {
            **asdict(varied),
            "runs": len(runs),
            "degenerate": len(scored) - len(kept),
            "not_finite": len(runs) - len(scored),
            "best_seed": None if best_restart is None else best_restart.seed,
            "splits": _summaries(scored),
        }
        if len(kept) < len(scored):
            summary["without_degenerate"] = {"runs": len(kept), "splits": _summaries(kept)}
        configurations.append(summary)
    return cast(
        SweepResults,
        {
            "split": split,
            "metric": metric,
            "runs_done": len(outcomes),
            "degenerate": sum(outcome.degenerate for outcome in outcomes),
            "not_finite": sum(outcome.scores is None for outcome in outcomes),
            "best": None if best is None else best.results(),
            "configurations": configurations,
            "runs": [outcome.results() for outcome in outcomes],
        },
    )


def _summaries(runs: Sequence[Outcome]) -> dict[str, dict[str, dict[str, float | None]]]:
    """Returns mean, deviation and best of each metric on each split that all runs have."""
    scores = [run.scores for run in runs if run.scores is not None]
    found: dict[str, dict[str, dict[str, float | None]]] = {}
    for split, metrics in scores[0].items() if scores else ():
        if all(split in score for score in scores):
            found[split] = {}
            for metric in metrics:
                values = [score[split][metric] for score in scores]
                deviation = statistics.stdev(values) if len(values) > 1 else None
                found[split][metric] = {
                    "mean": statistics.fmean(values), "standard_deviation": deviation, "best": max(values),
                }  # fmt: skip
    return found


def text_table(found: SweepResults) -> str:
    """Writes the configurations of a sweep as a table of text: the metric that chooses on the split that chooses."""
    split, metric, rows = found["split"], found["metric"], cast(list[dict[str, Any]], found["configurations"])
    best = found["best"]
    title = f"{metric} on {split}, {found['runs_done']} runs"
    if best is not None:
        title += f"; best {best['splits'][split][metric]:.4f}: {best['folder']}{' (degenerate)' * best['degenerate']}"
    table: list[tuple[str, ...]] = [
        ("learning rate", "batch", "epochs or steps", "runs", "mean", "std", "best", "degenerate", "not finite")
    ]
    for row in rows:
        scores = row["splits"].get(split, {}).get(metric, {})
        numbers = [scores.get(name) for name in ("mean", "standard_deviation", "best")]
        shown = ["-" if number is None else f"{number:.4f}" for number in numbers]
        length = f"{row['epochs']:g}" if row["steps"] is None else str(row["steps"])
        counts = (str(row["degenerate"]), str(row["not_finite"]))
        table.append((f"{row['learning_rate']:g}", str(row["batch"]), length, str(row["runs"]), *shown, *counts))
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ["  ".join(f"{text:>{width}}" for text, width in zip(cells, widths, strict=True)) for cells in table]
    return "\n".join([title, *lines]) + "\n"
