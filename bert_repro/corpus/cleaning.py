"""Extracts the text passages of a document, as the paper does with Wikipedia ("only the text passages", 3.1).

The paper does not publish its rules. These are our choice, made by reading what they keep and drop in Wikipedia
extracts and in novels. A document goes through three steps:

1. Hard-wrapped lines (about equally long, most of them ending inside a sentence) are joined to paragraphs.
2. Each line is repaired: tags, templates, wiki links, placeholders of formulas, footnote marks, and empty or unpaired
   brackets are removed.
3. Each line is kept, or dropped by the first of these rules that applies:

- `title`: the first line repeats the document's title. The document is then an article; see `heading`.
- `markup`: templates, table cells, files and categories of wiki text, and `[Illustration]` lines.
- `symbols`: not more letters than symbols and digits (tables, rules, rows of asterisks).
- `list`: starts with a bullet.
- `heading`: a chapter line; a line in capitals; a line under 10 words that does not end as text does; in an
  article any line under 10 words, because headings end in a full stop there.

A document with fewer than 20 words left is dropped completely (`short_document`, all its kept lines).
"""

import html
import re
from collections import Counter

from bert_repro.corpus.documents import Document

SHORT_LINE_WORDS = 10
SHORT_DOCUMENT_WORDS = 20
CHAPTER_LINE_WORDS = 30
RULES_VERSION = 1
"""Raise it with every change of what the rules keep, drop or repair. Parts made by different rules are never mixed."""
RULES = ("title", "markup", "symbols", "list", "heading", "short_document")

# A document counts as hard-wrapped if 95% of its lines have at most WRAPPED_WIDTH characters, half of them at least
# WRAPPED_MEDIAN, and at most WRAPPED_ENDINGS of them end a sentence. (Novels: hard-wrapped ones measure 57-79
# characters and 16-47% endings, the others 335-6250 characters and 54-99%.)
WRAPPED_WIDTH = 100  # characters
WRAPPED_MEDIAN = 45  # characters
WRAPPED_ENDINGS = 0.6  # of the lines
WRAPPED_MIN_LINES = 4
BLANK_LINES_SEPARATE = 0.05
"""If at least this share of the lines is blank, blank lines separate the paragraphs of a hard-wrapped document."""

# --- Patterns of step 2, repair ---------------------------------------------------------------------------------------

_TAG_NAMES = (
    "br|p|div|span|ref|small|big|sub|sup|i|b|u|s|em|strong|poem|dl|dd|dt|li|ul|ol|table|tr|td|th|center|blockquote"
    "|onlyinclude|noinclude|includeonly|math|nowiki|gallery|font|code|pre|cite|hr"
)
_TAG = re.compile(rf"</?(?:{_TAG_NAMES})\b[^<>]*>", re.IGNORECASE)
_LINK = re.compile(r"\[\[(?:[^\[\]|]*\|)?([^\[\]|]*)\]\]")
_PLACEHOLDER = re.compile(r"\b(?:formula|codice)_\d+\b")
_FOOTNOTE = re.compile(r"\[\s*(?:\d{1,3}|update|citation needed|note \d+)\s*\]", re.IGNORECASE)
_EMPTY_PARENTHESES = re.compile(r" \([,;:\s]*\)")
_TEMPLATE = re.compile(r"\{\{[^{}]*\}\}")
# Python refuses to convert a number with so many digits.
_ENDLESS_NUMBER = re.compile(r"&#(\d{1000,}|[xX][0-9a-fA-F]{1000,});?")
_SCENE_BREAK = re.compile(r"^(?:\* ?){3,}(?=[^* ])")

# --- Patterns of step 3, the rules ------------------------------------------------------------------------------------
_MARKUP = re.compile(r"\{\{|\}\}|\{\||\|\}|#if:|^[|}]|\[\[(?:File|Image|Category)\b|^Category:|^&rft", re.IGNORECASE)
_ILLUSTRATION = re.compile(r"Illustration\b", re.IGNORECASE)
_BULLET = re.compile(r"[*•·▪◦‣●○■□➢►]\s")
_DASH_BULLET = re.compile(r"[-–]\s")
_PUNCTUATION = re.compile(r"[ !-@\[-`{-~\u2000-\u206f]")
_SYMBOL = re.compile(r"[#-&*+/0-9<-@\\^_|~()\-]")
_TERMINAL = re.compile(r"[.!?…。！？｡।॥؟۔։።]\s?[\"'”’´»)\]」』*_]*$")
_CONTINUES = re.compile(r"[,;:—–-]\s?[\"'”’´»)]*$")
_ROMAN_OR_NUMBER = (
    r"(?:[ivxlc]+|\d+|(?:the\s+)?(?:first|second|third|fourth|fifth|sixth|seventh|eighth|ninth|tenth|last"
    r"|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen|seventeen"
    r"|eighteen|nineteen|(?:twenty|thirty|forty|fifty|sixty)(?:[- ]\w+)?))"
)
_CHAPTER_WORD = r"(?:chapter|book|part|volume|vol\.|section|canto|act|scene|stave|epilogue|prologue|appendix)"
_CHAPTER = re.compile(
    rf"(?i:{_CHAPTER_WORD}\s+{_ROMAN_OR_NUMBER})\b(?:$|\s*[.:—–-]|\s+[A-Z])|(?i:{_CHAPTER_WORD})[.:]?$"
)
# Scripts without spaces between words. Two of their characters count as a word.
_UNSPACED = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3]")


