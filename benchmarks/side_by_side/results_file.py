"""What was measured, on what, with which versions and which command: one JSON file a day and benchmark."""

import json
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import torch

from bert_repro.training import provenance
from bert_repro.training.checkpoint import versions

RESULTS = Path(__file__).resolve().parents[1] / "results"


def write(benchmark: str, device: str, threads: int, content: dict[str, Any], folder: Path) -> Path:
    """Writes the results of a benchmark.

    Args:
        benchmark: name of the script.
        device: `cpu` or `cuda`.
        threads: threads of each workload.
        content: what was measured.
        folder: for all results.

    Returns:
        The file; an earlier one of the same day is replaced.
    """
    hardware = {**provenance.hardware(torch.device(device)), "cpu_threads": threads}
    made = {
        "benchmark": benchmark,
        "date": time.strftime("%Y-%m-%d"),
        "command": command(sys.argv),
        "git_commit": provenance.git_commit(),
        "hardware": hardware,
        "versions": versions(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{made['date']}-{benchmark}-{device}.json"
    path.write_text(json.dumps(made | content, indent=1) + "\n", encoding="utf-8")
    print(f"results: {path.name}")
    return path


def command(arguments: list[str]) -> str:
    """Returns the command as others can type it: of an absolute path, only its last part."""
    shown = [Path(argument).name if Path(argument).is_absolute() else argument for argument in arguments[1:]]
    return shlex.join(["python", f"benchmarks/{Path(arguments[0]).name}", *shown])


def summary(values: dict[str, float], digits: int = 2) -> str:
    """Returns a median with its range, as text."""
    median, least, most = (f"{values[name]:,.{digits}f}" for name in ("median", "min", "max"))
    return f"{median} ({least} to {most})"
