"""Pre-training examples as a stream: a plan of every epoch's pairs on disk, read in a global random order.

An epoch is drawn once, in one pass over the documents, into a table of rows (`EpochPlan`); its order is a function of
(seed, phase, epoch); loader workers only slice tokens. So an example is the same in any process, and a run goes on from
(epoch, row) alone. Static examples (`dupe_factor`) are one plan of several passes, read again and again.

Shape legend: `B` examples, `T` tokens of all examples together.
"""

import os
import pickle
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from bert_repro.configs import ExampleConfig
from bert_repro.errors import UserError
from bert_repro.pretraining.permutation import permute
from bert_repro.pretraining.sample_index import EpochPlan, sequence_lengths
from bert_repro.pretraining.segment_pairs import NOT_NEXT, ROW, RowArray, SentenceBoundaries
from bert_repro.utils.ragged import Int64Array, row_starts
from bert_repro.utils.randomness import UInt64Array, draw

_WORTH_A_PROCESS = 200_000  # examples, about a second's work
_DRAW = """
import os, pickle, sys
os.nice(10)
stream, epoch = pickle.load(sys.stdin.buffer)
stream.plan(epoch)
"""
_OPEN_PLANS = 4  # a map holds a file open; a batch of a tiny corpus may reach over dozens of epochs
_ORDER_DRAW = 0x4F52444552  # names the order's draws among all others of (seed, phase, epoch)


class Corpus(SentenceBoundaries, Protocol):
    """What the stream reads: the boundaries, and the tokens of slices that lie inside a document."""

    def gather(self, starts: npt.ArrayLike, lengths: npt.ArrayLike) -> npt.NDArray[Any]: ...  # noqa: D102


@dataclass(frozen=True)
class Position:
    """Where a stream stands: everything that a run must remember of it.

    Args:
        epoch: number of the pass over the documents.
        row: examples of this pass that were taken already.
    """

    epoch: int = 0
    row: int = 0


@dataclass(frozen=True)
class ExampleBatch:
    """Examples before masking, end to end.

    Args:
        tokens: [CLS] A [SEP] B [SEP] or [CLS] A [SEP] of each example, int32 [T].
        lengths: tokens of each example, int64 [B].
        first_lengths: tokens of [CLS] A [SEP], int64 [B].
        next_sentence_labels: 0 IsNext, 1 NotNext, int64 [B].
        keys: names each example for masking, uint64 [B].
    """

    tokens: npt.NDArray[np.int32]
    lengths: Int64Array
    first_lengths: Int64Array
    next_sentence_labels: Int64Array
    keys: UInt64Array


