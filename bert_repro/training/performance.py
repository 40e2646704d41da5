"""How much a run computes and how fast its device is: FLOPs of training, the peak of a device, settings of a CPU.

FLOPs counted are the matrix products of real tokens, a multiply-add as two FLOPs. Not counted: padding, embedding
look-ups, LayerNorm, activations, the pooler and the optimizer (together under 1% at the paper's sizes). A run's
speed is shown as a share of the measured peak (MFU).
"""

import ctypes
import itertools
import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from accelerate.utils import is_torch_xla_available, parse_flag_from_env

from bert_repro.configs import Phase, PretrainingConfig
from bert_repro.configs.presets import tokens_including_padding
from bert_repro.results import TrainResults

logger = logging.getLogger("bert_repro")
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # malloc.h
_KERNEL_CACHES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")  # oneDNN's own and PyTorch's on top of it


def measured_peak(device: torch.device, mixed_precision: str) -> float:
    """Measures the FLOPs per second of a large matrix product on this device, in the run's precision.

    A published peak is rarely reached by any product, and unknown for most processors; this takes half a second,
    where a processor emulates bfloat16 five. The data are random, as constant data let a chip run faster than a model
    can, one product warms up, the fastest of up to fifty counts, and on an accelerator several are timed together.

    Args:
        device: where the run computes.
        mixed_precision: `no`, `bf16` or `fp16`.
    """
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(mixed_precision, torch.float32)
    size = {"cpu": 1024, "cuda": 8192}.get(device.type, 2048)
    generator = torch.Generator().manual_seed(0)  # of its own: a run's random numbers must not depend on this
    left, right = (torch.randn(size, size, generator=generator).to(device, dtype) for _ in range(2))
    first = _seconds(left, right)
    return 2 * size**3 / min(first, *(_seconds(left, right) for _ in range(min(50, 1 + int(0.5 / first)))))


def resolve_precision(config: Any) -> Any:
    """Returns the settings of a run with `mixed_precision` auto as what it is on this device: bf16 where that is fast.

    Fast are TPUs, GPUs from Ampere on and processors with instructions for bfloat16. Others emulate it: with AVX2
    alone, a product takes 150 times as long as in float32. Where bf16 was asked for there, a warning says so.
    """
    gpu = torch.cuda.is_available() and not parse_flag_from_env("ACCELERATE_USE_CPU")
    # Processors with AMX have the instructions of AVX-512 too.
    fast = torch.cuda.get_device_capability() >= (8, 0) if gpu else torch.cpu._is_avx512_bf16_supported()
    fast = fast or is_torch_xla_available(check_is_tpu=True)
    if config.mixed_precision == "bf16" and not fast:
        logger.warning("--mixed_precision bf16: this device may emulate it, many times as slow; auto avoids that")
    return config if config.mixed_precision != "auto" else replace(config, mixed_precision="bf16" if fast else "no")


def prepare_cpu() -> None:
    """Sets this process up for the speed of a CPU.

    Batches without padding have ever changing numbers of tokens, for each of which oneDNN makes kernels of up to 3 MiB:
    the thousand that are kept by default grow to gigabytes. A step uses some two hundred again. This has an effect only
    before the process's first product, and where the environment does not say how many.
    """
    for name in _KERNEL_CACHES:
        os.environ.setdefault(name, "256")
    use_fast_float32()
    keep_freed_memory()


def use_fast_float32() -> None:
    """Lets oneDNN do float32 products where it keeps float32 accuracy (twice as fast on some AMD processors).

    "medium" allows bfloat16 products on processors that have them, so it is kept only where a trial product against
    float64 shows an error that bfloat16 cannot reach.
    """
    torch.set_float32_matmul_precision("medium")
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(256, 256, generator=generator) for _ in range(2))
    exact = left.double() @ right.double()
    error = ((left @ right).double() - exact).abs().max() / exact.abs().max()
    if error > 1e-5:
        torch.set_float32_matmul_precision("highest")


