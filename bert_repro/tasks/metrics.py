"""Scores of the tasks as plain functions, and as objects of the `evaluate` library, through which the recipes score.

Every score is a plain Python float and a fraction: accuracy, F1 and entity F1 lie in [0, 1], correlations in [-1, 1].
The paper prints them times 100. No score is ever NaN: what a degenerate input gives is said at each function. The keys
of `METRICS` are the Hub's metric ids, so they can be in a model card as they are.

An object computes on this machine alone and takes the options of `evaluate.Metric`: batches can be added one by one or
by several processes, and `evaluate.combine` joins objects. Importing `evaluate` takes seconds, so this module is
imported where something is scored.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import datasets
import evaluate
import numpy as np
import numpy.typing as npt

from bert_repro.errors import NonFiniteError
from bert_repro.tasks.base import is_constant
from bert_repro.tasks.squad import scoring

Tags = Sequence[Sequence[str]]


def accuracy(predictions: npt.ArrayLike, references: npt.ArrayLike) -> float:
    """Computes the share of predictions that equal their reference.

    Args:
        predictions: label ids, shape (N,).
        references: label ids, shape (N,).

    Raises:
        ValueError: the lengths differ, or there is nothing to score.
    """
    predicted, expected = _arrays(predictions, references)
    return float(np.mean(predicted == expected))


def f1(predictions: npt.ArrayLike, references: npt.ArrayLike) -> float:
    """Computes F1 of class 1 of two classes (GLUE's MRPC and QQP): 2 TP / (2 TP + FP + FN).

    0 when class 1 is neither predicted nor present.

    Args:
        predictions: label ids 0 or 1, shape (N,).
        references: label ids 0 or 1, shape (N,).

    Raises:
        ValueError: the lengths differ, there is nothing to score, or a label is neither 0 nor 1.
    """
    from sklearn.metrics import f1_score

    predicted, expected = _arrays(predictions, references)
    if not np.isin(np.concatenate([predicted, expected]), (0, 1)).all():
        raise ValueError("f1 is the score of class 1 of two classes; labels must be 0 or 1")
    return float(f1_score(expected, predicted, pos_label=1, zero_division=0.0))


def macro_f1(predictions: npt.ArrayLike, references: npt.ArrayLike) -> float:
    """Computes the mean of the F1 of every label that is predicted or present, each counting the same.

    Args:
        predictions: label ids, shape (N,), or zeros and ones for several labels a row, (N, labels).
        references: the same shape.

    Raises:
        ValueError: the shapes differ, or there is nothing to score.
    """
    return _averaged_f1(predictions, references, "macro")


def weighted_f1(predictions: npt.ArrayLike, references: npt.ArrayLike) -> float:
    """Computes the mean of the F1 of every label, weighted by the rows that have it; otherwise as `macro_f1`."""
    return _averaged_f1(predictions, references, "weighted")


def micro_f1(predictions: npt.ArrayLike, references: npt.ArrayLike) -> float:
    """Computes F1 over all decisions of rows that may have several labels; shapes (N, labels)."""
    return _averaged_f1(predictions, references, "micro")


def exact_match(predictions: npt.ArrayLike, references: npt.ArrayLike) -> float:
    """Computes the share of rows whose labels are all correct; zeros and ones, shapes (N, labels)."""
    predicted, expected = _arrays(predictions, references, dimensions=2)
    return float(np.mean((predicted == expected).all(axis=1)))


def matthews_correlation(predictions: npt.ArrayLike, references: npt.ArrayLike) -> float:
    """Computes Matthews correlation (GLUE's CoLA), for three classes and more its R_K form (the AX diagnostic's R3).

    0 when predictions or references are constant.

    Args:
        predictions: label ids, shape (N,).
        references: label ids, shape (N,).

    Raises:
        ValueError: the lengths differ, or there is nothing to score.
    """
    from sklearn.metrics import matthews_corrcoef

    predicted, expected = _arrays(predictions, references)
    if is_constant(predicted) or is_constant(expected):
        return 0.0
    return float(matthews_corrcoef(expected, predicted))


def pearson(predictions: npt.ArrayLike, references: npt.ArrayLike) -> float:
    """Computes Pearson correlation (GLUE's STS-B).

    Undefined when predictions or references are constant; 0 then (our choice), as no linear relation is shown.

    Args:
        predictions: numbers, shape (N,).
        references: numbers, shape (N,).

    Raises:
        ValueError: the lengths differ, or there is nothing to score.
        NonFiniteError: a number is not finite.
    """
    from scipy.stats import pearsonr

    return _correlation(pearsonr, predictions, references)


def spearman(predictions: npt.ArrayLike, references: npt.ArrayLike) -> float:
    """Computes Spearman rank correlation (GLUE's STS-B): that of the ranks, ties sharing their mean rank.

    Undefined when predictions or references are constant; 0 then (our choice).

    Args:
        predictions: numbers, shape (N,).
        references: numbers, shape (N,).

    Raises:
        ValueError: the lengths differ, or there is nothing to score.
        NonFiniteError: a number is not finite.
    """
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
        ValueError: sentences or their tags differ in number, or there is nothing to score.
    """
    from seqeval.metrics import f1_score

    if not references or len(predictions) != len(references):
        raise ValueError(f"{len(predictions)} predicted and {len(references)} reference sentences; need as many, not 0")
    for row, (predicted, expected) in enumerate(zip(predictions, references, strict=True)):
        if len(predicted) != len(expected):
            raise ValueError(f"sentence {row}: {len(predicted)} predicted and {len(expected)} reference tags")
    return float(f1_score([list(tags) for tags in references], [list(tags) for tags in predictions], zero_division=0))


@dataclass(frozen=True)
class Metric:
    """A score and what it compares.

    Args:
        function: takes predictions and references, returns a float.
        compares: label ids, zeros and ones for each label (`label_sets`), numbers, or a list of tags for each sentence.
    """

    function: Callable[[Any, Any], float]
    compares: tuple[Literal["labels", "label_sets", "numbers", "tags"], ...]


METRICS: Mapping[str, Metric] = {
    "accuracy": Metric(accuracy, ("labels",)),
    "f1": Metric(f1, ("labels",)),
    "macro_f1": Metric(macro_f1, ("labels", "label_sets")),
    "weighted_f1": Metric(weighted_f1, ("labels", "label_sets")),
    "micro_f1": Metric(micro_f1, ("label_sets",)),
    "exact_match": Metric(exact_match, ("label_sets",)),
    "matthews_correlation": Metric(matthews_correlation, ("labels",)),
    "pearson": Metric(pearson, ("numbers",)),
    "spearmanr": Metric(spearman, ("numbers",)),
    "entity_f1": Metric(entity_f1, ("tags",)),
}


_HUB_NAMES = {"mnli_matched": "mnli", "mnli_mismatched": "mnli", "seqeval": "conll2003"}
"""Names that the Hub has for the metrics of our tasks."""


def compute(names: Sequence[str], predictions: Any, references: Any) -> dict[str, float]:
    """Computes several scores of the same predictions.

    Args:
        names: keys of `METRICS`.
        predictions: as the metrics' functions take them.
        references: the same shape.

    Returns:
        One fraction for each name, in the order given.
    """
    return {name: METRICS[name].function(predictions, references) for name in names}


def load_metric(name: str, **options: Any) -> evaluate.Metric:
    """Makes the metric of a task, or a single score, as an object of the `evaluate` library.

    The numbers are those of the Hub's metrics of the same name, as fractions; nothing is read from the Hub.

        import bert_repro

        metric = bert_repro.load_metric("mrpc")
        print(metric.compute(predictions=[0, 1, 1], references=[0, 1, 0]))  # accuracy and f1: 0.667

    Args:
        name: a task (`mrpc`, `squad_v2`, `conll2003` ...), `mnli_matched`, `mnli_mismatched`, `seqeval`, or a key of
            `METRICS`.
        options: of `evaluate.Metric`, such as `num_process`, `process_id` and `experiment_id` where several processes
            add batches.

    Raises:
        ValueError: there is no such metric.
    """
    from bert_repro.tasks import TASKS

    task = TASKS.get(_HUB_NAMES.get(name, name))
    if task is not None:
        return task.load_metric(**options)
    if name not in METRICS:
        known = ", ".join([*TASKS, *_HUB_NAMES, *METRICS])
        raise ValueError(f"metric {name!r} is not known; it must be one of: {known}")
    return Scores([name], **options)


_FEATURES = {
    "labels": datasets.Value("int64"),
    "label_sets": datasets.List(datasets.Value("int64")),
    "numbers": datasets.Value("float64"),
    "tags": datasets.List(datasets.Value("string")),
}
_ANSWERS = {"text": datasets.List(datasets.Value("string")), "answer_start": datasets.List(datasets.Value("int32"))}
_QUESTION = {"id": datasets.Value("string"), "answers": _ANSWERS}


class _LocalMetric(evaluate.Metric):  # type: ignore[misc]
    """A metric that keeps what it is given in memory, unless several processes add to it.

    Args:
        config_name: names the object's files, where several processes write some.
        options: of `evaluate.Metric`: `num_process`, `process_id`, `experiment_id`, `cache_dir` ...
    """

    def __init__(self, config_name: str, **options: Any) -> None:
        options.setdefault("keep_in_memory", options.get("num_process", 1) == 1)
        super().__init__(config_name=config_name, **options)

    def _described(self, description: str, predictions: Any, references: Any) -> Any:
        features = datasets.Features({"predictions": predictions, "references": references})
        return evaluate.MetricInfo(description=description, citation="", features=features)


class Scores(_LocalMetric):
    """Several scores of labels, numbers or tags.

    Args:
        names: keys of `METRICS` that compare the same kind of values.
        options: of `evaluate.Metric`.

    Raises:
        ValueError: the scores compare different kinds of values.
    """

    def __init__(self, names: Sequence[str], **options: Any) -> None:
        kinds = [kind for kind in _FEATURES if all(kind in METRICS[name].compares for name in names)]
        if not kinds:
            raise ValueError(f"scores {', '.join(names)} do not compare one kind of values")
        self.names, self._kind = tuple(names), kinds[0]
        super().__init__("-".join(names), **options)

    def _info(self) -> Any:
        feature = _FEATURES[self._kind]
        return self._described(f"{', '.join(self.names)} of {self._kind}, as fractions", feature, feature)

    def _compute(self, predictions: Any, references: Any) -> dict[str, float]:
        return compute(self.names, predictions, references)


class Squad(_LocalMetric):
    """Exact match and F1 of SQuAD v1.1, as fractions; inputs as of the Hub's metric `squad`.

    Predictions are `{"id", "prediction_text"}`, references `{"id", "answers": {"text", "answer_start"}}`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__("squad", **options)

    def _info(self) -> Any:
        prediction = {"id": datasets.Value("string"), "prediction_text": datasets.Value("string")}
        return self._described("exact_match and f1 of SQuAD v1.1, as fractions", prediction, _QUESTION)

    def _compute(
        self, predictions: Sequence[Mapping[str, Any]], references: Sequence[Mapping[str, Any]]
    ) -> dict[str, float]:
        texts = [prediction["prediction_text"] for prediction in _by_question(predictions, references)]
        return scoring.score_questions(texts, _right_answers(references), unanswerable=False).summary()


class SquadV2(_LocalMetric):
    """Exact match and F1 of SQuAD v2.0, as fractions; inputs as of the Hub's metric `squad_v2`.

    Predictions are `{"id", "prediction_text", "no_answer_probability"}`; the last may be any number that orders the
    questions, such as the null odds of BERT. `compute` takes `no_answer_threshold`: a question counts as unanswered
    where the number exceeds it (default 1, as on the Hub).
    """

    def __init__(self, **options: Any) -> None:
        super().__init__("squad_v2", **options)

    def _info(self) -> Any:
        prediction = {
            "id": datasets.Value("string"),
            "prediction_text": datasets.Value("string"),
            "no_answer_probability": datasets.Value("float64"),
        }
        return self._described("exact_match and f1 of SQuAD v2.0, as fractions", prediction, _QUESTION)

    def _compute(
        self,
        predictions: Sequence[Mapping[str, Any]],
        references: Sequence[Mapping[str, Any]],
        no_answer_threshold: float = 1.0,
    ) -> dict[str, float]:
        ordered = _by_question(predictions, references)
        texts = [prediction["prediction_text"] for prediction in ordered]
        odds = np.array([prediction["no_answer_probability"] for prediction in ordered], dtype=np.float64)
        questions = scoring.score_questions(texts, _right_answers(references), unanswerable=True)
        return scoring.scores_at_threshold(questions, odds, no_answer_threshold)


def _by_question(
    predictions: Sequence[Mapping[str, Any]], references: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    by_id = {prediction["id"]: prediction for prediction in predictions}
    for reference in references:
        if reference["id"] not in by_id:
            raise ValueError(f"question {reference['id']!r} has no prediction; predict every question")
    return [by_id[reference["id"]] for reference in references]


def _right_answers(references: Sequence[Mapping[str, Any]]) -> list[Sequence[str]]:
    return [reference["answers"]["text"] for reference in references]


def _averaged_f1(predictions: npt.ArrayLike, references: npt.ArrayLike, average: str) -> float:
    from sklearn.metrics import f1_score

    predicted, expected = _arrays(predictions, references, dimensions=np.asarray(references).ndim)
    return float(f1_score(expected, predicted, average=average, zero_division=0.0))


def _arrays(
    predictions: npt.ArrayLike, references: npt.ArrayLike, *, dimensions: int = 1
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    predicted, expected = np.asarray(predictions), np.asarray(references)
    if predicted.shape != expected.shape or predicted.ndim != dimensions or predicted.size == 0:
        raise ValueError(f"predictions {predicted.shape} and references {expected.shape} must be one equal, full row")
    return predicted, expected


def _correlation(function: Callable[..., Any], predictions: npt.ArrayLike, references: npt.ArrayLike) -> float:
    predicted, expected = _arrays(predictions, references)
    predicted, expected = predicted.astype(np.float64), expected.astype(np.float64)
    if not (np.isfinite(predicted).all() and np.isfinite(expected).all()):
        raise NonFiniteError("a correlation needs finite numbers")
    if is_constant(predicted) or is_constant(expected):
        return 0.0
    return float(function(predicted, expected)[0])
