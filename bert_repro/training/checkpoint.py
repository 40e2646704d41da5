"""Checkpoints that survive a kill at any moment.

A checkpoint is written next to the older ones under a temporary name, hashed into a manifest, flushed to disk and only
then renamed to `step-N`. Whatever interrupts the writing leaves the older ones as they were. When a run resumes, every
file is compared with the manifest; a damaged checkpoint is named in a warning and the next older one is used.

    checkpoints/step-N/config.json model.safetensors ...   a published folder that any loader of BERT reads; with --peft
                                                            only the adapter
                       trainer_state/optimizer.safetensors  Adam's state by parameter name
                       trainer_state/state.json             step, position in the data, gradient scaler
                       manifest.json                        SHA-256 of every file and of itself, versions, threads
"""

import copy
import importlib.metadata
import json
import logging
import platform
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.torch
import torch
from accelerate import Accelerator
from torch import nn

from bert_repro import __version__
from bert_repro.errors import UserError, flag
from bert_repro.hub.export import write_pooling
from bert_repro.models.loading import save_tokenizer
from bert_repro.training import adapters
from bert_repro.utils.files import (
    CHECKPOINTS,
    MANIFEST,
    STEP,
    TRAINER_STATE,
    UNFINISHED,
    atomic_folder,
    find_damage,
    remove_folder,
    step_of,
    write_json,
    write_manifest,
)

if TYPE_CHECKING:
    from bert_repro.training.best_model import BestModelState
    from bert_repro.training.training_log import LogState

logger = logging.getLogger("bert_repro")

_LIBRARIES = ("torch", "transformers", "tokenizers", "datasets", "accelerate", "numpy", "safetensors")

_OPTIMIZER = f"{TRAINER_STATE}/optimizer.safetensors"
_STATE = f"{TRAINER_STATE}/state.json"


@dataclass(frozen=True)
class TrainerState:
    """What a run needs, apart from weights and optimizer state, to resume exactly where it stopped.

    Args:
        step: optimizer steps taken, skipped ones included.
        skipped: steps that the fp16 scaler skipped; the learning rate does not advance on them.
        position: position in the data after `step`; JSON, understood by the run's batch source.
        scaler: state of the fp16 gradient scaler.
        data_fingerprint: the batch source's `data_fingerprint`.
        settings: settings of the run, from `bert_repro.training.resume.stored_settings`.
        log: sums of the training log since its last row, and the totals of the run.
        best: step, score and evaluations since then of `BestModel`.
    """

    step: int = 0
    skipped: int = 0
    position: dict[str, Any] | None = None
    scaler: dict[str, Any] | None = None
    data_fingerprint: dict[str, Any] | None = None
    settings: dict[str, Any] | None = None
    log: "LogState | None" = None
    best: "BestModelState | None" = None


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
        model: the complete, unwrapped model; it is saved by its own `save_pretrained`.
        optimizer_state: tensors named by `named_state`, on the CPU, because XLA's memory cannot be written to a file.
        state: the rest of the run's state.
        tokenizer: saved with the model, so that the checkpoint is usable as it is.
        environment: versions, threads, processes; a change is reported when the run resumes.
        keep: number of checkpoints to keep, at least 1.
        pooling: see `bert_repro.hub.export.write_pooling`.

    Returns:
        The folder of the checkpoint.

    Raises:
        UserError: the disk is full or not writable; the older checkpoints are as they were.
    """
    target = output_dir / CHECKPOINTS / f"{STEP}{state.step}"
    # Left behind by a killed process. Only one process writes to a run's folder, so these are safe to delete.
    for prefix in UNFINISHED:
        for leftover in target.parent.glob(f"{prefix}*"):
            shutil.rmtree(leftover, ignore_errors=True)

    with atomic_folder(target) as folder:
        (folder / TRAINER_STATE).mkdir()
        if adapters.is_adapted(model):
            adapters.save(model, folder)
        else:
            model.save_pretrained(folder)
        save_tokenizer(tokenizer, folder)
        write_pooling(model, folder, tokenizer, pooling)
        safetensors.torch.save_file(optimizer_state, folder / _OPTIMIZER)
        write_json(folder / _STATE, vars(state))
        # Last, because it contains the digests of all other files.
        write_manifest(folder, environment)

    # Checkpoints of later steps do not count towards `keep`. If the run resumed from this side of a damaged one, that
    # one must not push out the one just written.
    up_to_now = [path for path in newest_first(output_dir) if (step_of(path) or 0) <= state.step]
    for old in up_to_now[keep:]:
        remove_folder(old)
    return target


def find(output_dir: Path, name: str) -> Path:
    """Returns the checkpoint to resume from.

    Args:
        output_dir: folder of the run.
        name: folder of a checkpoint, which must be valid; or `latest` or `auto` for the newest valid one.

    Raises:
        UserError: there is none, or the named one is damaged.
    """
    if name not in ("latest", "auto"):
        damage = find_damage(Path(name))
        if damage:
            raise UserError(
                f"{flag('resume_from_checkpoint', name)}: {damage}. Choose another checkpoint, or `latest`.",
                setting="resume_from_checkpoint",
            )
        return Path(name)

    for candidate in newest_first(output_dir):
        damage = find_damage(candidate)
        if not damage:
            return candidate
        logger.warning("Checkpoint %s is not used: %s", candidate, damage)
    raise UserError(
        f"{flag('resume_from_checkpoint', name)}: there is no valid checkpoint in {output_dir / CHECKPOINTS}. Leave "
        "the flag out to start again.",
        setting="resume_from_checkpoint",
    )


def newest_first(output_dir: Path) -> list[Path]:
    """Returns the folders of a run's checkpoints, valid or not, the latest step first."""
    steps: list[tuple[int, Path]] = []
    for path in (output_dir / CHECKPOINTS).glob(f"{STEP}*"):
        step = step_of(path)
        if step is not None:
            steps.append((step, path))
    return [path for _, path in sorted(steps, reverse=True)]


