"""Draws segment pairs A, B from documents (paper 3.1, A.2; create_pretraining_data.py of the original implementation).

The documents of a block are processed together: an iteration makes one example of every document that has text left,
by a few vectorized operations. Every choice is a hash of (seed, phase, epoch, document, example, what is chosen), so
the examples do not depend on the blocks. `EpochIndexes` keeps those of an epoch as a table of `ROW`s on disk.

Shape legend: `D` documents of the corpus, `N` sentences of the corpus, `E` documents that make an example now.
Sentences are counted over the complete corpus; a boundary is a token's index in the complete corpus.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import IntEnum
from hashlib import blake2b
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from bert_repro.configs import ExampleConfig
from bert_repro.corpus.prepared_corpus import PreparedCorpus
from bert_repro.errors import UserError
from bert_repro.utils.arrays import Int64Array, places_in_row, row_starts
from bert_repro.utils.files import atomic_path, waiting_lock
from bert_repro.utils.randomness import UInt64Array, below, draw, fraction

BoolArray = npt.NDArray[np.bool_]

NOT_NEXT = 1
FORCED = 2

ROW = np.dtype([(name, "<i4") for name in ("document_a", "start_a", "length_a",
                                           "document_b", "start_b", "length_b", "flags")])  # fmt: skip
"""An example: two spans of tokens, each a document, a start inside it and a length; no B: document -1, length 0.
`flags` holds NOT_NEXT, and FORCED where the original sampling left no choice of the label."""

RowArray = npt.NDArray[np.void]

_ALL_EXAMPLES = -1  # in place of the example, for draws that concern all of a document's examples
_RANDOM_DOCUMENT_TRIES = 10  # original implementation
_BLOCK_TOKENS = 1 << 25
_TOKENS_PER_DOCUMENT = 1 << 10  # added to each document's own: bounds the documents of a block
_CHUNK_DOCUMENTS = 1 << 16  # sorted by length together: bounds what is held for each document
_ROWS_AT_A_TIME = 1 << 16
_ROW_FORMAT = 2  # of the files of rows
_OPEN_INDEXES = 4  # a map holds a file open; a batch of a tiny corpus may reach over dozens of epochs


class _PairDraw(IntEnum):
    """What a draw decides: the last name of every draw of an example, and its row in the array of them."""

    SPLIT = 0
    LABEL = 1
    DOCUMENT = 2
    SENTENCE = 3
    FRONT_A = 4
    FRONT_B = 5


@dataclass(frozen=True)
class PairRules:
    """What decides the examples, apart from the corpus and the draws.

    Args:
        sampling: "paper", "original" or "contiguous".
        max_tokens: tokens of A and B together, special tokens apart.
        short_seq_prob: probability of a shorter target length.
    """

    sampling: str
    max_tokens: int
    short_seq_prob: float

    @classmethod
    def of(cls, config: ExampleConfig, max_seq_length: int) -> "PairRules":
        """Returns the rules of a configuration at a sequence length (special tokens included)."""
        contiguous = not config.next_sentence_prediction and config.no_nsp_input == "contiguous"
        sampling = "contiguous" if contiguous else config.nsp_sampling
        return cls(sampling, max_seq_length - (2 if contiguous else 3), config.short_seq_prob)


@dataclass(frozen=True)
class _Chunk:
    """One iteration, [E] each: A is the tokens [start, cut), the text that follows it in the chunk is [cut, end).

    `after_a` and `after_chunk` are the sentences where the document continues.
    """

    start: Int64Array
    cut: Int64Array
    end: Int64Array
    after_a: Int64Array
    after_chunk: Int64Array
    forced: BoolArray


class PairGenerator:
    """Draws the examples of a phase, pass after pass over the documents. Cheap to pickle where the corpus is.

    Args:
        corpus: its boundaries of documents and sentences are read, not its tokens.
        documents: ids of the documents to use, int64; segment B of a NotNext pair comes from these too.
        rules: sampling mode and lengths.
        seed: the run's seed.
        phase: number of the phase; phases have different examples.

    Raises:
        UserError: pairs are asked for and there are fewer than two documents.
    """

    def __init__(self, corpus: PreparedCorpus, documents: Int64Array, rules: PairRules, seed: int, phase: int) -> None:
        if rules.sampling != "contiguous" and len(documents) < 2:
            raise UserError(
                f"the corpus has {len(documents)} document(s) to draw from; next sentence prediction takes segment B "
                "from another document: prepare at least two, or set next_sentence_prediction to false and "
                "no_nsp_input to contiguous"
            )
        self.corpus, self.documents, self.rules = corpus, np.asarray(documents, dtype=np.int64), rules
        self.seed, self.phase = seed, phase

    @property
    def _bounds(self) -> Int64Array:
        return np.asarray(self.corpus.sentence_starts)

    @property
    def _document_starts(self) -> Int64Array:
        return np.asarray(self.corpus.document_starts)

    @property
    def _document_sentences(self) -> Int64Array:
        return np.asarray(self.corpus.document_sentences)

    def blocks(
        self, epoch: int, block_tokens: int = _BLOCK_TOKENS, chunk_documents: int = _CHUNK_DOCUMENTS
    ) -> Iterator[RowArray]:
        """Yields all examples of a pass, some at a time; their order does not depend on the size of the blocks.

        The memory that this takes does not grow with the corpus beyond a chunk.

        Args:
            epoch: number of the pass.
            block_tokens: documents are taken together until they hold about so many tokens.
            chunk_documents: documents whose lengths are sorted together; decides the order of the examples.
        """
        for first in range(0, len(self.documents), chunk_documents):
            documents = self.documents[first : first + chunk_documents]
            lengths = self._document_starts[documents + 1] - self._document_starts[documents]
            # Documents of similar length finish together: a long one alone would take iterations of one example.
            order = np.argsort(-lengths, kind="stable")
            ends = np.cumsum(lengths[order] + _TOKENS_PER_DOCUMENT)
            start = 0
            while start < len(order):
                already = ends[start - 1] if start else 0
                stop = max(int(np.searchsorted(ends, already + block_tokens, side="right")), start + 1)
                yield from self._block(epoch, first + order[start:stop])
                start = stop

    def _block(self, epoch: int, members: Int64Array) -> Iterator[RowArray]:
        """Yields the examples of some documents, document after document; made together, then sorted."""
        owners, rows = self._all_examples(epoch, members)
        places = np.argsort(owners, kind="stable")
        for start in range(0, len(places), _ROWS_AT_A_TIME):
            yield rows[places[start : start + _ROWS_AT_A_TIME]]

    def _all_examples(self, epoch: int, members: Int64Array) -> tuple[npt.NDArray[np.int32], RowArray]:
        """Returns which of the documents each example belongs to, and the examples."""
        documents = self.documents[members]
        keys = draw(self.seed, self.phase, epoch, documents)
        longest = self.rules.max_tokens
        is_short, short_length = draw(keys, _ALL_EXAMPLES, np.arange(2)[:, None])
        short = fraction(is_short) < self.rules.short_seq_prob
        targets = np.where(short, 2 + below(longest - 1, short_length), longest)
        sentence = self._document_sentences[documents]
        active = np.arange(len(members))
        rows, owners = [np.empty(0, ROW)], [active[:0].astype(np.int32)]
        choices = np.arange(len(_PairDraw))[:, None]
        example = 0
        while active.size:
            draws = draw(keys[active], example, choices)
            made, keep, sentence = self._examples(members[active], sentence, targets[active], draws)
            rows.append(made[keep])
            owners.append(active[keep].astype(np.int32))
            unfinished = sentence < self._document_sentences[documents[active] + 1]
            active, sentence = active[unfinished], sentence[unfinished]
            example += 1
        return np.concatenate(owners), np.concatenate(rows)

    def _examples(
        self, members: Int64Array, sentence: Int64Array, targets: Int64Array, draws: UInt64Array
    ) -> tuple[RowArray, BoolArray, Int64Array]:
        """Makes one example per document: the rows, which of them count, the sentence where each document continues."""
        documents = self.documents[members]
        chunk = self._chunk(documents, sentence, targets, draws)
        not_next = chunk.forced | (below(2, draws[_PairDraw.LABEL]) == NOT_NEXT)  # [E]
        if self.rules.sampling == "contiguous":
            not_next[:] = False
        document_b, start_b, end_b = documents.copy(), chunk.cut.copy(), chunk.end.copy()
        away = np.flatnonzero(not_next)
        document_b[away] = self._other_documents(members[away], draws[:, away])
        wanted = targets[away] - (chunk.cut - chunk.start)[away]
        start_b[away], end_b[away] = self._random_spans(document_b[away], wanted, draws[:, away])

        length_a, length_b = chunk.cut - chunk.start, end_b - start_b
        removed_a, removed_b = removed_tokens(length_a, length_b, self.rules.max_tokens)
        row = np.empty(len(documents), ROW)
        row["document_a"], row["document_b"] = documents, document_b
        row["start_a"] = (
            chunk.start - self._document_starts[documents] + removed_in_front(removed_a, draws[_PairDraw.FRONT_A])
        )
        row["start_b"] = (
            start_b - self._document_starts[document_b] + removed_in_front(removed_b, draws[_PairDraw.FRONT_B])
        )
        row["length_a"], row["length_b"] = length_a - removed_a, length_b - removed_b
        row["flags"] = np.where(not_next, NOT_NEXT, 0) | np.where(chunk.forced, FORCED, 0)
        # Does not depend on the label: whether an example exists must say nothing about it.
        complete = (chunk.cut < chunk.end) | (self.rules.sampling != "paper")
        return row, complete, np.where(not_next, chunk.after_a, chunk.after_chunk)

    def _chunk(self, documents: Int64Array, sentence: Int64Array, targets: Int64Array, draws: UInt64Array) -> _Chunk:
        last = self._document_sentences[documents + 1]
        start = self._bounds[sentence]
        after = np.minimum(np.searchsorted(self._bounds, start + targets), last)
        if self.rules.sampling == "paper":
            after = np.maximum(after, np.minimum(sentence + 2, last))
        end = self._bounds[after]
        is_single = after - sentence == 1
        if self.rules.sampling == "contiguous":
            return _Chunk(start, end, end, after, after, np.zeros_like(is_single))
        split = draws[_PairDraw.SPLIT]
        after_a = sentence + 1 + below(np.maximum(after - sentence - 1, 1), split)
        cut = self._bounds[after_a]
        if self.rules.sampling == "original":
            return _Chunk(start, cut, end, after_a, after, is_single)
        cut = np.where(is_single, start + 1 + below(np.maximum(end - start - 1, 0), split), cut)
        return _Chunk(start, cut, end, after_a, after, np.zeros_like(is_single))

    def _other_documents(self, members: Int64Array, draws: UInt64Array) -> Int64Array:
        """Draws a document for each: never its own in paper mode; in original mode its own after ten equal tries."""
        count = len(self.documents)
        if self.rules.sampling != "original":
            others = below(count - 1, draws[_PairDraw.DOCUMENT])
            return self.documents[others + (others >= members)]
        others, same = members.copy(), np.arange(len(members))
        for attempt in range(_RANDOM_DOCUMENT_TRIES):
            others[same] = below(count, draw(draws[_PairDraw.DOCUMENT, same], attempt))
            same = same[others[same] == members[same]]
            if not same.size:
                break
        return self.documents[others]

    def _random_spans(
        self, documents: Int64Array, wanted: Int64Array, draws: UInt64Array
    ) -> tuple[Int64Array, Int64Array]:
        """Draws complete sentences from a uniform one, until `wanted` tokens or the document's end; at least one."""
        first, last = self._document_sentences[documents], self._document_sentences[documents + 1]
        sentence = first + below(last - first, draws[_PairDraw.SENTENCE])
        start = self._bounds[sentence]
        after = np.searchsorted(self._bounds, start + np.maximum(wanted, 1))
        return start, self._bounds[np.minimum(after, last)]


