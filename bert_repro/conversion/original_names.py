"""Names, shapes and settings of the original implementation's checkpoints, and their counterparts here.

A dense layer's `kernel` (in, out) is our `weight` (out, in), transposed; `gamma` and `beta` are a LayerNorm's `weight`
and `bias`. Heads have the names that run_pretraining.py, run_classifier.py and run_squad.py gave them.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bert_repro.configs.base import require
from bert_repro.errors import UserError
from bert_repro.models.configuration_bert_repro import AUTO_CLASSES, BertReproConfig
from bert_repro.utils.readers import listed

Array = npt.NDArray[Any]

WORDS = "bert/embeddings/word_embeddings"
HEAD_NAMES: Mapping[str, str] = {
    "encoder": "AutoModel",
    "pretraining": "AutoModelForPreTraining",
    "masked_lm": "AutoModelForMaskedLM",
    "next_sentence": "AutoModelForNextSentencePrediction",
    "classification": "AutoModelForSequenceClassification",
    "tagging": "AutoModelForTokenClassification",
    "multiple_choice": "AutoModelForMultipleChoice",
    "question_answering": "AutoModelForQuestionAnswering",
}
"""What `--head` takes -> the class of transformers."""
NOT_TRAINED = re.compile(
    r"(.*/)?(adam_[mv]|Adam(_1)?|LAMB(_1)?|AdamWeightDecayOptimizer(_1)?|Momentum|ExponentialMovingAverage)"
    r"|(.*/)?(global_step|beta[12]_power|good_steps|bad_steps|loss_scale|current_loss_scale)|(loss_scale|optimizer)/.*"
)
"""What training left in addition to the weights: slots of the optimizer, counters, the loss scale."""
_SPECIAL = {
    "cls.predictions.bias": "cls/predictions/output_bias",
    "cls.seq_relationship.weight": "cls/seq_relationship/output_weights",
    "cls.seq_relationship.bias": "cls/seq_relationship/output_bias",
    "classifier.weight": "output_weights",
    "classifier.bias": "output_bias",
    "qa_outputs.weight": "cls/squad/output_weights",
    "qa_outputs.bias": "cls/squad/output_bias",
}
TIED = ("cls.predictions.decoder.weight", "cls.predictions.decoder.bias")
SETTINGS = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
    "max_position_embeddings", "type_vocab_size", "hidden_dropout_prob", "attention_probs_dropout_prob",
    "initializer_range",
)  # fmt: skip
"""Settings that bert_config.json and config.json call alike, all but the activation."""
_OPTIONAL = ("hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range")
GELU = {"erf": "gelu", "tanh": "gelu_new"}
"""How the original implementation computed gelu in 2018, and since February 2019 -> transformers' names."""


@dataclass(frozen=True)
class TensorPair:
    """A tensor under both names.

    Args:
        name: ours, as in transformers.
        original: the original implementation's.
        transposed: whether their axes are swapped.
    """

    name: str
    original: str
    transposed: bool

    def as_original(self, array: Array) -> Array:
        """Returns our array, or any with our axes, with the axes of the original, and the other way round."""
        return array.T if self.transposed else array


def pair_of(name: str) -> TensorPair:
    """Returns both names of a weight of one of our models that has a head, or of `BertReproModel` below `bert.`."""
    if name in _SPECIAL:
        return TensorPair(name, _SPECIAL[name], False)
    *modules, kind = re.sub(r"\.layer\.(\d+)\.", r".layer_\1.", name).split(".")
    if modules[-1] == "LayerNorm":
        return TensorPair(name, "/".join([*modules, {"weight": "gamma", "bias": "beta"}[kind]]), False)
    if modules[-1].endswith("embeddings"):
        return TensorPair(name, "/".join(modules), False)
    return TensorPair(name, "/".join([*modules, {"weight": "kernel", "bias": "bias"}[kind]]), kind == "weight")


def model_pairs(auto_class: str, config: BertReproConfig) -> dict[str, tuple[TensorPair, tuple[int, ...]]]:
    """Returns what a model of ours holds: original name -> both names, and our shape.

    Args:
        auto_class: a key of `AUTO_CLASSES`.
        config: the model's.
    """
    import torch

    from bert_repro.models import modeling_bert_repro

    with torch.device("meta"):
        model = getattr(modeling_bert_repro, AUTO_CLASSES[auto_class].ours)(config)
    prefix = "bert." if auto_class == "AutoModel" else ""
    shapes = {prefix + name: tuple(weight.shape) for name, weight in model.named_parameters() if name not in TIED}
    return {(pair := pair_of(name)).original: (pair, shape) for name, shape in shapes.items()}


def require_bert(names: Iterable[str]) -> None:
    """Refuses a checkpoint that is not one of the original BERT's.

    Raises:
        UserError: it lacks the word embeddings under their name.
    """
    require(WORDS in names, f"holds no {WORDS}; name a checkpoint of the original BERT, written by tf.train.Saver")


def head_of(names: Iterable[str]) -> str:
    """Returns the head that a checkpoint's tensors belong to, a key of `HEAD_NAMES`.

    Raises:
        UserError: it holds several.
    """
    found = set(names)
    parts = {
        "question_answering": any(name.startswith("cls/squad/") for name in found),
        "classification": "output_weights" in found,
        "masked_lm": any(name.startswith("cls/predictions/") for name in found),
        "next_sentence": any(name.startswith("cls/seq_relationship/") for name in found),
    }
    heads = [head for head, present in parts.items() if present]
    if heads == ["masked_lm", "next_sentence"]:
        return "pretraining"
    require(len(heads) <= 1, f"holds the heads {listed(heads)}; say which with --head")
    return heads[0] if heads else "encoder"


def canonical_torch_names(tensors: Mapping[str, Array]) -> dict[str, Array]:
    """Returns the weights of a pytorch_model.bin under today's names: with `bert.`, without what is tied or computed.

    Raises:
        UserError: its output layer is not the word embeddings.
    """
    renamed: dict[str, Array] = {}
    for name, array in tensors.items():
        plain = name.removeprefix("module.")
        plain = plain.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
        if plain.split(".")[0] in ("embeddings", "encoder", "pooler"):
            plain = f"bert.{plain}"
        if not plain.endswith((".position_ids", ".token_type_ids")):
            renamed[plain] = array
    for tied, source in zip(TIED, ("bert.embeddings.word_embeddings.weight", "cls.predictions.bias"), strict=True):
        if tied in renamed and not np.array_equal(renamed.pop(tied), renamed.setdefault(source, array[:0])):
            raise UserError(f"{tied} is not {source}; a BERT decodes with its word embeddings")
    return renamed


def read_settings(content: Any, file: str) -> tuple[dict[str, Any], str | None]:
    """Returns the settings of a bert_config.json without its activation, and that activation.

    Raises:
        UserError: it is no object, or lacks a setting.
    """
    missing = [name for name in (*SETTINGS, "hidden_act") if name not in content and name not in _OPTIONAL]
    require(not missing, f"{file} lacks {listed(missing)}")
    return {name: content[name] for name in SETTINGS if name in content}, content["hidden_act"]
