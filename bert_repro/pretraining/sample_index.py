"""Sample index: which spans of text make up the examples of an epoch, drawn once and kept as a table on disk.

An epoch is one pass over the documents (static examples, `dupe_factor`: several passes, read again and again). Its
examples are the rows of a `SampleIndex`, 28 bytes each; `EpochIndexes` draws the indexes of all epochs of a phase;
`permute` is the order in which the rows are read.
"""

import json
import logging
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from hashlib import blake2b
from math import isqrt
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from bert_repro.errors import UserError
from bert_repro.pretraining.segment_pairs import FORCED, NOT_NEXT, ROW, PairGenerator, RowArray
from bert_repro.utils.arrays import Int64Array, draw
from bert_repro.utils.files import atomic_path, waiting_lock

logger = logging.getLogger("bert_repro")

_FORMAT_VERSION = 1
_HEADER_BYTES = 4096
_OPEN_INDEXES = 4  # a map holds a file open; a batch of a tiny corpus may reach over dozens of epochs
_PERMUTATION_ROUNDS = 8


@dataclass(frozen=True)
class IndexStatistics:
    """What a sample index holds.

    Args:
        rows: examples.
        not_next: examples labelled NotNext.
        forced: of those, where the sampling of the original implementation left no choice.
        tokens: tokens of all examples, [CLS] and [SEP] included.
    """

    rows: int
    not_next: int
    forced: int
    tokens: int


class SampleIndex:
    """The examples of one epoch: a memory-mapped table on disk.

    The file is a JSON header of fixed size (what the rows were made from, their statistics) and the rows.

    Args:
        path: the file.
        header: its decoded header.
    """

    def __init__(self, path: Path, header: dict[str, Any]) -> None:
        self.path = path
        self.statistics = IndexStatistics(**header["statistics"])
        self._header = header
        self.rows: RowArray = np.memmap(path, ROW, mode="r", offset=_HEADER_BYTES, shape=(self.statistics.rows,))

    def __len__(self) -> int:
        return self.statistics.rows

    @classmethod
    def open(cls, path: Path) -> "SampleIndex":
        """Opens an index without reading its rows.

        Raises:
            UserError: the file is not an index, is truncated, or its header is damaged.
        """
        try:
            with path.open("rb") as file:
                header = json.loads(file.read(_HEADER_BYTES))
            size = _HEADER_BYTES + header["statistics"]["rows"] * ROW.itemsize
            version = header["made_from"]["format_version"]
            if version != _FORMAT_VERSION:
                raise UserError(f"{path}: format_version {version}, this package reads {_FORMAT_VERSION}")
            if path.stat().st_size != size:
                raise UserError(f"{path}: has {path.stat().st_size} bytes, not {size}: it is damaged")
            return cls(path, header)
        except UserError:
            raise
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path}: not a sample index, or its header is damaged") from error

    def read(self, rows: Int64Array) -> RowArray:
        """Returns the rows with these numbers, [B]."""
        found: RowArray = self.rows[rows]
        return found


