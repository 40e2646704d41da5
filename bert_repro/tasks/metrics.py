"""Scores of the tasks as plain functions, and as objects of the `evaluate` library (`load_metric`).

Every score is a plain Python float and a fraction: accuracy, F1 and entity F1 lie in [0, 1], correlations in [-1, 1].
The paper prints them times 100. No score is ever NaN: what a degenerate input gives is said at each function. The keys
of `METRICS` are the Hub's metric ids, so they can be in a model card as they are.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bert_repro.configs.base import did_you_mean
from bert_repro.errors import NonFiniteError, UserError

if TYPE_CHECKING:
    import evaluate

Tags = Sequence[Sequence[str]]


def accuracy(predictions: npt.ArrayLike, references: npt.ArrayLike) -> float:
    """Computes the share of predictions that equal their reference; label ids, (N,)."""
    predicted, expected = _arrays(predictions, references)
    return float(np.mean(predicted == expected))


def f1(average: str, predictions: npt.ArrayLike, references: npt.ArrayLike) -> float:
    """Computes F1: 2 TP / (2 TP + FP + FN); label ids, (N,), or zeros and ones, (N, labels).

    Args:
        average: `binary`, of class 1 of two classes (GLUE's MRPC and QQP), 0 when it is neither predicted nor present;
            over all labels that are predicted or present: `macro`, each label counts the same; `weighted`, by the rows
            that have it; `micro`, over all decisions.
        predictions: the labels predicted.
        references: the true labels.
    """
    from sklearn.metrics import f1_score

    predicted, expected = _arrays(predictions, references)
    return float(f1_score(expected, predicted, average=average, zero_division=0.0))


def exact_match(predictions: npt.ArrayLike, references: npt.ArrayLike) -> float:
    """Computes the share of rows whose labels are all correct; zeros and ones, (N, labels)."""
    predicted, expected = _arrays(predictions, references)
    return float(np.mean((predicted == expected).all(axis=1)))


def matthews_correlation(predictions: npt.ArrayLike, references: npt.ArrayLike) -> float:
    """Computes Matthews correlation (GLUE's CoLA), for three classes and more its R_K form (the AX diagnostic's R3).

    0 when predictions or references are constant; label ids, (N,).
    """
    from sklearn.metrics import matthews_corrcoef

    predicted, expected = _arrays(predictions, references)
    if np.ptp(predicted) == 0 or np.ptp(expected) == 0:
        return 0.0
    return float(matthews_corrcoef(expected, predicted))


def pearson(predictions: npt.ArrayLike, references: npt.ArrayLike) -> float:
    """Computes Pearson correlation (GLUE's STS-B) of numbers, (N,); see `_correlation`."""
    from scipy.stats import pearsonr

    return _correlation(pearsonr, predictions, references)


def spearman(predictions: npt.ArrayLike, references: npt.ArrayLike) -> float:
    """Computes Spearman correlation (GLUE's STS-B): that of the ranks, ties sharing their mean rank."""
    from scipy.stats import spearmanr

    return _correlation(spearmanr, predictions, references)


def entity_f1(predictions: Tags, references: Tags) -> float:
    """Computes entity F1 as the conlleval script counts it (CoNLL-2003; seqeval's default mode, not strict).

    An entity counts when its type and both ends agree; one never reaches over the end of a sentence. 0 when no
    entity is predicted or none present.

    Args:
        predictions: a list of BIO or IOB tags for each sentence.
        references: the same shape.

    Raises:
        ValueError: sentences or their tags differ in number.
    """
    from seqeval.metrics import f1_score

    return float(f1_score([list(tags) for tags in references], [list(tags) for tags in predictions], zero_division=0))


METRICS: Mapping[str, Callable[[Any, Any], float]] = {
    "accuracy": accuracy,
    "f1": partial(f1, "binary"),
    "macro_f1": partial(f1, "macro"),
    "weighted_f1": partial(f1, "weighted"),
    "micro_f1": partial(f1, "micro"),
    "exact_match": exact_match,
    "matthews_correlation": matthews_correlation,
    "pearson": pearson,
    "spearmanr": spearman,
    "entity_f1": entity_f1,
}


def compute(names: Sequence[str], predictions: Any, references: Any) -> dict[str, float]:
    """Computes several of `METRICS` of the same predictions; one fraction for each name, in the order given."""
    return {name: METRICS[name](predictions, references) for name in names}


def load_metric(name: str, **options: Any) -> "evaluate.Metric":
    """Makes the metric of a task, or a single score, as an object of the `evaluate` library.

    The numbers are those of the Hub's metrics of the same name, as fractions; nothing is read from the Hub. For `squad`
    and `squad_v2` the inputs are those of the Hub's metrics; `no_answer_probability` may be any number that orders the
    questions, and `compute` takes `no_answer_threshold` (default 1).

        import bert_repro

        metric = bert_repro.load_metric("mrpc")
        print(metric.compute(predictions=[0, 1, 1], references=[0, 1, 0]))  # accuracy and f1: 0.667

    Args:
        name: a task (`mrpc`, `squad_v2`, `conll2003` ...), `mnli_matched`, `mnli_mismatched`, `seqeval`, or a key of
            `METRICS`.
        options: of `evaluate.Metric`, such as `num_process`, `process_id` and `experiment_id` where several processes
            add batches.

    Raises:
        UserError: there is no such metric.
    """
    import evaluate
    from datasets import Features, List, Value

    from bert_repro.tasks import TASKS
    from bert_repro.tasks.squad_scoring import scores_by_id

    hub_names = {"mnli_matched": "mnli", "mnli_mismatched": "mnli", "seqeval": "conll2003"}
    task = TASKS.get(hub_names.get(name, name))
    if task is None and name not in METRICS:
        known = [*TASKS, *hub_names, *METRICS]
        raise UserError(f"there is no metric {name!r}; {did_you_mean(name, known) or 'known are ' + ', '.join(known)}")
    names = (name,) if task is None else task.metrics
    of_questions = task is not None and task.name in ("squad", "squad_v2")
    if of_questions:
        answers = {"text": List(Value("string")), "answer_start": List(Value("int32"))}
        prediction = {"id": Value("string"), "prediction_text": Value("string")}
        if name == "squad_v2":
            prediction["no_answer_probability"] = Value("float64")
        features = {"predictions": prediction, "references": {"id": Value("string"), "answers": answers}}
    elif "entity_f1" in names:
        features = dict.fromkeys(("predictions", "references"), List(Value("string")))
    elif set(names) & {"micro_f1", "exact_match"}:
        features = dict.fromkeys(("predictions", "references"), List(Value("int64")))
    else:
        kind = "float64" if set(names) & {"pearson", "spearmanr"} else "int64"
        features = dict.fromkeys(("predictions", "references"), Value(kind))

    class TaskMetric(evaluate.Metric):  # type: ignore[misc]
        def _info(self) -> Any:
            return evaluate.MetricInfo(description=", ".join(names), citation="", features=Features(features))

        def _compute(self, predictions: Any, references: Any, no_answer_threshold: float = 1.0) -> dict[str, float]:
            if of_questions:
                return scores_by_id(predictions, references, no_answer_threshold if name == "squad_v2" else None)
            return compute(names, predictions, references)

    options.setdefault("keep_in_memory", options.get("num_process", 1) == 1)
    return TaskMetric(config_name=name, **options)


def _arrays(predictions: npt.ArrayLike, references: npt.ArrayLike) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    predicted, expected = np.asarray(predictions), np.asarray(references)
    if predicted.shape != expected.shape or predicted.size == 0:
        raise ValueError(f"predictions {predicted.shape} and references {expected.shape}: give one shape, not empty")
    return predicted, expected


def _correlation(function: Callable[..., Any], predictions: npt.ArrayLike, references: npt.ArrayLike) -> float:
    """Undefined when predictions or references are constant; 0 then (our choice), as no relation is shown."""
    predicted, expected = (values.astype(np.float64) for values in _arrays(predictions, references))
    if not (np.isfinite(predicted).all() and np.isfinite(expected).all()):
        raise NonFiniteError("a correlation needs finite numbers")
    is_constant = np.ptp(predicted) == 0 or np.ptp(expected) == 0
    return 0.0 if is_constant else float(function(predicted, expected)[0])
