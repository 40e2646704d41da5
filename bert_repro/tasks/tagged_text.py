"""Files of tagged text: a word and its tag on each line, an empty line after each sentence.

The columns are separated by spaces or tabs. The first one is the word, the last one the tag; those in between are left
out. A line that begins with `-DOCSTART-` begins a document. Many programs write such files, each a little differently,
and a file that is read in the wrong way still gives words and tags. So everything that is neither is recognized or
refused. First the layout of the complete file is found (`find_layout`):

1. Lines are divided into columns: only at tabs if words contain spaces. Quotation marks of spreadsheets are removed.
2. A first line that contains the names of the columns is not a word.
3. All lines must have the same number of columns, and the first one must not name the document or sentence.
4. A first column that only counts the words is left out.
5. A last column of underscores means that there are no tags.

Then its lines are read (`tagged_sentences`): comments are left out, and words are collected into sentences and
documents. Neither step needs the complete file in memory.
"""

import csv
import logging
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple, NotRequired, TypeAlias, TypedDict

from bert_repro.errors import UserError
from bert_repro.tasks.tag_schemes import find_notation, is_outside
from bert_repro.utils.readers import numbered_lines, quoted

if TYPE_CHECKING:
    import datasets

logger = logging.getLogger("bert_repro")

Lines: TypeAlias = Iterable[tuple[int, str]]
"""Numbers and texts of lines, without line ends."""

WORD_COLUMNS = ("words", "tokens")
TAG_COLUMNS = ("tags", "ner_tags", "labels")
"""Names of the columns of words and tags in data with a sentence per row."""
DOCUMENT_START = "-DOCSTART-"
LONG_SENTENCE = 1_000  # Words; a longer sentence suggests that empty lines are missing.
FEW_WORDS = 10  # With fewer, all words of a sentence may be equal by chance.
NO_TAG = "_"
"""What programs write in the column of tags if there are none."""

_WORD_COLUMN_NAMES = frozenset({"word", "words", "token", "tokens", "form"})
_TAG_COLUMN_NAMES = frozenset({"tag", "tags", "label", "labels", "ner", "ner_tag", "ner_tags", "entity", "pos"})
_QUOTED_FIELD = re.compile('"([^"]|"")*"')
_NUMBER_WITH_COMMA = re.compile("[0-9]+,[0-9.,]*")
_WORD_NUMBER = re.compile("[0-9]+([-.][0-9]+)?")
_WHITE_SPACE = re.compile("[ \t\r\n]+")
_CONLL_U_COLUMNS = 10


@dataclass(frozen=True)
class Layout:
    """How a file of tagged text is written; the same for all of its lines.

    Args:
        fields_of: divides a line into its columns.
        width: number of columns.
        word_column: index of the column that contains the words: 1 if the first one counts them, otherwise 0.
        has_tags: whether the last column contains tags.
        has_documents: whether there are lines that begin a document.
        tags: the different texts of the last column.
        names_line: number of the line that contains the names of the columns, or None.
    """

    fields_of: Callable[[str], list[str]]
    width: int
    word_column: int
    has_tags: bool
    has_documents: bool
    tags: frozenset[str]
    names_line: int | None

    def is_comment(self, fields: Sequence[str]) -> bool:
        """Returns whether the first line of a sentence is a comment (`# sent_id = 1`)."""
        if not fields[0].startswith("#"):
            return False
        # A word may begin with # too, but then it has as many columns as the others, and a tag at the end.
        if len(fields) != self.width or self.word_column > 0:
            return True
        return fields[-1] not in self.tags and any("=" in text for text in fields[1:])


class TaggedSentence(TypedDict):
    """A sentence of tagged text.

    Args:
        words: the words.
        tags: the tag of each word, if the file has tags.
        document: number of the document from 0, if the file marks documents.
    """

    words: list[str]
    tags: NotRequired[list[str]]
    document: NotRequired[int]


class _Row(NamedTuple):
    """One line with a word or a comment.

    Args:
        number: number of the line.
        fields: the columns, without empty ones.
        sentence: number of the sentence.
        document: number of the document; -1 before the first `-DOCSTART-`.
    """

    number: int
    fields: list[str]
    sentence: int
    document: int


