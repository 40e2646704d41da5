"""Checkpoints that survive a kill at any moment, and the best weights of a run so far.

A checkpoint is written next to the older ones under a temporary name, hashed into a manifest, flushed to disk and only
then renamed to `step-N`. Whatever interrupts the writing leaves the older ones as they were. When a run resumes, every
file is checked against the manifest; a damaged checkpoint is named and passed over for the next older one.

    checkpoints/step-N/config.json model.safetensors ...   a published folder: any loader of BERT reads it; with --peft
                                                            the adapter alone
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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import safetensors.torch
import torch
from accelerate import Accelerator
from torch import nn

from bert_repro import __version__
from bert_repro.configs import LOCATIONS, decides_result, require
from bert_repro.errors import UserError
from bert_repro.hub.export import write_pooling
from bert_repro.models.loading import save_tokenizer
from bert_repro.training import adapters
from bert_repro.utils.files import (
    BEST,
    CHECKPOINTS,
    MANIFEST,
    STEP,
    TRAINER_STATE,
    UNFINISHED,
    atomic_folder,
    atomic_path,
    find_damage,
    remove_folder,
    step_of,
    write_json,
    write_manifest,
)
from bert_repro.utils.readers import redacted, shown

if TYPE_CHECKING:
    from bert_repro.training.batches import BatchSource

logger = logging.getLogger("bert_repro")

_LIBRARIES = ("torch", "transformers", "tokenizers", "datasets", "accelerate", "numpy", "safetensors")

_OPTIMIZER, _STATE = f"{TRAINER_STATE}/optimizer.safetensors", f"{TRAINER_STATE}/state.json"


@dataclass(frozen=True)
class TrainerState:
    """What a run needs, apart from weights and optimizer state, to resume exactly where it stopped.

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
        optimizer_state: named by `named_state`; on the CPU, as what lies in XLA's memory cannot be written.
        state: the rest of the run's state.
        tokenizer: saved with the model, so that the checkpoint is usable as it is.
        environment: versions, threads, processes; a change is reported when the run resumes.
        keep: number of checkpoints to keep, at least 1.
        pooling: see `bert_repro.hub.export.write_pooling`.

    Raises:
        UserError: the disk is full or not writable; the older checkpoints are as they were.
    """
    target = output_dir / CHECKPOINTS / f"{STEP}{state.step}"
    for prefix in UNFINISHED:  # of a killed process; one at a time writes in a run's folder
        for left in target.parent.glob(f"{prefix}*"):
            shutil.rmtree(left, ignore_errors=True)
    with atomic_folder(target) as folder:
        (folder / TRAINER_STATE).mkdir()
        adapters.save(model, folder) if adapters.is_adapted(model) else model.save_pretrained(folder)
        save_tokenizer(tokenizer, folder)
        write_pooling(model, folder, tokenizer, pooling)
        safetensors.torch.save_file(optimizer_state, folder / _OPTIMIZER)
        write_json(folder / _STATE, vars(state))
        write_manifest(folder, environment)
    # Later steps do not count: a damaged one that was passed over must not push out the one just written.
    up_to_now = [path for path in _newest_first(output_dir) if (step_of(path) or 0) <= state.step]
    for old in up_to_now[keep:]:
        remove_folder(old)
    return target


def resumes(config: Any) -> bool:
    """Returns whether a run resumes from a checkpoint: one is named, or `auto` finds any."""
    wanted = config.resume_from_checkpoint
    return wanted is not None and (wanted != "auto" or bool(_newest_first(Path(config.output_dir))))


def find(output_dir: Path, wanted: str) -> Path:
    """Returns the checkpoint to resume from: a named one, which must be valid, or the newest valid one for `latest` or
    `auto`.

    Raises:
        UserError: there is none, or the named one is damaged.
    """
    if wanted not in ("latest", "auto"):
        damage = find_damage(Path(wanted))
        require(not damage, f"--resume_from_checkpoint {wanted}: {damage}; name another one or `latest`")
        return Path(wanted)
    for candidate in _newest_first(output_dir):
        damage = find_damage(candidate)
        if not damage:
            return candidate
        logger.warning("passing over %s: %s", candidate, damage)
    raise UserError(
        f"--resume_from_checkpoint {wanted}: no valid checkpoint in {output_dir / CHECKPOINTS}; start again without it"
    )


def read_state(folder: Path) -> TrainerState:
    """Returns the state in a valid checkpoint, without weights and optimizer state."""
    return TrainerState(**json.loads((folder / _STATE).read_text(encoding="utf-8")))


def load(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, environment: dict[str, Any]) -> None:
    """Puts weights and optimizer state back; the rest of the state is `read_state`'s.

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
    own = dict(named_state(model, optimizer))
    fault = (
        f"{folder}: its optimizer state is not that of this run; resume with the same optimizer and trainable weights"
    )
    require(saved.keys() == own.keys(), fault)
    for name, value in own.items():
        value.copy_(saved[name])
    before = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["environment"]
    # What is run on, and of the versions only those that changed.
    old, new = ({**found, **found.get("versions", {}), "versions": None} for found in (before, environment))
    if changed := [name for name in {**old, **new} if old.get(name) != new.get(name)]:
        found = ", ".join(f"{name} {new.get(name)} (was {old.get(name)})" for name in changed)
        logger.warning("resuming with %s: the last bits may differ from those of an uninterrupted run", found)


