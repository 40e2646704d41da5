"""A saved folder loads three ways with equal outputs: upstream transformers, remote code, our classes.

The first two are tried in a process that cannot import this package.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tiny_models import SHAPE

import bert_repro
from bert_repro.models import modeling_bert_repro
from bert_repro.models.configuration_bert_repro import AUTO_CLASSES

WITHOUT_THE_PACKAGE = """
import importlib.abc
import json
import sys


class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "bert_repro":
            raise ModuleNotFoundError(name)


sys.meta_path.insert(0, Absent())
sys.path.insert(0, sys.argv[2])
import torch
import transformers
from safetensors.torch import load_file, save_file

work = json.load(open(sys.argv[1]))
for folder, auto_class in work.values():
    inputs = load_file(f"{folder}/inputs.safetensors")
    auto = getattr(transformers, auto_class)
    upstream_error = None
    try:
        upstream = auto.from_pretrained(folder, attn_implementation="sdpa")
        assert type(upstream).__module__ == "transformers.models.bert.modeling_bert", type(upstream)
        with torch.no_grad():
            outputs = upstream(**inputs, use_cache=False)
        save_file({name: values.contiguous() for name, values in outputs.items()}, f"{folder}/upstream.safetensors")
    except ValueError as error:
        upstream_error = str(error)
    json.dump(upstream_error, open(f"{folder}/upstream_error.json", "w"))
    remote = auto.from_pretrained(folder, attn_implementation="sdpa", trust_remote_code=True)
    assert type(remote).__module__.startswith("transformers_modules."), type(remote)
    with torch.no_grad():
        outputs = remote(**inputs)
    save_file({name: values.contiguous() for name, values in outputs.items()}, f"{folder}/remote.safetensors")
    remote.save_pretrained(f"{folder}/again")
