"""`import bert_repro` is light, and the classes are registered whenever a registration can be seen."""

import subprocess
import sys

import pytest

ASK = (
    "from transformers import AutoConfig, AutoModel; "
    "print(AutoModel._model_mapping[type(AutoConfig.for_model('bert_repro'))].__name__, flush=True)"
)
ORDERS = (
    "import bert_repro",
    "import transformers; import bert_repro",
    "import bert_repro.models.modeling_bert_repro",
    "from bert_repro import BertReproModel",
)


def run(*lines: str) -> str:
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_settings_and_text_need_no_torch():
    modules = "bert_repro, bert_repro.cli, bert_repro.configs.presets, bert_repro.corpus.sentences"
    assert run(f"import sys, {modules}", "print(sorted({'torch', 'transformers'} & set(sys.modules)))") == "[]"


def test_the_classes_are_registered_in_any_order_of_imports():
    # torch is imported once, and each order is tried in a fork of the process that did so.
    children = [f"if not os.fork():\n    {order}; {ASK}\n    os._exit(0)\nos.wait()" for order in ORDERS]
    assert run("import os, torch", *children).split() == ["BertReproModel"] * len(ORDERS)


def test_a_name_that_is_not_there_is_an_attribute_error():
    import bert_repro

    with pytest.raises(AttributeError, match="no attribute 'BertReproModle'"):
        bert_repro.BertReproModle  # noqa: B018
    assert dir(bert_repro) == sorted(bert_repro.__all__)
