"""How much a run computes and how fast its device is: FLOPs of training, the peak of a device, its precision.

The matrix products of real tokens are counted, a multiply-add as two FLOPs. Not counted: padding, embedding look-ups,
LayerNorm, activations, the pooler and the optimizer (together under 1% at the paper's sizes). A run's speed is shown as
a share of the measured peak (MFU).
"""

import itertools
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from accelerate.utils import is_torch_xla_available, parse_flag_from_env

from bert_repro.errors import flag
from bert_repro.results import TrainResults

logger = logging.getLogger("bert_repro")

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_PRODUCT_SIZES = {"cpu": 1024, "cuda": 8192}  # rows and columns of the measured product, by device
_PRODUCT_SIZE_ELSEWHERE = 2048
_MOST_PRODUCTS = 50
_SECONDS_OF_PRODUCTS = 0.5

# Share of a device's peak that a run reaches, for estimates.
_SHARES_HERE = (0.6, 0.3)
_SHARE_OF_MAKERS_FIGURE = 0.4


class HasPrecision(Protocol):
    """A configuration with `mixed_precision`."""

    @property
    def mixed_precision(self) -> str:
        """Precision of the run, `auto` included."""


C = TypeVar("C", bound=HasPrecision)


def measured_peak(device: torch.device, mixed_precision: str) -> float:
    """Measures the FLOPs per second of a large matrix product on this device, in the run's precision.

    A published peak is rarely reached by any product, and is unknown for most processors. Measuring takes half a
    second, or five on a processor that emulates bfloat16. The data are random, because constant data let a chip run
    faster than a model can. The fastest of up to fifty products counts.

    Args:
        device: where the run computes.
        mixed_precision: `no`, `bf16` or `fp16`.
    """
    dtype = _DTYPES.get(mixed_precision, torch.float32)
    size = _PRODUCT_SIZES.get(device.type, _PRODUCT_SIZE_ELSEWHERE)
    # A generator of its own: the run's random numbers must not depend on this measurement.
    generator = torch.Generator().manual_seed(0)
    left = torch.randn(size, size, generator=generator).to(device, dtype)
    right = torch.randn(size, size, generator=generator).to(device, dtype)

    # The first product warms up, and its time decides how many follow.
    fastest = _seconds(left, right)
    for _ in range(min(_MOST_PRODUCTS, 1 + int(_SECONDS_OF_PRODUCTS / fastest))):
        fastest = min(fastest, _seconds(left, right))
    return 2 * size**3 / fastest


def resolve_precision(config: C) -> C:
    """Returns the settings of a run with `mixed_precision` "auto" replaced: bf16 if it is fast on this device, else no.

    It is fast on TPUs, GPUs from Ampere on, and processors with instructions for bfloat16. Others emulate it: with AVX2
    alone, a product takes 150 times as long as in float32. If bf16 was asked for there, a warning says so.
    """
    is_fast = _has_fast_bfloat16()
    if config.mixed_precision == "bf16" and not is_fast:
        logger.warning(
            "%s: this device may emulate bfloat16, which is many times slower. %s avoids that.",
            flag("mixed_precision", "bf16"),
            flag("mixed_precision", "auto"),
        )
    if config.mixed_precision != "auto":
        return config
    # mypy: every configuration is a dataclass.
    return replace(config, mixed_precision="bf16" if is_fast else "no")  # type: ignore[type-var]


def _has_fast_bfloat16() -> bool:
    if is_torch_xla_available(check_is_tpu=True):
        return True
    if torch.cuda.is_available() and not parse_flag_from_env("ACCELERATE_USE_CPU"):
        return torch.cuda.get_device_capability() >= (8, 0)
    # Processors with AMX have the instructions of AVX-512 too.
    return bool(torch.cpu._is_avx512_bf16_supported())


def _seconds(left: torch.Tensor, right: torch.Tensor) -> float:
    """Returns seconds per product."""
    # An accelerator computes while this process continues, so several products are timed together.
    count = 1 if left.device.type == "cpu" else 10
    began = time.perf_counter()
    for _ in range(count):
        product = left @ right
    # Reading a number waits for the device.
    float(product[0, 0])
    return (time.perf_counter() - began) / count


