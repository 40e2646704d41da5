"""The pre-training step side by side with transformers: how many times faster, and which optimization gives how much.

    python benchmarks/pretraining_step.py                              # bf16, 4/512 and base at 128 tokens: minutes
    python benchmarks/pretraining_step.py --lengths 128 512 --precisions bf16 fp32

This is for a CPU; gpu_headline.py compares both sides on a GPU.

First both sides are shown to compute the same: equal weights, one masked batch, float32, no dropout; loss and gradients
must agree. Then they alternate on the same examples in the same order, each in a process of its own, and the speeds
are compared iteration by iteration. Counted are real tokens, never padding; loading, clipping, the optimizer and
dropout of 0.1, attention's too, are part of the step.

The other side is transformers' `BertForPreTraining` with its collator:

    tuned        bf16 autocast (or float32 by oneDNN), SDPA, fused AdamW, a loader process
    compiled     tuned, and torch.compile with one shape (--compiled: compiling takes minutes on two cores)

and both once more with `kept memory`: the setting of the C library's allocator that our runs make. The headline is the
ratio to the faster of tuned and compiled; the one to the faster with kept memory is beside it.

Attribution (`without ...`): our step with one optimization switched off, everything else on.
"""

import argparse
import sys
from dataclasses import replace
from itertools import islice, product
from pathlib import Path
from typing import Any

from side_by_side import baselines, corpora, results_file, timing
from side_by_side.baselines import StepSpec

from bert_repro.training.performance import flops_per_token

SIZES = {"4/512": (4, 512), "8/512": (8, 512), "base": (12, 768), "large": (24, 1024)}  # layers, hidden
TOKENS = {"4/512": 4096, "8/512": 4096, "base": 2048, "large": 1024}  # of a step, padding included
DOCUMENTS = 1000
OPTIMIZATIONS = {
    "bf16": "bf16 products",
    "packing": "packing",
    "cpu_kernels": "own dropout, packed attention and cross-entropy, freed memory kept, float32 by oneDNN",
}
PARITY_BOUND = 1e-4
TUNED, COMPILED = "transformers, tuned", "transformers, compiled"
TUNED_KEPT, COMPILED_KEPT = KEPT = (f"{TUNED}, kept memory", f"{COMPILED}, kept memory")
BASELINES = (TUNED, COMPILED)


def main(arguments: list[str] | None = None) -> Path:
    """Measures every case, prints a table each, and writes the results."""
    options = parse(arguments)
    content: dict[str, Any] = {"corpus": f"made up, {DOCUMENTS} documents", "cases": []}
    for model, length, precision in product(options.models, options.lengths, options.precisions):
        content["cases"].append(measure(options, model, length, precision))
        # After every case, so that an interrupted run leaves what it has.
        path = results_file.write(f"pretraining_step{options.name}", "cpu", options.threads, content, options.results)
    return path


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["4/512", "base"], help=f"{', '.join(SIZES)} or L/H")
    parser.add_argument("--lengths", nargs="+", type=int, default=[128])
    parser.add_argument("--precisions", nargs="+", default=["bf16"], choices=["bf16", "fp32"])
    parser.add_argument("--tokens", type=int, help="of a step, padding included; default: by model")
    parser.add_argument("--steps", type=int, default=2, help="of an iteration")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--compiled", action="store_true", help="also transformers with torch.compile")
    parser.add_argument("--no-attribution", dest="attribution", action="store_false")
    parser.add_argument("--vocabulary", type=int, default=corpora.VOCABULARY, help="tokens the model scores")
    parser.add_argument("--name", default="", help="added to the name of the results file, to keep several of a day")
    parser.add_argument("--results", type=Path, default=results_file.RESULTS)
    return parser.parse_args(arguments)


