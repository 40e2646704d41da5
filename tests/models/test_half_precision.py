"""Under autocast the layers that classify compute in float32: half precision would round scores together."""

import pytest
import torch
from tiny_models import word_model, word_tokenizer

import bert_repro

WORDS = " ".join(f"word{number}" for number in range(200))
ROWS = 1500


@pytest.fixture(scope="module")
def inputs():
    tokenizer = word_tokenizer(WORDS)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, len(tokenizer), (ROWS, 12), generator=generator)
    ids[:, 0], ids[:, -1] = 2, 3
    return tokenizer, {"input_ids": ids}


def model_of(tokenizer, head, **fields):
    # Weights as large as those of a trained head, so that outputs spread.
    return word_model(tokenizer, head, hidden_size=64, intermediate_size=128, **fields)


def test_regression_outputs_are_as_many_as_texts(inputs):
    tokenizer, batch = inputs
    model = model_of(tokenizer, "ForSequenceClassification", num_labels=1)
    with torch.no_grad():
        exact = model(**batch).logits.flatten()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            outputs = model(**batch).logits.flatten()
    assert outputs.dtype == torch.float32
    distinct = len(outputs.unique())
    rounded = len(outputs.bfloat16().unique())
    assert distinct > 0.95 * ROWS > 2 * rounded, (distinct, rounded)
    assert torch.corrcoef(torch.stack([exact, outputs]))[0, 1] > 0.5


@pytest.mark.parametrize(
    ("head", "outputs"),
    [
        ("ForSequenceClassification", ("logits",)),
        ("ForTokenClassification", ("logits",)),
        ("ForQuestionAnswering", ("start_logits", "end_logits")),
        ("ForNextSentencePrediction", ("logits",)),
    ],
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_classification_layer_computes_in_float32_and_trains(inputs, head, outputs, dtype):
    tokenizer, batch = inputs
    model = model_of(tokenizer, head).train()
    with torch.autocast("cpu", dtype=dtype):
        result = model(input_ids=batch["input_ids"][:8])
    loss = sum(result[name].square().mean() for name in outputs)
    assert all(result[name].dtype == torch.float32 for name in outputs)
    loss.backward()
    layers = [module for name, module in model.named_modules() if name.split(".")[-1] in LAYERS]
    assert layers and all(layer.weight.grad.abs().sum() > 0 for layer in layers)


LAYERS = ("classifier", "qa_outputs", "seq_relationship")


def test_a_bilstm_head_computes_in_float32(inputs):
    tokenizer, batch = inputs
    model = model_of(tokenizer, "ForSequenceClassification", bilstm_size=8)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(input_ids=batch["input_ids"][:4]).logits.dtype == torch.float32


def test_multiple_choice_computes_in_float32(inputs):
    tokenizer, batch = inputs
    model = model_of(tokenizer, "ForMultipleChoice")
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(input_ids=batch["input_ids"][:8].view(4, 2, -1)).logits.dtype == torch.float32


def test_without_autocast_nothing_changes(inputs):
    tokenizer, batch = inputs
    model = model_of(tokenizer, "ForSequenceClassification")
    with torch.no_grad():
        pooled = model.bert(**batch).pooler_output
        assert torch.equal(model(**batch).logits, model.classifier(pooled))
    half = model.to(torch.bfloat16)
    assert half(**batch).logits.dtype == torch.bfloat16
    assert isinstance(half, bert_repro.BertReproForSequenceClassification)