class MakersPeak(NamedTuple):
    """Dense TFLOP/s of a device, from its maker's data sheet.

    Args:
        half: in 16 bits; bfloat16 if the device has it.
        single: in 32 bits.
    """

    half: float
    single: float


PUBLISHED_TFLOPS = {
    "t4": MakersPeak(65.0, 8.1),
    "rtx4090": MakersPeak(165.2, 82.6),
    "a100": MakersPeak(312.0, 19.5),
    "h100 or h200": MakersPeak(989.4, 66.9),
}


def estimated_times(flops: float, mixed_precision: str, devices: int) -> list[str]:
    """Estimates, as two lines of text, how long a run takes here and on named devices.

    Args:
        flops: FLOPs of the complete run.
        mixed_precision: `no`, `bf16` or `fp16`.
        devices: number of devices that share the work.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    peak = measured_peak(device, mixed_precision)
    shortest, longest = (format_hours(flops / (peak * devices * share)) for share in _SHARES_HERE)

    elsewhere: list[str] = []
    for name, published in PUBLISHED_TFLOPS.items():
        tflops = published.single if mixed_precision == "no" else published.half
        seconds = flops / (tflops * 1e12 * _SHARE_OF_MAKERS_FIGURE * devices)
        elsewhere.append(f"{name} {format_hours(seconds)}")
    count = "one device" if devices == 1 else f"{devices} devices"
    return [
        f"time      estimated: {shortest} to {longest}, at 60% to 30% of the {peak / 1e12:.2f} TFLOP/s that a large "
        f"matrix product reaches here ({device.type})",
        f"          estimated on {count}, at 40% of the maker's figure: {', '.join(elsewhere)}",
    ]


def format_hours(seconds: float) -> str:
    """Returns a duration in minutes, hours or days."""
    hours = seconds / 3600
    if seconds < 60:
        return "under a minute"
    if hours < 2:
        return f"{seconds / 60:.0f} minutes"
    if hours < 72:
        return f"{hours:,.0f} hours"
    return f"{hours / 24:,.0f} days"


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
    # Forward pass of one token: products of the layers, scores and values of attention, the MLM head.
    feed_forward = intermediate_size if intermediate_size is not None else 4 * hidden_size
    projections = 2 * (4 * hidden_size**2 + 2 * hidden_size * feed_forward)
    attention = 4 * sequence_length * hidden_size
    mlm_head = 2 * (hidden_size**2 + hidden_size * vocab_size)
    # The backward pass computes two products for each of the forward pass.
    forward = num_hidden_layers * (projections + attention) + predicted_fraction * mlm_head
    return 3 * forward


def training_totals(rows: Sequence[Mapping[str, Any]]) -> TrainResults:
    """Sums up the rows of a train_log.jsonl, all parts of a resumed run together.

    Returns:
        `tokens` (without padding), `seconds` (of training, evaluations on the way included) and, in pre-training,
        `flops` to three digits and `mfu`, the mean over the seconds whose rows have a possible one. Empty without rows.
    """
    training_rows = [row for row in rows if row.get("tokens") is not None and row.get("seconds") is not None]
    if not training_rows:
        return {}
    last = training_rows[-1]
    totals: TrainResults = {"tokens": last["tokens"], "seconds": round(last["seconds"], 1)}
    if last.get("flops"):
        totals["flops"] = float(f"{last['flops']:.3g}")

    # Weight each row's MFU by the seconds that its tokens took.
    seconds = 0.0
    weighted_mfu = 0.0
    for before, row in itertools.pairwise([{"tokens": 0}, *training_rows]):
        mfu = possible_mfu(row.get("mfu"))
        if mfu and row.get("tokens_per_second"):
            row_seconds = (row["tokens"] - before["tokens"]) / row["tokens_per_second"]
            seconds += row_seconds
            weighted_mfu += row_seconds * mfu
    if seconds:
        totals["mfu"] = float(f"{weighted_mfu / seconds:.3g}")
    return totals


def possible_mfu(mfu: float | None) -> float | None:
    """Returns the MFU, or None if it exceeds 1.

    No run is faster than its device. An MFU above 1 means that something else slowed the measurement of the peak.
    """
    if mfu is None or mfu > 1:
        return None
    return mfu
