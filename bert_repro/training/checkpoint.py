"""Checkpoints that survive a kill at any moment, and the best weights of a run so far.

A checkpoint is written beside the older ones under a temporary name, hashed into a manifest, flushed to disk and only
then renamed to `step-N`. Whatever interrupts the writing leaves the older ones as they were. When a run resumes, every
file is checked against the manifest; a damaged checkpoint is named and passed over for the next older one.

    checkpoints/step-N/config.json model.safetensors ...   a published folder: any loader of BERT reads it; with --peft
                                                            the adapter alone
                       trainer_state/optimizer.safetensors  Adam's state by parameter name
                       trainer_state/state.json             step, position in the data, gradient scaler
                       manifest.json                        SHA-256 of every file and of itself, versions, threads
"""

import json
import logging
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import nn

from bert_repro.errors import UserError
from bert_repro.hub.export import write_pooling
from bert_repro.models.loading import save_tokenizer
from bert_repro.training import adapters
from bert_repro.training.parallelism import savable
from bert_repro.utils.files import (
    BEST,
    CHECKPOINTS,
    MANIFEST,
    STEP,
    TRAINER_STATE,
    UNFINISHED,
    atomic_folder,
    atomic_path,
    disk_error,
    find_damage,
    remove_folder,
    step_of,
    write_json,
    write_manifest,
)

logger = logging.getLogger("bert_repro")

_OPTIMIZER, _STATE = f"{TRAINER_STATE}/optimizer.safetensors", f"{TRAINER_STATE}/state.json"


@dataclass(frozen=True)
class TrainerState:
    """What a run needs beside weights and optimizer state to resume exactly where it stopped.

    Args:
        step: optimizer steps taken, skipped ones included.
        skipped: steps that the fp16 scaler skipped; the learning rate does not advance on them.
        position: position in the data after `step`; JSON, understood by the run's batch source.
        scaler: state of the fp16 gradient scaler.
        data_fingerprint: the batch source's `data_fingerprint`.
        settings: of the run, as `environment.stored_settings` returns them.
        log: what `training_log` has added up since its last row, and the totals of the run.
        best: step, score and evaluations since then of `BestModel`.
    """

    step: int = 0
    skipped: int = 0
    position: dict[str, Any] | None = None
    scaler: dict[str, Any] | None = None
    data_fingerprint: dict[str, Any] | None = None
    settings: dict[str, Any] | None = None
    log: dict[str, Any] | None = None
    best: dict[str, Any] | None = None


def save(
    output_dir: Path,
    model: Any,
    optimizer_state: dict[str, torch.Tensor],
    state: TrainerState,
    *,
    tokenizer: Any,
    environment: dict[str, Any],
    keep: int,
    pooling: str = "mean",
) -> Path:
    """Writes `checkpoints/step-N` and removes the oldest ones beyond `keep`.

    Args:
        output_dir: folder of the run.
        model: the complete, plain model; saved by its own `save_pretrained`.
        optimizer_state: named by `named_state`.
        state: the rest of the run's state.
        tokenizer: saved beside the model, so that the checkpoint is usable as it is.
        environment: versions, threads, processes; a change is reported when the run resumes.
        keep: number of checkpoints to keep, at least 1.
        pooling: see `bert_repro.hub.export.write_pooling`.

    Raises:
        UserError: the disk is full or not writable; the older checkpoints are as they were.
    """
    target = output_dir / CHECKPOINTS / f"{STEP}{state.step}"
    _remove_leftovers(target.parent)
    try:
        with atomic_folder(target) as folder:
            (folder / TRAINER_STATE).mkdir()
            adapters.save(model, folder) if adapters.is_adapted(model) else model.save_pretrained(folder)
            save_tokenizer(tokenizer, folder)
            write_pooling(model, folder, tokenizer, pooling)
            safetensors.torch.save_file(optimizer_state, folder / _OPTIMIZER)
            write_json(folder / _STATE, vars(state))
            write_manifest(folder, environment)
    except UserError as error:
        reason = disk_error(error.__cause__) if error.__cause__ else None
        if reason is None:
            raise
        raise UserError(
            f"{target}: the checkpoint cannot be written ({reason}); free or unlock the disk and resume with "
            "--resume_from_checkpoint latest, older checkpoints are as they were"
        ) from error
    _rotate(output_dir, state.step, keep)
    return target