def read_state(folder: Path) -> TrainerState:
    """Returns the state in a valid checkpoint, without weights and optimizer state."""
    return TrainerState(**json.loads((folder / _STATE).read_text(encoding="utf-8")))


def load(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, environment: Mapping[str, Any]) -> None:
    """Loads weights and optimizer state; the rest of the state comes from `read_state`.

    Args:
        folder: a valid checkpoint, from `find`.
        model: the unwrapped model, on its device.
        optimizer: a new optimizer of that model.
        environment: the present environment. Each difference from the checkpoint's is reported, because equal bits are
            only promised in an equal one.

    Raises:
        UserError: the weights or the optimizer state are those of another model or optimizer.
    """
    _load_weights(folder, model)

    # The optimizer has its state from the beginning (`BertAdam`), so the names can be compared before anything is
    # copied.
    saved = safetensors.torch.load_file(folder / _OPTIMIZER)
    own = dict(named_state(model, optimizer))
    if saved.keys() != own.keys():
        raise UserError(
            f"The optimizer state of {folder} is not that of this run. Resume with the same optimizer and the same "
            "trainable weights.",
            setting="resume_from_checkpoint",
        )
    for name, value in own.items():
        value.copy_(saved[name])

    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    changes = _environment_changes(manifest["environment"], environment)
    if changes:
        logger.warning(
            "Resuming with %s: the last bits may differ from those of an uninterrupted run.", ", ".join(changes)
        )


def _load_weights(folder: Path, model: Any) -> None:
    is_adapted = adapters.is_adapted(model)
    file_name = adapters.WEIGHTS if is_adapted else "model.safetensors"
    if not (folder / file_name).is_file():
        raise UserError(
            f"{folder} has no {file_name}. Resume with the same {flag('peft')} as the run had.", setting="peft"
        )
    if is_adapted:
        missing, unexpected = adapters.load(model, folder)
    else:
        missing, unexpected = model.load_state_dict(safetensors.torch.load_file(folder / file_name), strict=False)

    # A tied weight is stored once, under another name.
    tied = set(getattr(model, "all_tied_weights_keys", None) or {})
    foreign = [*unexpected, *(name for name in missing if name not in tied)]
    if foreign:
        raise UserError(
            f"The weights of {folder} are not those of this model, for example {foreign[0]}. Resume with the model "
            "that the run had.",
            setting="resume_from_checkpoint",
        )


def _environment_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Returns what has changed, each as text: name, new value, old value."""
    old = {**before, **before.get("versions", {}), "versions": None}
    new = {**now, **now.get("versions", {}), "versions": None}
    changed = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return [f"{name} {new.get(name)} (was {old.get(name)})" for name in changed]


def named_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the state of an optimizer as `parameter/key` and tensor, in the order of the model's parameters."""
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            yield f"{name}/{key}", value


def drop_last(output_dir: Path, step: int) -> None:
    """Removes the checkpoint of a run's last step, and the folder of checkpoints if it is then empty."""
    folder = output_dir / CHECKPOINTS
    if (folder / f"{STEP}{step}").is_dir():
        remove_folder(folder / f"{STEP}{step}")
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def find_non_finite(model: nn.Module) -> str | None:
    """Returns the name of a parameter that contains NaN or infinity, or None."""
    for name, parameter in model.named_parameters():
        # On XLA the check would be one more graph to compile.
        values = parameter.cpu() if parameter.device.type == "xla" else parameter
        if not bool(torch.isfinite(values.detach()).all()):
            return name
    return None


def savable(model: nn.Module) -> nn.Module:
    """Returns the model, or a copy on the CPU if its device's memory cannot be written to files (XLA)."""
    if next(model.parameters()).device.type != "xla":
        return model
    # `deepcopy` takes these parameters from its memo in place of copying them on the device.
    on_cpu: dict[int, Any] = {}
    for parameter in model.parameters():
        on_cpu[id(parameter)] = nn.Parameter(parameter.detach().cpu(), parameter.requires_grad)
    return copy.deepcopy(model, on_cpu)


def environment(accelerator: Accelerator) -> dict[str, Any]:
    """Returns what bit-exact repetition depends on: versions, processes, CPU threads, device."""
    return {
        "versions": versions(),
        "processes": accelerator.num_processes,
        "cpu_threads": torch.get_num_threads(),
        "device": device_name(accelerator.device),
    }


def versions() -> dict[str, str]:
    """Returns the versions of Python, this package and the libraries that influence numbers."""
    own = {"python": platform.python_version(), "bert_repro": __version__}
    return own | {name: importlib.metadata.version(name) for name in _LIBRARIES}


def device_name(device: torch.device) -> str:
    """Returns the name of a GPU, or the type of another device."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return device.type
