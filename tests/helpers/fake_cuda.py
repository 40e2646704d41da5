"""Tensors that claim to be on a GPU and hold no numbers: what a GPU would compile, traced without one."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv


@contextmanager
def fake_gpu() -> Iterator[FakeTensorMode]:
    """A GPU of compute capability 9.0 with bfloat16, as PyTorch's own checks see it."""
    with (
        mock.patch("torch.cuda.get_device_capability", lambda *_: (9, 0)),
        mock.patch("torch.cuda.is_bf16_supported", lambda *_, **__: True),
        mock.patch("torch.cuda.amp.common.amp_definitely_not_available", lambda: False),
        FakeTensorMode(shape_env=ShapeEnv()) as mode,
    ):
        yield mode


def to_fake_gpu(value: Any, mode: FakeTensorMode) -> Any:
    """Returns a tensor's shape and type on the GPU; other values as they are."""
    if not isinstance(value, torch.Tensor):
        return value
    return FakeTensor(mode, torch.empty(value.shape, dtype=value.dtype, device="meta"), torch.device("cuda:0"))


def fake_model(model_class: Any, config: Any, mode: FakeTensorMode) -> Any:
    """Builds a model on the GPU, in training mode, tied as it should be, without gradients.

    A PyTorch without CUDA cannot record gradients on one; what breaks a graph does so without them.
    """
    with torch.device("meta"):
        model = model_class(config).train()
    made: dict[nn.Parameter, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter not in made:
                made[parameter] = nn.Parameter(to_fake_gpu(parameter, mode), requires_grad=False)
            setattr(module, name, made[parameter])
    return model
