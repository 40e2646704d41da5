"""Text tasks whose official files are tables: how their files are described, found and read."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bert_repro.tasks.base import JsonObject
from bert_repro.tasks.classification import ClassificationTask
from bert_repro.tasks.data import read_file, read_glue

if TYPE_CHECKING:
    import datasets


@dataclass(frozen=True)
class GlueFile:
    """One official file.

    Args:
        name: its name in the task's folder. A .jsonl file has an object per line; all others are GLUE's kind of TSV.
        texts: its names of the task's `text_columns`; empty: the same names.
        label: its column of labels, which is required if `labelled`, and otherwise read if it exists.
        labelled: whether the file must have labels.
        index: its column of row numbers; None: rows are counted from 0, as in the Hub's dataset.
        header: the names of all its columns, if the file does not contain them.
    """

    name: str
    texts: tuple[str, ...] = ()
    label: str = "label"
    labelled: bool = True
    index: str | None = None
    header: tuple[str, ...] | None = None


def official_files(*texts: str, label: str = "label", index: str = "index") -> dict[str, GlueFile]:
    """Describes train.tsv, dev.tsv and test.tsv with the same columns, which is the usual case.

    Args:
        texts: the names of the task's `text_columns` in the files; none: the same names.
        label: the column of labels.
        index: the column of row numbers in test.tsv.
    """
    return {
        "train": GlueFile("train.tsv", texts, label),
        "validation": GlueFile("dev.tsv", texts, label),
        "test": GlueFile("test.tsv", texts, label, labelled=False, index=index),
    }


@dataclass(frozen=True, kw_only=True)
class GlueTask(ClassificationTask):
    """A task whose official files are tables: GLUE's and the later ones. It is described completely by one object.

    Args:
        files: the official file of each split.
        other_folders: other names of the files' folder, besides the task's title.
        drop_incomplete_rows: drop rows with missing fields instead of refusing the file.
        only: column and value of the rows that belong to the task; empty: all rows do.
        example_texts: an input for the card; empty: none.
        language: code of the language of the texts.
    """

    primary_metric: str = "accuracy"
    metrics: tuple[str, ...] = ("accuracy",)
    files: Mapping[str, GlueFile]
    other_folders: tuple[str, ...] = ()
    drop_incomplete_rows: bool = False
    only: tuple[str, str] = ("", "")
    example_texts: tuple[str, ...] = ("A man is playing a guitar.", "Someone makes music.")
    language: str = "en"
    data_license: str | None = "that of its source; most of GLUE is for research use, or states none"
    official_folder = "the folder that holds the official CoLA/, SST-2/, MRPC/ ..."

    def data_description(self) -> JsonObject:
        return {**super().data_description(), "language": self.language}

    def official_file(self, data_dir: Path, split: str) -> Path:
        folders = [data_dir / name for name in (self.title, *self.other_folders)]
        folder = next((folder for folder in folders if folder.is_dir()), folders[0])
        if split not in self.files:
            # There is no such file, so the message about a missing file explains why.
            return folder / f"{split} is not published as a file"
        return folder / self.files[split].name

    def read_official(self, split: str, path: Path) -> "datasets.Dataset":
        file = self.files[split]
        filter_column, filter_value = self.only
        if path.suffix == ".jsonl":
            rows = read_file(path)
        else:
            needed = (*(file.texts or self.text_columns), file.label, file.index or "", filter_column)
            rows = read_glue(path, needed, header=file.header, drop_incomplete_rows=self.drop_incomplete_rows)
        if filter_column:
            rows = rows.filter(lambda value: value == filter_value, input_columns=filter_column)
        return self.from_rows(
            rows, str(path), columns=file.texts, label=file.label, index=file.index, may_lack_labels=not file.labelled
        )

    def example(self, dataset: "datasets.Dataset | None") -> JsonObject | None:
        """See `Task.example`. The sentences are ours, because most of these texts may not be redistributed."""
        return dict(zip(("text", "text_pair"), self.example_texts, strict=False)) or None
