"""The folders of a study: where its runs are made, which are done, and what is kept of them for the report.

    OUTPUT/runs/RUN/        the run's own output folder; of pre-training runs the model and its checkpoints stay
    RECORDS/RUN/            results.json with the table entries that it fills, and one file beside it

A run is done when its results are kept, and its name holds a digest of its settings: what was made is found again, and
never taken for something else.

Beside the results of a fine-tuning run, `examples.json` holds a score for every example of each scored split, in the
split's order, for paired statistics (`Task.example_scores`):

    {"validation": {"accuracy": [1, 0, ...]}}

Beside those of a pre-training run, `curve.json` holds the losses along it, at most `CURVE_POINTS` of each:

    {"training": {"step": [...], "mlm_loss": [...], "nsp_loss": [...]}, "heldout": {"step": [...], "mlm_loss": [...]}}

A left-to-right model has `lm_loss` instead of `mlm_loss`. Neither file holds text of any data set.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_repro.configs import FinetuningConfig, PretrainingConfig
from bert_repro.errors import NonFiniteError, UserError
from bert_repro.finetuning.data import load_splits
from bert_repro.models.loading import load_tokenizer
from bert_repro.reproduction.size_presets import json_settings
from bert_repro.reproduction.suite import PlannedRun
from bert_repro.results import read_results, write_results
from bert_repro.tasks import configured_task
from bert_repro.training import checkpoint, training_log
from bert_repro.utils import process
from bert_repro.utils.files import (
    CHECKPOINTS,
    RESULTS,
    SWEEP,
    SWEEP_STATE,
    TRAIN_LOG,
    atomic_folder,
    lock,
    unlock,
    write_text,
)

EXAMPLES_FILE = "examples.json"
CURVE_FILE = "curve.json"
CURVE_POINTS = 200
_CURVES = ("mlm_loss", "nsp_loss", "lm_loss")
_DIGITS = 5  # of a loss; what is drawn needs no more
_WEIGHTS = "*.safetensors*"
# Folders of one machine decide nothing and do not belong into results that are published.
_FOLDER_SETTINGS = ("output_dir", "corpus", "data_dir", "model_name_or_path", "feature_cache_dir")


class RunStore:
    """The folders of a study.

    Args:
        output_dir: for the runs.
        records_dir: for what is kept of them; default: `records` in output_dir.
    """

    def __init__(self, output_dir: str, records_dir: str | None) -> None:
        self.output_dir = Path(output_dir)
        self.records = Path(records_dir) if records_dir else self.output_dir / "records"

    def folder(self, run: PlannedRun) -> Path:
        """Returns the run's output folder."""
        return self.output_dir / "runs" / run.id

    def kept_folder(self, run: PlannedRun) -> Path:
        """Returns the folder of what is kept of the run."""
        return self.records / run.id

    def start_folder(self, run: PlannedRun) -> Path:
        """Returns the folder of the model that a fine-tuning run starts from."""
        assert run.start is not None, "pre-training starts from nothing"
        folder = self.folder(run.start)
        return folder if run.step is None else folder / CHECKPOINTS / f"step-{run.step}"

    def is_done(self, run: PlannedRun) -> bool:
        """Whether the run's results are kept."""
        return (self.kept_folder(run) / RESULTS).exists()

    def has_failed(self, run: PlannedRun) -> bool:
        """Whether the run ended with a loss that is not finite."""
        return not self.is_done(run) and process.recorded_exit_code(self.folder(run)) == NonFiniteError.exit_code

    def can_start(self, run: PlannedRun) -> bool:
        """Whether the very model that a run starts from is there."""
        return run.start is None or (self.is_done(run.start) and any(self.start_folder(run).glob(_WEIGHTS)))

    def can_resume(self, run: PlannedRun) -> bool:
        """Whether the run was interrupted and left a checkpoint to resume from."""
        if process.recorded_exit_code(self.folder(run)) == 0:
            return False  # it ended, and is made again because something of it is gone
        if (self.folder(run) / SWEEP / SWEEP_STATE).exists():
            return True  # a sweep resumes with the first of its configurations that is not done
        try:
            checkpoint.find(self.folder(run), "latest")
        except UserError:
            return False
        return True

    def claim(self, run: PlannedRun) -> bool:
        """Locks the run for this process, until it is released or the process ends; False if another one has it."""
        folder = self.folder(run)
        folder.mkdir(parents=True, exist_ok=True)
        return lock(folder)

    def release(self, run: PlannedRun) -> None:
        """Unlocks the run and leaves its status as it was."""
        unlock(self.folder(run))

    def finish(self, run: PlannedRun, code: int, reason: str) -> None:
        """Writes how the run ended and unlocks it."""
        process.record_outcome(str(self.folder(run)), code, reason)

    def keep(self, run: PlannedRun, size_preset: str, files: Mapping[str, Any]) -> None:
        """Keeps the results of a finished run: complete in one move, so that a kill leaves no half of them.

        Args:
            run: the run; its output folder holds results.json.
            size_preset: name of the size preset.
            files: name -> content of more JSON files.
        """
        results = read_results(self.folder(run))
        results["study"] = {
            "run": run.id,
            "size_preset": size_preset,
            "table_entries": [vars(entry) for entry in run.entries],
            "pretraining": run.pretraining.id,
            "start": run.start.id if run.start else None,
            "checkpoint_step": run.step,
            "settings": json_settings(run.settings),
        }
        results["settings"] |= {name: None for name in _FOLDER_SETTINGS if name in results["settings"]}
        results.pop("command", None)
        with atomic_folder(self.kept_folder(run)) as folder:
            for name, content in files.items():
                write_text(folder / name, json.dumps(content, separators=(",", ":"), allow_nan=False) + "\n")
            write_results(folder, results)

    def update_entries(self, run: PlannedRun) -> None:
        """Adds table entries to results that were kept for fewer tables."""
        results = read_results(self.kept_folder(run))
        study = results["study"]
        known = study.setdefault("table_entries", [])
        missing = [vars(entry) for entry in run.entries if vars(entry) not in known]
        if missing:
            known += missing
            write_results(self.kept_folder(run), results)

    def drop_weights(self, run: PlannedRun) -> None:
        """Removes the weights of a fine-tuned model and its checkpoints."""
        for folder in (self.folder(run), *self.folder(run).glob(f"{SWEEP}/*/*")):
            for path in folder.glob(_WEIGHTS):
                path.unlink()
        shutil.rmtree(self.folder(run) / CHECKPOINTS, ignore_errors=True)


