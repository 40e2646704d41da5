"""Flash attention, of the flash-attn package or of a kernel of the Hub, as far as a CPU shows it.

transformers calls such a kernel the same way wherever it comes from. Here it is written out, sequence by sequence: what
it is called with, and what our classes make of its answer, is what a GPU would have.
"""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from transformers import modeling_flash_attention_utils
from transformers.integrations import hub_kernels

import bert_repro
from bert_repro.models.configuration_bert_repro import AUTO_CLASSES

KERNEL = "kernels-community/flash-attn2"


class WrittenOut:
    """The two functions of a flash kernel, by its definition, and the offsets that they were called with."""

    def __init__(self) -> None:
        self.offsets: list[list[int]] = []
        self.causal: set[bool] = set()

    def attend(self, q, k, v, scale, causal):
        heads_first = (states.transpose(-3, -2) for states in (q, k, v))
        return F.scaled_dot_product_attention(*heads_first, scale=scale, is_causal=causal).transpose(-3, -2)

    def flash_attn_func(self, q, k, v, dropout_p=0.0, softmax_scale=None, causal=False):
        self.causal.add(causal)
        return self.attend(q, k, v, softmax_scale, causal)

    def flash_attn_varlen_func(
        self, q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None,
        causal=False,
    ):  # fmt: skip
        assert cu_seqlens_q.dtype == torch.int32 and torch.equal(cu_seqlens_q, cu_seqlens_k)
        assert cu_seqlens_q[-1] == len(q) and cu_seqlens_q.diff().max() == max_seqlen_q == max_seqlen_k
        self.offsets.append(cu_seqlens_q.tolist())
        self.causal.add(causal)
        sequences = (states.split(cu_seqlens_q.diff().tolist()) for states in (q, k, v))
        return torch.cat([self.attend(*one, softmax_scale, causal) for one in zip(*sequences, strict=True)])


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> WrittenOut:
    """What transformers finds as a kernel of the Hub."""
    written_out = WrittenOut()
    functions = SimpleNamespace(
        flash_attn_func=written_out.flash_attn_func, flash_attn_varlen_func=written_out.flash_attn_varlen_func
    )
    monkeypatch.setattr(hub_kernels, "is_kernels_available", lambda: True)
    monkeypatch.setattr(hub_kernels, "get_kernel", lambda *_, **__: functions)
    monkeypatch.setattr(modeling_flash_attention_utils, "_loaded_implementation", None)
    return written_out


def pair(tiny: Any, auto_class: str) -> tuple[torch.nn.Module, torch.nn.Module]:
    """A model under the kernel, and the same model under PyTorch's own attention."""
    model_class = getattr(bert_repro, AUTO_CLASSES[auto_class].ours)
    fields = {"is_decoder": True} if auto_class == "AutoModelForCausalLM" else {}
    torch.manual_seed(0)
    plain = model_class(tiny.config(**fields, attn_implementation="sdpa")).eval()
    flash = model_class(tiny.config(**fields)).eval()
    flash.set_attn_implementation(KERNEL)
    flash.load_state_dict(plain.state_dict())
    assert flash.config._attn_implementation == KERNEL
    return flash, plain


@pytest.mark.parametrize("auto_class", [name for name in AUTO_CLASSES if "MultipleChoice" not in name])
def test_packed_sequences_reach_the_kernel_with_their_borders(tiny, kernel, auto_class):
    flash, plain = pair(tiny, auto_class)
    packed = tiny.pack(tiny.batch((11, 7, 2)))
    for name, expected in plain(**packed).items():
        tiny.assert_close(flash(**packed)[name], expected, name)
    assert kernel.offsets and all(offsets == [0, 11, 18, 20] for offsets in kernel.offsets)
    assert kernel.causal == {auto_class == "AutoModelForCausalLM"}


def test_padding_is_taken_out_for_the_kernel(tiny, kernel):
    flash, plain = pair(tiny, "AutoModel")
    batch = tiny.batch((11, 7, 2))
    kept = batch["attention_mask"].bool()
    tiny.assert_close(flash(**batch).last_hidden_state[kept], plain(**batch).last_hidden_state[kept])
    assert kernel.offsets == [[0, 11, 18, 20]] * 2
    full = tiny.batch((9, 9))
    tiny.assert_close(flash(**full).last_hidden_state, plain(**full).last_hidden_state)


def test_gradients_through_the_kernel_are_those_of_other_attention(tiny, kernel):
    flash, plain = pair(tiny, "AutoModelForMaskedLM")
    batch = tiny.batch()
    packed = tiny.pack({**batch, "labels": tiny.masked_labels(batch)})
    for model in (flash, plain):
        model(**packed).loss.backward()
    expected = dict(plain.named_parameters())
    for name, parameter in flash.named_parameters():
        if parameter.grad is not None:
            tiny.assert_close(parameter.grad, expected[name].grad, name)


def test_a_folder_is_loaded_with_a_kernel_by_name(tiny, kernel, tmp_path):
    bert_repro.BertReproModel(tiny.config()).save_pretrained(tmp_path)
    model = bert_repro.BertReproModel.from_pretrained(tmp_path, attn_implementation=KERNEL)
    model(**tiny.pack(tiny.batch()))
    assert kernel.offsets
    again = transformers.AutoConfig.from_pretrained(tmp_path)
    assert again._attn_implementation != KERNEL, "a kernel is the choice of who loads, not of the folder"


def test_without_the_kernels_package_it_is_named(tiny, monkeypatch):
    monkeypatch.setattr(hub_kernels, "is_kernels_available", lambda: False)
    monkeypatch.setattr(modeling_flash_attention_utils, "_loaded_implementation", None)
    with pytest.raises(ImportError, match="pip install kernels"):
        bert_repro.BertReproModel(tiny.config(attn_implementation=KERNEL))