# --- Reading ----------------------------------------------------------------------------------------------------------


def read_tagged_text(path: Path, lines: Lines | None = None) -> "datasets.Dataset":
    """Reads a file of tagged text; see the top of this module.

    Args:
        path: the file, also for messages.
        lines: the lines if they do not come from the file.

    Returns:
        A row per sentence, with the columns of `TaggedSentence`.

    Raises:
        UserError: the file is missing, empty or not UTF-8, or its columns cannot be told apart.
    """
    import datasets

    all_lines = list(numbered_lines(path) if lines is None else lines)
    layout = find_layout(path, lambda: all_lines)
    columns: dict[str, list[object]] = {"words": []}
    if layout.has_tags:
        columns["tags"] = []
    if layout.has_documents:
        columns["document"] = []
    for sentence in tagged_sentences(path, all_lines, layout):
        for name, value in sentence.items():
            columns[name].append(value)
    return datasets.Dataset.from_dict(columns)


def tagged_sentences(path: Path, lines: Lines, layout: Layout) -> Iterator[TaggedSentence]:
    """Yields the sentences of a file of tagged text one by one.

    Args:
        path: the file, for messages.
        lines: all lines of the file.
        layout: from `find_layout`.

    Raises:
        UserError: a line has another number of columns.
    """
    longest = 0
    for rows in _sentences(path, lines, layout):
        longest = max(longest, len(rows))
        # Most words and tags occur many times, and interned strings share their memory.
        sentence = TaggedSentence(words=[sys.intern(row.fields[layout.word_column]) for row in rows])
        if layout.has_tags:
            sentence["tags"] = [sys.intern(row.fields[-1]) for row in rows]
        # Sentences before the first mark belong to the first document. Without any mark, nothing is known about
        # documents, and each sentence is read alone.
        if layout.has_documents:
            sentence["document"] = max(rows[0].document, 0)
        yield sentence
    if longest > LONG_SENTENCE:
        logger.warning("%s: a sentence has %d words. Write an empty line after each sentence.", path, longest)


def _sentences(path: Path, lines: Lines, layout: Layout) -> Iterator[list[_Row]]:
    """Yields the words of each sentence, without comments and names of columns."""
    num_comments = 0
    for _, group in groupby(_rows(lines, layout.fields_of), key=lambda row: row.sentence):
        sentence: list[_Row] = []
        for row in group:
            if row.number == layout.names_line:
                continue
            # Inside a sentence, # is a word.
            if not sentence and layout.is_comment(row.fields):
                num_comments += 1
                continue
            _require_width(path, row, layout.width)
            sentence.append(row)
        if sentence:
            yield sentence
    if num_comments:
        logger.info("%s: left out %d lines of comments, which begin with #", path, num_comments)


def _require_width(path: Path, row: _Row, width: int) -> None:
    if len(row.fields) != width:
        raise UserError(
            f"{path}, line {row.number}: {quoted(row.fields[0])} has {len(row.fields)} columns, but the lines before "
            f"have {width}. Write the word first and its tag last on every line, and separate columns by tabs if words "
            "contain spaces."
        )


def _rows(lines: Lines, fields_of: Callable[[str], list[str]]) -> Iterator[_Row]:
    """Divides lines into columns and numbers the sentences and documents."""
    sentence = 0
    document = -1
    for number, text in _stripped_lines(lines):
        is_document_start = _begins_document(text)
        fields = [] if is_document_start else fields_of(text)
        # A spreadsheet may write an empty line as empty fields in quotation marks.
        if not fields:
            sentence += 1
            document += is_document_start
            continue
        yield _Row(number, fields, sentence, document)


def _stripped_lines(lines: Lines) -> Iterator[tuple[int, str]]:
    """Yields lines without white space at both ends, with their numbers as an editor counts them."""
    # Old Mac files have a carriage return where others have a line feed, so they arrive as one long line.
    num_added = 0
    for number, line in lines:
        texts = line.rstrip("\r").split("\r")
        for place, text in enumerate(texts):
            # Only these: other kinds of white space may be inside a word, and at its end.
            yield number + num_added + place, text.strip(" \t")
        num_added += len(texts) - 1


