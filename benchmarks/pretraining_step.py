"""The pre-training step side by side with transformers: how many times faster, and which lever gives how much.

    python benchmarks/pretraining_step.py                              # bf16, 4/512 and base at 128 tokens: minutes
    python benchmarks/pretraining_step.py --lengths 128 512 --precisions bf16 fp32
    python benchmarks/pretraining_step.py --device cuda                # the same on a GPU, both sides compiled too

First both sides are shown to compute the same: equal weights, one masked batch, float32, no dropout; loss and gradients
must agree. Then they take turns on the same examples in the same order, each in a process of its own, and the speeds
are compared turn by turn. Counted are real tokens, never padding; loading, clipping, the optimiser and dropout of 0.1,
attention's too, are part of the step.

The other side is transformers' `BertForPreTraining` with its collator, three times:

    documented   float32, AdamW as it comes, no loader process
    tuned        bf16 autocast (or float32 by oneDNN), SDPA, fused AdamW, a loader process
    compiled     tuned, and torch.compile with one shape (--compiled: compiling takes minutes on two cores)

and once more as `tuned, kept memory`: with the setting of the C library's allocator that our runs make. The headline is
the ratio to the fastest of documented, tuned and compiled; the one to `tuned, kept memory` stands beside it.

Attribution (`without ...`): our step with one lever switched off, everything else on.
"""

import argparse
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from side_by_side import contenders, corpora, laps, records
from side_by_side.contenders import DOCUMENTED, StepSpec

from bert_repro.training.flops import flops_per_token

SIZES = {"4/512": (4, 512), "8/512": (8, 512), "base": (12, 768), "large": (24, 1024)}  # layers, hidden
TOKENS = {"4/512": 4096, "8/512": 4096, "base": 2048, "large": 1024}  # of a step on the CPU, padding included
TOKENS_ON_GPU = 32_768
LEVERS = {
    "bf16": "bf16 products",
    "predicted_only": "decoding of predicted positions only",
    "packing": "packing",
    "kept_memory": "freed memory kept",
    "cpu_kernels": "own dropout and packed attention",
    "fused_optimizer": "fused optimiser",
    "fast_float32": "float32 by oneDNN",
    "compile": "compiled graph of one shape",
}
PARITY_BOUND = 1e-4
TUNED, COMPILED, TUNED_KEPT = "transformers, tuned", "transformers, compiled", "transformers, tuned, kept memory"
BASELINES = ("transformers, documented", TUNED, COMPILED)


def main(arguments: list[str] | None = None) -> Path:
    """Measures every case, prints a table each, and writes the record."""
    options = parse(arguments)
    content: dict[str, Any] = {"corpus": corpora.load(options.corpus)[3], "cases": []}
    for model, length, precision in product(options.models, options.lengths, options.precisions):
        content["cases"].append(measure(options, model, length, precision))
        # After every case, so that an interrupted run leaves what it has.
        path = records.write(
            f"pretraining_step{options.name}", options.device, options.threads, content, options.results
        )
    return path


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["4/512", "base"], help=f"{', '.join(SIZES)} or L/H")
    parser.add_argument("--lengths", nargs="+", type=int, default=[128])
    parser.add_argument("--precisions", nargs="+", default=["bf16"], choices=["bf16", "fp32"])
    parser.add_argument("--tokens", type=int, help="of a step, padding included; default: by model and device")
    parser.add_argument("--steps", type=int, help="of a lap; default: 2, on a GPU 50, or it is loaded between laps")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--workers", type=int, help="loader processes of each side; default: 1, on a GPU 8")
    parser.add_argument("--corpus", help="a prepared corpus; default: a made-up one of natural lengths")
    parser.add_argument(
        "--compiled", action="store_true", help="also transformers with torch.compile; always on a GPU, where ours is"
    )
    parser.add_argument("--no-attribution", dest="attribution", action="store_false")
    parser.add_argument("--no-documented", dest="documented", action="store_false")
    parser.add_argument("--vocabulary", type=int, default=corpora.VOCABULARY, help="tokens the model scores")
    parser.add_argument("--name", default="", help="added to the name of the record, to keep several of a day")
    parser.add_argument("--results", type=Path, default=records.RESULTS)
    options = parser.parse_args(arguments)
    on_gpu = options.device == "cuda"
    options.steps, options.workers = options.steps or (50 if on_gpu else 2), options.workers or (8 if on_gpu else 1)
    options.compiled = options.compiled or on_gpu
    return options


