"""The left-to-right model of Table 5: causal everywhere, equal to upstream where upstream has it, pooled at the end."""

import itertools

import pytest
import torch
import transformers

from bert_repro import BertReproForCausalLM, BertReproForSequenceClassification, BertReproModel


@pytest.fixture
def config(tiny):
    return lambda **fields: tiny.config(is_decoder=True, **fields)


@pytest.mark.parametrize(
    ("implementation", "form"),
    [
        *itertools.product(["eager", "sdpa"], ["padded", "packed", "one row"]),
        # Compiled for each form: 20 to 40 seconds.
        *(pytest.param("flex_attention", form, marks=pytest.mark.slow) for form in ("padded", "packed", "one row")),
    ],
)
def test_a_later_token_never_changes_an_earlier_state(tiny, config, implementation, form):
    torch.manual_seed(0)
    model = BertReproModel(config(attn_implementation=implementation)).eval()
    batch = tiny.batch()
    inputs = {"padded": batch, "packed": tiny.pack(batch), "one row": {"input_ids": batch["input_ids"][:1]}}[form]

    def states() -> torch.Tensor:
        with torch.no_grad():
            return torch.stack(model(**inputs, output_hidden_states=True).hidden_states)[:, 0]

    before = states()
    for place in reversed(range(1, 11)):  # of the first sequence: one more token is changed every time
        inputs["input_ids"] = inputs["input_ids"].clone()
        inputs["input_ids"][0, place] = 60
        after = states()
        assert torch.equal(after[:, :place], before[:, :place])
        assert not torch.equal(after[1:, place:11], before[1:, place:11])


def test_last_token_is_found_under_padding_on_either_side(tiny, config):
    torch.manual_seed(0)
    model = BertReproForSequenceClassification(config()).eval()
    ids = torch.tensor([[7, 8, 9]])
    expected = model(ids).logits
    assert not torch.equal(model(torch.tensor([[7, 8, 10]])).logits, expected), "it reads the last token"
    right = model(torch.tensor([[7, 8, 9, 0, 0]]), attention_mask=torch.tensor([[1, 1, 1, 0, 0]]))
    tiny.assert_close(right.logits, expected)
    left_ids, mask = torch.tensor([[0, 0, 7, 8, 9]]), torch.tensor([[0, 0, 1, 1, 1]])
    left = model(left_ids, attention_mask=mask, position_ids=torch.tensor([[0, 0, 0, 1, 2]]))
    tiny.assert_close(left.logits, expected)
    with pytest.raises(ValueError, match=r"attention_mask of shape \(B, S\)"):
        model(ids, attention_mask=torch.ones((1, 1, 3, 3), dtype=torch.bool))


def test_labels_are_shifted_unless_the_caller_did(tiny, config):
    torch.manual_seed(0)
    model = BertReproForCausalLM(config()).eval()
    ids = tiny.batch((11,))["input_ids"]
    outputs = model(ids, labels=ids)
    tiny.assert_close(outputs.loss, torch.nn.functional.cross_entropy(outputs.logits[0, :-1], ids[0, 1:]))
    # Shifted by the caller as under sequence parallelism, where the next token of a chunk's last is on another device.
    ids = tiny.batch((9, 9))["input_ids"]
    shifted = torch.nn.functional.pad(ids[:, 1:], (0, 1), value=-100)
    expected = model(ids, labels=ids).loss
    assert torch.equal(model(ids, shift_labels=shifted).loss, expected)
    assert torch.equal(model(ids, labels=ids, shift_labels=shifted).loss, expected)
    assert not torch.equal(model(ids, labels=ids, shift_labels=shifted.roll(1, 0)).loss, expected)


@pytest.mark.parametrize("arguments", [{}, {"num_beams": 3}, {"use_cache": False}])
def test_generates_what_upstream_generates(tiny, config, arguments):
    torch.manual_seed(0)
    upstream = transformers.BertLMHeadModel(tiny.upstream_config(is_decoder=True)).eval()
    ours = BertReproForCausalLM(config()).eval()
    ours.load_state_dict(upstream.state_dict())
    prompt = torch.tensor([[7, 8, 9, 10], [0, 0, 11, 12]])
    options = {"attention_mask": (prompt != 0).long(), "max_new_tokens": 6, "do_sample": False, **arguments}
    generated = ours.generate(prompt, **options)
    assert generated.shape == (2, 10)
    assert torch.equal(generated, upstream.generate(prompt, **options))
