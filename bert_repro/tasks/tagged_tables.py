"""Reads tagged words from the rows of a table (CSV, TSV, Excel).

Two forms are in use:

    words,tags                          a sentence per row: its words and its tags, separated by spaces, or lists
    "Ann lives in Rome",B-PER O O B-LOC

    sentence,word,tag                   a word per row; the first column says to which sentence it belongs. Some tables
    1,Ann,B-PER                         name the sentence only in the row of its first word.
    1,lives,O

The other columns of a sentence are kept; those of single words are left out.
"""

import ast
import re
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from bert_repro.errors import UserError
from bert_repro.tasks.tagged_text import TAG_COLUMNS, WORD_COLUMNS
from bert_repro.utils.readers import comma_separated, quoted

NamedRows = Iterator[tuple[int, dict[str, str]]]
"""Line numbers and rows (column name -> field)."""
Sentence = dict[str, object]

_WORD_NAMES = ("word", "token", "form")
_TAG_NAMES = ("tag", "ner_tag", "ner", "label", "iob", "bio")
_SENTENCE_NAMES = ("sentence", "sentence #", "sentence_id", "sentence_idx", "sent_id", "sentence id", "sentence_number")
_LISTS_OF_NUMPY = re.compile(r"""['"]\s+['"]""")
"""NumPy writes a list without commas, which Python would read as one word."""


def is_tagged_table(columns: Sequence[str]) -> bool:
    """Returns whether a table with these columns has one of the two forms, with or without tags."""
    return bool(set(WORD_COLUMNS) & set(columns)) or _column(columns, _WORD_NAMES) is not None


def tagged_table_rows(path: Path, rows: NamedRows) -> Iterator[Sentence]:
    """Yields the sentences of a table, with lists of words and, if there are any, of tags.

    Args:
        path: the file, for messages.
        rows: its rows.

    Raises:
        UserError: the table has neither form, a row has more tags than words or the reverse, or nothing says which
            words make a sentence.
    """
    first = next(rows, None)
    if first is None:
        return iter(())
    columns = list(first[1])
    all_rows = chain([first], rows)
    for name in WORD_COLUMNS:
        if name in columns:
            tag_name = next((column for column in TAG_COLUMNS if column in columns), None)
            return _sentence_per_row(path, all_rows, name, tag_name)

    word_name = _column(columns, _WORD_NAMES)
    if word_name is None:
        raise UserError(
            f"{path} has the columns {comma_separated(columns)}. Tagged words need the columns words and tags, with a "
            "sentence in each row, or sentence, word and tag, with a word in each row. A .txt or .jsonl file is read "
            "too."
        )
    sentence_name = _column(columns, _SENTENCE_NAMES)
    if sentence_name is None:
        raise UserError(
            f"{path} has a word in each row (column {word_name!r}), but no column says which words make a sentence. "
            "Add a column `sentence` with the number of the sentence."
        )
    return _word_per_row(path, all_rows, sentence_name, word_name, _column(columns, _TAG_NAMES))


def _column(columns: Sequence[str], names: Sequence[str]) -> str | None:
    """Returns the first column with one of the names, in any case."""
    by_name = {column.strip().lower(): column for column in columns}
    return next((by_name[name] for name in names if name in by_name), None)


def _sentence_per_row(path: Path, rows: NamedRows, word_name: str, tag_name: str | None) -> Iterator[Sentence]:
    for number, row in rows:
        words = _texts(path, number, row[word_name])
        sentence: Sentence = {**row, word_name: words}
        if tag_name is not None:
            tags = _texts(path, number, row[tag_name])
            if len(tags) != len(words):
                raise UserError(
                    f"{path}, line {number}: {len(words)} words, but {len(tags)} tags. Write one tag for each word, "
                    "separated by spaces."
                )
            sentence[tag_name] = tags
        yield sentence


def _texts(path: Path, number: int, field: str) -> list[str]:
    """Returns the words or tags of a field: a list that is written out, or a text with spaces."""
    if not (field.startswith("[") and field.endswith("]")):
        return field.split()
    if _LISTS_OF_NUMPY.search(field):
        raise UserError(
            f"{path}, line {number}: {quoted(field)} is a list without commas, whose words cannot be told apart. Write "
            "the words with spaces between them, or use JSON lines or Parquet."
        )
    try:
        # This evaluates constants only, never code.
        texts = ast.literal_eval(field)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        # A sentence may begin and end with a bracket.
        return field.split()
    return [str(text) for text in texts] if isinstance(texts, list) else field.split()


def _word_per_row(
    path: Path, rows: NamedRows, sentence_name: str, word_name: str, tag_name: str | None
) -> Iterator[Sentence]:
    sentence: str | None = None
    words: list[str] = []
    tags: list[str] = []
    for number, row in rows:
        name = row[sentence_name].strip()
        begins_sentence = bool(name) and name != sentence
        if begins_sentence and words:
            yield _sentence(words, tags, tag_name)
            words, tags = [], []
        if name:
            sentence = name
        # An empty word has no token that could carry a tag.
        if not row[word_name].strip():
            raise UserError(f"{path}, line {number}: the word is empty. Remove the row, or write the word.")
        words.append(row[word_name])
        if tag_name is not None:
            tags.append(row[tag_name].strip())
    if words:
        yield _sentence(words, tags, tag_name)


def _sentence(words: list[str], tags: list[str], tag_name: str | None) -> Sentence:
    if tag_name is None:
        return {"words": words}
    return {"words": words, "tags": tags}
