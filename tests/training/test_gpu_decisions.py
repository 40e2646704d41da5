"""What a run decides for a GPU, shown without one: shapes, compilation, batches, what its results say."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch

from bert_repro.configs import PretrainingConfig
from bert_repro.finetuning.run import STEPS_WORTH_COMPILING, FinetuningRun
from bert_repro.pretraining.run import compile_options, resolve_layout

GPU = torch.device("cuda")


def test_packed_batches_compile_for_any_number_of_tokens_and_padded_ones_for_one_shape() -> None:
    config = PretrainingConfig(corpus="c", max_steps=1)
    assert compile_options(resolve_layout(config, GPU)) == {"dynamic": True}
    assert compile_options(resolve_layout(replace(config, packing=False), GPU)) == {"dynamic": False}
    assert compile_options(resolve_layout(replace(config, static_shapes=True), GPU)) == {"dynamic": False}
    assert compile_options(resolve_layout(config, torch.device("cpu"))) is None


def test_long_fine_tuning_of_packed_batches_is_compiled() -> None:
    def compiles(steps: int, device: torch.device = GPU, bilstm: int | None = None, **settings: Any) -> bool:
        self: Any = SimpleNamespace(
            config=SimpleNamespace(**{"torch_compile": None, "packing": True} | settings),
            accelerator=SimpleNamespace(device=device),
            feature_cache=None,
            model=SimpleNamespace(config=SimpleNamespace(bilstm_size=bilstm)),
        )
        return FinetuningRun._compiles(self, steps)

    long = STEPS_WORTH_COMPILING
    assert compiles(long) and compiles(1, torch_compile=True)
    assert not any([compiles(long - 1), compiles(long, packing=False), compiles(long, bilstm=8)])
    assert not compiles(long, torch.device("cpu")) and not compiles(long, torch_compile=False)
