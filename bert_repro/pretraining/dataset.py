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
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_repro.configs import ExampleConfig, Phase, PretrainingConfig
from bert_repro.corpus.prepared_corpus import PreparedCorpus
from bert_repro.errors import UserError
from bert_repro.models.configuration_bert_repro import BertReproConfig
from bert_repro.pretraining.collator import DataCollatorForBertPreTraining, ExampleBatch
from bert_repro.pretraining.cost import pretraining_flops_per_token
from bert_repro.pretraining.objectives import objective_of
from bert_repro.pretraining.segment_pairs import (
    NOT_NEXT,
    ROW,
    EpochIndexes,
    PairGenerator,
    PairRules,
    RowArray,
    sequence_lengths,
)
from bert_repro.training.batches import Ids, MicroBatch, Step, even_passes
from bert_repro.utils.arrays import Int64Array, row_starts
from bert_repro.utils.files import SAMPLE_INDEX
from bert_repro.utils.randomness import Stream, draw

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_PERMUTATION_ROUNDS = 8
_SAMPLED_EXAMPLES = 1000  # for the share of [UNK]


@dataclass(frozen=True)
class Position:
    """Where a stream is: everything that a run must remember of it.

    Args:
        epoch: number of the pass over the documents.
        row: examples of this pass that were already taken.
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
        folder: folder of the sample indexes.
    """

    def __init__(
        self,
        corpus: PreparedCorpus,
        documents: Int64Array,
        config: ExampleConfig,
        tokenizer: "PreTrainedTokenizerBase",
        *,
        max_seq_length: int,
        seed: int,
        phase: int,
        folder: str | Path,
    ) -> None:
        rules = PairRules.of(config, max_seq_length)
        pairs = PairGenerator(corpus, documents, rules, seed, phase)
        self.indexes = EpochIndexes(pairs, Path(folder), static_passes=config.dupe_factor)
        self._corpus = corpus
        self._seed = seed
        self._phase = phase
        self._cls_token_id = tokenizer.cls_token_id
        self._sep_token_id = tokenizer.sep_token_id

    def take(self, position: Position, count: int) -> tuple[Int64Array, Position]:
        """Returns the ids of the next examples; a batch may reach into the next epoch.

        Args:
            position: where the stream is.
            count: examples to take.

        Returns:
            ids: int64 [count, 2], the epoch whose index contains the example and its row there.
            position: where the stream is afterwards.

        Raises:
            UserError: the position is behind the end of its epoch, so it belongs to other data or settings.
        """
        epoch, row = position.epoch, position.row
        if row > len(self.indexes.get(epoch)):
            raise UserError(
                f"Row {row} of epoch {epoch} does not exist, because the epoch has {len(self.indexes.get(epoch))} "
                "examples. Resume with the corpus and settings that the run was started with."
            )

        parts = [np.empty((0, 2), dtype=np.int64)]
        while count > 0:
            # The order of an epoch is a computed permutation: place n holds the n-th example to take.
            size = len(self.indexes.get(epoch))
            places = np.arange(row, min(row + count, size))
            rows = permute(places, size, self._seed, self._phase, epoch, Stream.EXAMPLE_ORDER)
            epochs = np.full_like(rows, self.indexes.drawn_in(epoch))
            parts.append(np.stack([epochs, rows], axis=1))

            count -= len(places)
            row += len(places)
            if row == size:
                epoch, row = epoch + 1, 0
        return np.concatenate(parts), Position(epoch, row)

    def lengths(self, ids: Int64Array) -> Int64Array:
        """Returns the tokens of each example, [CLS] and [SEP] included, int64 [B], without reading the text."""
        return sequence_lengths(self.rows(ids))

    def rows(self, ids: Int64Array) -> RowArray:
        """Returns the rows of the sample index for examples with these ids, int64 [B, 2]: documents and spans."""
        rows = np.empty(len(ids), ROW)
        for epoch in np.unique(ids[:, 0]):
            is_of_epoch = ids[:, 0] == epoch
            rows[is_of_epoch] = self.indexes.get(int(epoch))[ids[is_of_epoch, 1]]
        return rows

    def read(self, ids: Int64Array) -> ExampleBatch:
        """Reads the examples with these ids, int64 [B, 2], as `take` returns them."""
        # Read the tokens of all segments A and B, one after the other. An example without B has an empty span.
        rows = self.rows(ids)
        spans = np.stack([rows["length_a"], rows["length_b"]], axis=1).astype(np.int64)
        documents = np.stack([rows["document_a"], rows["document_b"]], axis=1)
        offsets = np.stack([rows["start_a"], rows["start_b"]], axis=1)
        starts = self._corpus.document_starts[documents] + offsets
        is_present = spans.ravel() > 0
        text = self._corpus.gather(starts.ravel()[is_present], spans.ravel()[is_present])

        # Lay them out as [CLS] A [SEP] B [SEP]: fill everything with [SEP], then put the text and [CLS] in place.
        lengths = sequence_lengths(rows)
        first_lengths = spans[:, 0] + 2
        begins = row_starts(lengths)
        tokens = np.full(begins[-1], self._sep_token_id, dtype=np.int32)
        is_text = np.ones(len(tokens), dtype=bool)
        is_text[begins[:-1]] = False
        is_text[begins[:-1] + first_lengths - 1] = False
        is_text[begins[1:] - 1] = False
        tokens[is_text] = text
        tokens[begins[:-1]] = self._cls_token_id

        labels = (rows["flags"] & NOT_NEXT).astype(np.int64)
        keys = draw(self._seed, self._phase, ids[:, 0], ids[:, 1])
        return ExampleBatch(tokens, lengths, first_lengths, labels, keys)


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


