"""Masks examples (paper 3.1, A.1; original implementation) and lays them out as the tensors of a forward pass.

Each sequence gets an exact count of predictions, drawn without replacement; it is not a coin flip per token. Every
choice is a hash of the sequence's key, so the masks do not depend on how sequences are batched.

Shape legend: `B` sequences, `S` columns of a padded batch, `T` tokens of all sequences together, `C` candidates of all
sequences together (tokens that may be predicted), `P` predictions of all sequences together, `V` vocabulary.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch

from bert_repro.configs import ExampleConfig
from bert_repro.training.batches import IGNORE_INDEX, Batch, flatten_field, int64_tensor, packed_batch, padded_batch
from bert_repro.utils.arrays import Int64Array, places_in_row, row_starts
from bert_repro.utils.randomness import UInt64Array, below, draw, fraction, sample_without_replacement

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BoolArray = npt.NDArray[np.bool_]

PREDICTIONS_MULTIPLE = 32  # few shapes of logits, and such that processors with matrix units take at full speed


class _MaskDraw(IntEnum):
    """What a draw decides: the name that follows the sequence's key."""

    SELECTION = 0
    ACTION = 1
    RANDOM_TOKEN = 2


class MaskedTokens(NamedTuple):
    """Sequences with their predictions.

    Args:
        tokens: what the model reads, int64 [T].
        positions: flat places in [0, T) of the predicted tokens, ascending, int64 [P].
        targets: the original tokens at these places, int64 [P].
    """

    tokens: Int64Array
    positions: Int64Array
    targets: Int64Array


def num_predictions(lengths: Int64Array, masked_lm_prob: float, max_predictions: int | None) -> Int64Array:
    """Returns how many tokens of each sequence are predicted: a function of its length alone.

    Exact for every sequence that has so many candidates. A pair of segments always has when `masked_lm_prob` is at most
    0.5. With whole-word masking it is the most that can be.

    Args:
        lengths: tokens per sequence with [CLS] and [SEP], int64 [B].
        masked_lm_prob: share of tokens that are predicted.
        max_predictions: upper limit, None for none.

    Returns:
        int64 [B]. Halves are rounded to even, as in the original implementation.
    """
    counts: Int64Array = np.maximum(np.rint(masked_lm_prob * lengths).astype(np.int64), 1)
    return counts if max_predictions is None else np.minimum(counts, max_predictions)


