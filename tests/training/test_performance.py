"""What steps compute with, how their totals add up, and that freed memory is kept."""

import platform
import resource

import numpy as np
import pytest
import torch

from bert_repro.training import cpu, performance
from bert_repro.training.performance import training_totals


def test_fast_float32_stays_accurate_and_the_peak_is_a_rate():
    before = torch.get_float32_matmul_precision()
    try:
        cpu.use_fast_float32()
        torch.manual_seed(0)
        left, right = (torch.randn(300, 300) for _ in range(2))
        error = (left @ right - (left.double() @ right.double())).abs().max()
        assert error < 1e-3  # bfloat16 products miss by 0.1
    finally:
        torch.set_float32_matmul_precision(before)
    assert 1e8 < performance.measured_peak(torch.device("cpu"), "no") < 1e14


def test_totals_are_those_of_the_last_row_and_the_mfu_is_the_mean_over_the_seconds() -> None:
    assert training_totals([]) == {}
    speeds = [(400, 100.0, 0.2), (1000, 600.0, 0.8), (1500, 50.0, None)]  # 4 s, 1 s, and one that was not measured
    log = [
        {"step": step, "tokens": tokens, "tokens_per_second": speed, "mfu": mfu, "seconds": 3.0 * step, "flops": 1234}
        for step, (tokens, speed, mfu) in enumerate(speeds, start=1)
    ]
    totals = training_totals([*log, {"step": 3, "f1": 1}])
    assert totals.pop("mfu") == pytest.approx((4 * 0.2 + 1 * 0.8) / 5)
    assert totals == {"tokens": 1500, "seconds": 9.0, "flops": 1230}


def faults_of_a_new_block() -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(128 << 20, dtype=np.uint8).sum()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_freed_memory_is_kept_for_the_next_block():
    kept = cpu.keep_freed_memory()
    assert kept or platform.libc_ver()[0] != "glibc"
    faults_of_a_new_block()
    assert not kept or faults_of_a_new_block() < 1000  # 32,768 pages of 4 KiB