def _load_weights(folder: Path, model: Any) -> None:
    name = adapters.WEIGHTS if adapters.is_adapted(model) else "model.safetensors"
    require((folder / name).is_file(), f"{folder}: holds no {name}; resume with the same --peft as the run had")
    if adapters.is_adapted(model):
        missing, unexpected = adapters.load(model, folder)
    else:
        missing, unexpected = model.load_state_dict(safetensors.torch.load_file(folder / name), strict=False)
    tied = set(getattr(model, "all_tied_weights_keys", None) or {})
    if unexpected or set(missing) - tied:
        raise UserError(f"{folder}: its weights are not those of this model (for example {(unexpected + missing)[0]})")


def named_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the state of an optimizer as `parameter/key` and tensor, in the order of the model's parameters."""
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            yield f"{name}/{key}", value


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


def find_non_finite(model: nn.Module) -> str | None:
    """Returns the name of a parameter with a value that is not finite, or None."""
    for name, parameter in model.named_parameters():
        own = parameter.cpu() if parameter.device.type == "xla" else parameter  # there it would be one more graph
        if not bool(torch.isfinite(own.detach()).all()):
            return name
    return None


def savable(model: nn.Module) -> nn.Module:
    """Returns the model, or a copy on the CPU where files cannot be written from the device's memory (XLA)."""
    if next(model.parameters()).device.type != "xla":
        return model
    on_cpu = {
        id(parameter): nn.Parameter(parameter.detach().cpu(), parameter.requires_grad)
        for parameter in model.parameters()
    }
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
    """Returns the versions of Python, this package and the libraries that decide numbers."""
    found = {"python": platform.python_version(), "bert_repro": __version__}
    return found | {name: importlib.metadata.version(name) for name in _LIBRARIES}


def device_name(device: torch.device) -> str:
    """Returns the name of a GPU, or the type of another device."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def stored_settings(config: Any) -> dict[str, Any]:
    """Returns a run's settings as a checkpoint keeps them: plain JSON without secrets."""
    return cast(dict[str, Any], json.loads(json.dumps(redacted(asdict(config)))))


def require_same_data(folder: Path, state: TrainerState, source: "BatchSource", config: Any) -> None:
    """Refuses to resume a run on other data, or with fewer steps than it has taken.

    What a batch source makes of settings alone (the steps of each phase come from `max_steps` or `phases`) counts as
    data too, unless `allow_changed_settings` lets those differ.

    Args:
        folder: the checkpoint, for messages.
        state: as the checkpoint holds it.
        source: the data of the resumed run.
        config: its settings.

    Raises:
        UserError: names what differs.
    """
    for name, before in (state.data_fingerprint or {}).items():
        now, is_setting = source.data_fingerprint.get(name), name in {"steps", *(state.settings or {})}
        if now != before and not (is_setting and getattr(config, "allow_changed_settings", False)):
            accepted = "accept another result with --allow_changed_settings"
            raise UserError(
                f"{folder}: its run had the {name} {before}, not {now}; resume with the data and settings that it "
                f"had, or {accepted if is_setting else 'start again with --overwrite_output_dir'}"
            )
    _require_same_beginning(folder, state.step, state.data_fingerprint or {}, source.data_fingerprint)
    if state.step > source.total_steps:
        raise UserError(
            f"{folder}: its run has taken {state.step} steps, and this one is to take {source.total_steps} in "
            "all; ask for more, or resume from an earlier checkpoint"
        )


def _require_same_beginning(folder: Path, step: int, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Refuses phases in which the steps of a checkpoint were not taken: only the last one it is in may be longer."""
    begin, phases_now = 0, [*now.get("steps", ()), *[0] * len(before.get("steps", ()))]
    for number, (steps, steps_now) in enumerate(zip(before.get("steps", ()), phases_now, strict=False)):
        taken = min(steps, step - begin)
        begin += steps
        if steps_now < taken or (step > begin and steps_now != steps):
            raise UserError(
                f"{folder}: it has taken {taken:,} steps of phases[{number}], which has {steps_now:,} now; keep the "
                "phases and steps that were trained, or resume from an earlier checkpoint"
            )


def require_same_settings(folder: Path, before: dict[str, Any] | None, config: Any) -> None:
    """Compares the settings of a run with those of the checkpoint that it resumes from, and reports all differences.

    Args:
        folder: the checkpoint, for messages.
        before: what `stored_settings` returned.
        config: today's settings.

    Raises:
        UserError: a setting that decides the result differs, and `allow_changed_settings` is not set.
    """
    now = stored_settings(config)
    changed = [
        (name, difference)
        for name, value in (before or {}).items()
        for difference in _differences(name, value, now.get(name, value))
    ]
    deciding = [
        f"--{path} {shown(old)}, now {shown(new)}"
        for name, (path, old, new) in changed
        if decides_result(name) and name not in LOCATIONS
    ]
    if deciding and not getattr(config, "allow_changed_settings", False):
        raise UserError(
            f"{folder}: its run had {'; '.join(deciding)}; resume with the settings that it had, or accept another "
            "result with --allow_changed_settings"
        )
    for name, (path, old, new) in changed:
        if name not in {"resume_from_checkpoint", "output_dir", "overwrite_output_dir"}:
            logger.info("resuming with --%s %s, was %s", path, shown(new), shown(old))


def _differences(name: str, old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yields what differs with its old and new value; of phases only the entries that do: `phases[1].steps`."""
    if old == new:
        return
    lists = isinstance(old, list) and isinstance(new, list) and len(old) == len(new)
    if not lists or not all(isinstance(entry, dict) for entry in old + new):
        yield name, old, new
        return
    for number, (before, now) in enumerate(zip(old, new, strict=True)):
        for entry in {**before, **now}:  # in the order of the configuration
            yield from _differences(f"{name}[{number}].{entry}", before.get(entry), now.get(entry))


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