class Masker:
    """Chooses predicted tokens and replaces them by [MASK], a random token or themselves.

    Args:
        tokenizer: its special tokens and vocabulary are used.
        config: shares, source of random tokens, whole words.
        max_predictions: most predictions of a sequence, None for no limit beyond `masked_lm_prob`.
    """

    def __init__(
        self, tokenizer: "PreTrainedTokenizerBase", config: ExampleConfig, max_predictions: int | None = None
    ) -> None:
        vocabulary = tokenizer.get_vocab()
        size = max(vocabulary.values()) + 1
        self._config = config
        self._max_predictions = max_predictions
        self._mask_token_id = int(tokenizer.mask_token_id)
        self._is_candidate = np.ones(size, dtype=bool)
        self._is_candidate[[tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id]] = False
        self._is_inner_piece = np.zeros(size, dtype=bool)
        self._is_inner_piece[[number for piece, number in vocabulary.items() if piece.startswith("##")]] = True
        self._random_tokens = np.arange(size)
        if config.random_token_source == "ordinary":
            unused = {number for piece, number in vocabulary.items() if piece.startswith("[unused")}
            self._random_tokens = np.setdiff1d(self._random_tokens, sorted(unused | set(tokenizer.all_special_ids)))

    def __call__(self, tokens: npt.NDArray[np.integer], lengths: Int64Array, keys: UInt64Array) -> MaskedTokens:
        """Masks a batch of sequences laid end to end.

        Args:
            tokens: ids with [CLS] and [SEP] in place, [T].
            lengths: tokens of each sequence, int64 [B].
            keys: names each sequence, uint64 [B]; equal keys and lengths give equal masks.
        """
        starts = row_starts(lengths)
        candidates = np.flatnonzero(self._is_candidate[tokens])
        wanted = num_predictions(lengths, self._config.masked_lm_prob, self._max_predictions)
        select = self._select_words if self._config.whole_word_masking else self._select_tokens
        positions = select(tokens, candidates, np.searchsorted(candidates, starts), wanted, keys)
        row = np.searchsorted(starts, positions, side="right") - 1
        masked = tokens.astype(np.int64)
        targets = masked[positions]
        masked[positions] = self._replacements(targets, keys[row], positions - starts[row])
        return MaskedTokens(masked, positions, targets)

    def _select_tokens(
        self,
        tokens: npt.NDArray[np.integer],
        candidates: Int64Array,
        starts: Int64Array,
        wanted: Int64Array,
        keys: UInt64Array,
    ) -> Int64Array:
        available = np.diff(starts)
        counts = np.minimum(wanted, available)
        return candidates[
            sample_without_replacement(available, counts, keys, _MaskDraw.SELECTION) + np.repeat(starts[:-1], counts)
        ]

    def _select_words(
        self,
        tokens: npt.NDArray[np.integer],
        candidates: Int64Array,
        starts: Int64Array,
        wanted: Int64Array,
        keys: UInt64Array,
    ) -> Int64Array:
        opens_word = ~self._is_inner_piece[tokens[candidates]]
        opens_word[1:] |= np.diff(candidates) > 1  # after [SEP]
        opens_word[starts[starts < len(candidates)]] = True
        first = np.flatnonzero(opens_word)
        pieces = np.diff(first, append=len(candidates))
        chosen = fill_without_overflow(pieces, np.diff(np.searchsorted(first, starts)), wanted, keys)
        return candidates[np.repeat(chosen, pieces)]

    def _replacements(self, targets: Int64Array, keys: UInt64Array, places: Int64Array) -> Int64Array:
        action = fraction(draw(keys, _MaskDraw.ACTION, places))
        drawn = below(len(self._random_tokens), draw(keys, _MaskDraw.RANDOM_TOKEN, places))
        kept_or_random = np.where(
            action < self._config.mask_replace_prob + self._config.random_replace_prob,
            self._random_tokens[drawn],
            targets,
        )
        return np.where(action < self._config.mask_replace_prob, self._mask_token_id, kept_or_random)


def fill_without_overflow(sizes: Int64Array, groups: Int64Array, limits: Int64Array, keys: UInt64Array) -> BoolArray:
    """Takes groups in random order, skipping those that would go over the row's limit (whole-word masking of the
    original implementation).

    Args:
        sizes: pieces of each group, row by row, int64 [G].
        groups: groups of each row, int64 [B].
        limits: most pieces that a row takes, int64 [B].
        keys: names each row, uint64 [B].

    Returns:
        Which groups are taken, bool [G].
    """
    width = int(groups.max(initial=0))
    exists = np.arange(width) < groups[:, None]
    order_key = draw(keys[:, None], _MaskDraw.SELECTION, np.arange(width))
    order = np.argsort(np.where(exists, order_key, np.iinfo(np.uint64).max), axis=1)
    size = np.full(exists.shape, int(limits.max(initial=0)) + 1)
    size[exists] = sizes
    ordered = np.take_along_axis(size, order, axis=1).T.copy()
    taken = np.zeros(ordered.shape, dtype=bool)
    filled = np.zeros(len(groups), dtype=np.int64)
    for number in range(width):
        taken[number] = filled + ordered[number] <= limits
        filled += np.where(taken[number], ordered[number], 0)
        if (filled == limits).all():
            break
    in_place = np.zeros(exists.shape, dtype=bool)
    np.put_along_axis(in_place, order, taken.T, axis=1)
    return in_place[exists]


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