def clean(document: Document, counts: Counter[str], *, passages_only: bool, unwrap: bool) -> list[str]:
    """Returns the paragraphs of a document and adds to `counts` what was read, kept and dropped.

    Args:
        document: from `documents.py`.
        counts: words, bytes, and lines by the rule that dropped them, as in the manifest.
        passages_only: keep text passages only (`passages`). Otherwise each line is a paragraph.
        unwrap: join hard-wrapped lines; see `passages`.
    """
    counts["documents_read"] += 1
    counts["bytes_read"] += len(document.text.encode("utf-8"))
    if passages_only:
        paragraphs = passages(document.text, document.title, counts, unwrap=unwrap)
    else:
        paragraphs = [line.strip() for line in document.text.splitlines() if line.strip()]
    counts["words"] += sum(len(paragraph.split()) for paragraph in paragraphs)
    counts["bytes"] += sum(len(paragraph.encode("utf-8")) for paragraph in paragraphs)
    return paragraphs


def passages(
    text: str, title: str | None = None, counts: Counter[str] | None = None, *, unwrap: bool = True
) -> list[str]:
    """Returns the text passages of a document, one string per paragraph.

    Args:
        text: the document.
        title: its title, if known. A first line equal to it marks an article whose headings end in a full stop.
        counts: the number of lines that each of the `RULES` drops is added to it as `dropped_RULE`, and the number of
            repaired lines as `lines_repaired`.
        unwrap: join hard-wrapped lines to paragraphs. Switch it off if each line is a sentence.

    Returns:
        Paragraphs in order, with normalized white space; empty if nothing in the document is text.
    """
    counts = Counter() if counts is None else counts
    lines = [" ".join(line.split()) for line in text.splitlines()]

    # A first line that repeats the title is dropped and marks an article.
    first = next((index for index, line in enumerate(lines) if line), len(lines))
    is_article = title is not None and first < len(lines) and lines[first] == " ".join(title.split())
    if is_article:
        counts["dropped_title"] += 1
        lines = lines[first + 1 :]

    # Steps 1 to 3 of the module's docstring.
    kept: list[str] = []
    for line in _unwrap(lines) if unwrap else lines:
        if not line:
            continue
        repaired = repair(line)
        counts["lines_repaired"] += repaired != line
        rule = _drop_rule(repaired, is_article)
        if rule is None:
            kept.append(repaired)
        else:
            counts[f"dropped_{rule}"] += 1

    # What is left of a table or a list of links is not worth a document.
    if sum(map(count_words, kept)) < SHORT_DOCUMENT_WORDS:
        counts["dropped_short_document"] += len(kept)
        return []
    return kept


def count_words(line: str) -> int:
    """Returns the number of words in a line. In scripts without spaces two characters count as a word."""
    words = len(line.split())
    if line.isascii():
        return words
    return words + len(_UNSPACED.findall(line)) // 2


# --- Step 2: repairing lines ------------------------------------------------------------------------------------------


def repair(line: str) -> str:
    """Removes debris from a line; see step 2 of the module's docstring."""
    # Looking for a character first is much faster than a pattern, and most lines contain none of them.
    if "&" in line:
        line = html.unescape(_ENDLESS_NUMBER.sub("\ufffd", line))
    if "<" in line:
        line = _TAG.sub(" ", line)
    if "[" in line or "]" in line:
        line = _FOOTNOTE.sub("", _LINK.sub(r"\1", line))
        # Brackets without a partner are the rest of markup that was removed before.
        if line.count("[") != line.count("]"):
            line = line.replace("[", "").replace("]", "")
    if "{{" in line:
        line = _TEMPLATE.sub("", line)
    if "_" in line:
        line = _PLACEHOLDER.sub("", line)
    if line.startswith("*"):
        line = _SCENE_BREAK.sub("", line)
    if "(" in line:
        line = _EMPTY_PARENTHESES.sub("", line)
    return " ".join(line.split())


