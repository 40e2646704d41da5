"""What a tagger reads at once: windows over a document in which every word is tagged exactly once (paper 5.3, C.2)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from bert_repro.tasks.encoding import token_ids
from bert_repro.training.batches import IGNORE_INDEX

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Int32Array = npt.NDArray[np.int32]


class Window(NamedTuple):
    """A part of a document.

    Args:
        start, end: its tokens.
        first_word, last_word: the words that are tagged in it, `last_word` excluded.
    """

    start: int
    end: int
    first_word: int
    last_word: int


@dataclass(frozen=True)
class TokenizedDocument:
    """A document's sentences laid end to end.

    Args:
        tokens: token ids, without special tokens.
        word_starts: the place of each word's first token, and behind the last word the number of tokens.
        sentence_starts: the number of each sentence's first word, and behind the last the number of words.
    """

    tokens: Int32Array
    word_starts: Int32Array
    sentence_starts: Int32Array

    @classmethod
    def of(cls, sentences: Sequence[Sequence[Sequence[int]]], room: int, unknown: int) -> "TokenizedDocument":
        """Lays the token ids of words of sentences end to end.

        Args:
            sentences: for each sentence the token ids of each word.
            room: tokens that a window holds; a longer word keeps its first ones.
            unknown: replaces a word that the tokenizer leaves nothing of.
        """
        words = [list(word[:room]) or [unknown] for sentence in sentences for word in sentence]
        lengths = np.array([len(word) for word in words], dtype=np.int32)
        counts = np.array([len(sentence) for sentence in sentences], dtype=np.int32)
        return cls(
            tokens=np.array([token for word in words for token in word], dtype=np.int32),
            word_starts=_starts(lengths),
            sentence_starts=_starts(counts),
        )


def word_pieces(sentences: Sequence[Sequence[str]], tokenizer: "PreTrainedTokenizerBase") -> list[list[list[int]]]:
    """Returns the token ids of every word of every sentence; each different word is tokenized once, by itself."""
    vocabulary = list(dict.fromkeys(chain.from_iterable(sentences)))
    ids = dict(zip(vocabulary, token_ids(tokenizer, vocabulary), strict=True))
    return [[ids[word] for word in words] for words in sentences]


def token_labels(length: int, places: Int32Array, tags: Sequence[int]) -> npt.NDArray[np.int64]:
    """Returns a label for each token of a window: the tag at the first token of each word, -100 elsewhere."""
    labels = np.full(length, IGNORE_INDEX, dtype=np.int64)
    labels[places] = tags
    return labels


def windows(document: TokenizedDocument, context: str, room: int) -> Iterator[Window]:
    """Yields the windows of a document, in the order of their words.

    Args:
        document: its tokens.
        context: `sentence`: a window per sentence. `tile`: as many complete sentences as fit, each word in one window.
            `centred`: a window per sentence, filled up with the document's tokens on both sides.
        room: tokens that a window holds, special tokens apart. A sentence that is longer is cut between words.
    """
    units = list(_units(document, room))
    if context == "tile" and units:
        units = list(_tiles(document, units, room))
    for first, last in units:
        start, end = (int(document.word_starts[word]) for word in (first, last))
        if context == "centred":
            start, end = _widen(start, end, len(document.tokens), room)
        yield Window(start, end, first, last)


def _units(document: TokenizedDocument, room: int) -> Iterator[tuple[int, int]]:
    """Sentences as ranges of words, cut between words where they do not fit."""
    starts = document.word_starts
    for first, end in zip(document.sentence_starts[:-1].tolist(), document.sentence_starts[1:].tolist(), strict=True):
        while first < end:
            # The last word whose end is within `room` of the first token.
            last = min(end, int(np.searchsorted(starts, starts[first] + room, side="right")) - 1)
            yield first, last
            first = last


def _tiles(document: TokenizedDocument, units: Sequence[tuple[int, int]], room: int) -> Iterator[tuple[int, int]]:
    """Joins neighbours while they fit together."""
    starts = document.word_starts
    first, last = units[0]
    for begin, end in units[1:]:
        if starts[end] - starts[first] > room:
            yield first, last
            first = begin
        last = end
    yield first, last


def _widen(start: int, end: int, length: int, room: int) -> tuple[int, int]:
    """Adds as many tokens on both sides; what one side of the document lacks, the other side gets."""
    spare = min(room, length) - (end - start)
    left = min(start, max(spare // 2, spare - (length - end)))
    return start - left, end + spare - left


def _starts(lengths: Int32Array) -> Int32Array:
    return np.concatenate([np.zeros(1, dtype=np.int32), np.cumsum(lengths, dtype=np.int32)])
