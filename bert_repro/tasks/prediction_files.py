"""Files of predictions: written with the texts they are about, and read back to score each example again."""

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_repro.errors import UserError


def write_prediction_rows(path: Path, columns: Mapping[str, Sequence[object]]) -> None:
    """Writes `predictions.SPLIT.tsv` or `.csv` with a first row of names.

    White space inside a text becomes single spaces, so that a row is a line; .tsv has no quotes.

    Args:
        path: the file; its ending says the format.
        columns: name -> a value for each row.
    """
    rows = ([" ".join(str(value).split()) for value in row] for row in zip(*columns.values(), strict=True))
    with path.open("w", encoding="utf-8", newline="") as file:
        if path.suffix == ".csv":
            csv.writer(file, lineterminator="\n").writerows((list(columns), *rows))
        else:
            file.writelines("\t".join(row) + "\n" for row in (list(columns), *rows))


def write_json_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes one JSON object per line."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows)


def read_prediction_rows(path: Path) -> list[dict[str, str]]:
    """Reads `predictions.SPLIT.tsv` or `.csv`, a dict of column names and texts per row.

    Raises:
        UserError: there is no such file.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file; name the output folder of a run with --do_eval")
    plain: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if path.suffix == ".tsv" else {}
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, **plain))


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
