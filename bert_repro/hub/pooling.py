"""Says in a published folder how one vector is made of a text, for the libraries and servers of sentence embeddings.

Without these files sentence-transformers takes the mean of the tokens, text-embeddings-inference and vLLM the first
one, and the same folder gives two vectors. The names and fields are those of sentence-transformers since its first
versions, which all of them read; its newest spelling, only its newest version does.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from bert_repro.utils.files import POOLING, POOLING_MODULES, POOLING_TEXT

if TYPE_CHECKING:
    from transformers import PreTrainedModel

POOLINGS = ("mean", "cls")
POOLING_FILES = (POOLING_MODULES, POOLING_TEXT, POOLING)
"""What `write_pooling` writes in a folder."""
_HEADS = ("BertReproModel", "BertReproForPreTraining", "BertReproForMaskedLM")
"""Models without a task, which embeddings are taken from. A classifier answers with labels: a server that found a
pooling beside it would have to choose."""
_MODULES = (("0", "", "Transformer"), ("1", POOLING, "Pooling"))
_MODES = {"cls": "cls_token", "mean": "mean_tokens"}
_OTHER_MODES = ("max_tokens", "mean_sqrt_len_tokens")  # text-embeddings-inference wants them named


def write_pooling(model: "PreTrainedModel", folder: Path, pooling: str = "mean") -> None:
    """Writes `modules.json`, `1_Pooling/config.json` and `sentence_bert_config.json` beside a model without a task.

    Args:
        model: one of our models; nothing is written for those with a task.
        folder: where it was saved.
        pooling: `mean` of the last hidden states of all tokens, special ones included, or `cls`, that of the first.

    Raises:
        ValueError: pooling is neither.
    """
    if pooling not in POOLINGS:
        raise ValueError(f"pooling must be one of {', '.join(POOLINGS)}, got {pooling!r}")
    if type(model).__name__ not in _HEADS:
        return
    modules = [
        {"idx": int(name), "name": name, "path": path, "type": f"sentence_transformers.models.{kind}"}
        for name, path, kind in _MODULES
    ]
    modes = {f"pooling_mode_{mode}": _MODES[pooling] == mode for mode in (*_MODES.values(), *_OTHER_MODES)}
    config = model.config
    (folder / POOLING).mkdir(exist_ok=True)
    for path, content in (
        (POOLING_MODULES, modules),
        (f"{POOLING}/config.json", {"word_embedding_dimension": config.hidden_size, **modes}),
        (POOLING_TEXT, {"max_seq_length": config.max_position_embeddings, "do_lower_case": False}),
    ):
        (folder / path).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
