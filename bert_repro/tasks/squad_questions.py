"""Questions, passages and answers from rows in any of the usual forms: SQuAD's JSON, tables, or rows in memory."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from bert_repro.errors import UserError, flag
from bert_repro.tasks.columns import texts, values
from bert_repro.utils.readers import quoted

if TYPE_CHECKING:
    import datasets

NOT_IN_CONTEXT = -1
"""Place of an answer whose text does not occur in its passage."""


class AnswerLists(TypedDict):
    """The right answers to a question as SQuAD's datasets on the Hub store them; empty lists for no answer.

    Args:
        text: the text of each answer.
        answer_start: place of the first character of each answer.
    """

    text: list[str]
    answer_start: list[int]


@dataclass(frozen=True)
class _Answer:
    """One right answer to a question.

    Args:
        text: the answer.
        start: place of its first character in the passage.
    """

    text: str
    start: int


def questions_of(rows: "datasets.Dataset", where: str, *, unanswerable: bool) -> "datasets.Dataset":
    """Turns rows of questions into a split of a SQuAD task.

    Args:
        rows: a row per question with the columns `question` and `context`, and optionally:

            - `answers`: an object of the lists `text` and `answer_start`, or a list of objects; empty for no answer.
            - `answer`: a text of the passage, empty for no answer; and `answer_start`.
            - `is_impossible`: a question for which it is true has no answer, whatever its answers say, as in the
              original run_squad.py.
            - `id`. Without it the row's number from 0 is the id.

            A split without `answers` and `answer` is unlabelled.
        where: name of the data for messages.
        unanswerable: whether questions may lack an answer (v2.0).

    Returns:
        Columns `id`, `question`, `context` and, if the split is labelled, `answers` (`text`, `answer_start`).

    Raises:
        UserError: a column is missing, an id occurs twice, or an answer is missing or outside its passage.
    """
    import datasets

    ids = _question_ids(rows, where)
    contexts = texts(rows, "context", where)
    columns: dict[str, list[Any]] = {"id": ids, "question": texts(rows, "question", where), "context": contexts}
    features: dict[str, object] = {name: datasets.Value("string") for name in ("id", "question")}
    # Passages that many questions share can exceed the 2 GiB of an ordinary column.
    features["context"] = datasets.Value("large_string")
    # Test sets have no answers.
    if {"answers", "answer"} & set(rows.column_names):
        columns["answers"] = _answer_column(rows, ids, contexts, where, unanswerable)
        features["answers"] = {
            "text": datasets.List(datasets.Value("string")),
            "answer_start": datasets.List(datasets.Value("int32")),
        }
    return datasets.Dataset.from_dict(columns, features=datasets.Features(features))


def _question_ids(rows: "datasets.Dataset", where: str) -> list[str]:
    if "id" not in rows.column_names:
        return [str(place) for place in range(len(rows))]
    ids = texts(rows, "id", where)
    earlier_ids: set[str] = set()
    for identity in ids:
        if identity in earlier_ids:
            raise UserError(
                f"{where}, question {quoted(identity)}: this id occurs twice. Give every question an id of its own."
            )
        earlier_ids.add(identity)
    return ids


def _answer_column(
    rows: "datasets.Dataset", ids: Sequence[str], contexts: Sequence[str], where: str, unanswerable: bool
) -> list[AnswerLists]:
    """Returns the answers of each question as an object of the lists `text` and `answer_start`."""
    if "answers" in rows.column_names:
        answers_of_rows = _answers_from_objects(rows["answers"], ids, where)
    else:
        answers_of_rows = _answers_from_texts(rows, contexts, where)
    column: list[AnswerLists] = []
    for identity, context, answers, is_impossible in zip(
        ids, contexts, answers_of_rows, _impossible(rows), strict=True
    ):
        place = f"{where}, question {quoted(identity)}"
        # An answer without text is no answer. Its place would make the first word of the passage the target.
        answers = [] if is_impossible else [answer for answer in answers if answer.text.strip()]
        if not answers and not unanswerable:
            raise UserError(
                f"{place}: has no answer. Give it one, or use {flag('task_name', 'squad_v2')}.", setting="task_name"
            )
        for answer in answers:
            if 0 <= answer.start <= len(context) - len(answer.text):
                continue
            # Which of the two is wrong, the text or the place?
            if answer.text not in context:
                raise UserError(
                    f"{place}: answer {quoted(answer.text)} does not occur in its context. Copy the answer from there."
                )
            raise UserError(
                f"{place}: answer {quoted(answer.text)} at {answer.start} lies outside its context of {len(context)} "
                "characters. Correct answer_start."
            )
        column.append(
            {"text": [answer.text for answer in answers], "answer_start": [answer.start for answer in answers]}
        )
    return column


def _impossible(rows: "datasets.Dataset") -> list[bool]:
    """Returns whether each question is marked as unanswerable; in a table the mark is a text or a number."""
    if "is_impossible" not in rows.column_names:
        return [False] * len(rows)
    return [str(value).strip().casefold() in ("true", "1") for value in rows["is_impossible"]]


def _answers_from_objects(column: Iterable[object], ids: Sequence[str], where: str) -> Iterator[list[_Answer]]:
    """Yields the answers of each row of a column `answers`."""
    for identity, value in zip(ids, column, strict=True):
        try:
            yield _answers_from_object(value)
        except (KeyError, TypeError, ValueError):
            raise UserError(
                f"{where}, question {quoted(identity)}: answers is {quoted(value)}. It must be a list of objects with "
                "text and answer_start, or an object of two lists, empty for no answer."
            ) from None


def _answers_from_object(value: Any) -> list[_Answer]:
    """Returns the answers of one row.

    Raises:
        KeyError, TypeError, ValueError: the value is in neither of the two forms.
    """
    # SQuAD's files contain a list of objects, the Hub's datasets an object of lists.
    if isinstance(value, list):
        return [_Answer(str(item["text"]), int(item["answer_start"])) for item in value]
    answers = []
    for text, start in zip(value["text"], value["answer_start"], strict=True):
        answers.append(_Answer(str(text), int(start)))
    return answers


def _answers_from_texts(rows: "datasets.Dataset", contexts: Sequence[str], where: str) -> Iterator[list[_Answer]]:
    """Yields the answer of each row of a column `answer`. Without `answer_start` its first place is searched for."""
    starts = [""] * len(rows)
    if "answer_start" in rows.column_names:
        starts = values(rows, "answer_start", where)
    for value, start, context in zip(values(rows, "answer", where), starts, contexts, strict=True):
        # Copied answers often have a space at an end.
        text = (value or "").strip()
        if not text:
            yield []
            continue
        # In a table, the place may be missing in some rows.
        first = int(start) if str(start).isdecimal() else context.find(text)
        is_there = first >= 0 and context.startswith(text, first)
        yield [_Answer(text, first if is_there else NOT_IN_CONTEXT)]


def answer_texts(dataset: "datasets.Dataset") -> list[list[str]]:
    """Returns the texts of the right answers to each question of a labelled split."""
    answers: Iterable[AnswerLists] = dataset["answers"]
    return [answer["text"] for answer in answers]
