"""Loss curves with all optimizations on, with each switched off alone, and with all off: only sums change their order.

    python benchmarks/loss_curves.py                  # two minutes

What separates another order of sums from another computation is precision: the same steps are made in float32 and in
float64, without dropout (whose draws belong to a layout). A difference of order shrinks with the machine's epsilon, by
a factor of half a billion; a difference of substance stays. So the bounds are 1e-4 in float32 and 1e-10 in float64,
relative to the loss, at every step. bf16 is no such optimization: it rounds; its curve is shown beside the others.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from side_by_side import baselines, corpora, results_file, timing
from side_by_side.baselines import StepSpec

OPTIMIZATIONS = ("packing", "predicted_only", "cpu_kernels", "fused_optimizer", "fast_float32", "kept_memory")
ALL = "all of them"
BOUNDS = {"float32": 1e-4, "float64": 1e-10}
LEAST_SHOWN = 1e-17


def main(arguments: list[str] | None = None) -> Path:
    """Makes the curves, prints their largest differences, and writes the results.

    Raises:
        SystemExit: a curve leaves its bound.
    """
    options = _options(arguments)
    spec = StepSpec(
        options.layers, options.hidden, options.length, options.batch, 1, "no",
        workers=0, dropout=0.0, vocabulary=options.vocabulary, learning_rate=1e-3,
    )  # fmt: skip
    named = {"float32": torch.float32, "float64": torch.float64}
    print(f"{options.steps} steps of {options.batch} sequences, {2 * len(OPTIMIZATIONS) + 5} times", flush=True)
    reference = {name: losses(spec, options, dtype) for name, dtype in named.items()}
    print(
        f"all optimizations on: loss {reference['float32'][0]:.4f} at first, {reference['float32'][-1]:.4f} at last",
        flush=True,
    )
    halves = losses(replace(spec, precision="bf16"), options, torch.float32)
    rows: list[dict[str, Any]] = []
    for optimization, off in [
        *((optimization, (optimization,)) for optimization in OPTIMIZATIONS),
        (ALL, OPTIMIZATIONS),
    ]:
        curves = {name: losses(replace(spec, off=off), options, dtype) for name, dtype in named.items()}
        rows.append(
            {"optimization": optimization} | {name: max(differences(curves[name], reference[name])) for name in named}
        )
        print(f"without {optimization:16} differs by at most {rows[-1]['float32']:.1e} in float32, "
              f"{rows[-1]['float64']:.1e} in float64", flush=True)  # fmt: skip
    print(
        f"bf16 in place of float32 differs by at most {max(differences(halves, reference['float32'])):.1e}", flush=True
    )
    content = {
        "model": f"{spec.layers}/{spec.hidden}", "steps": options.steps, "bounds": BOUNDS, "curves": rows,
        "loss": reference["float32"], "loss_all_off": curves["float32"], "loss_bf16": halves,
        "bf16_differs_by": max(differences(halves, reference["float32"])),
    }  # fmt: skip
    path = results_file.write("loss_curves", "cpu", options.threads, content, options.results)
    plot(content, {name: differences(curves[name], reference[name]) for name in named}, path.with_suffix(".png"))
    beyond = [row["optimization"] for row in rows if any(row[name] > bound for name, bound in BOUNDS.items())]
    if beyond:
        sys.exit(f"beyond the bounds {BOUNDS}: {', '.join(beyond)}")
    return path


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--vocabulary", type=int, default=corpora.VOCABULARY)
    parser.add_argument("--results", type=Path, default=results_file.RESULTS)
    return parser.parse_args(arguments)


def losses(spec: StepSpec, options: argparse.Namespace, dtype: torch.dtype) -> list[float]:
    """The loss of every step, in a process of its own."""
    curve: list[float] = timing.run_once(train, (spec, options.steps, dtype), options.threads).metrics["curve"]
    return curve


def train(task: tuple[StepSpec, int, torch.dtype], report: Callable[..., None]) -> None:
    """A workload: some steps of the product's trainer; says its losses."""
    spec, steps, dtype = task
    rows: list[dict[str, float]] = []

    def end_of_step() -> dict[str, Any]:
        if len(rows) == steps:
            report(steps, curve=[row["loss"] for row in rows])
        return {}

    with tempfile.TemporaryDirectory() as folder, baselines.quiet():
        baselines.product(spec, folder, dtype=dtype, evaluate=end_of_step, on_row=rows.append)[1].train()


def differences(curve: list[float], other: list[float]) -> list[float]:
    """The difference of two curves at each step, relative to the loss."""
    return [abs(one - two) / abs(two) for one, two in zip(curve, other, strict=True)]


def plot(content: dict[str, Any], apart: dict[str, list[float]], path: Path) -> None:
    """Two panels: the losses; how far apart they are with all optimizations off, beside the bounds."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (curves, distances) = plt.subplots(1, 2, figsize=(11, 4))
    for name, label, style in (
        ("loss", "all optimizations on, float32", "-"), ("loss_all_off", "all optimizations off, float32", "--"),
        ("loss_bf16", "all optimizations on, bf16", ":"),
    ):  # fmt: skip
        curves.plot(range(1, content["steps"] + 1), content[name], style, label=label)
    curves.set(xlabel="step", ylabel="loss", title=f"{content['model']}, no dropout")
    curves.legend(fontsize=8)
    for color, (name, values) in enumerate(apart.items()):
        # Equal losses have no place on a logarithmic axis.
        shown = [max(value, LEAST_SHOWN) for value in values]
        distances.semilogy(range(1, content["steps"] + 1), shown, f"C{color}", label=f"all optimizations off, {name}")
        distances.axhline(BOUNDS[name], color=f"C{color}", linestyle="--", label=f"bound in {name}")
    distances.set(xlabel="step", ylabel="relative difference of the loss")
    distances.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    main()
