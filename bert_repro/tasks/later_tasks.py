"""Describes tasks that are newer than the paper: four of SuperGLUE, XNLI, HANS, ANLI, PAWS, as data.

Their files are rows with named columns: a dataset of the Hub, or the official files in a folder that has the task's
title as its name. A model that was fine-tuned on MNLI can be scored on HANS, ANLI and XNLI without further training.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bert_repro.tasks.base import Columns, HubSource, Outputs, Predictions
from bert_repro.tasks.choice import SwagTask
from bert_repro.tasks.data import read_file
from bert_repro.tasks.encoding import encoded_texts
from bert_repro.tasks.official_files import GlueFile, GlueTask, official_files

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerBase

NLI = ("entailment", "neutral", "contradiction")
XNLI_LANGUAGES = ("ar", "bg", "de", "el", "en", "es", "fr", "hi", "ru", "sw", "th", "tr", "ur", "vi", "zh")
SUPER_GLUE = "aps/super_glue"
SUPER_GLUE_FILES = {
    "train": GlueFile("train.jsonl"),
    "validation": GlueFile("val.jsonl"),
    "test": GlueFile("test.jsonl", labelled=False),
}
_PAIR = ("sentence1", "sentence2"), "gold_label"


@dataclass(frozen=True, kw_only=True)
class LaterTask(GlueTask):
    """A text task that is newer than the paper. Its texts are `premise` and `hypothesis` unless it says otherwise."""

    text_columns: tuple[str, ...] = ("premise", "hypothesis")
    label_names: tuple[str, ...] = NLI
    files: Mapping[str, GlueFile] = field(default_factory=lambda: SUPER_GLUE_FILES)
    example_texts: tuple[str, ...] = ()
    in_paper: bool = False
    official_folder = "the folder that holds the official files in a folder of the task's title"


@dataclass(frozen=True, kw_only=True)
class WordInContextTask(LaterTask):
    """WiC: whether a word has the same meaning in two sentences. The word is put before the first sentence."""

    def encode_batch(self, examples: Columns, tokenizer: "PreTrainedTokenizerBase", max_seq_length: int) -> Columns:
        pairs = zip(examples["word"], examples["sentence1"], strict=True)
        first_texts = [f"{word}: {sentence}" for word, sentence in pairs]
        features = encoded_texts(tokenizer, [first_texts, examples["sentence2"]], max_seq_length)
        if "label" in examples:
            features["labels"] = examples["label"]
        return features


@dataclass(frozen=True, kw_only=True)
class HansTask(LaterTask):
    """HANS: entailment or not, predicted by a model of MNLI. Neutral and contradiction both count as no entailment."""

    train_split: str | None = None
    predict_splits: tuple[str, ...] = ()

    def postprocess(self, dataset: "datasets.Dataset", features: "datasets.Dataset", outputs: Outputs) -> Predictions:
        predictions = super().postprocess(dataset, features, outputs)
        return {**predictions, "prediction": np.minimum(predictions["prediction"], 1)}


@dataclass(frozen=True, kw_only=True)
class CopaTask(SwagTask):
    """COPA: which of two sentences is the cause or the effect of another one."""

    text_columns: tuple[str, ...] = ("sent1", "sent2", "ending0", "ending1")
    in_paper: bool = False
    official_folder = "the folder that holds COPA/train.jsonl, val.jsonl and test.jsonl"

    def official_file(self, data_dir: Path, split: str) -> Path:
        return data_dir / "COPA" / SUPER_GLUE_FILES[split].name

    def read_official(self, split: str, path: Path) -> "datasets.Dataset":
        return self.from_rows(_choices(read_file(path)), str(path), may_lack_labels=split == "test")

    def from_published(self, dataset: "datasets.Dataset") -> "datasets.Dataset":
        import datasets

        # The Hub's labels have the names choice1 and choice2. Their numbers are needed here.
        rows = dataset.cast_column("label", datasets.Value("int64"))
        return self.from_rows(_choices(rows), "COPA", may_lack_labels=rows[0]["label"] == -1)


_COPA_QUESTIONS = {"cause": "What was the cause of this?", "effect": "What happened as a result?"}


def _choices(rows: "datasets.Dataset") -> "datasets.Dataset":
    """Converts COPA's rows to SWAG's columns: the premise with its question, then the two choices."""

    def as_endings(premise: str, question: str, first: str, second: str) -> dict[str, str]:
        context = f"{premise} {_COPA_QUESTIONS[question]}"
        return {"sent1": context, "sent2": "", "ending0": first, "ending1": second}

    converted = rows.map(as_endings, input_columns=["premise", "question", "choice1", "choice2"])
    columns = ["sent1", "sent2", "ending0", "ending1"]
    if "label" in rows.column_names and rows[0]["label"] not in (-1, None):
        columns.append("label")
    return converted.select_columns(columns)


BOOLQ = LaterTask(
    name="boolq",
    title="BoolQ",
    text_columns=("question", "passage"),
    label_names=("no", "yes"),
    file_labels=("false", "true"),
    hub=HubSource(SUPER_GLUE, "boolq"),
    split_rows={"train": 9_427, "validation": 3_270, "test": 3_245},
    data_license="CC BY-SA 3.0",
)

CB = LaterTask(
    name="cb",
    title="CB",
    label_names=("entailment", "contradiction", "neutral"),
    metrics=("accuracy", "macro_f1"),
    hub=HubSource(SUPER_GLUE, "cb"),
    split_rows={"train": 250, "validation": 56, "test": 250},
    data_license="unknown, as its card on the Hub says",
)

WIC = WordInContextTask(
    name="wic",
    title="WiC",
    text_columns=("word", "sentence1", "sentence2"),
    label_names=("other", "same"),
    file_labels=("false", "true"),
    hub=HubSource(SUPER_GLUE, "wic"),
    split_rows={"train": 5_428, "validation": 638, "test": 1_400},
    data_license="CC BY-NC 4.0",
)

COPA = CopaTask(
    name="copa",
    title="COPA",
    metrics=("accuracy",),
    primary_metric="accuracy",
    hub=HubSource(SUPER_GLUE, "copa"),
    split_rows={"train": 400, "validation": 100, "test": 500},
    data_license="BSD 2-Clause",
)

PAWS = LaterTask(
    name="paws",
    title="PAWS",
    text_columns=("sentence1", "sentence2"),
    label_names=("different", "paraphrase"),
    file_labels=("0", "1"),
    metrics=("accuracy", "f1"),
    files=official_files("sentence1", "sentence2", index="id"),
    hub=HubSource("google-research-datasets/paws", "labeled_final"),
    split_rows={"train": 49_401, "validation": 8_000, "test": 8_000},
    data_license="free for any purpose, as its card on the Hub says",
)

HANS = HansTask(
    name="hans",
    title="HANS",
    # The model's third label, contradiction, does not occur in the files.
    file_labels=("entailment", "non-entailment", "never"),
    files={"validation": GlueFile("heuristics_evaluation_set.txt", *_PAIR)},
    # The main branch contains a script, which the library for datasets does not run.
    hub=HubSource("jhu-cogsci/hans", None, "refs/convert/parquet"),
    split_rows={"validation": 30_000},
    data_license="MIT",
)


def _anli(round_number: int, *, train: int, dev: int, test: int) -> LaterTask:
    """Describes a round of ANLI, given the rows of its splits."""
    names = {split: f"{split}_r{round_number}" for split in ("train", "dev", "test")}
    folder = f"R{round_number}"
    return LaterTask(
        name=f"anli_r{round_number}",
        title="ANLI",
        file_labels=("e", "n", "c"),
        train_split=names["train"],
        eval_splits=(names["dev"], names["test"]),
        predict_splits=(),
        files={name: GlueFile(f"{folder}/{split}.jsonl", ("context", "hypothesis")) for split, name in names.items()},
        hub=HubSource("facebook/anli"),
        split_rows={names["train"]: train, names["dev"]: dev, names["test"]: test},
        data_license="CC BY-NC 4.0",
    )


def _xnli(language: str) -> LaterTask:
    """Describes a language of XNLI. Its official files contain all languages, and no training data."""
    return LaterTask(
        name=f"xnli_{language}",
        title="XNLI",
        only=("language", language),
        language=language,
        eval_splits=("validation", "test"),
        predict_splits=(),
        files={"validation": GlueFile("xnli.dev.tsv", *_PAIR), "test": GlueFile("xnli.test.tsv", *_PAIR)},
        hub=HubSource("facebook/xnli", language),
        split_rows={"train": 392_702, "validation": 2_490, "test": 5_010},
        data_license="CC BY-NC 4.0",
    )


ANLI = (
    _anli(1, train=16_946, dev=1_000, test=1_000),
    _anli(2, train=45_460, dev=1_000, test=1_000),
    _anli(3, train=100_459, dev=1_200, test=1_200),
)
XNLI = tuple(map(_xnli, XNLI_LANGUAGES))
LATER_TASKS = (BOOLQ, CB, WIC, PAWS, HANS, *ANLI, *XNLI)
