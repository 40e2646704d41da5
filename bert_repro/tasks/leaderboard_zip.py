"""The zip that GLUE's leaderboard takes, made of finished runs' test predictions.

It holds eleven files, each with the header `index<tab>prediction` and one row for every row of an official test set, in
that order, labels as in the official files (https://gluebenchmark.com, "How do I submit?"). WNLI is the majority
class, as the paper has it (B.1); AX is predicted by the MNLI model.
"""

import logging
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bert_repro.configs import GlueZipConfig
from bert_repro.errors import UserError
from bert_repro.results import read_results
from bert_repro.tasks import glue_tasks
from bert_repro.tasks.classification import GlueTask
from bert_repro.tasks.data import SPLIT_ROWS, read_glue
from bert_repro.utils.files import RESULTS, atomic_path

logger = logging.getLogger("bert_repro")

HEADER = "index\tprediction"
WNLI_MAJORITY = "0"
"""not_entailment; of the 635 training rows 323 have it."""
FILES = {
    "AX.tsv": (glue_tasks.AX, "test"),
    "CoLA.tsv": (glue_tasks.COLA, "test"),
    "MNLI-m.tsv": (glue_tasks.MNLI, "test_matched"),
    "MNLI-mm.tsv": (glue_tasks.MNLI, "test_mismatched"),
    "MRPC.tsv": (glue_tasks.MRPC, "test"),
    "QNLI.tsv": (glue_tasks.QNLI, "test"),
    "QQP.tsv": (glue_tasks.QQP, "test"),
    "RTE.tsv": (glue_tasks.RTE, "test"),
    "SST-2.tsv": (glue_tasks.SST2, "test"),
    "STS-B.tsv": (glue_tasks.STSB, "test"),
    "WNLI.tsv": (glue_tasks.WNLI, "test"),
}
"""Name of each file, the task whose predictions it holds, and the task's name for that set."""


def make_glue_zip(config: GlueZipConfig) -> Path:
    """Gathers the test predictions of finished runs into a zip.

    Returns:
        The zip.

    Raises:
        UserError: predictions are missing, are not those of the official test set, or two runs have them; no zip is
            written.
    """
    target = Path(config.output_file)
    runs = [run for folder in config.runs for run in _finished_runs(Path(folder))]
    contents, models = {}, {}
    for name, (task, split) in FILES.items():
        if task is glue_tasks.WNLI:
            rows = [(str(row), WNLI_MAJORITY) for row in range(SPLIT_ROWS[task.name, split])]
            logger.info("%s: the majority class for every row, as the paper has it", name)
        else:
            folder, results = _run_with(runs, name, task, split)
            models[task.name] = str(folder) if "train" in results else results["settings"]["model_name_or_path"]
            rows = _official_rows(folder / f"predictions.{split}.tsv", task, split)
        contents[name] = "".join("\t".join(row) + "\n" for row in [HEADER.split("\t"), *rows])
    if Path(models["ax"]).resolve() != Path(models["mnli"]).resolve():
        logger.warning("AX.tsv: predicted by %s, MNLI by %s; GLUE asks for one model", models["ax"], models["mnli"])
    with atomic_path(target) as part, zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    logger.info("%s: %d files, ready for the leaderboard", target, len(contents))
    return target


def _finished_runs(folder: Path) -> Iterator[tuple[Path, Any]]:
    """Yields the folders of finished runs and their results, at any depth, but not below a run's own folder."""
    if (folder / RESULTS).is_file():
        yield folder, read_results(folder)
        return
    for below in sorted(folder.iterdir()):
        if below.is_dir() and not below.name.startswith("."):
            yield from _finished_runs(below)


def _run_with(runs: list[tuple[Path, Any]], name: str, task: GlueTask, split: str) -> tuple[Path, Any]:
    found = [
        (folder, results)
        for folder, results in dict(runs).items()
        if results.get("task") == task.name and (folder / f"predictions.{split}.tsv").is_file()
    ]
    if not found:
        raise UserError(
            f"{name}: no run predicts {split} of {task.title}; make it with: bert-repro run_glue --task_name "
            f"{task.name} --model_name_or_path MODEL --do_predict"
        )
    if len(found) > 1:
        folders = " and ".join(str(folder) for folder, _ in found)
        raise UserError(f"--runs: {folders} predict {split} of {task.title} all; name only one of them")
    return found[0]


def _official_rows(path: Path, task: GlueTask, split: str) -> list[tuple[str, str]]:
    """Returns index and prediction of every row in the official spelling."""
    table = read_glue(path, HEADER.split("\t"))
    indices, predictions = table["index"][:], table["prediction"][:]
    count = SPLIT_ROWS[task.name, split]
    if indices != [str(row) for row in range(count)]:
        raise UserError(f"{path}: {len(indices)} rows; predict the official test set, whose rows are 0 to {count - 1}")
    if task.number_range is not None:
        low, high = task.number_range
        return [
            (index, f"{min(max(float(text), low), high):.6f}") for index, text in zip(indices, predictions, strict=True)
        ]
    spelled = dict(zip(task.label_names, task.file_labels or task.label_names, strict=True))
    return [(index, spelled[text]) for index, text in zip(indices, predictions, strict=True)]