def _begins_document(text: str) -> bool:
    return text.startswith(DOCUMENT_START) and _fields_by_white_space(text)[0] == DOCUMENT_START


# --- Columns ----------------------------------------------------------------------------------------------------------


def _fields_by_white_space(text: str) -> list[str]:
    return [field for field in text.replace("\t", " ").split(" ") if field]


def _fields_by_tabs(text: str) -> list[str]:
    fields = [field.strip(" ") for field in text.split("\t")]
    # Files that are aligned by hand have several tabs after a short word.
    return [field for field in fields if field]


def _fields_by_quotes(text: str) -> list[str]:
    if not text:
        return []
    return _fields_by_tabs("\t".join(next(csv.reader([text], delimiter="\t"))))


@dataclass
class _Separators:
    """What the lines of a file show about its separators.

    Args:
        num_lines: lines with words.
        num_with_tabs: lines that contain a tab.
        widths_by_tabs: the numbers of columns, divided at tabs.
        widths_by_white_space: the numbers of columns, divided at spaces and tabs.
        first_line: the first line with a word, and its number.
        all_quotes_close: whether every field that begins with a quotation mark is completely in quotation marks.
        has_quotes_of_tables: whether a field is in quotation marks although it is not a quoted word.
        quotes_every_field: whether all fields of all lines are in quotation marks.
    """

    num_lines: int = 0
    num_with_tabs: int = 0
    widths_by_tabs: set[int] = field(default_factory=set)
    widths_by_white_space: set[int] = field(default_factory=set)
    first_line: tuple[int, str] = (0, "")
    all_quotes_close: bool = True
    has_quotes_of_tables: bool = False
    quotes_every_field: bool = True

    def add(self, number: int, text: str) -> None:
        """Looks at one line."""
        if not self.num_lines:
            self.first_line = (number, text)
        self.num_lines += 1
        if "\t" in text:
            self.num_with_tabs += 1
            self.widths_by_tabs.add(len(_fields_by_tabs(text)))
            self.widths_by_white_space.add(len(_fields_by_white_space(text)))
        if '"' in text:
            self._add_quotes(text)
        else:
            self.quotes_every_field = False

    def _add_quotes(self, text: str) -> None:
        for field_text in text.split("\t"):
            if not field_text.startswith('"'):
                self.quotes_every_field = False
                continue
            if not _QUOTED_FIELD.fullmatch(field_text):
                self.all_quotes_close = False
                continue
            # Spreadsheets and pandas put a field that contains a comma or a quotation mark into quotation marks, and
            # double those inside. A text may contain a quoted word ("Yes"), but hardly one of these.
            content = field_text[1:-1]
            if content == "," or '""' in content or _NUMBER_WITH_COMMA.fullmatch(content):
                self.has_quotes_of_tables = True

    @property
    def uses_quotes(self) -> bool:
        """Whether quotation marks are those of a spreadsheet or of pandas, and not part of the text."""
        # A file with only one column has no tabs, but a spreadsheet still writes quotation marks.
        has_equal_lines = self.num_with_tabs in (0, self.num_lines)
        if not has_equal_lines or not self.all_quotes_close:
            return False
        return self.has_quotes_of_tables or (self.quotes_every_field and self.num_lines > 1)