def make_collator(
    config: PretrainingConfig,
    phase: Phase,
    tokenizer: "PreTrainedTokenizerBase",
    static_sequences: int | None = None,
) -> DataCollatorForBertPreTraining:
    """Returns the collator of a phase.

    Args:
        config: the run's settings.
        phase: its length and limit of predictions.
        tokenizer: tokenizer of the corpus.
        static_sequences: pad every batch to so many sequences of the phase's length; None pads or packs as configured.
    """
    return DataCollatorForBertPreTraining(
        tokenizer,
        config,
        max_predictions_per_seq=phase.max_predictions_per_seq,
        packing=config.packing,
        pad_to_length=phase.max_seq_length if static_sequences else None,
        pad_to_sequences=static_sequences,
        return_prediction_positions=objective_of(config).decodes_chosen_positions,
    )


class PretrainingSource:
    """The batch source of a pre-training run: phases one after the other, each an endless stream of fresh examples.

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
        tokenizer: "PreTrainedTokenizerBase",
        model_config: BertReproConfig,
        *,
        processes: int = 1,
    ) -> None:
        self.config = config
        self.phases = phases
        self.processes = processes
        self.objective = objective_of(config)
        self.unk_token_id = tokenizer.unk_token_id
        self.total_steps = sum(phase.steps for phase in phases)
        self.data_fingerprint: dict[str, Any] = {
            "documents": len(documents),
            "digest of the corpus": corpus.content_digest,
            "train_batch_size": [phase.batch for phase in phases],
            "steps": [phase.steps for phase in phases],
        }

        self.flops_per_token: list[float] = []
        self.streams: list[ExampleStream] = []
        self.collators: list[DataCollatorForBertPreTraining] = []
        for number, phase in enumerate(phases):
            self.flops_per_token.append(pretraining_flops_per_token(model_config, config, phase.max_seq_length))
            stream = ExampleStream(
                corpus,
                documents,
                config,
                tokenizer,
                max_seq_length=phase.max_seq_length,
                seed=config.seed,
                phase=number,
                folder=Path(config.output_dir) / SAMPLE_INDEX,
            )
            self.streams.append(stream)
            sequences_per_pass = phase.per_device_batch or phase.batch
            static_sequences = sequences_per_pass if config.static_shapes else None
            self.collators.append(make_collator(config, phase, tokenizer, static_sequences))

    def steps(self, position: dict[str, Any] | None) -> Iterator[Step]:
        """Yields steps; see `BatchSource.steps`. A position is the phase, its steps taken, the epoch and the row."""
        start = position or {"phase": 0, "phase_step": 0, "epoch": 0, "row": 0}
        for number in range(start["phase"], len(self.phases)):
            # The first phase continues where the position says, later ones begin at their beginning.
            stream = self.streams[number]
            phase_steps_taken, stream_position = 0, Position()
            if number == start["phase"]:
                phase_steps_taken = start["phase_step"]
                stream_position = Position(start["epoch"], start["row"])

            for phase_step in itertools.count(phase_steps_taken + 1):
                # Read anew at each step: a run with --max_train_hours changes the length of its phases on the way.
                if phase_step > self.phases[number].steps:
                    break
                ids, stream_position = stream.take(stream_position, self.phases[number].batch)
                # Loader processes read a few steps behind; those never reach back more than one epoch.
                stream.indexes.discard_before(stream_position.epoch - 1)
                position_after = {
                    "phase": number,
                    "phase_step": phase_step,
                    "epoch": stream_position.epoch,
                    "row": stream_position.row,
                }
                yield self._step(ids, number, position_after)

    def set_steps(self, steps: Sequence[int]) -> None:
        """Changes the length of each phase."""
        self.phases = tuple(replace(phase, steps=count) for phase, count in zip(self.phases, steps, strict=True))
        self.total_steps = sum(steps)
        self.data_fingerprint["steps"] = list(steps)

    def tokens_until(self, step: int) -> int:
        """Returns the tokens of the first `step` steps, padding included."""
        tokens = 0
        for phase in self.phases:
            phase_steps = min(phase.steps, step)
            tokens += phase_steps * phase.batch * phase.max_seq_length
            step -= phase_steps
        return tokens

    def load(self, ids: Ids, group: int) -> MicroBatch:
        """Reads, masks and collates examples; see `BatchSource.load`."""
        examples = self.streams[group].read(ids)
        inputs = self.collators[group](examples)
        return MicroBatch(inputs, self.objective.counts(inputs), int(examples.lengths.sum()))

    def totals(self, ids: Ids, group: int) -> dict[str, int]:
        """Counts the predictions behind each loss term; see `BatchSource.totals`."""
        lengths = self.streams[group].lengths(ids)
        return self.objective.step_totals(lengths, self.phases[group].max_predictions_per_seq)

    def sample_shares(self) -> tuple[float, float]:
        """Returns the share of NotNext in the first epoch, and of [UNK] in a sample of its examples."""
        stream = self.streams[0]
        ids, _ = stream.take(Position(0, 0), _SAMPLED_EXAMPLES)
        examples = stream.read(ids)
        not_next = (stream.indexes.get(0)["flags"] & NOT_NEXT).mean()
        unknown = (examples.tokens == self.unk_token_id).mean()
        return float(not_next), float(unknown)

    def _step(self, ids: Ids, number: int, position: dict[str, Any]) -> Step:
        phase = self.phases[number]
        sequences = phase.per_device_batch or len(ids)
        if self.config.packing:
            passes = balanced_passes(ids, self.streams[number].lengths(ids), sequences, self.processes)
        else:
            passes = even_passes(ids, sequences, self.processes)
        return Step(passes, number, position, self.flops_per_token[number])


def balanced_passes(ids: Ids, lengths: Int64Array, sequences: int, processes: int) -> list[Ids]:
    """Divides a batch into the `Step.passes` of all processes so that they contain nearly as many tokens each.

    Examples are dealt out longest first, back and forth (1 2 3 3 2 1 ...).

    Args:
        ids: example ids, [batch, ...].
        lengths: tokens of each example, int64 [batch].
        sequences: most examples of a pass.
        processes: devices that share the work.
    """
    passes = math.ceil(len(ids) / (processes * sequences)) * processes
    # One column per pass. Rows are filled with the longest examples first, every other row from right to left.
    table = np.full((math.ceil(len(ids) / passes), passes), -1, dtype=np.int64)
    table.flat[: len(ids)] = np.argsort(-lengths, kind="stable")
    table[1::2] = table[1::2, ::-1]
    return [ids[column[column >= 0]] for column in table.T]
