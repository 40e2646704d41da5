"""Vectorized helpers for rows of different lengths in one flat array.

A ragged array contains rows of different lengths end to end. Shape legend: `B` rows, `T` elements of all rows together.
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
