"""The classes are registered whenever a registration can be seen (that imports are light: test_cli.py)."""

import subprocess
import sys

ASK = "from transformers import AutoConfig, AutoModel; "
ASK += "print(AutoModel._model_mapping[type(AutoConfig.for_model('bert_repro'))].__name__, flush=True)"
ORDERS = ("import bert_repro", "import transformers; import bert_repro")


def test_the_classes_are_registered_in_any_order_of_imports():
    # torch and what transformers reads of it are imported once, and each order is tried in a fork of that process.
    children = [f"if not os.fork():\n    {order}; {ASK}\n    os._exit(0)\nos.wait()" for order in ORDERS]
    code = "\n".join(["import os, torch._dynamo.convert_frame, torch.distributed.tensor", *children])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["BertReproModel"] * len(ORDERS), done.stderr
