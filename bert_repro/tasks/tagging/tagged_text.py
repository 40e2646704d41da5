"""Tagged text: sentences of CoNLL files, and the windows over a document that a tagger reads at once.

A file has a word and its columns on a line and an empty line after each sentence. Windows tag every word of a document
exactly once (paper 5.3, C.2).
"""

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from bert_repro.errors import UserError
from bert_repro.tasks.encoding import token_ids
from bert_repro.training.batches import IGNORE_INDEX
from bert_repro.utils.readers import numbered_lines, shown

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

DOCUMENT_START = "-DOCSTART-"
ENTITY_TAG = re.compile(r"O|[BIES]-.+")
_SEPARATOR = re.compile(r"[ \t]+")  # other white space may be inside a word


@dataclass(frozen=True)
class TaggedSentences:
    """The sentences of a file.

    Args:
        path: the file.
        words: the words of each sentence.
        tags: their tags as in the file; None where the file has words only.
        documents: the number of each sentence's document, from 0; None where the file marks none.
        lines: the line on which each sentence begins, from 1.
    """

    path: Path
    words: list[list[str]]
    tags: list[list[str]] | None
    documents: list[int] | None
    lines: list[int]


def read_tagged_text(path: Path, *, may_lack_tags: bool = False) -> TaggedSentences:
    """Reads a file whose first column is the word and whose last is the tag; columns in between are left out.

    Args:
        path: the file. Columns are separated by spaces or tabs; a line that opens with `-DOCSTART-` opens a document.
        may_lack_tags: take a file of one column, words only.

    Raises:
        UserError: the file is missing, empty or not UTF-8, or a line has no tag.
    """
    words: list[list[str]] = []
    tags: list[list[str]] = []
    lines: list[int] = []
    documents: list[int] = []
    document, width, open_sentence = -1, 0, False
    for number, fields in _lines(path):
        if not fields or fields[0] == DOCUMENT_START:
            document += bool(fields)
            open_sentence = False
            continue
        width = width or len(fields)
        if len(fields) != width or (width == 1 and not may_lack_tags):
            raise UserError(
                f"{path}, line {number}: {_said(fields, width)}; write the word first and its tag last, on every line"
            )
        if not open_sentence:
            words.append([])
            tags.append([])
            lines.append(number)
            documents.append(max(document, 0))
            open_sentence = True
        # Most words come again: one text of each is kept.
        words[-1].append(sys.intern(fields[0]))
        tags[-1].append(sys.intern(fields[-1]))
    if not words:
        raise UserError(f"{path}: no words; name a file with a word and its tag on each line")
    return TaggedSentences(path, words, tags if width > 1 else None, documents if document >= 0 else None, lines)


def are_entity_tags(tags: Sequence[str]) -> bool:
    """Returns whether tags mark entities: O and B-, I- (and E-, S-) before a type."""
    return any(tag != "O" for tag in tags) and all(ENTITY_TAG.fullmatch(tag) for tag in tags)


def to_bio(tags: Sequence[str]) -> list[str]:
    """Rewrites the entity tags of one sentence so that B- opens every entity.

    Takes IOB1 (CoNLL-2003's own: B- only between touching entities of one type), BIO (left as it is) and IOBES.

    Args:
        tags: O, or B-, I-, E-, S- before a type.
    """
    converted = []
    previous = "O"
    for tag in tags:
        if tag != "O":
            prefix, kind = tag.split("-", 1)
            opens = prefix in "BS" or previous == "O" or previous[2:] != kind or previous[0] in "ES"
            converted.append(f"{'B' if opens else 'I'}-{kind}")
        else:
            converted.append(tag)
        previous = tag
    return converted


def _said(fields: Sequence[str], width: int) -> str:
    if len(fields) == 1:
        return f"{shown(fields[0])} has no tag"
    return f"{len(fields)} columns, the lines before have {width}"


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yields numbered lines as columns; none for an empty line."""
    for number, line in numbered_lines(path):
        text = line.strip(" \t\r\n")
        yield number, _SEPARATOR.split(text) if text else []


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
