"""Other data make other runs."""

import dataclasses
from pathlib import Path

import pytest

from bert_repro.configs import StudyConfig
from bert_repro.errors import UserError
from bert_repro.reproduction import runner
from bert_repro.reproduction.size_presets import TASK_RECIPES
from bert_repro.reproduction.suite import task_fingerprint

FILES = {
    "mnli": ("MNLI/train.tsv", "MNLI/dev_matched.tsv", "MNLI/dev_mismatched.tsv"),
    "qnli": ("QNLI/train.tsv", "QNLI/dev.tsv"),
    "mrpc": ("MRPC/train.tsv", "MRPC/dev.tsv"),
    "sst2": ("SST-2/train.tsv", "SST-2/dev.tsv"),
    "squad": ("train-v1.1.json", "dev-v1.1.json"),
    "conll2003": ("eng.train", "eng.testa", "eng.testb"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (name for names in FILES.values() for name in names):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"content of {name}")
    (tmp_path / "MNLI/test_matched.tsv").write_text("not read")
    return tmp_path


@pytest.mark.parametrize(("task", "name"), [(task, name) for task, names in FILES.items() for name in names])
def test_every_file_that_a_task_reads_counts(folder: Path, task: str, name: str) -> None:
    before = {task: task_fingerprint(task, str(folder)) for task in FILES}
    (folder / name).write_text("changed")
    after = {task: task_fingerprint(task, str(folder)) for task in FILES}
    assert {task for task in FILES if before[task] != after[task]} == {task}


def test_the_place_of_the_files_and_what_is_not_read_do_not_count(folder: Path, tmp_path: Path) -> None:
    before = task_fingerprint("mnli", str(folder))
    (folder / "MNLI/test_matched.tsv").write_text("changed")
    other = folder.rename(tmp_path.with_name(f"{tmp_path.name}-moved"))
    assert task_fingerprint("mnli", str(other)) == before
    assert task_fingerprint("features", str(other)) == task_fingerprint("conll2003", str(other))


def test_the_hubs_data_sets_are_distinguished() -> None:
    names = {task_fingerprint(task, None) for task in TASK_RECIPES}
    assert len(names) == len(TASK_RECIPES) - 1


def test_a_folder_without_the_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--squad_dir .*: holds none of .*train-v1.1.json"):
        task_fingerprint("squad", str(tmp_path))


def test_other_files_make_other_runs_of_their_task_alone(folder: Path) -> None:
    config = StudyConfig(table=("5",), dry_run=True, glue_dir=str(folder), squad_dir=str(folder))
    before = {run.id for run in runner.planned_runs(config)}
    (folder / "MRPC/train.tsv").write_text("more rows")
    changed = [run for run in runner.planned_runs(config) if run.id not in before]
    assert {run.settings.get("task_name") for run in changed} == {"mrpc"}
    from_hub = {run.id for run in runner.planned_runs(dataclasses.replace(config, squad_dir=None))}
    assert {run.name.rpartition("-")[0] for run in runner.planned_runs(config) if run.id not in from_hub} == {"squad"}
