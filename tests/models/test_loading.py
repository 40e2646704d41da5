"""Models whose files are damaged or in another format are refused in one line, and none of their code runs."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from errors import user_error
from running import recipe
from safetensors.torch import load_file, save_file

import bert_repro
from bert_repro.errors import UserError
from bert_repro.hub.export import export_checkpoint
from bert_repro.models.loading import check_folder, load_pretrained
from bert_repro.utils.files import write_manifest

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
Change = Callable[[Path], object]


@pytest.fixture(scope="module")
def published(world, tmp_path_factory) -> Path:
    """A masked language model, in one file and, in `sharded`, in several."""
    torch.manual_seed(0)
    tokenizer = transformers.AutoTokenizer.from_pretrained(world.tokenizer)
    model = bert_repro.BertReproForMaskedLM(bert_repro.BertReproConfig(vocab_size=len(tokenizer), **SIZES))
    folder = export_checkpoint(model, tokenizer, tmp_path_factory.mktemp("published") / "model")
    model.save_pretrained(folder.parent / "sharded", max_shard_size="10KB")
    return folder


@pytest.fixture
def folder(published, tmp_path) -> Path:
    return Path(shutil.copytree(published, tmp_path / "model"))


def change_json(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def config(**changes: object) -> Change:
    return lambda folder: change_json(folder / "config.json", **changes)


def text(name: str, content: str) -> Change:
    return lambda folder: (folder / name).write_text(content)


def weights(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Change:
    def write(folder: Path) -> None:
        path = folder / "model.safetensors"
        save_file(change(load_file(path)), path)

    return write


def as_pickle(folder: Path) -> None:
    torch.save({"x": torch.ones(1)}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    os.truncate(path, path.stat().st_size - 100)


POSITIONS = "bert.embeddings.position_embeddings.weight"
NORM = "bert.encoder.layer.0.output.LayerNorm.weight"
DAMAGE = {
    "NaN": (weights(lambda found: {**found, POSITIONS: found[POSITIONS] / 0}), "not finite"),
    "a missing LayerNorm": (
        weights(lambda found: {name: value for name, value in found.items() if name != NORM}),
        NORM,
    ),
    "one layer of two": (config(num_hidden_layers=1), "bert.encoder.layer.1"),
    "another width": (config(intermediate_size=64), "model"),
    "relative positions": (config(position_embedding_type="relative_key"), "'relative_key'"),
    "another model": (config(model_type="gpt2"), "model_type 'gpt2'"),
    "a width of no head": (config(num_attention_heads=3), "hidden_size must be a multiple"),
    "only a pickle": (as_pickle, "bert-repro convert_checkpoint"),
    "a checkpoint of TensorFlow's": (
        lambda folder: (folder / "config.json").rename(folder / "bert_model.ckpt.index"),
        "bert-repro convert_checkpoint",
    ),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "has no weights"),
    "truncated weights": (truncate, "model"),
    "no configuration": (lambda folder: (folder / "config.json").unlink(), "config.json"),
    "half a configuration": (text("config.json", '{"hidden_size": 16,'), "config.json: is not valid JSON"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_one_line(folder, kind):
    damage, message = DAMAGE[kind]
    damage(folder)
    for flags in ({}, {"ignore_mismatched_sizes": True}):
        with pytest.raises(UserError, match=r"^--model_name_or_path .*model: ") as caught:
            load_pretrained(bert_repro.BertReproForMaskedLM, str(folder), **flags)
        assert message in str(caught.value) and "\n" not in str(caught.value)


def change_a_byte(folder: Path) -> None:
    path = folder / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-5] + bytes([content[-5] ^ 1]) + content[-4:])


CHECKPOINT_DAMAGE = {
    "a byte": (change_a_byte, "model.safetensors"),
    "half removed": (
        lambda folder: (folder / "manifest.json").unlink(),
        "manifest.json",
    ),
    "unfinished": (
        lambda folder: folder.rename(folder.with_name(".writing-host.1-step-4")),
        "step-N",
    ),
}


@pytest.mark.parametrize("kind", CHECKPOINT_DAMAGE)
def test_a_damaged_checkpoint_of_a_run_is_no_model(world, folder, tmp_path, refused, kind):
    checkpoint = folder.parent / "run" / "checkpoints" / "step-4"
    checkpoint.parent.mkdir(parents=True)
    folder.rename(checkpoint)
    write_manifest(checkpoint, {})
    load_pretrained(bert_repro.BertReproForMaskedLM, str(checkpoint))
    damage, message = CHECKPOINT_DAMAGE[kind]
    checkpoint = damage(checkpoint) or checkpoint
    arguments = f"--model_name_or_path {checkpoint} --input_file {world.text} --output_file {tmp_path / 'f.parquet'}"
    assert message in refused("extract_features", arguments)


def test_no_code_of_a_checkpoint_runs_and_nobody_is_asked(world, folder, tmp_path, monkeypatch):
    trap = tmp_path / "trap"
    code = f"import pathlib\npathlib.Path({str(trap)!r}).touch()\n"
    for name in ("configuration_bert_repro.py", "modeling_bert_repro.py", "evil.py"):
        (folder / name).write_text(code)
    config(model_type="bert", auto_map={"AutoConfig": "evil.A", "AutoModel": "evil.B"})(folder)
    change_json(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.C", "evil.C"]})
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("somebody was asked"))
    arguments = f"--model_name_or_path {folder} --input_file {world.text} --output_file {tmp_path / 'f.parquet'}"
    assert recipe("extract_features", arguments) == 0
    assert not trap.exists()


def test_what_is_right_passes_in_one_file_or_several(published, folder):
    check_folder(published)
    check_folder(published.parent / "sharded")
    assert len(list((published.parent / "sharded").glob("*.safetensors"))) > 1
    text("tokenizer.json", '{"version": "1.0",')(folder)
    with user_error(folder):
        check_folder(folder)
