"""Extracts the text passages of a document, as the paper does with Wikipedia ("only the text passages", 3.1).

The paper does not publish its rules; these are our choice, made by reading what they keep and drop on Wikipedia
extracts and on novels. A document goes through three steps:

1. Hard-wrapped lines (about equally long, most of them ending inside a sentence) are joined to paragraphs.
2. Each line is repaired: tags, templates, wiki links, placeholders of formulas, footnote marks, empty and unpaired
   brackets are taken out.
3. Each line is kept, or dropped by the first of these rules that holds:

- `title`: the first line repeats the document's title. The document is then an article, see `heading`.
- `markup`: templates, table cells, files and categories of wiki text, and `[Illustration]` lines.
- `symbols`: no more letters than symbols and digits (tables, rules, rows of asterisks).
- `list`: starts with a bullet.
- `heading`: a chapter line; a line in capitals; a line under 10 words that does not end as text does; in an
  article any line under 10 words, because there headings end in a full stop.

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
"""Raised with every change of what the rules keep, drop or repair: parts made by different rules are never mixed."""
RULES = ("title", "markup", "symbols", "list", "heading", "short_document")

# A document counts as hard-wrapped when 95% of its lines have at most WRAPPED_WIDTH characters, half of them at least
# WRAPPED_MEDIAN, and at most WRAPPED_ENDINGS of them end a sentence. (Novels: hard-wrapped ones measure 57-79
# characters and 16-47% endings, the others 335-6250 characters and 54-99%.)
WRAPPED_WIDTH = 100
WRAPPED_MEDIAN = 45
WRAPPED_ENDINGS = 0.6
WRAPPED_MIN_LINES = 4
BLANK_LINES_SEPARATE = 0.05

_TAG_NAMES = (
    "br|p|div|span|ref|small|big|sub|sup|i|b|u|s|em|strong|poem|dl|dd|dt|li|ul|ol|table|tr|td|th|center|blockquote"
    "|onlyinclude|noinclude|includeonly|math|nowiki|gallery|font|code|pre|cite|hr"
)
_TAG = re.compile(rf"</?(?:{_TAG_NAMES})\b[^<>]*>", re.IGNORECASE)
_MARKUP = re.compile(r"\{\{|\}\}|\{\||\|\}|#if:|^[|}]|\[\[(?:File|Image|Category)\b|^Category:|^&rft", re.IGNORECASE)
_ILLUSTRATION = re.compile(r"Illustration\b", re.IGNORECASE)
_LINK = re.compile(r"\[\[(?:[^\[\]|]*\|)?([^\[\]|]*)\]\]")
_PLACEHOLDER = re.compile(r"\b(?:formula|codice)_\d+\b")
_FOOTNOTE = re.compile(r"\[\s*(?:\d{1,3}|update|citation needed|note \d+)\s*\]", re.IGNORECASE)
_EMPTY_PARENTHESES = re.compile(r" \([,;:\s]*\)")
_ENDLESS_NUMBER = re.compile(r"&#(\d{1000,}|[xX][0-9a-fA-F]{1000,});?")  # Python converts no number of so many digits
_SCENE_BREAK = re.compile(r"^(?:\* ?){3,}(?=[^* ])")
_BULLET = re.compile(r"[*•·▪◦‣●○■□➢►]\s")
_DASH_BULLET = re.compile(r"[-–]\s")
_TEMPLATE = re.compile(r"\{\{[^{}]*\}\}")
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
# Scripts that write no spaces: a word counts as two characters of them.
_UNSPACED = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3]")


def clean(document: Document, counts: Counter[str], *, passages_only: bool, unwrap: bool) -> list[str]:
    """Returns the paragraphs of a document and adds to `counts` what was read, kept and dropped.

    Args:
        document: from `documents`.
        counts: words, bytes, and lines by the rule that dropped them; as in the manifest.
        passages_only: keep text passages only (`passages`); else each line is a paragraph.
        unwrap: as for `passages`.
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
        counts: the lines that each rule of `RULES` drops are added to it, as `dropped_RULE`, and `lines_repaired`.
        unwrap: join hard-wrapped lines to paragraphs. Off where each line is a sentence.

    Returns:
        Paragraphs in order, whitespace normalized; empty when nothing of the document is text.
    """
    counts = Counter() if counts is None else counts
    lines = [" ".join(line.split()) for line in text.splitlines()]
    kept: list[str] = []
    first = next((index for index, line in enumerate(lines) if line), len(lines))
    is_article = title is not None and first < len(lines) and lines[first] == " ".join(title.split())
    if is_article:
        counts["dropped_title"] += 1
        lines = lines[first + 1 :]
    for line in _unwrap(lines) if unwrap else lines:
        if not line:
            continue
        repaired = repair(line)
        counts["lines_repaired"] += repaired != line
        if rule := _drop_rule(repaired, is_article):
            counts[f"dropped_{rule}"] += 1
        else:
            kept.append(repaired)
    if sum(map(count_words, kept)) < SHORT_DOCUMENT_WORDS:
        counts["dropped_short_document"] += len(kept)
        return []
    return kept


def count_words(line: str) -> int:
    """Counts the words of a line; in scripts without spaces two characters count as a word."""
    words = len(line.split())
    return words if line.isascii() else words + len(_UNSPACED.findall(line)) // 2


def repair(line: str) -> str:
    """Removes debris from a line: see step 2 above."""
    if "&" in line:
        line = html.unescape(_ENDLESS_NUMBER.sub("\ufffd", line))
    if "<" in line:
        line = _TAG.sub(" ", line)
    if "[" in line or "]" in line:
        line = _FOOTNOTE.sub("", _LINK.sub(r"\1", line))
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


def _drop_rule(line: str, is_article: bool) -> str | None:
    """Returns the first rule that drops a repaired line, or None."""
    if not line or _MARKUP.search(line) or (line.endswith("]") and _ILLUSTRATION.search(line)):
        return "markup"
    letters = len(line) - len(_PUNCTUATION.findall(line))
    if letters <= len(_SYMBOL.findall(line)):
        return "symbols"
    ends = _TERMINAL.search(line) is not None
    if _BULLET.match(line) or (not ends and _DASH_BULLET.match(line)):
        return "list"
    words = count_words(line)
    if _is_chapter(line, words) or (words < SHORT_LINE_WORDS and (is_article or _is_capitals(line))):
        return "heading"
    if words < SHORT_LINE_WORDS and not ends and not _CONTINUES.search(line):
        return "heading"
    return None


def _is_chapter(line: str, words: int) -> bool:
    return words < CHAPTER_LINE_WORDS and _CHAPTER.match(line) is not None


def _is_capitals(line: str) -> bool:
    return line.isupper() and line[0] not in "\"'“‘«"


def _unwrap(lines: list[str]) -> list[str]:
    texts = [line for line in lines if line]
    if not _is_wrapped(texts):
        return texts
    if len(lines) - len(texts) >= BLANK_LINES_SEPARATE * len(lines):
        return _join(lines, width=None)
    return _join(lines, width=_percentile(sorted(map(len, texts)), 0.95))


def _is_wrapped(texts: list[str]) -> bool:
    if len(texts) < WRAPPED_MIN_LINES:
        return False
    lengths = sorted(map(len, texts))
    if _percentile(lengths, 0.95) > WRAPPED_WIDTH or _percentile(lengths, 0.5) < WRAPPED_MEDIAN:
        return False
    endings = sum(_TERMINAL.search(line) is not None for line in texts)
    return endings <= WRAPPED_ENDINGS * len(texts)


def _percentile(ordered: list[int], share: float) -> int:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _join(lines: list[str], width: int | None) -> list[str]:
    """Joins wrapped lines. Blank lines end a paragraph; without blank lines (width given) a line does that ends a
    sentence and had room for the next line's first word. Headings always stay alone."""
    paragraphs: list[list[str]] = []  # pieces; joining line by line would copy a long paragraph for each of its lines
    open_paragraph = after_heading = False
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if not line:
            open_paragraph = False
            continue
        had_room = width is not None and len(line) + 1 + len(following.split(" ", 1)[0]) <= width
        ends = _TERMINAL.search(line) is not None
        is_heading = _is_chapter(line, count_words(line)) or _is_capitals(line)
        if is_heading or (after_heading and not open_paragraph and had_room and not ends):
            paragraphs.append([line])
            open_paragraph, after_heading = False, True
            continue
        if open_paragraph:
            at_hyphen = paragraphs[-1][-1].endswith("-") and paragraphs[-1][-1][-2:-1].isalpha()
            paragraphs[-1] += [line] if at_hyphen else [" ", line]
        else:
            paragraphs.append([line])
        open_paragraph, after_heading = not (ends and had_room), False
    return ["".join(pieces) for pieces in paragraphs]
