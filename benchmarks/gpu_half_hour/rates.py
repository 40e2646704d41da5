"""What this device reaches by itself, part by part, in place of the estimates of a step.

    python benchmarks/gpu_half_hour/rates.py products --device cuda

Every part prints its numbers as one line of JSON, the last line of its output; those of many measurements print it
again after each, so that a cut costs one of them.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from side_by_side import baselines, timing
from side_by_side.baselines import StepSpec

from bert_repro.training import environment

TOKENS = {"base at S=128, batch 256": 30_597, "a fourth of it": 7_650}  # real ones of a step
PREDICTED = 0.15
VOCABULARIES = (30_522, 30_592)  # BERT's, and rounded up to a multiple of 128
PROFILED_STEPS = 5
SHOWN_KERNELS = 60


class Rates(dict[str, float]):
    """Numbers by name, printed whenever one is added."""

    def __setitem__(self, name: str, value: float) -> None:
        super().__setitem__(name, value)
        print(json.dumps(self), flush=True)


class _Enough(BaseException):
    """Ends a training that has shown what was wanted."""


def main() -> None:
    """Runs one part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=sorted(PARTS))
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--toy", action="store_true", help="sizes that a CPU does in seconds")
    options = parser.parse_args()
    result = PARTS[options.part](options.device, options.toy)
    print(json.dumps(result))


def machine(device: str, toy: bool) -> dict[str, Any]:
    """Versions, hardware, and what PyTorch says of the device."""
    found: dict[str, Any] = {"versions": environment.versions(), "cuda": torch.version.cuda}
    found["hardware"] = environment.hardware(torch.device(device))
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        found["device"] = {
            name: getattr(properties, name)
            for name in ("name", "multi_processor_count", "total_memory", "L2_cache_size")
        }
        query = "--query-gpu=driver_version,clocks.sm,clocks.mem,power.limit,temperature.gpu"
        with suppress(OSError):
            asked = subprocess.run(["nvidia-smi", query, "--format=csv"], capture_output=True, text=True, check=False)
            found["nvidia_smi"] = asked.stdout.splitlines()
    return found


def copies(device: str, toy: bool) -> dict[str, float]:
    """Bytes a second, read and written counted: within the device, and to it from page-locked memory."""
    size = (1 << 20) if toy else (4 << 30)
    source, target = (torch.empty(size, dtype=torch.uint8, device=device) for _ in range(2))
    rates = Rates()
    rates["within"] = 2 * size / seconds(lambda: target.copy_(source), device)
    host = torch.empty(min(size, 256 << 20), dtype=torch.uint8, pin_memory=device == "cuda")
    moved = target[: len(host)]
    rates["from page-locked memory"] = len(host) / seconds(lambda: moved.copy_(host, non_blocking=True), device)
    return rates


def products(device: str, toy: bool) -> dict[str, float]:
    """FLOP/s in bfloat16 on random data: a large product, and those of a base layer and its head, each direction.

    Forward (M, in) x (in, out), the input's gradient (M, out) x (out, in), the weight's gradient (in, M) x (M, out).
    """
    shapes: dict[str, tuple[int, int, int]] = {}
    if not toy:
        shapes["8192 x 8192 x 8192"] = (8192, 8192, 8192)
    for label, tokens in TOKENS.items():
        tokens = tokens // 100 if toy else tokens
        layers = {"attention": (768, 768), "up": (768, 3072), "down": (3072, 768)}
        for name, (inner, outer) in layers.items():
            shapes |= directions(f"{label}, {name}", tokens, inner, outer)
        for vocabulary in VOCABULARIES:
            vocabulary_here = vocabulary // 100 if toy else vocabulary
            shapes |= directions(f"{label}, head of {vocabulary}", int(PREDICTED * tokens), 768, vocabulary_here)
    rates = Rates()
    for name, (rows, inner, columns) in shapes.items():
        left = torch.randn(rows, inner, device=device).bfloat16()
        right = torch.randn(inner, columns, device=device).bfloat16()
        rates[name] = 2 * rows * inner * columns / seconds(lambda a=left, b=right: a @ b, device)  # type: ignore[misc]
    return rates


def directions(name: str, tokens: int, inner: int, outer: int) -> dict[str, tuple[int, int, int]]:
    """The three products of a linear layer, as (rows, inner, columns)."""
    return {
        f"{name}, forward": (tokens, inner, outer),
        f"{name}, input gradient": (tokens, outer, inner),
        f"{name}, weight gradient": (inner, tokens, outer),
    }


