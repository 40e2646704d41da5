"""The nine GLUE tasks and the AX diagnostic, as data (paper 4.1; https://gluebenchmark.com), and the leaderboard's zip.

Columns, labels and their order are those of the Hub's dataset, so a model fine-tuned on official files and one
fine-tuned on the Hub's dataset agree. Official files are read as published; quirks are at the task that has them.
"""

import logging
import zipfile
from pathlib import Path
from typing import Any

from bert_repro.configs import GlueZipConfig
from bert_repro.errors import UserError
from bert_repro.results import read_results
from bert_repro.tasks.classification import GlueFile, GlueTask, official_files
from bert_repro.tasks.data import SPLIT_ROWS, read_glue
from bert_repro.utils.files import RESULTS, SWEEP, atomic_path

logger = logging.getLogger("bert_repro")

_COLA_COLUMNS = ("source", "label", "mark", "sentence")
_MNLI_COLUMNS = ("sentence1", "sentence2"), "gold_label"

COLA = GlueTask(
    name="cola",
    title="CoLA",
    text_columns=("sentence",),
    label_names=("unacceptable", "acceptable"),
    file_labels=("0", "1"),
    # Training and dev files have no header; the test file has one.
    files={
        "train": GlueFile("train.tsv", ("sentence",), header=_COLA_COLUMNS),
        "validation": GlueFile("dev.tsv", ("sentence",), header=_COLA_COLUMNS),
        "test": GlueFile("test.tsv", ("sentence",), labelled=False, index="index"),
    },
    metrics=("matthews_correlation", "accuracy"),
    primary_metric="matthews_correlation",
    example_texts=("The letter was written by her sister.",),
)

SST2 = GlueTask(
    name="sst2",
    title="SST-2",
    text_columns=("sentence",),
    label_names=("negative", "positive"),
    file_labels=("0", "1"),
    files=official_files("sentence"),
    example_texts=("A film that never lets you go.",),
)

MRPC = GlueTask(
    name="mrpc",
    title="MRPC",
    text_columns=("sentence1", "sentence2"),
    label_names=("not_equivalent", "equivalent"),
    file_labels=("0", "1"),
    files=official_files("#1 String", "#2 String", label="Quality"),
    metrics=("accuracy", "f1"),
    primary_metric="f1",
    example_texts=("The firm was founded in 1999.", "It was in 1999 that the firm was founded."),
)

STSB = GlueTask(
    name="stsb",
    title="STS-B",
    text_columns=("sentence1", "sentence2"),
    label_names=("similarity",),
    number_range=(0.0, 5.0),
    files=official_files("sentence1", "sentence2", label="score"),
    metrics=("pearson", "spearmanr"),
    primary_metric="spearmanr",
)

QQP = GlueTask(
    name="qqp",
    title="QQP",
    text_columns=("question1", "question2"),
    label_names=("not_duplicate", "duplicate"),
    file_labels=("0", "1"),
    files=official_files("question1", "question2", label="is_duplicate", index="id"),
    # The official training and dev files hold a few rows cut off by line breaks; the Hub's dataset lacks them too.
    drop_incomplete_rows=True,
    metrics=("accuracy", "f1"),
    primary_metric="f1",
    example_texts=("How do I learn to swim?", "What is the best way to learn swimming?"),
)

MNLI = GlueTask(
    name="mnli",
    title="MNLI",
    text_columns=("premise", "hypothesis"),
    label_names=("entailment", "neutral", "contradiction"),
    data_license="mixed open licences (MultiNLI)",
    eval_splits=("validation_matched", "validation_mismatched"),
    predict_splits=("test_matched", "test_mismatched"),
    # The columns between index and sentence1 differ from file to file; all are found by name.
    files={
        "train": GlueFile("train.tsv", *_MNLI_COLUMNS),
        "validation_matched": GlueFile("dev_matched.tsv", *_MNLI_COLUMNS),
        "validation_mismatched": GlueFile("dev_mismatched.tsv", *_MNLI_COLUMNS),
        "test_matched": GlueFile("test_matched.tsv", *_MNLI_COLUMNS, labelled=False, index="index"),
        "test_mismatched": GlueFile("test_mismatched.tsv", *_MNLI_COLUMNS, labelled=False, index="index"),
    },
)

