"""How sure a score is: intervals around means over seeds, and paired tests of two rows.

Two things are left to chance, the examples of the dev set and the seed, and both are resampled:

- Examples are drawn with replacement. Every run on a split gets the same draws, so two rows are compared pair by pair.
- Seeds are drawn as clusters: a drawn seed brings its whole run along and, in a test, the runs of both rows. A few
  clusters drawn with replacement spread too little, so their part is widened to what Student's distribution gives.

The two parts are added. With a single seed the second part is zero, so the interval says nothing about seeds.

Shape legend: `n` seeds, `N` examples, `R` resamples.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

import numpy as np
import numpy.typing as npt

Float64Array = npt.NDArray[np.float64]

BySeed = dict[tuple[int, int], tuple[float, Float64Array]]
"""(pre-training seed, fine-tuning seed) -> the run's score, and its resampled scores, (R,)."""

RESAMPLES = 2000
CONFIDENCE = 0.95
SEED = 20181011

# Scores have five digits. As whole numbers their sums are exact, so they are equal on every machine.
_SCALE = 100_000
_RESAMPLES_AT_ONCE = 250


@dataclass(frozen=True)
class Comparison:
    """The difference between a row and the baseline row.

    Args:
        difference: mean over seeds of the row less that of the baseline.
        low: lower end of its interval.
        high: upper end of its interval.
        p_value: two-sided; never below 1 / (R + 1).
        pretrainings_agree: whether the difference has the same sign for every pre-training seed of both rows.
    """

    difference: float
    low: float
    high: float
    p_value: float
    pretrainings_agree: bool = True


def resampled_scores(examples: Float64Array) -> Float64Array:
    """Computes a run's score on each resampled dev set.

    Args:
        examples: (N,) numbers whose mean is the score; (N, 3) counts of right, predicted and true entities, whose F1 is
            the score; or (N, 2) numbers whose correlation is the score.

    Returns:
        (R,). Runs with the same number of examples are scored on the same resampled sets.
    """
    is_correlation = examples.shape[1:] == (2,)
    if is_correlation:
        examples = _products_for_correlation(examples)
    sums = _sums_of_resamples(examples.reshape(len(examples), -1))
    if examples.ndim == 1:
        return sums[:, 0] / (_SCALE * len(examples))
    if is_correlation:
        return _correlations(sums / (_SCALE * len(examples)))
    return _entity_f1(sums)


def interval(scores: Sequence[float], resampled: Sequence[Float64Array]) -> tuple[float, float]:
    """Computes the interval around the mean over seeds.

    Args:
        scores: one score per run, n of them.
        resampled: the `resampled_scores` of each run.

    Returns:
        Its lower and upper end.
    """
    from_examples = np.mean(resampled, axis=0)
    from_seeds = _seed_part(np.array(scores), _draws_of_seeds(len(scores), 0))
    return _ends(from_examples + from_seeds)


def compare(row: BySeed, baseline: BySeed) -> Comparison:
    """Tests a row against the baseline.

    Args:
        row: runs of the row.
        baseline: runs of the baseline, on the same examples.

    Returns:
        The difference with its interval. The p-value is the share of resampled differences that are as far from the
        observed difference as that is from zero.
    """
    difference = _mean_score(row) - _mean_score(baseline)

    # The part of the examples: both rows are scored on the same resampled sets.
    resampled = np.mean([draws for _, draws in row.values()], axis=0)
    resampled = resampled - np.mean([draws for _, draws in baseline.values()], axis=0)

    # The part of the seeds: pairs of runs if both rows have the same seeds, otherwise each row by itself.
    if set(row) == set(baseline):
        pairs = np.array([row[seed][0] - baseline[seed][0] for seed in sorted(row)])
        resampled = resampled + _seed_part(pairs, _draws_of_seeds(len(pairs), 0))
    else:
        resampled = resampled + _seed_part(_scores(row), _draws_of_seeds(len(row), 0))
        resampled = resampled - _seed_part(_scores(baseline), _draws_of_seeds(len(baseline), 1))

    # A rounding error of a difference that is zero must not count as smaller than it.
    as_far = np.abs(resampled - difference) >= abs(difference) - 1e-12
    p_value = (1 + int(as_far.sum())) / (RESAMPLES + 1)
    low, high = _ends(resampled)
    return Comparison(difference, low, high, p_value, _pretrainings_agree(row, baseline, difference))


