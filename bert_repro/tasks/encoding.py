"""Texts to token ids with the original implementation's truncation, shared by all tasks, and tokenized splits on disk.

Splits are kept beside what `datasets` keeps: the same data in the same form is tokenized once. `datasets` itself finds
again only what it read from its own files; official files and custom data are read into memory. A split is found by a
digest of its rows, of the settings and of the code that turns them into features.
"""

import hashlib
import inspect
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from bert_repro.errors import UserError
from bert_repro.utils.files import disk_errors, waiting_lock

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerBase

MIN_SEQ_LENGTH = 8
"""Shortest allowed `max_seq_length`: the special tokens and a little of both texts."""


def token_ids(tokenizer: "PreTrainedTokenizerBase", texts: Sequence[str]) -> list[list[int]]:
    """Tokenizes texts in full, without special tokens.

    "[SEP]" or "[MASK]" written in a text is text, as in the corpus and in the original implementation.

    Args:
        tokenizer: a fast tokenizer of transformers.
        texts: N texts.

    Returns:
        N lists of token ids; an empty text gives an empty list.
    """
    encoded = tokenizer(
        list(texts),
        add_special_tokens=False,
        padding=False,
        truncation=False,
        return_attention_mask=False,
        return_token_type_ids=False,
        split_special_tokens=True,
        verbose=False,
    )
    return cast(list[list[int]], encoded["input_ids"])


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


def require_length(max_seq_length: int) -> None:
    """Raises `UserError` when `max_seq_length` leaves no room for text."""
    if max_seq_length < MIN_SEQ_LENGTH:
        raise UserError(f"--max_seq_length is {max_seq_length}; it must be at least {MIN_SEQ_LENGTH}")


FOLDER = "bert_repro"
_ROWS_AT_ONCE = 1000


@contextmanager
def cached(dataset: "datasets.Dataset", settings: Sequence[Any], code: Sequence[Any]) -> Iterator[dict[str, str]]:
    """Yields arguments of `Dataset.map` that write its result to a file of its own, or read it from there.

    One process at a time writes it; what a killed one or a full disk has left unfinished is removed.

    Args:
        dataset: what is mapped.
        settings: all else that decides the result, ready for JSON.
        code: the functions and modules that compute it, so that no later version takes an earlier one's features.

    Yields:
        `cache_file_name` and `new_fingerprint`; nothing where caching is off (`datasets.disable_caching()`).

    Raises:
        UserError: the disk is full or not writable.
    """
    import datasets

    if not datasets.is_caching_enabled():
        yield {}
        return
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for part in code:
        digest.update(_source(part))
    for rows in dataset.iter(batch_size=_ROWS_AT_ONCE):
        digest.update(json.dumps(rows, default=str).encode())
    name = digest.hexdigest()
    folder = Path(datasets.config.HF_DATASETS_CACHE) / FOLDER / name
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with waiting_lock(folder):
            _remove_unfinished(folder)
            try:
                yield {"cache_file_name": str(folder / "features.arrow"), "new_fingerprint": name}
            finally:
                _remove_unfinished(folder)


def _remove_unfinished(folder: Path) -> None:
    for path in folder.glob("tmp*"):  # as `datasets` names a file until it is complete
        path.unlink(missing_ok=True)


@cache
def _source(part: Any) -> bytes:
    return inspect.getsource(part).encode()
