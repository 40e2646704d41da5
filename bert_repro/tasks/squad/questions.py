"""Reads the questions of SQuAD's files, and of tables brought into their form, strictly (paper 4.2).

Every error names the file, the question and the fix.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_repro.errors import UserError
from bert_repro.tasks.splits import held_out_rows
from bert_repro.utils.readers import half_surrogate, numbered_lines, parse_json, read_json, shown
from bert_repro.utils.tables import read_table

if TYPE_CHECKING:
    import datasets

TABLES = (".csv", ".tsv", ".jsonl")


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
    for context, question in _table_questions(path) if path.suffix in TABLES else _questions(path):
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


def _table_questions(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the rows of a table as passages with a question each, in the form of SQuAD's questions.

    Raises:
        UserError: a column is missing, or an answer is not in its passage.
    """
    if path.suffix == ".jsonl" and (nested := _hub_questions(path)) is not None:
        yield from nested
        return
    table = read_table(path, ("question", "context"), optional=("id", "answer", "answer_start"))
    columns = table.columns
    for row, (text, context) in enumerate(zip(columns["question"], columns["context"], strict=True)):
        question: dict[str, Any] = {"id": columns["id"][row] if "id" in columns else str(row), "question": text}
        if "answer" in columns:
            answer = columns["answer"][row].strip()
            start = columns["answer_start"][row] if "answer_start" in columns else ""
            place = int(start) if start.isdigit() else context.find(answer)
            if answer and (place < 0 or context[place : place + len(answer)] != answer):
                raise table.error(
                    row, f"answer {shown(answer)} is not in the context; copy it from there, or leave it empty for none"
                )
            question["answers"] = [{"text": answer, "answer_start": place}] if answer else []
        yield context, question


def _hub_questions(path: Path) -> list[tuple[str, dict[str, Any]]] | None:
    """Returns the questions of JSON lines in the form of the Hub's datasets; None where they have another."""
    found = []
    for number, line in numbered_lines(path):
        if not line.strip():
            continue
        row = parse_json(line, f"{path}, line {number}", "write one object per line")
        answers = row.get("answers") if isinstance(row, dict) else None
        if not isinstance(answers, dict) or not {"text", "answer_start"} <= answers.keys():
            return None
        pairs = zip(answers["text"], answers["answer_start"], strict=False)
        spans = [{"text": text, "answer_start": start} for text, start in pairs]
        found.append((str(row.get("context", "")), {"id": str(number), **row, "answers": spans}))
    return found
