"""The paper's search: a grid of learning rates, batch sizes and epochs, each with random restarts (4.1, A.3).

Every run of a search is an ordinary fine-tuning run in a folder of its own, named by what the search varies:

    OUTPUT/search/lr5e-05-batch32-epochs3/seed42/   results.json, predictions, log; of the best run also the model
    OUTPUT/search/search.json, table.txt            what has been found so far
    OUTPUT/                                         the best model, published as that of a single run

So the same command goes on where it was interrupted, and a wider grid keeps what is done: a finished run is one whose
results are there, and a run that was interrupted goes on from its newest checkpoint.
"""

import json
import logging
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.utils import broadcast_object_list

from bert_repro.configs import SEARCHED, AdapterConfig, FinetuningConfig, current_names
from bert_repro.corpus.tokenizer import load_tokenizer
from bert_repro.errors import NonFiniteError, StopRequested, UserError
from bert_repro.finetuning.data import SplitCache
from bert_repro.finetuning.run import finetune
from bert_repro.finetuning.sweep_table import Cell, Outcome, best_run, search_record, text_table
from bert_repro.hub.export import republish
from bert_repro.hub.push import push_folder
from bert_repro.hub.redaction import redacted
from bert_repro.tasks.base import Task
from bert_repro.training import checkpoint, run
from bert_repro.training.micro_batches import batch_sizes
from bert_repro.utils import status
from bert_repro.utils.files import write_json
from bert_repro.utils.output_files import STATUS

logger = logging.getLogger("bert_repro")

FILE_NAME, TABLE = "search.json", "table.txt"
_RESULTS = "results.json"
_TEST = "test"  # folder of the best run's test predictions
_ADAPTER = "adapter"  # folder of a model that was trained through one
_ONLY_TRAINING = {"bilstm_size", "feature_based", *(item.name for item in fields(AdapterConfig))}
# Settings that are in a run's place, or that change no result: a search may go on with others.
_FREE = {
    *SEARCHED, *SEARCHED.values(), "seed", "num_restarts", "max_steps", "sweep_keep_models", "output_dir",
    "overwrite_output_dir", "resume_from_checkpoint", "do_predict", "push_to_hub", "hub_model_id", "report_to",
    "logging_steps", "eval_steps", "save_steps", "save_total_limit", "dataloader_num_workers",
    "dataloader_prefetch_factor", "dataloader_pin_memory", "hub_private_repo", "per_device_train_batch_size",
    "gradient_accumulation_steps", "per_device_eval_batch_size",
}  # fmt: skip


def run_sweep(config: FinetuningConfig, task: Task) -> dict[str, Any]:
    """Makes every run of a search that is not there yet and publishes the model that is best on dev.

    Dev is the task's first dev split and best is the highest of its main metric. A run whose loss is not finite is
    counted, and the others go on.

    Returns:
        The record of the best run, with the whole search under `search`.

    Raises:
        UserError: the output folder holds something else or another search, or a run cannot be made as asked.
        NonFiniteError: no run has a score.
        StopRequested: see `bert_repro.training.trainer.Trainer.train`; the run's checkpoint is written.
    """
    begun = _begin(config)
    accelerator = begun.accelerator
    labelled = _test_set_is_labelled(config, task, accelerator)
    begun.clear()
    if accelerator.is_main_process and not (_folder(config) / FILE_NAME).exists():
        _folder(config).mkdir(exist_ok=True)
        _write(config, None)
    plan = list(_plan(config, task, accelerator.num_processes, each_predicts=labelled))
    found = _Search(config, task, accelerator, plan)
    for number, planned in enumerate(plan, start=1):
        logger.info("run %d of %d: %s, seed %d", number, len(plan), planned.cell.name, planned.config.seed)
        found.settle(planned)
    best = found.best()
    found.settle(best, with_model=True)
    if config.do_predict and not labelled:
        found.predict(best)
    results = found.publish(best)
    accelerator.end_training()
    return results


@dataclass(frozen=True)
class _Planned:
    """A run of the plan: its cell, its folder below the search's, and the configuration that makes it."""

    cell: Cell
    folder: str
    config: FinetuningConfig

    @property
    def path(self) -> Path:
        return Path(self.config.output_dir)


