"""The model that pre-training starts from: a new one, or a checkpoint, which may get new words."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from bert_repro.configs import PretrainingConfig
from bert_repro.errors import UserError, flag
from bert_repro.models.configuration_bert_repro import BertReproConfig
from bert_repro.models.loading import load_tokenizer, require_vocabulary, tokenizer_fingerprint
from bert_repro.pretraining.objectives import objective_of
from bert_repro.training import run
from bert_repro.utils.randomness import Stream, torch_seed
from bert_repro.utils.readers import first_line

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

logger = logging.getLogger("bert_repro")

_SHAPE = ("num_hidden_layers", "hidden_size", "num_attention_heads", "hidden_act")
_DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob")


def build_model(config: PretrainingConfig, tokenizer: "PreTrainedTokenizerFast") -> Any:
    """Returns a new model of the configured size, or the checkpoint to continue from, with its pre-training heads.

    Args:
        config: the run's settings.
        tokenizer: tokenizer of the corpus.

    Raises:
        UserError: the checkpoint's vocabulary is not that of the corpus, or its shape is not the configured one.
    """
    model = _load(config, tokenizer) if config.model_name_or_path else _new_model(config, tokenizer)
    objective_of(config).freeze_unused(model)
    return model


def _load(config: PretrainingConfig, tokenizer: "PreTrainedTokenizerFast") -> Any:
    """Loads the checkpoint to continue from, and adds the words that the corpus's tokenizer has more."""
    name = str(config.model_name_or_path)
    model_class = objective_of(config).model_class
    model = run.load_model(model_class, config, may_add_weights=True, **_dropouts(config))

    # The checkpoint decides the shape. A setting that says otherwise is a mistake, unless it is the default.
    for setting in _SHAPE:
        value, value_of_checkpoint = getattr(config, setting), getattr(model.config, setting)
        if value not in (value_of_checkpoint, getattr(PretrainingConfig, setting)):
            raise UserError(
                f"{flag(setting, value)} does not fit {name}, which has {value_of_checkpoint}. Leave it out, or train "
                f"from scratch without {flag('model_name_or_path')}.",
                setting=setting,
            )

    num_new_words = extend_words(model, config, tokenizer)
    if num_new_words:
        logger.info("%d new words start with the mean of the embeddings of their pieces.", num_new_words)
    else:
        _check_vocabulary(name, model, tokenizer)
    return model


def _new_model(config: PretrainingConfig, tokenizer: "PreTrainedTokenizerFast") -> Any:
    """Initializes a model, the same one for the same seed."""
    torch.manual_seed(torch_seed(config.seed, Stream.INITIALIZATION))
    model_config = new_model_config(config, len(tokenizer), tokenizer.pad_token_id)
    try:
        model = objective_of(config).model_class(model_config)
    except (ImportError, ValueError) as error:
        # The other settings were checked before, so this is about the attention function.
        raise UserError(
            f"{flag('attn_implementation', config.attn_implementation)} cannot be used: {first_line(error)}",
            setting="attn_implementation",
        ) from error
    return run.prepare_model(model, config)


def new_model_config(config: PretrainingConfig, vocab_size: int, pad_token_id: int = 0) -> BertReproConfig:
    """Returns the configuration of a model trained from scratch."""
    shape = {name: getattr(config, name) for name in _SHAPE}
    return BertReproConfig(
        vocab_size=vocab_size,
        intermediate_size=4 * config.hidden_size,
        max_position_embeddings=config.max_position_embeddings,
        initializer_range=config.initializer_range,
        pad_token_id=pad_token_id,
        is_decoder=objective_of(config).is_causal,
        attn_implementation=config.attn_implementation,
        **shape,
        **_dropouts(config),
    )


def _dropouts(config: PretrainingConfig) -> dict[str, Any]:
    """Returns the dropout probabilities that are set; the others are the checkpoint's or the default."""
    dropouts: dict[str, float] = {}
    for name in _DROPOUTS:
        probability = getattr(config, name)
        if probability is not None:
            dropouts[name] = probability
    return dropouts


def _check_vocabulary(name: str, model: Any, tokenizer: "PreTrainedTokenizerFast") -> None:
    """Raises `UserError` if the checkpoint's tokenizer is not the one of the corpus."""
    require_vocabulary(name, model, tokenizer)
    if not (Path(name) / "tokenizer.json").exists():
        return
    if tokenizer_fingerprint(load_tokenizer(name)) != tokenizer_fingerprint(tokenizer):
        raise UserError(
            f"The tokenizer of {flag('model_name_or_path', name)} is not the one that the corpus was prepared with. "
            f"Prepare the corpus again with {flag('tokenizer', name)}.",
            setting="model_name_or_path",
        )


def extend_words(model: Any, config: PretrainingConfig, tokenizer: "PreTrainedTokenizerFast") -> int:
    """Adds rows for the words that a tokenizer has more than the checkpoint.

    A new word's embedding is the mean of the embeddings of the pieces that it was split into before, and its MLM bias
    the mean of their biases.

    Args:
        model: a model with prediction head, loaded from `config.model_name_or_path`.
        config: the run's settings.
        tokenizer: tokenizer of the corpus; its first entries are the checkpoint's vocabulary (`train_tokenizer
            --extend`).

    Returns:
        The number of new words.

    Raises:
        UserError: the vocabularies differ in more than words at the end.
    """
    name, size = str(config.model_name_or_path), model.config.vocab_size
    if len(tokenizer) <= size:
        return 0

    # All ids of the checkpoint must mean the same words.
    checkpoint_tokenizer = load_tokenizer(name)
    vocabulary = tokenizer.get_vocab()
    checkpoint_vocabulary = checkpoint_tokenizer.get_vocab()
    has_moved = any(vocabulary.get(word) != number for word, number in checkpoint_vocabulary.items())
    if has_moved or len(checkpoint_vocabulary) != size:
        raise UserError(
            f"The corpus has {len(tokenizer)} words and {flag('model_name_or_path', name)} has {size}, but the first "
            f"{size} differ. Extend its vocabulary with train_tokenizer {flag('extend', name)}.",
            setting="model_name_or_path",
        )

    new_words = sorted((number, word) for word, number in vocabulary.items() if number >= size)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    embeddings = model.get_input_embeddings().weight
    bias = model.get_output_embeddings().bias
    with torch.no_grad():
        for number, word in new_words:
            pieces = checkpoint_tokenizer(word, add_special_tokens=False)["input_ids"]
            embeddings[number] = embeddings[pieces].mean(0)
            bias[number] = bias[pieces].mean()
    return len(new_words)
