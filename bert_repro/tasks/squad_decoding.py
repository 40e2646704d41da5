"""From start and end scores to answers: candidates of each window, the n-best list, the null score, the answer's text.

`original` follows the authors' run_squad.py: same candidates, same order among equal scores, same texts. `exact` takes
the best of all spans instead (paper 4.2).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bert_repro.tasks.squad_windows import Passage, fullest_windows
from bert_repro.utils.arrays import Int64Array

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Float64Array = npt.NDArray[np.float64]
NO_CANDIDATE = "empty"
"""What the original implementation answers in v1.1 where no span is left."""
CERTAIN_NULL = 1e9
"""Null odds of a question for which no span is left: finite, for JSON, and above every threshold."""
_WORDS_IN_CACHE = 100_000


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
            # Only the passage is searched; the original n-best list comes from as many pairs.
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
        if self.exact and len(rows) > self.n_best_size**2:
            total = scores[starts[rows], 0] + scores[ends[columns], 1]
            kept = np.sort(np.argpartition(-total, self.n_best_size**2)[: self.n_best_size**2])
            rows, columns = rows[kept], columns[kept]
        start, end = starts[rows], ends[columns]
        shift = window[0] - passage_at
        return Candidates(start + shift, end + shift, scores[start, 0], scores[end, 1])

    def answer(
        self,
        passage: Passage,
        windows: Sequence[tuple[int, int]],
        scores: Sequence[Float64Array],
        passage_at: int,
    ) -> "Answer":
        """Returns what the model says to one question.

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
        return self.decode(passage, candidates, [(float(values[0, 0]), float(values[0, 1])) for values in scores])

    def decode(
        self, passage: Passage, windows: Sequence["Candidates"], nulls: Sequence[tuple[float, float]]
    ) -> "Answer":
        """Returns the best answers of a question over all its windows.

        Args:
            passage: the passage.
            windows: the candidates of each window.
            nulls: start and end score of [CLS] in each window.
        """
        null = min(nulls, key=sum)
        spans = Candidates(*map(np.concatenate, zip(*windows, strict=True)))
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
