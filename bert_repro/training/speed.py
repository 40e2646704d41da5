"""How fast this machine can be, measured: the rate of a large matrix product, against which a run's speed is shown."""

import time

import torch

_SIZES = {"cpu": 1024, "cuda": 8192}


def measured_peak(device: torch.device, mixed_precision: str) -> float:
    """Floating-point operations per second of a large matrix product on this device, in the run's precision.

    A published peak is rarely reached by any product, and unknown for most processors; this takes under a second.

    Args:
        device: where the run computes.
        mixed_precision: `no`, `bf16` or `fp16`.
    """
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(mixed_precision, torch.float32)
    size = _SIZES.get(device.type, 2048)
    left, right = (torch.full((size, size), 0.5, device=device, dtype=dtype) for _ in range(2))
    seconds = min(_seconds(left, right) for _ in range(5))
    return 2 * size**3 / seconds


def _seconds(left: torch.Tensor, right: torch.Tensor) -> float:
    began = time.perf_counter()
    product = left @ right
    float(product[0, 0])  # waits for the device
    return time.perf_counter() - began