def find(output_dir: Path, wanted: str) -> Path:
    """Returns the checkpoint to resume from: a named one, which must be valid, or the newest valid one for `latest`.

    Raises:
        UserError: there is none, or the named one is damaged.
    """
    if wanted != "latest":
        damage = find_damage(Path(wanted))
        if damage:
            raise UserError(f"--resume_from_checkpoint {wanted}: {damage}; name another one or `latest`")
        return Path(wanted)
    for candidate in _newest_first(output_dir):
        damage = find_damage(candidate)
        if not damage:
            return candidate
        logger.warning("passing over %s: %s", candidate, damage)
    raise UserError(
        f"--resume_from_checkpoint latest: no valid checkpoint in {output_dir / CHECKPOINTS}; start again without it"
    )


def read_state(folder: Path) -> TrainerState:
    """Returns the state in a valid checkpoint, without weights and optimizer state."""
    return TrainerState(**json.loads((folder / _STATE).read_text(encoding="utf-8")))


def load(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, environment: dict[str, Any]) -> TrainerState:
    """Puts weights and optimizer state back and returns the rest of the state.

    Args:
        folder: a valid checkpoint, as `find` returns it.
        model: the unwrapped model, on its device.
        optimizer: freshly built for that model.
        environment: today's; each difference from the checkpoint's is reported, since bit-exactness ends there.

    Raises:
        UserError: the weights or the optimizer state are those of another model or optimizer.
    """
    _load_weights(folder, model)
    saved = safetensors.torch.load_file(folder / _OPTIMIZER)
    # An optimizer that creates its state with its first update has none yet, and would start again from nothing.
    if different := sorted(saved.keys() ^ {name for name, _ in named_state(model, optimizer)}):
        raise UserError(
            f"{folder}: its optimizer state is not that of this run (for example {different[0]}); resume with the "
            "optimizer and trainable weights that its run had"
        )
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            value.copy_(saved[f"{name}/{key}"])
    _report_changes(json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["environment"], environment)
    return read_state(folder)


def _load_weights(folder: Path, model: Any) -> None:
    name = adapters.WEIGHTS if adapters.is_adapted(model) else "model.safetensors"
    if not (folder / name).is_file():
        raise UserError(f"{folder}: holds no {name}; resume with the same --peft as the run had")
    if adapters.is_adapted(model):
        missing, unexpected = adapters.load(model, folder)
    else:
        weights, own = safetensors.torch.load_file(folder / name), model.state_dict()
        for key, value in weights.items():
            if key in own and own[key].shape != value.shape:
                raise UserError(
                    f"{folder}: {key} has the shape {list(value.shape)}, and this model's {list(own[key].shape)}; "
                    "resume with the model and data that its run had"
                )
        missing, unexpected = model.load_state_dict(weights, strict=False)
    tied = set(getattr(model, "all_tied_weights_keys", None) or {})
    if unexpected or set(missing) - tied:
        raise UserError(f"{folder}: its weights are not those of this model (for example {(unexpected + missing)[0]})")


def named_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the state of an optimizer as `parameter/key` and tensor, in the order of the model's parameters."""
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            yield f"{name}/{key}", value


def _report_changes(before: dict[str, Any], now: dict[str, Any]) -> None:
    for name in sorted(set(before) | set(now)):
        if before.get(name) != now.get(name):
            logger.warning(
                "resuming with another %s (%s, was %s): the run is valid but not bit-identical to an uninterrupted one",
                name,
                now.get(name),
                before.get(name),
            )


