"""From files of SQuAD to what a model reads: questions, read strictly, and windows over their passages (paper 4.2).

Every error names the file, the question and the fix.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bert_repro.errors import UserError
from bert_repro.tasks.encoding import token_ids
from bert_repro.tasks.splits import held_out_rows
from bert_repro.tasks.squad.question_tables import TABLES, table_questions
from bert_repro.utils.readers import half_surrogate, read_json, shown

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerBase

IntArray = npt.NDArray[np.int64]
NO_ANSWER = (0, 0)
"""Target of a window without the full answer: [CLS]."""
UNFOUND = (-1, -1)
"""Target of a window whose question's answer cannot be found in the passage; it is not trained on."""
_MOST_AT_ONCE, _CHARACTERS_AT_ONCE = 1000, 20_000_000
_WORD = re.compile("[^ \t\r\n\u202f]+")  # what the original implementation takes for whitespace, not all of Unicode's


def read_questions(path: Path, *, unanswerable: bool) -> "datasets.Dataset":
    """Reads a file as published (.json: `data`, `paragraphs`, `context`, `qas`, `answers`) or a table.

    A table (.csv, .tsv, .jsonl) has a question on each row: `question`, `context`, `answer` (a text of the context,
    empty for no answer; without the column the file is unlabelled), and where they are there `answer_start` and `id`.
    JSON lines may have `answers` as the Hub's datasets do.

    Args:
        path: the file.
        unanswerable: whether questions may lack an answer (v2.0).

    Returns:
        The questions in the order of the file, with the columns of the Hub's datasets: `id`, `question`, `context` and,
        unless no question of the file has them, `answers` (`text`, `answer_start`, empty for no answer).

    Raises:
        UserError: the file is missing, is not such a file, has no question or one id twice; only some questions have
            answers; an answer lies outside its context.
    """
    import datasets

    columns: dict[str, list[Any]] = {"id": [], "question": [], "context": [], "answers": []}
    seen: set[str] = set()
    for context, question in table_questions(path) if path.suffix in TABLES else _questions(path):
        identity = question["id"]
        if identity in seen:
            raise UserError(f"{path}, question {shown(identity)}: this id occurs twice; give every question its own")
        seen.add(identity)
        columns["id"].append(identity)
        columns["question"].append(_text(path, identity, question, "question"))
        columns["context"].append(context)
        columns["answers"].append(_answers(path, identity, question, context, unanswerable))
    if not seen:
        raise UserError(f"{path}: no questions; get the file again")
    features = {"id": datasets.Value("string"), "question": datasets.Value("string")}
    features["context"] = datasets.Value("large_string")
    if _are_labelled(path, columns):
        answer = {
            "text": datasets.List(datasets.Value("string")),
            "answer_start": datasets.List(datasets.Value("int32")),
        }
        features["answers"] = answer
    else:
        del columns["answers"]
    return datasets.Dataset.from_dict(columns, features=datasets.Features(features))


def divided_questions(path: Path, fraction: float, seed: int, *, unanswerable: bool) -> "dict[str, datasets.Dataset]":
    """Reads a file and holds out some of its passages, with all their questions, as the dev set.

    Args:
        path: the file.
        fraction: share of the passages.
        seed: another seed draws other passages.
        unanswerable: whether questions may lack an answer.

    Returns:
        The splits `train` and `validation`.

    Raises:
        UserError: see `read_questions`; too few passages are there to divide.
    """
    questions = read_questions(path, unanswerable=unanswerable)
    passages = {text: number for number, text in enumerate(dict.fromkeys(questions["context"]))}
    held = held_out_rows([None] * len(passages), fraction, seed)[[passages[text] for text in questions["context"]]]
    if held.all() or not held.any():
        raise UserError(
            f"--validation_fraction {fraction}: {path} has {len(passages)} passages, too few to divide; give another "
            "share or a file of its own"
        )
    return {
        "train": questions.select(np.flatnonzero(~held)),
        "validation": questions.select(np.flatnonzero(held)),
    }


def lacks_answers(path: Path) -> bool:
    """Returns whether some question of a labelled file has no answer, as in SQuAD v2.0."""
    questions = read_questions(path, unanswerable=True)
    return "answers" in questions.column_names and any(not answers["text"] for answers in questions["answers"])


