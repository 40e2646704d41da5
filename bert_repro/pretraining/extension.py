"""Lets a checkpoint read longer inputs and new words: rows of its embeddings that it never trained are computed.

Longer inputs, by rotation: the trained position embeddings lie near a curve in a few dimensions, so a rotation that
takes each row to the next one continues them. The number of dimensions that serves best differs between models, and the
model itself says which: the masked accuracy of sequences of the new length. Tiling repeats the trained rows.
"""

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from bert_repro.configs import PretrainingConfig
from bert_repro.errors import UserError
from bert_repro.models.loading import load_tokenizer

logger = logging.getLogger("bert_repro")

DIMENSIONS = (8, 16, 24, 32, 48, 64, 96)
UNLIKE_OTHERS = 8  # first rows, which hold what is special about the beginning of a text


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