assert not any(module.split(".")[0] == "bert_repro" for module in sys.modules)
"""

PUBLISHED = {
    **{head.ours: (auto_class, {}) for auto_class, head in AUTO_CLASSES.items()},
    "left-to-right encoder": ("AutoModel", {"is_decoder": True}),
    "left-to-right tokens": ("AutoModelForTokenClassification", {"is_decoder": True}),
    "left-to-right sequences": ("AutoModelForSequenceClassification", {"is_decoder": True}),
    "last token": ("AutoModelForMultipleChoice", {"pool_token": "last"}),
    "BiLSTM on sequences": ("AutoModelForSequenceClassification", {"is_decoder": True, "bilstm_size": 8}),
    "BiLSTM on questions": ("AutoModelForQuestionAnswering", {"bilstm_size": 8}),
    "chosen layers": ("AutoModelForTokenClassification", {"token_features": "weighted_all", "bilstm_size": 8}),
    "bfloat16": ("AutoModelForMaskedLM", {"dtype": torch.bfloat16}),
}
VARIANTS = {"left-to-right sequences", "last token", "BiLSTM on sequences", "BiLSTM on questions", "chosen layers"}


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """The folders, after a process without this package has loaded each of them."""
    root = tmp_path_factory.mktemp("published")
    work = {}
    for number, (name, (auto_class, fields)) in enumerate(PUBLISHED.items()):
        folder = root / f"model-{number}"
        torch.manual_seed(number)
        settings = {name: value for name, value in fields.items() if name != "dtype"}
        model = getattr(bert_repro, AUTO_CLASSES[auto_class].ours)(config(num_labels=2, **settings)).eval()
        model.to(fields.get("dtype", torch.float32))
        model.save_pretrained(folder)
        inputs = example(auto_class)
        with torch.no_grad():
            outputs = {key: values.contiguous() for key, values in model(**inputs).items()}
        save_file(inputs, folder / "inputs.safetensors")
        save_file(outputs, folder / "ours.safetensors")
        work[name] = (str(folder), auto_class)
    (root / "work.json").write_text(json.dumps(work))
    environment = {**os.environ, "HF_HOME": str(root / "cache"), "HF_HUB_OFFLINE": "1"}
    environment.pop("HF_MODULES_CACHE", None)
    libraries = Path(transformers.__file__).parents[1]
    command = [sys.executable, "-I", "-c", WITHOUT_THE_PACKAGE, str(root / "work.json"), str(libraries)]
    child = subprocess.run(command, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert child.returncode == 0, child.stderr[-3000:]
    return {name: Path(folder) for name, (folder, _) in work.items()}


def config(**fields):
    sizes = {**SHAPE, "num_hidden_layers": 2, "vocab_size": 61, "max_position_embeddings": 24}
    return bert_repro.BertReproConfig(**{**sizes, **fields})


def example(auto_class: str) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    mask = torch.ones((4, 9), dtype=torch.long)
    mask[1, 6:] = mask[3, 2:] = 0
    ids = torch.randint(5, 61, mask.shape, generator=generator) * mask
    inputs = {"input_ids": ids, "attention_mask": mask}
    return {k: v.view(2, 2, 9) for k, v in inputs.items()} if "MultipleChoice" in auto_class else inputs


def assert_equal_outputs(folder: Path, way: str) -> None:
    actual, expected = load_file(folder / f"{way}.safetensors"), load_file(folder / "ours.safetensors")
    assert actual.keys() == expected.keys()
    for name, values in expected.items():
        difference = (actual[name].double() - values.double()).abs().max().item()
        assert difference <= 1e-5 * max(1.0, values.abs().max().item()), f"{name} differs by {difference}"


@pytest.mark.parametrize("name", PUBLISHED)
def test_upstream_transformers_loads_it_without_this_code_or_refuses_what_it_does_not_know(published, name):
    error = json.loads((published[name] / "upstream_error.json").read_text())
    if name in VARIANTS:
        assert "trust_remote_code=True" in error
        assert not (published[name] / "upstream.safetensors").exists()
    else:
        assert error is None
        assert_equal_outputs(published[name], "upstream")


@pytest.mark.parametrize("name", PUBLISHED)
def test_remote_code_loads_it_without_this_package_and_saves_it_again(published, name):
    assert_equal_outputs(published[name], "remote")
    for file in ("config.json", "configuration_bert_repro.py", "modeling_bert_repro.py"):
        assert (published[name] / "again" / file).read_text() == (published[name] / file).read_text(), file


@pytest.mark.parametrize("name", PUBLISHED)
def test_our_classes_load_it_without_a_warning(published, warnings_logged, name):
    model_class = getattr(bert_repro, AUTO_CLASSES[PUBLISHED[name][0]].ours)
    model = model_class.from_pretrained(published[name])
    assert warnings_logged() == []
    inputs = load_file(published[name] / "inputs.safetensors")
    expected = load_file(published[name] / "ours.safetensors")
    for key, values in model(**inputs).items():
        torch.testing.assert_close(values, expected[key])


def test_the_published_code_imports_only_itself_and_installed_libraries():
    folder = Path(modeling_bert_repro.__file__).parent
    imported = set()
    for name in ("configuration_bert_repro", "modeling_bert_repro"):
        source = folder / f"{name}.py"
        imported |= set(transformers.dynamic_module_utils.get_imports(source))
        relative = transformers.dynamic_module_utils.get_relative_imports(source)
        assert set(relative) <= {"configuration_bert_repro"}
    assert imported - set(sys.stdlib_module_names) == {"huggingface_hub", "torch", "transformers"}


def test_old_checkpoints_load_without_a_warning(tmp_path, warnings_logged):
    """The layout of google-bert/bert-base-uncased: LayerNorm gamma and beta, a buffer of positions, all heads."""
    upstream = transformers.BertForPreTraining(transformers.BertConfig(**config().to_dict()))
    tensors = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): values.clone()
        for name, values in upstream.state_dict().items()
        if "decoder" not in name
    }
    tensors["bert.embeddings.position_ids"] = torch.arange(24).unsqueeze(0)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    transformers.BertConfig(**config().to_dict()).save_pretrained(tmp_path)
    for model_class in (bert_repro.BertReproModel, bert_repro.BertReproForPreTraining, bert_repro.BertReproForMaskedLM):
        model = model_class.from_pretrained(tmp_path)
        encoder = getattr(model, "bert", model)
        expected = upstream.bert.encoder.layer[1].output.LayerNorm.weight
        assert torch.equal(encoder.encoder.layer[1].output.LayerNorm.weight, expected)
    assert warnings_logged() == []
