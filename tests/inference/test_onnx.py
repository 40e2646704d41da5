"""Published folders as ONNX: every head equals PyTorch at several shapes, with weights of every type; a graph that
differs is not kept."""

import numpy as np
import onnxruntime
import pytest
import torch

import bert_repro
from bert_repro.configs import OnnxConfig
from bert_repro.inference import onnx
from bert_repro.models.configuration_bert_repro import AUTO_CLASSES

SIZES = {
    "vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 32,
    "max_position_embeddings": 40, "initializer_range": 0.3,
}  # fmt: skip
LEFT_TO_RIGHT = {"is_decoder": True}
VARIANTS = [  # of our own, beside the heads that transformers has
    ("ForCausalLM", LEFT_TO_RIGHT),
    ("ForSequenceClassification", LEFT_TO_RIGHT),
    ("ForSequenceClassification", {"pool_token": "last"}),
    ("ForTokenClassification", {"token_features": "concat_last_four"}),
    ("ForTokenClassification", {"token_features": "weighted_all"}),
]
PLAIN = [(head.ours.removeprefix("BertRepro"), {}) for head in AUTO_CLASSES.values()]
SLOW = [case for case in PLAIN + VARIANTS if case[0] != "ForPreTraining" and case != ("ForCausalLM", {})]
HEADS = [("ForPreTraining", {"num_hidden_layers": 2}), *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)]


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
    paths = onnx.export_onnx(OnnxConfig(folder=str(folder), dtypes=("fp32", "fp16", "q8")))
    # The names that transformers.js looks for.
    assert paths == [folder / "onnx" / f"{name}.onnx" for name in ("model", "model_fp16", "model_quantized")]
    path, (exact, half, quantized) = paths[0], (onnx.largest_difference(model, path) for path in paths)
    assert exact < 1e-5 < half < 1e-2 and 1e-4 < quantized < onnx.TOLERANCES["q8"]
    assert b"modeling_bert_repro.py" not in path.read_bytes(), "the exporter notes where each node was written"
    other, _ = publish(head, seed=1, **fields)
    assert onnx.largest_difference(other, path) > 1e-2
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


@pytest.mark.parametrize(
    ("head", "fields"),
    [("ForSequenceClassification", {}), ("ForTokenClassification", {"token_features": "last", "bilstm_layers": 2})],
)
def test_a_bilstm_is_refused_in_one_line(publish, refused, head, fields):
    _, folder = publish(head, bilstm_size=6, **fields)
    line = refused("export_onnx", "--folder", folder)
    assert all(part in line for part in ("BiLSTM", "bilstm_size 6", "PyTorch"))
    assert not (folder / "onnx").exists()
