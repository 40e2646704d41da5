"""The scores of SQuAD v1.1 and v2.0: exact match, F1, and for v2.0 the threshold for no answer.

All numbers are those of the official scripts to the last digit, as fractions (the scripts print percentages).

Shape legend: `N` questions.
"""

import logging
import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from bert_repro.configs import SquadScoringConfig
from bert_repro.errors import UserError
from bert_repro.tasks.data import read_file
from bert_repro.tasks.evaluate_metrics import make_metric
from bert_repro.tasks.squad_questions import answer_texts, questions_of
from bert_repro.utils.readers import quoted, read_json_object

if TYPE_CHECKING:
    import datasets
    import evaluate

logger = logging.getLogger("bert_repro")

Float64Array = npt.NDArray[np.float64]
HubRow: TypeAlias = Mapping[str, Any]
"""A prediction or a reference in the form of the Hub's metrics."""
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


# --- The recipe -------------------------------------------------------------------------------------------------------


def score_squad(config: SquadScoringConfig) -> dict[str, float]:
    """Scores a file of predictions.

    Returns:
        `exact_match` and `f1` of the texts as they are. For v2.0 also the scores of questions with and without an
        answer and, if null odds are given, the best thresholds.

    Raises:
        UserError: a file is not in the right form, or a prediction or null score is missing.
    """
    unanswerable = config.task_name == "squad_v2"
    dataset = questions_of(read_file(Path(config.data_file)), config.data_file, unanswerable=unanswerable)
    if "answers" not in dataset.column_names:
        raise UserError(
            f"{config.data_file}: its questions have no answers to score against. Choose a labelled file.",
            setting="data_file",
        )
    texts = _texts_by_id(Path(config.predictions_file), dataset)
    questions = score_questions(texts, answer_texts(dataset), unanswerable=unanswerable)
    scores = questions.summary()
    if config.null_odds_file:
        null_odds = _numbers_by_id(Path(config.null_odds_file), dataset)
        scores |= threshold_report(questions, null_odds)
    logger.info("%d questions: %s", len(texts), ", ".join(f"{name} {value:.6f}" for name, value in scores.items()))
    return scores


def _texts_by_id(path: Path, dataset: "datasets.Dataset") -> list[str]:
    texts = _values_by_id(path, dataset)
    for identity, text in zip(dataset["id"], texts, strict=True):
        if not isinstance(text, str):
            raise UserError(
                f"{path}: the answer to question {quoted(identity)} is {quoted(text)}. It must be a text, empty for no "
                "answer.",
                setting="predictions_file",
            )
    return texts


def _numbers_by_id(path: Path, dataset: "datasets.Dataset") -> Float64Array:
    numbers = _values_by_id(path, dataset)
    for identity, number in zip(dataset["id"], numbers, strict=True):
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise UserError(
                f"{path}: the null score of question {quoted(identity)} is {quoted(number)}. It must be a number.",
                setting="null_odds_file",
            )
    return np.array(numbers, dtype=np.float64)


def _values_by_id(path: Path, dataset: "datasets.Dataset") -> list[Any]:
    """Reads a JSON object with a value for each question. Entries for other questions are left out.

    Returns:
        The values in the order of the split.

    Raises:
        UserError: the file is not a JSON object, or the entry of a question is missing.
    """
    content = read_json_object(path)
    missing_ids = [identity for identity in dataset["id"] if identity not in content]
    if missing_ids:
        raise UserError(
            f"{path}: no entry for question {quoted(missing_ids[0])} ({len(missing_ids)} of {len(dataset)} are "
            "missing). Predict every question, or choose the data file that the predictions were made for."
        )
    return [content[identity] for identity in dataset["id"]]


# --- Scores of one answer ---------------------------------------------------------------------------------------------


