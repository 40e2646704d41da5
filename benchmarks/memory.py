"""Peak memory of a pre-training step, base and large, with and without recomputing activations.

    python benchmarks/memory.py                     # base and large on the CPU, about ten minutes
    python benchmarks/memory.py --device cuda

Each number is the high-water mark of a process of its own after three steps: on the CPU resident memory, PyTorch's and
transformers' own code (some 400 MiB) included; on a GPU what PyTorch allocated.
"""

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from pretraining_step import SIZES
from side_by_side import baselines, corpora, results_file, timing
from side_by_side.baselines import StepSpec

SIDES = {"ours": baselines.ours, "transformers, tuned": baselines.upstream}


def main(arguments: list[str] | None = None) -> Path:
    """Measures every case, prints, and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["base", "large"], help=f"{', '.join(SIZES)} or L/H")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--batch", type=int, default=4, help="sequences of a step")
    parser.add_argument("--precision", default="bf16", choices=["bf16", "fp32"])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--corpus", help="a prepared corpus; default: a made-up one of natural lengths")
    parser.add_argument("--vocabulary", type=int, default=corpora.VOCABULARY)
    parser.add_argument("--results", type=Path, default=results_file.RESULTS)
    options = parser.parse_args(arguments)
    content: dict[str, Any] = {"length": options.length, "batch": options.batch, "precision": options.precision}
    content["cases"] = []
    path = options.results
    for model in options.models:
        layers, hidden = SIZES[model] if model in SIZES else map(int, model.split("/"))
        spec = StepSpec(
            layers, hidden, options.length, options.batch, 3, "no" if options.precision == "fp32" else "bf16",
            options.device, options.corpus, workers=0, vocabulary=options.vocabulary,
        )  # fmt: skip
        for side, run in SIDES.items():
            for checkpointing in (False, True):
                chosen = (run, replace(spec, checkpointing=checkpointing))
                iteration = timing.run_once(with_peak, chosen, options.threads)
                case = {"model": model, "side": side, "checkpointing": checkpointing, "seconds": iteration.seconds / 3}
                content["cases"].append(case | iteration.metrics)
                mode = "activations recomputed" if checkpointing else "activations kept"
                print(f"{model:6} {side:20} {mode:22} {iteration.metrics['peak_mebibytes']:8,.0f} MiB", flush=True)
                path = results_file.write("memory", options.device, options.threads, content, options.results)
    return path


def with_peak(chosen: tuple[timing.Workload, StepSpec], report: Callable[..., None]) -> None:
    """A workload that says its process's high-water mark at the end of an iteration."""
    run, spec = chosen

    def report_with_peak(amount: float, **metrics: Any) -> None:
        peak = torch.cuda.max_memory_allocated() / 2**20 if spec.device == "cuda" else timing.peak_memory()
        report(amount, peak_mebibytes=peak)

    run(spec, report_with_peak)


if __name__ == "__main__":
    main()
