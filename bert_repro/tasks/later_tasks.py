"""Tasks that came after the paper and that people ask of every BERT: four of SuperGLUE, XNLI, HANS, ANLI, PAWS.

None is in the paper. Their files are rows with named columns: a dataset of the Hub, or the official files in a folder
of the task's title. A model of MNLI, named by `--model_name_or_path`, is scored on HANS, ANLI and XNLI untrained.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_repro.tasks.base import Columns, Predictions, encoded_texts
from bert_repro.tasks.choice import SwagTask
from bert_repro.tasks.classification import ClassificationTask
from bert_repro.tasks.data import XNLI_LANGUAGES, read_file

if TYPE_CHECKING:
    import datasets

NLI = ("entailment", "neutral", "contradiction")
SUPER_GLUE = "aps/super_glue"
SUPER_GLUE_FILES = {"train": "train.jsonl", "validation": "val.jsonl", "test": "test.jsonl"}


@dataclass(frozen=True, kw_only=True)
class RowsTask(ClassificationTask):
    """A classification task whose official files and dataset have rows with named columns.

    A task of SuperGLUE that classifies is a name, a title, columns and labels: its files and its dataset are known.

    Args:
        text_columns: one or two columns that hold the text.
        label_names: the labels in the order of the dataset.
        files: the official file of each split, below the folder of the task's title.
        file_columns: what the official files call `text_columns`; empty: the same.
        file_label_column: what they call the label.
        only: column and value of the rows that belong to the task, where a file holds more.
        language: code of the language of its texts.
    """

    primary_metric: str = "accuracy"
    metrics: tuple[str, ...] = ("accuracy",)
    text_columns: tuple[str, ...] = ("premise", "hypothesis")
    label_names: tuple[str, ...] = NLI
    files: Mapping[str, str] = field(default_factory=lambda: SUPER_GLUE_FILES)
    file_columns: tuple[str, ...] = ()
    file_label_column: str = "label"
    only: tuple[str, str] | None = None
    language: str = "en"
    official_folder = "the folder that holds the official files in a folder of the task's title"

    def __post_init__(self) -> None:
        if self.files is SUPER_GLUE_FILES:
            object.__setattr__(self, "hub", (SUPER_GLUE, self.name, None))

    def data_description(self) -> dict[str, Any]:
        return super().data_description() | {"language": self.language}

    def official_file(self, data_dir: Path, split: str) -> Path:
        return data_dir / self.title / self.files.get(split, f"{split} is not published as a file")

    def read_official(self, split: str, path: Path) -> "datasets.Dataset":
        rows, where = read_file(path, kind="tsv" if path.suffix == ".txt" else None), str(path)
        if self.only:
            rows = rows.filter(lambda value: str(value) == self.only[1], input_columns=self.only[0])
        return self.from_rows(
            rows, where, columns=self.file_columns, label=self.file_label_column, may_lack_labels=split == "test"
        )

    def from_published(self, dataset: "datasets.Dataset") -> "datasets.Dataset":
        kept = super().from_published(dataset)
        kept = kept.select_columns([name for name in (*self.text_columns, "label") if name in kept.column_names])
        return kept.add_column("idx", list(range(len(kept))))

    def example(self, dataset: "datasets.Dataset | None") -> None:
        """See `Task.example`; none, as most of these texts may not be passed on."""


@dataclass(frozen=True, kw_only=True)
class WordInContextTask(RowsTask):
    """WiC: whether a word means the same in two sentences; the word stands before the first one."""

    def encode_batch(self, examples: Columns, tokenizer: Any, max_seq_length: int) -> Columns:
        labels = {"labels": examples["label"]} if "label" in examples else {}
        pairs = zip(examples["word"], examples["sentence1"], strict=True)
        first = [f"{word}: {sentence}" for word, sentence in pairs]
        return encoded_texts(tokenizer, [first, examples["sentence2"]], max_seq_length) | labels


@dataclass(frozen=True, kw_only=True)
class HansTask(RowsTask):
    """HANS: entailment or not, answered by a model of MNLI; neutral and contradiction both count as not."""

    train_split: str | None = None
    predict_splits: tuple[str, ...] = ()

    def postprocess(self, dataset: "datasets.Dataset", features: "datasets.Dataset", outputs: Any) -> Predictions:
        predictions = super().postprocess(dataset, features, outputs)
        return {**predictions, "prediction": np.minimum(predictions["prediction"], 1)}


@dataclass(frozen=True, kw_only=True)
class CopaTask(SwagTask):
    """COPA: which of two sentences is the cause or the effect of another one."""

    hub: tuple[str, str | None, str | None] = (SUPER_GLUE, "copa", None)
    data_license: str | None = "BSD 2-Clause"
    text_columns: tuple[str, ...] = ("sent1", "sent2", "ending0", "ending1")
    official_folder = "the folder that holds COPA/train.jsonl, val.jsonl and test.jsonl"

    def official_file(self, data_dir: Path, split: str) -> Path:
        return data_dir / "COPA" / SUPER_GLUE_FILES[split]

    def read_official(self, split: str, path: Path) -> "datasets.Dataset":
        return self.from_rows(_choices(read_file(path)), str(path), may_lack_labels=split == "test")

    def from_published(self, dataset: "datasets.Dataset") -> "datasets.Dataset":
        import datasets

        rows = dataset.cast_column("label", datasets.Value("int64"))  # whose names are choice1 and choice2
        return self.from_rows(_choices(rows), "COPA", may_lack_labels=rows[0]["label"] == -1)


def _choices(rows: "datasets.Dataset") -> "datasets.Dataset":
    """Writes COPA's rows with SWAG's columns: the premise and its question, then what is to be chosen from."""
    asked = {"cause": "What was the cause of this?", "effect": "What happened as a result?"}
    made = rows.map(
        lambda premise, question, first, second: {
            "sent1": f"{premise} {asked[question]}", "sent2": "", "ending0": first, "ending1": second,
        },
        input_columns=["premise", "question", "choice1", "choice2"],
    )  # fmt: skip
    labels = ["label"] if "label" in rows.column_names and rows[0]["label"] not in (-1, None) else []
    return made.select_columns(["sent1", "sent2", "ending0", "ending1", *labels])


BOOLQ = RowsTask(
    name="boolq",
    title="BoolQ",
    text_columns=("question", "passage"),
    label_names=("no", "yes"),
    file_labels=("false", "true"),
    data_license="CC BY-SA 3.0",
)
CB = RowsTask(
    name="cb",
    title="CB",
    label_names=("entailment", "contradiction", "neutral"),
    metrics=("accuracy", "macro_f1"),
    data_license="unknown, as its card on the Hub says",
)
WIC = WordInContextTask(
    name="wic",
    title="WiC",
    text_columns=("word", "sentence1", "sentence2"),
    label_names=("other", "same"),
    file_labels=("false", "true"),
    data_license="CC BY-NC 4.0",
)
COPA = CopaTask(name="copa", title="COPA", metrics=("accuracy",), primary_metric="accuracy")
PAWS = RowsTask(
    name="paws",
    title="PAWS",
    text_columns=("sentence1", "sentence2"),
    label_names=("different", "paraphrase"),
    file_labels=("0", "1"),
    metrics=("accuracy", "f1"),
    files={"train": "train.tsv", "validation": "dev.tsv", "test": "test.tsv"},
    hub=("google-research-datasets/paws", "labeled_final", None),
    data_license="free for any purpose, as its card on the Hub says",
)
HANS = HansTask(
    name="hans",
    title="HANS",
    file_columns=("sentence1", "sentence2"),
    file_label_column="gold_label",
    file_labels=("entailment", "non-entailment", "never"),
    files={"validation": "heuristics_evaluation_set.txt"},
    hub=("jhu-cogsci/hans", None, "refs/convert/parquet"),
    data_license="MIT",
)
ANLI = [
    RowsTask(
        name=f"anli_r{number}",
        title="ANLI",
        file_columns=("context", "hypothesis"),
        file_labels=("e", "n", "c"),
        train_split=f"train_r{number}",
        eval_splits=(f"dev_r{number}", f"test_r{number}"),
        predict_splits=(),
        files={f"{split}_r{number}": f"R{number}/{split}.jsonl" for split in ("train", "dev", "test")},
        hub=("facebook/anli", None, None),
        data_license="CC BY-NC 4.0",
    )
    for number in (1, 2, 3)
]
XNLI = [
    RowsTask(
        name=f"xnli_{language}",
        title="XNLI",
        file_columns=("sentence1", "sentence2"),
        file_label_column="gold_label",
        only=("language", language),
        language=language,
        data_license="CC BY-NC 4.0",
        eval_splits=("validation", "test"),
        predict_splits=(),
        files={"validation": "xnli.dev.tsv", "test": "xnli.test.tsv"},
        hub=("facebook/xnli", language, None),
    )
    for language in XNLI_LANGUAGES
]
LATER_TASKS = (BOOLQ, CB, WIC, PAWS, HANS, *ANLI, *XNLI)
