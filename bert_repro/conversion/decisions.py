"""Decides what the files of a checkpoint do not say outright: the form of gelu, cased or uncased, names of labels.

A decision comes with its reason, which conversion.json keeps; where the signs contradict each other or are none, the
user is asked.
"""

import re
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bert_repro.conversion.original_names import ACTIVATIONS, GELU, Array
from bert_repro.errors import UserError
from bert_repro.models.configuration_bert_repro import BertReproConfig
from bert_repro.utils.readers import read_json, shown

VOCABULARY = "vocab.txt"
ORIGINAL_CONFIG = "bert_config.json"


def decide_activation(named: Any, gelu: str | None, is_torch: bool) -> tuple[str, str]:
    """Returns the activation under transformers' name, and why."""
    if named == "gelu":
        if gelu is None and not is_torch:
            raise UserError(
                f"{ORIGINAL_CONFIG} says hidden_act gelu, which was the erf form in 2018 and is the tanh form in the "
                "code since February 2019; say which with --gelu erf (the first releases) or --gelu tanh"
            )
        form = gelu or "erf"
        why = f"--gelu {gelu}" if gelu else "PyTorch's BERT always computed erf"
        return GELU[form], f"{GELU[form]}: the {form} form ({why})"
    if gelu is not None:
        raise UserError(f"--gelu {gelu}: {ORIGINAL_CONFIG} says hidden_act {shown(named)}; leave it out")
    if not isinstance(named, str | None) or named not in ACTIVATIONS:
        raise UserError(f"{ORIGINAL_CONFIG}: hidden_act {shown(named)} is not known to the original implementation")
    return ACTIVATIONS[named], f"{ACTIVATIONS[named]} ({ORIGINAL_CONFIG})"


def labels_of(tensors: Mapping[str, Array], known: BertReproConfig | None, names: tuple[str, ...]) -> dict[str, Any]:
    """Returns the labels of a classifier or tagger, as a configuration holds them.

    Args:
        tensors: by original name.
        known: the config.json beside the weights, whose names are taken where there are no others.
        names: of `--label_names`.

    Raises:
        UserError: there is no output layer, or another number of names.
    """
    if "output_weights" not in tensors:
        raise UserError("lacks output_weights and output_bias, which a classifier or tagger has")
    count = len(np.atleast_1d(tensors["output_weights"]))
    if names and len(names) != count:
        raise UserError(f"--label_names gives {len(names)} names, and the checkpoint has {count} outputs")
    if len(set(names)) < len(names):
        raise UserError(f"--label_names names {shown(max(names, key=names.count))} twice")
    if not names and known is not None and len(known.id2label) == count:
        names = tuple(str(known.id2label[index]) for index in range(count))
    labels = dict(enumerate(names or (f"LABEL_{index}" for index in range(count))))
    return {"id2label": labels, "label2id": {label: index for index, label in labels.items()}}


def decide_case(folder: Path, called: str, said: bool | None, vocabulary: Mapping[str, int]) -> tuple[bool, str]:
    """Returns whether text is lower-cased, and why.

    Raises:
        UserError: the signs contradict each other, or there are none.
    """
    if said is not None:
        return said, f"--do_lower_case {str(said).lower()}"
    signs = {}
    path = folder / "tokenizer_config.json"
    content = read_json(path) if path.is_file() else {}
    if isinstance(content, dict) and isinstance(content.get("do_lower_case"), bool):
        signs[path.name] = content["do_lower_case"]
    if found := re.search(r"(?<![a-z])(un)?cased(?![a-z])", called.lower()):
        signs[f"the name {found[0]}"] = found[1] is not None
    words = [entry for entry in vocabulary if not re.fullmatch(r"\[.*\]", entry)]
    upper = [word for word in words if word != word.lower()]
    accented = [word for word in words if word != _without_accents(word)]
    if upper:
        signs[f"{len(upper):,} upper-case entries of {VOCABULARY}"] = False
    elif not accented and sum(word != word.upper() for word in words) > len(words) // 2:
        signs[f"{VOCABULARY} without upper case and accents"] = True
    if len(set(signs.values())) != 1:
        described = "; ".join(f"{sign}: {'uncased' if lower else 'cased'}" for sign, lower in signs.items())
        raise UserError(
            f"cased or uncased? {described or 'nothing in its files says'}; say it with --do_lower_case true or false"
        )
    return next(iter(signs.values())), ", ".join(signs)


def _without_accents(word: str) -> str:
    return "".join(c for c in unicodedata.normalize("NFD", word) if unicodedata.category(c) != "Mn")
