"""Facts about where a run was made: commit, hardware, command line, base model."""

import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path

import torch

from bert_repro.errors import UserError
from bert_repro.results import HardwareResults, read_results
from bert_repro.training.checkpoint import device_name

_NOTEBOOKS = ("ipykernel_launcher", "colab_kernel_launcher")


def git_commit() -> str | None:
    """Returns the commit of the source tree, with `-dirty` if it has changes; None for an installed package."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    describe = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(describe, cwd=root, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def hardware(device: torch.device) -> HardwareResults:
    """Returns device, processor, cores and threads."""
    return {
        "device": device_name(device),
        "processor": _processor_name(),
        "cores": os.cpu_count(),
        "cpu_threads": torch.get_num_threads(),
    }


def _processor_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def command() -> str:
    """Returns the command line of this process, without the folders before the script's name."""
    script = Path(sys.argv[0])
    arguments = sys.argv[1:]
    if script.stem in _NOTEBOOKS:
        return "a notebook"
    if script.parts[-2:] == ("bert_repro", "__main__.py"):
        return shlex.join(["bert-repro", *arguments])
    # The installed program `bert-repro`.
    if script.suffix != ".py":
        return shlex.join([script.name, *arguments])
    is_recipe = script.parent.name == "recipes"
    return shlex.join(["python", f"recipes/{script.name}" if is_recipe else script.name, *arguments])


def hub_id(name: str | None) -> str | None:
    """Returns the Hub id of a checkpoint, or None if it is not known.

    Args:
        name: id, or folder of a run; a folder has an id if its own run was uploaded.
    """
    if not name:
        return None
    folder = Path(name).expanduser()
    if not folder.exists():
        is_path = name.count("/") > 1 or name[0] in "./~"
        return None if is_path else name
    try:
        settings = read_results(folder).get("settings", {})
    except UserError:
        return None
    if not settings.get("push_to_hub"):
        return None
    return settings.get("hub_model_id")