def _find_division(path: Path, lines: Lines) -> Callable[[str], list[str]]:
    """Returns the function that divides a line of the file into its columns."""
    separators = _Separators()
    hash_lines = _Separators()
    for number, text in _stripped_lines(lines):
        if not text or _begins_document(text):
            continue
        # Comments need not have columns, so lines that may be comments only count if there are no others.
        if text.startswith("#"):
            hash_lines.add(number, text)
        else:
            separators.add(number, text)
    if not separators.num_lines:
        separators = hash_lines

    if separators.uses_quotes:
        return _fields_by_quotes
    has_tabs = 0 < separators.num_with_tabs == separators.num_lines
    if not has_tabs or separators.widths_by_tabs == separators.widths_by_white_space:
        return _fields_by_white_space

    # Some fields contain spaces. If splitting at spaces too gives the same number of columns on every line, both
    # readings are possible: the spaces separate columns, or they belong to the words.
    if len(separators.widths_by_tabs) == 1 and len(separators.widths_by_white_space) == 1:
        number, text = separators.first_line
        raise UserError(
            f"{path}, line {number}: {quoted(text)} has spaces and tabs, so its columns cannot be told apart. Separate "
            "columns by tabs only if words contain spaces, and otherwise by one of the two."
        )
    if len(separators.widths_by_white_space) == 1:
        return _fields_by_white_space
    return _fields_by_tabs


# --- Layout -----------------------------------------------------------------------------------------------------------


@dataclass
class _ColumnContents:
    """What the columns of a file contain.

    Args:
        width: number of columns of the first line.
        num_words: lines with words.
        first_text: the first field of the file.
        second_column: the different texts of the second column.
        tags: the different texts of the last column.
        has_only_numbers: whether the first column contains only numbers.
        names_sentences: whether the first column has the same text on all lines of each sentence.
        counts_sentences: whether the first column counts the words of each sentence, from 0 or 1.
        counts_file: whether the first column counts the words of the file.
        longest: words of the longest sentence.
    """

    width: int = 0
    num_words: int = 0
    first_text: str = ""
    second_column: set[str] = field(default_factory=set)
    tags: set[str] = field(default_factory=set)
    has_only_numbers: bool = True
    names_sentences: bool = True
    counts_sentences: bool = True
    counts_file: bool = True
    longest: int = 0
    _next_number: str = ""

    def add(self, path: Path, sentence: Sequence[_Row]) -> None:
        """Looks at the words of one sentence."""
        if not self.num_words:
            self.first_text = sentence[0].fields[0]
            self.width = len(sentence[0].fields)
            self._next_number = self.first_text
        for row in sentence:
            _require_width(path, row, self.width)
            self.tags.add(row.fields[-1])
            if self.width > 1:
                self.second_column.add(row.fields[1])

        first_column = [row.fields[0] for row in sentence]
        self.num_words += len(sentence)
        self.longest = max(self.longest, len(sentence))
        self.names_sentences = self.names_sentences and len(set(first_column)) == 1
        # In most files the first sentence already contains a word that is not a number.
        if not self.has_only_numbers:
            return
        self.has_only_numbers = all(_WORD_NUMBER.fullmatch(text) for text in first_column)
        begins_count = first_column[0] in ("0", "1")
        if not begins_count or not _is_count(first_column, first_column[0]):
            self.counts_sentences = False
        if not _is_count(first_column, self._next_number):
            self.counts_file = False
        if self.counts_file:
            self._next_number = str(int(first_column[-1]) + 1)

    @property
    def second_column_is_tag(self) -> bool:
        """Whether the second of several columns contains tags of entities, so that the first one is the word."""
        return find_notation(self.second_column) is not None or all(map(is_outside, self.second_column))


def _is_count(numbers: Sequence[str], first: str) -> bool:
    """Returns whether numbers follow each other, beginning with the given one."""
    if not first.isdecimal():
        return False
    return list(numbers) == [str(number) for number in range(int(first), int(first) + len(numbers))]


