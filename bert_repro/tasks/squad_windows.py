"""Questions, their passages as tokens, windows over them, and where an answer lies in a window (paper 4.2)."""

import json
import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_repro.configs import TriviaqaConfig
from bert_repro.errors import UserError
from bert_repro.tasks.base import token_ids, tokenized
from bert_repro.tasks.data import texts, values
from bert_repro.utils.arrays import Int64Array
from bert_repro.utils.files import atomic_file
from bert_repro.utils.readers import read_json, read_utf8, shown

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger("bert_repro")

NO_ANSWER = (0, 0)
"""Target of a window without the full answer: [CLS]."""
UNFOUND = (-1, -1)
"""Target of a window whose question's answer cannot be found in the passage; it is not trained on."""
_WORD = re.compile("[^ \t\r\n\u202f]+")  # what the original implementation takes for whitespace, not all of Unicode's


@dataclass(frozen=True)
class Passage:
    """A tokenized context.

    Args:
        context: the text.
        ids: token id of each piece, (N,).
        pieces: the pieces as text.
        starts: first character of each piece, (N,).
        ends: character after each piece, (N,).
        words: first character and the one after of each whitespace word, (W, 2).
        word_of: the whitespace word of each piece, (N,).
    """

    context: str
    ids: Int64Array
    pieces: Sequence[str]
    starts: Int64Array
    ends: Int64Array
    words: Int64Array
    word_of: Int64Array

    def words_between(self, first: int, last: int) -> list[str]:
        """Returns the whitespace words from that of piece `first` to that of piece `last`."""
        spans = self.words[self.word_of[first] : self.word_of[last] + 1].tolist()
        return [self.context[start:end] for start, end in spans]


def tokenize_passages(tokenizer: "PreTrainedTokenizerBase", contexts: Sequence[str]) -> Iterator[Passage]:
    """Tokenizes contexts in full.

    Args:
        tokenizer: a fast tokenizer of transformers.
        contexts: the texts.
    """
    if not contexts:
        return
    encoded = tokenized(tokenizer, contexts)
    for number, context in enumerate(contexts):
        encoding = encoded[number]
        offsets = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
        words = np.array([match.span() for match in _WORD.finditer(context)], dtype=np.int64).reshape(-1, 2)
        word_of = np.searchsorted(words[:, 0], offsets[:, 0], side="right") - 1
        ids = np.array(encoding.ids, dtype=np.int64)
        yield Passage(context, ids, encoding.tokens, offsets[:, 0], offsets[:, 1], words, word_of)


def shared_passages(tokenizer: "PreTrainedTokenizerBase", contexts: Sequence[str]) -> list[Passage]:
    """Returns a passage for each context, tokenized once where several questions share it."""
    different = list(dict.fromkeys(contexts))
    passages = dict(zip(different, tokenize_passages(tokenizer, different), strict=True))
    return [passages[context] for context in contexts]


def passages_of(tokenizer: "PreTrainedTokenizerBase", dataset: "datasets.Dataset") -> Iterator[Passage]:
    """Yields the passage of each question of a split, tokenized a thousand questions at a time."""
    for rows in dataset.iter(1000):
        yield from shared_passages(tokenizer, rows["context"])


def window_spans(length: int, room: int, stride: int) -> list[tuple[int, int]]:
    """Computes where the windows over a passage begin, and how many pieces each holds.

    Args:
        length: pieces of the passage.
        room: pieces that fit into a window.
        stride: how far the window moves.

    Returns:
        At least one window, an empty one for an empty passage. Every piece is in one.
    """
    spans = [(0, min(length, room))]
    while sum(spans[-1]) < length:
        start = spans[-1][0] + min(spans[-1][1], stride)
        spans.append((start, min(length - start, room)))
    return spans