class ExampleStream:
    """Examples of epoch after epoch in a global random order. Pickled, it carries no open files.

    Args:
        corpus: boundaries and tokens.
        documents: ids of the documents to use, int64.
        config: how examples are made.
        max_seq_length: tokens of an example at most, [CLS] and [SEP] included.
        seed: the run's seed.
        phase: number of the phase; phases have different examples.
        folder: where epoch plans are kept.
        cls_token_id: id of [CLS].
        sep_token_id: id of [SEP].
    """

    def __init__(
        self,
        corpus: Corpus,
        documents: Int64Array,
        config: ExampleConfig,
        *,
        max_seq_length: int,
        seed: int,
        phase: int,
        folder: str | Path,
        cls_token_id: int,
        sep_token_id: int,
    ) -> None:
        self._corpus = corpus
        self._documents = np.asarray(documents, dtype=np.int64)
        self._config = config
        self._max_seq_length = max_seq_length
        self._seed = seed
        self._phase = phase
        self._folder = Path(folder)
        self._cls_token_id = cls_token_id
        self._sep_token_id = sep_token_id
        self._plans: dict[int, EpochPlan] = {}
        self._first_kept = 0
        self._drawing: dict[int, subprocess.Popen[bytes]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_plans": {}, "_drawing": {}}

    def plan(self, epoch: int) -> EpochPlan:
        """The plan that an epoch reads, built when it is not there; static examples are those of epoch 0."""
        epoch = self._drawn_in(epoch)
        if epoch not in self._plans:
            if process := self._drawing.pop(epoch, None):
                process.wait()  # if it failed, the plan is drawn here
            plan = EpochPlan.build(
                self._corpus,
                self._documents,
                self._config,
                max_seq_length=self._max_seq_length,
                seed=self._seed,
                phase=self._phase,
                epoch=epoch,
                folder=self._folder,
            )
            if len(self._plans) == _OPEN_PLANS:
                del self._plans[next(iter(self._plans))]
            self._plans[epoch] = plan
        return self._plans[epoch]

    def prepare(self, epoch: int) -> None:
        """Draws an epoch's plan in a process of its own, so that training does not wait when the epoch begins.

        Small plans are drawn faster than a process starts; nothing happens for them.
        """
        epoch = self._drawn_in(epoch)
        if epoch in self._plans or epoch in self._drawing or len(self.plan(max(0, epoch - 1))) < _WORTH_A_PROCESS:
            return
        with TemporaryFile() as work:
            pickle.dump((self, epoch), work)
            work.seek(0)
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
            self._drawing[epoch] = subprocess.Popen([sys.executable, "-c", _DRAW], stdin=work, env=environment)

    def stop_preparing(self) -> None:
        """Ends what `prepare` began; called when no more examples are read."""
        for process in self._drawing.values():
            process.kill()
            process.wait()
        self._drawing.clear()

    def take(self, position: Position, count: int) -> tuple[Int64Array, Position]:
        """The ids of the next examples; a batch may reach into the next epoch.

        Args:
            position: where the stream stands.
            count: examples to take.

        Returns:
            ids: int64 [count, 2], the epoch whose plan holds the example and its row there.
            position: where the stream stands afterwards.

        Raises:
            UserError: the position lies behind the end of its epoch: it belongs to other data or settings.
        """
        parts, epoch, row = [np.empty((0, 2), dtype=np.int64)], position.epoch, position.row
        if row > len(self.plan(epoch)):
            raise UserError(
                f"row {row} of epoch {epoch} does not exist, the epoch has {len(self.plan(epoch))} examples; "
                "resume with the corpus and settings that the run was started with"
            )
        while count > 0:
            size = len(self.plan(epoch))
            places = np.arange(row, min(row + count, size))
            rows = permute(places, size, self._seed, self._phase, epoch, _ORDER_DRAW)
            parts.append(np.stack([np.full_like(rows, self._drawn_in(epoch)), rows], axis=1))
            count -= len(places)
            row += len(places)
            if row == size:
                epoch, row = epoch + 1, 0
        return np.concatenate(parts), Position(epoch, row)

    def lengths(self, ids: Int64Array) -> Int64Array:
        """Tokens of the examples with these ids, [CLS] and [SEP] included, int64 [B], without reading the tokens."""
        return sequence_lengths(self._rows(ids))

    def read(self, ids: Int64Array) -> ExampleBatch:
        """Reads the examples with these ids.

        Args:
            ids: int64 [B, 2], as `take` returns them.
        """
        rows = self._rows(ids)
        spans = np.stack([rows["length_a"], rows["length_b"]], axis=1).astype(np.int64)
        documents = np.stack([rows["document_a"], rows["document_b"]], axis=1)
        starts = self._corpus.document_starts[documents] + np.stack([rows["start_a"], rows["start_b"]], axis=1)
        written = spans.ravel() > 0
        text = self._corpus.gather(starts.ravel()[written], spans.ravel()[written])

        lengths, first_lengths = sequence_lengths(rows), spans[:, 0] + 2
        begins = row_starts(lengths)
        tokens = np.full(begins[-1], self._sep_token_id, dtype=np.int32)
        is_text = np.ones(len(tokens), dtype=bool)
        is_text[begins[:-1]] = is_text[begins[:-1] + first_lengths - 1] = is_text[begins[1:] - 1] = False
        tokens[is_text] = text
        tokens[begins[:-1]] = self._cls_token_id
        labels = (rows["flags"] & NOT_NEXT).astype(np.int64)
        return ExampleBatch(tokens, lengths, first_lengths, labels, self._keys(ids))

    def discard_before(self, epoch: int) -> None:
        """Removes the plans of earlier epochs from disk; they would be built again if they were read.

        Args:
            epoch: the first epoch to keep.
        """
        if self._config.dupe_factor is None and self._plans and epoch > self._first_kept:
            self._first_kept = epoch
            next(iter(self._plans.values())).remove_earlier(epoch)

    def _drawn_in(self, epoch: int) -> int:
        return epoch if self._config.dupe_factor is None else 0

    def _keys(self, ids: Int64Array) -> UInt64Array:
        return draw(self._seed, self._phase, ids[:, 0], ids[:, 1])

    def _rows(self, ids: Int64Array) -> RowArray:
        rows = np.empty(len(ids), ROW)
        for epoch in np.unique(ids[:, 0]):
            of_epoch = ids[:, 0] == epoch
            rows[of_epoch] = self.plan(int(epoch)).rows[ids[of_epoch, 1]]
        return rows