def find_layout(path: Path, read_lines: Callable[[], Lines]) -> Layout:
    """Finds out how a file of tagged text is written. Only one sentence at a time is in memory.

    Args:
        path: the file, for messages.
        read_lines: returns all lines of the file; called several times.

    Raises:
        UserError: there are no words, or the columns cannot be told apart.
    """
    fields_of = _find_division(path, read_lines())
    names_line = _find_names_line(path, _rows(read_lines(), fields_of))

    # Lines that begin with # are looked at later, because they may be comments. If there are no others, they are words.
    contents = _ColumnContents()
    for with_hash in (False, True):
        rows = _rows(read_lines(), fields_of)
        for _, group in groupby(rows, key=lambda row: row.sentence):
            sentence = [row for row in group if row.fields[0].startswith("#") == with_hash and row.number != names_line]
            if sentence:
                contents.add(path, sentence)
        if contents.num_words:
            break
    if not contents.num_words:
        raise UserError(f"{path}: no rows. Choose a file with at least one word.")

    _require_words_first(path, contents)
    word_column = _find_word_column(path, contents)
    has_tags = contents.width > 1
    if has_tags and contents.tags == {NO_TAG}:
        logger.info("%s: the last column contains only %s, so the words have no tags", path, NO_TAG)
        has_tags = False
    return Layout(
        fields_of,
        width=contents.width,
        word_column=word_column,
        has_tags=has_tags,
        has_documents=any(_begins_document(text) for _, text in _stripped_lines(read_lines())),
        tags=frozenset(contents.tags),
        names_line=names_line,
    )


def _find_names_line(path: Path, rows: Iterator[_Row]) -> int | None:
    """Returns the number of the first line if it contains names of columns, such as `token` and `tag`."""
    first_row = next(rows, None)
    if first_row is None or len(first_row.fields) < 2:
        return None
    names = [text.lower() for text in first_row.fields]
    if names[-1] not in _TAG_COLUMN_NAMES or not _WORD_COLUMN_NAMES.intersection(names[:2]):
        return None
    logger.info("%s: the first line contains the names of the columns: %s", path, ", ".join(first_row.fields))
    return first_row.number


def _require_words_first(path: Path, contents: _ColumnContents) -> None:
    """Refuses a first column that names the document or the sentence, as in the files of CoNLL-2012."""
    if contents.width < 3 or contents.num_words < FEW_WORDS or contents.second_column_is_tag:
        return
    if contents.names_sentences:
        raise UserError(
            f"{path}: the first column has the same text on all lines of a sentence, for example "
            f"{quoted(contents.first_text)}. Write the word first and its tag last on every line."
        )


def _find_word_column(path: Path, contents: _ColumnContents) -> int:
    """Returns 1 if the first column counts the words, otherwise 0. A first column of other numbers is refused."""
    # A text may consist of numbers. Then the second column contains tags and not words.
    if contents.width == 1 or not contents.has_only_numbers or contents.second_column_is_tag:
        return 0

    # A column that counts, with a word and a tag after it, is left out.
    is_count = contents.counts_sentences or contents.counts_file
    if contents.width > 2 and is_count and contents.longest > 1:
        if contents.width == _CONLL_U_COLUMNS and find_notation(contents.tags) is None:
            raise UserError(
                f"{path}: is a CoNLL-U file, whose last column is not a tag. Write a file with only the word and its "
                "tag on each line."
            )
        logger.info(
            "%s: the first column counts the words; column 2 is read as the word and column %d as its tag",
            path,
            contents.width,
        )
        return 1
    # Other numbers may be numbers of sentences. Very short inputs may consist of numbers by chance.
    if (contents.width > 2 and contents.num_words > 2) or (is_count and contents.longest > 2):
        raise UserError(
            f"{path}: the first column contains only numbers, for example {quoted(contents.first_text)}. Write the "
            "word first and its tag last on every line."
        )
    return 0


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


def join_written_text(parts: Sequence[Path], target: Path) -> None:
    """Joins files of `write_tagged_text`, with the same separator in the complete result.

    Args:
        parts: the files, in order.
        target: the file to write.
    """
    uses_tabs = any(_has_tab(part) for part in parts)
    with target.open("w", encoding="utf-8", newline="") as file:
        for part in parts:
            # In a part without tabs, no word contains a space, so every space separates columns.
            replaces_spaces = uses_tabs and not _has_tab(part)
            with part.open(encoding="utf-8", newline="") as source:
                for line in source:
                    file.write(line.replace(" ", "\t") if replaces_spaces else line)


def _has_tab(path: Path) -> bool:
    with path.open(encoding="utf-8", newline="") as file:
        return any("\t" in line for line in file)


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