def keep_freed_memory() -> bool:
    """Lets glibc keep what is freed for the next allocation, in this process, for the rest of its life.

    By default it gives large blocks back to the system at once, and every step begins with millions of page faults for
    gradients and activations as large as those of the step before: a fifth of the time of a step of BERT-base. The peak
    of memory is what it was; between the peaks it is not given back.

    Returns:
        Whether there is such a C library.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    # No block is mapped on its own, and the top of the heap is never trimmed.
    return bool(mallopt(_M_MMAP_MAX, 0) and mallopt(_M_TRIM_THRESHOLD, -1))


def _seconds(left: torch.Tensor, right: torch.Tensor) -> float:
    """Returns seconds per product."""
    began = time.perf_counter()
    count = 1 if left.device.type == "cpu" else 10  # elsewhere a call returns before the device is done
    for _ in range(count):
        product = left @ right
    float(product[0, 0])  # waits for the device
    return (time.perf_counter() - began) / count


# Dense, in 16 bits (bfloat16 where the device has it) and in 32, from the makers' data sheets.
PUBLISHED_TFLOPS = {"t4": (65.0, 8.1), "rtx4090": (165.2, 82.6), "a100": (312.0, 19.5), "h100 or h200": (989.4, 66.9)}


def estimated_times(flops: float, mixed_precision: str, devices: int) -> list[str]:
    """Estimates, as two lines of text, how long some FLOPs take here and on devices of makers.

    Args:
        flops: of the complete run.
        mixed_precision: `no`, `bf16` or `fp16`.
        devices: how many share the work.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    peak = measured_peak(device, mixed_precision)
    low, high = (format_hours(flops / (peak * devices * share)) for share in (0.6, 0.3))
    seconds = {
        name: flops / (fast[mixed_precision == "no"] * 4e11 * devices) for name, fast in PUBLISHED_TFLOPS.items()
    }
    return [
        f"time      estimated: {low} to {high}, at 60% to 30% of the {peak / 1e12:.2f} TFLOP/s that a large matrix "
        f"product reaches here ({device.type})",
        f"          estimated on {devices} x, at 40% of the maker's figure: "
        + ", ".join(f"{name} {format_hours(time)}" for name, time in seconds.items()),
    ]


def format_hours(seconds: float) -> str:
    """Returns a duration in minutes, hours or days."""
    hours = seconds / 3600
    if hours < 2:
        return f"{seconds / 60:.0f} minutes" if seconds >= 60 else "under a minute"
    return f"{hours:,.0f} hours" if hours < 72 else f"{hours / 24:,.0f} days"


def flops_per_token(
    num_hidden_layers: int,
    hidden_size: int,
    vocab_size: int,
    sequence_length: float,
    *,
    intermediate_size: int | None = None,
    predicted_fraction: float = 0.15,
) -> float:
    """Returns the FLOPs of one token's forward and backward pass (the backward pass costs two forward passes).

    The last layer counts whole, although a CPU computes only the tokens of it that a head reads (`cpu_kernels`).

    Args:
        num_hidden_layers: layers (the paper's L).
        hidden_size: hidden size (H).
        vocab_size: tokens the MLM head scores (V).
        sequence_length: tokens each token attends to, on average (S; half of it where attention is causal).
        intermediate_size: feed-forward size (F); default 4H, as in every model of the paper.
        predicted_fraction: share of tokens the MLM head decodes: 0.15 when only predicted positions are decoded, 1
            when all are (upstream transformers), 0 for an encoder without the head.

    Returns:
        FLOPs per token; 545 million for BERT-base at 128 tokens.
    """
    feed_forward = intermediate_size if intermediate_size is not None else 4 * hidden_size
    projections = 2 * (4 * hidden_size**2 + 2 * hidden_size * feed_forward)
    attention = 4 * sequence_length * hidden_size
    mlm_head = 2 * (hidden_size**2 + hidden_size * vocab_size)
    forward = num_hidden_layers * (projections + attention) + predicted_fraction * mlm_head
    return 3 * forward


def pretraining_flops_per_token(model_config: Any, config: PretrainingConfig, length: int) -> float:
    """Returns the useful FLOPs per token at a sequence length (`flops_per_token`); 0 for adapters, not counted."""
    if config.peft:
        return 0.0
    return flops_per_token(
        model_config.num_hidden_layers,
        model_config.hidden_size,
        model_config.vocab_size,
        (length + 1) / 2 if config.left_to_right else length,
        intermediate_size=model_config.intermediate_size,
        predicted_fraction=1.0 if config.left_to_right else config.masked_lm_prob,
    )


def pretraining_flops(model_config: Any, config: PretrainingConfig, phases: Sequence[Phase]) -> float:
    """Returns the useful FLOPs of all phases of a pre-training; 0 for adapters, not counted."""
    return sum(
        tokens_including_padding([phase]) * pretraining_flops_per_token(model_config, config, phase.max_seq_length)
        for phase in phases
    )


def training_totals(rows: Sequence[Mapping[str, Any]]) -> TrainResults:
    """Sums up the rows of a train_log.jsonl, all parts of a resumed run together.

    Returns:
        `tokens` (real ones, no padding), `seconds` (of training, evaluations on the way included) and, in pre-training,
        `flops` to three digits; `mfu`, the mean over the seconds whose rows have it. Empty without rows.
    """
    trained = [row for row in rows if row.get("tokens") is not None and row.get("seconds") is not None]
    if not trained:
        return {}
    totals: TrainResults = {"tokens": trained[-1]["tokens"], "seconds": round(trained[-1]["seconds"], 1)}
    if trained[-1].get("flops"):
        totals["flops"] = float(f"{trained[-1]['flops']:.3g}")
    seconds, shares = 0.0, 0.0
    for before, row in itertools.pairwise([{"tokens": 0}, *trained]):
        if row.get("mfu") and row.get("tokens_per_second"):
            taken = (row["tokens"] - before["tokens"]) / row["tokens_per_second"]
            seconds, shares = seconds + taken, shares + taken * row["mfu"]
    if seconds:
        totals["mfu"] = float(f"{shares / seconds:.3g}")
    return totals
