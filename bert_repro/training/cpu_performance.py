"""The measured peak of a device, against which a run's speed is shown (MFU), and settings that help a CPU reach it."""

import ctypes
import os
import time

import torch

from bert_repro.configs import RunConfig
from bert_repro.models.modeling_bert_repro import use_cpu_kernels

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # malloc.h
_SIZES = {"cpu": 1024, "cuda": 8192}
_PRODUCTS = {"cpu": 1}  # timed together; elsewhere 10, as a call returns before the device is done
_KERNEL_CACHES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")  # oneDNN's own and PyTorch's on top of it
_KERNELS_KEPT = 256


def measured_peak(device: torch.device, mixed_precision: str) -> float:
    """Measures the FLOPs per second of a large matrix product on this device, in the run's precision.

    A published peak is rarely reached by any product, and unknown for most processors; this takes under a second. The
    data are random, as constant data let a chip run faster than a model can, one product warms up,
    and on an accelerator several are timed together.

    Args:
        device: where the run computes.
        mixed_precision: `no`, `bf16` or `fp16`.
    """
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(mixed_precision, torch.float32)
    size = _SIZES.get(device.type, 2048)
    generator = torch.Generator().manual_seed(0)  # of its own: a run's random numbers must not depend on this
    left, right = (torch.randn(size, size, generator=generator).to(device, dtype) for _ in range(2))
    _seconds(left, right)
    return 2 * size**3 / min(_seconds(left, right) for _ in range(5))


def prepare_cpu(config: RunConfig) -> None:
    """Sets this process up for the speed of a CPU, less what a run switches off."""
    bound_kernel_caches()
    use_cpu_kernels(config.cpu_kernels)
    torch.set_float32_matmul_precision("highest")
    if config.fast_float32:
        use_fast_float32()
    if config.keep_freed_memory:
        keep_freed_memory()


def bound_kernel_caches() -> None:
    """Lets oneDNN keep fewer of the kernels that it makes for every new shape, unless the environment says how many.

    Batches without padding have ever changing numbers of tokens, and a kernel takes up to 3 MiB: the thousand that are
    kept by default grow to gigabytes. A step uses some two hundred again. This has an effect only before the process's
    first product.
    """
    for name in _KERNEL_CACHES:
        os.environ.setdefault(name, str(_KERNELS_KEPT))


def use_fast_float32() -> None:
    """Lets oneDNN do float32 products where it keeps float32 accuracy (twice as fast on some AMD processors).

    "medium" allows bfloat16 products on processors that have them, so it is kept only where a trial product against
    float64 shows an error that bfloat16 cannot reach.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(256, 256, generator=generator) for _ in range(2))
    exact = left.double() @ right.double()
    error = ((left @ right).double() - exact).abs().max() / exact.abs().max()
    if error > 1e-5:
        torch.set_float32_matmul_precision(before)


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
    count = _PRODUCTS.get(left.device.type, 10)
    for _ in range(count):
        product = left @ right
    float(product[0, 0])  # waits for the device
    return (time.perf_counter() - began) / count
