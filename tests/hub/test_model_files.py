"""Models whose files are damaged, hostile or in another format end every recipe with one line and code 2."""

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from bert_repro.hub.model_files import check_folder, check_model
from families import families
from running import recipe
from safetensors.torch import load_file, save_file

import bert_repro
from bert_repro.errors import UserError
from bert_repro.hub import export_checkpoint
from bert_repro.hub.push import published_files
from bert_repro.utils.files import write_manifest

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


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


def truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def as_pickle(folder: Path) -> None:
    torch.save({"x": torch.ones(1)}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def index(content: object):
    def write(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "other.safetensors")
        (folder / "model.safetensors.index.json").write_text(json.dumps(content))

    return write


def config(**changes: object):
    return lambda folder: change_json(folder / "config.json", **changes)


def text(name: str, content: str):
    return lambda folder: (folder / name).write_text(content)


def weights(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor] | None]):
    def write(folder: Path) -> None:
        path = folder / "model.safetensors"
        found = load_file(path)
        save_file(change(found) or found, path)

    return write


def not_finite(name: str, row: int, value: float):
    def change(found: dict[str, torch.Tensor]) -> None:
        found[name][row] = value

    return weights(change)


def without(part: str):
    return weights(lambda found: {name: value for name, value in found.items() if part not in name})


def as_integers(part: str):
    return weights(
        lambda found: {name: value.view(torch.int32) if part in name else value for name, value in found.items()}
    )


POSITIONS = "bert.embeddings.position_embeddings.weight"
DAMAGE = {
    "NaN where training never reads": (
        not_finite(POSITIONS, -1, float("nan")),
        f"model.safetensors: '{POSITIONS}' holds values that are not finite",
    ),
    "infinity in a LayerNorm": (
        not_finite("bert.encoder.layer.1.output.LayerNorm.bias", 3, float("inf")),
        "LayerNorm.bias' holds values that are not finite",
    ),
    "relative positions": (config(position_embedding_type="relative_key"), "only absolute positions are BERT's"),
    "weights of another encoder": (
        weights(lambda found: {**found, "bert.encoder.adapters.weight": torch.ones(3, 4)}),
        "'bert.encoder.adapters.weight', which no BERT has",
    ),
    "integers as weights": (as_integers("query.weight"), "is of type 'I32', and weights are floating-point numbers"),
    "a missing LayerNorm": (without("layer.0.output.LayerNorm"), "its weights lack bert.encoder.layer.0.output.Layer"),
    "only a pickle": (
        as_pickle,
        "only safetensors are read; convert it: bert-repro convert_checkpoint",
    ),
    "weights of Keras": (
        lambda folder: (folder / "model.safetensors").rename(folder / "tf_model.h5"),
        "its weights are tf_model.h5, and only safetensors are read; load it with the transformers that wrote it",
    ),
    "a checkpoint of TensorFlow's": (
        lambda folder: (folder / "config.json").rename(folder / "bert_model.ckpt.index"),
        "is a checkpoint of TensorFlow's; convert it: bert-repro convert_checkpoint",
    ),
    "an index of pickles": (index({"weight_map": {"x": "pytorch_model-00001.bin"}}), "only safetensors beside it are"),
    "an index that leaves the folder": (index({"weight_map": {"x": "../x.safetensors"}}), "only safetensors beside"),
    "an index of missing files": (index({"weight_map": {"x": "y.safetensors"}}), "'y.safetensors', which is missing"),
    "an index of nothing": (index([]), "has no weight_map of file names"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "there is no model.safetensors"),
    "truncated weights": (truncate, "model.safetensors is damaged"),
    "weights that are none": (text("model.safetensors", "x" * 100), "model.safetensors is damaged"),
    "no configuration": (lambda folder: (folder / "config.json").unlink(), "config.json"),
    "half a configuration": (text("config.json", '{"hidden_size": 16,'), "config.json: is not valid JSON"),
    "a list as configuration": (text("config.json", "[]"), "config.json holds no object"),
    "a text as width": (config(hidden_size="16"), "hidden_size"),
    "a width of no head": (config(num_attention_heads=3), "hidden_size must be a multiple"),
    "labels that are a number": (config(id2label=5), "config.json"),
    "an unknown type": (config(dtype="float9"), "config.json"),
    "an unknown activation": (config(hidden_act="golu"), "golu"),
    "another model": (config(model_type="gpt2"), "model_type 'gpt2'; name a model of type bert"),
    "quantized weights": (config(quantization_config={"quant_method": "bitsandbytes"}), "quantization_config"),
    "100,000 layers": (config(num_hidden_layers=100_000), "num_hidden_layers 100000, and the weights hold 2"),
    "one layer of two": (config(num_hidden_layers=1), "num_hidden_layers 1, and the weights hold 2"),
    "a billion labels": (config(num_labels=10**9), "num_labels 1000000000; no head has so many"),
    "a billion positions": (config(max_position_embeddings=10**9), "where its configuration asks for [1000000000"),
    "a wide BiLSTM": (config(bilstm_size=10**7), "its weights lack bilstm.lstm.weight_hh_l0"),
    "lists as labels": (config(id2label={"0": ["x"], "1": ["y"]}), "config.json"),
    "a key twice": (
        lambda folder: (folder / "config.json").write_text('{"hidden_size": 16, "hidden_size": 32}'),
        "key 'hidden_size' occurs twice",
    ),
    "a width of a billion": (config(hidden_size=10**9), "where its configuration asks for"),
    "half a tokenizer": (text("tokenizer.json", '{"version": "1.0",'), "tokenizer"),
    "a tokenizer of nothing": (text("tokenizer.json", '{"model": 3}'), "tokenizer"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_one_line(world, folder, tmp_path, refused, kind):
    damage, message = DAMAGE[kind]
    damage(folder)
    arguments = f"--model_name_or_path {folder} --input_file {world.text} --output_file {tmp_path / 'f.parquet'}"
    began = time.perf_counter()
    line = refused("extract_features", arguments)
    assert time.perf_counter() - began < 10
    assert message in line and len(line) < 600
    with pytest.raises(UserError):
        published_files(folder)


RECIPES = {
    "run_glue": "--task_name sst2 --do_eval --data_dir {glue} --output_dir {out} --model_name_or_path {model}",
    "run_pretraining": "--corpus {corpus} --max_steps 1 --output_dir {out} --model_name_or_path {model}",
    "score_sentences": "--input_file {text} --output_dir {out} --model_name_or_path {model}",
    "export_onnx": "--folder {model}",
    "push_to_hub": "--folder {model} --hub_model_id org/x --dry_run",
}


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize(
    "kind", ["only a pickle", "truncated weights", "a text as width", "NaN where training never reads"]
)
def test_every_recipe_refuses_it_the_same_way(world, folder, tmp_path, refused, kind, name):
    damage, message = DAMAGE[kind]
    damage(folder)
    places = {"glue": world.glue, "corpus": world.corpus, "text": world.text, "out": tmp_path / "out.jsonl"}
    line = refused(name, RECIPES[name].format(model=folder, **places))
    assert message in line or (name == "push_to_hub" and "holds no published model" in line)


def change_a_byte(folder: Path) -> Path:
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    return folder


def remove_half(folder: Path) -> Path:
    shutil.rmtree(folder / "trainer_state")
    (folder / "manifest.json").unlink()
    return folder


CHECKPOINT_DAMAGE = {
    "a byte": (change_a_byte, "model.safetensors does not match its SHA-256; name another checkpoint"),
    "half removed": (remove_half, "manifest.json is missing or damaged; name another checkpoint"),
    "unfinished": (
        lambda folder: folder.rename(folder.with_name(".writing-host.1-step-4")),
        "is an unfinished checkpoint; name one of the step-N folders beside it",
    ),
}
TASKS = ("run_squad", "run_ner", "run_swag", "run_glue")


@pytest.fixture(scope="module")
def tasks(world, tmp_path_factory):
    return families(world, tmp_path_factory.mktemp("tasks"))


@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, "a byte") for name in dict.fromkeys((*RECIPES, *TASKS, "extract_features"))]
    + [(name, kind) for name in ("push_to_hub", "extract_features") for kind in ("half removed", "unfinished")],
)
def test_a_damaged_checkpoint_is_no_model_for_any_recipe(world, folder, tasks, tmp_path, refused, name, kind):
    checkpoint = folder.parent / "run" / "checkpoints" / "step-4"
    checkpoint.parent.mkdir(parents=True)
    folder.rename(checkpoint)
    (checkpoint / "trainer_state").mkdir()
    (checkpoint / "trainer_state" / "state.json").write_text("{}")
    write_manifest(checkpoint, {})
    assert check_model(str(checkpoint)).num_hidden_layers == 2
    damage, message = CHECKPOINT_DAMAGE[kind]
    checkpoint = damage(checkpoint)
    places = {"glue": world.glue, "corpus": world.corpus, "text": world.text, "out": tmp_path / "out"}
    flags = [RECIPES[name].format(model=checkpoint, **places)] if name in RECIPES else []
    if name in TASKS:
        flags = [*tasks[name].flags, "--do_eval --model_name_or_path", checkpoint, "--output_dir", tmp_path / "out"]
    if name == "extract_features":
        flags = [f"--model_name_or_path {checkpoint} --input_file {world.text} --output_file {tmp_path / 'f.parquet'}"]
    assert message in refused(name, *flags)


