"""From start and end scores to answers, and from answers to the scores of SQuAD v1.1 and v2.0.

Candidates of each window, the n-best list, the null score, the answer's text: `original` follows the authors'
run_squad.py (same candidates, same order among equal scores, same texts), `exact` takes the best of all spans instead
(paper 4.2). The scores are number by number those of the official scripts, as fractions.
"""

import logging
import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bert_repro.configs import SquadScoringConfig
from bert_repro.errors import UserError
from bert_repro.tasks.data import read_file
from bert_repro.tasks.squad_windows import Passage, fullest_windows, questions_of
from bert_repro.utils.arrays import Int64Array
from bert_repro.utils.readers import read_json_object, shown

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger("bert_repro")

Float64Array = npt.NDArray[np.float64]
NO_CANDIDATE = "empty"
"""What the original implementation answers in v1.1 where no span is left."""
CERTAIN_NULL = 1e9
"""Null odds of a question for which no span is left: finite, for JSON, and above every threshold."""
_WORDS_IN_CACHE = 100_000
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


@dataclass(frozen=True)
class Decoder:
    """How spans are chosen.

    Args:
        exact: all spans are candidates, not only those of the best starts with the best ends.
        n_best_size: starts and ends considered, and answers kept.
        max_answer_length: longest answer in pieces; 0: no limit.
        nullable: no answer, the span at [CLS], is a candidate too (v2.0).
        text_of: gives the text of pieces `first` to `last` of a passage.
    """

    exact: bool
    n_best_size: int
    max_answer_length: int
    nullable: bool
    text_of: Callable[[Passage, int, int], str]

    def candidates(
        self, scores: Float64Array, passage_at: int, window: tuple[int, int], may_start: npt.NDArray[np.bool_]
    ) -> "Candidates":
        """Returns the spans of one window that can be answers.

        Args:
            scores: start and end score of each position, (S, 2).
            passage_at: position of the window's first piece.
            window: first piece and number of pieces of the window.
            may_start: for each piece of the window, whether it has most context here, (pieces,).

        Returns:
            The candidates in the order of the original implementation: by rank of their start, then of their end.
        """
        size = window[1]
        if self.exact:
            starts = ends = np.arange(size) + passage_at
        else:
            starts, ends = (np.argsort(-scores[:, side], kind="stable")[: self.n_best_size] for side in (0, 1))
        first, last = starts[:, None] - passage_at, ends[None, :] - passage_at
        starts_here = np.zeros(len(scores), dtype=bool)
        starts_here[passage_at : passage_at + size] = may_start
        allowed = starts_here[starts][:, None] & (last >= first) & (last < size)
        if self.max_answer_length:
            allowed &= last - first < self.max_answer_length
        rows, columns = np.nonzero(allowed)
        start, end = starts[rows], ends[columns]
        shift = window[0] - passage_at
        return Candidates(start + shift, end + shift, scores[start, 0], scores[end, 1])

    def answer(
        self, passage: Passage, windows: Sequence[tuple[int, int]], scores: Sequence[Float64Array], passage_at: int
    ) -> "Answer":
        """Returns the best answers of a question over all its windows.

        Args:
            passage: the passage.
            windows: first piece and number of pieces of each window over it.
            scores: start and end score of each position of each window, (S, 2).
            passage_at: position of a window's first piece in the input.
        """
        fullest = fullest_windows(windows, len(passage.ids))
        candidates = []
        for number, (window, values) in enumerate(zip(windows, scores, strict=True)):
            may_start = fullest[window[0] : sum(window)] == number
            candidates.append(self.candidates(values, passage_at, window, may_start))
        spans = Candidates(*map(np.concatenate, zip(*candidates, strict=True)))
        null = min(((float(values[0, 0]), float(values[0, 1])) for values in scores), key=sum)
        best: list[dict[str, Any]] = []
        seen: set[str] = set()
        total = spans.start_scores + spans.end_scores
        null_is_due = self.nullable
        for place in np.argsort(-total, kind="stable").tolist():
            # Among equal scores the null answer comes last.
            if null_is_due and len(best) < self.n_best_size and sum(null) > total[place]:
                null_is_due = False
                seen.add("")
                best.append(_entry("", *null))
            if len(best) >= self.n_best_size:
                break
            text = self.text_of(passage, int(spans.first[place]), int(spans.last[place]))
            if text not in seen:
                seen.add(text)
                best.append(_entry(text, spans.start_scores[place], spans.end_scores[place]))
        if self.nullable and "" not in seen:
            best.append(_entry("", *null))
        if not best:
            best.append(_entry(NO_CANDIDATE, 0.0, 0.0))
        return _answer(best, sum(null), self.nullable)


