"""A model's place: what is compiled for it, whatever else the process compiled before."""

from typing import NamedTuple

import torch
from accelerate import Accelerator
from torch import nn

from bert_repro.training.trainer import ParallelModel


class Output(NamedTuple):
    loss: torch.Tensor


class Doubled(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((width,), 2.0))

    def forward(self, states: torch.Tensor) -> Output:
        return Output((states * self.weight).mean())


def test_many_models_in_one_process_are_each_compiled_once() -> None:
    accelerator = Accelerator(cpu=True)
    for width in range(2, 14):  # PyTorch gives up on a piece of code after eight versions
        placement = ParallelModel(accelerator, Doubled(width), compile_options={"backend": "eager", "dynamic": False})
        for _ in range(2):
            means, _ = placement.wrapped(("loss",), {"states": torch.ones(width)})
            assert means["loss"].item() == 2.0
        assert placement.compiled_graphs() == 1
