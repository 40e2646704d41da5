"""Published folders as ONNX: every head equals PyTorch at several shapes, and a graph that does not is not kept."""

import importlib.util
import json

import numpy as np
import onnxruntime
import pytest
import torch
import transformers
from onnxruntime.quantization import quantize_dynamic

import bert_repro
from bert_repro import cli
from bert_repro.configs import OnnxConfig
from bert_repro.errors import UserError
from bert_repro.hub.push import published_files
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
        model = getattr(bert_repro, f"BertRepro{head}")(bert_repro.BertReproConfig(**SIZES, **fields)).eval()
        model.save_pretrained(tmp_path / head)
        return model, tmp_path / head

    return save


@pytest.mark.parametrize(("head", "fields"), HEADS)
def test_a_head_equals_torch_at_every_shape(publish, head, fields):
    model, folder = publish(head, **fields)
    path = onnx.export_onnx(OnnxConfig(folder=str(folder)))
    assert path == folder / "onnx" / "model.onnx"
    assert b"modeling_bert_repro.py" not in path.read_bytes(), "the exporter notes where each node was written"
    other, _ = publish(head, seed=1, **fields)
    assert onnx.largest_difference(model, path) < 1e-5 < 1e-2 < onnx.largest_difference(other, path)
    session = onnxruntime.InferenceSession(str(path))
    axes = ["batch", "choices", "sequence"] if head == "ForMultipleChoice" else ["batch", "sequence"]
    assert [value.shape for value in session.get_inputs()] == [axes] * 3
    quantize_dynamic(path, path.with_name("model_quantized.onnx"))
    assert path.with_name("model_quantized.onnx").stat().st_size < path.stat().st_size
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


def test_every_head_is_compared():
    names = {f"BertRepro{name}" for name in QUICK | OTHERS}
    assert names == {head.ours for head in bert_repro.models.configuration_bert_repro.HEADS.values()}


def test_a_upstream_folder_is_exported_too(tmp_path):
    transformers.BertForQuestionAnswering(transformers.BertConfig(**SIZES)).save_pretrained(tmp_path)
    assert onnx.load_model(tmp_path).__class__ is bert_repro.BertReproForQuestionAnswering


def test_a_graph_that_differs_is_not_kept(publish, monkeypatch):
    _, folder = publish("ForPreTraining")
    monkeypatch.setattr(onnx, "write_graph", lambda model, path: path.write_bytes(b"graph"))
    for difference, kept in ((1e-3, False), (1e-5, True)):
        monkeypatch.setattr(onnx, "largest_difference", lambda model, path, found=difference: found)
        if kept:
            onnx.export_onnx(OnnxConfig(folder=str(folder)))
        else:
            with pytest.raises(RuntimeError, match="differs from PyTorch"):
                onnx.export_onnx(OnnxConfig(folder=str(folder)))
        assert len(list((folder / "onnx").iterdir())) == kept


def test_an_export_that_breaks_off_leaves_nothing(publish, monkeypatch):
    _, folder = publish("ForPreTraining")

    def broken(model, path):
        path.write_bytes(b"half a gra")
        raise ValueError("the exporter gave up")

    monkeypatch.setattr(onnx, "write_graph", broken)
    with pytest.raises(ValueError, match="gave up"):
        onnx.export_onnx(OnnxConfig(folder=str(folder)))
    assert list((folder / "onnx").iterdir()) == []


@pytest.mark.parametrize(
    ("head", "fields"),
    [("ForSequenceClassification", {}), ("ForTokenClassification", {"token_features": "last", "bilstm_layers": 2})],
)
def test_a_bilstm_is_refused_in_one_line(publish, capsys, head, fields):
    _, folder = publish(head, bilstm_size=6, **fields)
    with pytest.raises(SystemExit) as raised:
        cli.main("export_onnx", argv=["--folder", str(folder)])
    assert raised.value.code == 2
    warnings = [line for line in capsys.readouterr().err.splitlines() if "BiLSTM" in line]
    assert len(warnings) == 1 and "bilstm_size 6" in warnings[0] and "use it with PyTorch" in warnings[0]
    assert not (folder / "onnx").exists()


def test_what_cannot_be_exported_is_reported_in_one_line(publish, tmp_path, monkeypatch, capsys):
    _, folder = publish("Model")
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.onnx").write_bytes(b"mine")
    wrong = tmp_path / "wrong"
    wrong.mkdir()
    (wrong / "config.json").write_text(json.dumps({"model_type": "gpt2", "architectures": ["GPT2Model"]}))
    for path, message in ((folder, "exists"), (wrong, "model_type 'gpt2'"), (tmp_path / "nowhere", "no such folder")):
        with pytest.raises(SystemExit) as raised:
            cli.main("export_onnx", argv=["--folder", str(path)])
        assert raised.value.code == 2
        assert message in capsys.readouterr().err
    assert (folder / "onnx" / "model.onnx").read_bytes() == b"mine"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="run: pip install onnx onnxruntime onnxscript"):
        onnx.export_onnx(OnnxConfig(folder=str(folder)))


def test_a_push_takes_it_along(publish):
    _, folder = publish("Model")
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.onnx").write_bytes(b"graph")
    assert "onnx/model.onnx" in {path.as_posix() for path in published_files(folder)}
