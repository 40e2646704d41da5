"""Masks token ids for the masked language model (paper 3.1, A.1; original implementation).

Order of events in `Masker.__call__`, for all sequences of a batch at once:

1. Candidates are the tokens that may be predicted: all but [CLS], [SEP], padding and added special tokens.
2. Each sequence gets a number of predictions that depends on its length alone; it is not a coin flip per token.
3. So many candidates are drawn without replacement (or complete words, with whole-word masking).
4. Each chosen token is replaced: by [MASK] in 80% of the cases, by a random token in 10%, by itself in 10%.

Every choice is a hash of the sequence's key (`utils.randomness`), so the masks do not depend on how sequences are
batched.

Shape legend: `B` sequences, `T` tokens of all sequences together, `C` candidates of all sequences together, `P`
predictions of all sequences together, `G` words of all sequences together.
"""

from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from bert_repro.configs import ExampleConfig
from bert_repro.utils.arrays import Int64Array, row_starts
from bert_repro.utils.randomness import UInt64Array, below, draw, fraction, sample_without_replacement

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BoolArray = npt.NDArray[np.bool_]
TokenArray = npt.NDArray[np.integer]


class _MaskDraw(IntEnum):
    """What a draw decides; its number follows the sequence's key in the name of the draw."""

    SELECTION = 0
    ACTION = 1
    RANDOM_TOKEN = 2


class MaskedTokens(NamedTuple):
    """Sequences with their predictions.

    Args:
        tokens: ids that the model reads, int64 [T].
        positions: flat positions in [0, T) of the predicted tokens, ascending, int64 [P].
        targets: the original ids at these positions, int64 [P].
    """

    tokens: Int64Array
    positions: Int64Array
    targets: Int64Array


class _Candidates(NamedTuple):
    """The tokens of a batch that may be predicted.

    Args:
        positions: flat positions in [0, T), ascending, int64 [C].
        starts: where each sequence begins in `positions`, then C, int64 [B + 1].
    """

    positions: Int64Array
    starts: Int64Array


def num_predictions(lengths: Int64Array, masked_lm_prob: float, max_predictions: int | None) -> Int64Array:
    """Returns how many tokens of each sequence are predicted: a function of its length alone.

    A sequence has exactly so many predictions if it has as many candidates. A pair of segments always has, as long as
    `masked_lm_prob` is at most 0.5. With whole-word masking this number is an upper limit.

    Args:
        lengths: tokens per sequence, [CLS] and [SEP] included, int64 [B].
        masked_lm_prob: share of tokens that are predicted.
        max_predictions: upper limit per sequence, None for no limit.

    Returns:
        int64 [B]. Halves are rounded to even, as in the original implementation.
    """
    counts: Int64Array = np.maximum(np.rint(masked_lm_prob * lengths).astype(np.int64), 1)
    if max_predictions is None:
        return counts
    return np.minimum(counts, max_predictions)


