"""Whether ours and the paper's numbers are of the same data, so that one may be subtracted from the other."""

from collections.abc import Sequence

from bert_repro.paper_results import SPLIT_ROWS, Column
from bert_repro.reproduction.collect import Run

_WINDOWED = ("squad", "squad_v2", "conll2003")  # their inputs, which every record counts, are not their rows
_OWN_FILES = ("train_file", "validation_file")


def no_difference(column: Column, runs: Sequence[Run]) -> str | None:
    """Why ours less the paper's would mean nothing; None: task, split, metric and data agree.

    What a record does not tell is a reason too.
    """
    if column.incomparable:
        return column.incomparable
    reasons = (reason for run in runs for reason in (_scored_otherwise(column, run), _trained_otherwise(column, run)))
    return next(filter(None, reasons), None)


def rows_trained(run: Run) -> int | None:
    """Rows of the training set that a fine-tuning run learnt from, where its record tells.

    Records of before `examples` count inputs only, so for tasks cut into windows what was asked for stands.

    A row is what a training set counts: an example, SQuAD's question, CoNLL-2003's sentence.
    """
    train = run.record.get("train", {})
    if "examples" not in train and run.record["task"] in _WINDOWED:
        limit: int | None = run.record.get("settings", {}).get("max_train_samples")
        return limit
    rows: int | None = train.get("examples", train.get("rows"))
    return rows


def _scored_otherwise(column: Column, run: Run) -> str | None:
    if run.split_name(column) != column.split:
        return f"ours is scored on {run.split_name(column)}, the paper on {column.split}"
    rows, official = run.split(column)["rows_scored"], SPLIT_ROWS.get((column.task, column.split))
    if official is None:
        return f"how many rows {column.task}'s {column.split} set has is not published"
    if rows != official:
        return f"ours is scored on {rows:,} rows, the published set has {official:,}"
    return None


def _trained_otherwise(column: Column, run: Run) -> str | None:
    official = SPLIT_ROWS.get((column.task, "train"))
    if official is None:
        return f"how many rows {column.task}'s train set has is not published"
    settings = run.record.get("settings", {})
    if own := [name for name in _OWN_FILES if settings.get(name)]:
        return f"ours read files of its own ({', '.join(own)})"
    rows = rows_trained(run)
    if rows is None:
        return "the record does not tell what ours was fine-tuned on"
    return None if rows == official else f"ours is fine-tuned on {rows:,} rows, the published set has {official:,}"