def measure(options: argparse.Namespace, model: str, length: int, precision: str) -> dict[str, Any]:
    """One model at one length in one precision: parity, then the race."""
    layers, hidden = SIZES[model] if model in SIZES else map(int, model.split("/"))
    tokens = options.tokens or (TOKENS.get(model, 2048) if options.device == "cpu" else TOKENS_ON_GPU)
    spec = StepSpec(
        layers, hidden, length, max(1, tokens // length), options.steps, "no" if precision == "fp32" else precision,
        options.device, options.corpus, workers=options.workers, vocabulary=options.vocabulary,
    )  # fmt: skip
    print(f"== {model}, {spec.batch} sequences of {length} tokens, {precision}, {options.device}", flush=True)
    agreed = show_parity(spec, options.threads)
    peak = 0.0
    useful = flops_per_token(layers, hidden, options.vocabulary, length)
    table: dict[str, Any] = {}
    for heat in heats(field(options, spec), 4 if hidden <= 512 else 2 if hidden <= 768 else 1):
        made = laps.race({"ours": (contenders.ours, spec), **heat}, options.repeats, options.threads)
        for name in made if "ours" not in table else heat:
            table[name] = laps.rates(made[name]) | {"ours_is_faster_by": laps.ratio(made["ours"], made[name])}
        products = laps.race({"peak": (contenders.peak, spec)}, 4, options.threads)["peak"]
        peak = max(peak, *(lap.amount for lap in products))
        fill = made["ours"][-1].figures["fill"]
    for row in table.values():
        row["share_of_peak"] = row["per_second"]["median"] * useful / peak
    fastest = max((name for name in BASELINES if name in table), key=lambda name: table[name]["per_second"]["median"])
    case = {
        "model": model, "length": length, "batch": spec.batch, "precision": precision,
        "fill": fill, "parity": agreed, "flops_per_token": useful, "peak_flops": peak,
        "contenders": table, "fastest_baseline": fastest, "ratio": table[fastest]["ours_is_faster_by"],
        "ratio_with_memory_kept_on_both_sides": table[TUNED_KEPT]["ours_is_faster_by"] if TUNED_KEPT in table else None,
    }  # fmt: skip
    show(case)
    return case


def show_parity(spec: StepSpec, threads: int) -> dict[str, float]:
    """Loss and gradient differences of both sides.

    Raises:
        SystemExit: they do not agree, so that timing them would compare different things.
    """
    figures = laps.once(contenders.parity, spec, threads).figures
    print(
        f"parity: loss {figures['loss']:.4f}, differs by {figures['loss_difference']:.1e} relatively, gradients by "
        f"{figures['gradient_difference']:.1e} at most",
        flush=True,
    )
    if max(figures["loss_difference"], figures["gradient_difference"]) > PARITY_BOUND:
        sys.exit(f"the two sides differ by more than {PARITY_BOUND}: nothing was timed")
    return figures


def field(options: argparse.Namespace, spec: StepSpec) -> dict[str, tuple[laps.Run, Any]]:
    """Who runs against ours: the other side's versions, and ours without each lever."""
    entered: dict[str, tuple[laps.Run, Any]] = {TUNED: (contenders.stock, spec)}
    if options.device == "cpu":
        entered[TUNED_KEPT] = (contenders.tuned_with_kept_memory, spec)
    if options.documented:
        entered[BASELINES[0]] = (contenders.stock, replace(spec, off=DOCUMENTED))
    if options.compiled:
        entered[COMPILED] = (contenders.stock, replace(spec, compile=True))
    if options.attribution:
        for lever in LEVERS:
            if does_something(lever, spec):
                entered[f"without {lever}"] = without(spec, lever)
    return entered


def heats(entered: dict[str, tuple[laps.Run, Any]], size: int) -> list[dict[str, tuple[laps.Run, Any]]]:
    """The field in groups: a contender of base's size takes 4 GiB, and all would not lie in memory at once."""
    names = list(entered)
    return [{name: entered[name] for name in names[at : at + size]} for at in range(0, len(names), size)]


def does_something(lever: str, spec: StepSpec) -> bool:
    """Whether a lever plays a part in this case."""
    if lever == "bf16":
        return spec.precision == "bf16"
    if lever == "fast_float32":
        return spec.precision == "no" and spec.device == "cpu"
    if lever == "compile":
        return spec.device == "cuda"
    return spec.device == "cpu" or lever not in ("kept_memory", "cpu_kernels")


def without(spec: StepSpec, lever: str) -> tuple[laps.Run, StepSpec]:
    """Our step with one lever switched off."""
    changed = replace(spec, precision="no") if lever == "bf16" else replace(spec, off=(lever,))
    return contenders.ours, changed


def show(case: dict[str, Any]) -> None:
    """Prints a case as a table."""
    print(f"fill {case['fill']:.1%}; tokens a second: median (least to most); ours is faster by")
    for name, row in case["contenders"].items():
        label = "without " + LEVERS[name.removeprefix("without ")] if name.startswith("without ") else name
        print(
            f"  {label:45} {records.told(row['per_second'], 0):28} {row['share_of_peak']:4.0%} of peak   "
            f"{records.told(row['ours_is_faster_by'])}"
        )
    print(f"ratio to {case['fastest_baseline']}: {records.told(case['ratio'])}", flush=True)


if __name__ == "__main__":
    main()
