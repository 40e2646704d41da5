"""How fast a device multiplies matrices, for estimates of time: measured here, given, or as its maker publishes it."""

import torch

from bert_repro.configs import DryRunConfig
from bert_repro.training.cpu_performance import measured_peak

PUBLISHED_TFLOPS = {  # dense: 16-bit (bfloat16 where the device has it) and float32, from the makers' data sheets
    "t4": (65.0, 8.1),
    "v100": (125.0, 15.7),
    "rtx3090": (71.0, 35.6),
    "rtx4090": (165.2, 82.6),
    "l4": (121.0, 30.3),
    "l40s": (362.0, 91.6),
    "a100": (312.0, 19.5),
    "h100": (989.4, 66.9),
    "h200": (989.4, 66.9),
}


def assumed_speed(config: DryRunConfig, mixed_precision: str) -> tuple[float, str]:
    """Returns the FLOPs per second of one device for an estimate, and where the number is from.

    Args:
        config: `tflops` or `device_name` in place of this machine.
        mixed_precision: `no`, `bf16` or `fp16`.
    """
    if config.tflops is not None:
        return config.tflops * 1e12, f"the {config.tflops:g} TFLOP/s given"
    if config.device_name is not None:
        half, single = PUBLISHED_TFLOPS[config.device_name]
        tflops, kind = (single, "float32") if mixed_precision == "no" else (half, "16-bit")
        return tflops * 1e12, f"the {tflops:g} TFLOP/s ({kind}) published for {config.device_name}"
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    peak = measured_peak(device, mixed_precision)
    return peak, f"the {peak / 1e12:.2f} TFLOP/s that a large matrix product reaches here ({device.type})"
