"""Finds documents and paragraphs that came before. Texts are compared without case and spacing.

Two documents are compared by 64-bit keys of their words, so that a corpus of any size is compared in little memory:
`fingerprint` computes the keys of a document, in any process, and `ExactFilter` decides in the order of the corpus what
is dropped. Near duplicates need the text itself (`NearFilter`) and are found in one process.
"""

from collections import Counter
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, NamedTuple

from bert_repro.errors import UserError, flag

PARAGRAPH_WORDS = 8
"""Shorter paragraphs are never dropped: "He said nothing." may well come again."""
NEAR_SIMILARITY = 0.7
SKETCH_SIZE = 128
SKETCH_BANDS = 32
"""Bands of 4 values: a pair with similarity 0.7 is compared with a probability of 0.9998."""
SHINGLE_WORDS = 5


class Paragraph(NamedTuple):
    """A line of a document that is long enough to be compared.

    Args:
        line: its number among the lines of the document, from 0.
        key: hash of its words.
        words: its length in words.
        characters: its length in characters.
    """

    line: int
    key: int
    words: int
    characters: int


class Fingerprint(NamedTuple):
    """What `ExactFilter` needs of a document.

    Args:
        key: hash of all its words.
        words: its length in words.
        paragraphs: the lines that are compared.
        only_paragraphs: whether nothing is left if all of these are dropped.
    """

    key: int
    words: int
    paragraphs: tuple[Paragraph, ...]
    only_paragraphs: bool


class Decision(NamedTuple):
    """What is dropped of a document.

    Args:
        drops_document: the complete document came before, or nothing is left of it.
        lines: numbers of the lines to drop.
        counts: duplicates and their words, as in the manifest.
    """

    drops_document: bool
    lines: tuple[int, ...]
    counts: Counter[str]

    @property
    def changes_nothing(self) -> bool:
        """Whether the document stays as it is."""
        return not self.drops_document and not self.lines


def fingerprint(text: str) -> Fingerprint:
    """Returns the keys of a document and of its paragraphs."""
    # Case and spacing differ between copies of a text, for example after other line breaks.
    words = text.casefold().split()
    paragraphs = []
    only_paragraphs = True
    for number, line in enumerate(text.split("\n")):
        line_words = line.casefold().split()
        # A line that is the complete document is compared as a document.
        if PARAGRAPH_WORDS <= len(line_words) < len(words):
            paragraphs.append(Paragraph(number, _key(line_words), len(line_words), len(line)))
        elif line_words:
            # This line is never dropped, so something is always left of the document.
            only_paragraphs = False
    return Fingerprint(_key(words), len(words), tuple(paragraphs), only_paragraphs)


def _key(words: Iterable[str]) -> int:
    return int.from_bytes(blake2b(" ".join(words).encode("utf-8"), digest_size=8).digest(), "little")


class ExactFilter:
    """Decides document by document, in the order of the corpus, what came before."""

    def __init__(self) -> None:
        self._keys: set[int] = set()

    def __call__(self, document: Fingerprint, *, is_near_duplicate: bool = False) -> Decision:
        """Returns what to drop of the next document.

        Args:
            document: its fingerprint. Paragraphs whose key occurs once in the corpus may be left out.
            is_near_duplicate: drop it because it is similar to an earlier one.
        """
        # Documents come first: a copy is counted once, not once for each of its paragraphs.
        if self._came_before(document.key) or is_near_duplicate:
            counts = Counter(duplicate_documents=1, duplicate_words=document.words)
            return Decision(True, (), counts)

        # The paragraphs of a dropped document are not remembered, because they are not part of the corpus.
        counts = Counter()
        lines = []
        for paragraph in document.paragraphs:
            if self._came_before(paragraph.key):
                lines.append(paragraph.line)
                counts.update(duplicate_paragraphs=1, duplicate_words=paragraph.words)
        nothing_is_left = document.only_paragraphs and len(lines) == len(document.paragraphs) > 0
        return Decision(nothing_is_left, tuple(lines), counts)

    def knows(self, key: int) -> bool:
        """Returns whether a document or paragraph with this key came before."""
        return key in self._keys

    def _came_before(self, key: int) -> bool:
        came_before = key in self._keys
        self._keys.add(key)
        return came_before


class NearFilter:
    """Finds documents whose sets of 5-word sequences resemble those of an earlier document.

    A pair is a duplicate if its estimated Jaccard similarity is at least `NEAR_SIMILARITY`.

    Raises:
        UserError: the package rensa is not installed.
    """

    def __init__(self) -> None:
        try:
            from rensa import RMinHash, RMinHashLSH
        except ImportError:
            raise UserError(
                f"{flag('deduplicate', 'near')} requires the package rensa. Run: pip install rensa",
                setting="deduplicate",
            ) from None
        self._new_sketch = RMinHash
        self._index = RMinHashLSH(NEAR_SIMILARITY, SKETCH_SIZE, SKETCH_BANDS)
        self._sketches: list[Any] = []

    def __call__(self, text: str) -> bool:
        """Returns whether a document resembles an earlier one. If not, later ones are compared with it."""
        words = text.casefold().split()
        num_shingles = max(1, len(words) - SHINGLE_WORDS + 1)
        # The set of word sequences describes a text well even if paragraphs were moved.
        shingles = {" ".join(words[start : start + SHINGLE_WORDS]) for start in range(num_shingles)}
        # Equal sketches need the same seed and the same order in every process.
        sketch = self._new_sketch(SKETCH_SIZE, 0)
        sketch.update(sorted(shingles))
        # The index finds candidates; their similarity decides.
        for number in self._index.query(sketch):
            if sketch.jaccard(self._sketches[number]) >= NEAR_SIMILARITY:
                return True
        self._index.insert(len(self._sketches), sketch)
        self._sketches.append(sketch)
        return False


class DuplicateFilter:
    """Drops what came before while documents are read one after the other.

    Args:
        kind: `none`, `exact` or `near`, as in `TextConfig.deduplicate`.

    Raises:
        UserError: the package rensa is not installed, which finds near duplicates.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._exact = ExactFilter()
        self._near = NearFilter() if kind == "near" else None

    def __call__(self, text: str) -> Decision:
        """Returns what to drop of the next document."""
        if self._kind == "none":
            return Decision(False, (), Counter())
        document = fingerprint(text)
        # An exact copy is not compared again, so that it does not become a document to compare with.
        is_near_duplicate = self._near is not None and not self._exact.knows(document.key) and self._near(text)
        return self._exact(document, is_near_duplicate=is_near_duplicate)


def without_lines(text: str, lines: Iterable[int]) -> str:
    """Returns a document without the lines with these numbers."""
    dropped = set(lines)
    return "\n".join(line for number, line in enumerate(text.split("\n")) if number not in dropped)