class Candidates(NamedTuple):
    """Spans of a passage with their scores, one array element each.

    Args:
        first: first piece of the passage.
        last: last piece of the passage.
        start_scores: score of the first piece as a start.
        end_scores: score of the last piece as an end.
    """

    first: Int64Array
    last: Int64Array
    start_scores: Float64Array
    end_scores: Float64Array


class Answer(NamedTuple):
    """What the model says to one question.

    Args:
        text: the best answer that is not empty; "" where there is none.
        null_odds: score of no answer less that of `text`; 0 in v1.1.
        best: the n-best list as in nbest_predictions.json: text, probability, start_logit, end_logit.
    """

    text: str
    null_odds: float
    best: list[dict[str, Any]]


def _entry(text: str, start: float, end: float) -> dict[str, Any]:
    return {"text": text, "start_logit": float(start), "end_logit": float(end)}


def _answer(best: list[dict[str, Any]], null_score: float, nullable: bool) -> Answer:
    total = np.array([entry["start_logit"] + entry["end_logit"] for entry in best])
    weights = np.exp(total - total.max())
    ordered = [
        {"text": entry["text"], "probability": float(share), **entry}
        for entry, share in zip(best, weights / weights.sum(), strict=True)
    ]
    if not nullable:
        return Answer(best[0]["text"], 0.0, ordered)
    for entry in best:
        if entry["text"]:
            return Answer(entry["text"], null_score - entry["start_logit"] - entry["end_logit"], ordered)
    return Answer("", CERTAIN_NULL, ordered)


def text_by_offsets(passage: Passage, first: int, last: int) -> str:
    """Returns the characters of the context from the first piece's to the last piece's (`answer_text=offsets`)."""
    return passage.context[passage.starts[first] : passage.ends[last]]


class OriginalText:
    """The text of an answer as the original implementation recovers it (`answer_text=original`).

    The whitespace words of the span, joined by single spaces, are tokenized as BERT's first stage does (cleaned,
    lower-cased, accents stripped, split at punctuation). Where the predicted pieces are in that and it has as many
    characters as the words, spaces apart, the n-th character of the one is the n-th of the other, which trims the
    words. Otherwise the words are the answer.

    Args:
        tokenizer: a fast tokenizer of transformers.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        backend: Any = tokenizer.backend_tokenizer  # type: ignore[attr-defined]
        self._normalizer, self._splitter = backend.normalizer, backend.pre_tokenizer
        self._split = lru_cache(maxsize=_WORDS_IN_CACHE)(self._first_stage)

    def _first_stage(self, word: str) -> str:
        """Returns what BERT does to a word before it looks for pieces, parts joined by spaces."""
        return " ".join(part for part, _ in self._splitter.pre_tokenize_str(self._normalizer.normalize_str(word)))

    def __call__(self, passage: Passage, first: int, last: int) -> str:
        """Returns the text of pieces `first` to `last`."""
        words = passage.words_between(first, last)
        joined = " ".join(words)
        split = " ".join(part for part in map(self._split, words) if part)
        predicted = " ".join(" ".join(passage.pieces[first : last + 1]).replace(" ##", "").replace("##", "").split())
        at = split.find(predicted)
        if at < 0 or len(joined) - joined.count(" ") != len(split) - split.count(" "):
            return joined
        places = [place for place, character in enumerate(joined) if character != " "]
        start = places[at - split.count(" ", 0, at)]
        until = at + len(predicted)
        return joined[start : places[until - split.count(" ", 0, until) - 1] + 1]


# --- Scores ---------------------------------------------------------------------------------------------------------


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
    texts = values_by_id(Path(config.predictions_file), dataset)
    questions = score_questions(texts, answer_texts(dataset), unanswerable=unanswerable)
    scores = questions.summary()
    if config.null_odds_file:
        odds = np.array(values_by_id(Path(config.null_odds_file), dataset), dtype=np.float64)
        scores |= threshold_report(questions, odds)
    logger.info("%d questions: %s", len(texts), ", ".join(f"{name} {value:.6f}" for name, value in scores.items()))
    return scores


def answer_texts(dataset: "datasets.Dataset") -> list[list[str]]:
    """Returns the right answers of every question of a labelled split."""
    return [answers["text"] for answers in dataset["answers"]]


def values_by_id(path: Path, dataset: "datasets.Dataset") -> list[Any]:
    """Reads a JSON object of one value per question, in the order of the data set; other entries are left out.

    Raises:
        UserError: it is no such file, or lacks a question.
    """
    content = read_json_object(path)
    missing = [identity for identity in dataset["id"] if identity not in content]
    if missing:
        raise UserError(
            f"{path}: no entry for question {shown(missing[0])} ({len(missing)} of {len(dataset)} are missing); "
            "predict every question, or name the data file it was made for"
        )
    return [content[identity] for identity in dataset["id"]]


def _mean(values: Float64Array) -> float:
    # Summed one after another, as the scripts do, so that not even the last digit differs.
    total: float = sum(values.tolist())
    return total / len(values)