def drop_last(output_dir: Path, step: int) -> None:
    """Removes the checkpoint of a run's last step, and the folder of checkpoints if that was the only one."""
    folder = output_dir / CHECKPOINTS
    if (folder / f"{STEP}{step}").is_dir():
        remove_folder(folder / f"{STEP}{step}")
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def _newest_first(output_dir: Path) -> list[Path]:
    steps = ((step_of(path), path) for path in (output_dir / CHECKPOINTS).glob(f"{STEP}*"))
    return [path for _, path in sorted(((step, path) for step, path in steps if step is not None), reverse=True)]


def _rotate(output_dir: Path, step: int, keep: int) -> None:
    # Later steps do not count: a damaged one that was passed over must not push out the one just written.
    up_to_now = [path for path in _newest_first(output_dir) if (step_of(path) or 0) <= step]
    for old in up_to_now[keep:]:
        remove_folder(old)


def _remove_leftovers(checkpoints: Path) -> None:
    """Removes what a killed process was writing or removing; one process at a time writes in a run's folder."""
    for prefix in UNFINISHED:
        for folder in checkpoints.glob(f"{prefix}*"):
            shutil.rmtree(folder, ignore_errors=True)


class BestModel:
    """Keeps the weights that scored best on dev, and stops when they no longer improve (not in the paper).

    The weights are in OUTPUT/best/ until the run has ended. A checkpoint names the step of the best weights so far, and
    their file stays until a later checkpoint names another, so a resumed run decides as an uninterrupted one.

    Args:
        output_dir: folder of the run.
        metric: the metric that decides; higher is better.
        patience: stop after this many evaluations in a row without a better score; None: never.
    """

    def __init__(self, output_dir: Path, metric: str, *, patience: int | None) -> None:
        self.folder, self.metric = output_dir / BEST, metric
        self.patience = patience
        self.step, self.score, self.stale = 0, float("-inf"), 0

    @property
    def should_stop(self) -> bool:
        """Whether `patience` evaluations in a row brought no better score."""
        return self.patience is not None and self.stale >= self.patience

    def state(self) -> dict[str, Any] | None:
        """Returns what a checkpoint keeps; None before the first evaluation."""
        return {"step": self.step, "score": self.score, "stale": self.stale} if self.step else None

    def load(self, state: dict[str, Any] | None) -> None:
        """Takes the state of a checkpoint, when the run resumes."""
        if state:
            self.step, self.score, self.stale = state["step"], state["score"], state["stale"]

    def consider(self, metrics: Mapping[str, Any], step: int, model: torch.nn.Module, *, write: bool) -> None:
        """Takes an evaluation, and keeps the weights when it is the best so far.

        Args:
            metrics: of the evaluation; equal on all processes.
            step: optimizer steps taken.
            model: the complete model.
            write: whether this process writes.

        Raises:
            UserError: the disk is full or not writable.
        """
        if not metrics[self.metric] > self.score:  # NaN is not better
            self.stale += 1
            return
        self.step, self.score, self.stale = step, metrics[self.metric], 0
        if write:
            with atomic_path(self._weights()) as path:
                safetensors.torch.save_model(savable(model), str(path))

    def forget_others(self) -> None:
        """Removes weights that neither the newest checkpoint nor this run names any more."""
        for path in self.folder.glob("*.safetensors"):
            if path != self._weights():
                path.unlink(missing_ok=True)

    def restore(self, model: torch.nn.Module) -> None:
        """Loads the best weights into the model; without an evaluation it changes nothing."""
        if self.step:
            safetensors.torch.load_model(model, str(self._weights()))
            logger.info("weights of step %d, the best on dev: %s %.4f", self.step, self.metric, self.score)

    def _weights(self) -> Path:
        return self.folder / f"{STEP}{self.step}.safetensors"
