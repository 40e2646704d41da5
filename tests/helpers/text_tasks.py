"""Made-up rows of a text task, in the form of its official files and of its dataset on the Hub.

Everything follows from the task's object, so a new task is tested without a line about it here.
"""

import json
from pathlib import Path
from typing import Any

from bert_repro.tasks import TEXT_TASKS
from bert_repro.tasks.official_files import GlueFile, GlueTask

ONE_OF_EACH_TITLE = {task.title: task for task in TEXT_TASKS}.values()
"""Tasks with the same title, such as XNLI's languages, differ in names alone."""


def labels_of(task: GlueTask) -> list[Any]:
    """The labels of the rows: each label once, or some numbers."""
    return [0.0, 2.5, 5.0] if task.number_range else list(range(len(task.label_names)))


def rows_of(task: GlueTask) -> list[dict[str, Any]]:
    """The rows as the task has them: texts, and the label as a number."""
    rows = []
    for place, label in enumerate(labels_of(task)):
        texts = {column: f'{column} "{place}", of row {place}.' for column in task.text_columns}
        rows.append({**texts, "label": label})
    return rows


def write_official_file(task: GlueTask, data_dir: Path, split: str) -> Path:
    """Writes an official file of the task with `rows_of`, and with a row of another task if the file has such."""
    file = task.files[split]
    path = task.official_file(data_dir, split)
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = []
    for place, row in enumerate(rows_of(task)):
        written = dict(zip(file.texts or task.text_columns, (row[name] for name in task.text_columns), strict=True))
        if file.labelled:
            written[file.label] = spelled(task, row["label"])
        if file.index:
            written[file.index] = place
        rows.append(written)
    column, value = task.only
    if column:
        rows = [{**row, column: value} for row in rows] + [{**rows[0], column: "another"}]

    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        path.write_text("".join("\t".join(line) + "\n" for line in lines_of(file, rows)))
    return path


def spelled(task: GlueTask, label: Any) -> Any:
    if task.number_range:
        return label
    name = (task.file_labels or task.label_names)[label]
    # SuperGLUE's files have JSON's true and false.
    return json.loads(name) if name in ("true", "false") else name


def lines_of(file: GlueFile, rows: list[dict[str, Any]]) -> list[list[str]]:
    """The fields of every line. Columns that the task does not read are there too."""
    names = list(file.header or (*rows[0], "other column"))
    lines = [[str(row.get(name, "not read")) for name in names] for row in rows]
    return lines if file.header else [names, *lines]
