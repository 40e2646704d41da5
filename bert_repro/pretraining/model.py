"""The model that pre-training starts from: a new one, or a checkpoint, which may get longer inputs and new words.

Rows of its embeddings that a checkpoint never trained are computed. Longer inputs, by rotation: the trained position
embeddings lie near a curve in a few dimensions, so a rotation that takes each row to the next one continues them. The
number of dimensions that serves best differs between models, and the model itself says which: the masked accuracy of
sequences of the new length. Tiling repeats the trained rows.
"""

import logging
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from accelerate import Accelerator
from torch import nn

from bert_repro.configs import Phase, PretrainingConfig, require
from bert_repro.corpus.prepared_corpus import PreparedCorpus
from bert_repro.errors import UserError
from bert_repro.models.configuration_bert_repro import BertReproConfig
from bert_repro.models.loading import load_tokenizer, require_vocabulary, tokenizer_fingerprint
from bert_repro.models.modeling_bert_repro import BertReproForCausalLM, BertReproForPreTraining
from bert_repro.pretraining.evaluation import HeldOutEvaluation
from bert_repro.training import checkpoint, run
from bert_repro.utils.randomness import Stream, torch_seed
from bert_repro.utils.readers import first_line

logger = logging.getLogger("bert_repro")

DIMENSIONS = (8, 16, 24, 32, 48, 64, 96)
UNLIKE_OTHERS = 8  # first rows, which hold what is special about the beginning of a text
_SHAPE = ("num_hidden_layers", "hidden_size", "num_attention_heads", "hidden_act")
_SEQUENCES_TO_CHOOSE_BY, _DOCUMENTS_TO_CHOOSE_BY = 256, 2_000


def build_model(config: PretrainingConfig, tokenizer: Any) -> Any:
    """Returns a new model of the configured size, or the checkpoint to continue from, with its pre-training heads.

    Without NSP the pooler and the NSP head take no part in the loss and are frozen; a left-to-right model has neither.

    Raises:
        UserError: the checkpoint's vocabulary is not that of the corpus, or another shape was asked for.
    """
    model_class = BertReproForCausalLM if config.left_to_right else BertReproForPreTraining
    if name := config.model_name_or_path:
        model = run.load_model(model_class, config, may_add_weights=True, **_dropouts(config))
        for setting in _SHAPE:
            asked, has = getattr(config, setting), getattr(model.config, setting)
            require(
                asked in (has, getattr(PretrainingConfig, setting)),
                f"--{setting} is {asked}, but {name} has {has}; leave it out, or train from scratch",
            )
        if new_words := extend_words(model, config, tokenizer):
            logger.info("%d new words begin as the mean of their pieces", new_words)
        else:
            _check_vocabulary(name, model, tokenizer)
    else:
        torch.manual_seed(torch_seed(config.seed, Stream.INITIALIZATION))
        try:
            model = model_class(new_model_config(config, len(tokenizer), tokenizer.pad_token_id))
        except (ImportError, ValueError) as error:  # the other settings are checked before
            name = config.attn_implementation
            raise UserError(f"--attn_implementation {name}: {first_line(error)}") from error
        model = run.prepare_model(model, config)
    if not config.next_sentence_prediction and not config.left_to_right:
        model.bert.pooler.requires_grad_(False)
        model.cls.seq_relationship.requires_grad_(False)
    return model


def new_model_config(config: PretrainingConfig, vocab_size: int, pad_token_id: int = 0) -> BertReproConfig:
    """Returns the configuration of a model trained from scratch."""
    return BertReproConfig(
        vocab_size=vocab_size,
        intermediate_size=4 * config.hidden_size,
        max_position_embeddings=config.max_position_embeddings,
        initializer_range=config.initializer_range,
        pad_token_id=pad_token_id,
        is_decoder=config.left_to_right,
        attn_implementation=config.attn_implementation,
        **{name: getattr(config, name) for name in _SHAPE},
        **_dropouts(config),
    )


def _dropouts(config: PretrainingConfig) -> dict[str, float]:
    """Returns the dropout probabilities that were asked for."""
    names = ("hidden_dropout_prob", "attention_probs_dropout_prob")
    return {name: getattr(config, name) for name in names if getattr(config, name) is not None}


def _check_vocabulary(name: str, model: Any, tokenizer: Any) -> None:
    require_vocabulary(name, model, tokenizer)
    if (Path(name) / "tokenizer.json").exists():
        own = tokenizer_fingerprint(load_tokenizer(name))
        if own != tokenizer_fingerprint(tokenizer):
            raise UserError(
                f"--model_name_or_path {name}: its tokenizer is not the one the corpus was prepared with; prepare the "
                f"corpus again with --tokenizer {name}"
            )


# --- Longer inputs and new words --------------------------------------------------------------------------------------


