"""Adapters: what trains, what is saved, what loads where, and that merging changes nothing."""

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from peft import AutoPeftModel, AutoPeftModelForSequenceClassification, AutoPeftModelForTokenClassification, PeftModel
from running import TINY, recipe, results
from tiny_models import save_model
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from bert_repro.configs import GlueConfig
from bert_repro.models import modeling_bert_repro
from bert_repro.training import adapters

SHAPE = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
FAST = "--bias_correction true --learning_rate 1e-2 --train_batch_size 16"
LABELS = {"id2label": {0: "a", 1: "b", 2: "c"}, "label2id": {"a": 0, "b": 1, "c": 2}}
HEADS = {
    "SequenceClassification": ({"classifier", "bert.pooler.dense"}, LABELS, AutoPeftModelForSequenceClassification),
    "TokenClassification": ({"classifier"}, LABELS, AutoPeftModelForTokenClassification),
    "QuestionAnswering": ({"qa_outputs"}, {}, AutoPeftModel),
    "MultipleChoice": ({"classifier", "bert.pooler.dense"}, {}, AutoPeftModel),
}


@pytest.fixture(scope="module")
def base(world: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint without a pooler, which therefore belongs to what an adapter holds."""
    return save_model(world, tmp_path_factory.mktemp("base"), **SHAPE)


def command(world: Any, base: Path, folder: Path, *arguments: object) -> list[object]:
    common = ["--task_name sst2 --do_train --do_eval", FAST, "--data_dir", world.glue, "--model_name_or_path", base]
    return ["run_glue", *common, "--output_dir", folder, *arguments]


def train(*arguments: Any) -> int:
    return recipe(*command(*arguments))


def weights(folder: Path, name: str = "model.safetensors") -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(folder / name)


def assert_close(left: torch.Tensor, right: torch.Tensor) -> None:
    assert (left - right).abs().max() <= 1e-5 * max(1.0, right.abs().max().item())


@pytest.fixture(scope="module")
def tuned(world: Any, base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "lora"
    assert train(world, base, folder, "--peft lora --max_steps 5 --save_steps 1 --save_total_limit 5") == 0
    return folder


def test_only_adapter_head_and_new_weights_change(base: Path, tuned: Path) -> None:
    before, after = weights(base), weights(tuned)
    changed = {name for name, value in after.items() if name not in before or not torch.equal(value, before[name])}
    targets = {
        f"bert.encoder.layer.{layer}.attention.self.{name}.weight" for layer in (0, 1) for name in ("query", "value")
    }
    new = {f"{name}.{kind}" for name in ("classifier", "bert.pooler.dense") for kind in ("weight", "bias")}
    assert changed == targets | new


def test_the_record_says_the_share_that_trained_and_checkpoints_hold_no_more(tuned: Path) -> None:
    adapter, trained = results(tuned)["train"]["adapter"], weights(tuned / "adapter", "adapter_model.safetensors")
    assert adapter["trained_parameters"] == sum(value.numel() for value in trained.values())
    assert 0 < adapter["trained_share"] < 0.1
    assert (adapter["kind"], adapter["target_modules"]) == ("lora", ["query", "value"])
    checkpoint = tuned / "checkpoints" / "step-3"
    assert not (checkpoint / "model.safetensors").exists()
    trained = weights(checkpoint, "adapter_model.safetensors")
    assert len(weights(checkpoint, "trainer_state/optimizer.safetensors")) == 3 * len(trained)


@pytest.mark.parametrize("step", [2, *(pytest.param(step, marks=pytest.mark.slow) for step in (1, 3, 4))])
def test_resume_after_a_step_is_bit_identical(world: Any, base: Path, tuned: Path, tmp_path: Path, step: int) -> None:
    start = tuned / "checkpoints" / f"step-{step}"
    assert train(world, base, tmp_path / "run", "--peft lora --max_steps 5 --resume_from_checkpoint", start) == 0
    for file in ("model.safetensors", "adapter/adapter_model.safetensors"):
        again = weights(tmp_path / "run", file)
        assert all(torch.equal(value, again[name]) for name, value in weights(tuned, file).items())
    assert results(tmp_path / "run")["metrics"] == results(tuned)["metrics"]


@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_an_upstream_environment_loads_adapter_and_merged_folder_alike(world, base, tuned, tmp_path, kind):
    folder = tuned
    if kind != "lora":
        folder = tmp_path / kind
        assert train(world, base, folder, "--max_steps 3 --peft", kind) == 0
        assert results(folder)["train"]["adapter"]["kind"] == kind
    texts = ["the bright river runs", "a stone"]
    inputs = AutoTokenizer.from_pretrained(folder)(texts, padding=True, return_tensors="pt")
    merged = AutoModelForSequenceClassification.from_pretrained(folder)
    adapted = AutoPeftModelForSequenceClassification.from_pretrained(folder / "adapter")
    config = AutoConfig.from_pretrained(folder / "adapter")
    start = AutoModelForSequenceClassification.from_pretrained(base, config=config)
    over = PeftModel.from_pretrained(start, folder, subfolder="adapter")
    for model in (merged, adapted.get_base_model(), over.get_base_model()):
        assert type(model).__module__.startswith("transformers.")
    assert config.id2label == merged.config.id2label == {0: "negative", 1: "positive"}
    with torch.no_grad():
        expected = merged.eval()(**inputs).logits
        assert_close(adapted.eval()(**inputs).logits, expected)
        assert_close(over.eval()(**inputs).logits, expected)


@pytest.mark.parametrize("name", HEADS)
def test_every_head_is_adapted_merged_and_loaded_by_peft(base: Path, tmp_path: Path, name: str) -> None:
    modules, labels, auto = HEADS[name]
    model_class = getattr(modeling_bert_repro, f"BertReproFor{name}")
    model, info = model_class.from_pretrained(base, output_loading_info=True, **labels)
    config = GlueConfig(model_name_or_path=str(base), do_train=True, peft="lora")
    adapted = adapters.add_adapter(model, config, info["missing_keys"])
    assert modules <= set(adapted.peft_config["default"].modules_to_save)
    torch.manual_seed(1)
    for weight_name, weight in adapted.named_parameters():
        if "lora_B" in weight_name:
            torch.nn.init.normal_(weight)
    shape = (2, 4, 9) if "Choice" in name else (2, 9)
    inputs = {"input_ids": torch.randint(5, 150, shape), "token_type_ids": (torch.arange(9) > 4).long().expand(shape)}
    inputs["attention_mask"] = torch.ones(shape, dtype=torch.long)
    inputs["attention_mask"][-1, ..., -2:] = 0
    with torch.no_grad():
        unmerged = adapted.eval()(**inputs)[0]
        merged, record = adapters.merge_and_save(adapted, AutoTokenizer.from_pretrained(base), tmp_path, write=True)
        merged.config.save_pretrained(tmp_path / "adapter")
        assert type(merged) is model_class and record["adapter"]["trained_share"] < 0.1
        assert_close(merged(**inputs)[0], unmerged)
        count = {"num_labels": 3} if labels else {}
        upstream = auto.from_pretrained(tmp_path / "adapter", **count).eval()
        assert type(upstream.get_base_model()).__module__.startswith("transformers.")
        assert_close(upstream(**inputs)[0], unmerged)


def test_pretraining_goes_on_with_an_adapter(world: Any, pretrained: Path, tmp_path: Path) -> None:
    common = [TINY, "--corpus", world.corpus, "--model_name_or_path", pretrained, "--max_steps 4 --peft lora"]
    assert recipe("run_pretraining", *common, "--save_steps 2 --output_dir", tmp_path / "run") == 0
    start = tmp_path / "run" / "checkpoints" / "step-2"
    resume = ["--resume_from_checkpoint", start, "--output_dir", tmp_path / "again"]
    assert recipe("run_pretraining", *common, *resume) == 0
    before, after, again = weights(pretrained), weights(tmp_path / "run"), weights(tmp_path / "again")
    changed = {name for name, value in after.items() if not torch.equal(value, before[name])}
    assert len(changed) == 4 and all(name.endswith(("query.weight", "value.weight")) for name in changed)
    assert all(torch.equal(value, again[name]) for name, value in after.items())
    adapter = json.loads((tmp_path / "run" / "adapter" / "adapter_config.json").read_text())
    assert adapter["auto_mapping"] == {"base_model_class": "BertForPreTraining", "parent_library": "transformers"}


# ------------------------------------------------------------------------------------------------------------ bad input


def test_peft_is_named_where_it_is_not_installed(world, base, tmp_path, monkeypatch, refused):
    monkeypatch.setattr("bert_repro.training.run.is_peft_available", lambda: False)
    line = refused(*command(world, base, tmp_path, "--peft lora"))
    assert "--peft lora" in line and "pip install peft" in line


def test_settings_that_cannot_be(world, base, tmp_path, refused):
    assert "--peft lora" in refused(*command(world, base, tmp_path / "run", "--lora_r 4"))
    assert "lora requires --do_train" in refused(*command(world, base, tmp_path, "--peft lora --do_train false"))


def test_an_adapter_alone_is_no_model_and_another_run_does_not_resume_from_it(world, tuned, tmp_path, refused, base):
    line = refused(*command(world, tuned / "adapter", tmp_path / "run"))
    assert str(tuned / "adapter") in line and "adapter" in line
    start = ["--resume_from_checkpoint", tuned / "checkpoints" / "step-3"]
    assert train(world, base, tmp_path / "full", "--max_steps 5", *start) == 2
    assert train(world, base, tmp_path / "rank", "--max_steps 5 --peft lora --lora_r 4", *start) != 0
    assert train(world, base, tmp_path / "kind", "--max_steps 5 --peft dora", *start) == 2
