"""The configuration: upstream's fields, and clear refusals."""

import dataclasses
import json
from contextlib import nullcontext
from pathlib import Path

import pytest
import transformers

from bert_repro import BertReproConfig, BertReproForSequenceClassification, BertReproModel
from bert_repro.models import configuration_bert_repro

ROOT = Path(__file__).resolve().parents[2]
OURS = {"pool_token", "sparse_prediction", "qa_loss", "null_score_diff_threshold"}
OURS |= {"class_weights", "label_smoothing", "label_thresholds"}
OURS |= {"bilstm_size", "bilstm_layers", "token_features"}


def test_fields_and_defaults_are_those_of_upstream_bert():
    ours = {field.name for field in dataclasses.fields(BertReproConfig)}
    assert ours - OURS == {field.name for field in dataclasses.fields(transformers.BertConfig)}
    defaults = {name: value for name, value in BertReproConfig().to_dict().items() if name not in OURS}
    assert defaults == transformers.BertConfig().to_dict() | {"model_type": "bert_repro"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden_size": 30}, "hidden_size must be a multiple of num_attention_heads, got 30 and 12"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be at least 1, got 0"),
        ({"classifier_dropout": 1.0}, r"classifier_dropout must be in \[0, 1\), got 1.0"),
        ({"vocab_size": 10, "pad_token_id": 10}, "pad_token_id must be in"),
        ({"add_cross_attention": True}, "no cross-attention"),
        ({"initializer_range": float("inf")}, "initializer_range must be a finite number"),
    ],
)
def test_what_no_model_can_have_is_refused_when_one_is_built(fields, message):
    config = BertReproConfig(**fields)
    with pytest.raises(ValueError, match=message):
        BertReproModel(config)


@pytest.mark.parametrize(("version", "works"), [("5.3.0", False), ("5.4.0", True), ("6.0.0", True)])
def test_the_copied_code_says_which_transformers_it_needs(monkeypatch, version, works):
    code = Path(configuration_bert_repro.__file__).read_text("utf-8")
    monkeypatch.setattr(transformers, "__version__", version)
    message = rf"needs transformers 5\.4 or later, and this is {version}\. Leave out "
    with nullcontext() if works else pytest.raises(ImportError, match=message):
        exec(compile(code, "configuration_bert_repro.py", "exec"), {"__name__": "copied"})


def test_readme_page_and_cards_say_which_transformers_the_copied_code_needs():
    oldest = "{}.{} or later".format(*configuration_bert_repro.OLDEST_TRANSFORMERS)
    for name in ("README.md", "docs/how-to/what_else_loads_this.md", "bert_repro/hub/card_template.md.jinja"):
        assert oldest in (ROOT / name).read_text("utf-8"), name


def test_an_upstream_config_is_read_without_a_warning_and_another_type_with_one(tmp_path, tiny, warnings_logged):
    transformers.BertConfig(**tiny.sizes, id2label={0: "no", 1: "yes", 2: "maybe"}).save_pretrained(tmp_path)
    config = BertReproConfig.from_pretrained(tmp_path)
    assert warnings_logged() == []
    assert (config.model_type, config.hidden_size, config.id2label[2]) == ("bert_repro", 32, "maybe")
    transformers.ElectraConfig().save_pretrained(tmp_path)
    BertReproConfig.from_pretrained(tmp_path)
    assert any("electra" in message for message in warnings_logged())


def test_config_is_written_in_its_published_form_and_comes_back_equal(tmp_path, tiny):
    config = tiny.config(num_labels=3)
    config.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["model_type"] == "bert"
    assert written["auto_map"]["AutoModelForCausalLM"] == "modeling_bert_repro.BertReproForCausalLM"
    assert set(written["auto_map"]) == {"AutoConfig", *configuration_bert_repro.AUTO_CLASSES}
    assert (tmp_path / "configuration_bert_repro.py").exists() and (tmp_path / "modeling_bert_repro.py").exists()
    model = BertReproForSequenceClassification(tiny.config(id2label={0: "no", 1: "yes", 2: "maybe"}, qa_loss="sum"))
    model.save_pretrained(tmp_path / "model")
    assert BertReproConfig.from_pretrained(tmp_path / "model").to_dict() == model.config.to_dict()
    assert BertReproConfig.from_pretrained(tmp_path).to_dict() == config.to_dict()


@pytest.mark.parametrize(
    ("architecture", "pool_token", "model_type"),
    [
        ("BertReproForSequenceClassification", "first", "bert"),
        ("BertReproForSequenceClassification", "last", "bert_repro"),
        ("BertForSequenceClassification", "last", "bert_repro"),
        ("BertReproForMultipleChoice", "last", "bert_repro"),
        ("BertReproForPreTraining", "last", "bert_repro"),
        ("BertReproForNextSentencePrediction", "last", "bert_repro"),
        ("SomebodysOwnHead", "last", "bert_repro"),
    ],
)
def test_model_type_is_upstream_only_where_upstream_would_compute_the_same(architecture, pool_token, model_type):
    config = BertReproConfig(pool_token=pool_token, architectures=[architecture])
    assert config.published()["model_type"] == model_type
