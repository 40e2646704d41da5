"""The tasks that can be fine-tuned, by the name that `--task_name` accepts."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bert_repro.configs import CustomDataConfig, FinetuningConfig, GlueConfig, NerConfig, SquadConfig, SwagConfig
from bert_repro.configs.task_names import TaskName, enter_task_names
from bert_repro.errors import UserError, flag
from bert_repro.tasks.base import Task
from bert_repro.tasks.choice import SWAG, custom_choices
from bert_repro.tasks.custom_classification import custom_classification
from bert_repro.tasks.data import SPLIT_ROWS as SPLIT_ROWS
from bert_repro.tasks.data import read_file
from bert_repro.tasks.glue_tasks import GLUE_TASKS
from bert_repro.tasks.later_tasks import COPA, LATER_TASKS
from bert_repro.tasks.named_datasets import read_named_dataset, with_guessed_columns
from bert_repro.tasks.squad_task import SQUAD_TASKS, configured_squad
from bert_repro.tasks.tagging import CONLL2003, custom_tagging

if TYPE_CHECKING:
    import datasets

TEXT_TASKS = (*GLUE_TASKS, *LATER_TASKS)
CHOICE_TASKS = (SWAG, COPA)
TASKS: Mapping[str, Task] = {task.name: task for task in (*TEXT_TASKS, *SQUAD_TASKS, *CHOICE_TASKS, CONLL2003)}

# SPLIT_ROWS: (task, split) -> rows of the published split, of all tasks.
for _task in TASKS.values():
    for _split, _num_rows in _task.split_rows.items():
        SPLIT_ROWS[_task.name, _split] = _num_rows

# `--task_name` accepts these. The other configurations have one or two names, which are in their types.
for _config, _tasks in ((GlueConfig, TEXT_TASKS), (SwagConfig, CHOICE_TASKS)):
    enter_task_names(_config.__name__, [TaskName(task.name, task.title, task.in_paper) for task in _tasks])


def configured_task(config: FinetuningConfig, data: "Mapping[str, datasets.Dataset] | None" = None) -> Task:
    """Returns the task of a run: that of the user's data, or the one that `--task_name` names.

    Args:
        config: the settings. Its files or its dataset are read unless `data` is given.
        data: the user's rows, by split.

    Raises:
        UserError: no task is named, or the data does not have what the task needs.
    """
    if data is None and isinstance(config, CustomDataConfig) and config.dataset_name is not None:
        return _task_of_named_dataset(config)
    files: Mapping[str, Path] = {}
    rows = dict(data or {})
    if isinstance(config, CustomDataConfig):
        files = config.data_files
        if not rows:
            for split, path in files.items():
                rows[split] = read_file(path, tagged=isinstance(config, NerConfig), encoding=config.encoding)
    # What messages call the data.
    names = {split: str(files.get(split, split)) for split in rows}
    return _task_of_rows(config, rows, names)


def _task_of_named_dataset(config: CustomDataConfig) -> Task:
    """Returns the task of the dataset that `--dataset_name` names."""
    named_dataset = read_named_dataset(config)
    config, rows = with_guessed_columns(config, named_dataset.rows, named_dataset.name)
    task = _task_of_rows(config, rows, named_dataset.titles())
    return replace(task, named_dataset=named_dataset, title=named_dataset.title)


def _task_of_rows(config: FinetuningConfig, rows: "Mapping[str, datasets.Dataset]", names: Mapping[str, str]) -> Task:
    """Returns the task of the rows, or the published task if there are none.

    Args:
        config: the settings.
        rows: the user's rows, by split.
        names: what messages call them, by split.
    """
    if isinstance(config, SquadConfig):
        squad_task = configured_squad(config, rows, names)
        if squad_task is not None:
            return squad_task
    if rows and isinstance(config, GlueConfig):
        return custom_classification(config, rows, names)
    if rows and isinstance(config, NerConfig):
        return custom_tagging(config, rows, names)
    if rows and isinstance(config, SwagConfig):
        return custom_choices(config, rows, names)

    if not config.task_name:
        tasks = SQUAD_TASKS if isinstance(config, SquadConfig) else GLUE_TASKS
        task_names = ", ".join(task.name for task in tasks)
        raise UserError(
            f"Nothing says what to learn. Name a task with {flag('task_name')} ({task_names}), your files with "
            f"{flag('train_file')}, or a dataset with {flag('dataset_name')}.",
            setting="task_name",
        )
    return TASKS[config.task_name]