def normalize_answer(text: str) -> str:
    """Rewrites an answer as SQuAD's scripts compare it: lower case, no ASCII punctuation or articles, single spaces."""
    without_punctuation = text.lower().translate(_NO_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", without_punctuation).split())


def answer_scores(prediction: str, references: Sequence[str], *, empty_is_answer: bool = False) -> tuple[float, float]:
    """Computes exact match and F1 of one answer as SQuAD's scripts do; each is the best over the references.

    F1 compares the bags of words of the normalized texts.

    Args:
        prediction: the answer; "" for no answer.
        references: the right answers, at least one.
        empty_is_answer: whether two texts without words have F1 1, as in the v2.0 script, in which "" is the right
            answer to an unanswerable question. In the v1.1 script they have F1 0.

    Returns:
        Exact match (0 or 1) and F1.

    Raises:
        ValueError: there is no reference.
    """
    predicted = normalize_answer(prediction)
    expected = [normalize_answer(reference) for reference in references]
    f1_scores = [_f1(predicted.split(), reference.split(), empty_is_answer) for reference in expected]
    return float(predicted in expected), max(f1_scores)


def _f1(predicted: list[str], expected: list[str], empty_is_answer: bool) -> float:
    """Computes F1 of two bags of words."""
    if not predicted and not expected:
        return float(empty_is_answer)
    num_common = sum((Counter(predicted) & Counter(expected)).values())
    if not num_common:
        return 0.0
    # The scripts compute it in this way. An equal formula would differ in the last digit.
    precision = num_common / len(predicted)
    recall = num_common / len(expected)
    return 2 * precision * recall / (precision + recall)


# --- Scores of a split ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class QuestionScores:
    """The scores of every question's text, before a threshold is applied.

    Args:
        exact_match: exact match of the text, float64 [N].
        f1: F1 of the text, float64 [N].
        has_answer: whether the question has a right answer, bool [N].
        is_answered: whether the text is not empty, bool [N].
    """

    exact_match: Float64Array
    f1: Float64Array
    has_answer: npt.NDArray[np.bool_]
    is_answered: npt.NDArray[np.bool_]

    def at(self, null_odds: Float64Array, threshold: float) -> "QuestionScores":
        """Returns the scores if questions whose null odds exceed the threshold are left unanswered.

        Args:
            null_odds: score of no answer minus the score of the best answer, float64 [N].
            threshold: `null_score_diff_threshold`.
        """
        is_null = null_odds > threshold
        # A question without an answer is then right, one with an answer is wrong.
        null_scores = (~self.has_answer).astype(np.float64)
        return QuestionScores(
            exact_match=np.where(is_null, null_scores, self.exact_match),
            f1=np.where(is_null, null_scores, self.f1),
            has_answer=self.has_answer,
            is_answered=self.is_answered & ~is_null,
        )

    def summary(self) -> dict[str, float]:
        """Returns `exact_match` and `f1` over all questions. If some have no answer, also over either kind.

        Over questions without an answer, both scores are the share that is left unanswered, so there is one number.
        """
        summary = {"exact_match": _mean(self.exact_match), "f1": _mean(self.f1)}
        if self.has_answer.all():
            return summary
        summary["no_answer_accuracy"] = _mean(self.f1[~self.has_answer])
        if self.has_answer.any():
            summary["has_answer_exact_match"] = _mean(self.exact_match[self.has_answer])
            summary["has_answer_f1"] = _mean(self.f1[self.has_answer])
        return summary


def score_questions(texts: Sequence[str], answers: Sequence[Sequence[str]], *, unanswerable: bool) -> QuestionScores:
    """Scores texts against the right answers.

    Args:
        texts: the predicted answers to N questions; "" for none.
        answers: the right answers to each question; empty for an unanswerable one.
        unanswerable: whether to count as the v2.0 script does.
    """
    rows = []
    for text, references in zip(texts, answers, strict=True):
        if unanswerable:
            # The v2.0 script leaves out references without a word. If none is left, "" is the right answer.
            references = [reference for reference in references if normalize_answer(reference)] or [""]
        rows.append(answer_scores(text, references, empty_is_answer=unanswerable))
    exact_match, f1 = np.array(rows, dtype=np.float64).reshape(-1, 2).T
    return QuestionScores(
        exact_match,
        f1,
        has_answer=np.array([bool(references) for references in answers]),
        is_answered=np.array([bool(text) for text in texts]),
    )


def scores_by_id(
    predictions: Sequence[HubRow], references: Sequence[HubRow], threshold: float | None
) -> dict[str, float]:
    """Scores predictions in the form of the Hub's metrics `squad` and `squad_v2`.

    Args:
        predictions: `id`, `prediction_text` and, for v2.0, `no_answer_probability`, which may be any number.
        references: `id` and `answers` (`text`).
        threshold: for v2.0, a question counts as unanswered if its number exceeds this; None for v1.1.

    Raises:
        ValueError: a question has no prediction.
    """
    by_id = {prediction["id"]: prediction for prediction in predictions}
    ordered = []
    for reference in references:
        if reference["id"] not in by_id:
            raise ValueError(f"question {reference['id']!r} has no prediction; predict every question")
        ordered.append(by_id[reference["id"]])
    texts = [prediction["prediction_text"] for prediction in ordered]
    answers = [reference["answers"]["text"] for reference in references]
    questions = score_questions(texts, answers, unanswerable=threshold is not None)
    if threshold is None:
        return questions.summary()
    null_odds = np.array([prediction["no_answer_probability"] for prediction in ordered], dtype=np.float64)
    return scores_at_threshold(questions, null_odds, threshold)


def question_metric(name: str, **options: Any) -> "evaluate.Metric":
    """Returns the metric object of SQuAD, whose inputs have the form of the Hub's metric; see `scores_by_id`.

    Args:
        name: `squad`, or `squad_v2`, whose `compute` also accepts `no_answer_threshold` (default 1).
        options: arguments of `evaluate.Metric`.
    """
    from datasets import List, Value

    prediction = {"id": Value("string"), "prediction_text": Value("string")}
    answers = {"text": List(Value("string")), "answer_start": List(Value("int32"))}
    reference = {"id": Value("string"), "answers": answers}
    scores_of = _squad_scores
    if name == "squad_v2":
        prediction["no_answer_probability"] = Value("float64")
        scores_of = _squad_v2_scores
    column_types = {"predictions": prediction, "references": reference}
    return make_metric("exact_match, f1", column_types, scores_of, config_name=name, **options)


def _squad_scores(predictions: Sequence[HubRow], references: Sequence[HubRow]) -> dict[str, float]:
    return scores_by_id(predictions, references, None)


def _squad_v2_scores(
    predictions: Sequence[HubRow], references: Sequence[HubRow], no_answer_threshold: float = 1.0
) -> dict[str, float]:
    return scores_by_id(predictions, references, no_answer_threshold)


# --- The threshold of v2.0 (paper 4.3) --------------------------------------------------------------------------------


def scores_at_threshold(questions: QuestionScores, null_odds: Float64Array, threshold: float) -> dict[str, float]:
    """Returns the scores of v2.0 at a threshold, at 0 and at the best thresholds.

    Args:
        questions: the scores of every question's text.
        null_odds: score of no answer minus the score of the best answer, float64 [N].
        threshold: a question is left unanswered if its null odds exceed this (`null_score_diff_threshold`).
    """
    at_zero = questions.at(null_odds, 0.0).summary()
    return {
        **questions.at(null_odds, threshold).summary(),
        "null_score_diff_threshold": threshold,
        "exact_match_at_0": at_zero["exact_match"],
        "f1_at_0": at_zero["f1"],
        **threshold_report(questions, null_odds),
    }


def threshold_report(questions: QuestionScores, null_odds: Float64Array) -> dict[str, float]:
    """Returns the best exact match and the best F1 over all thresholds, each with its threshold."""
    best_exact_match, exact_match_threshold = best_threshold(questions.exact_match, questions, null_odds)
    best_f1, f1_threshold = best_threshold(questions.f1, questions, null_odds)
    return {
        "best_exact_match": best_exact_match,
        "best_exact_match_threshold": exact_match_threshold,
        "best_f1": best_f1,
        "best_f1_threshold": f1_threshold,
    }


def best_threshold(scores: Float64Array, questions: QuestionScores, null_odds: Float64Array) -> tuple[float, float]:
    """Finds the threshold on the null odds with the best mean score, as the v2.0 script does.

    At first no question is answered. Then questions are answered in the order of their null odds. The first threshold
    that reaches the best sum is chosen; 0 if no answer improves the sum.

    Args:
        scores: exact match or F1 of each question's text, float64 [N].
        questions: the questions.
        null_odds: score of no answer minus the score of the best answer, float64 [N].

    Returns:
        The best mean and its threshold.
    """
    order = np.argsort(null_odds, kind="stable")
    # Answering a question with an answer adds its score. Answering one without loses its point.
    lost_points = questions.is_answered.astype(np.float64)
    gains = np.where(questions.has_answer, scores, -lost_points)[order]
    score_of_no_answers = float((~questions.has_answer).sum())
    # The script adds one gain after another to the count, and the last digit decides between equal sums.
    sums = np.cumsum(np.concatenate([[score_of_no_answers], gains]))
    num_answered = int(sums.argmax())
    best_mean = float(sums[num_answered] / len(scores))
    if num_answered == 0:
        return best_mean, 0.0
    return best_mean, float(null_odds[order[num_answered - 1]])


def _mean(values: Float64Array) -> float:
    # The scripts sum one after another. NumPy's pairwise sum would differ in the last digit.
    total: float = sum(values.tolist())
    return total / len(values)
