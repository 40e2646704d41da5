"""Passages of questions as tokens, windows over them, and where an answer lies in a window (paper 4.2)."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_repro.tasks.encoding import token_ids, tokenized
from bert_repro.utils.arrays import Int64Array

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerBase

NO_ANSWER = (0, 0)
"""Target of a window without the full answer: [CLS]."""
UNFOUND = (-1, -1)
"""Target of a window whose question's answer cannot be found in the passage; it is not trained on."""
_MOST_AT_ONCE, _CHARACTERS_AT_ONCE = 1000, 20_000_000
_WORD = re.compile("[^ \t\r\n\u202f]+")  # what the original implementation takes for whitespace, not all of Unicode's


@dataclass(frozen=True)
class Passage:
    """A tokenized context.

    Args:
        context: the text.
        ids: token id of each piece, (N,).
        pieces: the pieces as text.
        starts: first character of each piece, (N,).
        ends: character after each piece, (N,).
        words: first character and the one after of each whitespace word, (W, 2).
        word_of: the whitespace word of each piece, (N,).
    """

    context: str
    ids: Int64Array
    pieces: Sequence[str]
    starts: Int64Array
    ends: Int64Array
    words: Int64Array
    word_of: Int64Array

    def words_between(self, first: int, last: int) -> list[str]:
        """Returns the whitespace words from that of piece `first` to that of piece `last`."""
        spans = self.words[self.word_of[first] : self.word_of[last] + 1].tolist()
        return [self.context[start:end] for start, end in spans]


def tokenize_passages(tokenizer: "PreTrainedTokenizerBase", contexts: Sequence[str]) -> Iterator[Passage]:
    """Tokenizes contexts in full.

    Args:
        tokenizer: a fast tokenizer of transformers.
        contexts: the texts.
    """
    if not contexts:
        return
    encoded = tokenized(tokenizer, contexts)
    for number, context in enumerate(contexts):
        encoding = encoded[number]
        offsets = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
        words = np.array([match.span() for match in _WORD.finditer(context)], dtype=np.int64).reshape(-1, 2)
        word_of = np.searchsorted(words[:, 0], offsets[:, 0], side="right") - 1
        ids = np.array(encoding.ids, dtype=np.int64)
        yield Passage(context, ids, encoding.tokens, offsets[:, 0], offsets[:, 1], words, word_of)


def shared_passages(tokenizer: "PreTrainedTokenizerBase", contexts: Sequence[str]) -> list[Passage]:
    """Returns a passage for each context, tokenized once where several questions share it."""
    different = list(dict.fromkeys(contexts))
    passages = dict(zip(different, tokenize_passages(tokenizer, different), strict=True))
    return [passages[context] for context in contexts]


def questions_at_once(dataset: "datasets.Dataset", windows: int) -> int:
    """Returns how many questions fit into memory together: few about passages as long as books.

    Args:
        dataset: with the column `context`.
        windows: how many windows of a question a piece of its passage is in.
    """
    longest = max(max(map(len, rows["context"])) for rows in dataset.iter(_MOST_AT_ONCE))
    return max(1, min(_MOST_AT_ONCE, _CHARACTERS_AT_ONCE // (windows * max(1, longest))))


def passages_of(tokenizer: "PreTrainedTokenizerBase", dataset: "datasets.Dataset", at_once: int) -> Iterator[Passage]:
    """Yields the passage of each question, some at once."""
    for rows in dataset.iter(at_once):
        yield from shared_passages(tokenizer, rows["context"])


def window_spans(length: int, room: int, stride: int) -> list[tuple[int, int]]:
    """Computes where the windows over a passage begin, and how many pieces each holds.

    Args:
        length: pieces of the passage.
        room: pieces that fit into a window.
        stride: how far the window moves.

    Returns:
        At least one window, an empty one for an empty passage. Every piece is in one.
    """
    spans = [(0, min(length, room))]
    while sum(spans[-1]) < length:
        start = spans[-1][0] + min(spans[-1][1], stride)
        spans.append((start, min(length - start, room)))
    return spans


def fullest_windows(spans: Sequence[tuple[int, int]], length: int) -> Int64Array:
    """Finds for each piece the window in which it has most context, the first of equals.

    Context is min(left, right) + 0.01 x window length.

    Args:
        spans: from `window_spans`.
        length: pieces of the passage.

    Returns:
        Index into `spans`, (length,).
    """
    if len(spans) == 1:
        return np.zeros(length, dtype=np.int64)
    fullest = np.zeros(length, dtype=np.int64)
    best = np.full(length, -np.inf)
    for number, (start, size) in enumerate(spans):
        left = np.arange(size)
        context = np.minimum(left, size - 1 - left) + 0.01 * size
        here = slice(start, start + size)
        better = context > best[here]
        fullest[here][better] = number
        best[here][better] = context[better]
    return fullest


def answer_span(passage: Passage, answer: str, start: int, answer_ids: Sequence[int]) -> tuple[int, int] | None:
    """Finds the pieces of an answer: its characters widened to whitespace words, then narrowed to the first that equal
    the answer's own, where there are such.

    Args:
        passage: the passage.
        answer: text of the answer.
        start: its first character in the context.
        answer_ids: token ids of the answer alone.

    Returns:
        First and last piece; None where the text is not in those words.
    """
    last_character = max(start, start + len(answer) - 1)
    first_word, last_word = np.searchsorted(passage.words[:, 0], [start, last_character], side="right") - 1
    found = " ".join(passage.context[a:b] for a, b in passage.words[max(first_word, 0) : last_word + 1].tolist())
    if " ".join(answer.split()) not in found:
        return None
    inside = np.flatnonzero((passage.word_of >= first_word) & (passage.word_of <= last_word))
    if not len(inside):
        return None
    first, last = int(inside[0]), int(inside[-1])
    wanted, size = list(answer_ids), len(answer_ids)
    ids = passage.ids[first : last + 1].tolist()
    for place in range(len(ids) - size + 1 if size else 0):
        if ids[place : place + size] == wanted:
            return first + place, first + place + size - 1
    return first, last


def first_answer_spans(
    answers: Sequence[Mapping[str, Any]], tokenizer: "PreTrainedTokenizerBase", passages: Sequence[Passage]
) -> list[tuple[int, int] | None]:
    """Returns the pieces of each question's first answer; None without an answer, `UNFOUND` where it is not in place.

    Args:
        answers: `text` and `answer_start` of each question.
        tokenizer: a fast tokenizer of transformers.
        passages: the passage of each question.
    """
    texts = [next(iter(answer["text"]), "") for answer in answers]
    spans: list[tuple[int, int] | None] = []
    for answer, passage, text, ids in zip(answers, passages, texts, token_ids(tokenizer, texts), strict=True):
        found = None
        if answer["text"]:
            found = answer_span(passage, text, answer["answer_start"][0], ids) or UNFOUND
        spans.append(found)
    return spans


def target(span: tuple[int, int] | None, window: tuple[int, int], offset: int) -> tuple[int, int]:
    """Returns start and end of an answer as positions of the model's input.

    Args:
        span: first and last piece of the answer.
        window: first piece and number of pieces of the window.
        offset: position of the window's first piece in the input.

    Returns:
        `NO_ANSWER` unless the window holds the full answer.
    """
    start, size = window
    if span is None or span[0] < start or span[1] >= start + size:
        return NO_ANSWER
    return span[0] - start + offset, span[1] - start + offset
