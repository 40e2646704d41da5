import numpy as np
import pytest
from scipy import stats
from tiny_models import word_tokenizer

from bert_repro.configs import ExampleConfig
from bert_repro.pretraining.masking import Masker, num_predictions
from bert_repro.utils.randomness import draw, sample_without_replacement

PAD, UNK, CLS, SEP = range(4)
PIECES = [("##" if number % 3 == 0 else "") + f"piece{number}" for number in range(6, 200)]
TOKENIZER = word_tokenizer(" ".join(["[unused0]", *PIECES]))


def pairs(number: int, longest: int = 128, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Random [CLS] A [SEP] B [SEP] end to end: tokens, lengths, keys. No [MASK] among them."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(5, longest + 1, number)
    ends = np.cumsum(lengths)
    tokens = rng.choice([UNK, *range(5, 200)], ends[-1]).astype(np.int32)
    tokens[ends - lengths] = CLS
    tokens[ends - lengths + 2 + rng.integers(0, lengths - 4)] = SEP
    tokens[ends - 1] = SEP
    return tokens, lengths, draw(seed, np.arange(number))


def mask(tokens, lengths, keys, max_predictions=None, **settings):
    return Masker(TOKENIZER, ExampleConfig(**settings), max_predictions)(tokens, lengths, keys)


def per_row(positions: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    return np.bincount(np.searchsorted(np.cumsum(lengths), positions, side="right"), minlength=len(lengths))


def test_number_of_predictions_is_the_original_formula():
    lengths = np.arange(3, 513)
    expected = [min(77, max(1, round(length * 0.15))) for length in lengths.tolist()]
    assert num_predictions(lengths, 0.15, 77).tolist() == expected
    assert num_predictions(np.array([128, 512]), 0.15, None).tolist() == [19, 77]
    assert num_predictions(np.array([128]), 0.15, 10).tolist() == [10]
    assert num_predictions(np.array([5, 30, 50]), 0.15, None).tolist() == [1, 4, 8]  # 0.75, 4.5, 7.5: halves to even
    assert num_predictions(np.array([5]), 0.0, None).tolist() == [1]


@pytest.mark.parametrize("probability", [0.15, 0.5])
def test_counts_are_exact_and_special_tokens_are_never_predicted(probability):
    tokens, lengths, keys = pairs(4000)
    masked = mask(tokens, lengths, keys, 20, masked_lm_prob=probability)
    assert np.array_equal(per_row(masked.positions, lengths), num_predictions(lengths, probability, 20))
    assert (np.diff(masked.positions) > 0).all()
    assert np.array_equal(masked.targets, tokens[masked.positions])
    assert not np.isin(masked.targets, [CLS, SEP, PAD]).any() and (masked.targets == UNK).any()
    elsewhere = np.delete(np.arange(len(tokens)), masked.positions)
    assert np.array_equal(masked.tokens[elsewhere], tokens[elsewhere])


def test_ordinary_random_tokens_leave_out_special_and_unused_ones():
    tokens, lengths, keys = pairs(5000)
    settings = {"mask_replace_prob": 0.0, "random_replace_prob": 1.0}
    ordinary = mask(tokens, lengths, keys, random_token_source="ordinary", **settings)
    vocab = mask(tokens, lengths, keys, random_token_source="vocab", **settings)
    assert set(np.unique(ordinary.tokens[ordinary.positions])) == set(range(6, 200))
    assert set(np.unique(vocab.tokens[vocab.positions])) == set(range(200))


@pytest.mark.parametrize("whole_word_masking", [False, True])
def test_masks_do_not_depend_on_the_batch(whole_word_masking):
    tokens, lengths, keys = pairs(64)
    together = mask(tokens, lengths, keys, whole_word_masking=whole_word_masking)
    starts = np.cumsum(lengths) - lengths
    for row in (0, 17, 63):
        part = slice(starts[row], starts[row] + lengths[row])
        alone = mask(tokens[part], lengths[row : row + 1], keys[row : row + 1], whole_word_masking=whole_word_masking)
        assert np.array_equal(alone.tokens, together.tokens[part])
    other = mask(tokens, lengths, keys + np.uint64(1), whole_word_masking=whole_word_masking)
    assert not np.array_equal(other.positions, together.positions)


def test_every_subset_is_equally_likely():
    number = 30000
    chosen = sample_without_replacement(np.full(number, 6), np.full(number, 3), draw(5, np.arange(number)))
    counts = np.unique(chosen.reshape(number, 3), axis=0, return_counts=True)[1]
    assert len(counts) == 20 and stats.chisquare(counts).pvalue > 0.001
    places = sample_without_replacement(np.full(number, 100), np.full(number, 15), draw(6, np.arange(number)))
    assert stats.chisquare(np.bincount(places)).pvalue > 0.001


# --------------------------------------------------------------------------------------------------- whole-word masking


def words_of(tokens: list[int]) -> list[list[int]]:
    """The plain loop: a word and its inner pieces, again after every special token."""
    words, fresh = [], True
    for place, token in enumerate(tokens):
        if token in (CLS, SEP, PAD):
            fresh = True
            continue
        if fresh or token < 6 or token % 3:
            words.append([])
        words[-1].append(place)
        fresh = False
    return words


def test_whole_words_equal_those_of_a_plain_loop():
    tokens, lengths, keys = pairs(300, 64)
    masked = mask(tokens, lengths, keys, 9, whole_word_masking=True)
    starts = np.cumsum(lengths) - lengths
    expected = []
    for start, length, key in zip(starts, lengths, keys, strict=True):
        words = words_of(tokens[start : start + length].tolist())
        limit, chosen = min(9, max(1, round(0.15 * int(length)))), []
        for number in np.argsort(draw(key, 0, np.arange(len(words)))):
            if len(chosen) + len(words[number]) <= limit:
                chosen += words[number]
        expected += sorted(start + place for place in chosen)
    assert masked.positions.tolist() == expected