class DataCollatorForBertPreTraining:
    """Masks pre-training examples and lays them out for `BertReproForPreTraining` or upstream `BertForPreTraining`.

    Takes what `ExampleStream.read` returns, or, as a `data_collator` of the upstream Trainer, a list of features:
    `input_ids` with [CLS] and [SEP] in place; `token_type_ids` (else 0 through the first [SEP], 1 after);
    `next_sentence_label` (0 IsNext, 1 NotNext) in all or none. Their masks are drawn from torch's global generator,
    differently every time.

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
        pad_to_sequences: B; None adds no sequences. Those added are of padding: they predict nothing and change neither
            losses nor gradients. For padded batches only.
        return_prediction_positions: also return where predictions are made, for models that take it.

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
            themselves), with `attention_mask`, int64 (B, S), or packed, int64 (1, T), with `position_ids`,
            `cu_seq_lens_q`, `cu_seq_lens_k`, `max_length_q`, `max_length_k` as `collate_features` returns them. With
            NSP `next_sentence_label`, int64 (B). On request `prediction_positions`, int64 (P), flat places of the
            predicted tokens; padded batches have as many as their shape allows, packed ones a multiple of
            `PREDICTIONS_MULTIPLE`, the surplus 0, where [CLS] has no label.

        Raises:
            ValueError: a sequence is longer than `pad_to_length`, or there are more than `pad_to_sequences`.
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
            has_labels = "next_sentence_label" in examples[0]
            labels = np.array([feature["next_sentence_label"] for feature in examples]) if has_labels else None
            keys = torch.randint(2**63 - 1, (len(examples),)).numpy().astype(np.uint64)
            masked = self._choose(tokens, lengths, keys)
        if self.pad_to_sequences is not None:
            added = (0, self.pad_to_sequences - len(lengths))
            lengths = np.pad(lengths, added, constant_values=1)  # attention over nothing is not a number
            masked = masked._replace(tokens=np.pad(masked.tokens, added, constant_values=self._fill["input_ids"]))
            segments = np.pad(segments, added)
            labels = None if labels is None else np.pad(labels, added, constant_values=IGNORE_INDEX)
        token_labels = np.full(len(masked.tokens), IGNORE_INDEX, dtype=np.int64)
        token_labels[masked.positions] = masked.targets
        fields = {"input_ids": masked.tokens, "token_type_ids": segments, "labels": token_labels}
        if self.packing:
            batch = packed_batch(fields, lengths, int(lengths.max()))
        else:
            batch = padded_batch(fields, lengths, self._width(lengths), self._fill)
        if self.return_prediction_positions:
            positions = masked.positions
            if not self.packing:
                positions = self._padded_positions(positions, lengths, batch["input_ids"].shape[1])
            surplus = -len(positions) % PREDICTIONS_MULTIPLE if self.packing else 0
            batch["prediction_positions"] = int64_tensor(np.pad(positions, (0, surplus)))
        if labels is not None and self.config.next_sentence_prediction:
            batch["next_sentence_label"] = int64_tensor(labels)
        return batch

    def _choose(self, tokens: npt.NDArray[np.integer], lengths: Int64Array, keys: UInt64Array) -> MaskedTokens:
        """Chooses what is predicted: masked tokens or, by a left-to-right model, all that follow another."""
        if not self.config.left_to_right:
            return self._masker(tokens, lengths, keys)
        ids = tokens.astype(np.int64)
        return MaskedTokens(ids, np.arange(len(ids)), ids)

    def _width(self, lengths: Int64Array) -> int:
        longest = int(lengths.max())
        if self.pad_to_length is not None and longest > self.pad_to_length:
            raise ValueError(
                f"a sequence has {longest} tokens, pad_to_length is {self.pad_to_length}; shorten it first"
            )
        return self.pad_to_length or longest

    def _padded_positions(self, positions: Int64Array, lengths: Int64Array, width: int) -> Int64Array:
        """Returns the same places in (B, S), and 0, where [CLS] has no label, up to a number that B and S decide."""
        starts = row_starts(lengths)
        row = np.searchsorted(starts, positions, side="right") - 1
        longest = num_predictions(np.array([width]), self.config.masked_lm_prob, self.max_predictions_per_seq)
        return np.pad(positions - starts[row] + row * width, (0, len(lengths) * int(longest[0]) - len(positions)))

    def _segments(self, features: Sequence[Mapping[str, Any]], tokens: Int64Array, lengths: Int64Array) -> Int64Array:
        """Returns the segments of the features, else 0 through a sequence's first [SEP] and 1 after."""
        if "token_type_ids" in features[0]:
            return flatten_field(features, "token_type_ids")
        separators = np.cumsum(tokens == self._sep_token_id)
        before = separators - (tokens == self._sep_token_id)
        return cast(Int64Array, (before > np.repeat(before[row_starts(lengths)[:-1]], lengths)).astype(np.int64))
