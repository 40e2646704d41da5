"""The data collator of pre-training: masks examples and lays them out as the tensors of a forward pass.

Shape legend: `B` sequences, `S` columns of a padded batch, `T` tokens of all sequences together, `P` predictions of all
sequences together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import torch

from bert_repro.configs import ExampleConfig
from bert_repro.pretraining.masking import BoolArray, Masker, TokenArray, num_predictions
from bert_repro.pretraining.objectives import objective_of
from bert_repro.training.batches import IGNORE_INDEX, Batch, flatten_field, int64_tensor, packed_batch, padded_batch
from bert_repro.utils.arrays import Int64Array, places_in_row, row_starts
from bert_repro.utils.randomness import UInt64Array

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# The number of logits of a packed batch is rounded up to this: few shapes, and a multiple that matrix units like.
PREDICTIONS_MULTIPLE = 32


@dataclass(frozen=True)
class ExampleBatch:
    """Examples before masking, laid end to end.

    Args:
        tokens: [CLS] A [SEP] B [SEP] or [CLS] A [SEP] of each example, int32 [T].
        lengths: tokens of each example, int64 [B].
        first_lengths: tokens of [CLS] A [SEP], int64 [B].
        next_sentence_labels: 0 IsNext, 1 NotNext, int64 [B].
        keys: name of each example for masking, uint64 [B].
    """

    tokens: npt.NDArray[np.int32]
    lengths: Int64Array
    first_lengths: Int64Array
    next_sentence_labels: Int64Array
    keys: UInt64Array


@dataclass(frozen=True)
class _Sequences:
    """What both kinds of input become before masking.

    Args:
        tokens: ids of all sequences, without padding, [T].
        segments: segment ids, int64 [T].
        lengths: tokens of each sequence, int64 [B].
        keys: name of each sequence for masking, uint64 [B].
        next_sentence_labels: 0 IsNext, 1 NotNext, int64 [B]; None if the features have none.
        is_special: tokens that the features mark as special, bool [T]; None if they mark none.
        width: columns of the features as they were given, padding included.
    """

    tokens: TokenArray
    segments: Int64Array
    lengths: Int64Array
    keys: UInt64Array
    next_sentence_labels: Int64Array | None
    is_special: BoolArray | None
    width: int


class DataCollatorForBertPreTraining:
    """Masks pre-training examples and lays them out for `BertReproForPreTraining` or upstream `BertForPreTraining`.

    It accepts what `ExampleStream.read` returns or, as a `data_collator` of the upstream Trainer, a list of features.
    A feature has `input_ids` with [CLS] and [SEP] in place and optionally `attention_mask` (padding is removed before
    masking), `special_tokens_mask` (1 on tokens that must not be predicted), `token_type_ids` (default: 0 up to the
    first [SEP], 1 after it) and `next_sentence_label` (0 IsNext, 1 NotNext), each in all features or in none. The
    masks of features are drawn from torch's global generator, differently at every call.

        import bert_repro
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained("runs/tokenizer")
        whole_words = bert_repro.ExampleConfig(whole_word_masking=True)
        collate = bert_repro.DataCollatorForBertPreTraining(tokenizer, whole_words)
        batch = collate([tokenizer("She opened the window.", "Fresh air came in.")])
        print(batch["input_ids"].shape, batch["labels"].shape)

    Args:
        tokenizer: its special tokens and vocabulary are used.
        config: masking settings.
        max_predictions_per_seq: most predicted tokens of a sequence, None for no limit beyond `masked_lm_prob`.
        packing: lay sequences end to end instead of padding them.
        pad_to_length: S; None pads to the longest feature of the batch. For padded batches only.
        pad_to_sequences: B; None adds no sequences. Added sequences consist of padding: they predict nothing and change
            neither losses nor gradients. For padded batches only.
        return_prediction_positions: also return the positions of the predictions, for models that accept them.

    Raises:
        ValueError: padding settings together with `packing`.
    """

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        config: ExampleConfig | None = None,
        *,
        max_predictions_per_seq: int | None = None,
        packing: bool = False,
        pad_to_length: int | None = None,
        pad_to_sequences: int | None = None,
        return_prediction_positions: bool = False,
    ) -> None:
        if packing and (pad_to_length is not None or pad_to_sequences is not None):
            raise ValueError("a packed batch has no padding; leave pad_to_length and pad_to_sequences out")
        self.config = config or ExampleConfig()
        self.objective = objective_of(self.config)
        self.max_predictions_per_seq = max_predictions_per_seq
        self.packing = packing
        self.pad_to_length = pad_to_length
        self.pad_to_sequences = pad_to_sequences
        self.return_prediction_positions = return_prediction_positions
        self._masker = Masker(tokenizer, self.config, max_predictions_per_seq)
        self._fill = {"input_ids": int(tokenizer.pad_token_id), "token_type_ids": 0, "labels": IGNORE_INDEX}
        self._sep_token_id = int(tokenizer.sep_token_id)

    def __call__(self, examples: ExampleBatch | Sequence[Mapping[str, Any]]) -> Batch:
        """Makes one batch.

        Args:
            examples: examples of a stream, or a list of features.

        Returns:
            `input_ids`, `token_type_ids`, `labels` (-100 where nothing is predicted; for a left-to-right model the ids
            themselves). Padded, these are int64 (B, S) and come with `attention_mask`. Packed, they are int64 (1, T)
            and come with `position_ids`, `cu_seq_lens_q`, `cu_seq_lens_k`, `max_length_q`, `max_length_k` as in
            `collate_features`. With NSP there is `next_sentence_label`, int64 (B). On request there are
            `prediction_positions`, int64 (P), flat positions of the predicted tokens. Their number depends on the shape
            alone in padded batches and is a multiple of `PREDICTIONS_MULTIPLE` in packed ones; the surplus is 0, the
            position of the first [CLS], which has no label.

        Raises:
            ValueError: a sequence is longer than `pad_to_length`, there are more than `pad_to_sequences`, or a feature
                consists of padding alone.
        """
        sequences = self._from_stream(examples) if isinstance(examples, ExampleBatch) else self._from_features(examples)

        # Choose the predictions, then add the sequences of padding that a static shape asks for.
        masked = self.objective.choose(
            self._masker, sequences.tokens, sequences.lengths, sequences.keys, sequences.is_special
        )
        sequences = replace(sequences, tokens=masked.tokens)
        if self.pad_to_sequences is not None:
            sequences = self._with_added_sequences(sequences, self.pad_to_sequences - len(sequences.lengths))

        # Lay ids, segments and labels out as tensors.
        lengths = sequences.lengths
        labels = np.full(len(sequences.tokens), IGNORE_INDEX, dtype=np.int64)
        labels[masked.positions] = masked.targets
        fields = {"input_ids": sequences.tokens, "token_type_ids": sequences.segments, "labels": labels}
        if self.packing:
            batch = packed_batch(fields, lengths, int(lengths.max()))
        else:
            batch = padded_batch(fields, lengths, self._padded_width(sequences), self._fill)

        if self.return_prediction_positions:
            batch["prediction_positions"] = self._prediction_positions(masked.positions, lengths, batch)
        if self.objective.has_sentence_labels and sequences.next_sentence_labels is not None:
            batch["next_sentence_label"] = int64_tensor(sequences.next_sentence_labels)
        return batch

    def _from_stream(self, examples: ExampleBatch) -> _Sequences:
        """Adds segment ids to the examples of a stream."""
        lengths = examples.lengths
        is_second = places_in_row(lengths) >= np.repeat(examples.first_lengths, lengths)
        return _Sequences(
            tokens=examples.tokens,
            segments=is_second.astype(np.int64),
            lengths=lengths,
            keys=examples.keys,
            next_sentence_labels=examples.next_sentence_labels,
            is_special=None,
            width=int(lengths.max()),
        )

    def _from_features(self, features: Sequence[Mapping[str, Any]]) -> _Sequences:
        """Joins features, removes their padding and draws keys for their masks."""
        tokens = flatten_field(features, "input_ids")
        given_lengths = np.array([len(feature["input_ids"]) for feature in features], dtype=np.int64)
        lengths = given_lengths
        is_token = np.ones(len(tokens), dtype=bool)
        if "attention_mask" in features[0]:
            is_token = flatten_field(features, "attention_mask") != 0
            lengths = np.add.reduceat(is_token, row_starts(given_lengths)[:-1], dtype=np.int64)
            empty = np.flatnonzero(lengths == 0)
            if empty.size:
                raise ValueError(f"feature {empty[0]} consists of padding alone: its attention_mask has no 1")
        tokens = tokens[is_token]

        if "token_type_ids" in features[0]:
            segments = flatten_field(features, "token_type_ids")[is_token]
        else:
            segments = self._segments(tokens, lengths)
        is_special = None
        if "special_tokens_mask" in features[0]:
            is_special = (flatten_field(features, "special_tokens_mask") != 0)[is_token]
        next_sentence_labels = None
        if "next_sentence_label" in features[0]:
            next_sentence_labels = np.array([int(feature["next_sentence_label"]) for feature in features])

        keys = torch.randint(2**63 - 1, (len(features),)).numpy().astype(np.uint64)
        width = int(given_lengths.max())
        return _Sequences(tokens, segments, lengths, keys, next_sentence_labels, is_special, width)

    def _segments(self, tokens: Int64Array, lengths: Int64Array) -> Int64Array:
        """Returns segment ids: 0 up to and including a sequence's first [SEP], 1 after it, int64 [T]."""
        is_separator = tokens == self._sep_token_id
        separators_before = np.cumsum(is_separator) - is_separator
        separators_before_sequence = np.repeat(separators_before[row_starts(lengths)[:-1]], lengths)
        return cast(Int64Array, (separators_before > separators_before_sequence).astype(np.int64))

    def _with_added_sequences(self, sequences: _Sequences, count: int) -> _Sequences:
        """Appends sequences of one padding token each. They need a token: attention over nothing is not a number."""
        labels = sequences.next_sentence_labels
        if labels is not None:
            labels = np.pad(labels, (0, count), constant_values=IGNORE_INDEX)
        return replace(
            sequences,
            tokens=np.pad(sequences.tokens, (0, count), constant_values=self._fill["input_ids"]),
            segments=np.pad(sequences.segments, (0, count)),
            lengths=np.pad(sequences.lengths, (0, count), constant_values=1),
            next_sentence_labels=labels,
        )

    def _padded_width(self, sequences: _Sequences) -> int:
        """Returns S: the requested length, or the width of the features."""
        longest = int(sequences.lengths.max())
        if self.pad_to_length is None:
            return max(longest, sequences.width)
        if longest > self.pad_to_length:
            raise ValueError(
                f"a sequence has {longest} tokens, pad_to_length is {self.pad_to_length}; truncate it first"
            )
        return self.pad_to_length

    def _prediction_positions(self, positions: Int64Array, lengths: Int64Array, batch: Batch) -> torch.Tensor:
        """Returns the flat positions of the predictions in the batch, filled up with 0, int64 (P)."""
        if self.packing:
            surplus = -len(positions) % PREDICTIONS_MULTIPLE
            return int64_tensor(np.pad(positions, (0, surplus)))

        # In a padded batch each sequence begins at a multiple of S, and the number of positions depends on B and S.
        width = batch["input_ids"].shape[1]
        starts = row_starts(lengths)
        row = np.searchsorted(starts, positions, side="right") - 1
        most_per_row = num_predictions(np.array([width]), self.config.masked_lm_prob, self.max_predictions_per_seq)
        surplus = len(lengths) * int(most_per_row[0]) - len(positions)
        return int64_tensor(np.pad(positions - starts[row] + row * width, (0, surplus)))
