"""Files of SQuAD: questions, read strictly (every error names the file, the question and the fix), and answers."""

import json
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_repro.errors import UserError
from bert_repro.utils.readers import half_surrogate, read_json, shown

if TYPE_CHECKING:
    import datasets


def read_questions(path: Path, *, unanswerable: bool) -> "datasets.Dataset":
    """Reads a file as published: `data`, `paragraphs`, `context`, `qas`, `answers`.

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
    for context, question in _questions(path):
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


def write_by_id(path: Path, ids: Iterable[str], values: Iterable[Any]) -> None:
    """Writes a JSON object of one value per question as the official scripts read it, a question at a time.

    Args:
        path: the file.
        ids: at least one question id.
        values: the value of each.
    """
    with path.open("w", encoding="utf-8") as file:
        before = "{"
        for identity, value in zip(ids, values, strict=True):
            text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False).replace("\n", "\n ")
            file.write(f"{before}\n {json.dumps(identity, ensure_ascii=False)}: {text}")
            before = ","
        file.write("\n}\n")


class ListsOnDisk:
    """N-best lists in a temporary file, read back in order: those of a large set do not fit into memory."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 (it goes with the object)

    def append(self, best: list[dict[str, Any]]) -> None:
        """Adds the list of the next question."""
        self._file.write(json.dumps(best) + "\n")

    def __iter__(self) -> Iterator[list[dict[str, Any]]]:
        self._file.seek(0)
        return map(json.loads, self._file)


def _questions(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields every question with its context; the nesting is checked on the way."""
    for number, article in enumerate(_list(path, read_json(path), "data", "the file")):
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
