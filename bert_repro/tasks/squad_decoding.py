"""Turns start and end scores into the text of an answer (paper 4.2, 4.3; original run_squad.py).

For each window of a question, spans are chosen as candidates. The candidates of all windows are ordered by the sum of
their scores, and the best ones with different texts are the n-best list. In SQuAD v2.0, the span at [CLS] stands for no
answer, and its score is compared with that of the best answer.

`original` follows the authors' run_squad.py: the same candidates, the same order among equal scores, the same texts.
`exact` considers all spans, as the paper describes it.

Shape legend: `S` positions of a window's input, `N` pieces of a passage, `C` candidates.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from bert_repro.tasks.squad_windows import Passage, fullest_windows
from bert_repro.utils.arrays import Int64Array

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Float64Array = npt.NDArray[np.float64]
TextOf: TypeAlias = Callable[[Passage, int, int], str]
"""Returns the text of an answer: passage, first piece, last piece -> text."""
NO_CANDIDATE = "empty"
"""Answer of the original implementation to a question of v1.1 for which no span is left."""
CERTAIN_NULL = 1e9
"""Null odds of a question for which no span is left: above every threshold, but finite, as JSON has no infinity."""
_WORDS_IN_CACHE = 100_000


class Candidates(NamedTuple):
    """Spans of a passage with their scores.

    Args:
        first: first piece of each span, int64 [C].
        last: last piece of each span, int64 [C].
        start_scores: score of the first piece as a start, float64 [C].
        end_scores: score of the last piece as an end, float64 [C].
    """

    first: Int64Array
    last: Int64Array
    start_scores: Float64Array
    end_scores: Float64Array


class Answer(NamedTuple):
    """The model's answer to one question.

    Args:
        text: the best answer that is not empty; "" if there is none.
        null_odds: score of no answer minus the score of `text`; 0 in v1.1.
        best: the n-best list as in nbest_predictions.json: text, probability, start_logit, end_logit.
    """

    text: str
    null_odds: float
    best: list[dict[str, Any]]


@dataclass(frozen=True)
class _ScoredText:
    """An entry of the n-best list.

    Args:
        text: the answer; "" for no answer.
        start_score: score of its start.
        end_score: score of its end.
    """

    text: str
    start_score: float
    end_score: float

    @property
    def score(self) -> float:
        """The sum by which entries are ordered."""
        return self.start_score + self.end_score


@dataclass(frozen=True)
class Decoder:
    """Chooses answers by their scores.

    Args:
        exact: whether all spans are candidates, and not only those of the best starts with the best ends.
        n_best_size: number of starts and of ends that are considered, and of answers in the n-best list.
        max_answer_length: longest answer in pieces; 0 for no limit.
        nullable: whether no answer, the span at [CLS], is a candidate too (v2.0).
        text_of: returns the text of an answer.
    """

    exact: bool
    n_best_size: int
    max_answer_length: int
    nullable: bool
    text_of: TextOf

    def answer(
        self, passage: Passage, windows: Sequence[tuple[int, int]], scores: Sequence[Float64Array], passage_at: int
    ) -> Answer:
        """Returns the best answers to a question over all its windows.

        Args:
            passage: the passage.
            windows: first piece and number of pieces of each window.
            scores: start and end score of each position of each window, float64 [S, 2].
            passage_at: position of a window's first piece in its input.
        """
        fullest = fullest_windows(windows, len(passage.ids))
        candidates = []
        for number, (window, window_scores) in enumerate(zip(windows, scores, strict=True)):
            may_start = fullest[window[0] : sum(window)] == number
            candidates.append(self.candidates(window_scores, passage_at, window, may_start))
        spans = Candidates(*map(np.concatenate, zip(*candidates, strict=True)))

        # The window that is least sure of "no answer" decides.
        null_entries = [_ScoredText("", float(values[0, 0]), float(values[0, 1])) for values in scores]
        null_entry = min(null_entries, key=lambda entry: entry.score)
        best = self._n_best(passage, spans, null_entry)
        return _answer(best, null_entry.score, self.nullable)

    def candidates(
        self, scores: Float64Array, passage_at: int, window: tuple[int, int], may_start: npt.NDArray[np.bool_]
    ) -> Candidates:
        """Returns the spans of one window that can be answers.

        Args:
            scores: start and end score of each position, float64 [S, 2].
            passage_at: position of the window's first piece.
            window: first piece of the window and its number of pieces.
            may_start: whether each piece of the window has most context here, bool [pieces of the window].

        Returns:
            The candidates in the order of the original implementation: by rank of their start, then of their end.
        """
        num_pieces = window[1]
        if self.exact:
            starts = ends = np.arange(num_pieces) + passage_at
        else:
            starts = _best_positions(scores[:, 0], self.n_best_size)
            ends = _best_positions(scores[:, 1], self.n_best_size)

        # Rows are starts, columns are ends.
        first = starts[:, None] - passage_at
        last = ends[None, :] - passage_at
        starts_here = np.zeros(len(scores), dtype=bool)
        starts_here[passage_at : passage_at + num_pieces] = may_start
        is_allowed = starts_here[starts][:, None] & (last >= first) & (last < num_pieces)
        if self.max_answer_length:
            is_allowed &= last - first < self.max_answer_length

        rows, columns = np.nonzero(is_allowed)
        start = starts[rows]
        end = ends[columns]
        to_pieces = window[0] - passage_at
        return Candidates(start + to_pieces, end + to_pieces, scores[start, 0], scores[end, 1])

    def _n_best(self, passage: Passage, spans: Candidates, null_entry: _ScoredText) -> list[_ScoredText]:
        """Returns the best entries with different texts, at least one. No answer is among them if it is a candidate."""
        best: list[_ScoredText] = []
        texts: set[str] = set()
        scores = spans.start_scores + spans.end_scores
        null_is_due = self.nullable
        # A stable order keeps spans with equal scores in the order of the original implementation.
        for place in np.argsort(-scores, kind="stable").tolist():
            # Among equal scores, no answer comes last.
            if null_is_due and len(best) < self.n_best_size and null_entry.score > scores[place]:
                null_is_due = False
                texts.add("")
                best.append(null_entry)
            if len(best) >= self.n_best_size:
                break
            text = self.text_of(passage, int(spans.first[place]), int(spans.last[place]))
            if text not in texts:
                texts.add(text)
                best.append(_ScoredText(text, float(spans.start_scores[place]), float(spans.end_scores[place])))

        # No answer is always in the list, even beyond its size.
        if self.nullable and "" not in texts:
            best.append(null_entry)
        if not best:
            best.append(_ScoredText(NO_CANDIDATE, 0.0, 0.0))
        return best


def _best_positions(scores: Float64Array, count: int) -> Int64Array:
    positions: Int64Array = np.argsort(-scores, kind="stable")[:count]
    return positions


def _answer(best: Sequence[_ScoredText], null_score: float, nullable: bool) -> Answer:
    """Makes an answer of the n-best list, with the probability of each entry among the entries of the list."""
    scores = np.array([entry.score for entry in best])
    weights = np.exp(scores - scores.max())
    probabilities = (weights / weights.sum()).tolist()
    entries = []
    for entry, probability in zip(best, probabilities, strict=True):
        entries.append(
            {
                "text": entry.text,
                "probability": probability,
                "start_logit": entry.start_score,
                "end_logit": entry.end_score,
            }
        )
    if not nullable:
        return Answer(best[0].text, 0.0, entries)
    for entry in best:
        if entry.text:
            return Answer(entry.text, null_score - entry.start_score - entry.end_score, entries)
    return Answer("", CERTAIN_NULL, entries)


# --- Texts ------------------------------------------------------------------------------------------------------------


def text_by_offsets(passage: Passage, first: int, last: int) -> str:
    """Returns the characters of the context from piece `first` to piece `last` (`answer_text=offsets`)."""
    return passage.context[passage.starts[first] : passage.ends[last]]


class OriginalText:
    """Recovers the text of an answer as the original implementation does (`answer_text=original`).

    The whitespace words of the span, joined by single spaces, are split as in BERT's first stage: cleaned, lower-cased,
    accents stripped, split at punctuation. If the split text contains the predicted pieces, and has as many characters
    as the words (without spaces), the n-th character of one is the n-th of the other. So the words can be trimmed to
    the pieces. Otherwise the complete words are the answer.

    Args:
        tokenizer: a fast tokenizer of transformers.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        backend: Any = tokenizer.backend_tokenizer  # type: ignore[attr-defined]
        self._normalizer = backend.normalizer
        self._splitter = backend.pre_tokenizer
        self._split_word = lru_cache(maxsize=_WORDS_IN_CACHE)(self._first_stage)

    def _first_stage(self, word: str) -> str:
        """Returns the parts that a word has before it is divided into pieces, joined by spaces."""
        parts = self._splitter.pre_tokenize_str(self._normalizer.normalize_str(word))
        return " ".join(part for part, _ in parts)

    def __call__(self, passage: Passage, first: int, last: int) -> str:
        """Returns the text of pieces `first` to `last`."""
        words = passage.words_between(first, last)
        joined = " ".join(words)
        # Nothing may be left of a word, for example of a control character.
        split = " ".join(part for part in map(self._split_word, words) if part)
        predicted = _joined_pieces(passage.pieces[first : last + 1])

        at = split.find(predicted)
        has_equal_length = len(joined) - joined.count(" ") == len(split) - split.count(" ")
        if at < 0 or not has_equal_length:
            return joined
        # Place in `joined` of each character that is not a space.
        places = [place for place, character in enumerate(joined) if character != " "]
        until = at + len(predicted)
        start = places[at - split.count(" ", 0, at)]
        end = places[until - split.count(" ", 0, until) - 1]
        return joined[start : end + 1]


def _joined_pieces(pieces: Sequence[str]) -> str:
    """Returns pieces as text: the marks of continuations are removed, words are separated by single spaces."""
    text = " ".join(pieces).replace(" ##", "").replace("##", "")
    return " ".join(text.split())
