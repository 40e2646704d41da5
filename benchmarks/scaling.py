"""Time of a pre-training step against sequence length, batch and processes, as results and a plot.

    python benchmarks/scaling.py                      # 4/512 in bf16: some five minutes on two cores

Lengths at one number of tokens a step, batches at 128 tokens; ours beside tuned transformers, alternating. Processes:
the same global batch by one process with one thread, one with all threads, and two that share the threads (DDP over
gloo), ours only. Real tokens are counted.
"""

import argparse
import multiprocessing
import os
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from pretraining_step import SIZES, TUNED, TUNED_KEPT
from side_by_side import baselines, corpora, results_file, timing
from side_by_side.baselines import StepSpec


def main(arguments: list[str] | None = None) -> Path:
    """Measures, prints, writes results and plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="4/512", help=f"{', '.join(SIZES)} or L/H")
    parser.add_argument("--lengths", nargs="+", type=int, default=[64, 128, 256, 512])
    parser.add_argument("--batches", nargs="+", type=int, default=[4, 8, 16, 32, 64])
    parser.add_argument("--tokens", type=int, default=4096, help="of a step at each length, padding included")
    parser.add_argument("--steps", type=int, default=1, help="of an iteration")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--corpus", help="a prepared corpus; default: a made-up one of natural lengths")
    parser.add_argument("--vocabulary", type=int, default=corpora.VOCABULARY)
    parser.add_argument("--results", type=Path, default=results_file.RESULTS)
    options = parser.parse_args(arguments)
    layers, hidden = SIZES[options.model] if options.model in SIZES else map(int, options.model.split("/"))
    spec = StepSpec(layers, hidden, 128, 32, options.steps, corpus=options.corpus, vocabulary=options.vocabulary)
    content: dict[str, Any] = {"model": options.model, "precision": "bf16", "lengths": {}, "batches": {}}
    for length in options.lengths:
        chosen = replace(spec, length=length, batch=max(1, options.tokens // length))
        content["lengths"][length] = beside_transformers(chosen, options)
    for batch in options.batches:
        content["batches"][batch] = beside_transformers(replace(spec, batch=batch), options)
    content["processes"] = processes(replace(spec, batch=max(2, options.tokens // 128)), options)
    path = results_file.write("scaling", "cpu", options.threads, content, options.results)
    plot(content, path.with_suffix(".png"))
    return path


def beside_transformers(spec: StepSpec, options: argparse.Namespace) -> dict[str, Any]:
    """Ours and both tuned baselines at one shape."""
    workloads: dict[str, tuple[timing.Workload, Any]] = {
        "ours": (baselines.ours, spec), TUNED: (baselines.upstream, spec),
        TUNED_KEPT: (baselines.upstream_with_kept_memory, spec),
    }  # fmt: skip
    made = timing.compare(workloads, options.repeats, options.threads)
    shape = f"{spec.batch} sequences of {spec.length} tokens"
    table = {
        name: timing.speeds(iterations) | {"seconds_per_step": step_seconds(iterations, spec)}
        for name, iterations in made.items()
    }
    speeds = ", ".join(f"{name} {results_file.summary(row['per_second'], 0)}" for name, row in table.items())
    print(f"{shape}: {speeds} tokens a second", flush=True)
    return table


def step_seconds(iterations: list[timing.Iteration], spec: StepSpec) -> dict[str, float]:
    """Seconds of a step."""
    return timing.spread([iteration.seconds / spec.steps for iteration in iterations[1:]])


def processes(spec: StepSpec, options: argparse.Namespace) -> dict[str, Any]:
    """The same steps by one or two processes."""
    half = max(1, options.threads // 2)
    workloads = {
        "1 process, 1 thread": (baselines.ours, 1),
        f"1 process, {options.threads} threads": (baselines.ours, options.threads),
        f"2 processes, {half} thread(s) each": (in_two_processes, half),
    }
    made = timing.compare(
        {name: (run, replace(spec, workers=0)) for name, (run, _) in workloads.items()},
        options.repeats,
        {name: threads for name, (_, threads) in workloads.items()},
    )
    table = {
        name: timing.speeds(iterations) | {"seconds_per_step": step_seconds(iterations, spec)}
        for name, iterations in made.items()
    }
    for name, row in table.items():
        print(f"{name}: {results_file.summary(row['per_second'], 0)} tokens a second", flush=True)
    return table


def in_two_processes(spec: StepSpec, report: Callable[..., None]) -> None:
    """A workload: our step shared by two processes; the other one follows, held by the exchange of gradients."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    # Where it knows that both are on this machine, Accelerate leaves each its share of the threads.
    os.environ.update(WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", MASTER_ADDR="localhost", MASTER_PORT=port)
    os.environ.update(ACCELERATE_USE_CPU="true")
    follower = multiprocessing.get_context("fork").Process(target=_as_rank, args=(1, spec, _nothing))
    follower.start()

    def together(amount: float, **metrics: Any) -> None:
        report(amount, **metrics)
        torch.distributed.barrier()  # or the other process would work on while the others are timed

    try:
        _as_rank(0, spec, together)
    finally:
        follower.kill()
        follower.join()


def _as_rank(rank: int, spec: StepSpec, report: Callable[..., None]) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    baselines.ours(spec, report)


def _nothing(amount: float, **metrics: Any) -> None:
    torch.distributed.barrier()


def plot(content: dict[str, Any], path: Path) -> None:
    """Three panels: seconds of a step against length, batch, processes; bars from the least to the most."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (lengths, batches, shared) = plt.subplots(1, 3, figsize=(13, 4))
    for axes, name, label in ((lengths, "lengths", "tokens per sequence"), (batches, "batches", "sequences of 128")):
        shapes = content[name]
        for side in next(iter(shapes.values())):
            rows = [shape[side]["seconds_per_step"] for shape in shapes.values()]
            middle = [row["median"] for row in rows]
            bars = [[row["median"] - row["min"] for row in rows], [row["max"] - row["median"] for row in rows]]
            axes.errorbar([int(shape) for shape in shapes], middle, bars, marker="o", capsize=3, label=side)
        axes.set(xlabel=label, ylabel="seconds of a step", ylim=(0, None))
    lengths.set_title(f"{content['model']}, {content['precision']}, equal tokens a step")
    batches.legend(fontsize=8)
    rows = content["processes"]
    shared.barh(
        [name.replace(", ", ",\n") for name in rows], [row["seconds_per_step"]["median"] for row in rows.values()]
    )
    shared.set(xlabel="seconds of a step", title="ours, the same batch")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    main()
