"""What README.md tells people to type works: its Python runs (its commands: test_docs.py)."""

import re
from pathlib import Path

import pytest
import transformers
from peft import LoraConfig, TaskType, get_peft_model
from tiny_models import word_model, word_tokenizer

from bert_repro.configs import OnnxConfig
from bert_repro.inference.onnx import export_onnx

README = Path(__file__).resolve().parents[1] / "README.md"
SNIPPETS = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
WORDS = "where did she work ? marie curie worked in paris . opened the window fresh air came in"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders that README.md speaks of, tiny."""
    root = tmp_path_factory.mktemp("readme")
    tokenizer = word_tokenizer(WORDS)
    (root / "checkpoints").symlink_to(README.parent / "checkpoints")
    heads = {"bert": "ForPreTraining", "squad": "ForQuestionAnswering", "mrpc": "ForSequenceClassification"}
    for name, head in heads.items():
        word_model(tokenizer, head).save_pretrained(root / "runs" / name)
        tokenizer.save_pretrained(root / "runs" / name)
    export_onnx(OnnxConfig(folder=str(root / "runs" / "mrpc")))
    base = transformers.AutoModelForSequenceClassification.from_pretrained(root / "runs" / "bert", num_labels=3)
    adapted = get_peft_model(base, LoraConfig(task_type=TaskType.SEQ_CLS, target_modules=["query", "value"]))
    adapted.save_pretrained(root / "runs" / "mnli-lora" / "adapter")
    base.config.save_pretrained(root / "runs" / "mnli-lora" / "adapter")
    return root


@pytest.mark.parametrize("snippet", SNIPPETS, ids=[str(number) for number in range(len(SNIPPETS))])
def test_its_python_runs(snippet: str, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs)
    exec(compile(snippet, "README.md", "exec"), {})
