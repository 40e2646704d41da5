"""The best weights of a run so far, by its score on dev, and the decision to stop early (not in the paper)."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

import safetensors.torch
from torch import nn

from bert_repro.training.checkpoint import savable
from bert_repro.utils.files import BEST, STEP, atomic_path

logger = logging.getLogger("bert_repro")


class BestModelState(TypedDict):
    """The part of a checkpoint that `BestModel` continues from."""

    step: int
    score: float
    stale: int


class BestModel:
    """Keeps a copy of the weights that scored best on dev, and decides when to stop early.

    The weights are in OUTPUT/best/ until the run has ended. A checkpoint names the step of the best weights so far, and
    their file stays until a later checkpoint names another one. A resumed run therefore decides as an uninterrupted one
    would have.

    Args:
        output_dir: folder of the run.
        metric: the metric that decides; higher is better.
        patience: stop after this many evaluations in a row without a better score; None never stops.

    Attributes:
        step: step of the best weights; 0 before the first evaluation.
        score: their score.
        stale: evaluations since then.
    """

    def __init__(self, output_dir: Path, metric: str, *, patience: int | None) -> None:
        self.folder = output_dir / BEST
        self.metric = metric
        self.patience = patience
        self.step = 0
        self.score = float("-inf")
        self.stale = 0

    @property
    def should_stop(self) -> bool:
        """Whether the last `patience` evaluations brought no better score."""
        return self.patience is not None and self.stale >= self.patience

    def state(self) -> BestModelState | None:
        """Returns the state for a checkpoint; None before the first evaluation."""
        if not self.step:
            return None
        return {"step": self.step, "score": self.score, "stale": self.stale}

    def load(self, state: BestModelState | None) -> None:
        """Continues from the state of a checkpoint."""
        if state:
            self.step = state["step"]
            self.score = state["score"]
            self.stale = state["stale"]

    def consider(self, metrics: Mapping[str, float], step: int, model: nn.Module, *, write: bool) -> None:
        """Compares an evaluation with the best one so far, and keeps the weights if it is better.

        Args:
            metrics: metrics of the evaluation; equal on all processes.
            step: optimizer steps taken.
            model: the complete model.
            write: whether this process writes.

        Raises:
            UserError: the disk is full or not writable.
        """
        score = metrics[self.metric]
        # Written so that NaN is not better.
        is_better = score > self.score
        if not is_better:
            self.stale += 1
            return
        self.step = step
        self.score = score
        self.stale = 0
        if write:
            with atomic_path(self._weights_file()) as path:
                safetensors.torch.save_model(savable(model), str(path))

    def forget_others(self) -> None:
        """Deletes weights that neither the newest checkpoint nor this run names any more."""
        for path in self.folder.glob("*.safetensors"):
            if path != self._weights_file():
                path.unlink(missing_ok=True)

    def restore(self, model: nn.Module) -> None:
        """Loads the best weights into the model. Without an evaluation the model stays as it is."""
        if self.step:
            safetensors.torch.load_model(model, str(self._weights_file()))
            logger.info("Using the weights of step %d, the best on dev: %s %.4f", self.step, self.metric, self.score)

    def _weights_file(self) -> Path:
        return self.folder / f"{STEP}{self.step}.safetensors"
