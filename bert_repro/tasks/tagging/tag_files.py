"""Tagged text as CoNLL files have it: a word and its columns on a line, an empty line after each sentence."""

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bert_repro.errors import UserError
from bert_repro.utils.readers import numbered_lines, shown

DOCUMENT_START = "-DOCSTART-"
ENTITY_TAG = re.compile(r"O|[BIES]-.+")
_SEPARATOR = re.compile(r"[ \t]+")  # other white space may stand inside a word


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
