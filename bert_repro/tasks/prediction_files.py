"""Reads back the predictions that a finished run wrote, to score each example of a split again."""

import csv
from collections.abc import Sequence
from pathlib import Path

from bert_repro.errors import UserError


def read_prediction_rows(path: Path) -> list[dict[str, str]]:
    """Reads `predictions.SPLIT.tsv` or `.csv`, a dict of column names and texts per row.

    Raises:
        UserError: there is no such file.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file; name the output folder of a run with --do_eval")
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ",", quoting=csv.QUOTE_NONE))


def require_first_rows(path: Path, found: Sequence[str], expected: Sequence[str]) -> None:
    """Checks that the predictions are those of a split's first rows, all of them or fewer.

    Args:
        path: the file of predictions, for the message.
        found: what names each row in it.
        expected: the same of every row of the split.

    Raises:
        UserError: a row is another one, or there is none.
    """
    if not found or list(found) != list(expected[: len(found)]):
        pairs = enumerate(zip(found, expected, strict=False))
        row = next((row for row, pair in pairs if pair[0] != pair[1]), len(expected))
        raise UserError(
            f"{path}: row {row} of {len(found)} is not that of the data set's {len(expected)}; name the data the "
            "predictions were made for"
        )
