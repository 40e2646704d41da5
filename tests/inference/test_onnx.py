"""Published folders as ONNX: every head equals PyTorch at several shapes, with weights of every type; a graph that
differs is not kept."""

import numpy as np
import onnxruntime
import pytest
import torch

import bert_repro
from bert_repro.configs import OnnxConfig
from bert_repro.inference import onnx

SIZES = {
    "vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 32,
    "max_position_embeddings": 40, "initializer_range": 0.3,
}  # fmt: skip
QUICK = {"ForPreTraining": {}}
OTHERS = {
    "ForQuestionAnswering": {}, "ForMultipleChoice": {}, "Model": {}, "ForMaskedLM": {}, "ForTokenClassification": {},
    "ForNextSentencePrediction": {}, "ForSequenceClassification": {}, "ForCausalLM": {"is_decoder": True},
}  # fmt: skip
VARIANTS = {  # of our own, beside those that the paper fine-tunes
    "left-to-right classifier": ("ForSequenceClassification", {"is_decoder": True}),
    "classifier on the last token": ("ForSequenceClassification", {"pool_token": "last"}),
    "layers side by side": ("ForTokenClassification", {"token_features": "concat_last_four"}),
    "weighted layers": ("ForTokenClassification", {"token_features": "weighted_all"}),
}
HEADS = [pytest.param(name, fields, id=name) for name, fields in QUICK.items()]
HEADS += [pytest.param(name, fields, id=name, marks=pytest.mark.slow) for name, fields in OTHERS.items()]
HEADS += [pytest.param(*variant, id=name, marks=pytest.mark.slow) for name, variant in VARIANTS.items()]


@pytest.fixture
def publish(tmp_path):
    """Saves a random model with a head; gives it and its folder."""

    def save(head, seed=0, **fields):
        torch.manual_seed(seed)
        model = getattr(bert_repro, f"BertRepro{head}")(bert_repro.BertReproConfig(**{**SIZES, **fields})).eval()
        model.save_pretrained(tmp_path / head)
        return model, tmp_path / head

    return save


@pytest.mark.parametrize(("head", "fields"), HEADS)
def test_a_head_equals_torch_at_every_shape(publish, head, fields):
    model, folder = publish(head, **fields)
    path, half, quantized = onnx.export_onnx(OnnxConfig(folder=str(folder), dtypes=("fp32", "fp16", "q8")))
    assert path == folder / "onnx" / "model.onnx"
    check_smaller_types(model, path, half, quantized)
    assert b"modeling_bert_repro.py" not in path.read_bytes(), "the exporter notes where each node was written"
    other, _ = publish(head, seed=1, **fields)
    assert onnx.largest_difference(model, path) < 1e-5 < 1e-2 < onnx.largest_difference(other, path)
    session = onnxruntime.InferenceSession(str(path))
    axes = ["batch", "choices", "sequence"] if head == "ForMultipleChoice" else ["batch", "sequence"]
    assert [value.shape for value in session.get_inputs()] == [axes] * 3
    choices = (4,) if head == "ForMultipleChoice" else ()  # the export compares two
    for shape in ((1, *choices, 3), (4, *choices, 25)):
        ids = torch.randint(SIZES["vocab_size"], shape)
        mask = torch.ones_like(ids)
        mask[..., 2:] = 0
        inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": ids % 2}
        with torch.no_grad():
            outputs = {name: tensor for name, tensor in model(**inputs).items() if tensor is not None}
        expected = {"logits" if name == "prediction_logits" else name: value for name, value in outputs.items()}
        assert [output.name for output in session.get_outputs()] == list(expected)
        found = session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})
        for values, ours in zip(found, expected.values(), strict=True):
            np.testing.assert_allclose(values, ours.numpy(), atol=1e-5, rtol=1e-4)


def check_smaller_types(model, *paths):
    """The names that transformers.js looks for."""
    assert [path.name for path in paths] == ["model.onnx", "model_fp16.onnx", "model_quantized.onnx"]
    exact, half, quantized = (onnx.largest_difference(model, path) for path in paths)
    assert exact < 1e-5 < half < 1e-2 and 1e-4 < quantized < onnx.TOLERANCES["q8"]


@pytest.mark.parametrize(
    ("head", "fields"),
    [("ForSequenceClassification", {}), ("ForTokenClassification", {"token_features": "last", "bilstm_layers": 2})],
)
def test_a_bilstm_is_refused_in_one_line(publish, refused, head, fields):
    _, folder = publish(head, bilstm_size=6, **fields)
    line = refused("export_onnx", "--folder", folder)
    assert all(part in line for part in ("BiLSTM", "bilstm_size 6", "use it with PyTorch"))
    assert not (folder / "onnx").exists()
