"""Settings of this process that make training on a CPU fast."""

import ctypes
import os

import torch

# Parameters of mallopt, from malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4

# The caches of oneDNN itself and of PyTorch on top of it, and how many kernels they keep.
_KERNEL_CACHES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
_CACHED_KERNELS = 256

# A product in bfloat16 has a relative error of about 4e-3, one in float32 of about 1e-7.
_LARGEST_FLOAT32_ERROR = 1e-5


def prepare_cpu() -> None:
    """Limits oneDNN's caches, allows its float32 kernels, and keeps freed memory.

    Batches without padding have ever changing numbers of tokens, and for each one oneDNN makes kernels of up to 3 MiB:
    the thousand that it keeps by default grow to gigabytes. A step uses about two hundred of them again. The limit only
    has an effect before the process's first product, and values from the environment stay.
    """
    for name in _KERNEL_CACHES:
        os.environ.setdefault(name, str(_CACHED_KERNELS))
    use_fast_float32()
    keep_freed_memory()


def use_fast_float32() -> None:
    """Allows oneDNN's float32 products if they keep float32 accuracy (twice as fast on some AMD processors).

    PyTorch's setting "medium" also allows bfloat16 products on processors that have them. It is therefore kept only if
    a trial product against float64 shows an error that bfloat16 cannot reach.
    """
    torch.set_float32_matmul_precision("medium")
    generator = torch.Generator().manual_seed(0)
    left = torch.randn(256, 256, generator=generator)
    right = torch.randn(256, 256, generator=generator)
    exact = left.double() @ right.double()
    error = ((left @ right).double() - exact).abs().max() / exact.abs().max()
    if error > _LARGEST_FLOAT32_ERROR:
        torch.set_float32_matmul_precision("highest")


def keep_freed_memory() -> bool:
    """Makes glibc keep freed memory for the next allocation, for the rest of this process.

    By default glibc returns large blocks to the system at once. Every step then begins with millions of page faults for
    gradients and activations as large as those of the step before: a fifth of the time of a step of BERT-base. The peak
    of memory is the same; between the peaks memory is not returned.

    Returns:
        Whether the C library is glibc.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    # No block is mapped on its own, and the top of the heap is never trimmed.
    return bool(mallopt(_M_MMAP_MAX, 0) and mallopt(_M_TRIM_THRESHOLD, -1))
