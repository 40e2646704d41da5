"""Does everything run on this GPU? Six minutes: versions, the GPU tests, twenty compiled steps of BERT-base.

    python benchmarks/gpu_smoke.py --out OUT          # OUT/smoke.json, written again after every part, and OUT/*.log
    python benchmarks/gpu_smoke.py --out OUT --toy    # a rehearsal on the CPU, at toy size

Recompilations and graph breaks are in steps.log; smoke.json has the time of each step, the kernels that take the most
time, and the peak memory. A part that fails or exceeds its time costs no other.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from side_by_side.baselines import StepSpec, product, quiet

ROOT = Path(__file__).resolve().parents[1]
GPU_TESTS = ("tests/training/test_gpu.py", "tests/models/test_packed_devices.py")
STEPS = 20
PROFILED = range(15, 18)
MOST_KERNELS = 25


def main(arguments: list[str] | None = None) -> Path:
    """Runs the parts, each in a process of its own with a limit; returns the file of results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--toy", action="store_true", help="on the CPU, at toy size")
    parser.add_argument("--steps", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.steps:
        print(json.dumps(compiled_steps(options.toy)))
        return options.out
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "smoke.json"
    results: dict[str, Any] = {"began": time.strftime("%F %T"), "toy": options.toy}
    pytest = ["-m", "pytest", *GPU_TESTS, "-v", "--durations=0", "-p", "no:cacheprovider"]
    steps = [__file__, "--steps", "--out", str(options.out)]
    for name, command, seconds in (
        ("versions", ["-m", "torch.utils.collect_env"], 60),
        ("tests", [*pytest, *(["--collect-only"] if options.toy else [])], 180),
        ("steps", [*steps, *(["--toy"] if options.toy else [])], 150),
    ):
        results[name] = run(command, options.out / f"{name}.log", seconds)
        if name == "steps" and results[name]["code"] == 0:
            lines = (options.out / "steps.log").read_text().splitlines()
            results[name] |= json.loads(next(line for line in reversed(lines) if line.startswith("{")))
        path.write_text(json.dumps(results, indent=1) + "\n")
        print(f"{name}: exit code {results[name]['code']} after {results[name]['seconds']} s", flush=True)
    return path


def run(command: list[str], log: Path, seconds: float) -> dict[str, Any]:
    """Runs Python with its output in a log; 124 is the code of a part that exceeded its time."""
    began = time.monotonic()
    environment = {**os.environ, "TORCH_LOGS": "recompiles,graph_breaks", "PYTHONUNBUFFERED": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with log.open("w") as file:
        try:
            code = subprocess.run(
                [sys.executable, *command], stdout=file, stderr=file, timeout=seconds, cwd=ROOT, env=environment
            ).returncode
        except subprocess.TimeoutExpired:
            code = 124
    return {"code": code, "seconds": round(time.monotonic() - began, 1)}


def compiled_steps(toy: bool) -> dict[str, Any]:
    """Makes twenty steps of the product's pre-training; base with 256 sequences of 128 tokens, compiled, in bf16."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    spec = StepSpec(12, 768, 128, 256, 1, "bf16", "cuda", documents=5000, workers=8)
    if toy:
        spec = StepSpec(2, 32, 32, 4, 1, "no", "cpu", documents=50)
    times, losses, rows = [], [], list[dict[str, Any]]()
    kernels = profile(activities=[ProfilerActivity.CPU] if toy else [ProfilerActivity.CPU, ProfilerActivity.CUDA])

    class EnoughStepsError(Exception):
        """Ends the training."""

    def after_step() -> dict[str, Any]:
        if not toy:
            torch.cuda.synchronize()
        times.append(time.monotonic())
        losses.append(rows[-1]["loss"])
        if len(times) == PROFILED.start:
            kernels.start()
        if len(times) == PROFILED.stop:
            kernels.stop()
        if len(times) == STEPS:
            raise EnoughStepsError
        return {}

    with tempfile.TemporaryDirectory() as folder, quiet():
        source, trainer = product(spec, folder, evaluate=after_step, on_row=rows.append)
        with contextlib.suppress(EnoughStepsError):
            trainer.train()
    by = "self_cpu_time_total" if toy else "self_device_time_total"
    longest = sorted(kernels.key_averages(), key=lambda row: -getattr(row, by))[:MOST_KERNELS]
    return {
        "seconds_of_steps": [round(after - before, 4) for before, after in pairwise(times)],
        "tokens_of_steps": source.tokens[:STEPS],
        "losses": losses,
        "peak_memory_gib": None if toy else round(torch.cuda.max_memory_allocated() / 2**30, 2),
        "kernels": {row.key[:100]: f"{getattr(row, by):.0f} us in {row.count}" for row in longest},
    }


if __name__ == "__main__":
    main()
