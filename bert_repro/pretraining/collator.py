"""Masks examples and lays them out as the tensors of a forward pass, padded or packed.

Shape legend: `B` sequences, `S` columns of a padded batch, `T` tokens of all sequences together, `P` predictions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from bert_repro.configs import ExampleConfig
from bert_repro.pretraining.masking import MaskedTokens, Masker, num_predictions
from bert_repro.training.batches import (
    IGNORE_INDEX,
    Batch,
    IntArray,
    flatten_field,
    int64_tensor,
    packed_batch,
    padded_batch,
    round_up,
)
from bert_repro.utils.ragged import Int64Array, places_in_row, row_starts
from bert_repro.utils.randomness import UInt64Array, draw

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_SHORTEST = 3  # tokens: [CLS], one of a text, [SEP]


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


@dataclass(frozen=True)
class StaticShape:
    """One shape for every batch, so that a graph is compiled once. What is missing is filled with sequences of padding.

    These are separate sequences, which predict nothing and which no other sequence sees: losses and gradients do not
    change.

    Args:
        sequences: most sequences of a batch; a padded batch has as many rows.
        length: tokens of the longest sequence that may come; a padded batch has as many columns.
        tokens: tokens of a packed batch; None for padded batches.
    """

    sequences: int
    length: int
    tokens: int | None = None

    @property
    def rows(self) -> int:
        """Number of sequences of every batch, those of padding included."""
        return self.sequences + (-(-self.tokens // self.length) if self.tokens is not None else 0)

    def predictions(self, masked_lm_prob: float, max_predictions: int | None) -> int:
        """Returns the most predictions that a batch can have; see `num_predictions`."""
        lengths = np.arange(_SHORTEST, self.length + 1)
        counts = num_predictions(lengths, masked_lm_prob, max_predictions)
        most = self.sequences * int(counts.max())
        if self.tokens is None:
            return most
        # Each sequence's count is rounded, so it may lie a little above its share of the tokens.
        above = float((counts - masked_lm_prob * lengths).max())
        return min(most, int(masked_lm_prob * self.tokens + self.sequences * max(0.0, above)))

    def filling(self, lengths: Int64Array) -> Int64Array:
        """Returns the lengths of the sequences of padding that complete a batch.

        Args:
            lengths: tokens of its own sequences, int64 [B].

        Raises:
            ValueError: the batch is too large for the shape.
        """
        if len(lengths) > self.sequences or lengths.max(initial=0) > self.length:
            raise ValueError(f"{len(lengths)} sequences of up to {lengths.max()} tokens do not fit into {self}")
        rows = self.rows - len(lengths)
        if self.tokens is None:
            return np.ones(rows, dtype=np.int64)  # not empty: attention over nothing is not a number
        missing = self.tokens - int(lengths.sum())
        if missing < 0:
            raise ValueError(f"{lengths.sum()} tokens do not fit into {self}")
        return np.clip(missing - self.length * np.arange(rows), 0, self.length)


class DataCollatorForBertPreTraining:
    """Masks pre-training examples and lays them out for `BertReproForPreTraining` or upstream `BertForPreTraining`.

    Takes what `ExampleStream.read` returns, or, as a `data_collator` of the upstream Trainer, a list of features:
    `input_ids` with [CLS] and [SEP] in place; `token_type_ids` (else 0 through the first [SEP], 1 after);
    `next_sentence_label` (0 IsNext, 1 NotNext) in all or none; `example_id`, an integer, in all or none. With
    `example_id` the masks are a function of it and `seed` (the Trainer drops it unless `remove_unused_columns=False`);
    without it they are drawn from torch's global generator, differently every time.

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
        pad_to_length: S; None pads to the longest sequence of the batch. For padded batches only.
        pad_to_multiple_of: round S up to a multiple of this. For padded batches only.
        return_prediction_positions: also return where predictions are made, for models that take it.
        shape: fill every batch up to one shape; in place of the two padding settings.
        seed: names the masks of features with an `example_id`.

    Raises:
        ValueError: padding settings together with `packing` or `shape`, or a shape of the other layout.
    """

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        config: ExampleConfig | None = None,
        *,
        max_predictions_per_seq: int | None = None,
        packing: bool = False,
        pad_to_length: int | None = None,
        pad_to_multiple_of: int | None = None,
        return_prediction_positions: bool = False,
        shape: StaticShape | None = None,
        seed: int = 0,
    ) -> None:
        if (packing or shape) and (pad_to_length is not None or pad_to_multiple_of is not None):
            raise ValueError("a packed batch has no padding; leave pad_to_length and pad_to_multiple_of out")
        if shape is not None and packing == (shape.tokens is None):
            raise ValueError(f"{shape} does not go with packing={packing}: only packed batches have a number of tokens")
        self.config = config or ExampleConfig()
        self.max_predictions_per_seq = max_predictions_per_seq
        self.packing = packing
        self.pad_to_length = pad_to_length
        self.pad_to_multiple_of = pad_to_multiple_of
        self.return_prediction_positions = return_prediction_positions
        self.shape = shape
        self.seed = seed
        self._masker = Masker(tokenizer, self.config, max_predictions_per_seq)
        self._fill = {"input_ids": int(tokenizer.pad_token_id), "token_type_ids": 0, "labels": IGNORE_INDEX}
        self._sep_token_id = int(tokenizer.sep_token_id)

    def __call__(self, examples: ExampleBatch | Sequence[Mapping[str, Any]]) -> Batch:
        """Makes one batch.

        Args:
            examples: examples of a stream, or a list of features.

        Returns:
            `input_ids`, `token_type_ids`, `labels` (-100 where nothing is predicted; for a left-to-right model the ids
            themselves), with `attention_mask`, int64
            (B, S), or packed, int64 (1, T), with `position_ids`, `cu_seq_lens_q`, `cu_seq_lens_k`, `max_length_q`,
            `max_length_k` as `collate_features` returns them. With NSP `next_sentence_label`, int64 (B). On request
            `prediction_positions`, int64 (P), flat places of the predicted tokens; batches that are padded or of static
            shape have as many as their shape allows, the surplus 0, where [CLS] has no label.

        Raises:
            ValueError: a sequence is longer than `pad_to_length`, or the examples do not fit into `shape`.
        """
        labels: Int64Array | None
        if isinstance(examples, ExampleBatch):
            lengths, labels = examples.lengths, examples.next_sentence_labels
            segments = (places_in_row(lengths) >= np.repeat(examples.first_lengths, lengths)).astype(np.int64)
            masked = self._choose(examples.tokens, lengths, examples.keys)
        else:
            tokens = flatten_field(examples, "input_ids")
            lengths = np.array([len(feature["input_ids"]) for feature in examples], dtype=np.int64)
            segments = self._segments(examples, tokens, lengths)
            labels = _column(examples, "next_sentence_label")
            masked = self._choose(tokens, lengths, self._keys(examples))
        if self.shape is not None:
            filling = self.shape.filling(lengths)
            lengths = np.concatenate([lengths, filling])
            masked = masked._replace(tokens=self._fill_up(masked.tokens, int(filling.sum()), "input_ids"))
            segments = self._fill_up(segments, int(filling.sum()), "token_type_ids")
            labels = None if labels is None else self._fill_up(labels, len(filling), "labels")
        batch = self._lay_out(masked, segments, lengths)
        if labels is not None and self.config.next_sentence_prediction:
            batch["next_sentence_label"] = int64_tensor(labels)
        return batch

    def _choose(self, tokens: npt.NDArray[np.integer], lengths: Int64Array, keys: UInt64Array) -> MaskedTokens:
        """Chooses what is predicted: masked tokens or, by a left-to-right model, all that follow another."""
        if not self.config.left_to_right:
            return self._masker(tokens, lengths, keys)
        ids = tokens.astype(np.int64)
        return MaskedTokens(ids, np.arange(len(ids)), ids)

    def _fill_up(self, values: IntArray, count: int, field: str) -> Int64Array:
        return np.concatenate([values, np.full(count, self._fill[field])]).astype(np.int64, copy=False)

    def _lay_out(self, masked: MaskedTokens, segments: Int64Array, lengths: Int64Array) -> Batch:
        labels = np.full(len(masked.tokens), IGNORE_INDEX, dtype=np.int64)
        labels[masked.positions] = masked.targets
        fields = {"input_ids": masked.tokens, "token_type_ids": segments, "labels": labels}
        if self.packing:
            batch = packed_batch(fields, lengths, self.shape.length if self.shape else int(lengths.max()))
        else:
            batch = padded_batch(fields, lengths, self._width(lengths), self._fill)
        if self.return_prediction_positions:
            batch["prediction_positions"] = int64_tensor(self._prediction_positions(masked.positions, lengths))
        return batch

    def _prediction_positions(self, positions: Int64Array, lengths: Int64Array) -> Int64Array:
        if not self.packing:
            return self._padded_positions(positions, lengths, self._width(lengths))
        return positions if self.shape is None else self._static_count(positions, self.shape)

    def _width(self, lengths: Int64Array) -> int:
        longest = int(lengths.max())
        if self.shape is not None:
            return self.shape.length
        if self.pad_to_length is not None and longest > self.pad_to_length:
            raise ValueError(
                f"a sequence has {longest} tokens, pad_to_length is {self.pad_to_length}; shorten it first"
            )
        return round_up(self.pad_to_length or longest, self.pad_to_multiple_of or 1)

    def _padded_positions(self, positions: Int64Array, lengths: Int64Array, width: int) -> Int64Array:
        """Returns the same places in (B, S), and 0 up to a number that depends on B and S alone."""
        starts = row_starts(lengths)
        row = np.searchsorted(starts, positions, side="right") - 1
        return self._static_count(positions - starts[row] + row * width, StaticShape(len(lengths), width))

    def _static_count(self, positions: Int64Array, shape: StaticShape) -> Int64Array:
        """Fills up with 0, where [CLS] has no label."""
        most = shape.predictions(self.config.masked_lm_prob, self.max_predictions_per_seq)
        padded = np.zeros(most, dtype=np.int64)
        padded[: len(positions)] = positions
        return padded

    def _segments(self, features: Sequence[Mapping[str, Any]], tokens: Int64Array, lengths: Int64Array) -> Int64Array:
        """Returns the segments of the features, else 0 through a sequence's first [SEP] and 1 after."""
        if "token_type_ids" in features[0]:
            return flatten_field(features, "token_type_ids")
        separators = np.cumsum(tokens == self._sep_token_id)
        before = separators - (tokens == self._sep_token_id)
        segments: Int64Array = (before > np.repeat(before[row_starts(lengths)[:-1]], lengths)).astype(np.int64)
        return segments

    def _keys(self, features: Sequence[Mapping[str, Any]]) -> UInt64Array:
        ids = _column(features, "example_id")
        if ids is None:
            return torch.randint(2**63 - 1, (len(features),)).numpy().astype(np.uint64)
        return draw(self.seed, ids)


def _column(features: Sequence[Mapping[str, Any]], name: str) -> Int64Array | None:
    if name not in features[0]:
        return None
    return np.array([int(feature[name]) for feature in features], dtype=np.int64)
