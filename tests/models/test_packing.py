"""Packed input: what is refused, and what each head does with the sequence borders."""

import pytest
import torch
import transformers

from bert_repro import BertReproForMultipleChoice, BertReproForPreTraining, BertReproModel


@pytest.fixture
def packed(tiny):
    return tiny.pack(tiny.batch())


@pytest.fixture
def model(tiny):
    torch.manual_seed(0)
    return BertReproModel(tiny.config()).eval()


def test_what_this_bert_cannot_do_is_refused(model, packed):
    ids, ones = packed["input_ids"], torch.ones_like(packed["input_ids"])
    two_rows = {name: packed[name].repeat(2, 1) for name in ("input_ids", "token_type_ids", "position_ids")}
    refusals = [
        ({"input_ids": ids, "position_ids": packed["position_ids"]}, "position_ids restart.*give cu_seq_lens_q"),
        ({"input_ids": ids, "position_ids": packed["position_ids"], "attention_mask": ones}, "position_ids restart"),
        ({"input_ids": ids, "past_key_values": transformers.DynamicCache()}, "past_key_values is not supported"),
        ({"input_ids": ids, "encoder_hidden_states": ids}, "encoder_hidden_states is not supported"),
        ({**packed, "attention_mask": ones}, "takes no attention_mask"),
        ({**packed, "position_ids": None}, "needs position_ids"),
        ({**packed, **two_rows}, "one row of tokens, got a batch of 2"),
        ({**packed, "output_attentions": True}, "no attention matrix"),
        ({"input_ids": torch.ones((1, 25), dtype=torch.long)}, "25 tokens is longer than max_position_embeddings = 24"),
        ({**packed, "max_length_q": 30}, "30 tokens is longer"),
    ]
    for arguments, message in refusals:
        with pytest.raises(ValueError, match=message):
            model(**arguments)


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
