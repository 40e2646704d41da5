"""Decides for all scanned sources which documents and lines are dropped as duplicates, in little memory.

Exact duplicates are found with the keys that the scans recorded. A key that occurs once in the whole corpus cannot be a
duplicate. Those that repeat are found by sorting, a range of keys at a time, and only the documents that have one are
looked at in order.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bert_repro.configs import TextConfig
from bert_repro.corpus.documents import Source
from bert_repro.corpus.duplicates import Decision, DuplicateFilter, ExactFilter
from bert_repro.corpus.scanning import SCAN_FOLDER, Scan, documents_from, read_scan
from bert_repro.utils.arrays import Int64Array
from bert_repro.utils.files import atomic_file
from bert_repro.utils.randomness import UInt64Array

KEYS_AT_ONCE = 64_000_000
"""Keys that are sorted at once; 8 bytes each."""


@dataclass(frozen=True)
class Dropped:
    """The duplicates in one source.

    Args:
        documents: int64, numbers of the documents that are dropped, ascending.
        lines: int64 [n, 2], document and line of each line that is dropped from a document that stays.
    """

    documents: Int64Array
    lines: Int64Array

    def lines_of(self, document: int) -> list[int]:
        """Returns the lines that are dropped from a document."""
        begin, end = np.searchsorted(self.lines[:, 0], [document, document + 1])
        return [int(line) for line in self.lines[begin:end, 1]]


@dataclass(frozen=True)
class DroppedInSource:
    """The duplicates in one source, and their sizes.

    Args:
        dropped: documents and lines.
        characters: int64 [D], characters that each document loses with its lines.
        counts: (document, duplicates and their words), ascending; as in the manifest.
    """

    dropped: Dropped
    characters: Int64Array
    counts: list[tuple[int, Counter[str]]]


def decide_duplicates(config: TextConfig, sources: Sequence[Source], folder: Path) -> Iterator[DroppedInSource]:
    """Yields the duplicates of each source, in the order of the corpus.

    Args:
        config: what counts as duplicate.
        sources: from `find_sources`.
        folder: the folder with their scans.
    """
    if config.deduplicate == "exact":
        yield from _decide_exact(len(sources), folder)
    elif config.deduplicate == "near":
        yield from _decide_near(sources, folder)
    else:
        for number in range(len(sources)):
            yield _summarize([], read_scan(folder, number).num_documents)


def write_dropped(dropped: Dropped, folder: Path, source: int) -> None:
    """Writes the duplicates of a source, for those that make parts."""
    with atomic_file(_path(folder, source), binary=True) as file:
        np.savez(file, documents=dropped.documents, lines=dropped.lines)


def read_dropped(folder: Path, source: int) -> Dropped:
    """Reads what `write_dropped` wrote."""
    with np.load(_path(folder, source)) as arrays:
        return Dropped(arrays["documents"], arrays["lines"])


def _path(folder: Path, source: int) -> Path:
    return folder / SCAN_FOLDER / f"dropped-{source:05d}.npz"


@dataclass(frozen=True)
class _DroppedFromDocument:
    """What is dropped of one document, and how many characters it loses if it stays."""

    document: int
    decision: Decision
    characters: int


def _summarize(decisions: list[_DroppedFromDocument], num_documents: int) -> DroppedInSource:
    characters = np.zeros(num_documents, np.int64)
    documents, lines, counts = [], [], []
    # A dropped document loses nothing more; one that stays loses lines.
    for item in decisions:
        counts.append((item.document, item.decision.counts))
        if item.decision.drops_document:
            documents.append(item.document)
            continue
        characters[item.document] = item.characters
        for line in item.decision.lines:
            lines.append((item.document, line))
    dropped = Dropped(np.array(documents, np.int64), np.array(lines, np.int64).reshape(-1, 2))
    return DroppedInSource(dropped, characters, counts)


# --- Near duplicates --------------------------------------------------------------------------------------------------


def _decide_near(sources: Sequence[Source], folder: Path) -> Iterator[DroppedInSource]:
    """Reads all documents once more, one after the other, because near duplicates need the text."""
    # Memory grows with the number of documents: half a kilobyte for each sketch.
    duplicates = DuplicateFilter("near")
    for number, source in enumerate(sources):
        decisions = []
        num_documents = read_scan(folder, number).num_documents
        documents = documents_from(source, number, folder, first=0, start=0)
        for index, document in enumerate(documents):
            decision = duplicates(document.text)
            if not decision.changes_nothing:
                lines = document.text.split("\n")
                characters = sum(len(lines[line]) + 1 for line in decision.lines)
                decisions.append(_DroppedFromDocument(index, decision, characters))
        yield _summarize(decisions, num_documents)


# --- Exact duplicates -------------------------------------------------------------------------------------------------


def _decide_exact(num_sources: int, folder: Path) -> Iterator[DroppedInSource]:
    # Documents and paragraphs without a repeated key are not looked at, so Python handles few of them.
    repeated = _repeated_keys(num_sources, folder)
    duplicates = ExactFilter()
    for number in range(num_sources):
        scan = read_scan(folder, number)
        decisions = []
        for document, paragraphs in _candidates(scan, repeated):
            fingerprint = scan.fingerprint_of(document, paragraphs)
            decision = duplicates(fingerprint)
            if decision.changes_nothing:
                continue
            # A dropped line also loses its line feed.
            lengths = {paragraph.line: paragraph.characters + 1 for paragraph in fingerprint.paragraphs}
            characters = sum(lengths[line] for line in decision.lines)
            decisions.append(_DroppedFromDocument(document, decision, characters))
        yield _summarize(decisions, scan.num_documents)


def _candidates(scan: Scan, repeated: UInt64Array) -> Iterator[tuple[int, Int64Array]]:
    """Yields the documents that have a repeated key, with those of their paragraphs that have one."""
    # Numbers of the paragraphs with a repeated key, and of the documents that they belong to.
    paragraphs = np.flatnonzero(_contains(repeated, scan.paragraph_keys))
    owners = np.searchsorted(scan.paragraph_starts, paragraphs, side="right") - 1
    documents = np.union1d(np.flatnonzero(_contains(repeated, scan.keys)), owners)
    for document in documents.tolist():
        # The owners ascend, so the paragraphs of a document are next to each other.
        begin, end = np.searchsorted(owners, [document, document + 1])
        yield document, paragraphs[begin:end]


def _repeated_keys(num_sources: int, folder: Path) -> UInt64Array:
    """Returns the keys that occur more than once among all documents and paragraphs, ascending."""
    # Count the keys to know in how many ranges they must be sorted.
    total = 0
    for number in range(num_sources):
        scan = read_scan(folder, number)
        total += len(scan.keys) + len(scan.paragraph_keys)

    # Keys are uniform, so equal ranges of them have about equally many.
    num_ranges = total // KEYS_AT_ONCE + 1
    bounds = [(number * 2**64) // num_ranges for number in range(num_ranges + 1)]
    repeated = []
    for low, high in pairwise(bounds):
        # Equal keys are neighbors after sorting.
        keys = np.sort(np.concatenate(_keys_between(num_sources, folder, low, high)))
        repeated.append(np.unique(keys[1:][keys[1:] == keys[:-1]]))
    return np.concatenate(repeated)


def _keys_between(num_sources: int, folder: Path, low: int, high: int) -> list[UInt64Array]:
    """Returns all keys from `low` to below `high`."""
    selected = [np.empty(0, np.uint64)]
    for number in range(num_sources):
        scan = read_scan(folder, number)
        all_keys = np.concatenate([scan.keys, scan.paragraph_keys])
        # The highest bound, 2 ** 64, does not fit the type, so the last key of the range is compared.
        is_selected = (all_keys >= np.uint64(low)) & (all_keys <= np.uint64(high - 1))
        selected += [all_keys[is_selected]]
    return selected


def _contains(ordered: UInt64Array, values: UInt64Array) -> npt.NDArray[np.bool_]:
    """Returns for each value whether it is in an ascending array."""
    if not len(ordered):
        return np.zeros(len(values), bool)
    places = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    return np.equal(ordered[places], values)
