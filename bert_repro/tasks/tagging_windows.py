"""Windows over documents of words: what a tagger reads at once, and which words it tags in each window (paper 5.3).

Documents can be longer than the model's input, and most sentences are much shorter. A window is a range of words whose
tokens fit into one input. Every word of a document is tagged in exactly one window.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bert_repro.tasks.squad_windows import fullest_windows
from bert_repro.utils.arrays import Int64Array, row_starts


@dataclass(frozen=True)
class TokenizedDocument:
    """The sentences of a document as one row of tokens.

    Args:
        tokens: token ids without special tokens, int32 [T].
        word_starts: place of each word's first token, then the number of tokens, int64 [W + 1].
        sentence_starts: number of each sentence's first word, then the number of words, int64 [S + 1].
    """

    tokens: npt.NDArray[np.int32]
    word_starts: Int64Array
    sentence_starts: Int64Array

    @classmethod
    def of(cls, sentences: Sequence[Sequence[Sequence[int]]], room: int, unknown: int) -> "TokenizedDocument":
        """Lays the token ids of the words of all sentences end to end.

        Args:
            sentences: for each sentence the token ids of each word.
            room: tokens that fit into a window; a longer word keeps its first ones.
            unknown: id that stands for a word of which the tokenizer leaves nothing.
        """
        tokens: list[int] = []
        lengths = []
        for sentence in sentences:
            for word in sentence:
                ids = word[:room] or [unknown]
                tokens.extend(ids)
                lengths.append(len(ids))
        return cls(
            tokens=np.array(tokens, dtype=np.int32),
            word_starts=row_starts(np.array(lengths, dtype=np.int64)),
            sentence_starts=row_starts(np.array([len(sentence) for sentence in sentences], dtype=np.int64)),
        )


class Window(NamedTuple):
    """A window as ranges of words of its document.

    Args:
        first: the first word that is read.
        last: the word after the last one that is read.
        first_tagged: the first word that is tagged.
        last_tagged: the word after the last one that is tagged.
    """

    first: int
    last: int
    first_tagged: int
    last_tagged: int


def windows(document: TokenizedDocument, context: str, room: int) -> Iterator[Window]:
    """Yields the windows of a document in the order of their words.

    Args:
        document: the tokens.
        context: `sentence`: a window for each sentence. `tile`: as many complete sentences as fit. `sliding`: windows
            that overlap by half; a word is tagged where it has most context.
        room: tokens that fit into a window, without special tokens. With `sentence` and `tile`, a longer sentence is
            cut between words.
    """
    ranges = _sentence_parts(document, room)
    if context == "tile":
        ranges = _tiles(document, ranges, room)
    elif context == "sliding":
        yield from _sliding_windows(document, room)
        return
    for first, last in ranges:
        yield Window(first, last, first, last)


def _sentence_parts(document: TokenizedDocument, room: int) -> Iterator[tuple[int, int]]:
    """Yields sentences as ranges of words, cut between words if they do not fit."""
    starts = document.word_starts
    sentence_ends = document.sentence_starts[1:].tolist()
    for first, end in zip(document.sentence_starts[:-1].tolist(), sentence_ends, strict=True):
        while first < end:
            last = min(end, _last_that_fits(starts, first, room))
            yield first, last
            first = last


def _tiles(document: TokenizedDocument, sentences: Iterator[tuple[int, int]], room: int) -> Iterator[tuple[int, int]]:
    """Joins sentences that follow each other as long as they fit."""
    starts = document.word_starts
    first, last = next(sentences, (0, 0))
    for begin, end in sentences:
        if starts[end] - starts[first] > room:
            yield first, last
            first = begin
        last = end
    # A document without words has no window.
    if last:
        yield first, last


def _sliding_windows(document: TokenizedDocument, room: int) -> Iterator[Window]:
    ranges = _overlapping_ranges(document, room)
    spans = []
    for first, last in ranges:
        start, end = document.word_starts[[first, last]].tolist()
        spans.append((start, end - start))

    # The first token of a word is the one that is classified, so its context counts.
    first_tokens = document.word_starts[:-1]
    window_of_word = fullest_windows(spans, int(document.word_starts[-1]))[first_tokens]
    for number, (first, last) in enumerate(ranges):
        tagged = np.flatnonzero(window_of_word == number)
        if len(tagged):
            yield Window(first, last, int(tagged[0]), int(tagged[-1]) + 1)


def _overlapping_ranges(document: TokenizedDocument, room: int) -> list[tuple[int, int]]:
    """Returns ranges of words of at most `room` tokens, each beginning half a window after the one before."""
    starts = document.word_starts
    num_words = len(starts) - 1
    ranges: list[tuple[int, int]] = []
    first = 0
    while first < num_words:
        last = _last_that_fits(starts, first, room)
        if last == num_words:
            # The last window begins earlier, so that the last words have as much context as fits.
            first = int(np.searchsorted(starts, starts[-1] - room, side="left"))
            ranges.append((first, last))
            break
        ranges.append((first, last))
        # A word may be longer than half a window.
        middle = int(np.searchsorted(starts, starts[first] + room // 2, side="right")) - 1
        first = max(first + 1, middle)
    return ranges


def _last_that_fits(starts: Int64Array, first: int, room: int) -> int:
    """Returns the last range end for which the words from `first` have at most `room` tokens."""
    return int(np.searchsorted(starts, starts[first] + room, side="right")) - 1