def fullest_windows(spans: Sequence[tuple[int, int]], length: int) -> Int64Array:
    """Finds for each piece the window in which it has most context, the first of equals.

    Context is min(left, right) + 0.01 x window length.

    Args:
        spans: from `window_spans`.
        length: pieces of the passage.

    Returns:
        Index into `spans`, (length,).
    """
    fullest = np.zeros(length, dtype=np.int64)
    best = np.full(length, -np.inf)
    for number, (start, size) in enumerate(spans):
        left = np.arange(size)
        context = np.minimum(left, size - 1 - left) + 0.01 * size
        here = slice(start, start + size)
        better = context > best[here]
        fullest[here][better] = number
        best[here][better] = context[better]
    return fullest


def answer_span(passage: Passage, answer: str, start: int, answer_ids: Sequence[int]) -> tuple[int, int] | None:
    """Finds the pieces of an answer: its characters widened to whitespace words, then narrowed to the first that equal
    the answer's own, where there are such.

    Args:
        passage: the passage.
        answer: text of the answer.
        start: its first character in the context.
        answer_ids: token ids of the answer alone.

    Returns:
        First and last piece; None where the text is not in those words.
    """
    last_character = max(start, start + len(answer) - 1)
    first_word, last_word = np.searchsorted(passage.words[:, 0], [start, last_character], side="right") - 1
    found = " ".join(passage.context[a:b] for a, b in passage.words[max(first_word, 0) : last_word + 1].tolist())
    if " ".join(answer.split()) not in found:
        return None
    inside = np.flatnonzero((passage.word_of >= first_word) & (passage.word_of <= last_word))
    if not len(inside):
        return None
    first, last = int(inside[0]), int(inside[-1])
    wanted, size = list(answer_ids), len(answer_ids)
    ids = passage.ids[first : last + 1].tolist()
    for place in range(len(ids) - size + 1 if size else 0):
        if ids[place : place + size] == wanted:
            return first + place, first + place + size - 1
    return first, last


def first_answer_spans(
    answers: Sequence[Mapping[str, Any]], tokenizer: "PreTrainedTokenizerBase", passages: Sequence[Passage]
) -> list[tuple[int, int] | None]:
    """Returns the pieces of each question's first answer; None without an answer, `UNFOUND` where it is not in place.

    Args:
        answers: `text` and `answer_start` of each question.
        tokenizer: a fast tokenizer of transformers.
        passages: the passage of each question.
    """
    texts = [next(iter(answer["text"]), "") for answer in answers]
    spans: list[tuple[int, int] | None] = []
    for answer, passage, text, ids in zip(answers, passages, texts, token_ids(tokenizer, texts), strict=True):
        found = None
        if answer["text"]:
            found = answer_span(passage, text, answer["answer_start"][0], ids) or UNFOUND
        spans.append(found)
    return spans


def target(span: tuple[int, int] | None, window: tuple[int, int], offset: int) -> tuple[int, int]:
    """Returns start and end of an answer as positions of the model's input.

    Args:
        span: first and last piece of the answer.
        window: first piece and number of pieces of the window.
        offset: position of the window's first piece in the input.

    Returns:
        `NO_ANSWER` unless the window holds the full answer.
    """
    start, size = window
    if span is None or span[0] < start or span[1] >= start + size:
        return NO_ANSWER
    return span[0] - start + offset, span[1] - start + offset


# --- Questions, of rows in any of the usual forms ---------------------------------------------------------------------


