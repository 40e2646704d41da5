"""Checkpoints along a run as revisions of its repository: `from_pretrained(repo_id, revision="step-100000")`."""

import json
import logging
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bert_repro.errors import UserError
from bert_repro.hub.card import make_card
from bert_repro.hub.push import MAIN, push_folder
from bert_repro.models.configuration_bert_repro import HEADS
from bert_repro.results import with_current_names

logger = logging.getLogger("bert_repro")

RESULTS = "results.json"
_CHECKPOINTS = "checkpoints"
_PREFIX = "step-"


def revision_of(folder: Path) -> str:
    """The branch that a folder is pushed to unless told otherwise: `step-N` for a checkpoint, else `main`."""
    return folder.name if step_of(folder) is not None else MAIN


def step_of(folder: Path) -> int | None:
    """The step of a checkpoint's folder; None: it is no checkpoint."""
    number = folder.name.removeprefix(_PREFIX)
    return int(number) if folder.name.startswith(_PREFIX) and number.isdecimal() else None


def checkpoints_of(folder: Path) -> list[Path]:
    """The checkpoints of a run, in the order of their steps.

    Raises:
        UserError: it has none.
    """
    found = [path for path in (folder / _CHECKPOINTS).glob(f"{_PREFIX}*") if step_of(path) is not None]
    if not found:
        raise UserError(f"{folder / _CHECKPOINTS} holds no checkpoint; leave --checkpoints out")
    return sorted(found, key=lambda path: step_of(path) or 0)


def checkpoint_card(checkpoint: Path, record: Mapping[str, Any], repo_id: str) -> str:
    """The card of a checkpoint: that of its run, without the scores, which are those of the finished model.

    Args:
        checkpoint: its folder.
        record: what is known of the run; see `bert_repro.hub.card`.
        repo_id: the repository.

    Raises:
        UserError: the checkpoint holds an adapter alone.
    """
    if not (checkpoint / "config.json").exists():
        raise UserError(
            f"{checkpoint}: holds an adapter alone, no model; leave --checkpoints out, and push the finished run"
        )
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    known = {name: value for name, value in record.items() if name not in _ABOUT_THE_END}
    stock = (config.get("architectures") or ["BertModel"])[0]
    ours = next((head.ours for head in HEADS.values() if head.stock == stock), stock)
    known["model"] = {"class": ours, "model_type": config["model_type"], **record.get("model", {})}
    train = {name: value for name, value in record.get("train", {}).items() if name not in _TOTALS}
    known["train"] = {**train, "steps": step_of(checkpoint), "steps_of_the_run": _steps(record)}
    return make_card({**known, "revision": checkpoint.name}, repo_id)


def record_of_checkpoint(checkpoint: Path) -> dict[str, Any]:
    """What is known of the run of a checkpoint: its results.json, or else what the checkpoint's manifest says."""
    results = checkpoint.parents[1] / RESULTS
    if results.exists():
        return dict(with_current_names(json.loads(results.read_text(encoding="utf-8"))))
    manifest = checkpoint / "manifest.json"
    if not manifest.exists():
        return {}
    environment = json.loads(manifest.read_text(encoding="utf-8"))["environment"]
    hardware = {name: environment[name] for name in ("device", "processes", "cpu_threads")}
    return {"versions": environment["versions"], "hardware": hardware}


class RevisionUploads:
    """Uploads checkpoints in a thread of its own while training goes on, one at a time.

    An upload that fails is a warning: a week of training does not end for it, and `recipes/push_to_hub.py
    --checkpoints` makes up for it as long as the checkpoint is there.

    Args:
        repo_id: the repository.
        private: see `bert_repro.hub.push.prepare_repository`.
        record: what is known of the run, for the cards.
    """

    def __init__(self, repo_id: str, *, private: bool | None, record: Mapping[str, Any]) -> None:
        from huggingface_hub.utils import disable_progress_bars

        disable_progress_bars()  # they would tear the one of the training
        self.repo_id, self.private, self.record = repo_id, private, record
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._running: Future[str] | None = None

    def start(self, checkpoint: Path) -> None:
        """Begins the upload of a checkpoint that is complete."""
        self.wait()
        self._running = self._thread.submit(self._push, checkpoint)

    def wait(self) -> None:
        """Waits for the upload under way; before older checkpoints are removed, for example."""
        if self._running is None:
            return
        try:
            self._running.result()
        except UserError as error:
            logger.warning("%s", error)
        self._running = None

    def _push(self, checkpoint: Path) -> str:
        card = checkpoint_card(checkpoint, self.record, self.repo_id)
        return push_folder(checkpoint, self.repo_id, private=self.private, revision=checkpoint.name, card=card)


_ABOUT_THE_END = (
    "metrics", "splits", "split", "rows_scored", "wall_time_seconds", "sweep", "primary_metric", "degenerate",
)  # fmt: skip
_TOTALS = ("tokens", "seconds", "flops")  # of the whole run


def _steps(record: Mapping[str, Any]) -> int | None:
    steps: int | None = record.get("train", {}).get("steps")
    return steps