class EpochIndexes:
    """The sample indexes of a phase, one per epoch, drawn when needed. Pickled, it carries no open files.

    Args:
        pairs: draws the examples.
        folder: where the indexes are kept.
        static_passes: passes over the documents that make up the one index of static examples; None: fresh examples
            in every epoch.
    """

    def __init__(self, pairs: PairGenerator, folder: Path, static_passes: int | None = None) -> None:
        self._pairs, self._folder, self._static_passes = pairs, folder, static_passes
        self._made_from = {
            "format_version": _FORMAT_VERSION,
            **asdict(pairs.rules),
            "passes": static_passes or 1,
            "seed": pairs.seed,
            "phase": pairs.phase,
            "boundaries": _digest(pairs.corpus.sentence_starts, pairs.corpus.document_sentences),
            "documents": _digest(pairs.documents),
        }
        name = blake2b(json.dumps(self._made_from, sort_keys=True).encode(), digest_size=8).hexdigest()
        self._series = f"phase{pairs.phase}-{name}"
        self._open: dict[int, SampleIndex] = {}
        self._first_kept = 0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": {}}

    def drawn_in(self, epoch: int) -> int:
        """Returns the epoch whose index an epoch reads: itself; with static examples, epoch 0."""
        return epoch if self._static_passes is None else 0

    def get(self, epoch: int) -> SampleIndex:
        """Returns the index that an epoch reads, drawn when it is not there.

        Args:
            epoch: number of the pass over the documents.

        Raises:
            UserError: too few documents for pairs, or no document that makes an example.
        """
        epoch = self.drawn_in(epoch)
        if epoch not in self._open:
            index = self._find(epoch) or self._draw(epoch)
            if len(self._open) == _OPEN_INDEXES:
                del self._open[next(iter(self._open))]
            self._open[epoch] = index
        return self._open[epoch]

    def discard_before(self, epoch: int) -> None:
        """Removes the indexes of earlier epochs from disk; they would be drawn again if they were read."""
        if self._static_passes is None and epoch > self._first_kept:
            self._first_kept = epoch
            for path in self._folder.glob(f"{self._series}-epoch*.index"):
                if int(path.stem.removeprefix(f"{self._series}-epoch")) < epoch:
                    path.unlink(missing_ok=True)

    def _find(self, epoch: int) -> SampleIndex | None:
        try:
            return SampleIndex.open(self._path(epoch))
        except FileNotFoundError:
            return None
        except UserError as error:
            logger.warning("%s; drawing the examples again", error)
            self._path(epoch).unlink(missing_ok=True)
            return None

    def _draw(self, epoch: int) -> SampleIndex:
        """Draws an index, unless another process of the run has done so while this one waited."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with waiting_lock(self._folder):
            return self._find(epoch) or self._write(epoch)

    def _write(self, epoch: int) -> SampleIndex:
        passes = self._static_passes or 1
        numbers = range(epoch * passes, (epoch + 1) * passes)
        blocks = (block for number in numbers for block in self._pairs.blocks(number))
        return _write_index(self._path(epoch), {**self._made_from, "epoch": epoch}, blocks)

    def _path(self, epoch: int) -> Path:
        return self._folder / f"{self._series}-epoch{epoch}.index"


def sequence_lengths(rows: RowArray) -> Int64Array:
    """Returns the tokens of each example, [CLS] and [SEP] included, int64 [B], from rows of an index, [B]."""
    lengths: Int64Array = rows["length_a"].astype(np.int64) + rows["length_b"] + np.where(rows["length_b"] > 0, 3, 2)
    return lengths


def permute(places: Int64Array, size: int, *names: int) -> Int64Array:
    """Returns the rows at the given places of a shuffled order, computed without an array of that order.

    Rows are written as places in a rectangle of about sqrt(size) by sqrt(size). A round shifts the row of each place by
    a hash of its column, or its column by a hash of its row; each such shift can be undone, so every round permutes the
    rectangle (a Feistel network with modular sums). A place beyond the last row is sent through again until it falls on
    a row, which keeps the result a permutation of the rows (cycle walking; Black and Rogaway, 2002).

    Args:
        places: integers in [0, size), [N].
        size: rows in all.
        names: integers that name the order, as for `bert_repro.utils.randomness.draw`.

    Returns:
        int64 [N], distinct for distinct places; over all places, every row exactly once.
    """
    height = isqrt(max(size - 1, 0)) + 1
    width = -(-size // height)
    rows = _shuffle(places, height, width, *names)
    outside = np.flatnonzero(rows >= size)
    while outside.size:
        rows[outside] = _shuffle(rows[outside], height, width, *names)
        outside = outside[rows[outside] >= size]
    return rows


def _shuffle(places: Int64Array, height: int, width: int, *names: int) -> Int64Array:
    row, column = np.divmod(places.astype(np.uint64), np.uint64(width))
    for number in range(0, _PERMUTATION_ROUNDS, 2):
        row = (row + draw(*names, number, column) % np.uint64(height)) % np.uint64(height)
        column = (column + draw(*names, number + 1, row) % np.uint64(width)) % np.uint64(width)
    return (row * np.uint64(width) + column).astype(np.int64)


def _digest(*arrays: Int64Array) -> str:
    digest = blake2b(digest_size=16)
    for array in arrays:
        digest.update(np.ascontiguousarray(array, dtype=np.int64).data)
    return digest.hexdigest()


def _write_index(path: Path, made_from: dict[str, Any], blocks: Iterator[RowArray]) -> SampleIndex:
    with atomic_path(path) as temporary:
        with temporary.open("wb") as file:
            file.write(b" " * _HEADER_BYTES)
            statistics = _write_rows(file, blocks)
            header: dict[str, Any] = {"made_from": made_from, "statistics": asdict(statistics)}
            file.seek(0)
            file.write(json.dumps(header).encode())
        # Mapped before it gets its name, after which another process may discard it.
        index = SampleIndex.open(temporary)
    index.path = path
    return index


def _write_rows(file: BinaryIO, blocks: Iterator[RowArray]) -> IndexStatistics:
    rows = not_next = forced = tokens = 0
    for block in blocks:
        file.write(block.view(np.uint8).data)
        rows += len(block)
        not_next += int(np.count_nonzero(block["flags"] & NOT_NEXT))
        forced += int(np.count_nonzero(block["flags"] & FORCED))
        tokens += int(sequence_lengths(block).sum())
    if not rows:
        raise UserError("no document makes a pre-training example: each has one token; give longer documents")
    return IndexStatistics(rows, not_next, forced, tokens)
