"""Pre-training heads: which positions are decoded, and which losses are summed."""

import pytest
import torch
import torch.nn.functional as F

from bert_repro import BertReproForMaskedLM, BertReproForPreTraining


@pytest.fixture
def batch(tiny):
    batch = tiny.batch()
    return {**batch, "labels": tiny.masked_labels(batch)}


@pytest.fixture
def model(tiny):
    torch.manual_seed(0)
    return BertReproForPreTraining(tiny.config()).eval()


def positions_of(labels: torch.Tensor, count: int) -> torch.Tensor:
    """As the collator gives them: padded with 0 to a fixed count."""
    positions = (labels.flatten() != -100).nonzero().squeeze(-1)
    return F.pad(positions, (0, count - len(positions)))


@pytest.mark.parametrize("model_class", [BertReproForPreTraining, BertReproForMaskedLM])
@pytest.mark.parametrize("pack", [False, True])
def test_given_positions_decode_only_those_with_equal_loss_and_gradients(tiny, batch, model_class, pack):
    torch.manual_seed(0)
    model = model_class(tiny.config(sparse_prediction=False))
    inputs = tiny.pack(batch) if pack else batch
    dense = model(**inputs)
    dense.loss.backward()
    expected = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    model.zero_grad()
    positions = positions_of(inputs["labels"], count=12)
    sparse = model(**inputs, prediction_positions=positions)
    sparse.loss.backward()
    logits = "prediction_logits" if "prediction_logits" in dense else "logits"
    assert sparse[logits].shape == (12, tiny.sizes["vocab_size"])
    tiny.assert_close(sparse[logits], dense[logits].flatten(0, 1)[positions])
    tiny.assert_close(sparse.loss, dense.loss)
    for name, gradient in expected.items():
        tiny.assert_close(model.get_parameter(name).grad, gradient, name)


@pytest.mark.parametrize(
    ("model_class", "sparse_prediction", "sparse"),
    [
        (BertReproForPreTraining, None, True),
        (BertReproForPreTraining, False, False),
        (BertReproForMaskedLM, None, False),
        (BertReproForMaskedLM, True, True),
    ],
)
def test_default_of_each_class_and_the_setting(tiny, batch, model_class, sparse_prediction, sparse):
    model = model_class(tiny.config(sparse_prediction=sparse_prediction))
    predicted = int((batch["labels"] != -100).sum())
    shape = (predicted, 61) if sparse else (*batch["labels"].shape, 61)
    logits = "prediction_logits" if model_class is BertReproForPreTraining else "logits"
    assert model(**batch)[logits].shape == shape
    del batch["labels"]
    assert model(**batch)[logits].shape == (3, 11, 61)


def test_either_label_alone_or_both(tiny, model, batch):
    next_sentence_label = torch.tensor([0, 1, 1])
    both = model(**batch, next_sentence_label=next_sentence_label)
    tiny.assert_close(both.loss, both.mlm_loss + both.nsp_loss)
    mlm = model(**batch)
    assert mlm.nsp_loss is None and torch.equal(mlm.loss, both.mlm_loss)
    del batch["labels"]
    nsp = model(**batch, next_sentence_label=next_sentence_label)
    assert nsp.mlm_loss is None and torch.equal(nsp.loss, both.nsp_loss)
    assert nsp.prediction_logits.shape == (3, 11, 61)
    neither = model(**batch)
    assert neither.loss is None and neither.seq_relationship_logits.shape == (3, 2)


@pytest.mark.parametrize("given_positions", [False, True])
def test_a_batch_without_predicted_tokens_has_loss_zero(model, batch, given_positions):
    batch["labels"] = torch.full_like(batch["labels"], -100)
    positions = {"prediction_positions": torch.zeros(4, dtype=torch.long)} if given_positions else {}
    outputs = model(**batch, **positions, next_sentence_label=torch.tensor([0, 1, 1]))
    assert outputs.mlm_loss == 0
    outputs.loss.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