def attention(device: str, toy: bool) -> dict[str, float]:
    """Seconds of packed attention, forward and backward, base's heads, with and without dropout."""
    from bert_repro import BertReproConfig
    from bert_repro.models import modeling_bert_repro as modeling

    module = modeling.BertReproSelfAttention(BertReproConfig()).to(device).train()
    times = Rates()
    for length, sequences in ((128, 240), (512, 60)):
        sequences = 2 if toy else sequences
        total = length * sequences
        offsets = torch.arange(0, total + 1, length, dtype=torch.int32, device=device)
        packing = {"cu_seq_lens_q": offsets, "cu_seq_lens_k": offsets, "max_length_q": length, "max_length_k": length}
        states = [torch.randn(1, 12, total, 64, device=device).bfloat16().requires_grad_() for _ in range(3)]
        for dropout in (0.0, 0.1):

            def both(states: Any = states, dropout: float = dropout, packing: Any = packing) -> None:
                made, _ = modeling.packed_attention_forward(
                    module, *states, None, scaling=0.125, dropout=dropout, **packing
                )
                made.backward(made)

            times[f"S={length}, {total} tokens, dropout {dropout}"] = seconds(both, device)
    return times


def profile(device: str, toy: bool) -> dict[str, Any]:
    """Kernels of five compiled steps of base at S=128, in microseconds a step, the longest first."""
    spec = step_of(device, toy, steps=PROFILED_STEPS)
    activities = [torch.profiler.ProfilerActivity.CPU]
    activities += [torch.profiler.ProfilerActivity.CUDA] if device == "cuda" else []
    profiler = torch.profiler.profile(activities=activities)
    calls, began = 0, 0.0
    found: dict[str, Any] = {}

    def between() -> dict[str, Any]:
        nonlocal calls, began
        calls += 1
        wait(device)
        if calls == 3:
            profiler.start()
            began = time.perf_counter()
        if calls == 4:
            found["seconds per step"] = (time.perf_counter() - began) / PROFILED_STEPS
            profiler.stop()
            raise _Enough
        return {}

    with TemporaryDirectory() as folder, baselines.quiet(), suppress(_Enough):
        _, trainer = baselines.product(spec, folder, evaluate=between)
        trainer.train()
    kernels: dict[str, list[float]] = {}
    for event in profiler.events():
        if device == "cpu" or event.device_type == torch.autograd.DeviceType.CUDA:
            length = event.self_cpu_time_total if device == "cpu" else event.self_device_time_total
            kernels.setdefault(event.name, []).append(length)
    longest = sorted(kernels, key=lambda name: -sum(kernels[name]))
    found["microseconds per step"] = {
        name[:160]: [round(sum(kernels[name]) / PROFILED_STEPS, 1), len(kernels[name]) / PROFILED_STEPS]
        for name in longest[:SHOWN_KERNELS]
    }
    found["busy"] = sum(map(sum, kernels.values())) / PROFILED_STEPS / 1e6
    found["kernels per step"] = sum(map(len, kernels.values())) / PROFILED_STEPS
    return found


def passes(device: str, toy: bool) -> dict[str, Any]:
    """Tokens a second of base at S=128, batch 256, in one pass and in four."""
    spec = step_of(device, toy, steps=1 if toy else 50)
    four = replace(spec, micro=spec.batch // 4)
    workloads = {"one pass": (baselines.ours, spec), "four passes": (baselines.ours, four)}
    made = timing.compare(workloads, 1 if toy else 5, 1 if toy else 4)
    return {name: timing.speeds(iterations) for name, iterations in made.items()}


def step_of(device: str, toy: bool, steps: int) -> StepSpec:
    """The step of base at S=128, or a toy's."""
    if toy:
        return StepSpec(2, 32, 32, 4, steps, "bf16", device, documents=200, workers=0, compile=False)
    return StepSpec(12, 768, 128, 256, steps, "bf16", device, documents=20_000, workers=8)


def seconds(run: Callable[[], Any], device: str) -> float:
    """Seconds of one call: several are timed together after a warm-up; the median of five such times."""
    count = 10 if device == "cuda" else 1
    for _ in range(3 if device == "cuda" else 1):
        run()
    times = []
    for _ in range(5):
        wait(device)
        began = time.perf_counter()
        for _ in range(count):
            run()
        wait(device)
        times.append((time.perf_counter() - began) / count)
    return statistics.median(times)


def wait(device: str) -> None:
    """Waits until the device has done all it was given."""
    if device == "cuda":
        torch.cuda.synchronize()


PARTS: dict[str, Callable[[str, bool], dict[str, Any]]] = {
    part.__name__: part for part in (machine, copies, products, attention, profile, passes)
}

if __name__ == "__main__":
    main()
