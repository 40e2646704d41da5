"""Questions about passages, in the columns of the Hub's SQuAD, of rows in any of the usual forms (paper 4.2)."""

from typing import TYPE_CHECKING, Any

from bert_repro.errors import UserError
from bert_repro.tasks.data import texts, values
from bert_repro.utils.readers import shown

if TYPE_CHECKING:
    import datasets


def questions_of(rows: "datasets.Dataset", where: str, *, unanswerable: bool) -> "datasets.Dataset":
    """Returns the split that rows of questions are.

    Args:
        rows: `question`, `context`; `answers` (an object of the lists `text` and `answer_start`, or a list of objects;
            empty for no answer), or `answer` (a text of the context, empty for no answer) and, where it is there,
            `answer_start`; without either the split is unlabelled. `id`, else the row's number from 0.
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
    given = _spans(rows, columns["context"], where)
    for identity, context, (answers, starts) in zip(columns["id"], columns["context"], given, strict=True):
        place = f"{where}, question {shown(identity)}"
        if not answers and not unanswerable:
            raise UserError(f"{place}: has no answer; give it one, or use --task_name squad_v2")
        for text, start in zip(answers, starts, strict=True):
            if not 0 <= start <= len(context) - len(text):
                raise UserError(
                    f"{place}: answer {shown(text)} at {start} lies outside its context of {len(context)} characters; "
                    "copy it from there, or correct answer_start"
                )
        found.append({"text": answers, "answer_start": starts})
    return found


def _spans(rows: "datasets.Dataset", contexts: list[str], where: str) -> list[tuple[list[str], list[int]]]:
    """Returns texts and first characters of the answers of each row; -1 for a text that its context does not hold."""
    if "answers" in rows.column_names:
        spans = []
        for row, answers in enumerate(rows["answers"], 1):
            try:
                if isinstance(answers, dict):
                    pairs = list(zip(answers["text"], answers["answer_start"], strict=True))
                else:
                    pairs = [(answer["text"], answer["answer_start"]) for answer in answers]
                spans.append(([str(text) for text, _ in pairs], [int(start) for _, start in pairs]))
            except (KeyError, TypeError, ValueError):
                raise UserError(
                    f"{where}, row {row}: answers is {shown(answers)}; it must be a list of objects with text and "
                    "answer_start, or an object of two lists, empty for no answer"
                ) from None
        return spans
    answers = [(text or "").strip() for text in values(rows, "answer", where)]
    starts = values(rows, "answer_start", where) if "answer_start" in rows.column_names else [""] * len(rows)
    spans = []
    for text, start, context in zip(answers, starts, contexts, strict=True):
        first = int(start) if str(start).isdigit() else context.find(text)
        inside = context[max(first, 0) :].startswith(text)
        spans.append(([text], [first if inside else -1]) if text else ([], []))
    return spans
