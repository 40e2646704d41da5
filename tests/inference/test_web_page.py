"""The page for browsers: what can be seen without a browser. `make test-web` uses it in one."""

import re
from pathlib import Path

from bert_repro.configs.inference import ONNX_FILES
from bert_repro.models.configuration_bert_repro import AUTO_CLASSES

ROOT = Path(__file__).resolve().parents[2]
WEB = ROOT / "recipes" / "web"
PAGE, BUILD = ((WEB / name).read_text("utf-8") for name in ("index.html", "build.mjs"))


def keys(source: str, name: str) -> dict[str, str]:
    """Reads an object of strings in the build script."""
    (body,) = re.findall(rf"const {name} = \{{(.*?)\}};", source, re.DOTALL)
    return dict(re.findall(r'"?([\w.-]+)"?: (?:\[)?"([^"]+)"', body))


def test_page_build_and_export_agree_on_files_tasks_and_heads() -> None:
    assert keys(BUILD, "FILES") == ONNX_FILES
    tasks = keys(BUILD, "TASKS")
    heads = {head.ours.removeprefix("BertRepro") for head in AUTO_CLASSES.values()}
    assert set(tasks) <= heads
    assert set(tasks.values()) == set(re.findall(r'^  "([\w-]+)": \{$', PAGE, re.MULTILINE))