class Masker:
    """Chooses the predicted tokens and replaces each by [MASK], a random token or itself.

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

        # [UNK] and [MASK] in a text are candidates, as in the original implementation. Special tokens that were added
        # to the tokenizer, such as [USER], are not: the model would learn to write them into running text.
        self._is_candidate = np.ones(size, dtype=bool)
        predicted_special_ids = {tokenizer.unk_token_id, tokenizer.mask_token_id}
        never_predicted = {tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id}
        never_predicted |= set(tokenizer.all_special_ids) - predicted_special_ids
        self._is_candidate[sorted(never_predicted)] = False

        # Pieces inside a word begin with ## and are masked together with the piece before them.
        inner_pieces = [number for piece, number in vocabulary.items() if piece.startswith("##")]
        self._is_inner_piece = np.zeros(size, dtype=bool)
        self._is_inner_piece[inner_pieces] = True

        # Random replacements come from the complete vocabulary, as in the original implementation, unless the
        # configuration asks for ordinary tokens.
        self._random_tokens = np.arange(size)
        if config.random_token_source == "ordinary":
            unused = {number for piece, number in vocabulary.items() if piece.startswith("[unused")}
            self._random_tokens = np.setdiff1d(self._random_tokens, sorted(unused | set(tokenizer.all_special_ids)))

    def __call__(
        self, tokens: TokenArray, lengths: Int64Array, keys: UInt64Array, is_special: BoolArray | None = None
    ) -> MaskedTokens:
        """Masks a batch of sequences that are laid end to end.

        Args:
            tokens: ids with [CLS] and [SEP] in place, [T].
            lengths: tokens of each sequence, int64 [B].
            keys: name of each sequence, uint64 [B]; equal keys and lengths give equal masks.
            is_special: further tokens that must not be predicted, bool [T]; None for none.
        """
        # 1. Find the tokens that may be predicted.
        sequence_starts = row_starts(lengths)
        is_candidate = self._is_candidate[tokens]
        if is_special is not None:
            is_candidate &= ~is_special
        positions = np.flatnonzero(is_candidate)
        candidates = _Candidates(positions, np.searchsorted(positions, sequence_starts))

        # 2. Decide how many of them each sequence predicts.
        counts = num_predictions(lengths, self._config.masked_lm_prob, self._max_predictions)

        # 3. Draw them.
        if self._config.whole_word_masking:
            chosen = self._choose_words(tokens, candidates, counts, keys)
        else:
            chosen = self._choose_tokens(candidates, counts, keys)

        # 4. Replace them in a copy of the text. A token's draws are named by its place in its own sequence.
        sequence = np.searchsorted(sequence_starts, chosen, side="right") - 1
        masked = tokens.astype(np.int64)
        targets = masked[chosen]
        masked[chosen] = self._replacements(targets, keys[sequence], chosen - sequence_starts[sequence])
        return MaskedTokens(masked, chosen, targets)

    def _choose_tokens(self, candidates: _Candidates, counts: Int64Array, keys: UInt64Array) -> Int64Array:
        """Draws single tokens; returns their flat positions, int64 [P]."""
        available = np.diff(candidates.starts)
        counts = np.minimum(counts, available)
        numbers = sample_without_replacement(available, counts, keys, _MaskDraw.SELECTION)
        return candidates.positions[numbers + np.repeat(candidates.starts[:-1], counts)]

    def _choose_words(
        self, tokens: TokenArray, candidates: _Candidates, counts: Int64Array, keys: UInt64Array
    ) -> Int64Array:
        """Draws complete words; returns the flat positions of their pieces, int64 [P]."""
        # A word begins at a piece without ##, after a token that is no candidate ([SEP]), and with each sequence.
        begins_word = ~self._is_inner_piece[tokens[candidates.positions]]
        begins_word[1:] |= np.diff(candidates.positions) > 1
        begins_word[candidates.starts[candidates.starts < len(candidates.positions)]] = True

        first_pieces = np.flatnonzero(begins_word)
        num_pieces = np.diff(first_pieces, append=len(candidates.positions))
        words_per_sequence = np.diff(np.searchsorted(first_pieces, candidates.starts))
        is_chosen = fill_without_overflow(num_pieces, words_per_sequence, counts, keys)
        return candidates.positions[np.repeat(is_chosen, num_pieces)]

    def _replacements(self, targets: Int64Array, keys: UInt64Array, places: Int64Array) -> Int64Array:
        """Returns what the model reads in place of each predicted token, int64 [P].

        Args:
            targets: the original ids, int64 [P].
            keys: key of each token's sequence, uint64 [P].
            places: place of each token in its sequence, int64 [P].
        """
        mask_share = self._config.mask_replace_prob
        random_share = self._config.random_replace_prob
        action = fraction(draw(keys, _MaskDraw.ACTION, places))
        random_numbers = below(len(self._random_tokens), draw(keys, _MaskDraw.RANDOM_TOKEN, places))

        # [0, mask share) becomes [MASK], [mask share, mask share + random share) a random token, the rest stays.
        random_or_same = np.where(action < mask_share + random_share, self._random_tokens[random_numbers], targets)
        return np.where(action < mask_share, self._mask_token_id, random_or_same)


def fill_without_overflow(sizes: Int64Array, groups: Int64Array, limits: Int64Array, keys: UInt64Array) -> BoolArray:
    """Chooses words in random order and skips those that would exceed the sequence's limit.

    This is the whole-word masking of the original implementation.

    Args:
        sizes: pieces of each word, sequence by sequence, int64 [G].
        groups: words of each sequence, int64 [B].
        limits: most pieces that a sequence predicts, int64 [B].
        keys: name of each sequence, uint64 [B].

    Returns:
        Which words are chosen, bool [G].
    """
    # Lay the words of each sequence out in a row, and draw an order for every row. Words that do not exist come last.
    width = int(groups.max(initial=0))
    exists = np.arange(width) < groups[:, None]
    order_key = draw(keys[:, None], _MaskDraw.SELECTION, np.arange(width))
    order = np.argsort(np.where(exists, order_key, np.iinfo(np.uint64).max), axis=1)

    # A word that does not exist is larger than any limit, so it is never chosen.
    size = np.full(exists.shape, int(limits.max(initial=0)) + 1)
    size[exists] = sizes
    size_in_order = np.take_along_axis(size, order, axis=1).T.copy()

    # Go through the rows' words in their order, all rows at once.
    is_chosen_in_order = np.zeros(size_in_order.shape, dtype=bool)
    filled = np.zeros(len(groups), dtype=np.int64)
    for number in range(width):
        fits = filled + size_in_order[number] <= limits
        is_chosen_in_order[number] = fits
        filled += np.where(fits, size_in_order[number], 0)
        if (filled == limits).all():
            break

    # Return from the drawn order to the order of the text.
    is_chosen = np.zeros(exists.shape, dtype=bool)
    np.put_along_axis(is_chosen, order, is_chosen_in_order.T, axis=1)
    return is_chosen[exists]