QNLI = GlueTask(
    name="qnli",
    title="QNLI",
    text_columns=("question", "sentence"),
    label_names=("entailment", "not_entailment"),
    files=official_files("question", "sentence"),
    data_license="CC BY-SA 4.0 (made from SQuAD)",
    example_texts=("When was the bridge built?", "The bridge was opened in 1932, after six years of work."),
)

RTE = GlueTask(
    name="rte",
    title="RTE",
    text_columns=("sentence1", "sentence2"),
    label_names=("entailment", "not_entailment"),
    files=official_files("sentence1", "sentence2"),
)

WNLI = GlueTask(
    name="wnli",
    title="WNLI",
    text_columns=("sentence1", "sentence2"),
    label_names=("not_entailment", "entailment"),
    file_labels=("0", "1"),
    files=official_files("sentence1", "sentence2"),
    example_texts=("The cup does not fit into the box because it is too big.", "The cup is too big."),
)

AX = GlueTask(
    name="ax",
    title="AX",
    text_columns=("premise", "hypothesis"),
    label_names=MNLI.label_names,
    # A model fine-tuned on MNLI predicts it. The test file has no labels; the labelled file is published apart.
    train_split=None,
    other_folders=("diagnostic",),  # as GLUE's own download script calls it
    files={
        "validation": GlueFile("diagnostic-full.tsv", ("Premise", "Hypothesis"), "Label"),
        "test": GlueFile("diagnostic.tsv", ("sentence1", "sentence2"), labelled=False, index="index"),
    },
    metrics=("matthews_correlation", "accuracy"),
    primary_metric="matthews_correlation",
)

GLUE_TASKS = (COLA, SST2, MRPC, STSB, QQP, MNLI, QNLI, RTE, WNLI, AX)

# --- The zip --------------------------------------------------------------------------------------------------------

HEADER = "index\tprediction"
WNLI_MAJORITY = "0"
"""not_entailment; of the 635 training rows 323 have it."""
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
"""Name of each file, the task whose predictions it holds, and the task's name for that set."""


def make_glue_zip(config: GlueZipConfig) -> Path:
    """Gathers the test predictions of finished runs into the zip that GLUE's leaderboard takes.

    It holds eleven files, each with the header `index<tab>prediction` and one row for every row of an official test
    set, in that order, labels as in the official files (https://gluebenchmark.com, "How do I submit?"). WNLI is the
    majority class, as the paper has it (B.1); AX is predicted by the MNLI model.

    Returns:
        The zip.

    Raises:
        UserError: predictions are missing, are not those of the official test set, or two runs have them; no zip is
            written.
    """
    target = Path(config.output_file)
    runs = [
        (path.parent, read_results(path.parent).get("task"))
        for folder in map(Path, config.runs)
        for path in sorted(folder.rglob(RESULTS))
        if SWEEP not in path.relative_to(folder).parts  # a sweep is one run
    ]
    contents = {}
    for name, (task, split) in FILES.items():
        if task is WNLI:
            rows = [(str(row), WNLI_MAJORITY) for row in range(SPLIT_ROWS[task.name, split])]
            logger.info("%s: the majority class for every row, as the paper has it", name)
        else:
            folder = _run_with(runs, name, task, split)
            rows = _official_rows(folder / f"predictions.{split}.tsv", task, split)
        contents[name] = "".join("\t".join(row) + "\n" for row in [HEADER.split("\t"), *rows])
    with atomic_path(target) as part, zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    logger.info("%s: %d files, ready for the leaderboard", target, len(contents))
    return target


def _run_with(runs: list[tuple[Path, Any]], name: str, task: GlueTask, split: str) -> Path:
    found = [
        folder
        for folder, name_of_task in dict(runs).items()
        if name_of_task == task.name and (folder / f"predictions.{split}.tsv").is_file()
    ]
    if not found:
        raise UserError(
            f"{name}: no run predicts {split} of {task.title}; make it with: bert-repro run_glue --task_name "
            f"{task.name} --model_name_or_path MODEL --do_predict"
        )
    if len(found) > 1:
        folders = " and ".join(map(str, found))
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
