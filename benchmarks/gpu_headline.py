"""The number that matters: tokens a second of pre-training BERT-base on one GPU, against transformers.

    python benchmarks/gpu_headline.py --results OUT                  # 256 sequences of 128 tokens, bf16: five minutes
    python benchmarks/gpu_headline.py --results OUT --length 512 --batch 64
    python benchmarks/gpu_headline.py --results OUT --toy            # a rehearsal on the CPU, at toy size

Ours is the product as it is; the other sides are transformers' model tuned (bf16 autocast, SDPA, fused AdamW, loader
processes), without and with torch.compile. Each side has a process of its own and warms up before it is timed. The file
of results is written again after every side. First, both sides are shown to compute the same (pretraining_step.py).
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from pretraining_step import show_parity
from side_by_side import baselines, results_file, timing
from side_by_side.baselines import StepSpec

from bert_repro.training.performance import flops_per_token

WARM_UP = 2  # iterations that are not counted, after the one that compiles


def main(arguments: list[str] | None = None) -> Path:
    """Measures one side after another; returns the file of results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=50, help="of an iteration")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--toy", action="store_true", help="on the CPU, at toy size")
    parser.add_argument("--results", type=Path, default=results_file.RESULTS)
    options = parser.parse_args(arguments)
    spec = StepSpec(options.layers, options.hidden, options.length, options.batch, options.steps, "bf16", "cuda",
                    documents=20_000, workers=options.workers)  # fmt: skip
    sides: dict[str, tuple[timing.Workload, StepSpec]] = {
        "ours": (baselines.ours, spec),
        "transformers, tuned": (baselines.upstream, spec),
        "transformers, compiled": (baselines.upstream, replace(spec, compile=True)),
    }
    if options.toy:
        spec = StepSpec(2, 32, 32, 4, 1, "no", "cpu", documents=50)
        sides = {"ours": (baselines.ours, spec), "transformers, tuned": (baselines.upstream, spec)}
    useful = flops_per_token(spec.layers, spec.hidden, spec.vocabulary, spec.length)
    content: dict[str, Any] = {"spec": str(spec), "flops_per_token": useful, "sides": {}}
    content["parity"] = show_parity(replace(spec, batch=min(spec.batch, 32)), threads=1)
    content["peak_flops"] = timing.run_once(baselines.peak, spec, threads=1).amount
    for name, (run, side) in sides.items():
        workload = timing.RunningWorkload(run, side, threads=1)
        try:
            iterations = [workload.iterate() for _ in range(WARM_UP + 1 + options.repeats)]
        finally:
            workload.stop()
        row = timing.speeds(iterations[WARM_UP:]) | {"compiling_seconds": round(iterations[0].seconds, 1)}
        row["mfu"] = row["per_second"]["median"] * useful / content["peak_flops"]
        content["sides"][name] = row
        print(f"{name}: {results_file.summary(row['per_second'], 0)} tokens a second, MFU {row['mfu']:.0%}", flush=True)
        path = results_file.write("gpu_headline", spec.device, 1, content, options.results)
    return path


if __name__ == "__main__":
    main()
