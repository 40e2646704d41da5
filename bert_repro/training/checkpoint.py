"""Checkpoints that survive a kill at any moment.

A checkpoint is written beside the older ones under a temporary name, flushed to disk, hashed into a manifest and only
then renamed to `step-N`. Whatever interrupts the writing leaves the older ones as they were. When a run resumes, every
file is checked against the manifest; a damaged checkpoint is named and passed over for the next older one.

    checkpoints/step-N/config.json model.safetensors ...   a published folder: any loader of BERT reads it; with --peft
                                                            the adapter alone
                       trainer_state/optimizer.safetensors  Adam's moments by parameter name
                       trainer_state/state.json             step, position in the data, gradient scaler
                       manifest.json                        SHA-256 of every file and of itself, versions, threads
"""

import errno
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import nn

from bert_repro.corpus.tokenizer import save_tokenizer
from bert_repro.errors import UserError
from bert_repro.training import adapters
from bert_repro.training.parallelism import placed_like
from bert_repro.utils.files import write_json

logger = logging.getLogger("bert_repro")

FOLDER = "checkpoints"
MANIFEST = "manifest.json"
STATE = "trainer_state"
_DISK_ERRORS = {errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT, errno.EPERM}


@dataclass(frozen=True)
class TrainerState:
    """What a run needs beside weights and optimiser moments to go on exactly where it stopped.

    Args:
        step: optimiser steps taken, skipped ones included.
        skipped: steps that the fp16 scaler skipped; the learning rate does not advance on them.
        position: where the data stands after `step`; JSON, understood by the run's batch source.
        scaler: state of the fp16 gradient scaler.
        plan: the batch source's `plan`.
    """

    step: int = 0
    skipped: int = 0
    position: dict[str, Any] | None = None
    scaler: dict[str, Any] | None = None
    plan: dict[str, Any] | None = None


def save(
    output_dir: Path,
    model: Any,
    moments: dict[str, torch.Tensor],
    state: TrainerState,
    *,
    tokenizer: Any,
    environment: dict[str, Any],
    keep: int,
) -> Path:
    """Writes `checkpoints/step-N` and removes the oldest ones beyond `keep`.

    Args:
        output_dir: folder of the run.
        model: the whole, plain model; saved by its own `save_pretrained`.
        moments: state of the optimiser, named by `named_moments`, on the CPU.
        state: the rest of the run's state.
        tokenizer: saved beside the model, so that the checkpoint is usable as it is.
        environment: versions, threads, processes; a change is reported when the run resumes.
        keep: number of checkpoints to keep, at least 1.

    Raises:
        UserError: the disk is full or not writable; the older checkpoints are whole.
    """
    target = output_dir / FOLDER / f"step-{state.step}"
    temporary = target.with_name(f".writing-{target.name}")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        (temporary / STATE).mkdir(parents=True)
        adapters.save(model, temporary) if adapters.is_adapted(model) else model.save_pretrained(temporary)
        save_tokenizer(tokenizer, temporary)
        safetensors.torch.save_file(moments, temporary / STATE / "optimizer.safetensors")
        write_json(temporary / STATE / "state.json", vars(state))
        files = {str(path.relative_to(temporary)): _flush_and_hash(path) for path in _files(temporary)}
        manifest = {"step": state.step, "environment": environment, "files": files}
        write_json(temporary / MANIFEST, {**manifest, "sha256": _sha256_of_json(manifest)})
        _flush_and_hash(temporary / MANIFEST)
        _replace_folder(temporary, target)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if error.errno in _DISK_ERRORS:
            raise UserError(
                f"{target}: the checkpoint cannot be written ({error.strerror}); free or unlock the disk and resume "
                "with --resume_from_checkpoint latest, older checkpoints are whole"
            ) from error
        raise
    _rotate(output_dir, state.step, keep)
    return target


def find(output_dir: Path, wanted: str) -> Path:
    """The checkpoint to resume from: a named one, which must be whole, or the newest whole one for `latest`.

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
        f"--resume_from_checkpoint latest: no whole checkpoint in {output_dir / FOLDER}; start anew without it"
    )


def find_damage(folder: Path) -> str | None:
    """What is wrong with a checkpoint, or None when every file is as its manifest says."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if manifest.pop("sha256") != _sha256_of_json(manifest):
            return f"{MANIFEST} does not match its own SHA-256"
        expected = {name: (entry["sha256"], entry["bytes"]) for name, entry in manifest["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} is missing or damaged"
    for name, (sha256, size) in expected.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size} bytes instead of {size}"
        if _sha256(path) != sha256:
            return f"{name} does not match its SHA-256"
    return None


def state_of(folder: Path) -> TrainerState:
    """The state in a whole checkpoint, without weights and moments."""
    return TrainerState(**json.loads((folder / STATE / "state.json").read_text(encoding="utf-8")))


def load(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, environment: dict[str, Any]) -> TrainerState:
    """Puts weights and optimiser moments back and returns the rest of the state.

    Args:
        folder: a whole checkpoint, as `find` returns it.
        model: the unwrapped model, on its device, whole or sharded.
        optimizer: freshly built for that model.
        environment: today's; each difference from the checkpoint's is reported, since bit-exactness ends there.
    """
    _load_weights(folder, model)
    moments = safetensors.torch.load_file(folder / STATE / "optimizer.safetensors")
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            value.copy_(placed_like(moments[f"{name}/{key}"], value))
    _report_changes(json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["environment"], environment)
    return state_of(folder)


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
                    f"{folder}: {key} has the shape {list(value.shape)}, and this model's {list(own[key].shape)}; go "
                    "on with the model and data that its run had"
                )
        placed = {key: placed_like(value, own[key]) if key in own else value for key, value in weights.items()}
        missing, unexpected = model.load_state_dict(placed, strict=False)
    tied = set(getattr(model, "all_tied_weights_keys", None) or {})
    if unexpected or set(missing) - tied:
        raise UserError(f"{folder}: its weights are not those of this model (for example {(unexpected + missing)[0]})")


def named_moments(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, torch.Tensor]]:
    """State of an optimiser as `parameter/key` and tensor, in the order of the model's parameters."""
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


def _newest_first(output_dir: Path) -> list[Path]:
    found = [path for path in (output_dir / FOLDER).glob("step-*") if path.name.removeprefix("step-").isdigit()]
    return sorted(found, key=_step, reverse=True)


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))


def _rotate(output_dir: Path, step: int, keep: int) -> None:
    # Later steps do not count: a damaged one that was passed over must not push out the one just written.
    up_to_now = [path for path in _newest_first(output_dir) if _step(path) <= step]
    for old in up_to_now[keep:]:
        shutil.rmtree(old)


def _replace_folder(source: Path, target: Path) -> None:
    if target.exists():
        aside = target.with_name(f".replaced-{target.name}")
        os.replace(target, aside)
        os.replace(source, target)
        shutil.rmtree(aside)
    else:
        os.replace(source, target)
    _flush(target.parent)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _flush_and_hash(path: Path) -> dict[str, Any]:
    _flush(path)
    return {"sha256": _sha256(path), "bytes": path.stat().st_size}


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sha256_of_json(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
