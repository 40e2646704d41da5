"""What a run was made with: versions, hardware, commit, command; needed to judge its numbers and to repeat it.

A resumed run must have the settings that decide its result; the others may change and are only reported.
"""

import dataclasses
import importlib.metadata
import json
import logging
import os
import platform
import shlex
import subprocess
import sys
import typing
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate import Accelerator

from bert_repro.configs import LOCATIONS, decides_result
from bert_repro.errors import UserError
from bert_repro.results import HardwareResults, ModelResults, RunResults, read_results
from bert_repro.utils.redaction import redacted

if TYPE_CHECKING:
    from bert_repro.training.batches import BatchSource
    from bert_repro.training.checkpoint import TrainerState

logger = logging.getLogger("bert_repro")

_SHAPE = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "vocab_size")
_NOTEBOOKS = ("ipykernel_launcher", "colab_kernel_launcher")
_LIBRARIES = ("torch", "transformers", "tokenizers", "datasets", "accelerate", "numpy", "safetensors")


def environment(accelerator: Accelerator) -> dict[str, Any]:
    """Returns what bit-exact repetition depends on: versions, processes, CPU threads, device."""
    return {
        "versions": versions(),
        "processes": accelerator.num_processes,
        "cpu_threads": torch.get_num_threads(),
        "device": _device_name(accelerator.device),
    }


def run_facts(config: Any, accelerator: Accelerator, model: torch.nn.Module) -> RunResults:
    """Returns the fields of results.json that every run has; the caller adds task, metrics and data."""
    parameters = sum(parameter.numel() for parameter in model.parameters())
    shape = {name: getattr(model.config, name) for name in _SHAPE}
    return {
        "seed": config.seed,
        "settings": dataclasses.asdict(config),
        "versions": versions(),
        "git_commit": git_commit(),
        "hardware": hardware(accelerator.device) | {"processes": accelerator.num_processes},
        "command": command(),
        "base_model": _hub_id(config.model_name_or_path),
        "model": typing.cast(ModelResults, {"class": type(model).__name__, "parameters": parameters, **shape}),
    }


def versions() -> dict[str, str | None]:
    """Returns the versions of Python, this package and the libraries that decide numbers; None: not installed as one.

    The package has no version where its sources are run without being installed.
    """
    found = {"python": platform.python_version(), "bert_repro": _version("bert-repro")}
    return found | {name: _version(name) for name in _LIBRARIES}


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def git_commit() -> str | None:
    """Returns the commit of the source tree, with `-dirty` when it has changes; None for an installed package."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        options: dict[str, Any] = {"cwd": root, "capture_output": True, "text": True, "check": True}
        commit = subprocess.run(["git", "rev-parse", "HEAD"], **options).stdout.strip()
        changed = subprocess.run(["git", "status", "--porcelain", "--untracked-files=no"], **options).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{commit}-dirty" if changed else commit


def hardware(device: torch.device) -> HardwareResults:
    """Returns device, processor, cores and threads."""
    return {
        "device": _device_name(device),
        "processor": _processor_name(),
        "cores": os.cpu_count(),
        "cpu_threads": torch.get_num_threads(),
    }


def command() -> str:
    """Returns the command line of this process, without the folders before the script's name."""
    script = Path(sys.argv[0])
    if script.stem in _NOTEBOOKS:
        return "a notebook"
    if script.name == "__main__.py" and script.parent.name == "bert_repro":  # python -m bert_repro
        return shlex.join(["bert-repro", *sys.argv[1:]])
    if script.suffix != ".py":  # the installed `bert-repro`, which is a program
        return shlex.join([script.name, *sys.argv[1:]])
    shown = f"recipes/{script.name}" if script.parent.name == "recipes" else script.name
    return shlex.join(["python", shown, *sys.argv[1:]])


def _hub_id(name: str | None) -> str | None:
    """Returns the id on the Hub of a checkpoint, where it is known.

    A folder of this machine has one if it lies in the Hub's cache, or if its own run was pushed.
    """
    if not name:
        return None
    folder = Path(name).expanduser()
    if not folder.exists():  # asked here, where the run is
        return None if name.count("/") > 1 or name[0] in "./~" else name
    cached = next((part for part in folder.resolve().parts if part.startswith("models--")), "")
    if cached:
        return cached.removeprefix("models--").replace("--", "/", 1)
    try:
        settings = read_results(folder).get("settings", {})
    except UserError:
        return None
    return settings.get("hub_model_id") if settings.get("push_to_hub") else None


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _processor_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def stored_settings(config: Any) -> dict[str, Any]:
    """Returns a run's settings as a checkpoint keeps them: plain JSON without secrets."""
    settings: dict[str, Any] = json.loads(json.dumps(redacted(asdict(config))))
    return settings


def require_same_data(folder: Path, state: "TrainerState", source: "BatchSource", config: Any) -> None:
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
        f"--{path} {_shown(old)}, now {_shown(new)}"
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
            logger.info("resuming with --%s %s, was %s", path, _shown(new), _shown(old))


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


def _shown(value: Any) -> str:
    text = "none" if value is None else value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
