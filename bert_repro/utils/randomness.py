"""Random numbers as a function of what they decide, in place of a generator with a state.

A draw is a 64-bit hash of the integers that name it, for example (seed, phase, epoch, example, position). It is
therefore the same in every process, in any order and after any interruption, nothing has to be saved to resume a run,
and an array of draws takes a few vectorized operations. The hash is the finalizer of SplitMix64 (Steele, Lea and
Flood, 2014), applied once for each integer.

Shape legend: `B` rows.
"""

from enum import IntEnum

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]
UInt64Array = npt.NDArray[np.uint64]
Integers = int | npt.NDArray[np.integer]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLIER_1 = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLIER_2 = np.uint64(0x94D049BB133111EB)


class Stream(IntEnum):
    """Names of the independent random streams that a seed has.

    A stream's number follows the seed in the name of every draw, so changing a number changes all results of that
    stream. `CORPUS_PASSES` and `HELDOUT_DOCUMENTS` come first in the name, because they do not depend on a seed.
    """

    DROPOUT = 1  # seed of the device's generator: step, process, micro-batch
    INITIALIZATION = 2  # seed of torch's generator for new weights
    FINETUNING_ORDER = 3  # order of the training rows: epoch, row
    TRAINING_ROWS = 30  # rows of --max_train_samples; without a seed, so that all runs of a sweep have the same
    HELDOUT_ROWS = 31  # rows that are set aside as dev data
    BASELINE_ROWS = 32  # rows that the bag-of-words baseline learns from; without a seed
    CORPUS_PASSES = 0x50415353  # documents of a source that is read a fractional number of times
    HELDOUT_DOCUMENTS = 0x48454C44  # documents that pre-training never sees
    EXAMPLE_ORDER = 0x4F52444552  # order of the pre-training examples; follows (seed, phase, epoch)


def drawn_rows(stream: Stream, rows: int, limit: int) -> npt.NDArray[np.int64]:
    """Returns `limit` of `rows` row numbers, in ascending order; any set of rows is equally likely.

    Files are often sorted by label, so the first rows would be of one class.
    """
    if limit >= rows:
        return np.arange(rows)
    draws = draw(stream, np.arange(rows))
    return np.sort(np.argsort(draws, kind="stable")[:limit])


def draw(*names: Integers) -> UInt64Array:
    """Returns uniform 64-bit draws, one for each combination of the names.

    Args:
        names: integers, or integer arrays that broadcast against each other, that name the draw. Their order matters.

    Returns:
        Unsigned 64-bit integers in the broadcast shape (0-dimensional if all names are plain integers).
    """
    state = np.zeros((), dtype=np.uint64)
    # The hash computes modulo 2**64, so overflow is intended.
    with np.errstate(over="ignore"):
        for name in names:
            state = state + _GOLDEN + _as_uint64(name)
            state = (state ^ (state >> np.uint64(30))) * _MULTIPLIER_1
            state = (state ^ (state >> np.uint64(27))) * _MULTIPLIER_2
            state = state ^ (state >> np.uint64(31))
    return state


def below(limit: Integers, draws: UInt64Array) -> Int64Array:
    """Turns draws into integers uniform in [0, limit).

    The result is the high half of the product of the limit and the upper 32 bits of a draw.

    Args:
        limit: upper bound, exclusive, at most 2**32; an integer or an array that broadcasts with `draws`.
        draws: 64-bit integers from `draw`.
    """
    return (((draws >> np.uint64(32)) * _as_uint64(limit)) >> np.uint64(32)).astype(np.int64)


def fraction(draws: UInt64Array) -> npt.NDArray[np.float64]:
    """Turns draws into floats uniform in [0, 1), with 53 random bits."""
    return (draws >> np.uint64(11)).astype(np.float64) * 2.0**-53


def torch_seed(*names: int) -> int:
    """Returns a seed for `torch.manual_seed`: a draw that fits into a signed 64-bit integer."""
    return int(draw(*names) >> np.uint64(1))


def sample_without_replacement(available: Int64Array, counts: Int64Array, *names: Integers) -> Int64Array:
    """Draws `counts` of the numbers [0, available) for each row; every subset is equally likely.

    This is Floyd's algorithm (Bentley, 1987) for all rows at once. Pick i of k is a number t below
    available - k + i + 1, or the largest of these numbers if t is already taken. The cost grows with the number of
    picks, not with the size of the range.

    Args:
        available: size of each row's range, int64 [B].
        counts: numbers to draw for each row, at most `available`, int64 [B].
        names: names of the draws, as for `draw`: integers, or int64 or uint64 arrays of shape [B].

    Returns:
        int64 [sum of counts], row by row, ascending within a row.
    """
    most_picks = int(counts.max(initial=0))
    width = int(available.max(initial=0)) + 1
    pick = np.arange(most_picks)[:, None]

    # Each row has `width` places of its own in one flat array. A row that already has all its picks keeps picking
    # its last place, which no number of the row can reach.
    row_start = np.arange(len(counts)) * width
    needs_pick = pick < counts
    latest = np.where(needs_pick, available - counts + pick, width - 1)
    drawn = below(latest + 1, draw(*names, pick))
    latest = latest + row_start
    drawn = np.where(needs_pick, drawn, width - 1) + row_start

    # Take the picks one after the other, all rows at once.
    taken = np.zeros(len(counts) * width, dtype=bool)
    for number in range(most_picks):
        taken[np.where(taken[drawn[number]], latest[number], drawn[number])] = True

    # Forget the unreachable places and count each row's numbers from 0.
    taken[row_start + width - 1] = False
    return np.flatnonzero(taken) - np.repeat(row_start, counts)


def _as_uint64(value: Integers) -> UInt64Array:
    if isinstance(value, int):
        return np.asarray(value & 0xFFFFFFFFFFFFFFFF, dtype=np.uint64)
    return value.astype(np.uint64, copy=False)
