"""Masks tokens (paper 3.1, A.1; original implementation): which are predicted, and what the model reads there.

Each sequence gets an exact count of predictions, drawn without replacement; it is not a coin flip per token. Every
choice is a hash of the sequence's key, so the masks do not depend on how sequences are batched.

Shape legend: `B` sequences, `T` tokens of all sequences together, `C` candidates of all sequences together (tokens that
may be predicted), `P` predictions of all sequences together, `K` most predictions of one sequence, `V` vocabulary.
"""

from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from bert_repro.configs import ExampleConfig
from bert_repro.utils.ragged import Int64Array, row_starts
from bert_repro.utils.randomness import UInt64Array, below, draw, fraction

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BoolArray = npt.NDArray[np.bool_]


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
        return candidates[sample_without_replacement(available, counts, keys) + np.repeat(starts[:-1], counts)]

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


def sample_without_replacement(available: Int64Array, counts: Int64Array, keys: UInt64Array) -> Int64Array:
    """Draws `counts` of the numbers [0, available) for each row, every subset equally likely.

    Floyd's algorithm (Bentley, 1987) for all rows at once: pick i of k is a number t below available - k + i + 1, or
    the last of these when t is taken. Its cost grows with the picks, not with the numbers picked from.

    Args:
        available: numbers to draw from, int64 [B].
        counts: numbers to draw, at most `available`, int64 [B].
        keys: names each row, uint64 [B].

    Returns:
        int64 [P], row by row, ascending within a row.
    """
    most, width = int(counts.max(initial=0)), int(available.max(initial=0)) + 1
    pick = np.arange(most)[:, None]
    # A row that has all its picks picks the place `width - 1`, which no row's numbers reach.
    base = np.arange(len(counts)) * width
    latest = np.where(pick < counts, available - counts + pick, width - 1)
    drawn = below(latest + 1, draw(keys, _MaskDraw.SELECTION, pick))
    latest, drawn = latest + base, np.where(pick < counts, drawn, width - 1) + base
    taken = np.zeros(len(counts) * width, dtype=bool)
    for number in range(most):
        taken[np.where(taken[drawn[number]], latest[number], drawn[number])] = True
    taken[base + width - 1] = False
    return np.flatnonzero(taken) - np.repeat(base, counts)


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
    chosen: BoolArray = in_place[exists]
    return chosen
