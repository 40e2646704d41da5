"""The tasks that can be fine-tuned, by the name that `--task_name` takes."""

from collections.abc import Mapping
from dataclasses import fields

from bert_repro.configs import FinetuningConfig, GlueConfig, NerConfig, SquadConfig, SwagConfig
from bert_repro.errors import UserError
from bert_repro.in_memory_data import lacks_answers
from bert_repro.tasks.base import Task
from bert_repro.tasks.custom_data import custom_classification, custom_tagging
from bert_repro.tasks.glue.glue_tasks import GLUE_TASKS
from bert_repro.tasks.multiple_choice import SWAG, custom_choices
from bert_repro.tasks.squad.squad_task import SQUAD_TASKS
from bert_repro.tasks.tagging.tagging_task import CONLL2003
from bert_repro.utils.readers import shown

TASKS: Mapping[str, Task] = {task.name: task for task in (*GLUE_TASKS, *SQUAD_TASKS, SWAG, CONLL2003)}


def get_task(name: str) -> Task:
    """Returns the task of that name.

    Raises:
        UserError: there is none.
    """
    if name not in TASKS:
        raise UserError(f"--task_name is {shown(name)}; it must be one of: {', '.join(TASKS)}")
    return TASKS[name]


def configured_task(config: FinetuningConfig) -> Task:
    """Returns the task of a run: that of custom files, or the one that `--task_name` names.

    Raises:
        UserError: there is no such task, or the files are not as the task needs them.
    """
    match config:
        case GlueConfig() if config.data_files:
            return custom_classification(config)
        case NerConfig() if config.data_files:
            return custom_tagging(config)
        case SquadConfig() if not config.task_name and (files := _files_of(config)):
            return get_task("squad_v2" if any(map(lacks_answers, files)) else "squad")
        case SwagConfig() if config.data_files:
            return custom_choices(config)
        case _ if not config.task_name:
            (choices,) = (item.metadata["choices"] for item in fields(config) if item.name == "task_name")
            custom = ", or name custom data with --train_file" if isinstance(config, GlueConfig) else ""
            raise UserError(f"--task_name is missing; it must be one of: {', '.join(choices or TASKS)}{custom}")
        case _:
            return get_task(config.task_name)


def _files_of(config: SquadConfig) -> list[str]:
    """The files that say whether questions may lack an answer; without them a test file says nothing."""
    return [name for name in (config.train_file, config.validation_file) if name]


__all__ = ["TASKS", "Task", "configured_task", "get_task"]
