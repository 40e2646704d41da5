"""Fine-tuned heads, adapters, shards, bfloat16 and an upstream Trainer's save load three ways with equal outputs."""

import dataclasses
from pathlib import Path

import pytest
import torch
import transformers
from peft import LoraConfig, PeftModel, TaskType, get_peft_model
from safetensors.torch import load_file
from tiny_models import word_model, word_tokenizer

import bert_repro
from bert_repro.hub.export import export_checkpoint
from bert_repro.models.configuration_bert_repro import AUTO_CLASSES
from bert_repro.tasks import TASKS

TOKENIZER = word_tokenizer("paris is the capital of france . a film that never lets you go")
AUTO = {head.ours: auto_class for auto_class, head in AUTO_CLASSES.items()}


pytestmark = pytest.mark.usefixtures("remote_code")


def model_of(class_name: str, **fields: object) -> torch.nn.Module:
    wide = {"num_hidden_layers": 2, "max_position_embeddings": 32, "initializer_range": 0.3}
    return word_model(TOKENIZER, class_name.removeprefix("BertRepro"), **wide, **fields)


def batch(class_name: str) -> dict[str, torch.Tensor]:
    texts = ["paris is the capital .", "a film"], ["of france .", "that never lets you go ."]
    inputs = dict(TOKENIZER(*texts, padding=True, return_tensors="pt"))
    return {name: values[None] for name, values in inputs.items()} if "MultipleChoice" in class_name else inputs


def three_ways(folder: Path, class_name: str, **options: object) -> dict[str, torch.nn.Module]:
    auto = getattr(transformers, AUTO[class_name])
    found = {
        "upstream": auto.from_pretrained(folder, **options),
        "remote": auto.from_pretrained(folder, trust_remote_code=True, **options),
        "plugin": getattr(bert_repro, class_name).from_pretrained(folder, **options),
    }
    assert type(found["upstream"]).__module__ == "transformers.models.bert.modeling_bert"
    assert type(found["remote"]).__module__.startswith("transformers_modules")
    return found


def assert_equal(folder: Path, class_name: str, model: torch.nn.Module, tolerance: float = 1e-5) -> None:
    inputs = batch(class_name)
    with torch.no_grad():
        expected = model(**inputs)
        for way, other in three_ways(folder, class_name).items():
            outputs = other.eval()(**inputs)
            assert other.config.id2label == model.config.id2label, way
            for name, values in expected.items():
                scale = max(1.0, values.abs().max().item())
                assert (outputs[name] - values).abs().max().item() <= tolerance * scale, f"{way}, {name}"


@pytest.mark.parametrize("name", ["mrpc", "stsb", "mnli", "squad_v2", "swag", "conll2003"])
def test_fine_tuned_heads_keep_their_labels(name, tmp_path):
    task = TASKS[name]
    if name == "squad_v2":
        task = dataclasses.replace(task, null_score_diff_threshold=-1.5)
    model = model_of(task.head, **task.model_settings())
    folder = export_checkpoint(model, TOKENIZER, tmp_path / name)
    assert_equal(folder, task.head, model)
    upstream = transformers.AutoConfig.from_pretrained(folder)
    texts = ["paris is", "a film ."]
    assert transformers.AutoTokenizer.from_pretrained(folder)(texts)["input_ids"] == TOKENIZER(texts)["input_ids"]
    if task.label_names:
        assert tuple(upstream.id2label.values()) == task.label_names
        assert upstream.label2id == {label: index for index, label in enumerate(task.label_names)}
    if name == "squad_v2":
        assert upstream.null_score_diff_threshold == -1.5


@pytest.mark.parametrize("class_name", ["BertReproForPreTraining", "BertReproForTokenClassification"])
def test_shards(class_name, tmp_path):
    model = model_of(class_name)
    model.save_pretrained(tmp_path / "sharded", max_shard_size="8KB")
    assert (tmp_path / "sharded" / "model.safetensors.index.json").exists()
    assert_equal(tmp_path / "sharded", class_name, model)


def test_an_upstream_trainers_save(tmp_path):
    name = "BertReproForSequenceClassification"
    model = model_of(name, id2label={0: "dull", 1: "lively"})
    rows = [{"input_ids": [2, 5, 3], "labels": 0}, {"input_ids": [2, 6, 3], "labels": 1}]
    arguments = transformers.TrainingArguments(
        tmp_path / "trained", max_steps=2, report_to=[], use_cpu=True, save_steps=2, disable_tqdm=True
    )
    trainer = transformers.Trainer(model, arguments, train_dataset=rows, processing_class=TOKENIZER)
    trainer.train()
    trainer.save_model()
    model.eval()
    assert_equal(tmp_path / "trained", name, model)
    assert_equal(tmp_path / "trained" / "checkpoint-2", name, model)


def test_an_adapter_made_with_peft_fits_all_three(tmp_path):
    name = "BertReproForSequenceClassification"
    model_of("BertReproForPreTraining").save_pretrained(tmp_path / "base")
    base = bert_repro.BertReproForSequenceClassification.from_pretrained(tmp_path / "base", num_labels=3)
    config = LoraConfig(task_type=TaskType.SEQ_CLS, target_modules=["query", "value"], init_lora_weights=False)
    adapted = get_peft_model(base, config).eval()
    adapted.save_pretrained(tmp_path / "adapter")
    assert not (tmp_path / "adapter" / "model.safetensors").exists()
    inputs = batch(name)
    expected = adapted(**inputs).logits
    for way, other in three_ways(tmp_path / "base", name, num_labels=3).items():
        found = PeftModel.from_pretrained(other, tmp_path / "adapter").eval()
        torch.testing.assert_close(found(**inputs).logits, expected, rtol=1e-5, atol=1e-5, msg=way)
        merged = found.merge_and_unload()
        torch.testing.assert_close(merged(**inputs).logits, expected, rtol=1e-5, atol=1e-5, msg=way)


def test_the_shipped_model_is_stored_in_bfloat16_and_loads_in_float32():
    folder = Path(__file__).parents[2] / "checkpoints" / "bert-repro-mini"
    for way, model in three_ways(folder, "BertReproForPreTraining").items():
        assert model.dtype == torch.float32, way
    assert {values.dtype for values in load_file(folder / "model.safetensors").values()} == {torch.bfloat16}
    for name in ("modeling_bert_repro.py", "configuration_bert_repro.py"):
        current = Path(bert_repro.__file__).parent / "models" / name
        assert (folder / name).read_bytes() == current.read_bytes(), f"copy {name} into the shipped model again"