def report_files_of(config: PretrainingConfig | FinetuningConfig) -> dict[str, Any]:
    """Returns the small files that the report needs of a finished run.

    Args:
        config: the run's settings; its output folder holds results and predictions.

    Returns:
        File name -> content, ready for JSON: the losses of a pre-training run, or the scores of every example of the
        splits that were scored.
    """
    folder = Path(config.output_dir)
    if isinstance(config, PretrainingConfig):
        return {CURVE_FILE: loss_curve(folder)}
    splits = [name for name, scored in read_results(folder).get("splits", {}).items() if scored.get("metrics")]
    task = configured_task(config).prepared(config, load_tokenizer(config.model_name_or_path))
    data = load_splits(task, config.data_dir, splits)
    return {EXAMPLES_FILE: {split: task.example_scores(split, data[split], folder) for split in splits}}


def loss_curve(run_folder: Path) -> dict[str, dict[str, list[float]]]:
    """Reads the losses that a pre-training run logged; neighbors are averaged where there are too many.

    Raises:
        UserError: the run has logged no loss.
    """
    path = run_folder / TRAIN_LOG
    rows = training_log.read(path)
    training = [row for row in rows if "learning_rate" in row]
    if not training:
        raise UserError(f"{path}: logs no training step; name the output folder of a pre-training run")
    if "mlm_loss" not in training[0]:
        training = [{**row, "lm_loss": row["loss"]} for row in training]
    evaluations = [row for row in rows if "learning_rate" not in row]
    heldout = [{name.removeprefix("eval_"): value for name, value in row.items()} for row in evaluations]
    return {"training": _columns(training), "heldout": _columns(heldout)}


def _columns(rows: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    if not rows:
        return {}
    groups = np.array_split(np.arange(len(rows)), min(CURVE_POINTS, len(rows)))
    columns: dict[str, list[float]] = {"step": [int(rows[group[-1]]["step"]) for group in groups]}
    for name in _CURVES:
        if all(name in row for row in rows):
            columns[name] = [round(float(np.mean([rows[index][name] for index in group])), _DIGITS) for group in groups]
    return columns
