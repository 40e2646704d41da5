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
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from bert_repro.configs import ExampleConfig
from bert_repro.corpus.prepared_corpus import PreparedCorpus
from bert_repro.errors import UserError, flag
from bert_repro.pretraining.objectives import objective_of
from bert_repro.utils.arrays import Int64Array, places_in_row, row_starts
from bert_repro.utils.files import atomic_path, waiting_lock
from bert_repro.utils.randomness import UInt64Array, below, draw, fraction

BoolArray = npt.NDArray[np.bool_]

# Flags of a row.
NOT_NEXT = 1
FORCED = 2  # The original sampling left no choice of the label.

_ROW_FIELDS = ("document_a", "start_a", "length_a", "document_b", "start_b", "length_b", "flags")
ROW = np.dtype([(name, "<i4") for name in _ROW_FIELDS])
"""An example: two spans of tokens, each a document, a start inside it and a length. Without a segment B its length is
0. `flags` contains NOT_NEXT and FORCED."""

RowArray = npt.NDArray[np.void]

_ALL_EXAMPLES = -1  # Stands for the number of the example in draws that concern all examples of a document.
_RANDOM_DOCUMENT_TRIES = 10  # original implementation

# Documents are processed in blocks of about so many tokens. Each document counts so many more tokens than it has, which
# limits the number of documents in a block.
_BLOCK_TOKENS = 1 << 25
_TOKENS_PER_DOCUMENT = 1 << 10
_CHUNK_DOCUMENTS = 1 << 16  # Documents that are sorted by length together; limits the memory per document.
_ROWS_AT_A_TIME = 1 << 16

_ROW_FORMAT = 2  # Version of the files of rows; part of their digest.
_OPEN_INDEXES = 4  # A memory map keeps its file open, and a batch of a tiny corpus may reach over dozens of epochs.


class _PairDraw(IntEnum):
    """What a draw decides: the last integer in the name of an example's draw, and the draw's row in their array."""

    SPLIT = 0
    LABEL = 1
    DOCUMENT = 2
    SENTENCE = 3
    FRONT_A = 4
    FRONT_B = 5


@dataclass(frozen=True)
class PairRules:
    """The rules that decide the examples, apart from the corpus and the draws.

    Args:
        sampling: "paper", "original" or "contiguous".
        max_tokens: tokens of A and B together, without special tokens.
        short_seq_prob: probability of a shorter target length.
    """

    sampling: str
    max_tokens: int
    short_seq_prob: float

    @classmethod
    def of(cls, config: ExampleConfig, max_seq_length: int) -> "PairRules":
        """Returns the rules of a configuration at a sequence length (special tokens included)."""
        if objective_of(config).draws_pairs:
            # [CLS] A [SEP] B [SEP]
            return cls(config.nsp_sampling, max_seq_length - 3, config.short_seq_prob)
        # [CLS] A [SEP]
        return cls("contiguous", max_seq_length - 2, config.short_seq_prob)


@dataclass(frozen=True)
class _Chunk:
    """The text that one iteration takes from each document, [E] each.

    Args:
        start: first token of segment A.
        cut: token after segment A; the text that follows A in the chunk is [cut, end).
        end: token after the chunk.
        after_a: sentence where the document continues if segment B comes from elsewhere.
        after_chunk: sentence where the document continues if segment B is the text that follows A.
        forced: whether the original sampling leaves no choice of the label.
    """

    start: Int64Array
    cut: Int64Array
    end: Int64Array
    after_a: Int64Array
    after_chunk: Int64Array
    forced: BoolArray


class _Examples(NamedTuple):
    """One example of each of several documents.

    Args:
        rows: the examples, [E].
        is_complete: whether an example has text for segment A and text that follows it, bool [E]; the others are
            dropped.
        next_sentence: sentence where each document continues, int64 [E].
    """

    rows: RowArray
    is_complete: BoolArray
    next_sentence: Int64Array


