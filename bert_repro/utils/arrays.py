"""Vectorized helpers: rows of different lengths in one flat array, and randomness as a function.

A ragged array holds rows of different lengths end to end. Shape legend: `B` rows, `T` elements of all rows together.

A draw is a 64-bit hash of integers that name it, for example (seed, phase, epoch, example, position), never of a state.
So it is the same in every process, in any order, after any interruption, and an array of draws is a few vectorized
operations. The hash is the finalizer of SplitMix64 (Steele, Lea and Flood, 2014), applied once per integer.
"""

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]


def row_starts(lengths: npt.NDArray[np.integer]) -> Int64Array:
    """Returns where each row starts in the flat array.

    Args:
        lengths: elements of each row, int64 [B].

    Returns:
        int64 [B + 1]; the last entry is T.
    """
    starts = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=starts[1:])
    return starts


def places_in_row(lengths: Int64Array) -> Int64Array:
    """Returns the place of each element inside its own row, counted from 0.

    Args:
        lengths: elements of each row, int64 [B].

    Returns:
        int64 [T].
    """
    starts = row_starts(lengths)
    return np.arange(starts[-1], dtype=np.int64) - np.repeat(starts[:-1], lengths)


def pad(flat: npt.NDArray[np.generic], lengths: Int64Array, width: int, value: int) -> npt.NDArray[np.generic]:
    """Lays rows out as a rectangle.

    Args:
        flat: the elements of all rows, [T].
        lengths: elements of each row, int64 [B].
        width: columns of the result, at least the longest row.
        value: fills the places after a row's end.

    Returns:
        [B, width] in the type of `flat`.
    """
    rectangle = np.full((len(lengths), width), value, dtype=flat.dtype)
    rectangle[np.arange(width) < lengths[:, None]] = flat
    return rectangle


UInt64Array = npt.NDArray[np.uint64]
Integers = int | npt.NDArray[np.integer]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLIER_1 = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLIER_2 = np.uint64(0x94D049BB133111EB)


def draw(*names: Integers) -> UInt64Array:
    """Hashes integers to uniform 64-bit draws.

    Args:
        names: what is drawn: integers or integer arrays that broadcast against each other. Order matters.

    Returns:
        Unsigned 64-bit integers in the broadcast shape (0-dimensional when all names are plain integers).
    """
    state = np.zeros((), dtype=np.uint64)
    with np.errstate(over="ignore"):
        for name in names:
            state = state + _GOLDEN + _as_uint64(name)
            state = (state ^ (state >> np.uint64(30))) * _MULTIPLIER_1
            state = (state ^ (state >> np.uint64(27))) * _MULTIPLIER_2
            state = state ^ (state >> np.uint64(31))
    return state


def below(limit: Integers, draws: UInt64Array) -> npt.NDArray[np.int64]:
    """Turns draws into integers uniform in [0, limit), by the high half of a 32 by 32 bit product.

    Args:
        limit: upper bound, exclusive, at most 2**32; an integer or an array that broadcasts with `draws`.
        draws: what `draw` returned.
    """
    return (((draws >> np.uint64(32)) * _as_uint64(limit)) >> np.uint64(32)).astype(np.int64)


def fraction(draws: UInt64Array) -> npt.NDArray[np.float64]:
    """Turns draws into floats uniform in [0, 1), with 53 random bits."""
    return (draws >> np.uint64(11)).astype(np.float64) * 2.0**-53


def torch_seed(*names: int) -> int:
    """Returns a seed for `torch.manual_seed`: a draw that fits a signed 64-bit integer."""
    return int(draw(*names) >> np.uint64(1))


def sample_without_replacement(
    available: npt.NDArray[np.int64], counts: npt.NDArray[np.int64], *names: Integers
) -> npt.NDArray[np.int64]:
    """Draws `counts` of the numbers [0, available) for each row, every subset equally likely.

    Floyd's algorithm (Bentley, 1987) for all rows at once: pick i of k is a number t below available - k + i + 1, or
    the last of these when t is taken. Its cost grows with the picks, not with the numbers picked from.

    Args:
        available: numbers to draw from, int64 [B].
        counts: numbers to draw, at most `available`, int64 [B].
        names: what is drawn, as for `draw`; integers, or int64 or uint64 [B].

    Returns:
        int64 [sum of counts], row by row, ascending within a row.
    """
    most, width = int(counts.max(initial=0)), int(available.max(initial=0)) + 1
    pick = np.arange(most)[:, None]
    # A row that has all its picks picks the place `width - 1`, which no row's numbers reach.
    base = np.arange(len(counts)) * width
    latest = np.where(pick < counts, available - counts + pick, width - 1)
    drawn = below(latest + 1, draw(*names, pick))
    latest, drawn = latest + base, np.where(pick < counts, drawn, width - 1) + base
    taken = np.zeros(len(counts) * width, dtype=bool)
    for number in range(most):
        taken[np.where(taken[drawn[number]], latest[number], drawn[number])] = True
    taken[base + width - 1] = False
    return np.flatnonzero(taken) - np.repeat(base, counts)


def _as_uint64(value: Integers) -> UInt64Array:
    if isinstance(value, int):
        return np.asarray(value & 0xFFFFFFFFFFFFFFFF, dtype=np.uint64)
    return value.astype(np.uint64, copy=False)
