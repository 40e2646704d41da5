"""Counts what examples hold, batch by batch, so that memory does not grow with the sample.

Shape legend: `B` sequences, `T` tokens of all sequences together, laid end to end.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bert_repro.configs import ExampleConfig
from bert_repro.pretraining.segment_pairs import FORCED, RowArray
from bert_repro.utils.ragged import Int64Array, places_in_row, row_starts

GROUPS = 32  # into how many groups documents, tokens and places are put for the tests of evenness
LENGTH_BINS = 8

BoolArray = npt.NDArray[np.bool_]


class Sample(NamedTuple):
    """A batch of examples before and after masking.

    Args:
        rows: of the sample index, [B].
        tokens: before masking, int64 [T].
        inputs: what the model reads, int64 [T].
        labels: the tokens to predict, negative elsewhere, int64 [T].
        lengths: int64 [B].
        not_next: the NSP labels, int64 [B].
    """

    rows: RowArray
    tokens: Int64Array
    inputs: Int64Array
    labels: Int64Array
    lengths: Int64Array
    not_next: Int64Array


@dataclass(frozen=True)
class Vocabulary:
    """What the audit must know of the tokenizer.

    Args:
        size: ids, from 0.
        cls: id of [CLS].
        sep: id of [SEP].
        pad: id of [PAD].
        mask: id of [MASK].
        unknown: id of [UNK].
        is_reserved: special and [unused] tokens, bool [size].
    """

    size: int
    cls: int
    sep: int
    pad: int
    mask: int
    unknown: int
    is_reserved: BoolArray

    @classmethod
    def of(cls, tokenizer: Any) -> "Vocabulary":
        """Reads it from a tokenizer."""
        entries = tokenizer.get_vocab()
        size = max(entries.values()) + 1
        is_reserved = np.zeros(size, dtype=bool)
        is_reserved[[number for token, number in entries.items() if token.startswith("[unused")]] = True
        is_reserved[list(tokenizer.all_special_ids)] = True
        return cls(
            size=size,
            cls=int(tokenizer.cls_token_id),
            sep=int(tokenizer.sep_token_id),
            pad=int(tokenizer.pad_token_id),
            mask=int(tokenizer.mask_token_id),
            unknown=int(tokenizer.unk_token_id),
            is_reserved=is_reserved,
        )


@dataclass
class ExampleCounts:
    """Sums over samples.

    Args:
        config: how examples are to be made.
        max_seq_length: tokens of a sequence at most.
        max_predictions_per_seq: most predicted tokens of a sequence, None for no limit.
        vocabulary: of the tokenizer.
        num_documents: of the corpus; segment B of a NotNext pair comes from any of them but A's.
        counts: what was counted; the names are the keyword arguments of `_count` below.
        arrays: histograms, likewise.
    """

    config: ExampleConfig
    max_seq_length: int
    max_predictions_per_seq: int | None
    vocabulary: Vocabulary
    num_documents: int
    counts: dict[str, int] = field(default_factory=dict)
    arrays: dict[str, npt.NDArray[Any]] = field(default_factory=dict)

    @property
    def draws_pairs(self) -> bool:
        """Whether sequences have two segments."""
        return self.config.next_sentence_prediction or self.config.no_nsp_input == "pairs"

    @property
    def random_source(self) -> BoolArray:
        """The tokens a random one is drawn from except [MASK], which looks like masking; bool [size]."""
        source = np.ones(self.vocabulary.size, dtype=bool)
        if self.config.random_token_source == "ordinary":
            source = ~self.vocabulary.is_reserved
        source[self.vocabulary.mask] = False
        return source

    def token_groups(self, tokens: Int64Array) -> Int64Array:
        """Counts the tokens in each of `GROUPS` equal ranges of ids."""
        return np.bincount(tokens * GROUPS // self.vocabulary.size, minlength=GROUPS)

    def document_groups(self, documents: npt.NDArray[Any]) -> Int64Array:
        """Counts the documents in each of `GROUPS` equal ranges of the corpus."""
        return np.bincount(documents.astype(np.int64) * GROUPS // self.num_documents, minlength=GROUPS)

    def add(self, sample: Sample) -> None:
        """Counts a sample."""
        self._add_sequences(sample)
        self._add_pairs(sample)
        self._add_predictions(sample)

    def _count(self, **numbers: Any) -> None:
        for name, number in numbers.items():
            self.counts[name] = self.counts.get(name, 0) + int(number)

    def _accumulate(self, **arrays: npt.NDArray[Any]) -> None:
        for name, array in arrays.items():
            self.arrays[name] = self.arrays.get(name, 0) + array

    def _add_sequences(self, sample: Sample) -> None:
        starts, ids = row_starts(sample.lengths), self.vocabulary
        separators = np.add.reduceat(sample.tokens == ids.sep, starts[:-1])
        opened = np.add.reduceat(sample.tokens == ids.cls, starts[:-1])
        wanted = 2 if self.draws_pairs else 1
        framed = (sample.tokens[starts[:-1]] == ids.cls) & (sample.tokens[starts[1:] - 1] == ids.sep)
        correct = framed & (separators == wanted) & (opened == 1) & (sample.lengths <= self.max_seq_length)
        width = max(1, self.max_seq_length // LENGTH_BINS)
        self._count(
            sequences=len(sample.lengths),
            tokens=len(sample.tokens),
            binned_tokens=(-(-sample.lengths // width) * width).sum(),
            malformed=(~correct).sum(),
            unknown=(sample.tokens == ids.unknown).sum(),
            predictable=(~np.isin(sample.tokens, [ids.cls, ids.sep, ids.pad])).sum(),
        )
        self._accumulate(lengths=np.bincount(sample.lengths, minlength=self.max_seq_length + 1))

    def _add_pairs(self, sample: Sample) -> None:
        rows, not_next = sample.rows, sample.not_next == 1
        forced = (rows["flags"] & FORCED) > 0
        other = rows["document_a"] != rows["document_b"]
        follows = rows["start_b"].astype(np.int64) >= rows["start_a"].astype(np.int64) + rows["length_a"]
        self._count(
            not_next=not_next.sum(),
            forced=forced.sum(),
            free_not_next=(not_next & ~forced).sum(),
            not_next_of_same_document=(not_next & ~other).sum(),
            is_next_elsewhere=(~not_next & (other | ~follows)).sum(),
        )
        away = rows[not_next & other]
        self._accumulate(
            documents_a=self.document_groups(away["document_a"]),
            documents_b=self.document_groups(away["document_b"]),
            distances=self.document_groups((away["document_b"] - away["document_a"]) % self.num_documents),
        )

    def _add_predictions(self, sample: Sample) -> None:
        ids = self.vocabulary
        predicted = sample.labels >= 0
        candidate = ~np.isin(sample.tokens, [ids.cls, ids.sep, ids.pad])
        starts = row_starts(sample.lengths)[:-1]
        made, candidates = np.add.reduceat(predicted, starts), np.add.reduceat(candidate, starts)
        wanted = self._wanted(sample.lengths, candidates)
        wrong = made > wanted if self.config.whole_word_masking else made != wanted
        seen, target = sample.inputs[predicted], sample.tokens[predicted]
        masked, same = seen == ids.mask, seen == target
        drawn, drawn_for = seen[~masked & ~same], target[~masked & ~same]
        self._count(
            predictions=len(seen),
            wanted_predictions=wanted.sum(),
            sequences_with_wrong_count=wrong.sum(),
            wrong_labels=(sample.labels[predicted] != target).sum(),
            predicted_special=(~candidate[predicted]).sum(),
            changed_elsewhere=(sample.inputs[~predicted] != sample.tokens[~predicted]).sum(),
            masked=masked.sum(),
            same=same.sum(),
            random=len(drawn),
            random_reserved=ids.is_reserved[drawn].sum(),
        )
        place = places_in_row(sample.lengths) * GROUPS // np.repeat(sample.lengths, sample.lengths)
        rate = np.repeat(made / np.maximum(candidates, 1), sample.lengths)
        self._accumulate(
            predictions=np.bincount(made, minlength=self.max_seq_length + 1),
            places=np.bincount(place[predicted], minlength=GROUPS),
            expected_places=np.bincount(place[candidate], rate[candidate], minlength=GROUPS),
            random_tokens=self.token_groups(drawn),
            random_targets=self.token_groups(drawn_for[self.random_source[drawn_for]]),
        )

    def _wanted(self, lengths: Int64Array, candidates: Int64Array) -> Int64Array:
        limit = self.max_predictions_per_seq or self.max_seq_length
        share = np.array([round(float(self.config.masked_lm_prob * n)) for n in range(self.max_seq_length + 1)])
        wanted: Int64Array = np.minimum(np.clip(share[np.minimum(lengths, len(share) - 1)], 1, limit), candidates)
        return wanted
