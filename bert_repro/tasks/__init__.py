"""The tasks that can be fine-tuned, by the name that `--task_name` takes."""

from collections.abc import Mapping
from pathlib import Path

from bert_repro.configs import FinetuningConfig, GlueConfig, NerConfig, SquadConfig, SwagConfig
from bert_repro.configs.base import choices_of
from bert_repro.errors import UserError
from bert_repro.tasks.base import Task
from bert_repro.tasks.custom_data import custom_classification, custom_tagging
from bert_repro.tasks.glue.glue_tasks import GLUE_TASKS
from bert_repro.tasks.multiple_choice import SWAG, custom_choices
from bert_repro.tasks.squad.questions import lacks_answers
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
        case SquadConfig() if not config.task_name and (name := _squad_name(config)):
            return get_task(name)
        case SwagConfig() if config.data_files:
            return custom_choices(config)
        case _ if not config.task_name:
            choices = choices_of(type(config), "task_name")
            custom = ", or name custom data with --train_file" if isinstance(config, GlueConfig) else ""
            raise UserError(f"--task_name is missing; it must be one of: {', '.join(choices or TASKS)}{custom}")
        case _:
            return get_task(config.task_name)


def _squad_name(config: SquadConfig) -> str | None:
    """Returns which SQuAD a run is about, where its files, its folder or its finished model say so."""
    files = config.data_files
    if files:
        labelled = [path for split, path in files.items() if split != "test"]
        without = any(map(lacks_answers, labelled)) or (not config.do_train and _may_leave_unanswered(config))
        return "squad_v2" if without else "squad"
    if config.data_dir is None:
        return None
    present = [
        task.name for task in SQUAD_TASKS if any(path.is_file() for path in task.data_files(Path(config.data_dir)))
    ]
    return present[0] if len(present) == 1 else None


def _may_leave_unanswered(config: SquadConfig) -> bool:
    """Returns whether a finished model stores a threshold for no answer, as those trained for SQuAD v2.0 do."""
    from bert_repro.models.loading import load_config

    return getattr(load_config(config.model_name_or_path), "null_score_diff_threshold", None) is not None


__all__ = ["TASKS", "Task", "configured_task", "get_task"]
