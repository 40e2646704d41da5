"""Turns texts into token ids: [CLS] text [SEP], or [CLS] first [SEP] second [SEP], truncated as by the original."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from transformers import BatchEncoding, PreTrainedTokenizerBase


def encoded_texts(
    tokenizer: "PreTrainedTokenizerBase", texts: Sequence[Sequence[str]], max_seq_length: int
) -> dict[str, list[Any]]:
    """Encodes texts or pairs of texts as the original run_classifier.py does.

    A single text keeps its first tokens. In a pair, the longer text loses its last token until both fit.

    Args:
        tokenizer: a fast tokenizer of transformers.
        texts: one column of N texts, or the two columns of N pairs.
        max_seq_length: tokens per sequence, including the special tokens.

    Returns:
        Columns of N values: `input_ids`, `token_type_ids`, `length` (tokens), `truncated` (whether text was lost).
    """
    cls, sep = special_ids(tokenizer)
    # [CLS], and a [SEP] after each text.
    num_special = 1 + len(texts)
    max_text_tokens = max_seq_length - num_special

    features: dict[str, list[Any]] = {"input_ids": [], "token_type_ids": [], "length": [], "truncated": []}
    token_columns = [token_ids(tokenizer, column) for column in texts]
    for row_tokens in zip(*token_columns, strict=True):
        first = row_tokens[0]
        second = row_tokens[1] if len(row_tokens) > 1 else None
        num_tokens = sum(map(len, row_tokens))
        first_length, second_length = truncated_lengths(len(first), num_tokens - len(first), max_text_tokens)
        if second is not None:
            second = second[:second_length]
        ids, segments = join(cls, sep, first[:first_length], second)
        features["input_ids"].append(ids)
        features["token_type_ids"].append(segments)
        features["length"].append(len(ids))
        features["truncated"].append(num_tokens > max_text_tokens)
    return features


def token_ids(tokenizer: "PreTrainedTokenizerBase", texts: Sequence[str]) -> list[list[int]]:
    """Returns the token ids of N texts, see `tokenized`. An empty text has an empty list."""
    return cast(list[list[int]], tokenized(tokenizer, texts)["input_ids"])


def tokenized(tokenizer: "PreTrainedTokenizerBase", texts: Sequence[str]) -> "BatchEncoding":
    """Tokenizes texts in full, without special tokens.

    "[SEP]" or "[MASK]" in a text is treated as text, as in the corpus and in the original code.

    Args:
        tokenizer: a fast tokenizer of transformers.
        texts: N texts.

    Returns:
        `input_ids`, and for the number of a text its `encodings` with offsets and its `word_ids`.
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
    """Returns the ids of [CLS] and [SEP]."""
    return int(tokenizer.cls_token_id), int(tokenizer.sep_token_id)  # type: ignore[arg-type]


def truncated_lengths(length_a: int, length_b: int, limit: int) -> tuple[int, int]:
    """Computes how many tokens of each text of a pair remain after truncation (original run_classifier.py).

    The original code removes one token at a time from the end of the longer text, or of the second one if both are
    equally long, until both fit. This function computes the result directly.

    Args:
        length_a: tokens of the first text.
        length_b: tokens of the second text.
        limit: tokens that both may have together.

    Returns:
        The remaining tokens of the first and of the second text.
    """
    excess = length_a + length_b - limit
    if excess <= 0:
        return length_a, length_b

    # First only the longer text becomes shorter.
    until_equal = min(excess, abs(length_a - length_b))
    if length_a > length_b:
        length_a -= until_equal
    else:
        length_b -= until_equal

    # Then they take turns, and the second text begins.
    remaining = excess - until_equal
    return length_a - remaining // 2, length_b - (remaining + 1) // 2


def join(
    cls: int, sep: int, first: Sequence[int], second: Sequence[int] | None = None
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int8]]:
    """Joins token ids to [CLS] first [SEP], or [CLS] first [SEP] second [SEP] (paper 3, Figure 2).

    Args:
        cls: id of [CLS].
        sep: id of [SEP].
        first: token ids of the first text.
        second: token ids of the second text, if there is one.

    Returns:
        Token ids, and segment ids (0 up to the first [SEP], then 1), both of the sequence's length.
    """
    first_segment = [cls, *first, sep]
    second_segment = [] if second is None else [*second, sep]
    segments = np.repeat(np.array([0, 1], dtype=np.int8), [len(first_segment), len(second_segment)])
    return np.array(first_segment + second_segment, dtype=np.int32), segments
