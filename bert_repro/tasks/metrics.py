"""Computes the scores of the tasks, as plain functions. `evaluate_metrics.py` makes metric objects of them.

Every score is a plain Python float and a fraction: accuracy, F1 and entity F1 are in [0, 1], correlations in [-1, 1].
The paper prints them times 100. No score is ever NaN; each function says what it returns where the formula is
undefined. The keys of `METRICS` are the Hub's ids of metrics, so a model card can use them as they are.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from bert_repro.errors import NonFiniteError

Tags = Sequence[Sequence[str]]


def accuracy(predictions: npt.ArrayLike, references: npt.ArrayLike) -> float:
    """Computes the share of predictions that equal their reference; label ids, (N,)."""
    predicted, expected = _arrays(predictions, references)
    return float(np.mean(predicted == expected))


def f1(average: str, predictions: npt.ArrayLike, references: npt.ArrayLike) -> float:
    """Computes F1 = 2 TP / (2 TP + FP + FN); label ids, (N,), or zeros and ones, (N, labels).

    Args:
        average: `binary`: F1 of class 1 of two classes (GLUE's MRPC and QQP), 0 if that class is neither predicted nor
            present. The others average over all labels that are predicted or present: `macro` counts each label
            equally, `weighted` by the number of rows that have it, `micro` counts each decision equally.
        predictions: the predicted labels.
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
    """Computes Matthews correlation (GLUE's CoLA); for three or more classes its form R_K (the AX diagnostic's R3).

    Label ids, (N,). Returns 0 if predictions or references are constant, where the formula is undefined.
    """
    from sklearn.metrics import matthews_corrcoef

    predicted, expected = _arrays(predictions, references)
    if _is_constant(predicted) or _is_constant(expected):
        return 0.0
    return float(matthews_corrcoef(expected, predicted))


def pearson(predictions: npt.ArrayLike, references: npt.ArrayLike) -> float:
    """Computes Pearson correlation (GLUE's STS-B) of numbers, (N,); see `_correlation`."""
    from scipy.stats import pearsonr

    return _correlation(pearsonr, predictions, references)


def spearman(predictions: npt.ArrayLike, references: npt.ArrayLike) -> float:
    """Computes Spearman correlation (GLUE's STS-B): that of the ranks. Equal numbers share their mean rank."""
    from scipy.stats import spearmanr

    return _correlation(spearmanr, predictions, references)


def entity_f1(predictions: Tags, references: Tags) -> float:
    """Computes entity F1 as the conlleval script counts it (CoNLL-2003; seqeval's default mode, not strict).

    An entity is correct if its type and both ends are. An entity never extends beyond its sentence. Returns 0 if no
    entity is predicted or none is present.

    Args:
        predictions: a list of BIO or IOB tags for each sentence.
        references: the true tags, in the same form.

    Raises:
        ValueError: the sentences or their tags differ in number.
    """
    from seqeval.metrics import f1_score

    predicted = [list(tags) for tags in predictions]
    expected = [list(tags) for tags in references]
    return float(f1_score(expected, predicted, zero_division=0))


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
    """Computes several of `METRICS` for the same predictions: metric -> score, in the order of `names`."""
    return {name: METRICS[name](predictions, references) for name in names}


def _arrays(predictions: npt.ArrayLike, references: npt.ArrayLike) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    predicted, expected = np.asarray(predictions), np.asarray(references)
    if predicted.shape != expected.shape or predicted.size == 0:
        raise ValueError(
            f"predictions have the shape {predicted.shape} and references {expected.shape}; both must have the same "
            "shape, with at least one row"
        )
    return predicted, expected


def _correlation(function: Callable[..., Any], predictions: npt.ArrayLike, references: npt.ArrayLike) -> float:
    """Computes a correlation of numbers.

    It is undefined if predictions or references are constant. Returns 0 then (our choice), because constant numbers
    show no relation.
    """
    predicted, expected = _arrays(predictions, references)
    predicted, expected = predicted.astype(np.float64), expected.astype(np.float64)
    if not (np.isfinite(predicted).all() and np.isfinite(expected).all()):
        raise NonFiniteError("A correlation requires finite numbers.")
    if _is_constant(predicted) or _is_constant(expected):
        return 0.0
    return float(function(predicted, expected)[0])


def _is_constant(values: npt.NDArray[Any]) -> bool:
    return bool(np.ptp(values) == 0)
