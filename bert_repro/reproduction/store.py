"""Where the runs of a study lie, which are done, and what is kept of them.

    OUTPUT/runs/RUN/        the run's own output folder; of pre-training runs the model and its checkpoints stay
    RECORDS/RUN/            results.json with the cells that it fills, and what the report needs beside it

A run is done when its record is there, and its name holds a digest of its settings: what was made is found again, and
never taken for something else.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

from bert_repro.errors import NonFiniteError, UserError
from bert_repro.reproduction.size_presets import as_settings
from bert_repro.reproduction.suite import Run
from bert_repro.results import read_results
from bert_repro.training import checkpoint
from bert_repro.utils import status
from bert_repro.utils.files import write_json, write_text
from bert_repro.utils.locks import lock, unlock
from bert_repro.utils.output_files import STATUS, SWEEP, SWEEP_STATE

RESULTS = "results.json"
_WEIGHTS = "*.safetensors*"


class Store:
    """The folders of a study.

    Args:
        output_dir: for the runs.
        records_dir: for their records; default: `records` in output_dir.
    """

    def __init__(self, output_dir: str, records_dir: str | None) -> None:
        self.output_dir = Path(output_dir)
        self.records = Path(records_dir) if records_dir else self.output_dir / "records"

    def folder(self, run: Run) -> Path:
        """The run's output folder."""
        return self.output_dir / "runs" / run.id

    def record(self, run: Run) -> Path:
        """The folder of what is kept of the run."""
        return self.records / run.id

    def is_done(self, run: Run) -> bool:
        """Whether the run's record is there."""
        return (self.record(run) / RESULTS).exists()

    def can_start(self, run: Run) -> bool:
        """Whether the very model that a fine-tuning run starts from is there."""
        assert run.start is not None, "pre-training starts from nothing"
        return self.is_done(run.start) and any(self.start_folder(run).glob(_WEIGHTS))

    def has_failed(self, run: Run) -> bool:
        """Whether the run ended with a loss that is not finite."""
        return not self.is_done(run) and self._exit_code(run) == NonFiniteError.exit_code

    def claim(self, run: Run) -> bool:
        """Takes the run for this process, until `release` or the process's end; False if another one has it."""
        folder = self.folder(run)
        folder.mkdir(parents=True, exist_ok=True)
        return lock(folder)

    def let_go(self, run: Run) -> None:
        """Gives the run back as it was."""
        unlock(self.folder(run))

    def release(self, run: Run, code: int, reason: str) -> None:
        """Gives the run back and writes how it ended."""
        status.finish(str(self.folder(run)), code, reason)

    def is_begun(self, run: Run) -> bool:
        """Whether the run was interrupted and left a checkpoint to go on from."""
        if self._exit_code(run) == 0:
            return False  # it ended, and is made again because something of it is gone
        if (self.folder(run) / SWEEP / SWEEP_STATE).exists():
            return True  # a sweep resumes with the first of its runs that is not done
        try:
            checkpoint.find(self.folder(run), "latest")
        except UserError:
            return False
        return True

    def start_folder(self, run: Run) -> Path:
        """The model that a fine-tuning run starts from."""
        assert run.start is not None, "pre-training starts from nothing"
        folder = self.folder(run.start)
        return folder if run.step is None else folder / checkpoint.FOLDER / f"step-{run.step}"

    def keep(self, run: Run, scale: str, files: dict[str, Any]) -> None:
        """Records a finished run: complete in one move, so that a kill leaves no half record.

        Args:
            run: the run; its output folder holds results.json.
            scale: name of the scale.
            files: name -> content of more JSON files.
        """
        results = read_results(self.folder(run))
        results["study"] = self._study(run, scale)
        results["settings"] |= {name: None for name in _FOLDERS if name in results["settings"]}
        results.pop("command", None)
        target = self.record(run)
        stage = target.with_name(f".{target.name}.{os.getpid()}")
        shutil.rmtree(stage, ignore_errors=True)
        stage.mkdir(parents=True)
        for name, content in files.items():
            write_text(stage / name, json.dumps(content, separators=(",", ":"), allow_nan=False) + "\n")
        write_json(stage / RESULTS, results)
        shutil.rmtree(target, ignore_errors=True)
        os.replace(stage, target)

    def update_cells(self, run: Run) -> None:
        """Adds cells to a record that was made for fewer tables."""
        path = self.record(run) / RESULTS
        results = json.loads(path.read_text(encoding="utf-8"))
        cells = [vars(cell) for cell in run.cells]
        missing = [cell for cell in cells if cell not in results["study"]["cells"]]
        if missing:
            results["study"]["cells"] += missing
            write_json(path, results)

    def drop_weights(self, run: Run) -> None:
        """Removes the weights of a fine-tuned model and its checkpoints."""
        for folder in (self.folder(run), *self.folder(run).glob(f"{SWEEP}/*/*")):
            for path in folder.glob(_WEIGHTS):
                path.unlink()
        shutil.rmtree(self.folder(run) / checkpoint.FOLDER, ignore_errors=True)

    def _exit_code(self, run: Run) -> int | None:
        path = self.folder(run) / STATUS
        code: int | None = json.loads(path.read_text(encoding="utf-8"))["code"] if path.exists() else None
        return code

    def _study(self, run: Run, scale: str) -> dict[str, Any]:
        return {
            "run": run.id,
            "scale": scale,
            "cells": [vars(cell) for cell in run.cells],
            "pretraining": (run.start or run).id,
            "checkpoint_step": run.step,
            "settings": as_settings(run.settings),
        }


# Folders of one machine decide nothing and do not belong into a record that is published.
_FOLDERS = ("output_dir", "corpus", "data_dir", "model_name_or_path", "feature_cache_dir")