def _questions(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields every question with its context; the nesting is checked on the way."""
    for number, article in enumerate(_list(path, read_json(path, any_text=True), "data", "the file")):
        for place, paragraph in enumerate(_list(path, article, "paragraphs", f"data[{number}]")):
            where = f"data[{number}].paragraphs[{place}]"
            questions = _list(path, paragraph, "qas", where)
            context = paragraph.get("context")
            if not isinstance(context, str):
                raise UserError(f"{path}, {where}: context is {shown(context)}; it must be a text")
            if half := half_surrogate(context):
                raise UserError(f"{path}, {where}: context has half a surrogate pair at character {half}; repair it")
            for index, question in enumerate(questions):
                identity = question.get("id") if isinstance(question, dict) else None
                if not isinstance(identity, str) or not identity or half_surrogate(identity):
                    raise UserError(f"{path}, {where}.qas[{index}]: id is {shown(identity)}; give it a text of its own")
                yield context, question


def _list(path: Path, holder: Any, key: str, where: str) -> list[Any]:
    value = holder.get(key) if isinstance(holder, dict) else None
    if not isinstance(value, list):
        raise UserError(f"{path}, {where}: no list {key!r}; write the file as SQuAD's are: data, paragraphs, qas")
    return value


def _text(path: Path, identity: str, holder: dict[str, Any], key: str) -> str:
    value = holder.get(key)
    if not isinstance(value, str):
        raise UserError(f"{path}, question {shown(identity)}: {key} is {shown(value)}; it must be a text")
    if half := half_surrogate(value):
        raise UserError(
            f"{path}, question {shown(identity)}: {key} has half a surrogate pair at character {half}; repair it"
        )
    return value


def _answers(
    path: Path, identity: str, question: dict[str, Any], context: str, unanswerable: bool
) -> dict[str, list[Any]] | None:
    """Returns the answers as columns; None where the question says nothing about them."""
    if "answers" not in question:
        return None
    where = f"question {shown(identity)}"
    answers = _list(path, question, "answers", where)
    impossible = question.get("is_impossible", not answers)
    if not answers and not unanswerable:
        raise UserError(f"{path}, {where}: answers is empty; give an answer, or use --task_name squad_v2")
    if bool(impossible) == bool(answers):
        raise UserError(
            f"{path}, {where}: is_impossible is {shown(impossible)} with {len(answers)} answers; make the two agree"
        )
    columns: dict[str, list[Any]] = {"text": [], "answer_start": []}
    for answer in answers:
        start = answer.get("answer_start") if isinstance(answer, dict) else None
        if type(start) is not int:
            raise UserError(
                f"{path}, {where}: answer_start is {shown(start)}; it must be a place in the context, from 0"
            )
        text = _text(path, identity, answer, "text")
        if not 0 <= start <= len(context) - len(text):
            raise UserError(
                f"{path}, {where}: answer {shown(text)} at {start} lies outside its context of {len(context)} "
                "characters; correct answer_start"
            )
        columns["text"].append(text)
        columns["answer_start"].append(start)
    return columns


def _are_labelled(path: Path, columns: dict[str, list[Any]]) -> bool:
    """Returns whether the questions have answers; all or none must."""
    without = [identity for identity, answers in zip(columns["id"], columns["answers"], strict=True) if answers is None]
    if without and len(without) < len(columns["id"]):
        raise UserError(
            f"{path}, question {shown(without[0])}: no answers, while others have them; give every question a list "
            "(empty for no answer, v2.0), or none"
        )
    return not without


@dataclass(frozen=True)
class Passage:
    """A tokenised context.

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
    ids: IntArray
    pieces: Sequence[str]
    starts: IntArray
    ends: IntArray
    words: IntArray
    word_of: IntArray

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
    encoded = tokenizer(
        list(contexts),
        add_special_tokens=False,
        return_attention_mask=False,
        split_special_tokens=True,  # see `token_ids`
        verbose=False,
    )
    for number, context in enumerate(contexts):
        encoding = encoded[number]
        offsets = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
        words = np.array([match.span() for match in _WORD.finditer(context)], dtype=np.int64).reshape(-1, 2)
        word_of = np.searchsorted(words[:, 0], offsets[:, 0], side="right") - 1
        ids = np.array(encoding.ids, dtype=np.int64)
        yield Passage(context, ids, encoding.tokens, offsets[:, 0], offsets[:, 1], words, word_of)


def shared_passages(tokenizer: "PreTrainedTokenizerBase", contexts: Sequence[str]) -> list[Passage]:
    """Returns a passage for each context, tokenised once where several questions share it."""
    different = list(dict.fromkeys(contexts))
    passages = dict(zip(different, tokenize_passages(tokenizer, different), strict=True))
    return [passages[context] for context in contexts]


def questions_at_once(dataset: "datasets.Dataset", windows: int) -> int:
    """Returns how many questions fit into memory together: few about passages as long as books.

    Args:
        dataset: with the column `context`.
        windows: how many windows of a question a piece of its passage is in.
    """
    longest = max(max(map(len, rows["context"])) for rows in dataset.iter(_MOST_AT_ONCE))
    return max(1, min(_MOST_AT_ONCE, _CHARACTERS_AT_ONCE // (windows * max(1, longest))))


def passages_of(tokenizer: "PreTrainedTokenizerBase", dataset: "datasets.Dataset", at_once: int) -> Iterator[Passage]:
    """Yields the passage of each question, some at once."""
    for rows in dataset.iter(at_once):
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


def fullest_windows(spans: Sequence[tuple[int, int]], length: int) -> IntArray:
    """Finds for each piece the window in which it has most context, the first of equals.

    Context is min(left, right) + 0.01 x window length.

    Args:
        spans: from `window_spans`.
        length: pieces of the passage.

    Returns:
        Index into `spans`, (length,).
    """
    if len(spans) == 1:
        return np.zeros(length, dtype=np.int64)
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
