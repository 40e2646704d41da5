"""The counter hash: known values, uniformity, independence of order."""

import numpy as np

from bert_repro.utils.randomness import Stream, below, draw, fraction, torch_seed


def test_draws_do_not_move_and_a_seed_fits() -> None:
    assert int(draw(1, 2, 3)) == 7702586659592502839
    assert below(10, draw(1, np.arange(5))).tolist() == [3, 5, 7, 6, 8]
    assert 0 <= torch_seed(1, 2) < 2**63


def test_arrays_and_scalars_agree() -> None:
    grid = draw(7, np.arange(3)[:, None], np.arange(4))
    assert grid.shape == (3, 4)
    assert grid[2, 1] == draw(7, 2, 1)
    assert draw(2, 1) != draw(1, 2)


def test_draws_are_uniform_and_uncorrelated() -> None:
    values = fraction(draw(3, np.arange(200_000)))
    assert values.min() >= 0 and values.max() < 1
    assert abs(values.mean() - 0.5) < 4 * np.sqrt(1 / 12 / len(values))
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 4 / np.sqrt(len(values))
    bits = draw(5, np.arange(64_000))[:, None] >> np.arange(64, dtype=np.uint64) & np.uint64(1)
    assert np.abs(bits.mean(0) - 0.5).max() < 4.5 * 0.5 / np.sqrt(64_000)  # each bit is a fair coin
    counts = np.bincount(below(7, draw(4, np.arange(70_000))), minlength=7)
    assert ((counts - 10_000) ** 2 / 10_000).sum() < 22.5  # chi-square, 6 degrees of freedom, p = 0.001


def test_the_numbers_of_the_streams_do_not_move() -> None:
    numbers = {stream.name: stream.value for stream in Stream}
    assert numbers == {
        "DROPOUT": 1,
        "INITIALIZATION": 2,
        "FINETUNING_ORDER": 3,
        "TRAINING_ROWS": 30,
        "HELDOUT_ROWS": 31,
        "BASELINE_ROWS": 32,
        "CORPUS_PASSES": 0x50415353,
        "HELDOUT_DOCUMENTS": 0x48454C44,
        "EXAMPLE_ORDER": 0x4F52444552,
    }