class _Search:
    """The runs of a plan. All processes take the same decisions, on what the main one finds on disk."""

    def __init__(self, config: FinetuningConfig, task: Task, accelerator: Accelerator, plan: list[_Planned]) -> None:
        self.config, self.task, self.accelerator, self.plan = config, task, accelerator, plan
        self._cache: SplitCache = {}

    def settle(self, planned: _Planned, *, with_model: bool = False) -> None:
        """Makes a run unless it is done.

        Args:
            planned: the run.
            with_model: make it again if its model is gone, as after a wider search that had a better one.
        """
        state = self._agreed(self._state(planned))
        if state == "not finite":
            return
        if state == "done" and not (with_model and self._agreed(not _models(planned.path))):
            self._close(planned, 0, "done")
            return
        resume = "latest" if state == "begun" else None
        config = replace(planned.config, resume_from_checkpoint=resume, overwrite_output_dir=resume is None)
        try:
            finetune(config, self.task, last=False, cache=self._cache)
            self._close(planned, 0, "done")
        except NonFiniteError as error:
            logger.warning("%s, seed %d: %s", planned.cell.name, planned.config.seed, error)
            self._close(planned, error.exit_code, str(error))
        except StopRequested as stop:
            self._close(planned, stop.exit_code, str(stop))
            raise

    def best(self) -> _Planned:
        """The run that is best on dev.

        Raises:
            NonFiniteError: none has a score.
        """
        best = self._agreed(best_run(self._outcomes(), self._split(), self.task.primary_metric))
        if best is None:
            raise NonFiniteError(
                f"{self.config.output_dir}: none of the {len(self.plan)} runs kept a finite loss; lower the learning "
                "rates or lengthen the warm-up, and start anew with --overwrite_output_dir"
            )
        if best.collapsed:
            logger.warning("the best run says the same of every row, and none of the others scores higher")
        return next(planned for planned in self.plan if planned.folder == best.folder)

    def predict(self, best: _Planned) -> None:
        """Predicts the test set with the best run's model, in a folder of that run."""
        path = best.path / _TEST
        if self._agreed((path / _RESULTS).exists()):
            return
        only: dict[str, Any] = {"do_train": False, "do_eval": False, "do_predict": True, "output_dir": str(path)}
        # The finished model holds these by itself; a run that does not train refuses them.
        only |= {item.name: item.default for item in fields(best.config) if item.name in _ONLY_TRAINING}
        config = replace(best.config, model_name_or_path=str(best.path), overwrite_output_dir=True, **only)
        finetune(config, self.task, last=False, cache=self._cache)

    def publish(self, best: _Planned) -> dict[str, Any]:
        """Publishes the best run's model in the output folder, with the search in its record; returns that."""
        results = None
        if self.accelerator.is_main_process:
            record = self.record()
            _publish(self.config, best, record)
            results = run.read_results(Path(self.config.output_dir))
            logger.info("%s", text_table(record))
        agreed: dict[str, Any] = self._agreed(results)
        return agreed

    def record(self) -> dict[str, Any]:
        """What has been found so far, for results.json."""
        return search_record(self._outcomes(), split=self._split(), metric=self.task.primary_metric)

    def _close(self, planned: _Planned, code: int, reason: str) -> None:
        """Records how a run ended; of those that are done keeps what is still needed."""
        if not self.accelerator.is_main_process:
            return
        status.finish(str(planned.path), code, reason)
        outcomes = self._outcomes()
        best = best_run(outcomes, self._split(), self.task.primary_metric)
        for other in self.plan:
            if self._state(other) == "done":
                shutil.rmtree(other.path / checkpoint.FOLDER, ignore_errors=True)
                if best is not None and other.folder != best.folder and not self.config.sweep_keep_models:
                    _remove_model(other.path)
        if outcomes:
            _write(self.config, self.record())

    def _outcomes(self) -> list[Outcome]:
        """The runs that ended by themselves, in the order of the plan."""
        outcomes = []
        for planned in self.plan:
            state, run_of = self._state(planned), (planned.cell, planned.config.seed, planned.folder)
            if state == "done":
                results = run.read_results(planned.path)
                scores = {name: split["metrics"] for name, split in results["splits"].items() if "metrics" in split}
                outcomes.append(Outcome(*run_of, scores, results["collapsed"]))
            elif state == "not finite":
                outcomes.append(Outcome(*run_of, None))
        return outcomes

    def _split(self) -> str:
        """The dev split that chooses: the first that is there."""
        done = next((planned for planned in self.plan if self._state(planned) == "done"), None)
        return str(run.read_results(done.path)["split"]) if done else self.task.eval_splits[0]

    def _state(self, planned: _Planned) -> str:
        """done, not finite, begun (a checkpoint is there) or new."""
        path, predicts = planned.path, planned.config.do_predict
        if (path / _RESULTS).exists():
            splits = run.read_results(path)["splits"]
            return "done" if not predicts or any(name in splits for name in self.task.predict_splits) else "new"
        if (path / STATUS).exists():
            code = json.loads((path / STATUS).read_text(encoding="utf-8"))["code"]
            if code == NonFiniteError.exit_code:
                return "not finite"
        try:
            checkpoint.find(path, "latest")
        except UserError:
            return "new"
        return "begun"

    def _agreed(self, value: Any) -> Any:
        """What the main process says."""
        return broadcast_object_list([value])[0]


