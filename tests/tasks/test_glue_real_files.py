"""The official files beside the project, or under BERT_REPRO_DATA: every split loads complete."""

import os
from pathlib import Path

import pytest

from bert_repro.tasks import TASKS

DATA = Path(os.environ.get("BERT_REPRO_DATA", Path(__file__).parents[3] / "shared" / "data")) / "glue"
ROWS = {
    "cola": {"train": 8551, "validation": 1043, "test": 1063},
    "sst2": {"train": 67349, "validation": 872, "test": 1821},
    "mrpc": {"train": 3668, "validation": 408, "test": 1725},
    "stsb": {"train": 5749, "validation": 1500, "test": 1379},
    "mnli": {"train": 34745, "validation_matched": 9815},
    "qnli": {"train": 9999, "validation": 5463, "test": 5463},
    "rte": {"train": 2490, "validation": 277, "test": 3000},
    "wnli": {"train": 635, "validation": 71, "test": 146},
    "ax": {"test": 1104},
}

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not DATA.is_dir(), reason=f"no {DATA}")]


@pytest.mark.parametrize("name", ROWS)
def test_every_row_is_read(name):
    task = TASKS[name]
    for split, rows in ROWS[name].items():
        dataset = task.load(DATA, [split])[split]
        assert len(dataset) == rows, split
        assert task.is_labelled(dataset) is (not split.startswith("test")), split
        assert dataset["idx"][:] == list(range(rows)), split
