"""Text tasks read from the Hub: rows in the columns, labels and file names of the published datasets.

They follow from the tasks' objects, see `text_tasks`. Every dataset has a column that the task does not read.
"""

import io
from pathlib import Path
from typing import Any

import datasets
import pytest
from datasets import ClassLabel, Features, Value
from fake_hub import FakeHub, Repo
from text_tasks import ONE_OF_EACH_TITLE, labels_of, rows_of

from bert_repro.tasks import TASKS
from bert_repro.tasks.base import HubSource
from bert_repro.tasks.official_files import GlueTask

COPA_ROW = {"premise": "It fell.", "choice1": "It broke.", "choice2": "It flew.", "question": "effect"}


@pytest.fixture
def online(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeHub:
    """The Hub, for `datasets` as well."""
    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", hub.url)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets-cache")
    return hub


def publish(online: FakeHub, source: HubSource, splits: dict[str, datasets.Dataset]) -> None:
    """Puts a dataset on the Hub: on the main branch with a card, on another one as the Hub converts scripts."""
    branch = source.revision or "main"
    configuration = source.configuration or "plain_text"
    files, listed = {}, []
    for split, rows in splits.items():
        rows.to_parquet(buffer := io.BytesIO())
        if branch == "main":
            files[f"{configuration}/{split}-00000-of-00001.parquet"] = buffer.getvalue()
            listed.append(f"  - split: {split}\n    path: {configuration}/{split}-*\n")
        else:
            files[f"{configuration}/{split}/0000.parquet"] = buffer.getvalue()
    other = ""
    if source.configuration:
        # A dataset with several configurations has no default one.
        other = f"- config_name: other\n  data_files: {configuration}/none-*\n"
    card = f"---\nconfigs:\n- config_name: {configuration}\n  data_files:\n{''.join(listed)}{other}---\n"
    if branch == "main":
        files["README.md"] = card.encode()
    repo = online.repos[f"datasets/{source.dataset}"] = Repo(private=False)
    repo.commit("main", {"script.py": b"raise SystemExit"}, "a script, which is not run")
    repo.commit(branch, files, "rows")


def published(task: GlueTask, labels: list[Any]) -> datasets.Dataset:
    kind = Value("float32") if task.number_range else ClassLabel(names=list(task.label_names))
    columns = {name: Value("string") for name in (*task.text_columns, "another column")}
    rows = [{**row, "another column": "x", "label": label} for row, label in zip(rows_of(task), labels, strict=True)]
    return datasets.Dataset.from_list(rows, features=Features({**columns, "label": kind}))


@pytest.mark.parametrize("task", ONE_OF_EACH_TITLE, ids=lambda task: task.name)
def test_a_text_task_is_read_from_the_hub(online: FakeHub, task: GlueTask) -> None:
    # The Hub has the rows of unlabelled splits with the label -1.
    hidden = set(task.predict_splits)
    labelled = {task.train_split or "train", *task.eval_splits} - hidden
    splits = {split: published(task, labels_of(task)) for split in labelled}
    splits |= {split: published(task, [-1] * len(labels_of(task))) for split in hidden}
    publish(online, HubSource(*task.hub), splits)

    read = task.load(None, [*labelled, *hidden])
    for split in labelled:
        assert read[split].to_list() == [{**row, "idx": place} for place, row in enumerate(rows_of(task))]
    for split in hidden:
        assert len(read[split]) == len(rows_of(task)) and not task.is_labelled(read[split])


def test_copa_is_read_from_the_hub(online: FakeHub) -> None:
    task = TASKS["copa"]
    kinds = {**dict.fromkeys(COPA_ROW, Value("string")), "label": ClassLabel(names=["choice1", "choice2"])}
    labelled = datasets.Dataset.from_list([{**COPA_ROW, "label": label} for label in (1, 0)], Features(kinds))
    hidden = datasets.Dataset.from_list([{**COPA_ROW, "label": -1}], Features(kinds))
    publish(online, HubSource(*task.hub), {"validation": labelled, "test": hidden})

    read = task.load(None, ["validation", "test"])
    choice = {"sent1": "It fell. What happened as a result?", "ending0": "It broke.", "ending1": "It flew."}
    assert choice.items() <= read["validation"][0].items()
    assert read["validation"]["label"][:] == [1, 0] and not task.is_labelled(read["test"])
