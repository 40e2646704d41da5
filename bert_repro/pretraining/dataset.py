"""The batches of pre-training: examples read from the corpus, masked, and handed out step by step.

    ExampleStream       examples of epoch after epoch in a random order: which ones come next, and their tokens
    PretrainingSource   the batch source that the trainer runs through: phases, each with a stream of its own

Held-out evaluation and the audit read the same streams. An example is the same in any process, and a run resumes from
(phase, epoch, row) alone.

Shape legend: `B` examples, `T` tokens of all examples together.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import isqrt
from pathlib import Path
from typing import Any

import numpy as np

from bert_repro.configs import ExampleConfig, Phase, PretrainingConfig
from bert_repro.corpus.prepared_corpus import PreparedCorpus
from bert_repro.errors import UserError
from bert_repro.pretraining.masking import DataCollatorForBertPreTraining, ExampleBatch, num_predictions
from bert_repro.pretraining.segment_pairs import (
    NOT_NEXT,
    ROW,
    EpochIndexes,
    PairGenerator,
    PairRules,
    RowArray,
    sequence_lengths,
)
from bert_repro.training.batches import IGNORE_INDEX, Ids, MicroBatch, Step, even_passes
from bert_repro.training.performance import pretraining_flops_per_token
from bert_repro.utils.arrays import Int64Array, row_starts
from bert_repro.utils.files import SAMPLE_INDEX
from bert_repro.utils.randomness import Stream, draw

_PERMUTATION_ROUNDS = 8
_SAMPLE = 1000  # examples


@dataclass(frozen=True)
class Position:
    """Where a stream is: everything that a run must remember of it.

    Args:
        epoch: number of the pass over the documents.
        row: examples of this pass that were taken already.
    """

    epoch: int = 0
    row: int = 0


class ExampleStream:
    """Examples of epoch after epoch in a global random order. Pickled, it carries no open files.

    Args:
        corpus: boundaries and tokens.
        documents: ids of the documents to use, int64.
        config: how examples are made.
        tokenizer: its [CLS] and [SEP] are used.
        max_seq_length: tokens of an example at most, [CLS] and [SEP] included.
        seed: the run's seed.
        phase: number of the phase; phases have different examples.
        folder: where sample indexes are kept.
    """

    def __init__(
        self,
        corpus: PreparedCorpus,
        documents: Int64Array,
        config: ExampleConfig,
        tokenizer: Any,
        *,
        max_seq_length: int,
        seed: int,
        phase: int,
        folder: str | Path,
    ) -> None:
        pairs = PairGenerator(corpus, documents, PairRules.of(config, max_seq_length), seed, phase)
        self.indexes = EpochIndexes(pairs, Path(folder), static_passes=config.dupe_factor)
        self._corpus, self._seed, self._phase = corpus, seed, phase
        self._cls_token_id, self._sep_token_id = tokenizer.cls_token_id, tokenizer.sep_token_id

    def take(self, position: Position, count: int) -> tuple[Int64Array, Position]:
        """Returns the ids of the next examples; a batch may reach into the next epoch.

        Args:
            position: where the stream is.
            count: examples to take.

        Returns:
            ids: int64 [count, 2], the epoch whose index holds the example and its row there.
            position: where the stream is afterwards.

        Raises:
            UserError: the position is behind the end of its epoch: it belongs to other data or settings.
        """
        parts, epoch, row = [np.empty((0, 2), dtype=np.int64)], position.epoch, position.row
        if row > len(self.indexes.get(epoch)):
            raise UserError(
                f"row {row} of epoch {epoch} does not exist, the epoch has {len(self.indexes.get(epoch))} examples; "
                "resume with the corpus and settings that the run was started with"
            )
        while count > 0:
            size = len(self.indexes.get(epoch))
            places = np.arange(row, min(row + count, size))
            rows = permute(places, size, self._seed, self._phase, epoch, Stream.EXAMPLE_ORDER)
            parts.append(np.stack([np.full_like(rows, self.indexes.drawn_in(epoch)), rows], axis=1))
            count -= len(places)
            row += len(places)
            if row == size:
                epoch, row = epoch + 1, 0
        return np.concatenate(parts), Position(epoch, row)

    def lengths(self, ids: Int64Array) -> Int64Array:
        """Returns the tokens of each example, [CLS] and [SEP] included, int64 [B], without reading the text."""
        return sequence_lengths(self._rows(ids))

    def read(self, ids: Int64Array) -> ExampleBatch:
        """Reads the examples with these ids, int64 [B, 2], as `take` returns them."""
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
        keys = draw(self._seed, self._phase, ids[:, 0], ids[:, 1])
        return ExampleBatch(tokens, lengths, first_lengths, labels, keys)

    def _rows(self, ids: Int64Array) -> RowArray:
        rows = np.empty(len(ids), ROW)
        for epoch in np.unique(ids[:, 0]):
            of_epoch = ids[:, 0] == epoch
            rows[of_epoch] = self.indexes.get(int(epoch))[ids[of_epoch, 1]]
        return rows


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


def collator(
    config: PretrainingConfig, phase: Phase, tokenizer: Any, sequences: int | None = None
) -> DataCollatorForBertPreTraining:
    """Returns what masks and batches the examples of a phase; with `sequences`, all batches to that one shape."""
    return DataCollatorForBertPreTraining(
        tokenizer,
        config,
        max_predictions_per_seq=phase.max_predictions_per_seq,
        packing=config.packing,
        pad_to_length=phase.max_seq_length if sequences else None,
        pad_to_sequences=sequences,
        return_prediction_positions=not config.left_to_right,
    )


class PretrainingSource:
    """The batch source of a pre-training run: phases after each other, each an endless stream of fresh examples.

    Args:
        config: how examples are made; the seed.
        phases: lengths, steps and batches, as `resolve_phases` returns them.
        corpus: the prepared corpus.
        documents: ids of the documents to train on.
        tokenizer: special tokens and vocabulary.
        model_config: shape of the model, for its FLOPs per token.
        processes: devices that share the work.
    """

    def __init__(
        self,
        config: PretrainingConfig,
        phases: tuple[Phase, ...],
        corpus: PreparedCorpus,
        documents: Int64Array,
        tokenizer: Any,
        model_config: Any,
        *,
        processes: int = 1,
    ) -> None:
        self.config, self.phases, self.processes = config, phases, processes
        self.unk_token_id = tokenizer.unk_token_id
        self.total_steps = sum(phase.steps for phase in phases)
        self.data_fingerprint: dict[str, Any] = {
            "documents": len(documents),
            "digest of the corpus": corpus.content_digest,
            "train_batch_size": [phase.batch for phase in phases],
            "steps": [phase.steps for phase in phases],
        }
        self.flops_per_token = [
            pretraining_flops_per_token(model_config, config, phase.max_seq_length) for phase in phases
        ]
        names: dict[str, Any] = {"seed": config.seed, "folder": Path(config.output_dir) / SAMPLE_INDEX}
        self.streams = [
            ExampleStream(
                corpus, documents, config, tokenizer, max_seq_length=phase.max_seq_length, phase=number, **names
            )
            for number, phase in enumerate(phases)
        ]
        self.collators = [
            collator(
                config, phase, tokenizer, (phase.per_device_batch or phase.batch) if config.static_shapes else None
            )
            for phase in phases
        ]

    def steps(self, position: dict[str, Any] | None) -> Iterator[Step]:
        """Yields steps; see `BatchSource.steps`. A position is the phase, its steps taken, the epoch and the row."""
        start = position or {"phase": 0, "phase_step": 0, "epoch": 0, "row": 0}
        for number in range(start["phase"], len(self.phases)):
            here, stream = number == start["phase"], self.streams[number]
            done, at = (start["phase_step"], Position(start["epoch"], start["row"])) if here else (0, Position())
            for phase_step in itertools.count(done + 1):
                if phase_step > self.phases[number].steps:  # which a run with little time may change
                    break
                ids, at = stream.take(at, self.phases[number].batch)
                # Loader processes read a few steps behind; those never reach back more than one epoch.
                stream.indexes.discard_before(at.epoch - 1)
                place = {"phase": number, "phase_step": phase_step, "epoch": at.epoch, "row": at.row}
                yield self._step(ids, number, place)

    def set_steps(self, steps: Sequence[int]) -> None:
        """Changes how long each phase is."""
        self.phases = tuple(replace(phase, steps=own) for phase, own in zip(self.phases, steps, strict=True))
        self.total_steps = sum(steps)
        self.data_fingerprint["steps"] = list(steps)

    def tokens_until(self, step: int) -> int:
        """Returns the tokens of the first steps, padding included."""
        steps = np.diff(np.minimum(np.cumsum([0, *(phase.steps for phase in self.phases)]), step)).tolist()
        return sum(own * phase.batch * phase.max_seq_length for own, phase in zip(steps, self.phases, strict=True))

    def load(self, ids: Ids, group: int) -> MicroBatch:
        """Reads, masks and collates examples; see `BatchSource.load`."""
        examples = self.streams[group].read(ids)
        inputs = self.collators[group](examples)
        # Whole-word masking may predict a few tokens less than the length allows, so the labels are counted.
        labels = int((inputs["labels"] != IGNORE_INDEX).sum())
        counts = (
            {"loss": labels - len(ids)} if self.config.left_to_right else {"mlm_loss": labels, "nsp_loss": len(ids)}
        )
        return MicroBatch(inputs, counts, int(examples.lengths.sum()))

    def sample_shares(self) -> tuple[float, float]:
        """Returns the share of NotNext in the first epoch, and of [UNK] in a sample of its examples."""
        stream = self.streams[0]
        examples = stream.read(stream.take(Position(0, 0), _SAMPLE)[0])
        not_next = (stream.indexes.get(0)["flags"] & NOT_NEXT).mean()
        return float(not_next), float((examples.tokens == self.unk_token_id).mean())

    def _step(self, ids: Ids, number: int, position: dict[str, Any]) -> Step:
        phase = self.phases[number]
        lengths = self.streams[number].lengths(ids)
        sequences = phase.per_device_batch or len(ids)
        if self.config.packing:
            passes = balanced_passes(ids, lengths, sequences, self.processes)
        else:
            passes = even_passes(ids, sequences, self.processes)
        return Step(passes, number, position, self.flops_per_token[number])

    def totals(self, ids: Ids, group: int) -> dict[str, int]:
        """Counts the terms of each loss; see `BatchSource.totals`."""
        lengths = self.streams[group].lengths(ids)
        if self.config.left_to_right:
            return {"loss": int((lengths - 1).sum())}
        most = self.phases[group].max_predictions_per_seq
        predictions = num_predictions(lengths, self.config.masked_lm_prob, most)
        totals = {"mlm_loss": int(predictions.sum())}
        return totals | ({"nsp_loss": len(lengths)} if self.config.next_sentence_prediction else {})


def balanced_passes(ids: Ids, lengths: Int64Array, sequences: int, processes: int) -> list[Ids]:
    """Cuts a batch into the `Step.passes` of all processes so that they hold nearly as many tokens each.

    Examples are dealt out longest first, back and forth (1 2 3 3 2 1 ...).

    Args:
        ids: example ids, [batch, ...].
        lengths: tokens of each example, int64 [batch].
        sequences: most examples of a pass.
        processes: devices that share the work.
    """
    passes = math.ceil(len(ids) / (processes * sequences)) * processes
    table = np.full((math.ceil(len(ids) / passes), passes), -1, dtype=np.int64)
    table.flat[: len(ids)] = np.argsort(-lengths, kind="stable")
    table[1::2] = table[1::2, ::-1]
    return [ids[column[column >= 0]] for column in table.T]