def removed_tokens(length_a: Int64Array, length_b: Int64Array, limit: int) -> tuple[Int64Array, Int64Array]:
    """Returns how many tokens A and B lose when the longer one (B if equal) loses one at a time until both fit.

    Args:
        length_a: tokens of A, [E].
        length_b: tokens of B, [E].
        limit: tokens that A and B may have together.

    Returns:
        Tokens lost by A and by B, int64 [E] each.
    """
    excess = np.maximum(length_a + length_b - limit, 0)
    until_equal = np.minimum(excess, np.abs(length_a - length_b))
    alternately = excess - until_equal
    lost_a = np.where(length_a > length_b, until_equal, 0) + alternately // 2
    return lost_a, excess - lost_a


def removed_in_front(removed: Int64Array, keys: UInt64Array) -> Int64Array:
    """Draws how many of the removed tokens are lost in front, by a fair coin for each; the others are lost at the back.

    Args:
        removed: how many tokens each segment loses, [E].
        keys: names the draws, [E]; coin j is bit j % 64 of `draw(key, j // 64)`.

    Returns:
        int64 [E].
    """
    counts = np.zeros(len(removed), dtype=np.int64)
    some = np.flatnonzero(removed)
    if not some.size:
        return counts
    words = (removed[some] + 63) // 64
    place = places_in_row(words)
    bits = draw(np.repeat(keys[some], words), place)
    unused = np.maximum(64 * (place + 1) - np.repeat(removed[some], words), 0).astype(np.uint64)
    ones = np.bitwise_count(bits << unused).astype(np.int64)
    counts[some] = np.add.reduceat(ones, row_starts(words)[:-1])
    return counts


