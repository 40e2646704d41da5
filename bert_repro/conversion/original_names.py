"""Names, shapes and settings of the original implementation's checkpoints, and their counterparts here.

The `kernel` (in, out) of a dense layer is our `weight` (out, in), transposed. `gamma` and `beta` are the weight and the
bias of a LayerNorm. Heads have the names that run_pretraining.py, run_classifier.py and run_squad.py gave them.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bert_repro.errors import UserError, flag
from bert_repro.models.configuration_bert_repro import AUTO_CLASSES, BertReproConfig
from bert_repro.utils.readers import comma_separated, quoted

Array = npt.NDArray[np.generic]

WORD_EMBEDDINGS = "bert/embeddings/word_embeddings"
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
"""Value of `--head` -> the class of transformers."""
NOT_TRAINED = re.compile(
    r"(.*/)?(adam_[mv]|Adam(_1)?|LAMB(_1)?|AdamWeightDecayOptimizer(_1)?|Momentum|ExponentialMovingAverage)"
    r"|(.*/)?(global_step|beta[12]_power|good_steps|bad_steps|loss_scale|current_loss_scale)|(loss_scale|optimizer)/.*"
)
"""Tensors that training leaves in a checkpoint besides the weights: optimizer slots, counters, the loss scale."""
TIED = ("cls.predictions.decoder.weight", "cls.predictions.decoder.bias")
"""Weights that are the same tensor as another one, and therefore not in the original checkpoints."""
_TIED_TO = ("bert.embeddings.word_embeddings.weight", "cls.predictions.bias")
SETTINGS = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
    "max_position_embeddings", "type_vocab_size", "hidden_dropout_prob", "attention_probs_dropout_prob",
    "initializer_range",
)  # fmt: skip
"""Settings with the same name in bert_config.json and config.json; only the activation differs."""
GELU = {"erf": "gelu", "tanh": "gelu_new"}
"""How the original implementation computed gelu in 2018, and since February 2019 -> transformers' names."""

# These may be missing; all other settings are sizes.
_PROBABILITIES = ("hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range")
_LARGEST_SIZE = 1 << 31
_MOST_LAYERS = 1000

# Weights of heads, whose names follow no rule.
_HEAD_WEIGHTS = {
    "cls.predictions.bias": "cls/predictions/output_bias",
    "cls.seq_relationship.weight": "cls/seq_relationship/output_weights",
    "cls.seq_relationship.bias": "cls/seq_relationship/output_bias",
    "classifier.weight": "output_weights",
    "classifier.bias": "output_bias",
    "qa_outputs.weight": "cls/squad/output_weights",
    "qa_outputs.bias": "cls/squad/output_bias",
}


# --- Names of tensors -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TensorPair:
    """A tensor under both names.

    Args:
        name: ours, as in transformers.
        original: that of the original implementation.
        transposed: whether their axes are swapped.
    """

    name: str
    original: str
    transposed: bool

    def as_original(self, array: Array) -> Array:
        """Returns an array that has our axes with the original axes, and the other way round."""
        return array.T if self.transposed else array


def pair_of(name: str) -> TensorPair:
    """Returns both names of a weight.

    Args:
        name: of a weight of one of our models with a head. Those of `BertReproModel` begin with `bert.` there.

    Raises:
        KeyError, IndexError: it is not the name of such a weight.
    """
    # Layers are numbered with a dot here and with an underscore there; kinds of weights have other names.
    if name in _HEAD_WEIGHTS:
        return TensorPair(name, _HEAD_WEIGHTS[name], transposed=False)
    *modules, kind = re.sub(r"\.layer\.(\d+)\.", r".layer_\1.", name).split(".")
    prefix = "/".join(modules)
    if modules[-1] == "LayerNorm":
        original_kind = {"weight": "gamma", "bias": "beta"}[kind]
        return TensorPair(name, f"{prefix}/{original_kind}", transposed=False)
    if modules[-1].endswith("embeddings"):
        return TensorPair(name, prefix, transposed=False)
    original_kind = {"weight": "kernel", "bias": "bias"}[kind]
    return TensorPair(name, f"{prefix}/{original_kind}", transposed=kind == "weight")


@dataclass(frozen=True)
class ModelTensor:
    """A weight that a model needs: both names, and its shape in our model."""

    pair: TensorPair
    shape: tuple[int, ...]

    @property
    def original_shape(self) -> tuple[int, ...]:
        """Its shape in the original implementation."""
        return self.shape[::-1] if self.pair.transposed else self.shape