class PairGenerator:
    """Draws the examples of a phase, pass after pass over the documents. Cheap to pickle if the corpus is.

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
                f"The corpus has {len(documents)} document(s) to draw from, but next sentence prediction takes segment "
                "B from another document. Prepare at least two documents, or set "
                f"{flag('next_sentence_prediction', False)} {flag('no_nsp_input', 'contiguous')}.",
                setting="corpus",
            )
        self.corpus = corpus
        self.documents = np.asarray(documents, dtype=np.int64)
        self.rules = rules
        self.seed = seed
        self.phase = phase

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
        """Yields the examples of some documents, document after document.

        Args:
            epoch: number of the pass.
            members: places of the documents in `self.documents`, int64 [E].
        """
        owners, rows = self._all_examples(epoch, members)
        order = np.argsort(owners, kind="stable")
        for start in range(0, len(order), _ROWS_AT_A_TIME):
            yield rows[order[start : start + _ROWS_AT_A_TIME]]

    def _all_examples(self, epoch: int, members: Int64Array) -> tuple[npt.NDArray[np.int32], RowArray]:
        """Makes all examples of some documents, one example of each document at a time.

        Returns:
            owners: which of the members each example belongs to, int32.
            rows: the examples.
        """
        documents = self.documents[members]
        keys = draw(self.seed, self.phase, epoch, documents)
        targets = self._target_lengths(keys)

        # `active` are the members that have text left, `sentence` is the sentence where each of them continues.
        active = np.arange(len(members))
        sentence = self._document_sentences[documents]
        end_sentence = self._document_sentences[documents + 1]
        owners = [np.empty(0, np.int32)]
        rows = [np.empty(0, ROW)]
        choices = np.arange(len(_PairDraw))[:, None]
        example = 0
        while active.size:
            draws = draw(keys[active], example, choices)
            examples = self._examples(members[active], sentence, targets[active], draws)
            rows.append(examples.rows[examples.is_complete])
            owners.append(active[examples.is_complete].astype(np.int32))

            # Documents whose last sentence is used take no further part.
            has_text_left = examples.next_sentence < end_sentence[active]
            active = active[has_text_left]
            sentence = examples.next_sentence[has_text_left]
            example += 1
        return np.concatenate(owners), np.concatenate(rows)

    def _target_lengths(self, keys: UInt64Array) -> Int64Array:
        """Draws the length that the examples of each document aim at: mostly the full one, else a shorter one (A.2).

        Args:
            keys: names of the documents' draws, uint64 [E].

        Returns:
            int64 [E].
        """
        full_length = self.rules.max_tokens
        is_short_draw, short_length_draw = draw(keys, _ALL_EXAMPLES, np.arange(2)[:, None])
        is_short = fraction(is_short_draw) < self.rules.short_seq_prob
        short_length = 2 + below(full_length - 1, short_length_draw)
        return np.where(is_short, short_length, full_length)

    def _examples(
        self, members: Int64Array, sentence: Int64Array, targets: Int64Array, draws: UInt64Array
    ) -> _Examples:
        """Makes one example of each document.

        Args:
            members: places of the documents in `self.documents`, int64 [E].
            sentence: first sentence of each example, int64 [E].
            targets: tokens that each example aims at, int64 [E].
            draws: draws by `_PairDraw`, uint64 [number of choices, E].
        """
        # 1. Take a chunk of each document and cut it into segment A and the text that follows it.
        documents = self.documents[members]
        chunk = self._chunk(documents, sentence, targets, draws)

        # 2. Draw the label.
        is_not_next = chunk.forced | (below(2, draws[_PairDraw.LABEL]) == NOT_NEXT)
        if self.rules.sampling == "contiguous":
            is_not_next[:] = False

        # 3. Segment B is the text that follows A or, for NotNext, comes from another document.
        document_b = documents.copy()
        start_b = chunk.cut.copy()
        end_b = chunk.end.copy()
        length_a = chunk.cut - chunk.start
        elsewhere = np.flatnonzero(is_not_next)
        document_b[elsewhere] = self._other_documents(members[elsewhere], draws[:, elsewhere])
        tokens_left = targets[elsewhere] - length_a[elsewhere]
        start_b[elsewhere], end_b[elsewhere] = self._random_spans(
            document_b[elsewhere], tokens_left, draws[:, elsewhere]
        )

        # 4. Shorten the pair to the limit, at the front or the back of each segment.
        length_b = end_b - start_b
        removed_a, removed_b = removed_tokens(length_a, length_b, self.rules.max_tokens)
        front_a = removed_in_front(removed_a, draws[_PairDraw.FRONT_A])
        front_b = removed_in_front(removed_b, draws[_PairDraw.FRONT_B])

        rows = np.empty(len(documents), ROW)
        rows["document_a"] = documents
        rows["start_a"] = chunk.start - self._document_starts[documents] + front_a
        rows["length_a"] = length_a - removed_a
        rows["document_b"] = document_b
        rows["start_b"] = start_b - self._document_starts[document_b] + front_b
        rows["length_b"] = length_b - removed_b
        rows["flags"] = np.where(is_not_next, NOT_NEXT, 0) | np.where(chunk.forced, FORCED, 0)

        # 5. Under the paper's sampling an example needs text after A. This must not depend on the label, or whether an
        # example exists would say something about it.
        is_complete = (chunk.cut < chunk.end) | (self.rules.sampling != "paper")
        next_sentence = np.where(is_not_next, chunk.after_a, chunk.after_chunk)
        return _Examples(rows, is_complete, next_sentence)

    def _chunk(self, documents: Int64Array, sentence: Int64Array, targets: Int64Array, draws: UInt64Array) -> _Chunk:
        """Takes complete sentences of each document up to the target length, and draws where segment A ends."""
        # The sentence that reaches the target is the last one of the chunk. The paper's sampling takes two sentences
        # if the document has them, so that there is text after A.
        end_sentence = self._document_sentences[documents + 1]
        start = self._bounds[sentence]
        after = np.minimum(np.searchsorted(self._bounds, start + targets), end_sentence)
        if self.rules.sampling == "paper":
            after = np.maximum(after, np.minimum(sentence + 2, end_sentence))
        end = self._bounds[after]
        is_single = after - sentence == 1
        not_forced = np.zeros_like(is_single)

        # One contiguous text: all of the chunk is segment A.
        if self.rules.sampling == "contiguous":
            return _Chunk(start, end, end, after, after, not_forced)

        # A pair: segment A ends after a random sentence, but not the last one.
        split = draws[_PairDraw.SPLIT]
        after_a = sentence + 1 + below(np.maximum(after - sentence - 1, 1), split)
        cut = self._bounds[after_a]

        # A chunk of one sentence leaves no text for B. The original implementation makes it NotNext; the paper's
        # sampling cuts the sentence at a random token instead, so that the label stays a fair coin.
        if self.rules.sampling == "original":
            return _Chunk(start, cut, end, after_a, after, is_single)
        cut_inside = start + 1 + below(np.maximum(end - start - 1, 0), split)
        cut = np.where(is_single, cut_inside, cut)
        return _Chunk(start, cut, end, after_a, after, not_forced)

    def _other_documents(self, members: Int64Array, draws: UInt64Array) -> Int64Array:
        """Draws the document of segment B for each example, int64 [E].

        The paper's sampling never draws the document of segment A. The original implementation tries ten times and may
        end with the same document.
        """
        count = len(self.documents)
        if self.rules.sampling != "original":
            others = below(count - 1, draws[_PairDraw.DOCUMENT])
            return self.documents[others + (others >= members)]

        others = members.copy()
        is_same = np.arange(len(members))
        for attempt in range(_RANDOM_DOCUMENT_TRIES):
            others[is_same] = below(count, draw(draws[_PairDraw.DOCUMENT, is_same], attempt))
            is_same = is_same[others[is_same] == members[is_same]]
            if not is_same.size:
                break
        return self.documents[others]

    def _random_spans(
        self, documents: Int64Array, num_tokens: Int64Array, draws: UInt64Array
    ) -> tuple[Int64Array, Int64Array]:
        """Draws a first sentence in each document and takes complete sentences from there.

        Args:
            documents: ids of the documents, int64 [E].
            num_tokens: tokens to reach; the span has at least one sentence and ends with its document, int64 [E].
            draws: draws by `_PairDraw`, uint64 [number of choices, E].

        Returns:
            First token of each span and the token after it, int64 [E] each.
        """
        first_sentence = self._document_sentences[documents]
        end_sentence = self._document_sentences[documents + 1]
        sentence = first_sentence + below(end_sentence - first_sentence, draws[_PairDraw.SENTENCE])
        start = self._bounds[sentence]
        after = np.searchsorted(self._bounds, start + np.maximum(num_tokens, 1))
        return start, self._bounds[np.minimum(after, end_sentence)]


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
    # First the longer segment loses tokens until both are equally long, then both lose in turn, B first.
    until_equal = np.minimum(excess, np.abs(length_a - length_b))
    alternately = excess - until_equal
    lost_a = np.where(length_a > length_b, until_equal, 0) + alternately // 2
    return lost_a, excess - lost_a


def removed_in_front(removed: Int64Array, keys: UInt64Array) -> Int64Array:
    """Draws how many of the removed tokens are removed at the front, by a fair coin for each; the rest at the back.

    Args:
        removed: how many tokens each segment loses, [E].
        keys: names the draws, [E]; coin j is bit j % 64 of `draw(key, j // 64)`.

    Returns:
        int64 [E].
    """
    counts = np.zeros(len(removed), dtype=np.int64)
    loses_tokens = np.flatnonzero(removed)
    if not loses_tokens.size:
        return counts

    # Draw 64 coins at a time and count the ones. The last draw of a segment has coins that are not needed; shifting
    # them out keeps the lower bits.
    removed = removed[loses_tokens]
    num_draws = (removed + 63) // 64
    place = places_in_row(num_draws)
    coins = draw(np.repeat(keys[loses_tokens], num_draws), place)
    unused = np.maximum(64 * (place + 1) - np.repeat(removed, num_draws), 0).astype(np.uint64)
    ones = np.bitwise_count(coins << unused).astype(np.int64)
    counts[loses_tokens] = np.add.reduceat(ones, row_starts(num_draws)[:-1])
    return counts


def sequence_lengths(rows: RowArray) -> Int64Array:
    """Returns the tokens of each example, [CLS] and [SEP] included, int64 [B], from rows, [B]."""
    special_tokens = np.where(rows["length_b"] > 0, 3, 2)
    return cast(Int64Array, rows["length_a"].astype(np.int64) + rows["length_b"] + special_tokens)


class EpochIndexes:
    """The examples of each epoch of a phase as a file of rows, drawn when needed. Pickled, it carries no open files.

    A file's name contains a digest of everything that its rows are drawn from. An epoch is one pass over the documents.

    Args:
        pairs: draws the examples.
        folder: folder of the files.
        static_passes: number of passes over the documents in the one file of static examples; None draws fresh
            examples in every epoch.
    """

    def __init__(self, pairs: PairGenerator, folder: Path, static_passes: int | None = None) -> None:
        self._pairs = pairs
        self._folder = folder
        self._static_passes = static_passes
        # Everything that decides the rows: format, rules, seed, documents and their boundaries.
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
        """Returns the epoch whose rows `epoch` reads: itself or, with static examples, epoch 0."""
        return epoch if self._static_passes is None else 0

    def path(self, epoch: int) -> Path:
        """Returns the file of an epoch's rows."""
        return self._folder / f"{self._series}-epoch{self.drawn_in(epoch)}.index"

    def get(self, epoch: int) -> RowArray:
        """Returns the rows of an epoch. They are drawn if the file does not exist, by one process of the run only.

        Raises:
            UserError: too few documents for pairs, or no document that makes an example.
        """
        epoch = self.drawn_in(epoch)
        if epoch not in self._open:
            if not self.path(epoch).exists():
                self._folder.mkdir(parents=True, exist_ok=True)
                # Another process may have written the file while this one waited for the lock.
                with waiting_lock(self._folder):
                    if not self.path(epoch).exists():
                        self._write(epoch)
            # Close the index that was opened first.
            if len(self._open) == _OPEN_INDEXES:
                del self._open[next(iter(self._open))]
            self._open[epoch] = np.memmap(self.path(epoch), ROW, mode="r")
        return self._open[epoch]

    def discard_before(self, epoch: int) -> None:
        """Removes the rows of earlier epochs from disk. If they are read again, they are drawn again."""
        if self._static_passes is not None or epoch <= self._first_kept:
            return
        self._first_kept = epoch
        for path in self._folder.glob(f"{self._series}-epoch*.index"):
            if int(path.stem.removeprefix(f"{self._series}-epoch")) < epoch:
                path.unlink(missing_ok=True)

    def _write(self, epoch: int) -> None:
        """Draws an epoch and writes its rows, a block at a time."""
        passes = self._static_passes or 1
        with atomic_path(self.path(epoch)) as temporary, temporary.open("wb") as file:
            for number in range(epoch * passes, (epoch + 1) * passes):
                for block in self._pairs.blocks(number):
                    file.write(block.view(np.uint8).data)
            if not file.tell():
                raise UserError(
                    "No document makes a pre-training example, because each has a single token. Prepare a corpus with "
                    "longer documents.",
                    setting="corpus",
                )