# --- Step 3: dropping lines -------------------------------------------------------------------------------------------


def _drop_rule(line: str, is_article: bool) -> str | None:
    """Returns the first rule that drops a repaired line, or None if it is kept."""
    is_illustration = line.endswith("]") and _ILLUSTRATION.search(line)
    if not line or _MARKUP.search(line) or is_illustration:
        return "markup"

    num_letters = len(line) - len(_PUNCTUATION.findall(line))
    if num_letters <= len(_SYMBOL.findall(line)):
        return "symbols"

    # A dash also opens direct speech, which ends like a sentence.
    ends_as_text = _TERMINAL.search(line) is not None
    if _BULLET.match(line) or (not ends_as_text and _DASH_BULLET.match(line)):
        return "list"

    num_words = count_words(line)
    is_short = num_words < SHORT_LINE_WORDS
    if _is_chapter(line, num_words) or (is_short and (is_article or _is_capitals(line))):
        return "heading"
    # A short line that ends with a comma or colon continues in the next one.
    if is_short and not ends_as_text and not _CONTINUES.search(line):
        return "heading"
    return None


def _is_chapter(line: str, num_words: int) -> bool:
    return num_words < CHAPTER_LINE_WORDS and _CHAPTER.match(line) is not None


def _is_capitals(line: str) -> bool:
    # A line in quotation marks is somebody shouting.
    return line.isupper() and line[0] not in "\"'“‘«"


# --- Step 1: joining hard-wrapped lines -------------------------------------------------------------------------------


def _unwrap(lines: list[str]) -> list[str]:
    """Joins the lines of a hard-wrapped document to paragraphs; returns the lines of other documents that have text."""
    texts = [line for line in lines if line]
    if not _is_wrapped(texts):
        return texts
    num_blank = len(lines) - len(texts)
    if num_blank >= BLANK_LINES_SEPARATE * len(lines):
        return _join(lines, width=None)
    lengths = sorted(map(len, texts))
    return _join(lines, width=_percentile(lengths, 0.95))


def _is_wrapped(texts: list[str]) -> bool:
    """Returns whether lines are hard-wrapped; see `WRAPPED_WIDTH`."""
    if len(texts) < WRAPPED_MIN_LINES:
        return False
    lengths = sorted(map(len, texts))
    if _percentile(lengths, 0.95) > WRAPPED_WIDTH or _percentile(lengths, 0.5) < WRAPPED_MEDIAN:
        return False
    num_endings = sum(_TERMINAL.search(line) is not None for line in texts)
    return num_endings <= WRAPPED_ENDINGS * len(texts)


def _percentile(ordered: list[int], share: float) -> int:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _join(lines: list[str], width: int | None) -> list[str]:
    """Joins hard-wrapped lines to paragraphs. Headings always stay alone.

    Args:
        lines: the lines of a document.
        width: None if blank lines separate paragraphs. Otherwise the width of the lines in characters: a line that ends
            a sentence, although the next line's first word would have fitted, ends the paragraph.
    """
    # Pieces of paragraphs. Joining line by line would copy a long paragraph for each of its lines.
    paragraphs: list[list[str]] = []
    is_open = after_heading = False
    for line, next_line in zip(lines, [*lines[1:], ""], strict=True):
        if not line:
            is_open = False
            continue
        next_word = next_line.split(" ", 1)[0]
        had_room = width is not None and len(line) + 1 + len(next_word) <= width
        ends_as_text = _TERMINAL.search(line) is not None

        # A short line after a heading is its second line, for example the title of a chapter.
        is_heading = _is_chapter(line, count_words(line)) or _is_capitals(line)
        continues_heading = after_heading and not is_open and had_room and not ends_as_text
        if is_heading or continues_heading:
            paragraphs.append([line])
            is_open, after_heading = False, True
            continue

        if is_open:
            paragraphs[-1] += _continuation(paragraphs[-1][-1], line)
        else:
            paragraphs.append([line])
        is_open = not (ends_as_text and had_room)
        after_heading = False
    return ["".join(pieces) for pieces in paragraphs]


def _continuation(last_piece: str, line: str) -> list[str]:
    """Returns a line as pieces to append to a paragraph: without a space after a hyphenated word."""
    is_hyphenated = last_piece.endswith("-") and last_piece[-2:-1].isalpha()
    return [line] if is_hyphenated else [" ", line]
