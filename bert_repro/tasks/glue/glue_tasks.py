"""The nine GLUE tasks and the AX diagnostic, as data (paper 4.1; https://gluebenchmark.com).

Columns, labels and their order are those of the Hub's dataset, so a model fine-tuned on official files and one
fine-tuned on the Hub's dataset agree. Official files are read as published; quirks are at the task that has them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_repro.tasks.classification import ClassificationTask
from bert_repro.tasks.splits import from_hub, from_official_files, without_placeholder_labels
from bert_repro.utils.readers import shown
from bert_repro.utils.tables import read_tsv

if TYPE_CHECKING:
    import datasets

HUB_DATASET = "nyu-mll/glue"


@dataclass(frozen=True)
class GlueFile:
    """One official file.

    Args:
        name: of the file, in the task's folder.
        texts: its columns for the task's `text_columns`.
        label: its column of labels, required where `labelled`, else read if it is there.
        labelled: whether the file must have labels.
        index: its column of row numbers; None: rows are counted from 0, as in the Hub's dataset.
        header: all its columns, where the file does not name them.
    """

    name: str
    texts: tuple[str, ...]
    label: str = "label"
    labelled: bool = True
    index: str | None = None
    header: tuple[str, ...] | None = None


def official_files(*texts: str, label: str = "label", index: str = "index") -> dict[str, GlueFile]:
    """Describes train.tsv, dev.tsv and test.tsv with the same columns, the usual case."""
    return {
        "train": GlueFile("train.tsv", texts, label),
        "validation": GlueFile("dev.tsv", texts, label),
        "test": GlueFile("test.tsv", texts, label, labelled=False, index=index),
    }


@dataclass(frozen=True, kw_only=True)
class GlueTask(ClassificationTask):
    """A task of GLUE.

    Args:
        files: the official file of each split.
        other_folders: what the folder of the files is also called, beside the task's title.
        drop_incomplete_rows: drop rows with missing fields instead of refusing the file.
    """

    primary_metric: str = "accuracy"
    metrics: tuple[str, ...] = ("accuracy",)
    files: Mapping[str, GlueFile]
    other_folders: tuple[str, ...] = ()
    drop_incomplete_rows: bool = False
    data_license: str | None = "that of its source; most of GLUE is for research use, or states none"

    def read_splits(self, data_dir: Path | None, splits: Sequence[str]) -> "dict[str, datasets.Dataset]":
        """See `Task.read_splits`; unlabelled splits have no column `label`."""
        if data_dir is None:
            found = from_hub(HUB_DATASET, splits, name=self.name)
            return {split: without_placeholder_labels(dataset) for split, dataset in found.items()}
        paths = {split: self._folder(data_dir) / self.files[split].name for split in splits}
        fix = f"--data_dir is the folder that holds the official {self.title}/"
        return from_official_files(paths, self._read, fix)

    def data_files(self, data_dir: Path) -> list[Path]:
        """See `Task.data_files`."""
        folder = self._folder(data_dir)
        return [folder / self.files[split].name for split in ("train", *self.eval_splits)]

    def data_description(self) -> dict[str, Any]:
        """See `Task.data_description`."""
        return {
            **super().data_description(),
            "dataset": HUB_DATASET,
            "config": self.name,
            "language": "en",
            "license": self.data_license,
        }

    def example(self, dataset: "datasets.Dataset | None") -> dict[str, Any]:
        """See `Task.example`; sentences of ours, since most of GLUE may not be passed on."""
        names = ("text", "text_pair")
        return dict(zip(names, _EXAMPLES.get(self.name, _EXAMPLES["mnli"]), strict=False))

    def _folder(self, data_dir: Path) -> Path:
        folders = [data_dir / name for name in (self.title, *self.other_folders)]
        return next((folder for folder in folders if folder.is_dir()), folders[0])

    def _read(self, split: str, path: Path) -> "datasets.Dataset":
        import datasets

        file = self.files[split]
        table = read_tsv(
            path,
            required=(*file.texts, *([file.label] if file.labelled else []), *([file.index] if file.index else [])),
            optional=() if file.labelled else (file.label,),
            header=file.header,
            drop_incomplete_rows=self.drop_incomplete_rows,
        )
        columns: dict[str, list[Any]] = {
            column: table.columns[name] for column, name in zip(self.text_columns, file.texts, strict=True)
        }
        if file.label in table.columns:
            columns["label"] = table.parsed(file.label, self.parse_label)
        columns["idx"] = table.parsed(file.index, _index) if file.index else list(range(len(table.lines)))
        return datasets.Dataset.from_dict(columns)


def _index(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"index {shown(text)} is not a number; take the official file")
    return int(text)


_EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "cola": ("The letter was written by her sister.",),
    "sst2": ("A film that never lets you go.",),
    "mrpc": ("The firm was founded in 1999.", "It was in 1999 that the firm was founded."),
    "qqp": ("How do I learn to swim?", "What is the best way to learn swimming?"),
    "qnli": ("When was the bridge built?", "The bridge was opened in 1932, after six years of work."),
    "wnli": ("The cup does not fit into the box because it is too big.", "The cup is too big."),
    "mnli": ("A man is playing a guitar.", "Someone makes music."),
}
"""Inputs for cards, by task; those of MNLI for every other one."""

_COLA_COLUMNS = ("source", "label", "mark", "sentence")

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
    paper_metrics={"table_1": ("matthews_correlation",)},
)

SST2 = GlueTask(
    name="sst2",
    title="SST-2",
    text_columns=("sentence",),
    label_names=("negative", "positive"),
    file_labels=("0", "1"),
    files=official_files("sentence"),
    paper_metrics={"table_1": ("accuracy",), "table_5": ("accuracy",), "table_6": ("accuracy",)},
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
    paper_metrics={"table_1": ("f1",), "table_5": ("accuracy",), "table_6": ("accuracy",)},
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
    paper_metrics={"table_1": ("spearmanr",)},
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
    paper_metrics={"table_1": ("f1",)},
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
        "train": GlueFile("train.tsv", ("sentence1", "sentence2"), "gold_label"),
        "validation_matched": GlueFile("dev_matched.tsv", ("sentence1", "sentence2"), "gold_label"),
        "validation_mismatched": GlueFile("dev_mismatched.tsv", ("sentence1", "sentence2"), "gold_label"),
        "test_matched": GlueFile(
            "test_matched.tsv", ("sentence1", "sentence2"), "gold_label", labelled=False, index="index"
        ),
        "test_mismatched": GlueFile(
            "test_mismatched.tsv", ("sentence1", "sentence2"), "gold_label", labelled=False, index="index"
        ),
    },
    paper_metrics={
        "table_1": ("accuracy",),
        "table_5": ("accuracy",),
        "table_6": ("accuracy",),
        "table_8": ("accuracy",),
        "figure_5": ("accuracy",),
    },
)

QNLI = GlueTask(
    name="qnli",
    title="QNLI",
    text_columns=("question", "sentence"),
    label_names=("entailment", "not_entailment"),
    files=official_files("question", "sentence"),
    data_license="CC BY-SA 4.0 (made from SQuAD)",
    paper_metrics={"table_1": ("accuracy",), "table_5": ("accuracy",)},
)

RTE = GlueTask(
    name="rte",
    title="RTE",
    text_columns=("sentence1", "sentence2"),
    label_names=("entailment", "not_entailment"),
    files=official_files("sentence1", "sentence2"),
    paper_metrics={"table_1": ("accuracy",)},
)

WNLI = GlueTask(
    name="wnli",
    title="WNLI",
    text_columns=("sentence1", "sentence2"),
    label_names=("not_entailment", "entailment"),
    file_labels=("0", "1"),
    files=official_files("sentence1", "sentence2"),
    paper_metrics={},
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
    paper_metrics={},
)

GLUE_TASKS = (COLA, SST2, MRPC, STSB, QQP, MNLI, QNLI, RTE, WNLI, AX)
