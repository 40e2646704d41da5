"""Scores of SQuAD v1.1 and v2.0, number by number those of the official scripts, as fractions."""

import logging
import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bert_repro.configs import SquadScoringConfig
from bert_repro.errors import UserError
from bert_repro.tasks.data import read_file
from bert_repro.tasks.squad_windows import questions_of
from bert_repro.utils.readers import read_json_object, shown

if TYPE_CHECKING:
    import datasets

logger = logging.getLogger("bert_repro")

Float64Array = npt.NDArray[np.float64]
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalize_answer(text: str) -> str:
    """Rewrites an answer as SQuAD's scripts compare it: lower case, no ASCII punctuation or articles, single spaces."""
    kept = text.lower().translate(_NO_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", kept).split())


def answer_scores(prediction: str, references: Sequence[str], *, empty_is_answer: bool = False) -> tuple[float, float]:
    """Computes exact match and F1 of one answer, each the best over its references, as SQuAD's scripts count them.

    F1 is that of the bags of words of the normalized texts.

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


@dataclass(frozen=True)
class QuestionScores:
    """The scores of every question's text, before any threshold.

    Args:
        exact_match: (N,).
        f1: (N,).
        has_answer: whether the question has a right answer, (N,).
        is_answered: whether the text is not empty, (N,).
    """

    exact_match: Float64Array
    f1: Float64Array
    has_answer: npt.NDArray[np.bool_]
    is_answered: npt.NDArray[np.bool_]

    def at(self, null_odds: Float64Array, threshold: float) -> "QuestionScores":
        """Returns the scores when a question is left unanswered where its null odds exceed the threshold."""
        null = null_odds > threshold
        right = (~self.has_answer).astype(np.float64)
        exact, f1 = (np.where(null, right, scores) for scores in (self.exact_match, self.f1))
        return QuestionScores(exact, f1, self.has_answer, self.is_answered & ~null)

    def summary(self) -> dict[str, float]:
        """Returns `exact_match` and `f1` over all questions and, where some have no answer, over either kind.

        Of an unanswerable question both are 1 when it is left unanswered, so there they are one number.
        """
        result = {"exact_match": _mean(self.exact_match), "f1": _mean(self.f1)}
        if not self.has_answer.all():
            result["no_answer_accuracy"] = _mean(self.f1[~self.has_answer])
            if self.has_answer.any():
                result["has_answer_exact_match"] = _mean(self.exact_match[self.has_answer])
                result["has_answer_f1"] = _mean(self.f1[self.has_answer])
        return result


def score_questions(texts: Sequence[str], answers: Sequence[Sequence[str]], *, unanswerable: bool) -> QuestionScores:
    """Scores texts against the right answers.

    Args:
        texts: N answers; "" for none.
        answers: the right answers of each question; empty for an unanswerable one.
        unanswerable: count as the script of v2.0 does.
    """
    rows = []
    for text, right in zip(texts, answers, strict=True):
        # The v2.0 script leaves out references without a word and takes "" where none is left.
        references = [one for one in right if normalize_answer(one)] or [""] if unanswerable else right
        rows.append(answer_scores(text, references, empty_is_answer=unanswerable))
    exact, f1 = np.array(rows, dtype=np.float64).reshape(-1, 2).T
    has_answer = np.array([bool(right) for right in answers])
    return QuestionScores(exact, f1, has_answer, np.array([bool(text) for text in texts]))


def best_threshold(scores: Float64Array, questions: QuestionScores, null_odds: Float64Array) -> tuple[float, float]:
    """Finds the threshold on the null odds with the best mean score, as the v2.0 script does.

    Beginning with no question answered, questions are answered in the order of their null odds. The first threshold
    that reaches the best sum wins; 0 where none is better than to answer nothing.

    Args:
        scores: exact match or F1 of each question's text, (N,).
        questions: what else is known of the questions.
        null_odds: null score less best score, (N,).

    Returns:
        The best mean and its threshold.
    """
    order = np.argsort(null_odds, kind="stable")
    gains = np.where(questions.has_answer, scores, -questions.is_answered.astype(np.float64))[order]
    nothing = float((~questions.has_answer).sum())
    # One sum after another, beginning with the count, as the script adds; the last digit decides between equals.
    sums = np.cumsum(np.concatenate([[nothing], gains]))
    place = int(sums.argmax())
    return float(sums[place] / len(scores)), float(null_odds[order[place - 1]]) if place else 0.0


def threshold_report(questions: QuestionScores, null_odds: Float64Array) -> dict[str, float]:
    """Returns best exact match and F1 over all thresholds, with the thresholds that reach them."""
    best_exact, exact_at = best_threshold(questions.exact_match, questions, null_odds)
    best_f1, f1_at = best_threshold(questions.f1, questions, null_odds)
    return {
        "best_exact_match": best_exact,
        "best_exact_match_threshold": exact_at,
        "best_f1": best_f1,
        "best_f1_threshold": f1_at,
    }


def scores_at_threshold(questions: QuestionScores, null_odds: Float64Array, threshold: float) -> dict[str, float]:
    """Returns the scores of v2.0 at a threshold, at 0 and at the best thresholds.

    Args:
        questions: the scores of every question's text.
        null_odds: a question is left unanswered where these exceed the threshold, (N,).
        threshold: `null_score_diff_threshold`.
    """
    at_zero = questions.at(null_odds, 0.0).summary()
    return {
        **questions.at(null_odds, threshold).summary(),
        "null_score_diff_threshold": threshold,
        "exact_match_at_0": at_zero["exact_match"],
        "f1_at_0": at_zero["f1"],
        **threshold_report(questions, null_odds),
    }


def scores_by_id(
    predictions: Sequence[Mapping[str, Any]], references: Sequence[Mapping[str, Any]], threshold: float | None
) -> dict[str, float]:
    """Scores predictions in the form of the Hub's metrics `squad` and `squad_v2`.

    Args:
        predictions: `id`, `prediction_text` and, for v2.0, `no_answer_probability`, or any number in its place.
        references: `id` and `answers` (`text`).
        threshold: v2.0: a question counts as unanswered where the number exceeds it; None: v1.1.

    Raises:
        ValueError: a question has no prediction.
    """
    by_id = {prediction["id"]: prediction for prediction in predictions}
    if lost := [reference["id"] for reference in references if reference["id"] not in by_id]:
        raise ValueError(f"question {lost[0]!r} has no prediction; predict every question")
    ordered = [by_id[reference["id"]] for reference in references]
    texts = [prediction["prediction_text"] for prediction in ordered]
    right = [reference["answers"]["text"] for reference in references]
    questions = score_questions(texts, right, unanswerable=threshold is not None)
    if threshold is None:
        return questions.summary()
    odds = np.array([prediction["no_answer_probability"] for prediction in ordered], dtype=np.float64)
    return scores_at_threshold(questions, odds, threshold)


def score_squad(config: SquadScoringConfig) -> dict[str, float]:
    """Scores a file of predictions.

    Returns:
        `exact_match` and `f1` of the texts as they are, for v2.0 by kind of question too and, with null odds, the best
        thresholds.

    Raises:
        UserError: a file is not as it should be, or a prediction or null score is missing.
    """
    unanswerable = config.task_name == "squad_v2"
    dataset = questions_of(read_file(Path(config.data_file)), config.data_file, unanswerable=unanswerable)
    if "answers" not in dataset.column_names:
        raise UserError(f"{config.data_file}: its questions have no answers to score against; name a labelled file")
    texts = values_by_id(Path(config.predictions_file), dataset, str)
    questions = score_questions(texts, answer_texts(dataset), unanswerable=unanswerable)
    scores = questions.summary()
    if config.null_odds_file:
        odds = np.array(values_by_id(Path(config.null_odds_file), dataset, (int, float)), dtype=np.float64)
        scores |= threshold_report(questions, odds)
    logger.info("%d questions: %s", len(texts), ", ".join(f"{name} {value:.6f}" for name, value in scores.items()))
    return scores


def answer_texts(dataset: "datasets.Dataset") -> list[list[str]]:
    """Returns the right answers of every question of a labelled split."""
    return [answers["text"] for answers in dataset["answers"]]


def values_by_id(path: Path, dataset: "datasets.Dataset", kind: Any) -> list[Any]:
    """Reads a JSON object of one value per question, in the order of the data set; other entries are left out.

    Raises:
        UserError: it is no such file, lacks a question, or a value is of another kind.
    """
    content = read_json_object(path)
    missing = [identity for identity in dataset["id"] if identity not in content]
    if missing:
        raise UserError(
            f"{path}: no entry for question {shown(missing[0])} ({len(missing)} of {len(dataset)} are missing); "
            "predict every question, or name the data file it was made for"
        )
    for identity in dataset["id"]:
        if not isinstance(content[identity], kind):
            raise UserError(
                f"{path}, question {shown(identity)}: is {shown(content[identity])}; write a text for each id, in "
                "--null_odds_file a number"
            )
    return [content[identity] for identity in dataset["id"]]


def _mean(values: Float64Array) -> float:
    # Summed one after another, as the scripts do, so that not even the last digit differs.
    total: float = sum(values.tolist())
    return total / len(values)
