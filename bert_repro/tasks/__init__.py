"""The tasks that can be fine-tuned, by the name that `--task_name` takes."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from bert_repro.configs import CustomDataConfig, FinetuningConfig, GlueConfig, NerConfig, SquadConfig, SwagConfig
from bert_repro.errors import UserError, flag
from bert_repro.tasks.base import Task
from bert_repro.tasks.choice import SWAG, custom_choices
from bert_repro.tasks.classification import custom_classification
from bert_repro.tasks.data import read_file
from bert_repro.tasks.glue_tasks import GLUE_TASKS
from bert_repro.tasks.later_tasks import COPA, LATER_TASKS
from bert_repro.tasks.named_datasets import read_named_dataset, with_guessed_columns
from bert_repro.tasks.squad_task import SQUAD_TASKS, configured_squad
from bert_repro.tasks.tagging import CONLL2003, custom_tagging

if TYPE_CHECKING:
    import datasets

TASKS: Mapping[str, Task] = {
    task.name: task for task in (*GLUE_TASKS, *LATER_TASKS, *SQUAD_TASKS, SWAG, COPA, CONLL2003)
}


def configured_task(config: FinetuningConfig, data: "Mapping[str, datasets.Dataset] | None" = None) -> Task:
    """Returns the task of a run: that of the user's data, or the one that `--task_name` names.

    Args:
        config: the settings; its files or its dataset are read unless `data` is given.
        data: the user's rows, by split.

    Raises:
        UserError: no task is named, or the data is not as the task needs it.
    """
    if data is None and isinstance(config, CustomDataConfig) and config.dataset_name is not None:
        return _task_of_named_dataset(config)
    files = config.data_files if isinstance(config, CustomDataConfig) else {}
    rows = data or {split: read_file(path, tagged=isinstance(config, NerConfig)) for split, path in files.items()}
    names = {split: str(files.get(split, split)) for split in rows}
    return _task(config, rows, names)


def _task_of_named_dataset(config: CustomDataConfig) -> Task:
    """Returns the task of the dataset that `--dataset_name` names."""
    named_dataset = read_named_dataset(config)
    config, rows = with_guessed_columns(config, named_dataset.rows, named_dataset.name)
    task = _task(config, rows, named_dataset.titles())
    return replace(task, named_dataset=named_dataset, title=named_dataset.title)


def _task(config: FinetuningConfig, rows: "Mapping[str, datasets.Dataset]", names: Mapping[str, str]) -> Task:
    """Returns the task of the rows, or the published task if there are none.

    Args:
        config: the settings.
        rows: the user's rows, by split.
        names: what messages call them, by split.
    """
    match config:
        case SquadConfig() if (task := configured_squad(config, rows, names)) is not None:
            return task
        case GlueConfig() if rows:
            return custom_classification(config, rows, names)
        case NerConfig() if rows:
            return custom_tagging(config, rows, names)
        case SwagConfig() if rows:
            return custom_choices(config, rows, names)
        case _ if not config.task_name:
            tasks = SQUAD_TASKS if isinstance(config, SquadConfig) else GLUE_TASKS
            task_names = ", ".join(task.name for task in tasks)
            raise UserError(
                f"Nothing says what to learn. Name a task with {flag('task_name')} ({task_names}), your files with "
                f"{flag('train_file')}, or a dataset with {flag('dataset_name')}.",
                setting="task_name",
            )
        case _:
            return TASKS[config.task_name]