def _pretrainings_agree(row: BySeed, baseline: BySeed, difference: float) -> bool:
    """Returns whether every pre-training seed that both rows have gives a difference of the same sign."""
    shared_seeds = {pretraining for pretraining, _ in row} & {pretraining for pretraining, _ in baseline}
    for seed in shared_seeds:
        if (_mean_score(row, seed) - _mean_score(baseline, seed)) * difference <= 0:
            return False
    return True


def _scores(runs: BySeed) -> Float64Array:
    return np.array([runs[seeds][0] for seeds in sorted(runs)])


def _mean_score(runs: BySeed, pretraining_seed: int | None = None) -> float:
    """Returns the mean score of all runs, or of those with one pre-training seed."""
    return statistics.fmean(
        score for (pretraining, _), (score, _) in runs.items() if pretraining_seed in (None, pretraining)
    )


def _sums_of_resamples(columns: Float64Array) -> Float64Array:
    """Sums each column over the examples of every resample, in units of 1 / _SCALE: (N, C) -> (R, C)."""
    weights = _draws_of_examples(len(columns))
    integers = np.rint(columns * _SCALE)
    # The weights become floats in slices, because all of them at once would take gigabytes.
    slices = []
    for start in range(0, RESAMPLES, _RESAMPLES_AT_ONCE):
        slices.append(weights[start : start + _RESAMPLES_AT_ONCE].astype(np.float64) @ integers)
    return np.concatenate(slices)


def _products_for_correlation(pairs: Float64Array) -> Float64Array:
    """Returns x, y, x squared, y squared and x times y of standardized pairs: (N, 2) -> (N, 5)."""
    standardized = (pairs - pairs.mean(axis=0)) / np.maximum(pairs.std(axis=0), 1e-9)
    return np.column_stack([standardized, standardized**2, standardized.prod(axis=1)])


def _correlations(means: Float64Array) -> Float64Array:
    """Computes Pearson's correlation from the means of x, y, x squared, y squared and x times y: (R, 5) -> (R,)."""
    x, y, xx, yy, xy = means.T
    spread = np.sqrt(np.maximum(xx - x**2, 0) * np.maximum(yy - y**2, 0))
    # A resample in which one side is constant has no correlation and counts as zero.
    return cast(Float64Array, np.divide(xy - x * y, spread, out=np.zeros(len(means)), where=spread > 1e-9))


def _entity_f1(sums: Float64Array) -> Float64Array:
    """Computes F1 from the sums of right, predicted and true entities: (R, 3) -> (R,)."""
    right, predicted, true = sums.T
    total = predicted + true
    return cast(Float64Array, np.divide(2 * right, total, out=np.zeros(len(sums)), where=total > 0))


def _seed_part(scores: Float64Array, draws: npt.NDArray[np.int64]) -> Float64Array:
    """Computes how far the mean of drawn seeds is from the mean of all, widened because there are few: (n,) -> (R,)."""
    from scipy.stats import norm, t

    n = len(scores)
    if n == 1:
        return np.zeros(RESAMPLES)
    tail = (1 + CONFIDENCE) / 2
    widened = np.sqrt(n / (n - 1)) * t.ppf(tail, n - 1) / norm.ppf(tail)
    deviations = scores - scores.mean()
    return cast(Float64Array, widened * deviations[draws].mean(axis=1))


def _ends(resampled: Float64Array) -> tuple[float, float]:
    low, high = np.quantile(resampled, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


@lru_cache(maxsize=4)
def _draws_of_examples(count: int) -> npt.NDArray[np.uint8]:
    """Returns how often each example is drawn in each resample, (R, N). A count never comes near 256."""
    generator = np.random.default_rng([SEED, count])
    draws = np.empty((RESAMPLES, count), dtype=np.uint8)
    for row in draws:
        row[:] = np.bincount(generator.integers(count, size=count), minlength=count)
    return draws


@lru_cache(maxsize=16)
def _draws_of_seeds(count: int, group: int) -> npt.NDArray[np.int64]:
    """Returns the seeds drawn in each resample, (R, n). Each group has draws of its own."""
    return np.random.default_rng([SEED, count, group, 1]).integers(count, size=(RESAMPLES, count))