def questions_of(rows: "datasets.Dataset", where: str, *, unanswerable: bool) -> "datasets.Dataset":
    """Returns the split that rows of questions are.

    Args:
        rows: `question`, `context`; `answers` (an object of the lists `text` and `answer_start`, or a list of objects;
            empty for no answer), or `answer` (a text of the context, empty for no answer) and, where it is there,
            `answer_start`; without either the split is unlabelled. A question whose `is_impossible` is true has no
            answer, whatever its answers say, as in the original run_squad.py. `id`, else the row's number from 0.
        where: the data, for messages.
        unanswerable: whether questions may lack an answer (v2.0).

    Returns:
        Columns `id`, `question`, `context` and, of a labelled split, `answers` (`text`, `answer_start`).

    Raises:
        UserError: a column is missing, an id occurs twice, or an answer is missing or outside its context.
    """
    import datasets

    columns: dict[str, list[Any]] = {"id": [str(place) for place in range(len(rows))]}
    if "id" in rows.column_names:
        columns["id"] = texts(rows, "id", where)
    if len(set(columns["id"])) < len(rows):
        twice = next(identity for identity in columns["id"] if columns["id"].count(identity) > 1)
        raise UserError(f"{where}, question {shown(twice)}: this id occurs twice; give every question its own")
    columns |= {name: texts(rows, name, where) for name in ("question", "context")}
    features: dict[str, Any] = {name: datasets.Value("string") for name in ("id", "question")}
    features["context"] = datasets.Value("large_string")
    if {"answers", "answer"} & set(rows.column_names):
        columns["answers"] = _answers(rows, columns, where, unanswerable)
        features["answers"] = {
            "text": datasets.List(datasets.Value("string")),
            "answer_start": datasets.List(datasets.Value("int32")),
        }
    return datasets.Dataset.from_dict(columns, features=datasets.Features(features))


def _answers(
    rows: "datasets.Dataset", columns: dict[str, list[Any]], where: str, unanswerable: bool
) -> list[dict[str, Any]]:
    found = []
    given = rows["answers"] if "answers" in rows.column_names else _places(rows, columns["context"], where)
    impossible = [False] * len(rows)
    if "is_impossible" in rows.column_names:
        impossible = [str(value).strip().casefold() in ("true", "1") for value in rows["is_impossible"]]
    questions = zip(columns["id"], columns["context"], given, impossible, strict=True)
    for identity, context, answers, is_impossible in questions:
        place = f"{where}, question {shown(identity)}"
        try:
            if isinstance(answers, list):
                answers = {key: [answer[key] for answer in answers] for key in ("text", "answer_start")}
            starts = map(int, answers["answer_start"])
            pairs = list(zip(map(str, answers["text"]), starts, strict=True))
        except (KeyError, TypeError, ValueError):
            raise UserError(
                f"{place}: answers is {shown(answers)}; it must be a list of objects with text and answer_start, or an "
                "object of two lists, empty for no answer"
            ) from None
        # An answer without text is none: its place would make the first word of the passage the target.
        pairs = [(text, start) for text, start in pairs if text.strip()]
        if is_impossible:
            pairs = []
        if not pairs and not unanswerable:
            raise UserError(f"{place}: has no answer; give it one, or use --task_name squad_v2")
        for text, start in pairs:
            if not 0 <= start <= len(context) - len(text):
                raise UserError(
                    f"{place}: answer {shown(text)} at {start} lies outside its context of {len(context)} characters; "
                    "copy it from there, or correct answer_start"
                )
        found.append({"text": [text for text, _ in pairs], "answer_start": [start for _, start in pairs]})
    return found


def _places(rows: "datasets.Dataset", contexts: list[str], where: str) -> Iterator[dict[str, Any]]:
    """Yields the answer of each row and its first character; -1 for a text that its context does not hold."""
    answers = [(text or "").strip() for text in values(rows, "answer", where)]
    starts = values(rows, "answer_start", where) if "answer_start" in rows.column_names else [""] * len(rows)
    for text, start, context in zip(answers, starts, contexts, strict=True):
        first = int(start) if str(start).isdigit() else context.find(text)
        inside = context[max(first, 0) :].startswith(text)
        yield {"text": [text], "answer_start": [first if inside else -1]} if text else {"text": [], "answer_start": []}


# --- TriviaQA's questions as SQuAD's (paper 4.2, Table 2, footnote 12) ------------------------------------------------
# TriviaQA (Joshi et al., 2017; https://nlp.cs.washington.edu/triviaqa) gives a question, the names of its answer, and
# documents that may hold it, but not where. As in the paper, a passage is the beginning of a document; it becomes an
# example if it holds one of the names, and is left out otherwise.

