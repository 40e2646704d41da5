"""A script for a process of its own: loads published folders with upstream transformers, never with this package.

`python -P upstream_process.py REQUEST.json ANSWERS.npz`. The request maps a name to {"folder", "auto_class", "texts"};
the answers hold, under each name, the first output of that class for the texts as one padded batch.
"""

import json
import sys
from typing import Any


def outputs(auto_class: Any, folder: str, texts: list[str]) -> Any:
    """Returns the first output of a model for a padded batch of texts, as a NumPy array."""
    import torch
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = auto_class.from_pretrained(folder, attn_implementation="sdpa").eval()
    with torch.no_grad():
        return model(**tokenizer(texts, padding=True, return_tensors="pt"))[0].numpy()


def main(request_file: str, answers_file: str) -> None:
    """Answers a request."""
    import numpy as np
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with open(request_file, encoding="utf-8") as file:
        requests = json.load(file)
    answers = {
        name: outputs(getattr(transformers, request["auto_class"]), request["folder"], request["texts"])
        for name, request in requests.items()
    }
    if any(name.split(".")[0] == "bert_repro" for name in sys.modules):
        sys.exit("this process imported bert_repro, so it does not show that the folder loads without it")
    np.savez(answers_file, **answers)


if __name__ == "__main__":
    main(*sys.argv[1:])
