"""Makes the zip that the GLUE leaderboard accepts from the test predictions of finished runs."""

import logging
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bert_repro.configs import GlueZipConfig
from bert_repro.errors import UserError, flag
from bert_repro.results import read_results
from bert_repro.tasks.data import read_glue
from bert_repro.tasks.glue_tasks import AX, COLA, MNLI, MRPC, QNLI, QQP, RTE, SST2, STSB, WNLI
from bert_repro.tasks.official_files import GlueTask
from bert_repro.utils.files import RESULTS, SWEEP, atomic_path

logger = logging.getLogger("bert_repro")

HEADER = "index\tprediction"
WNLI_MAJORITY = "0"
"""not_entailment, the label of 323 of the 635 training rows."""
FILES = {
    "AX.tsv": (AX, "test"),
    "CoLA.tsv": (COLA, "test"),
    "MNLI-m.tsv": (MNLI, "test_matched"),
    "MNLI-mm.tsv": (MNLI, "test_mismatched"),
    "MRPC.tsv": (MRPC, "test"),
    "QNLI.tsv": (QNLI, "test"),
    "QQP.tsv": (QQP, "test"),
    "RTE.tsv": (RTE, "test"),
    "SST-2.tsv": (SST2, "test"),
    "STS-B.tsv": (STSB, "test"),
    "WNLI.tsv": (WNLI, "test"),
}
"""Name of each file in the zip -> the task whose predictions it contains, and the split."""


@dataclass(frozen=True)
class _FinishedRun:
    """A run's folder, and the name of its task; None if its results do not name one."""

    folder: Path
    task_name: str | None


def make_glue_zip(config: GlueZipConfig) -> Path:
    """Collects the test predictions of finished runs in the zip that GLUE's leaderboard accepts.

    The zip contains eleven files, each with the header `index<tab>prediction` and one row for every row of an official
    test set, in that order, with labels as in the official files (https://gluebenchmark.com, "How do I submit?"). WNLI
    is the majority class, as in the paper (B.1). AX is predicted by the MNLI model.

    Returns:
        The path of the zip.

    Raises:
        UserError: predictions are missing, are not those of the official test set, or two runs have them. No zip is
            written then.
    """
    runs = _finished_runs(config.runs)

    # Collect and check everything before the zip is written.
    contents: dict[str, str] = {}
    for file_name, (task, split) in FILES.items():
        if task is WNLI:
            rows = [(str(index), WNLI_MAJORITY) for index in range(task.split_rows[split])]
            logger.info("%s: the majority class for every row, as in the paper.", file_name)
        else:
            folder = _folder_with_predictions(runs, file_name, task, split)
            rows = _official_rows(folder / f"predictions.{split}.tsv", task, split)
        lines = [HEADER, *(f"{index}\t{prediction}" for index, prediction in rows)]
        contents[file_name] = "\n".join(lines) + "\n"

    target = Path(config.output_file)
    with atomic_path(target) as part, zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
        for file_name, content in contents.items():
            archive.writestr(file_name, content)
    logger.info("%s: %d files, ready for the leaderboard.", target, len(contents))
    return target


def _finished_runs(names: Sequence[str]) -> list[_FinishedRun]:
    """Returns the finished runs in some folders, at any depth."""
    # A folder may be named twice, or lie in another one.
    runs: dict[Path, _FinishedRun] = {}
    for name in names:
        for path in sorted(Path(name).rglob(RESULTS)):
            # The runs of a sweep lie in its folder. The sweep counts as one run.
            if SWEEP not in path.relative_to(name).parts:
                runs[path.parent] = _FinishedRun(path.parent, read_results(path.parent).get("task"))
    return list(runs.values())


def _folder_with_predictions(runs: Sequence[_FinishedRun], file_name: str, task: GlueTask, split: str) -> Path:
    """Returns the folder of the only run that predicts a split."""
    folders = []
    for run in runs:
        if run.task_name == task.name and (run.folder / f"predictions.{split}.tsv").is_file():
            folders.append(run.folder)
    if not folders:
        raise UserError(
            f"{file_name}: no run predicts {split} of {task.title}. Make the predictions with: bert-repro run_glue "
            f"--task_name {task.name} --model_name_or_path MODEL --do_predict",
            setting="runs",
        )
    if len(folders) > 1:
        raise UserError(
            f"{flag('runs')}: {' and '.join(map(str, folders))} all predict {split} of {task.title}. Name only one of "
            "them.",
            setting="runs",
        )
    return folders[0]


def _official_rows(path: Path, task: GlueTask, split: str) -> list[tuple[str, str]]:
    """Returns index and prediction of every row, as the official files write them."""
    table = read_glue(path, HEADER.split("\t"))
    indices, predictions = table["index"][:], table["prediction"][:]
    num_rows = task.split_rows[split]
    if indices != [str(row) for row in range(num_rows)]:
        raise UserError(
            f"{path} has {len(indices)} rows, which are not those of the official test set: 0 to {num_rows - 1}. "
            "Predict the official test set."
        )
    return [(index, _official_prediction(text, task)) for index, text in zip(indices, predictions, strict=True)]


def _official_prediction(text: str, task: GlueTask) -> str:
    if task.number_range is None:
        official_labels = task.file_labels or task.label_names
        return official_labels[task.label_names.index(text)]
    low, high = task.number_range
    return f"{min(max(float(text), low), high):.6f}"
