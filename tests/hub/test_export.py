"""An exported folder is complete, loads three ways, and is never half there."""

import json
import os
import re
from pathlib import Path

import pytest
import transformers
from tiny_models import word_model, word_tokenizer

import bert_repro
from bert_repro.configs.inference import ONNX_FILES
from bert_repro.errors import UserError
from bert_repro.hub import export
from bert_repro.hub.export import export_checkpoint, republish
from bert_repro.models.configuration_bert_repro import AUTO_CLASSES

RECORD = {"task": "toy", "split": "validation", "metrics": {"accuracy": 0.5}, "rows_scored": 2, "settings": {}}
TOKENIZER = word_tokenizer("paris is the capital of france . a film")


def tiny(head="ForSequenceClassification", **fields):
    fields = {"num_labels": 3, **fields} if "Classification" in head else fields
    return word_model(TOKENIZER, head, **fields)


def test_folder_is_complete(tmp_path):
    folder = export_checkpoint(tiny(), TOKENIZER, tmp_path / "toy", results=RECORD)
    names = {path.name for path in folder.iterdir()}
    assert names >= {
        "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "README.md", "results.json",
        "configuration_bert_repro.py", "modeling_bert_repro.py",
    }  # fmt: skip
    results = json.loads((folder / "results.json").read_text("utf-8"))
    assert results["metrics"] == RECORD["metrics"]
    assert results["model"]["class"] == "BertReproForSequenceClassification"
    assert results["model"]["parameters"] == sum(p.numel() for p in tiny().parameters())
    assert results["model"]["labels"] == ["LABEL_0", "LABEL_1", "LABEL_2"]
    assert "# toy" in (folder / "README.md").read_text("utf-8")
    bare = export_checkpoint(tiny("Model"), TOKENIZER, tmp_path / "bare")
    assert not (bare / "results.json").exists() and "Not run." in (bare / "README.md").read_text("utf-8")


@pytest.mark.parametrize("head", [head.ours for head in AUTO_CLASSES.values()])
def test_the_snippet_of_a_card_runs(head, tmp_path, monkeypatch, remote_code):
    causal = {"is_decoder": True} if head == "BertReproForCausalLM" else {}
    model = tiny(head.removeprefix("BertRepro"), **causal)
    folder = export_checkpoint(model, TOKENIZER, tmp_path / "toy", results=RECORD)
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text("utf-8"), re.DOTALL)
    exec(compile(code, "card", "exec"), {})


def test_other_files_of_the_folder_stay_and_stale_shards_go(tmp_path):
    for name in ("train_log.jsonl", "model-00001-of-00002.safetensors", "model.safetensors.index.json"):
        (tmp_path / name).write_text("{}", encoding="utf-8")
    export_checkpoint(tiny(), TOKENIZER, tmp_path, results=RECORD)
    assert (tmp_path / "train_log.jsonl").exists()
    assert [path.name for path in tmp_path.glob("model*.safetensors*")] == ["model.safetensors"]
    assert not list(tmp_path.glob(".*"))


def test_a_folder_says_how_one_vector_is_made_of_a_text(tmp_path):
    """In the names that text-embeddings-inference, vLLM and every sentence-transformers read ."""
    for pooling in ("mean", "cls"):
        folder = export_checkpoint(tiny("Model"), TOKENIZER, tmp_path / "toy", pooling=pooling)
        modes = json.loads((folder / "1_Pooling" / "config.json").read_text())
        assert modes.pop("word_embedding_dimension") == 16
        on = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token"}[pooling]
        assert len(modes) == 4 and [name for name, value in modes.items() if value] == [on]
    modules = json.loads((folder / "modules.json").read_text())
    assert [module["path"] for module in modules] == ["", "1_Pooling"]
    assert [module["type"].rpartition(".")[2] for module in modules] == ["Transformer", "Pooling"]
    assert json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"] == 48
    with pytest.raises(ValueError, match="pooling must be one of mean, cls, got 'max'"):
        export_checkpoint(tiny("Model"), TOKENIZER, tmp_path / "toy", pooling="max")
    export_checkpoint(tiny(), TOKENIZER, folder)
    assert not {"modules.json", "1_Pooling", "sentence_bert_config.json"} & set(os.listdir(folder)), "a classifier's"


