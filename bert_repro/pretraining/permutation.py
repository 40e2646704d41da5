"""A permutation as a function: the order of an epoch without an array of it, so memory stays flat in the corpus size.

Rows are written as places in a rectangle of about sqrt(size) by sqrt(size). A round shifts the row of each place by a
hash of its column, or its column by a hash of its row; each such shift can be undone, so every round permutes the
rectangle (a Feistel network with modular sums). A place beyond the last row is sent through again until it falls on a
row, which keeps the whole a permutation of the rows (cycle walking; Black and Rogaway, 2002).
"""

from math import isqrt

import numpy as np

from bert_repro.utils.ragged import Int64Array
from bert_repro.utils.randomness import draw

_ROUNDS = 8


def permute(places: Int64Array, size: int, *names: int) -> Int64Array:
    """The rows that stand at the given places of a shuffled order.

    Args:
        places: integers in [0, size), [N].
        size: rows in all.
        names: integers that name the order, as for `bert_repro.utils.randomness.draw`.

    Returns:
        int64 [N], distinct for distinct places; over all places, every row exactly once.
    """
    height = isqrt(max(size - 1, 0)) + 1
    width = -(-size // height)
    rows = _shuffle(places, height, width, *names)
    outside = np.flatnonzero(rows >= size)
    while outside.size:
        rows[outside] = _shuffle(rows[outside], height, width, *names)
        outside = outside[rows[outside] >= size]
    return rows


def _shuffle(places: Int64Array, height: int, width: int, *names: int) -> Int64Array:
    row, column = np.divmod(places.astype(np.uint64), np.uint64(width))
    for number in range(0, _ROUNDS, 2):
        row = (row + draw(*names, number, column) % np.uint64(height)) % np.uint64(height)
        column = (column + draw(*names, number + 1, row) % np.uint64(width)) % np.uint64(width)
    return (row * np.uint64(width) + column).astype(np.int64)
