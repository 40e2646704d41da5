"""The tasks that can be fine-tuned, by the name that `--task_name` takes."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from bert_repro.configs import CustomDataConfig, FinetuningConfig, GlueConfig, NerConfig, SquadConfig, SwagConfig
from bert_repro.errors import UserError
from bert_repro.tasks.base import Task
from bert_repro.tasks.choice import SWAG, custom_choices
from bert_repro.tasks.classification import custom_classification
from bert_repro.tasks.data import read_file
from bert_repro.tasks.glue_tasks import GLUE_TASKS
from bert_repro.tasks.later_tasks import COPA, LATER_TASKS
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
        config: the settings; `train_file`, `validation_file` and `test_file` are read unless `data` is given.
        data: the user's rows, by split.

    Raises:
        UserError: no task is named, or the data is not as the task needs it.
    """
    files = config.data_files if isinstance(config, CustomDataConfig) else {}
    rows = data or {split: read_file(path, tagged=isinstance(config, NerConfig)) for split, path in files.items()}
    names = {split: str(files.get(split, split)) for split in rows}
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
            known = ", ".join(task.name for task in (SQUAD_TASKS if isinstance(config, SquadConfig) else GLUE_TASKS))
            raise UserError(f"--task_name is missing; it must be one of: {known}; or name your data with --train_file")
        case _:
            return TASKS[config.task_name]
