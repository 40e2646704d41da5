"""The BiLSTM between encoder and head, and the heads that read chosen layers: what transformers' BERT does not have."""

from typing import Any

import pytest
import torch

import bert_repro
from bert_repro import BertReproForMaskedLM, BertReproForSequenceClassification, BertReproForTokenClassification

SIZE = 6
ROWS = {  # which of the hidden states of four layers, the embeddings' first
    "embeddings": [0],
    "second_to_last": [3],
    "last": [4],
    "weighted_last_four": [1, 2, 3, 4],
    "concat_last_four": [1, 2, 3, 4],
    "weighted_all": [1, 2, 3, 4],
}
HEADS = {
    "BertReproForSequenceClassification": {"labels": torch.tensor([1, 0, 1])},
    "BertReproForMultipleChoice": {"labels": torch.tensor([2])},
    "BertReproForTokenClassification": {},
    "BertReproForQuestionAnswering": {},
}


@pytest.fixture(params=[False, True], ids=["bidirectional", "left to right"])
def make(request, tiny):
    """Makes a head behind a BiLSTM."""

    def make(name: str, **fields: Any):
        torch.manual_seed(0)
        config = tiny.config(is_decoder=request.param, bilstm_size=SIZE, **fields)
        return getattr(bert_repro, name)(config).eval()

    return make


def batch_for(tiny, name: str) -> dict[str, torch.Tensor]:
    batch = tiny.batch()
    return {key: value.unsqueeze(0) for key, value in batch.items()} if "Choice" in name else batch


def logits_of(outputs) -> torch.Tensor:
    if "logits" in outputs:
        return outputs.logits
    return torch.stack([outputs.start_logits, outputs.end_logits], dim=-1)


@pytest.mark.parametrize("name", HEADS)
def test_packed_equals_padded(tiny, make, name):
    model = make(name)
    batch = {**batch_for(tiny, name), **HEADS[name]}
    mask = tiny.batch()["attention_mask"].bool()
    seen = []
    for inputs in (batch, tiny.pack(batch)):
        model.zero_grad()
        logits = logits_of(model(**inputs))
        if logits.shape[:2] == mask.shape:
            logits = logits[mask]
        logits.square().mean().backward()
        gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
        seen.append((logits.detach().view(-1), gradients))
    (padded, expected), (packed, actual) = seen
    tiny.assert_close(packed, padded, "logits")
    assert "bilstm.lstm.weight_hh_l0_reverse" in actual
    for parameter, gradient in actual.items():
        tiny.assert_close(gradient, expected[parameter], parameter)


def test_sequences_and_tokens_are_read_in_both_directions_to_their_ends(tiny, make):
    batch = tiny.batch()
    lengths = batch["attention_mask"].sum(-1)
    model = make("BertReproForSequenceClassification")
    ends = []
    for row, length in zip(model.bert(**batch).last_hidden_state, lengths, strict=True):
        read, _ = model.bilstm.lstm(row[None, :length])
        ends.append(torch.cat([read[0, -1, :SIZE], read[0, 0, SIZE:]]))
    tiny.assert_close(model(**batch).logits, model.classifier(torch.stack(ends)))
    model = make("BertReproForTokenClassification")
    for row, scores, length in zip(model.bert(**batch).last_hidden_state, model(**batch).logits, lengths, strict=True):
        read, _ = model.bilstm.lstm(row[None, :length])
        tiny.assert_close(scores[:length], model.classifier(read[0]))


def test_it_starts_untrained_on_a_pretrained_encoder_and_is_the_seeds(tiny, tmp_path):
    BertReproForMaskedLM(tiny.config(is_decoder=True)).save_pretrained(tmp_path)

    def load(seed: int):
        torch.manual_seed(seed)
        return BertReproForSequenceClassification.from_pretrained(tmp_path, bilstm_size=SIZE)

    first, again, other = load(1), load(1), load(2)
    name = "bilstm.lstm.weight_ih_l0_reverse"
    assert torch.equal(first.state_dict()[name], again.state_dict()[name])
    assert not torch.equal(first.state_dict()[name], other.state_dict()[name])
    assert torch.equal(first.bert.embeddings.word_embeddings.weight, other.bert.embeddings.word_embeddings.weight)
    bound = SIZE**-0.5
    assert all(0 < values.abs().max() <= bound for values in first.bilstm.parameters())


@pytest.mark.parametrize("row", ROWS)
def test_chosen_layers_are_those_of_table_7(tiny, row):
    torch.manual_seed(0)
    model = BertReproForTokenClassification(
        tiny.config(num_hidden_layers=4, token_features=row, bilstm_size=SIZE, bilstm_layers=2)
    ).eval()
    batch = tiny.batch((9,))
    states = torch.stack(model.bert(**batch, output_hidden_states=True).hidden_states, dim=2)
    chosen = states[:, :, ROWS[row]]
    if row.startswith("weighted"):
        with torch.no_grad():
            model.features.weights.copy_(torch.tensor([0.5, -1.0, 2.0, 0.0]))
        expected = (model.features.weights.softmax(0)[:, None] * chosen).sum(2)
    else:
        expected = chosen.flatten(2)
    outputs = model(**batch)
    tiny.assert_close(outputs.logits, model.classifier(model.bilstm.lstm(expected)[0]))
    assert outputs.hidden_states is None, "nobody asked for them"
    assert len(model(**batch, output_hidden_states=True).hidden_states) == 5
    assert torch.equal(model(encoder_states=states[:, :, model.features.layers]).logits, outputs.logits)