def _begin(config: FinetuningConfig) -> run.Run:
    """Locks the output folder, for a new search or to go on with the one that is there, and sets up the devices."""
    claim = replace(config, report_to="none")
    anew = config.overwrite_output_dir and not config.resume_from_checkpoint
    if int(os.environ.get("RANK", "0")) == 0 and not anew:
        folder = Path(config.output_dir)
        if (_folder(config) / FILE_NAME).exists():
            _require_same_settings(config)
            claim = replace(claim, resume_from_checkpoint="latest")
        elif config.resume_from_checkpoint and not status.is_free(folder):
            raise UserError(f"--resume_from_checkpoint latest: --output_dir {folder} holds no search; name another one")
    return run.begin(claim)


def _test_set_is_labelled(config: FinetuningConfig, task: Task, accelerator: Accelerator) -> bool:
    """Whether the test set has labels (CoNLL-2003), so that every run is scored on it; otherwise the best predicts it.

    Raises:
        UserError: the tokenizer, the training set or, if asked for, the test set is not there, which must come out
            neither after the last run nor after an earlier search is gone.
    """
    with accelerator.main_process_first():
        prepared = task.prepared(config, load_tokenizer(config.tokenizer_name or config.model_name_or_path))
        if task.train_split is not None:
            prepared.load(config.data_dir, [task.train_split])
        found = prepared.load(config.data_dir, prepared.predict_splits) if config.do_predict else {}
    return any(prepared.is_labelled(dataset) for dataset in found.values())


def _plan(config: FinetuningConfig, task: Task, processes: int, *, each_predicts: bool) -> Iterator[_Planned]:
    """All runs, cell by cell."""
    once: dict[str, Any] = {**dict.fromkeys(SEARCHED, ()), "num_restarts": 1, "do_predict": each_predicts}
    once |= {"resume_from_checkpoint": None, "push_to_hub": False, "hub_model_id": None}
    rates = config.sweep_learning_rates or (config.learning_rate,)
    batches = config.sweep_batch_sizes or (config.train_batch_size,)
    lengths = config.sweep_num_train_epochs or (config.num_train_epochs,)
    for rate, batch, epochs in product(rates, batches, lengths):
        chosen = replace(config, learning_rate=rate, train_batch_size=batch, num_train_epochs=epochs, **once)
        sequences = batch_sizes(chosen, processes, task.paper_batch).batch
        passes = None if config.max_steps else epochs or task.paper_epochs
        cell = Cell(rate, sequences, passes, config.max_steps)
        for seed in range(config.seed, config.seed + config.num_restarts):
            folder = f"{cell.name}/seed{seed}"
            yield _Planned(cell, folder, replace(chosen, seed=seed, output_dir=str(_folder(config) / folder)))


def _publish(config: FinetuningConfig, best: _Planned, record: dict[str, Any]) -> None:
    output_dir, results = Path(config.output_dir), run.read_results(best.path)
    files = [path for path in (best.path / _ADAPTER,) if path.exists()]
    asked = ("output_dir", "overwrite_output_dir", "do_predict", "push_to_hub", "hub_model_id")
    results["settings"] |= {name: getattr(config, name) for name in asked}
    if config.do_predict and not best.config.do_predict:
        test = best.path / _TEST
        results["splits"] |= run.read_results(test)["splits"]
        files += [path for path in test.iterdir() if "prediction" in path.name or "null_odds" in path.name]
    republish(best.path, output_dir, results={**results, "search": record}, files=files)
    if config.push_to_hub and config.hub_model_id:
        push_folder(output_dir, config.hub_model_id, private=config.hub_private_repo)


def _models(path: Path) -> list[Path]:
    return list(path.glob("*.safetensors*"))


def _remove_model(path: Path) -> None:
    for file in (*_models(path), path / "README.md"):
        file.unlink(missing_ok=True)
    shutil.rmtree(path / _ADAPTER, ignore_errors=True)


def _require_same_settings(config: FinetuningConfig) -> None:
    path = _folder(config) / FILE_NAME
    before = current_names(json.loads(path.read_text(encoding="utf-8"))["settings"])
    for name, value in _settings(config).items():
        if before.get(name, value) != value:
            raise UserError(
                f"{path}: this search has --{name} {before[name]}, not {value}; name another --output_dir, or start "
                "anew with --overwrite_output_dir"
            )


def _settings(config: FinetuningConfig) -> dict[str, Any]:
    kept = {name: value for name, value in asdict(config).items() if name not in _FREE}
    settings: dict[str, Any] = json.loads(json.dumps(redacted(kept)))
    return settings


def _write(config: FinetuningConfig, record: dict[str, Any] | None) -> None:
    """Writes what has been found so far."""
    write_json(_folder(config) / FILE_NAME, {"settings": _settings(config), "found": record})
    if record is not None:
        (_folder(config) / TABLE).write_text(text_table(record), encoding="utf-8")


def _folder(config: FinetuningConfig) -> Path:
    return Path(config.output_dir) / run.SEARCH
