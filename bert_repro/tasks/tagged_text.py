"""Files of tagged text: a word and its tag on each line, an empty line after each sentence.

The columns are separated by spaces or tabs. The first one is the word, the last one the tag; those in between are left
out. A line that begins with `-DOCSTART-` begins a document. Many programs write such files, each a little differently,
and a file that is read in the wrong way still gives words and tags. So everything that is neither is recognized or
refused. The order of events:

1. Lines are stripped of white space at both ends. Old Mac files have a carriage return where others have a line feed.
2. Lines are divided into columns: only at tabs if words contain spaces. Quotation marks of spreadsheets are removed.
3. A first line of column names and comment lines are left out.
4. All lines must have the same number of columns, and the first one must not name the document or sentence.
5. A first column that only counts the words is left out.
6. The words are collected into sentences and documents.
"""

import csv
import logging
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

from bert_repro.errors import UserError
from bert_repro.tasks.tag_schemes import find_notation, is_outside
from bert_repro.utils.readers import numbered_lines, shown

if TYPE_CHECKING:
    import datasets

logger = logging.getLogger("bert_repro")

DOCUMENT_START = "-DOCSTART-"
LONG_SENTENCE = 1_000  # Words; a longer sentence suggests that empty lines are missing.
FEW_WORDS = 10  # With fewer, all words of a sentence may be equal by chance.
NO_TAG = "_"
"""What programs write in the column of tags if there are none."""

_WORD_COLUMN_NAMES = frozenset({"word", "words", "token", "tokens", "form"})
_TAG_COLUMN_NAMES = frozenset({"tag", "tags", "label", "labels", "ner", "ner_tag", "ner_tags", "entity", "pos"})
_QUOTED_FIELD = re.compile('"([^"]|"")*"')
_WORD_NUMBER = re.compile("[0-9]+([-.][0-9]+)?")
_WHITE_SPACE = re.compile("[ \t\r\n]+")
_CONLL_U_COLUMNS = 10


class _Row(NamedTuple):
    """One line with a word.

    Args:
        number: number of the line, from 1.
        fields: the columns, without empty ones.
        sentence: number of the sentence.
        document: number of the document; -1 before the first `-DOCSTART-`.
    """

    number: int
    fields: list[str]
    sentence: int
    document: int


# --- Reading ----------------------------------------------------------------------------------------------------------


def read_tagged_text(path: Path, lines: Iterable[tuple[int, str]] | None = None) -> "datasets.Dataset":
    """Reads a file of tagged text; see the top of this module.

    Args:
        path: the file, also for messages.
        lines: numbers and texts of the lines if they do not come from the file.

    Returns:
        A row per sentence: `words` and, if there is a column of tags, `tags`; `document` (a number from 0) if the file
        marks documents.

    Raises:
        UserError: the file is missing, empty or not UTF-8, or its columns cannot be told apart.
    """
    import datasets

    # Each step needs the one before: names of columns, for example, are found only in divided lines.
    rows = _divided_rows(path, _stripped_lines(numbered_lines(path) if lines is None else lines))
    rows = _without_column_names(path, rows)
    rows = _without_comments(path, rows)
    if not rows:
        raise UserError(f"{path}: no rows. Choose a file with at least one word.")
    _require_equal_widths(path, rows)
    _require_words_first(path, rows)
    rows = _without_word_numbers(path, rows)
    has_tags = _has_tags(path, rows)

    words: list[list[str]] = []
    tags: list[list[str]] = []
    documents: list[int] = []
    for _, group in groupby(rows, key=lambda row: row.sentence):
        sentence = list(group)
        # Most words and tags occur many times, and interned strings share their memory.
        words.append([sys.intern(row.fields[0]) for row in sentence])
        tags.append([sys.intern(row.fields[-1]) for row in sentence])
        documents.append(max(sentence[0].document, 0))

    longest = max(len(sentence) for sentence in words)
    if longest > LONG_SENTENCE:
        logger.warning("%s: a sentence has %d words. Write an empty line after each sentence.", path, longest)
    columns: dict[str, list[list[str]] | list[int]] = {"words": words}
    if has_tags:
        columns["tags"] = tags
    # Without a mark, nothing is known about documents, and each sentence is read alone.
    if rows[-1].document >= 0:
        columns["document"] = documents
    return datasets.Dataset.from_dict(columns)