def sequence_lengths(rows: RowArray) -> Int64Array:
    """Returns the tokens of each example, [CLS] and [SEP] included, int64 [B], from rows, [B]."""
    return cast(Int64Array, rows["length_a"].astype(np.int64) + rows["length_b"] + np.where(rows["length_b"] > 0, 3, 2))


class EpochIndexes:
    """The examples of each epoch of a phase as a file of rows, drawn when needed. Pickled, it carries no open files.

    A file bears the digest of all that its rows are drawn from. An epoch is one pass over the documents.

    Args:
        pairs: draws the examples.
        folder: where the files are kept.
        static_passes: passes over the documents that make up the one file of static examples; None: fresh examples
            in every epoch.
    """

    def __init__(self, pairs: PairGenerator, folder: Path, static_passes: int | None = None) -> None:
        self._pairs, self._folder, self._static_passes = pairs, folder, static_passes
        names = [_ROW_FORMAT, asdict(pairs.rules), static_passes or 1, pairs.seed]
        digest = blake2b(json.dumps(names, sort_keys=True).encode(), digest_size=8)
        for array in (pairs.corpus.sentence_starts, pairs.corpus.document_sentences, pairs.documents):
            digest.update(np.ascontiguousarray(array, dtype=np.int64).data)
        self._series = f"phase{pairs.phase}-{digest.hexdigest()}"
        self._open: dict[int, RowArray] = {}
        self._first_kept = 0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": {}}

    def drawn_in(self, epoch: int) -> int:
        """Returns the epoch whose rows an epoch reads: itself; with static examples, epoch 0."""
        return epoch if self._static_passes is None else 0

    def path(self, epoch: int) -> Path:
        """Returns the file that holds an epoch's rows."""
        return self._folder / f"{self._series}-epoch{self.drawn_in(epoch)}.index"

    def get(self, epoch: int) -> RowArray:
        """Returns the rows of an epoch, drawn when they are not there; only one process of the run draws them.

        Raises:
            UserError: too few documents for pairs, or no document that makes an example.
        """
        epoch = self.drawn_in(epoch)
        if epoch not in self._open:
            if not self.path(epoch).exists():
                self._folder.mkdir(parents=True, exist_ok=True)
                with waiting_lock(self._folder):
                    if not self.path(epoch).exists():
                        self._write(epoch)
            if len(self._open) == _OPEN_INDEXES:
                del self._open[next(iter(self._open))]
            self._open[epoch] = np.memmap(self.path(epoch), ROW, mode="r")
        return self._open[epoch]

    def discard_before(self, epoch: int) -> None:
        """Removes the rows of earlier epochs from disk; they would be drawn again if they were read."""
        if self._static_passes is None and epoch > self._first_kept:
            self._first_kept = epoch
            for path in self._folder.glob(f"{self._series}-epoch*.index"):
                if int(path.stem.removeprefix(f"{self._series}-epoch")) < epoch:
                    path.unlink(missing_ok=True)

    def _write(self, epoch: int) -> None:
        passes = self._static_passes or 1
        with atomic_path(self.path(epoch)) as temporary, temporary.open("wb") as file:
            for number in range(epoch * passes, (epoch + 1) * passes):
                for block in self._pairs.blocks(number):
                    file.write(block.view(np.uint8).data)
            if not file.tell():
                raise UserError("no document makes a pre-training example: each has one token; give longer documents")
