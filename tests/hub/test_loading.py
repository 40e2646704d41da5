"""Labels, the save of an upstream Trainer and the shipped model are there whichever way a folder is loaded."""

import dataclasses
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file
from tiny_models import word_model, word_tokenizer

import bert_repro
from bert_repro.hub.export import export_checkpoint
from bert_repro.tasks import TASKS

TOKENIZER = word_tokenizer("paris is the capital of france . a film that never lets you go")


pytestmark = pytest.mark.usefixtures("remote_code")


def three_ways(folder: Path, head: str) -> dict[str, torch.nn.Module]:
    auto = getattr(transformers, f"AutoModel{head}")
    found = {
        "upstream": auto.from_pretrained(folder),
        "remote": auto.from_pretrained(folder, trust_remote_code=True),
        "plugin": getattr(bert_repro, f"BertRepro{head}").from_pretrained(folder),
    }
    assert type(found["upstream"]).__module__ == "transformers.models.bert.modeling_bert"
    assert type(found["remote"]).__module__.startswith("transformers_modules")
    return found


@pytest.mark.parametrize("name", ["mrpc", "stsb", "mnli", "squad_v2", "swag", "conll2003"])
def test_fine_tuned_heads_keep_their_labels(name, tmp_path):
    task = TASKS[name]
    if name == "squad_v2":
        task = dataclasses.replace(task, null_score_diff_threshold=-1.5)
    model = word_model(TOKENIZER, task.head.removeprefix("BertRepro"), **task.model_settings())
    folder = export_checkpoint(model, TOKENIZER, tmp_path / name)
    upstream = transformers.AutoConfig.from_pretrained(folder)
    assert upstream.id2label == model.config.id2label
    if task.label_names:
        assert tuple(upstream.id2label.values()) == task.label_names
        assert upstream.label2id == {label: index for index, label in enumerate(task.label_names)}
    if name == "squad_v2":
        assert upstream.null_score_diff_threshold == -1.5


def test_an_upstream_trainers_save(tmp_path):
    head = "ForSequenceClassification"
    model = word_model(TOKENIZER, head, id2label={0: "dull", 1: "lively"}, initializer_range=0.3)
    rows = [{"input_ids": [2, 5, 3], "labels": 0}, {"input_ids": [2, 6, 3], "labels": 1}]
    arguments = transformers.TrainingArguments(
        tmp_path / "trained", max_steps=2, report_to=[], use_cpu=True, save_steps=2, disable_tqdm=True
    )
    trainer = transformers.Trainer(model, arguments, train_dataset=rows, processing_class=TOKENIZER)
    trainer.train()
    trainer.save_model()
    inputs = TOKENIZER("a film that never lets you go .", return_tensors="pt")
    with torch.no_grad():
        expected = model.eval()(**inputs).logits
        for folder in (tmp_path / "trained", tmp_path / "trained" / "checkpoint-2"):
            for way, other in three_ways(folder, head).items():
                assert other.config.id2label == model.config.id2label, way
                torch.testing.assert_close(other.eval()(**inputs).logits, expected, rtol=1e-5, atol=1e-5, msg=way)


def test_the_shipped_model_is_stored_in_bfloat16_and_loads_in_float32():
    folder = Path(__file__).parents[2] / "checkpoints" / "bert-repro-mini"
    for way, model in three_ways(folder, "ForPreTraining").items():
        assert model.dtype == torch.float32, way
    assert {values.dtype for values in load_file(folder / "model.safetensors").values()} == {torch.bfloat16}
    for name in ("modeling_bert_repro.py", "configuration_bert_repro.py"):
        current = Path(bert_repro.__file__).parent / "models" / name
        assert (folder / name).read_bytes() == current.read_bytes(), f"copy {name} into the shipped model again"
