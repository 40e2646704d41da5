"""Decides which documents belong to which part of a corpus, so that the parts can be made independently.

A part has about `PART_CHARACTERS` characters. The plan follows from the input and the settings alone, so neither the
number of processes nor interruptions change what a part contains:

1. Each source is scanned (`scanning.py`): where its documents start and how long they are.
2. Duplicates are found (`dropped.py`).
3. The sequence of all documents, each as often as its source says, is cut into parts. They are written to `plan.json`.

`read_part` then reads the documents of one part, in any process. `read_all` reads the same documents without a plan,
one after the other, for work that needs only the beginning of the input.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from bert_repro.configs import TextConfig
from bert_repro.corpus.documents import Document, Source, read_documents
from bert_repro.corpus.dropped import decide_duplicates, read_dropped, write_dropped
from bert_repro.corpus.duplicates import DuplicateFilter, without_lines
from bert_repro.corpus.scanning import documents_from, read_scan, scan_sources
from bert_repro.errors import UserError
from bert_repro.utils.arrays import Int64Array
from bert_repro.utils.files import json_digest, write_json
from bert_repro.utils.parts import Engine
from bert_repro.utils.randomness import Stream, draw, fraction
from bert_repro.utils.readers import read_json_object

PART_CHARACTERS = 32_000_000
PLAN_FILE = "plan.json"
PREPARE_AGAIN = "Leave the input unchanged and start again."


@dataclass(frozen=True)
class Slice:
    """Consecutive documents of one source.

    Documents are numbered from 0 in their source. A document that comes several times has copies, numbered from 0.

    Args:
        source: number of the source.
        first: number of the first document.
        first_copy: its first copy in this slice.
        last: number of the last document.
        last_copy: its last copy in this slice.
        start: where the first document starts in its source; see `Document.start`.
    """

    source: int
    first: int
    first_copy: int
    last: int
    last_copy: int
    start: int


@dataclass(frozen=True)
class Part:
    """A part of the corpus.

    Args:
        number: from 0.
        slices: its documents, in order.
        documents: how many these are, copies included.
        characters: their length without what is dropped as duplicate.
    """

    number: int
    slices: tuple[Slice, ...]
    documents: int
    characters: int


@dataclass(frozen=True)
class Plan:
    """All parts of a corpus.

    Args:
        parts: in order.
        passes: how often the documents of each entry of `TextConfig.text_sources` come.
        duplicates: documents, paragraphs and words that are dropped, as in the manifest.
        digest: SHA-256 of the above. The files of finished parts name it.
    """

    parts: tuple[Part, ...]
    passes: tuple[float, ...]
    duplicates: Counter[str]
    digest: str


def prepare_plan(config: TextConfig, sources: Sequence[Source], folder: Path, engine: Engine) -> Plan:
    """Returns the plan that is in a folder, or makes it there.

    Args:
        config: how often documents come, and what counts as duplicate.
        sources: from `find_sources`.
        folder: an existing folder that is used for these sources and settings only.
        engine: where the sources are scanned.

    Raises:
        UserError: a source is damaged.
    """
    if not (folder / PLAN_FILE).is_file():
        scan_sources(config, sources, folder, engine)
        _write_plan(make_plan(config, sources, folder), folder)
    return _read_plan(folder)


def make_plan(config: TextConfig, sources: Sequence[Source], folder: Path) -> Plan:
    """Cuts the documents of scanned sources into parts and writes which ones are dropped.

    Args:
        config: how often documents come, and what counts as duplicate.
        sources: from `find_sources`.
        folder: the folder with their scans.
    """
    # The weight of a language depends on the length of all sources, so nothing can be cut before they are scanned.
    passes = _passes(config, sources, [int(read_scan(folder, number).lengths.sum()) for number in range(len(sources))])
    cutter = _Cutter(config.max_documents)
    duplicates: Counter[str] = Counter()
    all_dropped = decide_duplicates(config, sources, folder)
    for number, (source, in_source) in enumerate(zip(sources, all_dropped, strict=True)):
        # Those that make the parts read from this file which documents and lines to leave out.
        write_dropped(in_source.dropped, folder, number)
        scan = read_scan(folder, number)
        copies = _copies(passes[source.origin], source.origin, np.arange(scan.num_documents))
        # A dropped document comes zero times.
        copies[in_source.dropped.documents] = 0
        documents_read = cutter.add(number, scan.starts, scan.lengths - in_source.characters, copies)
        # Documents after the last one that was asked for are not counted, as if they had not been read.
        for document, counts in in_source.counts:
            if document < documents_read:
                duplicates.update(counts)
        if cutter.is_full:
            break

    # The digest ties finished parts to this plan.
    parts = cutter.finish()
    content = {"parts": [asdict(part) for part in parts], "passes": passes, "duplicates": dict(duplicates)}
    return Plan(tuple(parts), tuple(passes), duplicates, json_digest(content))


def _write_plan(plan: Plan, folder: Path) -> None:
    content = {
        "parts": [asdict(part) for part in plan.parts],
        "passes": plan.passes,
        "duplicates": dict(plan.duplicates),
        "digest": plan.digest,
    }
    write_json(folder / PLAN_FILE, content)


def _read_plan(folder: Path) -> Plan:
    content = read_json_object(folder / PLAN_FILE, damaged=f"Delete the folder {folder} and start again.")
    parts = []
    for part in content["parts"]:
        slices = tuple(Slice(**numbers) for numbers in part["slices"])
        parts.append(Part(part["number"], slices, part["documents"], part["characters"]))
    return Plan(tuple(parts), tuple(content["passes"]), Counter(content["duplicates"]), content["digest"])


# --- How often documents come -----------------------------------------------------------------------------------------


def _passes(config: TextConfig, sources: Sequence[Source], characters: Sequence[int]) -> list[float]:
    """Returns how often the documents of each entry of `text_sources` come.

    With `sampling_exponent` a language of n characters comes (n / m) ** (exponent - 1) times as often as the one with
    most characters, m (the exponent of multilingual BERT; its published description).

    Args:
        config: the passes of the entries, and the exponent.
        sources: from `find_sources`.
        characters: length of each source.
    """
    passes = [options.passes for options in config.text_sources] or [1.0]
    if config.sampling_exponent == 1:
        return passes
    # Languages are compared by the text that would come without sampling.
    language_characters: Counter[str] = Counter()
    for source, length in zip(sources, characters, strict=True):
        language_characters[source.options.language] += round(length * passes[source.origin])
    most = max(language_characters.values())
    # A language with less text than the largest one gets a weight above 1.
    weighted = []
    for origin, options in enumerate(config.text_sources):
        length = language_characters[options.language]
        weight = (length / most) ** (config.sampling_exponent - 1) if length else 1.0
        weighted.append(passes[origin] * weight)
    return weighted


def _copies(passes: float, origin: int, documents: Int64Array) -> Int64Array:
    """Returns how often each document of a source comes.

    The fraction of a pass is drawn for each document: with 1.3 passes, about three of ten documents come twice.

    Args:
        passes: how often they come on average.
        origin: number of the entry of `text_sources`.
        documents: int64 [n], numbers of documents.

    Returns:
        int64 [n].
    """
    # Every document comes `whole` times, and a random share of them once more.
    whole, rest = divmod(passes, 1)
    copies = np.full(len(documents), int(whole), np.int64)
    if rest > 0:
        copies += fraction(draw(Stream.CORPUS_PASSES, origin, documents)) < rest
    return copies


# --- Cutting ----------------------------------------------------------------------------------------------------------


@dataclass
class _Cutter:
    """Cuts a sequence of documents into parts.

    Args:
        remaining: documents that may still come, copies included; None without a limit.
    """

    remaining: int | None
    is_full: bool = False
    _parts: list[Part] = field(default_factory=list)
    _slices: list[Slice] = field(default_factory=list)
    _documents: int = 0
    _characters: int = 0

    def add(self, source: int, starts: Int64Array, lengths: Int64Array, copies: Int64Array) -> int:
        """Adds the documents of the next source.

        Args:
            source: its number.
            starts: int64 [D], where each document starts.
            lengths: int64 [D], characters of each document.
            copies: int64 [D], how often each document comes.

        Returns:
            How many documents of the source are read: all, unless the limit is reached.
        """
        copy_ends = np.cumsum(copies)
        num_copies = int(copies.sum())
        documents_read = len(copies)
        if self.remaining is not None:
            if num_copies > self.remaining:
                num_copies = self.remaining
                # Reading ends at the document whose copy would be one too many.
                documents_read = int(np.searchsorted(copy_ends, num_copies, side="right")) + 1
                self.is_full = True
            self.remaining -= num_copies

        # From here on the sequence of copies counts: entry i is copy i of all copies in this source.
        character_ends = np.cumsum(np.repeat(lengths, copies)[:num_copies])
        part_start = -self._characters  # the part may have begun in an earlier source
        first = 0
        while first < num_copies:
            # A part ends with the copy that fills it.
            last = int(np.searchsorted(character_ends, part_start + PART_CHARACTERS, side="left"))
            is_complete = last < num_copies
            last = min(last, num_copies - 1)
            self._add_slice(source, starts, copy_ends, first, last)
            self._characters = int(character_ends[last]) - part_start
            if is_complete:
                self._close_part()
                part_start = int(character_ends[last])
            first = last + 1
        return documents_read

    def finish(self) -> list[Part]:
        """Returns all parts."""
        if self._slices:
            self._close_part()
        return self._parts

    def _add_slice(self, source: int, starts: Int64Array, copy_ends: Int64Array, first: int, last: int) -> None:
        """Adds the copies `first` to `last` of a source."""
        first_document = int(np.searchsorted(copy_ends, first, side="right"))
        last_document = int(np.searchsorted(copy_ends, last, side="right"))
        self._slices.append(
            Slice(
                source=source,
                first=first_document,
                first_copy=first - _copies_before(copy_ends, first_document),
                last=last_document,
                last_copy=last - _copies_before(copy_ends, last_document),
                start=int(starts[first_document]),
            )
        )
        self._documents += last - first + 1

    def _close_part(self) -> None:
        # Numbers follow the order of the documents.
        self._parts.append(Part(len(self._parts), tuple(self._slices), self._documents, self._characters))
        self._slices, self._documents, self._characters = [], 0, 0


def _copies_before(copy_ends: Int64Array, document: int) -> int:
    return int(copy_ends[document - 1]) if document else 0


# --- Reading ----------------------------------------------------------------------------------------------------------


def read_part(part: Part, passes: Sequence[float], sources: Sequence[Source], folder: Path) -> Iterator[Document]:
    """Reads the documents of a part, without duplicates, each as often as its source says.

    Args:
        part: of a plan.
        passes: of the same plan.
        sources: the sources of that plan.
        folder: the folder with the plan.
    """
    for piece in part.slices:
        yield from _read_slice(piece, passes, sources[piece.source], folder)


def _read_slice(piece: Slice, passes: Sequence[float], source: Source, folder: Path) -> Iterator[Document]:
    # The copies are drawn again as in the plan; the draws depend on the document's number alone.
    dropped = read_dropped(folder, piece.source)
    numbers = np.arange(piece.first, piece.last + 1)
    copies = _copies(passes[source.origin], source.origin, numbers)
    copies[np.isin(numbers, dropped.documents)] = 0
    documents = documents_from(source, piece.source, folder, first=piece.first, start=piece.start)
    for number, count in zip(numbers.tolist(), copies.tolist(), strict=True):
        # Documents are read one after the other, so those that are dropped are read too.
        document = next(documents, None)
        if document is None:
            raise UserError(f"{source.name} has become shorter while it was read. {PREPARE_AGAIN}")
        lines = dropped.lines_of(number)
        if lines:
            document = document._replace(text=without_lines(document.text, lines))
        # Only the first and the last document of a slice can have copies in other parts.
        first_copy = piece.first_copy if number == piece.first else 0
        last_copy = piece.last_copy if number == piece.last else count - 1
        for _ in range(first_copy, last_copy + 1):
            yield document


def read_all(config: TextConfig, sources: Sequence[Source]) -> Iterator[Document]:
    """Reads the documents of all parts without a plan, one after the other.

    Args:
        config: how often documents come, and what counts as duplicate.
        sources: from `find_sources`.
    """
    characters = []
    if config.sampling_exponent != 1:
        for source in sources:
            lengths = [len(document.text) for document in read_documents(source)]
            characters.append(sum(lengths))
    passes = _passes(config, sources, characters)
    # Without a plan, documents are compared as they come.
    duplicates = DuplicateFilter(config.deduplicate)
    num_documents = 0
    for source in sources:
        for number, document in enumerate(read_documents(source)):
            decision = duplicates(document.text)
            if decision.drops_document:
                continue
            if decision.lines:
                document = document._replace(text=without_lines(document.text, decision.lines))
            copies = int(_copies(passes[source.origin], source.origin, np.array([number]))[0])
            for _ in range(copies):
                if num_documents == config.max_documents:
                    return
                num_documents += 1
                yield document
