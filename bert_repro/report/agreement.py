"""Whether ours and the paper's numbers are of the same data, so that one may be subtracted from the other."""

from collections.abc import Mapping, Sequence
from typing import Any

from bert_repro.paper_results import CONLL_TRAIN_WORDS, SPLIT_ROWS, Column
from bert_repro.report.collect import Run

_QUESTIONS = ("squad", "squad_v2")
_SENTENCES = "conll2003"
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
    """Rows that a fine-tuning run learnt from, where its record tells.

    A row is what a training set counts: an example, SQuAD's question, CoNLL-2003's sentence. The record counts inputs,
    which are rows for all tasks but those two.
    """
    inputs, limit = inputs_trained(run), _limit(run)
    if run.record["task"] not in (*_QUESTIONS, _SENTENCES):
        return inputs
    if run.record["task"] in _QUESTIONS and limit is not None and inputs is not None:
        return min(limit, inputs)  # every question has at least one input
    return limit


def inputs_trained(run: Run) -> int | None:
    """Inputs that a training set became, those that were left out as useless included: of long rows several."""
    train = run.record.get("train", {})
    return int(train["rows"] + train.get("dropped", 0)) if "rows" in train else None


def _limit(run: Run) -> int | None:
    """`--max_train_samples`."""
    limit: int | None = run.record.get("settings", {}).get("max_train_samples")
    return limit or None


def _scored_otherwise(column: Column, run: Run) -> str | None:
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
    inputs, limit = inputs_trained(run), _limit(run)
    if inputs is None:
        return "the record does not tell what ours was fine-tuned on"
    if column.task not in (*_QUESTIONS, _SENTENCES):
        return None if inputs == official else _fine_tuned(f"{inputs:,} rows", official)
    if limit is not None and limit < official:
        return _fine_tuned(f"{rows_trained(run):,} rows", official)
    if column.task in _QUESTIONS:  # every question has at least one input
        return None if inputs >= official else _fine_tuned(f"at most {inputs:,} rows", official)
    return _sentences_otherwise(run, inputs, official, settings)


def _sentences_otherwise(run: Run, inputs: int, official: int, settings: Mapping[str, Any]) -> str | None:
    """CoNLL-2003 without a limit: with one window a sentence, windows are counted, else the tokens of a pass."""
    if inputs == official:
        return None
    if settings.get("ner_context", "tile") != "tile":
        # A sentence longer than a window is several.
        return None if inputs > official else _fine_tuned(f"{inputs:,} sentences", official)
    train = run.record["train"]
    if not all(train.get(name) for name in ("tokens", "steps", "batch")):
        return _fine_tuned(f"{inputs:,} windows, of how many sentences is not recorded", official)
    tokens = train["tokens"] * inputs / (train["steps"] * train["batch"])
    if tokens >= CONLL_TRAIN_WORDS:  # every word has at least one token
        return None
    return f"ours is fine-tuned on {tokens:,.0f} tokens, the published set has {CONLL_TRAIN_WORDS:,} words"


def _fine_tuned(told: str, official: int) -> str:
    return f"ours is fine-tuned on {told}, the published set has {official:,}"