def measure(options: argparse.Namespace, model: str, length: int, precision: str) -> dict[str, Any]:
    """One model at one length in one precision: parity, then speed."""
    layers, hidden = SIZES[model] if model in SIZES else map(int, model.split("/"))
    batch = max(1, (options.tokens or TOKENS.get(model, 2048)) // length)
    spec = StepSpec(
        layers, hidden, length, batch, options.steps, "no" if precision == "fp32" else precision, documents=DOCUMENTS,
        vocabulary=options.vocabulary,
    )  # fmt: skip
    print(f"== {model}, {batch} sequences of {length} tokens, {precision}", flush=True)
    agreed = show_parity(spec, options.threads)
    peak = 0.0
    useful = flops_per_token(layers, hidden, options.vocabulary, length)
    table: dict[str, Any] = {}
    rivals = workloads(options, spec)
    size = 4 if hidden <= 512 else 2 if hidden <= 768 else 1  # one of base's size takes 4 GiB
    for group in (dict(islice(rivals.items(), at, at + size)) for at in range(0, len(rivals), size)):
        made = timing.compare({"ours": (baselines.ours, spec), **group}, options.repeats, options.threads)
        for name in made if "ours" not in table else group:
            table[name] = timing.speeds(made[name]) | {"ours_is_faster_by": timing.speedup(made["ours"], made[name])}
        products = timing.compare({"peak": (baselines.peak, spec)}, 4, options.threads)["peak"]
        peak = max(peak, *(iteration.amount for iteration in products))
        fill = made["ours"][-1].metrics["fill"]
    for row in table.values():
        row["mfu"] = row["per_second"]["median"] * useful / peak
    fastest, fastest_kept = (
        max(table.keys() & set(names), key=lambda name: table[name]["per_second"]["median"])
        for names in (BASELINES, KEPT)
    )
    case = {
        "model": model, "length": length, "batch": spec.batch, "precision": precision,
        "fill": fill, "parity": agreed, "flops_per_token": useful, "peak_flops": peak,
        "candidates": table, "fastest_baseline": fastest, "ratio": table[fastest]["ours_is_faster_by"],
        "fastest_baseline_with_memory_kept": fastest_kept,
        "ratio_with_memory_kept_on_both_sides": table[fastest_kept]["ours_is_faster_by"],
    }  # fmt: skip
    show(case)
    return case


def show_parity(spec: StepSpec, threads: int, parity: timing.Workload = baselines.parity) -> dict[str, float]:
    """Loss and gradient differences of both sides.

    Raises:
        SystemExit: they do not agree, so that timing them would compare different things.
    """
    metrics = timing.run_once(parity, spec, threads).metrics
    print(
        f"parity: loss {metrics['loss']:.4f}, differs by {metrics['loss_difference']:.1e} relatively, gradients by "
        f"{metrics['gradient_difference']:.1e} at most",
        flush=True,
    )
    if max(metrics["loss_difference"], metrics["gradient_difference"]) > PARITY_BOUND:
        sys.exit(f"the two sides differ by more than {PARITY_BOUND}: nothing was timed")
    return metrics


def workloads(options: argparse.Namespace, spec: StepSpec) -> dict[str, tuple[timing.Workload, Any]]:
    """Who runs against ours: the other side's versions, and ours without each optimization."""
    workloads: dict[str, tuple[timing.Workload, Any]] = {
        TUNED: (baselines.upstream, spec),
        TUNED_KEPT: (baselines.upstream_with_kept_memory, spec),
    }
    if options.compiled:
        workloads[COMPILED] = (baselines.upstream, replace(spec, compile=True))
        workloads[COMPILED_KEPT] = (baselines.upstream_with_kept_memory, replace(spec, compile=True))
    if options.attribution:
        for name in OPTIMIZATIONS:
            changed = replace(spec, precision="no") if name == "bf16" else replace(spec, off=(name,))
            if changed != spec:
                workloads[f"without {name}"] = (baselines.ours, changed)
    return workloads


def show(case: dict[str, Any]) -> None:
    """Prints a case as a table."""
    print(f"fill {case['fill']:.1%}; tokens a second: median (least to most); ours is faster by")
    for name, row in case["candidates"].items():
        label = "without " + OPTIMIZATIONS[name.removeprefix("without ")] if name.startswith("without ") else name
        print(
            f"  {label:45} {results_file.summary(row['per_second'], 0):28} {row['mfu']:4.0%} MFU   "
            f"{results_file.summary(row['ours_is_faster_by'])}"
        )
    print(f"ratio to {case['fastest_baseline']}: {results_file.summary(case['ratio'])}", flush=True)


if __name__ == "__main__":
    main()
