"""The names that `--task_name` accepts.

A task is declared once, as an object in `bert_repro/tasks`. That is a layer above the configurations, which must not
depend on it. So the tasks enter their names here when they are imported, and they are imported when somebody first asks
for the names.
"""

import importlib
from collections.abc import Iterable
from dataclasses import dataclass

TASKS_PACKAGE = "bert_repro.tasks"


@dataclass(frozen=True)
class TaskName:
    """What the command line needs to know about a task.

    Args:
        name: the value of `--task_name`.
        title: the name that people write; tasks with the same title are parts of one, such as XNLI's languages.
        in_paper: whether the paper reports the task.
    """

    name: str
    title: str
    in_paper: bool


_names: dict[str, tuple[TaskName, ...]] = {}


def enter_task_names(config_name: str, names: Iterable[TaskName]) -> None:
    """Enters the tasks that a configuration class accepts, in the order of the help text."""
    _names[config_name] = tuple(names)


def task_choices(config_name: str) -> tuple[str, ...]:
    """Returns the names of the tasks that a configuration class accepts."""
    return tuple(task.name for task in _tasks_of(config_name))


def task_help(config_name: str) -> str:
    """Returns the help text of `--task_name`: the tasks of the paper, then the others."""
    tasks = _tasks_of(config_name)
    in_paper = _in_short([task for task in tasks if task.in_paper])
    newer = _in_short([task for task in tasks if not task.in_paper])
    return f"Name of the task: {in_paper}. Not in the paper: {newer}."


def _tasks_of(config_name: str) -> tuple[TaskName, ...]:
    importlib.import_module(TASKS_PACKAGE)
    return _names[config_name]


def _in_short(tasks: Iterable[TaskName]) -> str:
    """Returns the names separated by spaces. Of several tasks with one title, only the first and the last are named."""
    by_title: dict[str, list[str]] = {}
    for task in tasks:
        by_title.setdefault(task.title, []).append(task.name)
    parts = []
    for names in by_title.values():
        last_suffix = names[-1].rpartition("_")[2]
        parts.append(names[0] if len(names) == 1 else f"{names[0]} (to {last_suffix})")
    return " ".join(parts)