def _stripped_lines(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Yields lines without white space at both ends, with their numbers as an editor counts them."""
    number = 0
    for _, line in lines:
        # A carriage return at the end belongs to the line feed after it. Any other ends a line of its own.
        for text in line.rstrip("\r").split("\r"):
            number += 1
            # Only these: other kinds of white space may be inside a word, and at its end.
            yield number, text.strip(" \t")


def _divided_rows(path: Path, lines: Iterable[tuple[int, str]]) -> list[_Row]:
    """Divides lines into columns and numbers the sentences and documents."""
    rows = []
    sentence = 0
    document = -1
    for number, text in lines:
        is_document_start = text.startswith(DOCUMENT_START) and _fields_by_white_space(text)[0] == DOCUMENT_START
        if not text or is_document_start:
            sentence += 1
            document += is_document_start
            continue
        rows.append(_Row(number, [text], sentence, document))

    # Comments need not have columns, so they do not count when the separator is chosen.
    tagged_rows = [row for row in rows if not row.fields[0].startswith("#")] or rows
    fields_of = _choose_division(path, tagged_rows)
    divided_rows = []
    num_empty = 0
    for row in rows:
        fields = fields_of(row.fields[0])
        # A spreadsheet may write an empty line as empty fields in quotation marks.
        num_empty += not fields
        if fields:
            divided_rows.append(_Row(row.number, fields, row.sentence + num_empty, row.document))
    return divided_rows


def _fields_by_white_space(text: str) -> list[str]:
    return [field for field in text.replace("\t", " ").split(" ") if field]


def _fields_by_tabs(text: str) -> list[str]:
    fields = [field.strip(" ") for field in text.split("\t")]
    # Files that are aligned by hand have several tabs after a short word.
    return [field for field in fields if field]


def _fields_by_quotes(text: str) -> list[str]:
    return _fields_by_tabs("\t".join(next(csv.reader([text], delimiter="\t"))))


def _choose_division(path: Path, rows: Sequence[_Row]) -> Callable[[str], list[str]]:
    """Returns the function that divides a line into its columns.

    Args:
        path: the file, for messages.
        rows: all lines, with their text as the only field.
    """
    # A file with only one column has no tabs, but a spreadsheet still writes quotation marks.
    texts = [row.fields[0] for row in rows]
    num_with_tabs = sum("\t" in text for text in texts)
    if num_with_tabs in (0, len(texts)) and _uses_quotes(texts):
        return _fields_by_quotes
    if num_with_tabs < len(texts):
        return _fields_by_white_space
    widths_by_tabs = {len(_fields_by_tabs(text)) for text in texts}
    widths_by_white_space = {len(_fields_by_white_space(text)) for text in texts}
    if widths_by_tabs == widths_by_white_space:
        return _fields_by_white_space

    # Some fields contain spaces. If splitting at spaces too gives the same number of columns on every line, both
    # readings are possible: the spaces separate columns, or they belong to the words.
    if len(widths_by_tabs) == 1 and len(widths_by_white_space) == 1:
        raise UserError(
            f"{path}, line {rows[0].number}: {shown(texts[0])} has spaces and tabs, so its columns cannot be told "
            "apart. Separate columns by tabs only if words contain spaces, and otherwise by one of the two."
        )
    if len(widths_by_white_space) == 1:
        return _fields_by_white_space
    return _fields_by_tabs


def _uses_quotes(texts: Sequence[str]) -> bool:
    """Returns whether quotation marks are those of a spreadsheet or of pandas, not of the text.

    They put a field that contains a comma or a quotation mark into quotation marks, and double those inside.
    """
    opened_fields = []
    for text in texts:
        opened_fields += [field for field in text.split("\t") if field.startswith('"')]
    if not all(_QUOTED_FIELD.fullmatch(field) for field in opened_fields):
        return False
    # A text may contain a quoted word ("Yes"), but hardly a quoted comma or a quotation mark that is doubled.
    contents = [field[1:-1] for field in opened_fields]
    return any(content == "," or '""' in content for content in contents)


def _without_column_names(path: Path, rows: list[_Row]) -> list[_Row]:
    """Leaves out a first line of column names, such as `token` and `tag`."""
    if not rows or len(rows[0].fields) < 2:
        return rows
    names = [field.lower() for field in rows[0].fields]
    if names[-1] not in _TAG_COLUMN_NAMES or not _WORD_COLUMN_NAMES.intersection(names[:2]):
        return rows
    logger.info("%s: the first line contains the names of the columns: %s", path, ", ".join(rows[0].fields))
    return rows[1:]


def _without_comments(path: Path, rows: list[_Row]) -> list[_Row]:
    """Leaves out lines of comments, which begin with # and come before a sentence (`# sent_id = 1`)."""
    tagged_rows = [row for row in rows if not row.fields[0].startswith("#")]
    if not tagged_rows or len(tagged_rows) == len(rows):
        return rows

    # A word may begin with # too, but then it has as many columns as the others, and a tag at the end.
    width = len(tagged_rows[0].fields)
    tags = {row.fields[-1] for row in tagged_rows}
    words_have_numbers = all(_WORD_NUMBER.fullmatch(row.fields[0]) for row in tagged_rows)
    remaining: list[_Row] = []
    for row in rows:
        begins_sentence = not remaining or remaining[-1].sentence != row.sentence
        is_tagged = len(row.fields) == width and not words_have_numbers
        if is_tagged and row.fields[-1] not in tags:
            is_tagged = not any("=" in field for field in row.fields[1:])
        if begins_sentence and row.fields[0].startswith("#") and not is_tagged:
            continue
        remaining.append(row)
    if len(remaining) < len(rows):
        logger.info("%s: left out %d lines of comments, which begin with #", path, len(rows) - len(remaining))
    return remaining


def _require_equal_widths(path: Path, rows: Sequence[_Row]) -> None:
    width = len(rows[0].fields)
    for row in rows:
        if len(row.fields) != width:
            raise UserError(
                f"{path}, line {row.number}: {shown(row.fields[0])} has {len(row.fields)} columns, but the lines "
                f"before have {width}. Write the word first and its tag last on every line, and separate columns by "
                "tabs if words contain spaces."
            )


def _require_words_first(path: Path, rows: Sequence[_Row]) -> None:
    """Refuses a first column that names the document or the sentence, as in the files of CoNLL-2012."""
    if len(rows[0].fields) < 3 or len(rows) < FEW_WORDS or _second_column_is_tag(rows):
        return
    for _, group in groupby(rows, key=lambda row: row.sentence):
        if len({row.fields[0] for row in group}) > 1:
            return
    raise UserError(
        f"{path}: the first column has the same text on all lines of a sentence, for example "
        f"{shown(rows[0].fields[0])}. Write the word first and its tag last on every line."
    )


def _second_column_is_tag(rows: Sequence[_Row]) -> bool:
    """Returns whether the second of several columns contains tags of entities, so that the first one is the word."""
    second_column = {row.fields[1] for row in rows}
    return find_notation(second_column) is not None or all(is_outside(field) for field in second_column)


def _without_word_numbers(path: Path, rows: list[_Row]) -> list[_Row]:
    """Leaves out a first column that counts the words, and refuses one that contains other numbers."""
    width = len(rows[0].fields)
    if width == 1 or not all(_WORD_NUMBER.fullmatch(row.fields[0]) for row in rows):
        return rows
    # A text may consist of numbers. Then the second column contains tags and not words.
    if _second_column_is_tag(rows):
        return rows

    # A column that counts, with a word and a tag after it, is left out.
    longest, is_count = _count_words(rows)
    if width > 2 and is_count and longest > 1:
        tags = {row.fields[-1] for row in rows}
        if width == _CONLL_U_COLUMNS and find_notation(tags) is None:
            raise UserError(
                f"{path}: is a CoNLL-U file, whose last column is not a tag. Write a file with only the word and its "
                "tag on each line."
            )
        logger.info(
            "%s: the first column counts the words; column 2 is read as the word and column %d as its tag", path, width
        )
        return [row._replace(fields=row.fields[1:]) for row in rows]
    # Other numbers may be numbers of sentences. Very short inputs may consist of numbers by chance.
    if (width > 2 and len(rows) > 2) or (is_count and longest > 2):
        raise UserError(
            f"{path}: the first column contains only numbers, for example {shown(rows[0].fields[0])}. Write the word "
            "first and its tag last on every line."
        )
    return rows


def _count_words(rows: Sequence[_Row]) -> tuple[int, bool]:
    """Returns the length of the longest sentence, and whether the first column counts the words from 0 or 1.

    Some programs count in every sentence, others through the file.
    """
    numbers = [row.fields[0] for row in rows]
    longest = 0
    in_sentences = True
    for _, group in groupby(rows, key=lambda row: row.sentence):
        sentence_numbers = [row.fields[0] for row in group]
        longest = max(longest, len(sentence_numbers))
        in_sentences &= _counts_up(sentence_numbers)
    return longest, in_sentences or _counts_up(numbers)


def _counts_up(numbers: Sequence[str]) -> bool:
    first = numbers[0]
    if first not in ("0", "1"):
        return False
    return list(numbers) == [str(number) for number in range(int(first), int(first) + len(numbers))]


def _has_tags(path: Path, rows: Sequence[_Row]) -> bool:
    """Returns whether the last column contains tags."""
    if len(rows[0].fields) == 1:
        return False
    if all(row.fields[-1] == NO_TAG for row in rows):
        logger.info("%s: the last column contains only %s, so the words have no tags", path, NO_TAG)
        return False
    return True


# --- Writing ----------------------------------------------------------------------------------------------------------


def written_field(field: str) -> str:
    """Returns a word or a tag as it is written on a line: other white space becomes a space, an empty word becomes _.

    Words from JSON may contain tabs and line ends or be empty.
    """
    return _WHITE_SPACE.sub(" ", field).strip(" ") or NO_TAG


def write_tagged_text(file: IO[str], sentences: Iterable[Sequence[Sequence[str]]]) -> None:
    """Writes sentences as `conlleval` reads them: columns separated by spaces, an empty line after each sentence.

    If a word contains spaces, all columns are separated by tabs (`conlleval -d '\\t'`).

    Args:
        file: the file.
        sentences: for each sentence its columns: words, then tags.
    """
    # The separator must be the same in the complete file, so all sentences are looked at before the first is written.
    written_sentences = []
    separator = " "
    for columns in sentences:
        written_columns = []
        for column in columns:
            fields = [written_field(field) for field in column]
            written_columns.append(fields)
            if any(" " in field for field in fields):
                separator = "\t"
        written_sentences.append(written_columns)
    for columns in written_sentences:
        for line in zip(*columns, strict=True):
            file.write(separator.join(line) + "\n")
        file.write("\n")


def read_written_text(path: Path) -> list[list[list[str]]]:
    """Reads a file of `write_tagged_text` exactly, sentences without words included.

    Returns:
        For each sentence its lines, each a list of columns.
    """
    # The general reader would recognize column names and word numbers. Here every line is known to be a word.
    lines = [line for _, line in numbered_lines(path)]
    separator = "\t" if any("\t" in line for line in lines) else " "
    sentences = []
    rows: list[list[str]] = []
    for line in lines:
        if line:
            rows.append(line.split(separator))
            continue
        sentences.append(rows)
        rows = []
    if rows:
        sentences.append(rows)
    return sentences