def extend_and_measure(
    config: PretrainingConfig,
    accelerator: Accelerator,
    model: Any,
    corpus: PreparedCorpus,
    sides: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]],
    tokenizer: Any,
    trained: int,
    length: int,
) -> dict[str, Any]:
    """Extends the position embeddings; what is chosen is chosen on training text, and measured on held-out text.

    Args:
        config: the run's settings.
        accelerator: devices and precision.
        model: on its device.
        corpus: the prepared corpus.
        sides: ids of the documents to train on and of those held out.
        tokenizer: of the corpus.
        trained: tokens that the checkpoint reads.
        length: tokens that it is to read.

    Returns:
        What results.json says of it; nothing of a run that resumes.
    """
    if checkpoint.resumes(config):
        extend_positions(model, config.extend_positions, trained, length, None)
        return {}
    training, heldout = sides
    few = replace(config, max_eval_sequences=_SEQUENCES_TO_CHOOSE_BY)
    name = "lm_accuracy" if config.left_to_right else "mlm_accuracy"

    def accuracy(documents: npt.NDArray[np.int64], at: int) -> float:
        return HeldOutEvaluation(few, Phase(at, 1, 1), corpus, documents, tokenizer).measure(model, accelerator)[name]

    before = {at: accuracy(heldout, at) for at in (trained, length) if at <= model.config.max_position_embeddings}
    chosen_by = HeldOutEvaluation(few, Phase(length, 1, 1), corpus, training[:_DOCUMENTS_TO_CHOOSE_BY], tokenizer)
    done = extend_positions(
        model, config.extend_positions, trained, length, lambda: chosen_by.measure(model, accelerator)[name]
    )
    after = {at: accuracy(heldout, at) for at in (trained, length)}
    shares = ", ".join(f"{before.get(at, math.nan):.3f} -> {value:.3f} at {at} tokens" for at, value in after.items())
    logger.info("positions from %d on were not trained: %s; held-out accuracy %s", trained, done, shares)
    return {"extended_positions": {"from": trained, "to": length, "done": done, "before": before, "after": after}}


def extend_positions(model: Any, kind: str, trained: int, length: int, measure: Callable[[], float] | None) -> str:
    """Replaces the position embeddings from the trained ones on.

    Args:
        model: a model with `bert.embeddings`; its configuration follows.
        kind: `rotation` or `tile`.
        trained: rows that were trained, at least 16.
        length: tokens that the model is to read.
        measure: the model's masked accuracy at the new length, by which rotation chooses its dimensions; None takes the
            first choice, for a model whose weights are loaded afterwards.

    Returns:
        What was done, in words.
    """
    old = model.bert.embeddings.position_embeddings.weight.detach()
    rows = old[:trained].double()
    size = max(length, len(old))
    table = nn.Embedding(size, old.shape[1], device=old.device, dtype=old.dtype)
    model.bert.embeddings.position_embeddings = table
    model.config.max_position_embeddings = size

    def put(more: torch.Tensor) -> None:
        with torch.no_grad():
            table.weight.copy_(torch.cat([rows, more]))

    if kind == "tile":
        put(rows.repeat(-(-size // trained), 1)[trained:size])
        return "tiled"
    choices = [number for number in DIMENSIONS if number <= min(trained - UNLIKE_OTHERS - 2, rows.shape[1])]
    scores: dict[int, float] = {}
    if measure is not None:
        for number in choices:
            put(rotated(rows, size - trained, number))
            scores[number] = measure()
    best = max(scores, key=lambda number: scores[number]) if scores else choices[0]
    put(rotated(rows, size - trained, best))
    return f"rotated in {best} dimensions"


def rotated(rows: torch.Tensor, count: int, dimensions: int) -> torch.Tensor:
    """Continues a sequence of vectors by the rotation that takes each to the next one.

    Args:
        rows: (n, H) in 64 bits, in order.
        count: vectors to add.
        dimensions: principal directions in which the rows are rotated.

    Returns:
        (count, H).
    """
    mean = rows.mean(0)
    basis = torch.linalg.svd(rows - mean, full_matrices=False).Vh[:dimensions].T
    places = (rows - mean) @ basis
    left, _, right = torch.linalg.svd(places[UNLIKE_OTHERS:-1].T @ places[UNLIKE_OTHERS + 1 :])
    turn, place, more = left @ right, places[-1], []
    for _ in range(count):
        place = place @ turn
        more.append(place)
    return torch.stack(more) @ basis.T + mean if more else rows[:0]


def extend_words(model: Any, config: PretrainingConfig, tokenizer: Any) -> int:
    """Gives new words of a tokenizer rows: the mean of the rows, and of the MLM biases, of the pieces they were before.

    Args:
        model: a model with prediction head, loaded from `config.model_name_or_path`.
        config: the run's settings.
        tokenizer: of the corpus; the first entries are the checkpoint's vocabulary (`train_tokenizer --extend`).

    Returns:
        The number of new words; 0 where the tokenizer has none.

    Raises:
        UserError: the vocabularies differ in more than words at the end.
    """
    name, size = str(config.model_name_or_path), model.config.vocab_size
    if len(tokenizer) <= size:
        return 0
    own = load_tokenizer(name)
    vocab, before = tokenizer.get_vocab(), own.get_vocab()
    if any(vocab.get(word) != number for word, number in before.items()) or len(before) != size:
        raise UserError(
            f"--model_name_or_path {name}: the corpus has {len(tokenizer)} words, the model {size}, and the first ones "
            f"differ; extend its vocabulary with train_tokenizer --extend {name}"
        )
    words = sorted((number, word) for word, number in vocab.items() if number >= size)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    embeddings, bias = model.get_input_embeddings().weight, model.get_output_embeddings().bias
    with torch.no_grad():
        for number, word in words:
            pieces = own(word, add_special_tokens=False)["input_ids"]
            embeddings[number] = embeddings[pieces].mean(0)
            bias[number] = bias[pieces].mean()
    return len(words)
