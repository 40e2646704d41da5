"""Keeps the weights that scored best on dev, and stops when they no longer improve (not in the paper).

The weights are in OUTPUT/best/ while training lasts. Scores are those of the training log, so a resumed run replays
them and decides as the run without an interruption would have.
"""

import logging
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from bert_repro.utils.files import atomic_path
from bert_repro.utils.output_files import BEST

logger = logging.getLogger("bert_repro")


class BestModel:
    """The best evaluation of a run so far.

    Args:
        output_dir: folder of the run.
        metric: the metric that decides; higher is better.
        patience: stop after this many evaluations in a row without a better score; None: never.
        keep_weights: whether the best weights replace the last ones when training ends.
    """

    def __init__(self, output_dir: Path, metric: str, *, patience: int | None, keep_weights: bool) -> None:
        self.folder, self.metric = output_dir / BEST, metric
        self.patience, self.keep_weights = patience, keep_weights
        self.step, self.score, self.stale = 0, float("-inf"), 0

    @property
    def should_stop(self) -> bool:
        """Whether `patience` evaluations in a row brought no better score."""
        return self.patience is not None and self.stale >= self.patience

    def replay(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Takes the evaluations of a training log, when the run resumes."""
        for row in rows:
            if f"eval_{self.metric}" in row:
                self._is_better(row[f"eval_{self.metric}"], row["step"])

    def consider(self, metrics: Mapping[str, Any], step: int, model: torch.nn.Module | None) -> None:
        """Takes an evaluation, and keeps the weights when it is the best so far.

        Args:
            metrics: of the evaluation; equal on all processes.
            step: optimizer steps taken.
            model: the complete model on the process that writes; None on the others.

        Raises:
            UserError: the disk is full or not writable.
        """
        if self._is_better(metrics[self.metric], step) and self.keep_weights and model is not None:
            self.folder.mkdir(exist_ok=True)
            with atomic_path(self.folder / "model.safetensors") as path:
                safetensors.torch.save_model(model, str(path))

    def restore(self, model: torch.nn.Module) -> None:
        """Loads the best weights into the model; without an evaluation, or where they are not kept, changes nothing."""
        if self.keep_weights and self.step:
            safetensors.torch.load_model(model, str(self.folder / "model.safetensors"))
            logger.info("weights of step %d, the best on dev: %s %.4f", self.step, self.metric, self.score)

    def clear(self) -> None:
        """Removes the kept weights."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _is_better(self, score: float, step: int) -> bool:
        better = score > self.score
        if better:
            self.step, self.score, self.stale = step, score, 0
        else:
            self.stale += 1
        return better
