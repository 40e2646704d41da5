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
from bert_repro.tasks.classification import GlueFile, GlueTask, official_files
from bert_repro.tasks.data import XNLI_LANGUAGES, read_file

if TYPE_CHECKING:
    import datasets

NLI = ("entailment", "neutral", "contradiction")
SUPER_GLUE = "aps/super_glue"
_PAIR = ("sentence1", "sentence2"), "gold_label"
SUPER_GLUE_FILES = {
    "train": GlueFile("train.jsonl"),
    "validation": GlueFile("val.jsonl"),
    "test": GlueFile("test.jsonl", labelled=False),
}


@dataclass(frozen=True, kw_only=True)
class LaterTask(GlueTask):
    """A task that came after GLUE; one of SuperGLUE that classifies is a name, a title, columns and labels.

    Args:
        language: code of the language of its texts.
    """

    text_columns: tuple[str, ...] = ("premise", "hypothesis")
    label_names: tuple[str, ...] = NLI
    files: Mapping[str, GlueFile] = field(default_factory=lambda: SUPER_GLUE_FILES)
    example_texts: tuple[str, ...] = ()
    language: str = "en"
    official_folder = "the folder that holds the official files in a folder of the task's title"
    collection = SUPER_GLUE

    def data_description(self) -> dict[str, Any]:
        return super().data_description() | {"language": self.language}


@dataclass(frozen=True, kw_only=True)
class WordInContextTask(LaterTask):
    """WiC: whether a word means the same in two sentences; the word stands before the first one."""

    def encode_batch(self, examples: Columns, tokenizer: Any, max_seq_length: int) -> Columns:
        labels = {"labels": examples["label"]} if "label" in examples else {}
        pairs = zip(examples["word"], examples["sentence1"], strict=True)
        first = [f"{word}: {sentence}" for word, sentence in pairs]
        return encoded_texts(tokenizer, [first, examples["sentence2"]], max_seq_length) | labels


@dataclass(frozen=True, kw_only=True)
class HansTask(LaterTask):
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
        return data_dir / "COPA" / SUPER_GLUE_FILES[split].name

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


BOOLQ = LaterTask(
    name="boolq",
    title="BoolQ",
    text_columns=("question", "passage"),
    label_names=("no", "yes"),
    file_labels=("false", "true"),
    data_license="CC BY-SA 3.0",
)
CB = LaterTask(
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
PAWS = LaterTask(
    name="paws",
    title="PAWS",
    text_columns=("sentence1", "sentence2"),
    label_names=("different", "paraphrase"),
    file_labels=("0", "1"),
    metrics=("accuracy", "f1"),
    files=official_files("sentence1", "sentence2", index="id"),
    hub=("google-research-datasets/paws", "labeled_final", None),
    data_license="free for any purpose, as its card on the Hub says",
)
HANS = HansTask(
    name="hans",
    title="HANS",
    file_labels=("entailment", "non-entailment", "never"),
    files={"validation": GlueFile("heuristics_evaluation_set.txt", *_PAIR)},
    hub=("jhu-cogsci/hans", None, "refs/convert/parquet"),
    data_license="MIT",
)
ANLI = [
    LaterTask(
        name=f"anli_r{number}",
        title="ANLI",
        file_labels=("e", "n", "c"),
        train_split=f"train_r{number}",
        eval_splits=(f"dev_r{number}", f"test_r{number}"),
        predict_splits=(),
        files={
            f"{split}_r{number}": GlueFile(f"R{number}/{split}.jsonl", ("context", "hypothesis"))
            for split in ("train", "dev", "test")
        },
        hub=("facebook/anli", None, None),
        data_license="CC BY-NC 4.0",
    )
    for number in (1, 2, 3)
]
XNLI = [
    LaterTask(
        name=f"xnli_{language}",
        title="XNLI",
        only=("language", language),
        language=language,
        data_license="CC BY-NC 4.0",
        eval_splits=("validation", "test"),
        predict_splits=(),
        files={"validation": GlueFile("xnli.dev.tsv", *_PAIR), "test": GlueFile("xnli.test.tsv", *_PAIR)},
        hub=("facebook/xnli", language, None),
    )
    for language in XNLI_LANGUAGES
]
LATER_TASKS = (BOOLQ, CB, WIC, PAWS, HANS, *ANLI, *XNLI)
