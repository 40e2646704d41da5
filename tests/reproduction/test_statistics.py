"""Intervals cover what they should, and the paired test tells equal rows from different ones."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm, t

from bert_repro.reproduction.orderings import APPEARS, INCONCLUSIVE, Ordering
from bert_repro.reproduction.resampling import RESAMPLES, compare, interval, resampled_scores


def runs(generator, easiness, seeds, spread=0.0, shift=0.0):
    """Right and wrong answers of a run for each seed, to questions of some easiness."""
    ability = easiness + shift + generator.normal(0, spread, seeds)[:, None]
    return (generator.random((seeds, len(easiness))) < ability).astype(float)


def row(scores, first_seed=1, pretraining=42):
    return {(pretraining, first_seed + i): (run.mean(), resampled_scores(run)) for i, run in enumerate(scores)}


def interval_of(scores):
    return interval([run.mean() for run in scores], [resampled_scores(run) for run in scores])


def test_one_run_has_the_interval_of_a_proportion_and_seeds_alone_students():
    scores = np.repeat([1.0, 0.0], [820, 180])[None]
    low, high = interval_of(scores)
    half = norm.ppf(0.975) * np.sqrt(0.82 * 0.18 / 1000)
    assert (low, high) == pytest.approx((0.82 - half, 0.82 + half), abs=0.002)
    # No example differs from another, so only the seeds are left to chance.
    means = np.array([0.70, 0.71, 0.73, 0.76, 0.72, 0.74, 0.69, 0.75, 0.73, 0.71])
    low, high = interval(means, [np.full(RESAMPLES, mean) for mean in means])
    half = t.ppf(0.975, 9) * means.std(ddof=1) / np.sqrt(10)
    assert (low, high) == pytest.approx((means.mean() - half, means.mean() + half), abs=0.004)


@pytest.mark.parametrize(("seeds", "spread"), [(3, 0.0), (3, 0.03), (5, 0.02)])
def test_intervals_cover_the_truth_and_equal_rows_rarely_differ(seeds, spread):
    generator = np.random.default_rng(0)
    covered = different = 0
    for _ in range(100):
        easiness = generator.uniform(0.55, 0.95, 500)
        first, second = (runs(generator, easiness, seeds, spread) for _ in range(2))
        low, high = interval_of(first)
        covered += low <= 0.75 <= high
        different += compare(row(first), row(second)).p_value < 0.05
    assert covered >= 92
    assert different <= 8


def test_identical_rows_have_a_p_value_of_one_and_every_call_draws_the_same():
    scores = runs(np.random.default_rng(0), np.full(300, 0.7), 3)
    found = compare(row(scores), row(scores))
    assert (found.difference, found.p_value, found.low, found.high) == (0.0, 1.0, 0.0, 0.0)
    scores = runs(np.random.default_rng(1), np.full(100, 0.7), 3, 0.02)
    assert interval_of(scores) == interval_of(scores)
    assert compare(row(scores), row(1 - scores)) == compare(row(scores), row(1 - scores))


@pytest.mark.parametrize("first_seed", [1, 7])
def test_clearly_different_rows_have_a_small_one(first_seed):
    generator = np.random.default_rng(0)
    easiness = generator.uniform(0.3, 0.7, 2000)
    better, worse = (runs(generator, easiness, 3, 0.005, shift) for shift in (0.2, 0.0))
    found = compare(row(better), row(worse, first_seed))
    assert found.p_value < 0.005
    assert found.low < 0.2 < found.high and found.low > 0.1
    assert compare(row(worse, first_seed), row(better)).difference == pytest.approx(-found.difference)


def test_a_difference_must_have_its_sign_for_every_seed_of_pretraining():
    generator = np.random.default_rng(0)
    easiness = generator.uniform(0.3, 0.7, 2000)
    low, middle, high = (runs(generator, easiness, 3, 0.005, shift) for shift in (-0.1, 0.0, 0.2))
    agreeing = compare(row(high) | row(high, 1, 43), row(low) | row(middle, 1, 43))
    opposed = compare(row(high) | row(low, 1, 43), row(low) | row(middle, 1, 43))
    assert agreeing.p_value < 0.01 and agreeing.pretrainings_agree
    assert opposed.difference > 0 and not opposed.pretrainings_agree
    ordering = Ordering("5", "trial", "a above b", "MNLI", 1.0, 1, agreeing)
    assert ordering.verdict == APPEARS
    assert replace(ordering, ours=replace(agreeing, pretrainings_agree=False)).verdict == INCONCLUSIVE


def test_pairing_examples_finds_what_two_intervals_would_hide():
    # One row is right wherever the other is, and on 2% of the examples more: far inside either interval.
    worse = np.repeat([1.0, 0.0], [500, 500])[None].repeat(3, axis=0)
    better = np.repeat([1.0, 0.0], [520, 480])[None].repeat(3, axis=0)
    assert interval_of(worse)[1] > 0.52
    assert compare(row(better), row(worse)).p_value < 0.01


def test_entity_f1_is_resampled_by_its_counts():
    generator = np.random.default_rng(0)
    true = generator.integers(0, 4, 800)
    right = generator.binomial(true, 0.8)
    predicted = right + generator.binomial(2, 0.2, 800)
    counts = np.stack([right, predicted, true], axis=1).astype(float)
    resampled = resampled_scores(counts)
    score = 2 * right.sum() / (predicted.sum() + true.sum())
    assert resampled.mean() == pytest.approx(score, abs=0.002)
    assert 0.004 < resampled.std() < 0.02
    assert resampled_scores(np.zeros((4, 3))).max() == 0.0
