"""Makes the metric objects that users load by the name of a task or a metric (`bert_repro.load_metric`)."""

from typing import TYPE_CHECKING, Any

from bert_repro.configs.base import did_you_mean
from bert_repro.errors import UserError
from bert_repro.tasks import TASKS
from bert_repro.tasks.evaluate_metrics import metric_of
from bert_repro.tasks.metrics import METRICS
from bert_repro.tasks.squad_scoring import question_metric

if TYPE_CHECKING:
    import evaluate

OTHER_NAMES = {"mnli_matched": "mnli", "mnli_mismatched": "mnli", "seqeval": "conll2003"}
"""Names of the Hub's metrics -> the tasks that they belong to."""
QUESTION_TASKS = ("squad", "squad_v2")


def load_metric(name: str, **options: Any) -> "evaluate.Metric":
    """Makes the metric of a task, or a single score, as an object of the `evaluate` library.

    The scores are those of the Hub's metrics of the same name, as fractions. Nothing is read from the Hub. For `squad`
    and `squad_v2` the inputs are those of the Hub's metrics; `no_answer_probability` may be any number that orders the
    questions, and `compute` accepts `no_answer_threshold` (default 1).

        import bert_repro

        metric = bert_repro.load_metric("mrpc")
        print(metric.compute(predictions=[0, 1, 1], references=[0, 1, 0]))  # accuracy and f1: 0.667

    Args:
        name: a task (`mrpc`, `squad_v2`, `conll2003` ...), `mnli_matched`, `mnli_mismatched`, `seqeval`, or a key of
            `METRICS`.
        options: arguments of `evaluate.Metric`, for example `num_process`, `process_id` and `experiment_id` if several
            processes add batches.

    Raises:
        UserError: there is no such metric.
    """
    if name in QUESTION_TASKS:
        return question_metric(name, **options)
    task = TASKS.get(OTHER_NAMES.get(name, name))
    if task is not None:
        return metric_of(task.metrics, config_name=name, **options)
    if name in METRICS:
        return metric_of((name,), config_name=name, **options)

    known_names = [*TASKS, *OTHER_NAMES, *METRICS]
    advice = did_you_mean(name, known_names) or f"the names are {', '.join(known_names)}"
    raise UserError(f"there is no metric {name!r}; {advice}")
