"""Packed attention on every device: what the kernels compute, held to the definition, sequence by sequence."""

from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from bert_repro.models import modeling_bert_repro
from bert_repro.models.modeling_bert_repro import eager_attention_forward, packed_attention_forward

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
LENGTHS = (7, 1, 130, 64, 0, 0)  # empty sequences fill batches of fixed shape
HEADS, SIZE = 3, 16


def layer(is_causal: bool) -> nn.Module:
    module = nn.Module()
    module.is_causal = is_causal  # type: ignore[assignment]
    return module


def offsets(device: str) -> dict[str, Any]:
    ends = torch.tensor((0, *LENGTHS)).cumsum(0).to(device, torch.int32)
    longest = 160  # more than any sequence has, as in batches of fixed shape
    return {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": longest, "max_length_k": longest}


def expected(states: list[torch.Tensor], is_causal: bool) -> torch.Tensor:
    """Attention written out, in 64 bits on the CPU."""
    module, attended = layer(is_causal).eval(), []
    for query, key, value in zip(*(state.split(LENGTHS, dim=2) for state in states), strict=True):
        later = torch.ones(query.shape[2], query.shape[2]).triu(1).bool()
        mask = torch.zeros(later.shape, dtype=query.dtype).masked_fill(later, -torch.inf) if is_causal else None
        attended.append(eager_attention_forward(module, query, key, value, mask, SIZE**-0.5)[0])
    return torch.cat(attended, dim=1)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("is_causal", [False, True], ids=["bidirectional", "causal"])
def test_packed_attention_and_its_gradients(device: str, dtype: torch.dtype, is_causal: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    shape = (1, HEADS, sum(LENGTHS), SIZE)
    exact = [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(4)]
    *rounded, weight = (state.to(dtype) for state in exact)
    reference = [state.double().requires_grad_() for state in rounded]
    states = [state.to(device).requires_grad_() for state in rounded]
    truth = expected(reference, is_causal)
    attended, _ = packed_attention_forward(layer(is_causal), *states, None, SIZE**-0.5, **offsets(device))
    assert attended.dtype == dtype
    assert attended.shape == truth.shape
    torch.testing.assert_close(attended.detach().double().cpu(), truth.detach(), rtol=0, atol=TOLERANCE[dtype])
    truth.backward(weight.double().transpose(1, 2))
    attended.backward(weight.to(device).transpose(1, 2))
    for state, true in zip(states, reference, strict=True):
        torch.testing.assert_close(state.grad.double().cpu(), true.grad, rtol=0, atol=5 * TOLERANCE[dtype])


@pytest.mark.parametrize("device", DEVICES)
def test_packed_attention_drops_probabilities(device: str) -> None:
    """Over equal keys and values of one, attention gives the share of what is kept, scaled: one in expectation."""
    torch.manual_seed(0)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    ones = torch.ones(1, HEADS, sum(LENGTHS), SIZE, dtype=dtype, device=device)
    module = layer(False).train()
    attended, _ = packed_attention_forward(module, ones, ones, ones, None, 1.0, dropout=0.5, **offsets(device))
    long = attended[0, 8 : 8 + 130].float()  # the sequence of 130 tokens
    assert long.std() > 0.01
    assert long.mean().item() == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize(
    ("dtype", "capability", "kernel"),
    [
        (torch.bfloat16, (9, 0), "_flash_attention_forward"),
        (torch.float16, (7, 5), "_efficient_attention_forward"),
        (torch.float32, (9, 0), "_efficient_attention_forward"),
    ],
    ids=str,
)
def test_cuda_calls_one_kernel(monkeypatch, dtype, capability, kernel):
    """Without a GPU, PyTorch's own description of the kernels checks the call: arguments, types, shapes."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _=None: capability)
    called = []
    monkeypatch.setattr(modeling_bert_repro.F, "scaled_dot_product_attention", lambda *_, **__: pytest.fail("looped"))

    class Recorder(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            called.append(function.overloadpacket.__name__)
            return function(*args, **(kwargs or {}))

    with FakeTensorMode(), torch.no_grad():
        shape = (1, sum(LENGTHS), HEADS, SIZE)
        states = [torch.empty(shape, dtype=dtype, device="cuda").transpose(1, 2) for _ in range(3)]
        ends = torch.empty(len(LENGTHS) + 1, dtype=torch.int32, device="cuda")
        packing = {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": 160, "max_length_k": 160}
        with Recorder():
            attended, _ = packed_attention_forward(layer(False), *states, None, SIZE**-0.5, dropout=0.1, **packing)
    assert attended.shape == (1, sum(LENGTHS), HEADS, SIZE) and attended.dtype == dtype
    assert [name for name in called if "attention" in name] == [kernel]
