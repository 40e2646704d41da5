"""Passages as tokens, windows over them, and the place of an answer in a window (paper 4.2; original run_squad.py).

A passage that does not fit into one input is cut into windows that overlap. Each window is an input of its own.

Shape legend: `N` pieces (tokens) of a passage, `W` words of it.
"""

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
"""Target of a window that does not contain the complete answer: start and end at [CLS]."""
UNFOUND = (-1, -1)
"""Target of a question whose answer is not found in its passage. Its windows are not used for training."""
# Words are what the original implementation separates by white space, and it does not know all of Unicode's.
_WORD = re.compile("[^ \t\r\n\u202f]+")
_QUESTIONS_AT_ONCE = 1_000


@dataclass(frozen=True)
class Passage:
    """A tokenized context.

    Args:
        context: the text.
        ids: token id of each piece, int64 [N].
        pieces: the pieces as texts.
        starts: first character of each piece, int64 [N].
        ends: the character after each piece, int64 [N].
        words: first character of each whitespace word and the one after it, int64 [W, 2].
        word_of: number of the whitespace word of each piece, int64 [N].
    """

    context: str
    ids: Int64Array
    pieces: Sequence[str]
    starts: Int64Array
    ends: Int64Array
    words: Int64Array
    word_of: Int64Array

    def words_between(self, first: int, last: int) -> list[str]:
        """Returns the whitespace words from the one of piece `first` to the one of piece `last`."""
        spans = self.words[self.word_of[first] : self.word_of[last] + 1].tolist()
        return [self.context[start:end] for start, end in spans]


# --- Tokenization -----------------------------------------------------------------------------------------------------


def tokenize_passages(tokenizer: "PreTrainedTokenizerBase", contexts: Sequence[str]) -> Iterator[Passage]:
    """Tokenizes contexts without truncating them.

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
        yield Passage(
            context=context,
            ids=np.array(encoding.ids, dtype=np.int64),
            pieces=encoding.tokens,
            starts=offsets[:, 0],
            ends=offsets[:, 1],
            words=words,
            word_of=np.searchsorted(words[:, 0], offsets[:, 0], side="right") - 1,
        )


def shared_passages(tokenizer: "PreTrainedTokenizerBase", contexts: Sequence[str]) -> list[Passage]:
    """Returns a passage for each context. A context that several questions share is tokenized once."""
    different_contexts = list(dict.fromkeys(contexts))
    passages = dict(zip(different_contexts, tokenize_passages(tokenizer, different_contexts), strict=True))
    return [passages[context] for context in contexts]


def passages_of(tokenizer: "PreTrainedTokenizerBase", dataset: "datasets.Dataset") -> Iterator[Passage]:
    """Yields the passage of each question of a split, and keeps only some of them in memory."""
    for rows in dataset.iter(_QUESTIONS_AT_ONCE):
        yield from shared_passages(tokenizer, rows["context"])


# --- Windows ----------------------------------------------------------------------------------------------------------


def window_spans(length: int, room: int, stride: int) -> list[tuple[int, int]]:
    """Computes the windows over a passage, each as its first piece and its number of pieces.

    Args:
        length: pieces of the passage.
        room: pieces that fit into a window.
        stride: pieces by which the window moves.

    Returns:
        At least one window, an empty one for an empty passage. Every piece is in at least one window.
    """
    # Windows follow until one reaches the end of the passage. An empty passage has one empty window.
    spans = [(0, min(length, room))]
    while sum(spans[-1]) < length:
        start = spans[-1][0] + min(spans[-1][1], stride)
        spans.append((start, min(length - start, room)))
    return spans


def fullest_windows(spans: Sequence[tuple[int, int]], length: int) -> Int64Array:
    """Finds for each piece the window in which it has most context; the first one of several that are equal.

    The context is min(left, right) + 0.01 x length of the window, as in the original implementation.

    Args:
        spans: first piece and number of pieces of each window; together they cover all pieces.
        length: number of pieces.

    Returns:
        Index into `spans` for each piece, int64 [length].
    """
    fullest = np.zeros(length, dtype=np.int64)
    most_context = np.full(length, -np.inf)
    for number, (start, size) in enumerate(spans):
        left = np.arange(size)
        context = np.minimum(left, size - 1 - left) + 0.01 * size
        pieces = slice(start, start + size)
        is_better = context > most_context[pieces]
        fullest[pieces][is_better] = number
        most_context[pieces][is_better] = context[is_better]
    return fullest


# --- Answers ----------------------------------------------------------------------------------------------------------


def first_answer_spans(
    answers: Sequence[Mapping[str, Any]], tokenizer: "PreTrainedTokenizerBase", passages: Sequence[Passage]
) -> list[tuple[int, int] | None]:
    """Finds the pieces of each question's first answer.

    Args:
        answers: `text` and `answer_start` of each question, both lists.
        tokenizer: a fast tokenizer of transformers.
        passages: the passage of each question.

    Returns:
        First and last piece for each question; None without an answer, `UNFOUND` if it is not where it should be.
    """
    first_texts = [next(iter(answer["text"]), "") for answer in answers]
    ids_of_texts = token_ids(tokenizer, first_texts)
    spans: list[tuple[int, int] | None] = []
    for answer, passage, text, ids in zip(answers, passages, first_texts, ids_of_texts, strict=True):
        if not answer["text"]:
            spans.append(None)
            continue
        span = answer_span(passage, text, answer["answer_start"][0], ids)
        spans.append(UNFOUND if span is None else span)
    return spans


def answer_span(passage: Passage, answer: str, start: int, answer_ids: Sequence[int]) -> tuple[int, int] | None:
    """Finds the pieces of an answer.

    Its characters are first widened to complete whitespace words. Among the pieces of these words, the first ones that
    are equal to the answer's own are the answer; if there are none, all pieces of the words are.

    Args:
        passage: the passage.
        answer: text of the answer.
        start: place of its first character in the context.
        answer_ids: token ids of the answer, tokenized alone.

    Returns:
        First and last piece, or None if the words do not contain the text.
    """
    # The whitespace words that contain the first and the last character.
    last_character = max(start, start + len(answer) - 1)
    word_numbers = np.searchsorted(passage.words[:, 0], [start, last_character], side="right") - 1
    first_word, last_word = word_numbers.tolist()
    spans = passage.words[max(first_word, 0) : last_word + 1].tolist()
    words = " ".join(passage.context[begin:end] for begin, end in spans)
    # If the data states a wrong place, the words there are others.
    if " ".join(answer.split()) not in words:
        return None
    pieces_of_words = np.flatnonzero((passage.word_of >= first_word) & (passage.word_of <= last_word))
    if not len(pieces_of_words):
        return None

    # Narrow the words to the answer, for example "1907." to "1907".
    first, last = int(pieces_of_words[0]), int(pieces_of_words[-1])
    ids = passage.ids[first : last + 1].tolist()
    size = len(answer_ids)
    if size == 0:
        return first, last
    for place in range(len(ids) - size + 1):
        if ids[place : place + size] == list(answer_ids):
            return first + place, first + place + size - 1
    return first, last


def target(span: tuple[int, int] | None, window: tuple[int, int], offset: int) -> tuple[int, int]:
    """Returns the start and end of an answer as positions in the model's input.

    Args:
        span: first and last piece of the answer; None for no answer.
        window: first piece of the window and its number of pieces.
        offset: position of the window's first piece in the input.

    Returns:
        `NO_ANSWER` unless the window contains the complete answer.
    """
    start, size = window
    if span is None or span[0] < start or span[1] >= start + size:
        return NO_ANSWER
    return span[0] - start + offset, span[1] - start + offset