def leave_an_older_model(folder: Path) -> list[str]:
    """What was made from other weights, as names of files below the folder."""
    names = [f"onnx/{ONNX_FILES['fp32']}", "adapter/adapter_model.safetensors", "predictions.json"]
    names += ["predictions.test.tsv", "nbest_predictions.test.json", "null_odds.json", "null_odds.test.json"]
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("of other weights")
    return names


def move_counter(monkeypatch, limit):
    """Lets `limit` files move into place and fails at the next."""
    left = iter(range(limit))

    def replace(source, target):
        # What is gathered before it moves does not count.
        if ".writing-" not in str(target) and next(left, None) is None:
            raise OSError(28, "No space left on device")
        os.rename(source, target)

    monkeypatch.setattr(os, "replace", replace)


def test_an_interruption_while_moving_leaves_no_folder_that_loads(tmp_path, monkeypatch):
    export_checkpoint(tiny(num_labels=2), TOKENIZER, tmp_path / "toy", results=RECORD)
    count = len([path for path in (tmp_path / "toy").iterdir() if path.is_file()])
    for limit in range(count):
        with monkeypatch.context() as patch, pytest.raises(UserError, match="No space"):
            move_counter(patch, limit)
            export_checkpoint(tiny(), TOKENIZER, tmp_path / "toy", results=RECORD)
        for loader in (transformers.AutoModelForSequenceClassification, bert_repro.BertReproForSequenceClassification):
            with pytest.raises((OSError, ValueError), match=r"config\.json|model\.safetensors"):
                loader.from_pretrained(tmp_path / "toy")
    export_checkpoint(tiny(), TOKENIZER, tmp_path / "toy", results=RECORD)
    loaded = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "toy")
    assert loaded.config.num_labels == 3


def test_a_run_is_published_again_under_a_record_of_its_own_with_nothing_of_an_earlier_best(tmp_path):
    best = export_checkpoint(tiny(), TOKENIZER, tmp_path / "best", results=RECORD)
    for name in ("status.json", ".hidden", "predictions.test.tsv"):
        (best / name).write_text(name)
    (tmp_path / "search").mkdir()
    (tmp_path / "search" / "table.txt").write_text("table")
    stale = leave_an_older_model(tmp_path / "complete")
    (tmp_path / "complete" / "notes.txt").write_text("mine")
    results = {**json.loads((best / "results.json").read_text("utf-8")), "metrics": {"accuracy": 0.75}}
    folder = republish(best, tmp_path / "complete", results=results, files=[tmp_path / "search"])
    assert [name for name in stale if (folder / name).exists()] == ["predictions.test.tsv"]
    assert (folder / "predictions.test.tsv").read_text() == "predictions.test.tsv", "of these weights"
    expected = {path.name for path in best.iterdir()} - {"status.json", ".hidden"} | {"search", "notes.txt"}
    assert {path.name for path in folder.iterdir()} == expected
    assert (folder / "search" / "table.txt").read_text() == "table"
    assert json.loads((folder / "results.json").read_text("utf-8"))["metrics"] == {"accuracy": 0.75}
    card = (folder / "README.md").read_text("utf-8")
    assert "# complete" in card and "| validation | accuracy | 0.7500 |" in card
    assert bert_repro.BertReproForSequenceClassification.from_pretrained(folder).config.num_labels == 3


def test_an_interruption_while_saving_leaves_the_earlier_export_complete(tmp_path, monkeypatch):
    folder = export_checkpoint(tiny(), TOKENIZER, tmp_path / "toy", results=RECORD)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    monkeypatch.setattr(export, "make_card", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        export_checkpoint(tiny(num_labels=5), TOKENIZER, folder, results={})
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