def model_tensors(auto_class: str, config: BertReproConfig) -> dict[str, ModelTensor]:
    """Returns the weights of one of our models, by original name.

    Args:
        auto_class: a key of `AUTO_CLASSES`.
        config: configuration of the model.
    """
    import torch

    from bert_repro.models import modeling_bert_repro

    # On the meta device a model has names and shapes, but needs no memory.
    with torch.device("meta"):
        model = getattr(modeling_bert_repro, AUTO_CLASSES[auto_class].ours)(config)
    prefix = "bert." if auto_class == "AutoModel" else ""
    tensors = {}
    for name, weight in model.named_parameters():
        if name not in TIED:
            pair = pair_of(prefix + name)
            tensors[pair.original] = ModelTensor(pair, tuple(weight.shape))
    return tensors


def canonical_torch_names(tensors: Mapping[str, Array]) -> dict[str, Array]:
    """Returns the weights of a pytorch_model.bin under today's names, without those that are tied or computed.

    Raises:
        UserError: its output layer is not the word embeddings.
    """
    renamed: dict[str, Array] = {}
    for name, array in tensors.items():
        # Old versions wrapped the model in DataParallel and named LayerNorm's weights as TensorFlow did.
        plain_name = name.removeprefix("module.")
        plain_name = plain_name.replace("LayerNorm.gamma", "LayerNorm.weight")
        plain_name = plain_name.replace("LayerNorm.beta", "LayerNorm.bias")
        if plain_name.split(".")[0] in ("embeddings", "encoder", "pooler"):
            plain_name = f"bert.{plain_name}"
        if not plain_name.endswith((".position_ids", ".token_type_ids")):
            renamed[plain_name] = array

    # Files of PyTorch contain tied weights twice. If the two differ, the model is not a BERT.
    for tied, source in zip(TIED, _TIED_TO, strict=True):
        if tied not in renamed:
            continue
        tied_array = renamed.pop(tied)
        if source not in renamed or not np.array_equal(tied_array, renamed[source]):
            raise UserError(f"{tied} is not equal to {source}; a BERT decodes with its word embeddings.")
    return renamed


# --- What a checkpoint contains ---------------------------------------------------------------------------------------


def require_bert(names: Iterable[str]) -> None:
    """Refuses a checkpoint that is not one of the original BERT's.

    Raises:
        UserError: it has no word embeddings under their name.
    """
    if WORD_EMBEDDINGS not in names:
        raise UserError(
            f"contains no {WORD_EMBEDDINGS}. Pass a checkpoint of the original BERT, written by tf.train.Saver."
        )


def head_of(names: Iterable[str]) -> str:
    """Returns the head that a checkpoint's tensors belong to, a key of `HEAD_NAMES`.

    Raises:
        UserError: it contains several heads.
    """
    all_names = set(names)
    is_present = {
        "question_answering": any(name.startswith("cls/squad/") for name in all_names),
        "classification": "output_weights" in all_names,
        "masked_lm": any(name.startswith("cls/predictions/") for name in all_names),
        "next_sentence": any(name.startswith("cls/seq_relationship/") for name in all_names),
    }
    heads = [head for head, present in is_present.items() if present]
    # Both pre-training heads together are one head here.
    if heads == ["masked_lm", "next_sentence"]:
        return "pretraining"
    if len(heads) > 1:
        raise UserError(f"contains the heads {comma_separated(heads)}. Name the one to convert with {flag('head')}.")
    return heads[0] if heads else "encoder"


def read_settings(content: Any, file: str) -> tuple[dict[str, Any], str | None]:
    """Returns the settings in a bert_config.json without its activation, and the activation.

    Args:
        content: the content of the file, which may be anything.
        file: its name, for messages.

    Raises:
        UserError: it is not an object, lacks a setting, or a setting is not a possible size or probability.
    """
    if not isinstance(content, dict):
        raise UserError(f"{file} contains {quoted(content)}, not a JSON object.")
    required = [name for name in (*SETTINGS, "hidden_act") if name not in _PROBABILITIES]
    missing = [name for name in required if name not in content]
    if missing:
        raise UserError(f"{file} lacks {comma_separated(missing)}.")
    # The file comes from elsewhere, and a model of the named sizes is about to be made.
    settings = {name: content[name] for name in SETTINGS if name in content}
    for name, value in settings.items():
        _require_possible(name, value, file)
    activation = content["hidden_act"]
    if activation is not None and not isinstance(activation, str):
        raise UserError(f"{file}: hidden_act is {quoted(activation)}, not a name.")
    return settings, activation


def _require_possible(name: str, value: object, file: str) -> None:
    """Refuses a setting that no model has, before a model of that size is made."""
    if name in _PROBABILITIES:
        is_possible = isinstance(value, int | float) and 0 <= value <= 1
    else:
        limit = _MOST_LAYERS if name == "num_hidden_layers" else _LARGEST_SIZE
        is_possible = isinstance(value, int) and not isinstance(value, bool) and 0 < value <= limit
    if not is_possible:
        raise UserError(f"{file}: {name} is {quoted(value)}, which is not possible for a BERT.")
