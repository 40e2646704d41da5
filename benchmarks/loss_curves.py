"""Loss curves with every lever on, and with each switched off alone: they may differ by the order of sums, no more.

    python benchmarks/loss_curves.py                  # two minutes

What separates another order of sums from another computation is precision: the same steps are made in float32 and in
float64, without dropout (whose draws belong to a layout). A difference of order shrinks with the machine's epsilon, by
a factor of half a billion; a difference of substance stays. So the bounds are 1e-4 in float32 and 1e-10 in float64,
relative to the loss, at every step. bf16 is no such lever: it rounds; its curve is shown beside the others.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from side_by_side import contenders, corpora, laps, records
from side_by_side.contenders import StepSpec

LEVERS = ("packing", "predicted_only", "cpu_kernels", "fused_optimizer", "fast_float32", "kept_memory")
BOUNDS = {"float32": 1e-4, "float64": 1e-10}


def main(arguments: list[str] | None = None) -> Path:
    """Makes the curves, prints their largest differences, and writes the record.

    Raises:
        SystemExit: a curve leaves its bound.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--vocabulary", type=int, default=corpora.VOCABULARY)
    parser.add_argument("--results", type=Path, default=records.RESULTS)
    options = parser.parse_args(arguments)
    spec = StepSpec(
        options.layers, options.hidden, options.length, options.batch, 1, "no",
        workers=0, dropout=0.0, vocabulary=options.vocabulary,
    )  # fmt: skip
    named = {"float32": torch.float32, "float64": torch.float64}
    whole = {name: losses(spec, options, dtype) for name, dtype in named.items()}
    halves = losses(replace(spec, precision="bf16"), options, torch.float32)
    rows: list[dict[str, Any]] = []
    for lever in LEVERS:
        curves = {name: losses(replace(spec, off=(lever,)), options, dtype) for name, dtype in named.items()}
        rows.append({"lever": lever} | {name: difference(curves[name], whole[name]) for name in named})
        print(f"without {lever:16} differs by at most {rows[-1]['float32']:.1e} in float32, "
              f"{rows[-1]['float64']:.1e} in float64", flush=True)  # fmt: skip
    content = {
        "model": f"{spec.layers}/{spec.hidden}", "steps": options.steps, "bounds": BOUNDS, "curves": rows,
        "loss": whole["float32"], "loss_bf16": halves, "bf16_differs_by": difference(halves, whole["float32"]),
    }  # fmt: skip
    path = records.write("loss_curves", "cpu", options.threads, content, options.results)
    beyond = [row["lever"] for row in rows if any(row[name] > bound for name, bound in BOUNDS.items())]
    if beyond:
        sys.exit(f"beyond the bounds {BOUNDS}: {', '.join(beyond)}")
    return path


def losses(spec: StepSpec, options: argparse.Namespace, dtype: torch.dtype) -> list[float]:
    """The loss of every step, in a process of its own."""
    curve: list[float] = laps.once(train, (spec, options.steps, dtype), options.threads).figures["curve"]
    return curve


def train(task: tuple[StepSpec, int, torch.dtype], lap: Callable[..., None]) -> None:
    """A contender: some steps of the product's trainer; says its losses."""
    spec, steps, dtype = task
    rows: list[dict[str, float]] = []

    def end_of_step() -> dict[str, Any]:
        if len(rows) == steps:
            lap(steps, curve=[row["loss"] for row in rows])
        return {}

    with tempfile.TemporaryDirectory() as folder, contenders.quiet():
        contenders.product(spec, folder, dtype=dtype, evaluate=end_of_step, watch=rows.append)[1].train()


def difference(curve: list[float], other: list[float]) -> float:
    """The largest difference of two curves, relative to the loss."""
    return max(abs(one - two) / abs(two) for one, two in zip(curve, other, strict=True))


if __name__ == "__main__":
    main()
