"""Configuration of the BERT of Devlin et al. (2019), and the form in which it is published.

The fields are those of transformers' `BertConfig`, with its names and defaults (BERT-BASE uncased), and some of our
own: `pool_token`, `sparse_prediction`, `qa_loss`, `null_score_diff_threshold`, `class_weights`, `label_smoothing`,
`label_thresholds`, and those of a BiLSTM and of Table 7's features. A published config.json names the model type
`bert`, so that transformers loads the folder without this code, and maps every Auto class to the code beside it, so
that `trust_remote_code=True` loads ours. This file and the modeling file are copied next to the weights: they import
installed libraries and each other only.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, cast

import transformers

OLDEST_TRANSFORMERS = (5, 4)  # tried: 5.0 to 5.3 refuse the class below, 4.x has other names
if tuple(int(part) for part in transformers.__version__.split(".")[:2]) < OLDEST_TRANSFORMERS:
    raise ImportError(
        f"The code in this folder needs transformers 5.4 or later, and this is {transformers.__version__}. Leave out "
        "trust_remote_code: the model loads without it, unless its model_type is bert_repro; or update transformers."
    )

from huggingface_hub.dataclasses import strict  # noqa: E402
from transformers import PreTrainedConfig  # noqa: E402

UPSTREAM_MODEL_TYPE = "bert"


class Head(NamedTuple):
    """One class of the model family.

    Attributes:
        ours: name of our class.
        upstream: name of its counterpart in transformers, with the same parameters.
        pooled: whether its logits depend on `pool_token`, which transformers' BERT does not know.
    """

    ours: str
    upstream: str
    pooled: bool


AUTO_CLASSES: dict[str, Head] = {
    "AutoModel": Head("BertReproModel", "BertModel", pooled=False),
    "AutoModelForPreTraining": Head("BertReproForPreTraining", "BertForPreTraining", pooled=True),
    "AutoModelForMaskedLM": Head("BertReproForMaskedLM", "BertForMaskedLM", pooled=False),
    "AutoModelForCausalLM": Head("BertReproForCausalLM", "BertLMHeadModel", pooled=False),
    "AutoModelForNextSentencePrediction": Head(
        "BertReproForNextSentencePrediction", "BertForNextSentencePrediction", pooled=True
    ),
    "AutoModelForSequenceClassification": Head(
        "BertReproForSequenceClassification", "BertForSequenceClassification", pooled=True
    ),
    "AutoModelForMultipleChoice": Head("BertReproForMultipleChoice", "BertForMultipleChoice", pooled=True),
    "AutoModelForTokenClassification": Head(
        "BertReproForTokenClassification", "BertForTokenClassification", pooled=False
    ),
    "AutoModelForQuestionAnswering": Head("BertReproForQuestionAnswering", "BertForQuestionAnswering", pooled=False),
}
"""Every Auto class of transformers that serves BERT, with its class of ours: the source of the registration and of the
published `auto_map`."""

_SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "type_vocab_size",
    "bilstm_layers",
)


@strict
class BertReproConfig(PreTrainedConfig):  # type: ignore[misc]
    """Architecture of a BERT model. The defaults are BERT-BASE uncased (paper, section 3).

        small = BertReproConfig(num_hidden_layers=4, hidden_size=256, num_attention_heads=4, intermediate_size=1024)

    Args:
        vocab_size: number of WordPiece tokens, V. 30,522 in the original uncased vocabulary.
        hidden_size: width of the hidden states, H.
        num_hidden_layers: number of Transformer layers, L.
        num_attention_heads: number of self-attention heads, A. Must divide `hidden_size`.
        intermediate_size: width of the feed-forward layer, 4H in the paper.
        hidden_act: activation of the feed-forward layer and the prediction head. `gelu` is the exact (erf) form of the
            original implementation of 2018, `gelu_new` the tanh form that it computes since February 2019.
        hidden_dropout_prob: dropout probability on embeddings and on the output of every sublayer.
        attention_probs_dropout_prob: dropout probability on attention probabilities.
        max_position_embeddings: longest sequence in tokens.
        type_vocab_size: number of segments.
        initializer_range: standard deviation of the normal distribution that weights are drawn from, truncated at two
            standard deviations (original implementation).
        layer_norm_eps: epsilon of every LayerNorm (original implementation).
        pad_token_id: id of the padding token, whose embedding gets no gradient from the input.
        use_cache: kept for transformers' BERT; generation here reads the complete sequence at every step.
        classifier_dropout: dropout probability before a classification layer. `None` takes `hidden_dropout_prob`.
        is_decoder: causal attention, for the left-to-right model of Table 5.
        add_cross_attention: kept for transformers' BERT; only `False` is accepted.
        bos_token_id: id of the token that starts a generated sequence.
        eos_token_id: id, or ids, of the token that ends a generated sequence.
        tie_word_embeddings: whether the prediction head decodes with the word embedding matrix.
        pool_token: token that sequence heads read, `first` ([CLS]) or `last` (the last token that is not padding).
            Always `last` when `is_decoder`: under causal attention [CLS] sees nothing but itself. Our choice; the paper
            does not say what its left-to-right model classifies from.
        sparse_prediction: whether masked-language heads that are given labels decode labelled positions only. `None` is
            the default of the class: yes in `BertReproForPreTraining`, no in `BertReproForMaskedLM`.
        qa_loss: `mean` (original implementation) or `sum` (the paper's words) of the two losses of question answering.
        null_score_diff_threshold: a model fine-tuned on SQuAD v2.0 answers unless its null score exceeds that of the
            best answer by more than this. `None`: not tuned.
        class_weights: weight of each label in the loss of a sequence classifier with one label per text; the loss is
            the weighted mean. `None`: all equal.
        label_smoothing: share of that loss's target that is spread evenly over all labels.
        label_thresholds: probability that each label of a classifier with several labels per text must reach, chosen
            on labelled data. `None`: not chosen, 0.5.
        bilstm_size: size per direction of a bidirectional LSTM between the encoder and the layer of a classification,
            choice, tagging or question-answering head (Table 5's "+ BiLSTM", and the feature-based approach). `None`:
            there is none.
        bilstm_layers: layers of that LSTM.
        token_features: what of a frozen encoder the tagging head reads, in the rows of Table 7: `embeddings`,
            `second_to_last`, `last`, `weighted_last_four`, `concat_last_four` or `weighted_all` (not the embeddings).
            `None` is the last hidden state, the fine-tuning approach.
        kwargs: fields of `PreTrainedConfig`.

    What no model can have, such as a `hidden_size` that is no multiple of `num_attention_heads`, is refused when a
    model is built; see `check`.
    """

    model_type = "bert_repro"
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["mlm_loss", "nsp_loss"]

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float | int = 0.1
    attention_probs_dropout_prob: float | int = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    pad_token_id: int | None = 0
    use_cache: bool = True
    classifier_dropout: float | int | None = None
    is_decoder: bool = False
    add_cross_attention: bool = False
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    tie_word_embeddings: bool = True
    pool_token: Literal["first", "last"] = "first"
    sparse_prediction: bool | None = None
    qa_loss: Literal["mean", "sum"] = "mean"
    null_score_diff_threshold: float | int | None = None
    class_weights: list[float] | None = None
    label_smoothing: float | int = 0.0
    label_thresholds: list[float] | None = None
    bilstm_size: int | None = None
    bilstm_layers: int = 1
    token_features: (
        Literal["embeddings", "second_to_last", "last", "weighted_last_four", "concat_last_four", "weighted_all"] | None
    ) = None

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        # Fields of transformers' class: names by index, and the reverse.
        id2label = cast(dict[int, str] | None, self.id2label)
        label2id = getattr(self, "label2id", None)
        if id2label is not None and label2id is None:
            self.label2id = {name: index for index, name in id2label.items()}
        if self.is_decoder:
            self.pool_token = "last"

    def check(self) -> None:
        """Checks that a model can have these fields together, and makes a causal model pool its last token.

        Models call it when they are built. A configuration alone may pass through impossible states while its fields
        are set one by one.

        Raises:
            ValueError: a value is out of range, or two values do not go together.
        """
        self._check_sizes()
        self._check_numbers()
        if self.add_cross_attention or self.is_encoder_decoder:
            raise ValueError("BERT has no cross-attention: add_cross_attention and is_encoder_decoder must be False")
        if self.is_decoder:
            self.pool_token = "last"

    def _check_sizes(self) -> None:
        """Checks the sizes of the model's parts."""
        for name in _SIZES:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size must be a multiple of num_attention_heads, got {self.hidden_size} and "
                f"{self.num_attention_heads}"
            )
        if self.bilstm_size is not None and self.bilstm_size < 1:
            raise ValueError(f"bilstm_size must be at least 1, or None for no BiLSTM, got {self.bilstm_size}")
        reads_last_four = self.token_features is not None and self.token_features.endswith("four")
        if reads_last_four and self.num_hidden_layers < 4:
            raise ValueError(f"token_features {self.token_features} needs 4 layers, got {self.num_hidden_layers}")

    def _check_numbers(self) -> None:
        """Checks probabilities, other numbers and the id of the padding token."""
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"):
            probability = getattr(self, name)
            if probability is not None and not 0 <= probability < 1:
                raise ValueError(f"{name} must be in [0, 1), got {probability}")
        for name in ("initializer_range", "layer_norm_eps"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be a finite number of at least 0, got {getattr(self, name)}")
        if self.pad_token_id is not None and not 0 <= self.pad_token_id < self.vocab_size:
            raise ValueError(f"pad_token_id must be in [0, vocab_size = {self.vocab_size}), got {self.pad_token_id}")

    @classmethod
    def get_config_dict(
        cls, pretrained_model_name_or_path: str | os.PathLike[str], **kwargs: Any
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Reads a config.json of transformers' BERT, or a published one, as one of ours.

        Args:
            pretrained_model_name_or_path: folder, file or Hub id.
            kwargs: options of transformers' loader.

        Returns:
            The fields, and the options that were not used.
        """
        config, unused = super().get_config_dict(pretrained_model_name_or_path, **kwargs)
        return cls._from_published(config), unused

    @classmethod
    def from_json_file(cls, json_file: str | os.PathLike[str]) -> "BertReproConfig":
        """Reads the file that `to_json_file` writes, or one of transformers' BERT.

        Args:
            json_file: path of the file.
        """
        return cls(**cls._from_published(json.loads(Path(json_file).read_text(encoding="utf-8"))))

    @classmethod
    def _from_published(cls, config: dict[str, Any]) -> dict[str, Any]:
        """Returns the fields of a published configuration with the names of this class, without those of "
        "`published`."""
        if config.get("model_type") == UPSTREAM_MODEL_TYPE:
            config["model_type"] = cls.model_type
            ours = {head.upstream: head.ours for head in AUTO_CLASSES.values()}
            config["architectures"] = [ours.get(name, name) for name in config.get("architectures") or []] or None
        # Labels that are numbers in the file, such as the stars of a review, are texts here.
        if isinstance(config.get("id2label"), dict):
            config["id2label"] = {index: str(name) for index, name in config["id2label"].items()}
        # When this file was loaded as remote code, transformers finds our models through `auto_map`.
        is_remote_code = cls.__module__.startswith("transformers_modules.")
        if not is_remote_code:
            config.pop("auto_map", None)
        return config

    def has_upstream_counterpart(self, heads: list[Head]) -> bool:
        """Returns whether transformers' BERT computes the same as our classes under this configuration.

        Args:
            heads: the classes that the weights are for; empty if none is known.
        """
        if self.bilstm_size is not None or self.token_features is not None:
            return False
        if self.pool_token == "first":
            return True
        # Heads that do not pool compute the same whichever token would be pooled.
        return bool(heads) and not any(head.pooled for head in heads)

    def published(self, use_diff: bool = True) -> dict[str, Any]:
        """Returns the content of config.json, in the form that transformers' BERT reads if its outputs would be equal.

        A sequence head that pools its last token, and any head behind a BiLSTM or on chosen layers, has no counterpart
        in transformers. It keeps our model type, so that the Auto classes refuse it without this code instead of
        computing something else.

        Args:
            use_diff: leave out the values that equal transformers' defaults.

        Returns:
            The fields, ready for JSON.
        """
        config: dict[str, Any] = json.loads(self.to_json_string(use_diff))
        names = self.architectures or []
        heads = [head for head in AUTO_CLASSES.values() if head.ours in names or head.upstream in names]
        if self.has_upstream_counterpart(heads):
            config["model_type"] = UPSTREAM_MODEL_TYPE
            renamed = {head.ours: head.upstream for head in heads}
        else:
            renamed = {head.upstream: head.ours for head in heads}
        config["architectures"] = [renamed.get(name, name) for name in names] or None
        # Inference servers need the names of labels, also if they are the default ones.
        if any(name.endswith("Classification") for name in names):
            config.setdefault("id2label", {str(index): name for index, name in self.id2label.items()})
            config.setdefault("label2id", {name: index for index, name in self.id2label.items()})
        config["auto_map"] = {
            "AutoConfig": f"configuration_bert_repro.{BertReproConfig.__name__}",
            **{auto_class: f"modeling_bert_repro.{head.ours}" for auto_class, head in AUTO_CLASSES.items()},
        }
        return config

    def to_json_file(self, json_file_path: str | os.PathLike[str], use_diff: bool = True) -> None:
        """Writes the published form.

        Args:
            json_file_path: path of the file.
            use_diff: leave out the values that equal transformers' defaults.
        """
        text = json.dumps(self.published(use_diff), indent=2, sort_keys=True) + "\n"
        Path(json_file_path).write_text(text, encoding="utf-8")

    def save_pretrained(self, save_directory: str | os.PathLike[str], push_to_hub: bool = False, **kwargs: Any) -> None:
        """Writes config.json in its published form, and next to it the code that it refers to.

        Every `save_pretrained` of a model calls this, that of transformers' Trainer too, so every saved folder can be
        published as it is.

        Args:
            save_directory: the folder; created if it does not exist.
            push_to_hub: upload the folder afterwards.
            kwargs: options of the upload.
        """
        target = Path(save_directory)
        target.mkdir(parents=True, exist_ok=True)
        source = Path(__file__).resolve().parent
        for name in ("configuration_bert_repro.py", "modeling_bert_repro.py"):
            # If this file was loaded as remote code through AutoConfig alone, the modeling file was never fetched.
            if (source / name).exists() and source != target.resolve():
                shutil.copyfile(source / name, target / name)
        super().save_pretrained(save_directory, push_to_hub=push_to_hub, **kwargs)


__all__ = ["AUTO_CLASSES", "BertReproConfig", "Head"]
