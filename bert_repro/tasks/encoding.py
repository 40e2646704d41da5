"""Texts to token ids with the original implementation's truncation, shared by all tasks."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from bert_repro.errors import UserError

if TYPE_CHECKING:
    from transformers import BatchEncoding, PreTrainedTokenizerBase


def encoded_texts(
    tokenizer: "PreTrainedTokenizerBase", texts: Sequence[Sequence[str]], max_seq_length: int
) -> dict[str, list[Any]]:
    """Makes [CLS] text [SEP], or [CLS] first [SEP] second [SEP], cut as the original run_classifier.py does.

    A single text keeps its first tokens; of a pair the longer text loses its last token until both fit.

    Args:
        tokenizer: a fast tokenizer of transformers.
        texts: one column of N texts, or the two columns of N pairs.
        max_seq_length: tokens per sequence, special tokens included.

    Returns:
        Columns of N values: `input_ids`, `token_type_ids`, `length`, and whether the texts were cut, `truncated`.
    """
    cls, sep = special_ids(tokenizer)
    room = max_seq_length - 1 - len(texts)
    features: dict[str, list[Any]] = {"input_ids": [], "token_type_ids": [], "length": [], "truncated": []}
    for first, *others in zip(*(token_ids(tokenizer, column) for column in texts), strict=True):
        second = others[0] if others else None
        keep_first, keep_second = truncated_lengths(len(first), len(second or ()), room)
        ids, segments = join(cls, sep, first[:keep_first], None if second is None else second[:keep_second])
        features["input_ids"].append(ids)
        features["token_type_ids"].append(segments)
        features["length"].append(len(ids))
        features["truncated"].append(len(first) + len(second or ()) > room)
    return features


def token_ids(tokenizer: "PreTrainedTokenizerBase", texts: Sequence[str]) -> list[list[int]]:
    """Returns the token ids of N texts, see `tokenized`; an empty text gives an empty list."""
    return cast(list[list[int]], tokenized(tokenizer, texts)["input_ids"])


def tokenized(tokenizer: "PreTrainedTokenizerBase", texts: Sequence[str]) -> "BatchEncoding":
    """Tokenizes texts in full, without special tokens.

    "[SEP]" or "[MASK]" written in a text is text, as in the corpus and in the original implementation.

    Args:
        tokenizer: a fast tokenizer of transformers.
        texts: N texts.

    Returns:
        `input_ids`, and by number of a text its `encoding`, with offsets, and its `word_ids`.
    """
    return tokenizer(
        list(texts),
        add_special_tokens=False,
        padding=False,
        truncation=False,
        return_attention_mask=False,
        return_token_type_ids=False,
        split_special_tokens=True,
        verbose=False,
    )


def special_ids(tokenizer: "PreTrainedTokenizerBase") -> tuple[int, int]:
    """Returns the ids of [CLS] and [SEP].

    Raises:
        UserError: the tokenizer lacks one of them.
    """
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    if cls is None or sep is None:
        raise UserError(
            f"tokenizer {tokenizer.name_or_path}: no [CLS] or [SEP] token; use the tokenizer of a BERT checkpoint"
        )
    return int(cls), int(sep)


def truncated_lengths(length_a: int, length_b: int, limit: int) -> tuple[int, int]:
    """Computes what truncation leaves of a pair (original run_classifier.py).

    One token at a time leaves the end of the longer text, on a tie that of the second, until both fit.

    Args:
        length_a: tokens of the first text.
        length_b: tokens of the second text.
        limit: tokens that both may have together.

    Returns:
        The tokens that each keeps.
    """
    excess = length_a + length_b - limit
    if excess <= 0:
        return length_a, length_b
    until_equal = min(excess, abs(length_a - length_b))
    if length_a > length_b:
        length_a -= until_equal
    else:
        length_b -= until_equal
    rest = excess - until_equal
    return length_a - rest // 2, length_b - (rest + 1) // 2


def join(
    cls: int, sep: int, first: Sequence[int], second: Sequence[int] | None = None
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int8]]:
    """Makes [CLS] first [SEP], or [CLS] first [SEP] second [SEP] (paper 3, Figure 2).

    Args:
        cls: id of [CLS].
        sep: id of [SEP].
        first: token ids of the first text.
        second: token ids of the second text.

    Returns:
        Token ids and segment ids (0 through the first [SEP], 1 after), both of the sequence's length.
    """
    head = [cls, *first, sep]
    tail = [] if second is None else [*second, sep]
    segments = np.repeat(np.array([0, 1], dtype=np.int8), [len(head), len(tail)])
    return np.array(head + tail, dtype=np.int32), segments
