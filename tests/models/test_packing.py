"""Packed input: what is refused, and what each head does with the sequence borders."""

import pytest
import torch
import transformers

from bert_repro import (
    BertReproForMultipleChoice,
    BertReproForPreTraining,
    BertReproModel,
)


@pytest.fixture
def packed(tiny):
    return tiny.pack(tiny.batch())


@pytest.fixture
def model(tiny):
    torch.manual_seed(0)
    return BertReproModel(tiny.config()).eval()


def test_packed_positions_without_offsets_and_what_this_bert_cannot_do_are_refused(tiny, model, packed):
    with pytest.raises(ValueError, match=r"position_ids restart.*give cu_seq_lens_q"):
        model(packed["input_ids"], position_ids=packed["position_ids"])
    with pytest.raises(ValueError, match="position_ids restart"):
        mask = torch.ones_like(packed["input_ids"])
        model(packed["input_ids"], attention_mask=mask, position_ids=packed["position_ids"])
    ids = torch.ones((1, 3), dtype=torch.long)
    with pytest.raises(ValueError, match="past_key_values is not supported"):
        model(ids, past_key_values=transformers.DynamicCache())
    with pytest.raises(ValueError, match="encoder_hidden_states is not supported"):
        model(ids, encoder_hidden_states=torch.zeros((1, 3, 32)))


def test_packed_input_needs_positions_takes_no_mask_has_no_matrix_and_a_length(model, packed):
    with pytest.raises(ValueError, match="takes no attention_mask"):
        model(**packed, attention_mask=torch.ones_like(packed["input_ids"]))
    with pytest.raises(ValueError, match="needs position_ids"):
        model(**{**packed, "position_ids": None})
    two_rows = {name: packed[name].repeat(2, 1) for name in ("input_ids", "token_type_ids", "position_ids")}
    with pytest.raises(ValueError, match="one row of tokens, got a batch of 2"):
        model(**{**packed, **two_rows})
    with pytest.raises(ValueError, match="no attention matrix"):
        model(**packed, output_attentions=True)
    with pytest.raises(ValueError, match="25 tokens is longer than max_position_embeddings = 24"):
        model(torch.ones((1, 25), dtype=torch.long))
    with pytest.raises(ValueError, match="30 tokens is longer"):
        model(**{**packed, "max_length_q": 30})


def test_sequences_do_not_see_each_other(model, packed):
    before = model(**packed).last_hidden_state
    packed["input_ids"][0, 12] = 60  # in the second sequence
    after = model(**packed).last_hidden_state
    assert torch.equal(after[0, :11], before[0, :11]) and torch.equal(after[0, 18:], before[0, 18:])
    assert not torch.equal(after[0, 11:18], before[0, 11:18])


def test_upstream_flattening_collator_makes_packed_input(tiny, model):
    collator = transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=False)
    sequences = [[5, 6, 7, 8], [9, 10]]
    features = collator([{"input_ids": ids} for ids in sequences], return_tensors="pt")
    features.pop("labels", None)
    states = model(**features).last_hidden_state
    for start, ids in ((0, sequences[0]), (4, sequences[1])):
        tiny.assert_close(states[0, start : start + len(ids)], model(torch.tensor([ids])).last_hidden_state[0])


def test_attention_dropout_has_the_same_expectation_packed_and_padded(tiny):
    """The mean over many draws, which a wrong scale or a dropout of outputs would move."""
    torch.manual_seed(0)
    model = BertReproModel(tiny.config(num_hidden_layers=1, attention_probs_dropout_prob=0.3)).train()
    batch = tiny.batch((9,))
    attention = model.encoder.layer[0].attention.self
    means = []
    for inputs in (batch, tiny.pack(batch)):
        states = []
        hook = attention.register_forward_hook(lambda _, __, output, states=states: states.append(output[0].detach()))
        for _ in range(400):
            model(**inputs)
        hook.remove()
        means.append(torch.cat(states))
    error = (means[0].std(0) ** 2 / 400 + means[1].std(0) ** 2 / 400).sqrt()
    assert ((means[0].mean(0) - means[1].mean(0)).abs() < 5 * error).all()
    torch.testing.assert_close(means[0].std(0), means[1].std(0), rtol=0.35, atol=0.02)


def test_empty_sequences_that_fill_the_offsets_change_nothing(tiny, packed):
    """Graphs of fixed shape pad the offsets with T and the sequence labels with -100."""
    model = BertReproForPreTraining(tiny.config())
    labels = torch.where(packed["position_ids"] == 1, packed["input_ids"], -100)
    expected = model(**packed, labels=labels, next_sentence_label=torch.tensor([0, 1, 1]))
    filled = torch.cat([packed["cu_seq_lens_q"], packed["cu_seq_lens_q"][-1:].repeat(2)])
    packed.update(cu_seq_lens_q=filled, cu_seq_lens_k=filled)
    outputs = model(**packed, labels=labels, next_sentence_label=torch.tensor([0, 1, 1, -100, -100]))
    tiny.assert_close(outputs.loss, expected.loss)
    tiny.assert_close(outputs.seq_relationship_logits[:3], expected.seq_relationship_logits)


def test_multiple_choice_learns_the_number_of_choices(tiny):
    model = BertReproForMultipleChoice(tiny.config())
    packed = tiny.pack(tiny.batch((4, 5, 6, 3)))
    assert model(**packed, labels=torch.tensor([0, 1])).logits.shape == (2, 2)
    assert model(**packed, num_choices=4).logits.shape == (1, 4)
    for arguments in ({}, {"num_choices": 3}):
        with pytest.raises(ValueError, match=r"4 packed sequences .* give num_choices"):
            model(**packed, **arguments)
