"""The official files beside the project, or under BERT_REPRO_DATA: every split that is there loads complete."""

import os
from pathlib import Path

import pytest

from bert_repro.tasks import SPLIT_ROWS
from bert_repro.tasks.glue_tasks import GLUE_TASKS

DATA = Path(os.environ.get("BERT_REPRO_DATA", Path(__file__).parents[3] / "shared" / "data")) / "glue"
OTHER_ROWS = {("mnli", "train"): 34_745, ("qnli", "train"): 9_999, ("ax", "validation"): 1_104}  # beside the project

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not DATA.is_dir(), reason=f"no {DATA}")]


@pytest.mark.parametrize("task", GLUE_TASKS, ids=lambda task: task.name)
def test_every_row_is_read(task):
    there = [split for split, file in task.files.items() if (DATA / task.title / file.name).exists()]
    for split in there:
        dataset = task.load(DATA, [split])[split]
        rows = {**SPLIT_ROWS, **OTHER_ROWS}[task.name, split]
        assert len(dataset) == rows, split
        assert task.is_labelled(dataset) is (not split.startswith("test")), split
        assert dataset["idx"][:] == list(range(rows)), split
