"""A published folder loads three ways with equal outputs: upstream transformers, remote code, our classes.

The first two are tried in a process that cannot import this package.
"""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import bert_repro
from bert_repro.models.configuration_bert_repro import AUTO_CLASSES

SCRIPT = str(Path(__file__).parents[1] / "hub" / "upstream_environment.py")
WITHOUT_THE_PACKAGE = f"""
import runpy, sys
sys.modules["bert_repro"] = None
runpy.run_path({SCRIPT!r}, run_name="__main__")
"""


@pytest.fixture(scope="module")
def published(tmp_path_factory) -> Path:
    root: Path = tmp_path_factory.mktemp("published")
    runpy.run_path(SCRIPT)["write"](root)
    return root


def test_upstream_transformers_and_remote_code_load_it_without_this_package(published, tmp_path):
    environment = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    environment.pop("HF_MODULES_CACHE", None)
    command = [sys.executable, "-c", WITHOUT_THE_PACKAGE, "read", str(published)]
    child = subprocess.run(command, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert child.returncode == 0, child.stdout + child.stderr[-3000:]


def test_our_classes_load_it_without_a_warning(published, warnings_logged):
    for described in published.glob("*/expected.json"):
        folder, auto_class = described.parent, json.loads(described.read_text())["auto_class"]
        model = getattr(bert_repro, AUTO_CLASSES[auto_class].ours).from_pretrained(folder)
        assert warnings_logged() == [], folder.name
        expected = load_file(folder / "outputs.safetensors")
        for name, values in model(**load_file(folder / "inputs.safetensors")).items():
            torch.testing.assert_close(values, expected[name])


def test_old_checkpoints_load_without_a_warning(tmp_path, tiny, warnings_logged):
    """The layout of google-bert/bert-base-uncased: LayerNorm gamma and beta, a buffer of positions, all heads."""
    upstream = transformers.BertForPreTraining(tiny.upstream_config())
    tensors = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): values.clone()
        for name, values in upstream.state_dict().items()
        if "decoder" not in name
    }
    tensors["bert.embeddings.position_ids"] = torch.arange(24).unsqueeze(0)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    tiny.upstream_config().save_pretrained(tmp_path)
    for model_class in (bert_repro.BertReproModel, bert_repro.BertReproForPreTraining, bert_repro.BertReproForMaskedLM):
        model = model_class.from_pretrained(tmp_path)
        encoder = getattr(model, "bert", model)
        expected = upstream.bert.encoder.layer[1].output.LayerNorm.weight
        assert torch.equal(encoder.encoder.layer[1].output.LayerNorm.weight, expected)
    assert warnings_logged() == []