def test_a_run_is_pushed_with_sound_checkpoints_only(folder, refused):
    for step in (2, 4):
        checkpoint = folder / "checkpoints" / f"step-{step}"
        shutil.copytree(folder, checkpoint, ignore=shutil.ignore_patterns("checkpoints"))
        write_manifest(checkpoint, {"device": "cpu", "processes": 1, "cpu_threads": 1, "versions": {}})
    push = f"--folder {folder} --hub_model_id org/x --checkpoints --dry_run"
    assert recipe("push_to_hub", push) == 0
    change_a_byte(folder / "checkpoints" / "step-2")
    line = refused("push_to_hub", push)
    assert "step-2: nobody could load it: model.safetensors does not match its SHA-256" in line


def test_no_code_of_a_checkpoint_runs_and_nobody_is_asked(world, folder, tmp_path, monkeypatch):
    trap = tmp_path / "trap"
    code = f"import pathlib\npathlib.Path({str(trap)!r}).touch()\n"
    for name in ("configuration_bert_repro.py", "modeling_bert_repro.py", "evil.py"):
        (folder / name).write_text(code)
    change_json(folder / "config.json", model_type="bert", auto_map={"AutoConfig": "evil.A", "AutoModel": "evil.B"})
    change_json(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.C", "evil.C"]})
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("somebody was asked"))
    arguments = f"--model_name_or_path {folder} --input_file {world.text} --output_file {tmp_path / 'f.parquet'}"
    assert recipe("extract_features", arguments) == 0
    assert not trap.exists()


def test_what_is_right_passes(published):
    assert check_model(str(published)).num_hidden_layers == 2
    check_folder(published.parent / "sharded")
    assert len(list((published.parent / "sharded").glob("*.safetensors"))) > 1


def test_a_push_follows_no_link(folder, tmp_path):
    secret = tmp_path / "secret.json"
    secret.write_text("{}")
    (folder / "special_tokens_map.json").symlink_to(secret)
    with pytest.raises(UserError, match=r"special_tokens_map\.json: is a link"):
        published_files(folder)
