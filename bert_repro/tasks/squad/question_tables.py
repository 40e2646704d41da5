"""Questions as tables: a row each, in CSV, TSV or JSON lines, brought into the form of SQuAD's files."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bert_repro.utils.readers import numbered_lines, parse_json, shown
from bert_repro.utils.tables import read_table

TABLES = (".csv", ".tsv", ".jsonl")


def table_questions(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
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
