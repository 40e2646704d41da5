"""Every number of the report for programs: numbers.json."""

from collections.abc import Sequence
from typing import Any

from bert_repro.reproduction.collect import Run
from bert_repro.reproduction.conditions import Conditions
from bert_repro.reproduction.orderings import Ordering
from bert_repro.reproduction.statistics import CONFIDENCE, RESAMPLES, SEED, Comparison
from bert_repro.reproduction.tables import Ours, Row, Table

_DIGITS = 4


def numbers_record(
    runs: Sequence[Run],
    tables: Sequence[Table],
    conditions: Sequence[tuple[Conditions, dict[str, Conditions]]],
    orderings: Sequence[Ordering],
) -> dict[str, Any]:
    """All that the report prints, in the paper's units (percent, perplexities plain), to four digits."""
    return {
        "statistics": {"resamples": RESAMPLES, "confidence": CONFIDENCE, "seed": SEED},
        "tables": [_table(table, parts) for table, parts in zip(tables, conditions, strict=True)],
        "orderings": [_ordering(ordering) for ordering in orderings],
        "probes": {run.name: run.record["probes"] for run in runs if run.record.get("probes")},
    }


def _table(table: Table, conditions: tuple[Conditions, dict[str, Conditions]]) -> dict[str, Any]:
    shared, own = conditions
    return {
        "table": table.key,
        "scale": table.scale,
        "baseline": table.baseline,
        "conditions": shared,
        "rows": [{**_row(row), "conditions": own.get(row.name, {})} for row in table.rows],
    }


def _row(row: Row) -> dict[str, Any]:
    record: dict[str, Any] = {"row": row.name, "paper": dict(row.paper)}
    if row.is_bert:
        record["ours"] = {name: _ours(ours) for name, ours in row.ours.items()} or "not run"
    if row.average is not None:
        record["average"] = {
            "mean": _rounded(row.average),
            "difference": _rounded(row.average_difference),
            "no_difference_because": row.average_reason,
        }
    if row.same_as is not None:
        record["same_as"] = row.same_as
    return record


def _ours(ours: Ours) -> dict[str, Any]:
    return {
        "metric": ours.column.metric,
        "split": ours.column.split,
        "mean": _rounded(ours.mean),
        "deviation": _rounded(ours.deviation),
        "seeds": {str(run.seed): _rounded(score) for run, score in zip(ours.runs, ours.scores, strict=True)},
        "collapsed": ours.collapsed,
        "interval": None if ours.low is None else [_rounded(ours.low), _rounded(ours.high)],
        "against_baseline": _comparison(ours.comparison),
        "difference": _rounded(ours.difference),
        "no_difference_because": ours.reason,
        "runs": [run.name for run in ours.runs],
    }


def _comparison(found: Comparison | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "difference": _rounded(found.difference),
        "interval": [_rounded(found.low), _rounded(found.high)],
        "p_value": _rounded(found.p_value),
        "paired_seeds": found.paired_seeds,
    }


def _ordering(ordering: Ordering) -> dict[str, Any]:
    return {
        "table": ordering.table,
        "scale": ordering.scale,
        "statement": ordering.statement,
        "column": ordering.column,
        "verdict": ordering.verdict,
        "paper": _rounded(ordering.paper),
        "ours": _comparison(ordering.ours) or _rounded(ordering.untested),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, _DIGITS)
