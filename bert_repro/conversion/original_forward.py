"""The original implementation's forward pass in numpy, float64, on tensors under their original names.

It shares nothing with our models but the formulas of the paper (section 3, A.2) and the original modeling.py, so what a
conversion computes can be compared with what the checkpoint itself means.

Shape legend: `B` sequences, `S` tokens, `H` hidden size, `A` heads, `V` vocabulary.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from bert_repro.models.configuration_bert_repro import BertReproConfig

Array = npt.NDArray[Any]

_HIDDEN_FROM_ATTENTION = -10_000.0


def original_outputs(
    tensors: Mapping[str, Array], config: BertReproConfig, head: str, inputs: Mapping[str, Array]
) -> dict[str, Array]:
    """Computes what a checkpoint gives for some sequences, without dropout.

    Args:
        tensors: by original name, with the original axes.
        config: sizes and activation.
        head: a key of `original_names.HEAD_NAMES`.
        inputs: `input_ids`, `attention_mask`, `token_type_ids`, [B, S] each.

    Returns:
        Float64, by the names of our models' outputs: [B, S, H], [B, H], [B, S, V] ...
    """
    model = _Model(tensors, config)
    hidden = model.encoder(inputs)
    outputs: dict[str, Array] = {}
    if head == "encoder":
        return {"last_hidden_state": hidden, "pooler_output": model.pooled(hidden)}
    if head in ("pretraining", "masked_lm"):
        outputs["prediction_logits" if head == "pretraining" else "logits"] = model.word_logits(hidden)
    if head in ("pretraining", "next_sentence"):
        name = "seq_relationship_logits" if head == "pretraining" else "logits"
        outputs[name] = model.output(model.pooled(hidden), "cls/seq_relationship/")
    if head in ("classification", "multiple_choice"):
        outputs["logits"] = model.output(model.pooled(hidden), "")
    if head == "tagging":
        outputs["logits"] = model.output(hidden, "")
    if head == "question_answering":
        places = model.output(hidden, "cls/squad/")
        outputs |= {"start_logits": places[..., 0], "end_logits": places[..., 1]}
    return outputs


class _Model:
    def __init__(self, tensors: Mapping[str, Array], config: BertReproConfig) -> None:
        self._tensors, self._config = tensors, config
        self._activation = _activation(config.hidden_act)

    def _get(self, name: str) -> Array:
        return self._tensors[name].astype(np.float64)

    def _dense(self, x: Array, name: str) -> Array:
        return x @ self._get(f"{name}/kernel") + self._get(f"{name}/bias")

    def _layer_norm(self, x: Array, name: str) -> Array:
        centered = x - x.mean(-1, keepdims=True)
        deviation = np.sqrt((centered**2).mean(-1, keepdims=True) + self._config.layer_norm_eps)
        normal: Array = centered / deviation * self._get(f"{name}/gamma") + self._get(f"{name}/beta")
        return normal

    def encoder(self, inputs: Mapping[str, Array]) -> Array:
        """Returns the last hidden states, [B, S, H]."""
        ids = inputs["input_ids"]
        x = self._get("bert/embeddings/word_embeddings")[ids]
        x = x + self._get("bert/embeddings/token_type_embeddings")[inputs["token_type_ids"]]
        x = x + self._get("bert/embeddings/position_embeddings")[: ids.shape[1]]
        x = self._layer_norm(x, "bert/embeddings/LayerNorm")
        hidden_from = (1.0 - inputs["attention_mask"][:, None, None, :]) * _HIDDEN_FROM_ATTENTION
        for layer in range(self._config.num_hidden_layers):
            x = self._layer(x, hidden_from, f"bert/encoder/layer_{layer}")
        return x

    def _layer(self, x: Array, hidden_from: Array, name: str) -> Array:
        attended = self._dense(self._attention(x, hidden_from, name), f"{name}/attention/output/dense")
        x = self._layer_norm(attended + x, f"{name}/attention/output/LayerNorm")
        inner = self._activation(self._dense(x, f"{name}/intermediate/dense"))
        return self._layer_norm(self._dense(inner, f"{name}/output/dense") + x, f"{name}/output/LayerNorm")

    def _attention(self, x: Array, hidden_from: Array, name: str) -> Array:
        heads = self._config.num_attention_heads
        batch, length, width = x.shape
        query, key, value = (
            self._dense(x, f"{name}/attention/self/{part}")
            .reshape(batch, length, heads, width // heads)
            .transpose(0, 2, 1, 3)
            for part in ("query", "key", "value")
        )  # [B, A, S, H / A]
        scores = query @ key.swapaxes(-1, -2) / np.sqrt(width // heads) + hidden_from
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        attended: Array = (weights @ value).transpose(0, 2, 1, 3).reshape(batch, length, width)
        return attended

    def pooled(self, hidden: Array) -> Array:
        """Returns what sequence heads read, [B, H]."""
        pooled: Array = np.tanh(self._dense(hidden[:, 0], "bert/pooler/dense"))
        return pooled

    def word_logits(self, hidden: Array) -> Array:
        """Returns the prediction head's logits, [B, S, V]."""
        transformed = self._activation(self._dense(hidden, "cls/predictions/transform/dense"))
        transformed = self._layer_norm(transformed, "cls/predictions/transform/LayerNorm")
        words = self._get("bert/embeddings/word_embeddings")
        logits: Array = transformed @ words.T + self._get("cls/predictions/output_bias")
        return logits

    def output(self, x: Array, prefix: str) -> Array:
        """Returns the logits of an output layer whose weights are (outputs, H)."""
        logits: Array = x @ self._get(f"{prefix}output_weights").T + self._get(f"{prefix}output_bias")
        return logits


def _activation(name: str) -> Callable[[Array], Array]:
    from scipy.special import erf

    def gelu(x: Array) -> Array:
        return x * 0.5 * (1.0 + erf(x / np.sqrt(2.0)))  # type: ignore[no-any-return]

    def gelu_new(x: Array) -> Array:
        return x * 0.5 * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3)))  # type: ignore[no-any-return]

    known: dict[str, Callable[[Array], Array]]
    known = {"gelu": gelu, "gelu_new": gelu_new, "relu": lambda x: np.maximum(x, 0), "tanh": np.tanh}
    return known.get(name, lambda x: x)
