"""The zips for GLUE's leaderboard, from a study of Table 1 whose runs predict the test sets.

Each row of Table 1 gets one zip. Of a task's runs the one with the best score on dev is taken, as in the paper (4.1).
AX is predicted by the MNLI model that is taken.
"""

import logging
from collections.abc import Mapping, Sequence

from bert_repro.configs import GlueZipConfig
from bert_repro.reproduction.paper_results import TABLES
from bert_repro.reproduction.size_presets import AX
from bert_repro.reproduction.store import RunStore
from bert_repro.reproduction.suite import PlannedRun
from bert_repro.results import read_results
from bert_repro.tasks import TASKS
from bert_repro.tasks.glue_leaderboard import make_glue_zip

logger = logging.getLogger("bert_repro")

MNLI = "mnli"


def write_leaderboard_zips(runs: Sequence[PlannedRun], store: RunStore) -> None:
    """Writes OUTPUT/leaderboard/ROW.zip for every row of Table 1 whose runs have predicted all test sets.

    A row that lacks a task is named in the log and gets no zip.
    """
    columns = [column for column in TABLES[1].columns if column.task in TASKS]
    tasks = list(dict.fromkeys(column.task for column in columns))
    for row, runs_of_task in _predicting_runs(runs, store).items():
        missing = [task for task in tasks if task not in runs_of_task]
        if missing:
            logger.info("No leaderboard zip for %s: no finished run predicts %s.", row, ", ".join(missing))
            continue
        chosen = {task: _best_on_dev(runs_of_task[task], store) for task in tasks}
        ax = _ax_run(runs, chosen[MNLI])
        folders = [str(store.folder(run)) for run in (*chosen.values(), ax)]
        target = store.output_dir / "leaderboard" / f"{_file_name(row)}.zip"
        target.parent.mkdir(parents=True, exist_ok=True)
        make_glue_zip(GlueZipConfig(runs=tuple(folders), output_file=str(target), overwrite_output_file=True))


def _predicting_runs(runs: Sequence[PlannedRun], store: RunStore) -> Mapping[str, Mapping[str, list[PlannedRun]]]:
    """Returns row of Table 1 -> task -> the finished runs that have predicted its test set."""
    columns = {column.name: column.task for column in TABLES[1].columns}
    rows: dict[str, dict[str, list[PlannedRun]]] = {}
    for run in runs:
        if not (run.settings.get("do_predict") and store.is_done(run)):
            continue
        for entry in run.entries:
            # RTE started from the MNLI model fills a row of its own, which has no other task.
            if entry.table != "1" or run.start is None or not run.start.is_pretraining:
                continue
            task_runs = rows.setdefault(entry.row, {}).setdefault(columns[entry.column], [])
            if run not in task_runs:
                task_runs.append(run)
    return rows


def _best_on_dev(runs: Sequence[PlannedRun], store: RunStore) -> PlannedRun:
    """Returns the run with the highest primary metric on the task's first dev split; of equal runs the first."""

    def score(run: PlannedRun) -> float:
        results = read_results(store.records / run.id)
        return float(results["metrics"][TASKS[results["task"]].primary_metric])

    return max(runs, key=score)


def _ax_run(runs: Sequence[PlannedRun], mnli: PlannedRun) -> PlannedRun:
    """Returns the run that predicts AX with an MNLI model."""
    return next(run for run in runs if run.settings.get("task_name") == AX and run.start and run.start.id == mnli.id)


def _file_name(row: str) -> str:
    """Returns a row's name as the name of a file; rows of finished models are folders or Hub ids."""
    return row.replace("/", "--")
