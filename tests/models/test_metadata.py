"""config.json and the tokenizer's files of other people: sizes and types are checked before anything is allocated."""

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from errors import user_error
from tiny_models import save_model

from bert_repro import BertReproConfig
from bert_repro.models.loading import load_config, load_pretrained, load_tokenizer
from bert_repro.models.metadata import encoder_weights
from bert_repro.models.modeling_bert_repro import BertReproForSequenceClassification, BertReproModel


@pytest.fixture(scope="module")
def published(world: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(world, tmp_path_factory.mktemp("metadata") / "model", "ForSequenceClassification", num_labels=3)


@pytest.fixture
def folder(published: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(published, tmp_path / "model"))


def change(folder: Path, name: str, **fields: Any) -> Path:
    path = folder / name
    path.write_text(json.dumps({**(json.loads(path.read_text()) if path.exists() else {}), **fields}))
    return folder


@pytest.mark.parametrize(
    "field",
    [
        {"num_labels": 10**9, "id2label": None},
        {"num_hidden_layers": 10**8},
        {"hidden_size": 10**9},
        {"vocab_size": 10**9},
        {"max_position_embeddings": 10**9},
        {"bilstm_size": 10**9},
        {"bilstm_size": 8, "bilstm_layers": 10**8},
        # These are possible, but the weights in the folder are too small for them.
        {"num_hidden_layers": 900},
        {"vocab_size": 10**7},
        {"intermediate_size": 10**6},
        {"bilstm_size": 10**4},
        {"auto_map": {"AutoModel": 3}},
        {"architectures": "BertModel"},
        {"id2label": {"0": "a", "2": "b"}},
        {"id2label": {"0": "a", "1": "a"}},
        {"id2label": {"zero": "a"}},
        {"id2label": {"0": ["a"]}},
        {"id2label": ["a", "b"]},
    ],
)
def test_impossible_fields_are_refused_before_anything_is_allocated(folder: Path, field: dict[str, Any]) -> None:
    began = time.monotonic()
    with user_error(str(folder), "config.json", setting="model_name_or_path"):
        load_pretrained(BertReproModel, str(change(folder, "config.json", **field)))
    assert time.monotonic() - began < 5  # seconds; 1e8 layers took minutes


def test_labels_that_are_numbers_become_text(folder: Path) -> None:
    """As for the stars of a review. The default `label2id` of such a file is not used."""
    change(folder, "config.json", id2label={"0": 1, "1": 2, "2": 3}, label2id={"LABEL_0": 0})
    for config in (
        load_config(str(folder)),
        load_pretrained(BertReproForSequenceClassification, str(folder))[0].config,
    ):
        assert config.id2label == {0: "1", 1: "2", 2: "3"}
    assert load_config(str(folder)).label2id == {"1": 0, "2": 1, "3": 2}


def test_an_error_of_two_lines_keeps_its_reason(folder: Path) -> None:
    with user_error("hidden_dropout_prob", "'high'"):
        load_config(str(change(folder, "config.json", hidden_dropout_prob="high")))


@pytest.mark.parametrize(
    ("name", "fields", "place"),
    [
        ("tokenizer_config.json", {"model_max_length": "long"}, "model_max_length"),
        ("tokenizer_config.json", {"do_lower_case": [1]}, "do_lower_case"),
        ("tokenizer_config.json", {"unk_token": 7}, "unk_token"),
        ("tokenizer_config.json", {"padding_side": "up"}, "padding_side"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"1000000000": {"content": "x"}}}, "1000000000"),
        ("tokenizer_config.json", {"extra_special_tokens": 3}, "extra_special_tokens"),
        ("added_tokens.json", {"x": 10**9}, "x"),
        ("tokenizer.json", {"model": {"type": "WordPiece", "vocab": {"[UNK]": 10**9}}}, "model.vocab.[UNK]"),
        ("tokenizer.json", {"added_tokens": [{"id": 10**9, "content": "x"}]}, "added_tokens.0.id"),
    ],
)
def test_impossible_fields_of_a_tokenizer_are_refused(folder: Path, name: str, fields: Any, place: str) -> None:
    with user_error(name, place):
        load_tokenizer(change(folder, name, **fields))


def test_the_estimate_of_weights_is_never_above_the_weights() -> None:
    for fields in ({}, {"bilstm_size": 24, "bilstm_layers": 2}):
        config = BertReproConfig(
            vocab_size=150, num_hidden_layers=2, hidden_size=32, num_attention_heads=2, intermediate_size=64, **fields
        )
        model = BertReproForSequenceClassification(config)
        weights = sum(value.numel() for value in model.parameters())
        assert 0.9 * weights < encoder_weights(config) <= weights


def test_an_adapter_that_names_another_model_is_refused(folder: Path, tmp_path: Path) -> None:
    """transformers would load the weights of that model, although the folder has its own."""
    change(folder, "adapter_config.json", peft_type="LORA", base_model_name_or_path=str(tmp_path / "other"))
    (folder / "adapter_model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    with user_error("adapter_config.json", setting="model_name_or_path"):
        load_pretrained(BertReproModel, str(folder))
