"""Computes scores with metric objects of the `evaluate` library, without its Hub and without files.

All scores of the package are computed here: a run that scores a split calls the same object that a user gets from
`bert_repro.load_metric`.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from bert_repro.tasks.metrics import compute

if TYPE_CHECKING:
    import evaluate

ColumnTypes: TypeAlias = Mapping[str, Any]
"""Column names -> feature types of the `datasets` library."""

_ENTITY_METRICS = {"entity_f1"}
_MULTI_LABEL_METRICS = {"micro_f1", "exact_match"}
_NUMBER_METRICS = {"pearson", "spearmanr"}


def compute_metrics(names: Sequence[str], predictions: Sequence[Any], references: Sequence[Any]) -> dict[str, float]:
    """Computes several metrics of the same predictions.

    Args:
        names: keys of `bert_repro.tasks.metrics.METRICS`.
        predictions: label ids, numbers, zeros and ones for each label, or tags of each sentence; N of them.
        references: the true values, in the same form.

    Returns:
        Metric -> score, in the order of `names`.

    Raises:
        ValueError: predictions and references differ in length or are empty.
        NonFiniteError: a number is not finite.
    """
    metric = _shared_metric(tuple(names))
    try:
        scores: dict[str, float] = metric.compute(predictions=predictions, references=references)
    except BaseException:
        # The object still contains the rows of the failed call, which must not count in the next one.
        _shared_metric.cache_clear()
        raise
    return scores


@functools.cache
def _shared_metric(names: tuple[str, ...]) -> "evaluate.Metric":
    # Creating the object costs more than scoring a small dev set, and it is empty after each call.
    return metric_of(names)


def metric_of(names: Sequence[str], **options: Any) -> "evaluate.Metric":
    """Returns a metric object that computes one or more of `bert_repro.tasks.metrics.METRICS`.

    Args:
        names: keys of `METRICS`.
        options: see `make_metric`.
    """
    from datasets import List, Value

    if _ENTITY_METRICS.intersection(names):
        column_type = List(Value("string"))
    elif _MULTI_LABEL_METRICS.intersection(names):
        column_type = List(Value("int64"))
    elif _NUMBER_METRICS.intersection(names):
        column_type = Value("float64")
    else:
        column_type = Value("int64")
    column_types = {"predictions": column_type, "references": column_type}
    return make_metric(", ".join(names), column_types, functools.partial(compute, tuple(names)), **options)


def make_metric(
    description: str, column_types: ColumnTypes, function: Callable[..., dict[str, float]], **options: Any
) -> "evaluate.Metric":
    """Returns a metric object of the `evaluate` library that computes its scores with a function.

    Args:
        description: what it computes.
        column_types: the types of `predictions` and `references`.
        function: takes predictions, references and further settings of `compute`; returns metric -> score.
        options: arguments of `evaluate.Metric`, for example `num_process`, `process_id` and `experiment_id` if several
            processes add rows. With one process, the rows stay in memory.
    """
    options.setdefault("keep_in_memory", options.get("num_process", 1) == 1)
    metric: evaluate.Metric = _metric_class()(description, column_types, function, options)
    return metric


@functools.cache
def _metric_class() -> type:
    # Importing evaluate takes a moment and is only needed for scores.
    import evaluate
    from datasets import Features

    class TaskMetric(evaluate.Metric):  # type: ignore[misc]
        """A metric that computes its scores with a function."""

        def __init__(
            self,
            description: str,
            column_types: ColumnTypes,
            function: Callable[..., dict[str, float]],
            options: Mapping[str, Any],
        ) -> None:
            # The base class asks for the description while it is initialized.
            self._description_and_types = description, column_types
            self._function = function
            self._uses_files = not options["keep_in_memory"]
            super().__init__(**options)

        def _info(self) -> "evaluate.MetricInfo":
            description, column_types = self._description_and_types
            return evaluate.MetricInfo(description=description, citation="", features=Features(column_types))

        def _build_data_dir(self) -> str:
            # Rows in memory need no folder, and the home folder may be read-only.
            return str(super()._build_data_dir()) if self._uses_files else ""

        def _compute(
            self, predictions: Sequence[Any], references: Sequence[Any], **settings: float
        ) -> dict[str, float]:
            return self._function(predictions, references, **settings)

    return TaskMetric
