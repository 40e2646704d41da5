"""The tasks that can be fine-tuned, by the name that `--task_name` takes."""

from collections.abc import Mapping

from bert_repro.errors import UserError
from bert_repro.tasks.base import Task
from bert_repro.tasks.glue import GLUE_TASKS

TASKS: Mapping[str, Task] = {task.name: task for task in GLUE_TASKS}


def get_task(name: str) -> Task:
    """The task of that name.

    Raises:
        UserError: there is none.
    """
    if name not in TASKS:
        raise UserError(f"--task_name is {name!r}; it must be one of: {', '.join(TASKS)}")
    return TASKS[name]


__all__ = ["TASKS", "Task", "get_task"]
