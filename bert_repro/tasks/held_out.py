"""Sets rows of the training data aside as dev data (`--validation_fraction`)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from bert_repro.errors import UserError, flag
from bert_repro.utils.randomness import Stream, draw

if TYPE_CHECKING:
    import datasets

    from bert_repro.configs import CustomDataConfig


def hold_out(
    data: "dict[str, datasets.Dataset]",
    config: "CustomDataConfig",
    *,
    together: Sequence[str],
    strata: str = "",
) -> "dict[str, datasets.Dataset]":
    """Moves `validation_fraction` of the training rows into the split `validation`, if that setting is given.

    Args:
        data: the splits.
        config: the fraction and the seed.
        together: columns. Rows that are equal in these columns stay in the same split, so that no text is both trained
            on and scored. The first of them decides their stratum.
        strata: a column; the fraction is held out of the rows of each of its values. Empty: of all rows together.

    Raises:
        UserError: one of the splits would be empty.
    """
    if config.validation_fraction is None:
        return data
    import pandas

    # Number the groups of equal rows. The keys are an array of objects, because in an array of texts every text would
    # need as much memory as the longest one.
    train = data["train"]
    columns = [train[name][:] for name in together]
    keys = np.array([str(row) for row in zip(*columns, strict=True)], dtype=object)
    groups, _ = pandas.factorize(keys)

    # Draw among the groups, each represented by its first row.
    first_rows = train.select(np.unique(groups, return_index=True)[1])
    stratum_of_group = [""] * len(first_rows)
    if strata:
        stratum_of_group = [str(value) for value in first_rows[strata]]
    is_held_out = held_out_rows(stratum_of_group, config.validation_fraction, config.seed)[groups]

    if is_held_out.all() or not is_held_out.any():
        raise UserError(
            f"{flag('validation_fraction', config.validation_fraction)} leaves no row for one of the splits. Choose "
            f"another fraction, or pass {flag('validation_file')}.",
            setting="validation_fraction",
        )
    held_out = train.select(np.flatnonzero(is_held_out))
    return data | {"train": train.select(np.flatnonzero(~is_held_out)), "validation": held_out}


def held_out_rows(strata: Sequence[str], fraction: float, seed: int) -> npt.NDArray[np.bool_]:
    """Draws the rows to hold out: the same fraction of each stratum, to within one row.

    Args:
        strata: a value for each row; rows with equal values are one stratum.
        fraction: the fraction of the rows.
        seed: decides which rows are drawn.

    Returns:
        Whether each row is held out, (N,).
    """
    import pandas

    groups, _ = pandas.factorize(np.array(strata, dtype=object))
    # Sort the rows by stratum, and by a random number within each stratum.
    random_numbers = draw(seed, Stream.HELDOUT_ROWS, np.arange(len(groups)))
    order = np.lexsort((random_numbers, groups))
    # Evenly spaced places of this order are held out, which takes the fraction of each stratum.
    counts = np.floor(np.arange(len(groups) + 1) * fraction + 0.5)
    is_held_out = np.zeros(len(groups), dtype=bool)
    is_held_out[order] = np.diff(counts) > 0
    return is_held_out