PAGES = {"EntityPages": "wikipedia", "SearchResults": "web"}
"""The lists of a question's documents, and the folder of evidence that each is in."""
_TOKEN = re.compile(r"\w+|[^\w\s]")
_BOUND = r"(?<!\w)(?:{})(?!\w)"


def convert_triviaqa(config: TriviaqaConfig) -> dict[str, int]:
    """Writes the questions of a file of TriviaQA, one for every document that answers it, as SQuAD v1.1's JSON.

    Ids are `QuestionId--Filename`. The first answer is the first place that holds a name; others are the other
    spellings found.

    Returns:
        Counts: `questions` read, their `documents`, and of these the `examples` written, those `without_answer` at
        their beginning, `missing` files, and those that are `repeated` for one question.

    Raises:
        UserError: a file is not as TriviaQA's are, or no example came of it, or the output cannot be written.
    """
    source, evidence, target = map(Path, (config.qa_file, config.evidence_dir, config.output_file))
    counts = Counter({name: 0 for name in ("questions", "documents", "examples", "without_answer", "missing")})
    with atomic_file(target) as file:
        articles = list(_articles(read_json(source)["Data"], evidence, config.max_tokens, counts))
        json.dump({"version": "1.1", "data": articles}, file, ensure_ascii=False)
        if not counts["examples"]:
            raise UserError(f"{source}: no example came of {dict(counts)}; name the right --evidence_dir")
    logger.info("%s: %s", target, ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in counts.items()))
    return dict(counts)


def first_tokens(text: str, limit: int) -> str:
    """Returns the beginning of a text, up to the end of its `limit`-th token: a word, or a punctuation mark."""
    for number, token in enumerate(_TOKEN.finditer(text), start=1):
        if number == limit:
            return text[: token.end()]
    return text


def find_answers(context: str, names: Sequence[str]) -> list[dict[str, Any]]:
    """Finds names of an answer in a text, as SQuAD's answers; each spelling once, the first place first.

    Case and the kind of white space do not count, and a name is a name only between other characters than letters and
    digits. Where several begin, the longest counts.
    """
    # No name that cannot be there, however long, becomes a pattern.
    fitting = {name.strip() for name in names if len("".join(name.split())) <= len(context)}
    longest_first = sorted(fitting - {""}, key=lambda name: (-len(name), name))
    if not longest_first:
        return []
    patterns = (r"\s+".join(map(re.escape, name.split())) for name in longest_first)
    found: dict[str, int] = {}
    for match in re.finditer(_BOUND.format("|".join(patterns)), context, re.IGNORECASE):
        found.setdefault(match.group(), match.start())
    return [{"text": text, "answer_start": start} for text, start in found.items()]


def _articles(
    questions: Sequence[Any], evidence: Path, max_tokens: int, counts: Counter[str]
) -> Iterator[dict[str, Any]]:
    """Yields an article of one paragraph and one question for every document that answers its question."""
    for question in questions:
        answer = question["Answer"]
        names = [answer["Value"], *answer.get("Aliases", []), *answer.get("HumanAnswers", [])]
        counts["questions"] += 1
        seen: set[str | None] = set()
        for folder, page in ((folder, page) for key, folder in PAGES.items() for page in question.get(key, [])):
            counts["documents"] += 1
            name = page.get("Filename")  # None: a search result of which TriviaQA keeps no text
            if name is not None and name in seen:
                counts["repeated"] += 1
                continue
            seen.add(name)
            path = evidence / folder / (name or "")
            if not (path.is_file() and path.resolve().is_relative_to((evidence / folder).resolve())):
                counts["missing"] += 1
                continue
            context = first_tokens(read_utf8(path), max_tokens)
            answers = find_answers(context, names)
            if not answers:
                counts["without_answer"] += 1
                continue
            counts["examples"] += 1
            entry = {"id": f"{question['QuestionId']}--{name}", "question": question["Question"], "answers": answers}
            yield {"title": page.get("Title", name), "paragraphs": [{"context": context, "qas": [entry]}]}
