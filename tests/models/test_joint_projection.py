"""Query, key and value whose backward pass adds up in one buffer; sublayers that round to 16 bits where asked to."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from functorch.compile import make_boxed_func
from torch import nn
from torch._functorch.aot_autograd import aot_module_simplified

from bert_repro import BertReproConfig
from bert_repro.models import modeling_bert_repro as modeling

SHAPE = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def encoder(**changes: Any) -> modeling.BertReproModel:
    torch.manual_seed(0)
    config = BertReproConfig(vocab_size=50, initializer_range=0.2, **{**SHAPE, **NO_DROPOUT, **changes})
    return modeling.BertReproModel(config).train()


class Projections(nn.Module):
    """Three layers of one input, as in self-attention; recomputed in the backward pass where asked to."""

    def __init__(self, checkpointing: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(8, 6, dtype=torch.float64) for _ in range(3))
        self.checkpointing = checkpointing

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Maps (B, S, 8) to (B, S, 18)."""
        if self.checkpointing:
            return torch.utils.checkpoint.checkpoint(self.project, states, use_reentrant=False)
        return self.project(states)

    def project(self, states: torch.Tensor) -> torch.Tensor:
        return torch.cat(modeling.project(tuple(self.layers), states.sin()), dim=-1).tanh()


def gradients(module: nn.Module, call: Any) -> list[torch.Tensor]:
    torch.manual_seed(1)
    states = torch.randn(2, 5, 8, dtype=torch.float64, requires_grad=True)
    made = call(states)
    return list(torch.autograd.grad(made, [states, *module.parameters()], torch.randn_like(made)))


@pytest.mark.parametrize("checkpointing", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_compiled_step_has_the_gradients_of_three_layers(monkeypatch: Any, checkpointing: bool) -> None:
    module = Projections(checkpointing)
    expected = gradients(module, module)
    monkeypatch.setattr(modeling, "has_joint_projection", lambda *_: True)
    torch.compiler.reset()
    called: list[str] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        def keep(traced: torch.fx.GraphModule, _: Any) -> Any:
            called.extend(str(node.target) for node in traced.graph.nodes if node.op == "call_function")
            return make_boxed_func(traced.forward)

        return aot_module_simplified(graph, inputs, fw_compiler=keep)

    found = gradients(module, torch.compile(module, backend=backend, fullgraph=True))
    # Their inputs' gradients are added up by the products, not by kernels of their own.
    assert sum("add_product_" in name or "auto_functionalized" in name for name in called) == 2, called
    for value, true in zip(found, expected, strict=True):
        torch.testing.assert_close(value, true, rtol=1e-9, atol=1e-12)


def test_only_plain_trained_layers_of_a_compiled_gpu_step_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    states: Any = SimpleNamespace(is_cuda=True, requires_grad=True)
    layers = tuple(nn.Linear(4, 4) for _ in range(3))
    assert not modeling.has_joint_projection(layers, states)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert modeling.has_joint_projection(layers, states)
    assert not modeling.has_joint_projection(layers, torch.ones(1, requires_grad=True))
    assert not modeling.has_joint_projection(layers, SimpleNamespace(is_cuda=True, requires_grad=False))  # type: ignore[arg-type]
    with torch.no_grad():
        assert not modeling.has_joint_projection(layers, states)
    adapted = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))  # any other class in a layer's place
    assert not modeling.has_joint_projection((*layers[:2], adapted), states)
    layers[1].requires_grad_(False)
    assert not modeling.has_joint_projection(layers, states)
    layers[1].requires_grad_(True)
    modeling.use_joint_projection(False)
    try:
        assert not modeling.has_joint_projection(layers, states)
    finally:
        modeling.use_joint_projection(True)


@pytest.fixture
def rounded() -> Iterator[None]:
    modeling.use_bf16_residual(True)
    yield
    modeling.use_bf16_residual(False)


def states_and_gradients(precision: str) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    model, ids = encoder(), torch.arange(5, 45).view(4, 10)
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        states = model(ids).last_hidden_state
    torch.manual_seed(1)
    (states.float() * torch.randn(states.shape)).sum().backward()
    return states.detach(), {name: value.grad for name, value in model.named_parameters() if value.grad is not None}


def test_residuals_of_16_bits_only_round(request: pytest.FixtureRequest) -> None:
    exact, before = states_and_gradients("no"), states_and_gradients("bf16")
    request.getfixturevalue("rounded")
    again, half = states_and_gradients("no"), states_and_gradients("bf16")
    assert torch.equal(exact[0], again[0])  # nothing to do with autocast off
    assert all(torch.equal(exact[1][name], value) for name, value in again[1].items())
    assert (before[0].dtype, half[0].dtype) == (torch.float32, torch.bfloat16)
    torch.testing.assert_close(half[0].float(), exact[0], rtol=0, atol=0.06)  # of numbers around 1
    for name, value in half[1].items():
        error = (value - exact[1][name]).norm()
        if not name.endswith("key.bias"):  # zero but for rounding
            assert error < 0.06 * exact[1][name].norm(), name
