"""Scores of the paper's tasks as plain functions, and the same functions as `evaluate.Metric` objects.

Every score is a plain Python float and a fraction: accuracy, F1 and entity F1 lie in [0, 1], correlations in [-1, 1].
The paper prints them times 100. No score is ever NaN: what a degenerate input gives is said at each function.

The keys of `METRICS` are the Hub's metric ids, so they can stand in a model card as they are.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from bert_repro.errors import NonFiniteError

if TYPE_CHECKING:
    import evaluate

Tags = Sequence[Sequence[str]]
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def accuracy(predictions: npt.ArrayLike, references: npt.ArrayLike) -> float:
    """Share of predictions that equal their reference.

    Args:
        predictions: label ids, shape (N,).
        references: label ids, shape (N,).

    Raises:
        ValueError: the lengths differ, or there is nothing to score.
    """
    predicted, expected = _arrays(predictions, references)
    return float(np.mean(predicted == expected))


def f1(predictions: npt.ArrayLike, references: npt.ArrayLike) -> float:
    """F1 of class 1 of two classes (GLUE's MRPC and QQP): 2 TP / (2 TP + FP + FN).

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


def matthews_correlation(predictions: npt.ArrayLike, references: npt.ArrayLike) -> float:
    """Matthews correlation (GLUE's CoLA), for three classes and more its R_K form (the AX diagnostic's R3).

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
    """Pearson correlation (GLUE's STS-B).

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
    """Spearman rank correlation (GLUE's STS-B): Pearson correlation of the ranks, ties sharing their mean rank.

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
    """Entity F1 over all types as the conlleval script counts it (CoNLL-2003; seqeval's default mode, not strict).

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


def is_constant(values: npt.ArrayLike) -> bool:
    """Whether all values are equal: the mark of a collapsed run when they are predictions."""
    array = np.asarray(values)
    return bool((array == array[:1]).all())


@dataclass(frozen=True)
class Metric:
    """A score and what it compares.

    Args:
        function: takes predictions and references, returns a float.
        compares: label ids, numbers, or one list of tags for each sentence.
    """

    function: Callable[[Any, Any], float]
    compares: Literal["labels", "numbers", "tags"]


METRICS: Mapping[str, Metric] = {
    "accuracy": Metric(accuracy, "labels"),
    "f1": Metric(f1, "labels"),
    "matthews_correlation": Metric(matthews_correlation, "labels"),
    "pearson": Metric(pearson, "numbers"),
    "spearmanr": Metric(spearman, "numbers"),
    "entity_f1": Metric(entity_f1, "tags"),
}


def compute(names: Sequence[str], predictions: Any, references: Any) -> dict[str, float]:
    """Several scores of the same predictions.

    Args:
        names: keys of `METRICS`.
        predictions: as the metrics' functions take them.
        references: the same shape.

    Returns:
        One fraction for each name, in the order given.
    """
    return {name: METRICS[name].function(predictions, references) for name in names}


def evaluate_metric(names: Sequence[str]) -> "evaluate.Metric":
    """The scores as one object of the `evaluate` library: `.add_batch(...)`, `.compute(predictions=, references=)`.

    It computes in memory and needs no network. Importing `evaluate` takes about five seconds, hence the function.

    Args:
        names: keys of `METRICS` that compare the same kind of values.

    Raises:
        ValueError: the metrics compare different kinds of values.
    """
    import datasets
    import evaluate

    kinds = {METRICS[name].compares for name in names}
    if len(kinds) != 1:
        raise ValueError(f"metrics {', '.join(names)} do not compare one kind of values")
    value = {
        "labels": datasets.Value("int64"),
        "numbers": datasets.Value("float64"),
        "tags": datasets.List(datasets.Value("string")),
    }[kinds.pop()]

    class BertReproMetric(evaluate.Metric):  # type: ignore[misc]
        """Adapter over `compute`."""

        def _info(self) -> Any:
            return evaluate.MetricInfo(
                description=f"bert_repro: {', '.join(names)}",
                citation="",
                features=datasets.Features({"predictions": value, "references": value}),
            )

        def _compute(self, predictions: Any, references: Any) -> dict[str, float]:
            return compute(names, predictions, references)

    return BertReproMetric(keep_in_memory=True)


def _arrays(predictions: npt.ArrayLike, references: npt.ArrayLike) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    predicted, expected = np.asarray(predictions), np.asarray(references)
    if predicted.shape != expected.shape or predicted.ndim != 1 or predicted.size == 0:
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


# ------------------------------------------------------------------------------------------------------ answers as text


def normalize_answer(text: str) -> str:
    """An answer as SQuAD's scripts compare it: lower case, no ASCII punctuation, no articles, single spaces."""
    kept = text.lower().translate(_NO_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", kept).split())


def answer_scores(prediction: str, references: Sequence[str], *, empty_is_answer: bool = False) -> tuple[float, float]:
    """Exact match and F1 of one answer, each the best over its references, as SQuAD's scripts count them.

    F1 is that of the bags of words of the normalised texts.

    Args:
        prediction: the answer; "" for no answer.
        references: the right answers, at least one.
        empty_is_answer: two texts without words have F1 1 (the v2.0 script, where "" is the right answer of an
            unanswerable question), not 0 (the v1.1 script).

    Returns:
        Exact match (0 or 1) and F1.

    Raises:
        ValueError: there is no reference.
    """
    if not references:
        raise ValueError("an answer needs at least one reference; without one give the empty text")
    predicted = normalize_answer(prediction)
    expected = [normalize_answer(reference) for reference in references]
    overlaps = [_overlap(predicted.split(), words.split(), empty_is_answer) for words in expected]
    return float(predicted in expected), max(overlaps)


def _overlap(predicted: list[str], expected: list[str], empty_is_answer: bool) -> float:
    if not predicted and not expected:
        return float(empty_is_answer)
    common = sum((Counter(predicted) & Counter(expected)).values())
    if not common:
        return 0.0
    # In this form, as the scripts compute it, so that not even the last digit differs.
    precision, recall = common / len(predicted), common / len(expected)
    return 2 * precision * recall / (precision + recall)


def answer_exact_match(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Share of answers that equal one of their references after `normalize_answer` (SQuAD v1.1).

    Args:
        predictions: N answers.
        references: the right answers of each.

    Raises:
        ValueError: the lengths differ, or there is nothing to score.
    """
    return _mean_answer_score(predictions, references, 0)


def answer_f1(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Mean over the answers of their best word F1 (SQuAD v1.1).

    Args:
        predictions: N answers.
        references: the right answers of each.

    Raises:
        ValueError: the lengths differ, or there is nothing to score.
    """
    return _mean_answer_score(predictions, references, 1)


ANSWER_METRICS: Mapping[str, Callable[[Sequence[str], Sequence[Sequence[str]]], float]] = {
    "exact_match": answer_exact_match,
    "f1": answer_f1,
}
"""Scores of answers in words, each beside several right ones; names as in the paper's tables."""


def answer_evaluate_metric() -> "evaluate.Metric":
    """`ANSWER_METRICS` as one object of the `evaluate` library; see `evaluate_metric`."""
    import datasets
    import evaluate

    class BertReproAnswerMetric(evaluate.Metric):  # type: ignore[misc]
        """Adapter over `ANSWER_METRICS`."""

        def _info(self) -> Any:
            text = datasets.Value("string")
            return evaluate.MetricInfo(
                description="bert_repro: exact_match, f1",
                citation="",
                features=datasets.Features({"predictions": text, "references": datasets.List(text)}),
            )

        def _compute(self, predictions: Any, references: Any) -> dict[str, float]:
            return {name: function(predictions, references) for name, function in ANSWER_METRICS.items()}

    return BertReproAnswerMetric(keep_in_memory=True)


def _mean_answer_score(predictions: Sequence[str], references: Sequence[Sequence[str]], which: int) -> float:
    if not predictions or len(predictions) != len(references):
        raise ValueError(f"{len(predictions)} answers and {len(references)} references; need as many, not 0")
    scores = [answer_scores(*pair)[which] for pair in zip(predictions, references, strict=True)]
    return sum(scores) / len(scores)
