"""How sure our own numbers are: an interval around a mean over seeds, and a paired test of two rows.

Two things are left to chance, the examples of the dev set and the seed, and both are resampled:

- Examples are drawn with replacement, the same ones for every run on a split, so rows are compared pair by pair.
- Seeds are drawn as clusters: a drawn seed brings all of its run along, and in a test the runs of both rows. A few
  clusters drawn with replacement spread too little, so their part is widened to what Student's distribution gives.

The two parts are added. One seed alone leaves the second part out, and nothing is then said about seeds.

Shape legend: `n` seeds, `N` examples, `R` resamples.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

RESAMPLES = 2000
CONFIDENCE = 0.95
SEED = 20181011
_SCALE = 100_000  # Scores have five digits: as whole numbers their sums are exact, on every machine.
_AT_ONCE = 250  # resamples

Float64Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Comparison:
    """A row against the baseline row.

    Args:
        difference: mean over seeds of the row less that of the baseline.
        low, high: its interval.
        p_value: two-sided; never below 1 / (R + 1).
        paired_seeds: whether both rows have the same seeds, so that seeds are paired too.
    """

    difference: float
    low: float
    high: float
    p_value: float
    paired_seeds: bool


def resampled_scores(examples: Float64Array) -> Float64Array:
    """Computes a run's score on each resampled dev set; the same sets for every run with as many examples.

    Args:
        examples: (N,) numbers to be averaged, or (N, 3) counts of right, predicted and true entities.

    Returns:
        (R,).
    """
    weights = _draws_of_examples(len(examples))
    integers = np.rint(examples.reshape(len(examples), -1) * _SCALE)
    parts = [weights[start : start + _AT_ONCE].astype(np.float64) @ integers for start in range(0, RESAMPLES, _AT_ONCE)]
    sums = np.concatenate(parts)
    if examples.ndim == 1:
        means: Float64Array = sums[:, 0] / (_SCALE * len(examples))
        return means
    return _entity_f1(sums)


def total_score(scores: Float64Array) -> Float64Array:
    """Computes the score of each run from those of its examples.

    Args:
        scores: (n, N) numbers to be averaged, or (n, N, 3) counts of right, predicted and true entities.

    Returns:
        (n,) means, or entity F1; 0 where nothing is predicted and nothing there.
    """
    if scores.ndim == 2:
        means: Float64Array = scores.mean(axis=1)
        return means
    return _entity_f1(scores.sum(axis=1))


def _entity_f1(counts: Float64Array) -> Float64Array:
    right, predicted, true = counts.T
    score: Float64Array = np.divide(2 * right, predicted + true, out=np.zeros(len(counts)), where=predicted + true > 0)
    return score


def interval(scores: Sequence[float], resampled: Sequence[Float64Array]) -> tuple[float, float]:
    """Computes the interval around the mean over seeds.

    Args:
        scores: of each run, n of them.
        resampled: what `resampled_scores` gives for each.

    Returns:
        Its ends.
    """
    return _ends(np.mean(resampled, axis=0) + _seed_part(np.array(scores), _draws_of_seeds(len(scores), 0)))


def compare(row: dict[int, tuple[float, Float64Array]], baseline: dict[int, tuple[float, Float64Array]]) -> Comparison:
    """Tests a row against the baseline.

    Args:
        row: seed -> the run's score and what `resampled_scores` gives.
        baseline: the same of the baseline, on the same examples.

    Returns:
        The difference with its interval; the p-value is the share of resampled differences that lie as far from the
        difference found as that lies from none.
    """
    paired = set(row) == set(baseline)
    seeds = sorted(row)
    difference = _mean_score(row) - _mean_score(baseline)
    resampled = _mean_resampled(row) - _mean_resampled(baseline)
    if paired:
        pairs = np.array([row[seed][0] - baseline[seed][0] for seed in seeds])
        resampled = resampled + _seed_part(pairs, _draws_of_seeds(len(seeds), 0))
    else:
        for number, (group, sign) in enumerate(((row, 1), (baseline, -1))):
            scores = np.array([group[seed][0] for seed in sorted(group)])
            resampled = resampled + sign * _seed_part(scores, _draws_of_seeds(len(scores), number))
    # What rounding leaves of a difference that is none must not count.
    as_far = np.abs(resampled - difference) >= abs(difference) - 1e-12
    p_value = (1 + int(as_far.sum())) / (RESAMPLES + 1)
    return Comparison(difference, *_ends(resampled), p_value, paired)


def _mean_score(row: dict[int, tuple[float, Float64Array]]) -> float:
    return float(np.mean([score for score, _ in row.values()]))


def _mean_resampled(row: dict[int, tuple[float, Float64Array]]) -> Float64Array:
    mean: Float64Array = np.mean([resampled for _, resampled in row.values()], axis=0)
    return mean


def _seed_part(scores: Float64Array, draws: npt.NDArray[np.int64]) -> Float64Array:
    """Computes how far the mean of drawn seeds is from the mean of all, widened for their small number; (R,)."""
    from scipy.stats import norm, t

    if len(scores) == 1:
        return np.zeros(RESAMPLES)
    tail = (1 + CONFIDENCE) / 2
    few = len(scores) / (len(scores) - 1)
    widened = np.sqrt(few) * t.ppf(tail, len(scores) - 1) / norm.ppf(tail)
    part: Float64Array = widened * (scores - scores.mean())[draws].mean(axis=1)
    return part


def _ends(resampled: Float64Array) -> tuple[float, float]:
    low, high = np.quantile(resampled, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


@lru_cache(maxsize=4)
def _draws_of_examples(count: int) -> npt.NDArray[np.uint8]:
    """Counts how often each example is drawn in each resample, (R, N). No count comes near 256."""
    generator = np.random.default_rng([SEED, count])
    draws = np.empty((RESAMPLES, count), dtype=np.uint8)
    for row in draws:
        row[:] = np.bincount(generator.integers(count, size=count), minlength=count)
    return draws


@lru_cache(maxsize=16)
def _draws_of_seeds(count: int, group: int) -> npt.NDArray[np.int64]:
    """Returns the seeds drawn in each resample, (R, n); another group is drawn by itself."""
    return np.random.default_rng([SEED, count, group, 1]).integers(count, size=(RESAMPLES, count))
