"""Tasks that give a label, several labels or a number to a text or a pair of texts: GLUE's (paper 4.1), and the user's.

The tasks of GLUE themselves are in `glue_tasks`, as data. The names of the user's labels come from the training
data and travel with the published model (`id2label`); without training they come from the model, as does whether it
predicts labels or numbers.
"""

import ast
import json
import logging
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
import numpy.typing as npt

from bert_repro.configs import GlueConfig, require
from bert_repro.errors import UserError
from bert_repro.tasks.base import (
    Columns,
    ExampleScores,
    Feature,
    Outputs,
    Predictions,
    Splits,
    Task,
    confusions,
    encoded_texts,
    require_first_rows,
    write_prediction_rows,
)
from bert_repro.tasks.data import (
    hold_out,
    number,
    parsed,
    read_file,
    read_glue,
    require_columns,
    short_row,
    texts,
    values,
)
from bert_repro.utils.randomness import Stream, drawn_rows
from bert_repro.utils.readers import listed, shown

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger("bert_repro")

DEGENERATE_SPREAD = 0.01
"""Numbers whose standard deviation is below this share of the labels' count as constant (our choice)."""
DEFAULT_THRESHOLD = 0.5
LABEL_SEPARATOR = "|"
TEXT_COLUMNS = (
    ("text",), ("text_a", "text_b"), ("sentence1", "sentence2"), ("question1", "question2"), ("premise", "hypothesis"),
    ("question", "sentence"), ("sentence",),
)  # fmt: skip
"""Names that are found without --text_columns: our own, and those of GLUE's tasks, pairs before singles."""
METRICS_OF = {
    "label": ("accuracy", "macro_f1", "weighted_f1", "matthews_correlation"),
    "labels": ("micro_f1", "macro_f1", "exact_match"),
    "number": ("pearson", "spearmanr"),
}
"""What is reported of a row's label, its labels, or its number; the first chooses among runs."""


BASELINE_ROWS = 20_000

# Scripts that write without spaces, where a run of letters is a sentence: Thai, Lao, Burmese and Khmer, kana, and the
# Chinese characters, which BERT's tokenizer splits too. There each letter counts as a word, elsewhere words of two
# letters and more do, as in scikit-learn's default.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORDS = rf"(?u)[{_UNSPACED}]|(?:(?![{_UNSPACED}])\w){{2,}}"
_PLAIN_LABEL = re.compile(r"-?(0|[1-9]\d*)|true|false")


@dataclass(frozen=True, kw_only=True)
class ClassificationTask(Task):
    """One label, or one number, from the pooled [CLS] of a text or a pair.

    A split has the columns `text_columns` (strings), `idx` (the row's number in its official file) and, if it is
    labelled, `label` (a place in `label_names`, or a number).

    Args:
        text_columns: one or two columns that hold the text.
        file_labels: how files spell `label_names`, in the same order; empty: the same spelling.
        number_range: lowest and highest value of a regression task; None: a classification task.
        class_weights: weight of each label in the loss, in the order of `label_names`; empty: all equal. The loss is
            the weighted mean over the global batch.
        label_smoothing: share of the target that is spread evenly over all labels.
        notes: sentences on the data for log and card.
    """

    head: str = "BertReproForSequenceClassification"
    text_columns: tuple[str, ...]
    file_labels: tuple[str, ...] = ()
    number_range: tuple[float, float] | None = None
    class_weights: tuple[float, ...] = ()
    label_smoothing: float = 0.0
    notes: tuple[str, ...] = ()
    predictions_suffix: ClassVar[str] = ".tsv"
    one_feature_per_example: ClassVar[bool] = True

    @property
    def columns_of_text(self) -> tuple[str, ...]:
        return self.text_columns

    @property
    def answer_names(self) -> tuple[str, ...]:
        """Names of the possible answers, whose probabilities are written."""
        return self.label_names

    def encoding_settings(self) -> dict[str, Any]:
        return {"text_columns": self.text_columns}

    def encode_batch(self, examples: Columns, tokenizer: "PreTrainedTokenizerBase", max_seq_length: int) -> Columns:
        labels = {"labels": examples["label"]} if "label" in examples else {}
        return encoded_texts(tokenizer, [examples[column] for column in self.text_columns], max_seq_length) | labels

    def loss_items(self, features: Sequence[Feature]) -> npt.NDArray[Any]:
        if not self.class_weights:
            return super().loss_items(features)
        return np.array([self.class_weights[feature["labels"]] for feature in features])

    def postprocess(self, dataset: "datasets.Dataset", features: "datasets.Dataset", outputs: Outputs) -> Predictions:
        """Returns the likeliest label of each example with the `probabilities` of all (N, labels), or its number."""
        from scipy.special import softmax

        logits = np.stack(list(outputs)).astype(np.float64)
        self.require_finite(logits)
        if self.number_range:
            return {"prediction": logits.reshape(len(logits))}
        return {"prediction": logits.argmax(axis=1), "probabilities": softmax(logits, axis=1)}

    def is_degenerate(self, predictions: Predictions, dataset: "datasets.Dataset") -> bool:
        """See `Task.is_degenerate`. Numbers are never quite equal: theirs spread less than 1% of what the labels do.

        Spread is the standard deviation. Labels that are all equal ask for a constant.
        """
        labels = np.asarray(dataset["label"][:])
        if (labels == labels[:1]).all():
            return False
        if self.number_range is None:
            return super().is_degenerate(predictions, dataset)
        return bool(np.std(predictions["prediction"]) < DEGENERATE_SPREAD * np.std(labels))

    def baselines(self, train: "datasets.Dataset", dataset: "datasets.Dataset") -> dict[str, dict[str, float]]:
        """See `Task.baselines`: the most frequent label, and a linear model of TF-IDF weights of words and pairs.

        That is logistic regression, for several labels one of each with the threshold of its best F1 as in `tuned`. For
        numbers it is ridge regression, and the overlap of a pair's texts is one more weight; a constant has no
        correlation. It learns from at most 20,000 rows drawn at random, which takes seconds.
        """
        if len(train) > BASELINE_ROWS:
            train = train.select(drawn_rows(Stream.BASELINE_ROWS, len(train), BASELINE_ROWS))
        labels = np.asarray(train["label"][:])
        if self.sequences_per_example > 1 or len(np.unique(labels, axis=0)) < 2:
            return {}
        from sklearn.linear_model import LogisticRegression, Ridge
        from sklearn.multiclass import OneVsRestClassifier

        try:
            words, new_words = self._bags_of_words(train, dataset)
        except ValueError:  # no words in any text
            return {}
        logistic, name = LogisticRegression(max_iter=300, C=10.0), "bag of words"
        if self.number_range is not None:
            predicted = {name: Ridge(alpha=10.0).fit(words, labels).predict(new_words)}
        elif labels.ndim > 1:
            shares = OneVsRestClassifier(logistic).fit(words, labels).predict_proba(new_words)
            predicted = {name: shares >= list(map(best_f1_threshold, shares.T, np.asarray(dataset["label"][:]).T))}
        else:
            found, counts = np.unique(labels, return_counts=True)
            predicted = {"most frequent label": np.full(len(dataset), found[counts.argmax()])}
            predicted[name] = logistic.fit(words, labels).predict(new_words)
        return {name: Task.score(self, {"prediction": answers}, dataset) for name, answers in predicted.items()}

    def _bags_of_words(self, *splits: "datasets.Dataset") -> list[Any]:
        """Returns TF-IDF weights of the texts of each split, sparse (rows, words), as the first split has them.

        Each text of a pair has its own weights. The overlap is the cosine of their words' common weights.
        """
        from scipy.sparse import csr_matrix, hstack
        from sklearn.feature_extraction.text import TfidfVectorizer

        columns = [[split[name][:] for name in self.text_columns] for split in splits]
        own = [
            TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=_WORDS).fit(column)
            for column in columns[0]
        ]
        bags = [[weights.transform(column) for weights, column in zip(own, split, strict=True)] for split in columns]
        if self.number_range is not None and len(self.text_columns) == 2:
            common = TfidfVectorizer(sublinear_tf=True, token_pattern=_WORDS).fit(chain(*columns[0]))
            for bag, (left, right) in zip(bags, columns, strict=True):
                bag.append(csr_matrix(common.transform(left).multiply(common.transform(right)).sum(axis=1)))
        return [hstack(bag) for bag in bags]

    def example_scores(self, split: str, dataset: "datasets.Dataset", run_folder: Path) -> ExampleScores:
        """See `Task.example_scores`; whether each label, or all labels of each row, are correct, and what the task's F1
        and correlations are made of."""
        path = run_folder / f"predictions.{split}{self.predictions_suffix}"
        rows = read_file(path)
        require_first_rows(path, rows["index"][:], list(map(str, dataset["idx"])))
        predicted = rows["prediction"][:]
        labels = dataset["label"][: len(predicted)]
        if self.number_range is not None:
            from scipy.stats import rankdata

            pair = np.array([list(map(float, predicted)), labels])
            return {"pearson": pair.T.tolist(), "spearmanr": rankdata(pair, axis=1).T.tolist()}
        expected = list(map(self.spelled, labels))
        metric = "accuracy" if "accuracy" in self.metrics else "exact_match"
        scores: ExampleScores = {metric: [int(name == right) for name, right in zip(predicted, expected, strict=True)]}
        if len(self.label_names) == 2 and {"f1", "matthews_correlation"} & {*self.metrics}:
            positive = self.spelled(1)
            pairs = [[int(name == positive) for name in row] for row in zip(predicted, expected, strict=True)]
            # [both, predicted, true]; Matthews correlation is Pearson's of zeros and ones.
            made = {"f1": [[p & t, p, t] for p, t in pairs], "matthews_correlation": pairs}
            scores |= {name: found for name, found in made.items() if name in self.metrics}
        return scores

    def score_details(self, predictions: Predictions, dataset: "datasets.Dataset") -> dict[str, Any]:
        if self.number_range is not None:
            return {}
        return confusions(predictions["prediction"], dataset["label"][:], self.label_names)

    def write_predictions(
        self, directory: str | Path, split: str, dataset: "datasets.Dataset", predictions: Predictions
    ) -> list[Path]:
        """Writes `predictions.SPLIT.tsv` (of choices .csv).

        Columns: index, prediction (a label's name, or a number), label (where known), the probability of each label,
        the texts, and the other columns of the user's data.
        """
        path = Path(directory) / f"predictions.{split}{self.predictions_suffix}"
        columns: dict[str, Sequence[object]] = {
            "index": dataset["idx"][:],
            "prediction": [self.spelled(value) for value in self.answers(predictions)],
        }
        if self.is_labelled(dataset):
            columns["label"] = [self.spelled(label) for label in dataset["label"]]
        for place, name in enumerate(self.answer_names if "probabilities" in predictions else ()):
            columns[f"probability_{name}"] = [f"{share:.6f}" for share in predictions["probabilities"][:, place]]
        own = [name for name in dataset.column_names if name not in (*columns, *self.text_columns, "idx", "label")]
        columns |= {name: dataset[name][:] for name in (*self.text_columns, *own)}
        write_prediction_rows(path, columns)
        return [path]

    def records(self, dataset: "datasets.Dataset", predictions: Predictions) -> Iterator[dict[str, Any]]:
        answers, probabilities = self.answers(predictions), predictions.get("probabilities")
        for row, (example, answer) in enumerate(zip(dataset, answers, strict=True)):
            blank = not any(str(example[name]).strip() for name in self.text_columns)  # has no answer, but a row
            record: dict[str, Any] = {"prediction": None} if blank else self.json_answer(example, answer)
            if probabilities is not None:
                record["probability"] = None if blank else self.answer_probability(answer, probabilities[row])
                for name, share in zip(self.answer_names, probabilities[row], strict=True):
                    record[f"probability_{name}"] = None if blank else round(float(share), 6)
            yield record

    def answers(self, predictions: Predictions) -> Sequence[Any]:
        """Returns the answer to each example: a label id or a number."""
        return cast(Sequence[Any], predictions["prediction"])

    def spelled(self, value: Any) -> str:
        """Spells a label by its name, or a number so that it is read back exactly."""
        return f"{value:.9g}" if self.number_range is not None else self.label_names[value]

    def json_label(self, value: Any) -> Any:
        """Returns a number, or a label, as records hold it: labels that are all whole numbers or booleans are such."""
        if self.number_range is not None:
            return float(f"{value:.9g}")
        name = self.label_names[value]
        return json.loads(name) if all(map(_PLAIN_LABEL.fullmatch, self.label_names)) else name

    def json_answer(self, example: Mapping[str, Any], value: Any) -> dict[str, Any]:
        """Returns the answer to an example as records hold it."""
        return {"prediction": self.json_label(value)}

    def answer_probability(self, value: Any, probabilities: npt.NDArray[np.float64]) -> float:
        """Returns the probability of an answer, given those of all labels, (labels,)."""
        return round(float(probabilities[value]), 6)

    def data_description(self) -> dict[str, Any]:
        known = super().data_description() | {"text_columns": list(self.text_columns)}
        if self.name == "custom":
            known["kind"] = next(kind for kind, metrics in METRICS_OF.items() if metrics == self.metrics)
            known |= {"note": " ".join(self.notes)} if self.notes else {}
        return known

    def example(self, dataset: "datasets.Dataset | None") -> dict[str, Any] | None:
        return short_row(dataset, dict(zip(("text", "text_pair"), self.text_columns, strict=False)))

    def model_settings(self) -> dict[str, Any]:
        """Returns the labels, and how the loss is taken."""
        known: dict[str, Any] = {"problem_type": "regression" if self.number_range else "single_label_classification"}
        if self.name == "custom":
            known |= {"class_weights": list(self.class_weights) or None, "label_smoothing": self.label_smoothing}
        return super().model_settings() | known

    def from_published(self, dataset: "datasets.Dataset") -> "datasets.Dataset":
        rows = super().from_published(dataset)
        if "label" in rows.features and rows.features["label"].dtype == "string":
            return self.from_rows(rows, self.title)
        rows = rows.select_columns([name for name in (*self.text_columns, "label", "idx") if name in rows.column_names])
        return rows if "idx" in rows.column_names else rows.add_column("idx", list(range(len(rows))))

    def from_rows(
        self,
        rows: "datasets.Dataset",
        where: str,
        *,
        columns: Sequence[str] = (),
        label: str = "label",
        index: str | None = None,
        may_lack_labels: bool = False,
        missing: str | None = None,
    ) -> "datasets.Dataset":
        """Returns the split that rows with named columns are.

        Args:
            rows: the rows.
            where: what messages call them.
            columns: what they call `text_columns`; empty: the same.
            label: their column of labels.
            index: their column of row numbers; None: rows are counted from 0.
            may_lack_labels: whether the column of labels may be absent or empty.
            missing: takes the place of a text that is missing; None: every row must have one.

        Raises:
            UserError: a column is missing, or holds what is no text or no label.
        """
        import datasets

        names = zip(self.text_columns, columns or self.text_columns, strict=True)
        made: dict[str, Any] = {column: texts(rows, name, where, missing) for column, name in names}
        labels = values(rows, label, where) if not may_lack_labels or label in rows.column_names else []
        if not may_lack_labels or any(str(one or "").strip() for one in labels):
            made["label"] = parsed(labels, label, where, self.parse_label)
        made["idx"] = range(len(rows)) if index is None else parsed(values(rows, index, where), index, where, int)
        return datasets.Dataset.from_dict(made)

    def parse_label(self, text: Any) -> Any:
        """Reads a label of the data: its place, or a number.

        Raises:
            ValueError: it is not a label of this task; the message says what would be.
        """
        if self.number_range is None:
            spellings, label = self.file_labels or self.label_names, str("" if text is None else text).strip()
            if label not in spellings:
                raise ValueError(f"label {shown(label)} is not known; it must be one of: {', '.join(spellings)}")
            return spellings.index(label)
        low, high = self.number_range
        value = number(text)
        if not low <= value <= high:
            raise ValueError(f"label {shown(text)} is out of range; it must be a number from {low:g} to {high:g}")
        return value


# --- GLUE -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GlueFile:
    """One official file.

    Args:
        name: of the file, in the task's folder.
        texts: its columns for the task's `text_columns`; empty: they are called the same.
        label: its column of labels, required where `labelled`, else read if it is there.
        labelled: whether the file must have labels.
        index: its column of row numbers; None: rows are counted from 0, as in the Hub's dataset.
        header: all its columns, where the file does not name them.
    """

    name: str
    texts: tuple[str, ...] = ()
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
    """A task whose official files are tables: GLUE's, and the later ones.

    Args:
        files: the official file of each split: a .tsv or .txt as GLUE has them, or .jsonl.
        other_folders: what the folder of the files is also called, apart from the task's title.
        drop_incomplete_rows: drop rows with missing fields instead of refusing the file.
        only: column and value of the rows that belong to the task; empty: all rows do.
        example_texts: an input for the card; empty: none.
    """

    primary_metric: str = "accuracy"
    metrics: tuple[str, ...] = ("accuracy",)
    files: Mapping[str, GlueFile]
    other_folders: tuple[str, ...] = ()
    drop_incomplete_rows: bool = False
    only: tuple[str, str] = ("", "")
    example_texts: tuple[str, ...] = ("A man is playing a guitar.", "Someone makes music.")
    data_license: str | None = "that of its source; most of GLUE is for research use, or states none"
    official_folder = "the folder that holds the official CoLA/, SST-2/, MRPC/ ..."
    collection = "nyu-mll/glue"  # where a task is a configuration of its name, unless `hub` says otherwise

    def __post_init__(self) -> None:
        if not self.hub[0]:
            object.__setattr__(self, "hub", (self.collection, self.name, None))

    def official_file(self, data_dir: Path, split: str) -> Path:
        folders = [data_dir / name for name in (self.title, *self.other_folders)]
        file = self.files.get(split, GlueFile(f"{split} is not published as a file"))
        return next((folder for folder in folders if folder.is_dir()), folders[0]) / file.name

    def read_official(self, split: str, path: Path) -> "datasets.Dataset":
        file, (column, value) = self.files[split], self.only
        if path.suffix == ".jsonl":
            rows = read_file(path)
        else:
            kept = (*(file.texts or self.text_columns), file.label, file.index or "", column)
            rows = read_glue(path, kept, header=file.header, drop_incomplete_rows=self.drop_incomplete_rows)
        if column:
            rows = rows.filter(lambda found: found == value, input_columns=column)
        return self.from_rows(
            rows, str(path), columns=file.texts, label=file.label, index=file.index, may_lack_labels=not file.labelled
        )

    def example(self, dataset: "datasets.Dataset | None") -> dict[str, Any] | None:
        """See `Task.example`; sentences of ours, since most of these texts may not be passed on."""
        return dict(zip(("text", "text_pair"), self.example_texts, strict=False)) or None


# --- Several labels ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class MultiLabelTask(ClassificationTask):
    """Any number of labels for each row of the user's data: a yes or no to each, from a sigmoid of its own.

    The column `label` of a split holds a list of zeros and ones in the order of `label_names`.

    Args:
        thresholds: a label is predicted where its probability reaches its threshold; empty: not chosen yet, counts as
            0.5. `tuned` chooses them on dev, and they are stored with the model.
    """

    thresholds: tuple[float, ...] = ()

    def parse_label(self, text: Any) -> list[int]:
        """Reads the labels of a row; an empty text is a row without labels."""
        names = split_labels(text)
        if set(names) <= {"0", "1"} and len(set(names)) < len(names):
            raise ValueError(
                f"{shown(names)} are zeros and ones, which name no label; give the names of the row's labels"
            )
        # "a, b" are two labels, unless the model knows a label of that name.
        if isinstance(text, str) and LABEL_SEPARATOR not in text and not set(names) <= set(self.label_names):
            names = split_labels(text, separator=",")
        for name in names:
            if name not in self.label_names:
                raise ValueError(f"label {shown(name)} is not known; it must be one of: {', '.join(self.label_names)}")
        return [int(name in names) for name in self.label_names]

    def model_settings(self) -> dict[str, Any]:
        """See `Task.model_settings`; the thresholds are part of the model's configuration."""
        multi = {"problem_type": "multi_label_classification", "label_thresholds": list(self.thresholds) or None}
        return {**super().model_settings(), **multi}

    def restored(self, model_config: Any) -> "MultiLabelTask":
        stored = getattr(model_config, "label_thresholds", None)
        return self if self.thresholds or not stored else replace(self, thresholds=tuple(stored))

    def tuned(self, predictions: Predictions, dataset: "datasets.Dataset") -> "MultiLabelTask":
        """Returns the task with the threshold of each label that gives its best F1 on a labelled split."""
        expected = np.asarray(dataset["label"][:])
        thresholds = tuple(map(best_f1_threshold, predictions["probabilities"].T, expected.T))
        chosen = ", ".join(f"{name} {value:.3f}" for name, value in zip(self.label_names, thresholds, strict=True))
        logger.info("%s: F1 of each label is best at the thresholds %s", self.name, chosen)
        return replace(self, thresholds=thresholds)

    def postprocess(self, dataset: "datasets.Dataset", features: "datasets.Dataset", outputs: Outputs) -> Predictions:
        """Returns the `probabilities` (N, labels); `answers` makes labels of them."""
        logits = np.stack(list(outputs)).astype(np.float64)
        self.require_finite(logits)
        probabilities = 0.5 * (1.0 + np.tanh(0.5 * logits))
        return {"prediction": probabilities, "probabilities": probabilities}

    def answers(self, predictions: Predictions) -> Any:
        """Returns zeros and ones, (N, labels): the labels whose probabilities reach their thresholds."""
        limits = self.thresholds or (DEFAULT_THRESHOLD,) * len(self.label_names)
        return (predictions["probabilities"] >= np.array(limits)).astype(np.int64)

    def score(self, predictions: Predictions, dataset: "datasets.Dataset") -> dict[str, float]:
        return super().score({"prediction": self.answers(predictions)}, dataset)

    def score_details(self, predictions: Predictions, dataset: "datasets.Dataset") -> dict[str, Any]:
        return {}

    def is_degenerate(self, predictions: Predictions, dataset: "datasets.Dataset") -> bool:
        """See `Task.is_degenerate`; whether every row gets the same labels, while the labels differ."""
        answers, expected = self.answers(predictions), np.asarray(dataset["label"][:])
        return bool((answers == answers[:1]).all() and not (expected == expected[:1]).all())

    def spelled(self, value: Any) -> str:
        return LABEL_SEPARATOR.join(self.json_label(value))

    def json_label(self, value: Any) -> list[str]:
        return [name for name, there in zip(self.label_names, value, strict=True) if there]

    def answer_probability(self, value: Any, probabilities: npt.NDArray[np.float64]) -> float:
        """Returns the probability of exactly these labels, each decided by itself."""
        return round(float(np.where(np.asarray(value) == 1, probabilities, 1 - probabilities).prod()), 6)


def split_labels(text: Any, separator: str = LABEL_SEPARATOR) -> list[str]:
    """Returns the labels of a row; empty ones do not count.

    Args:
        text: a list, such a list as text (`['a', 'b']`, as a CSV file of lists has it), or a text such as `a|b`.
        separator: what stands between labels in a text that is no list.
    """
    parts = text
    if not isinstance(text, list):
        parts = _written_list(str(text or ""))
    if parts is None:
        parts = str(text).split(separator)
    stripped = [str(part).strip() for part in parts]
    return [part for part in stripped if part]


def _written_list(text: str) -> list[Any] | None:
    """Returns the list that a text writes out in Python's or JSON's spelling; None where it is no list."""
    if not text.strip().startswith("["):
        return None
    try:
        value = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError):
        return None
    return value if isinstance(value, list) else None


def _labels_of_rows(found: Sequence[Any], where: str, column: str) -> list[list[str]]:
    """Returns the labels of every training row that may have several.

    Raises:
        UserError: the rows hold zeros and ones, which name no label.
    """
    labels = [split_labels(value) for value in found]

    # A file that separates labels by commas has the usual separator nowhere.
    written = [value for value in found if isinstance(value, str)]
    if not any(LABEL_SEPARATOR in value for value in written):
        labels = [split_labels(value, separator=",") for value in found]

    # Rows of zeros and ones, all equally long, mark labels by their place. Read as names they would be nonsense.
    lengths = {len(names) for names in labels}
    digits = set(chain.from_iterable(labels))
    if len(lengths) == 1 and max(lengths) > 1 and digits <= {"0", "1"}:
        raise UserError(
            f"{where}: column {column!r} holds zeros and ones, such as {shown(labels[0])}, which name no label; write "
            'the names of each row\'s labels instead, for example ["food", "staff"] or food|staff'
        )
    return labels


def best_f1_threshold(probabilities: npt.NDArray[np.float64], labels: npt.NDArray[np.int64]) -> float:
    """Chooses the threshold with the best F1 of one label, the nearest to 0.5 among equals.

    Candidates are the middles between neighboring probabilities; 0.5 where no row has the label.

    Args:
        probabilities: of the label, (N,).
        labels: zeros and ones, (N,).
    """
    found = np.unique(probabilities)
    candidates = np.concatenate([[DEFAULT_THRESHOLD], (found[1:] + found[:-1]) / 2])
    if not labels.any():
        return DEFAULT_THRESHOLD
    order = np.sort(probabilities)
    right = np.sort(probabilities[labels == 1])
    # How many are predicted, and how many of these are correct, at each candidate.
    predicted = len(order) - np.searchsorted(order, candidates)
    correct = len(right) - np.searchsorted(right, candidates)
    scores = 2 * correct / (predicted + len(right))
    best = candidates[scores == scores.max()]
    return float(best[np.abs(best - DEFAULT_THRESHOLD).argmin()])


# --- The user's data --------------------------------------------------------------------------------------------------


def custom_classification(config: GlueConfig, rows: Splits, names: Mapping[str, str]) -> ClassificationTask:
    """Makes the task of the user's texts.

    Args:
        config: the columns and, for training, what labels are and how the loss weighs them.
        rows: the data, by split.
        names: what messages call it.

    Raises:
        UserError: a column is missing or cannot be text, a label is empty or unknown, there are fewer than two
            different ones, or the finished model predicts something else.
    """
    import datasets

    first = next(iter(rows))
    text_columns = config.text_columns or found_text_columns(rows[first].column_names, names[first])
    for split in rows:
        require_columns(rows[split], text_columns, names[split], "name the column of text with --text_columns")
    labels: list[list[str]] = []
    if not config.do_train:
        kind, label_names = _kind_and_labels_of_the_model(config)
    elif config.regression:
        kind, label_names = "number", (config.label_column,)
    else:
        kind = "labels" if config.multi_label else "label"
        labels = _training_labels(config, rows["train"], names["train"])
        label_names = _label_names(labels, names["train"], config.label_column)
        logger.info("labels: %s", listed(label_names))
    task_class = MultiLabelTask if kind == "labels" else ClassificationTask
    task = task_class(
        name="custom",
        title=Path(names[first]).stem,
        metrics=METRICS_OF[kind],
        primary_metric=METRICS_OF[kind][0],
        label_names=label_names,
        text_columns=tuple(text_columns),
        data_names=names,
        number_range=(-math.inf, math.inf) if kind == "number" else None,
        class_weights=_balanced_weights(label_names, labels) if config.class_weights and labels else (),
        label_smoothing=config.label_smoothing,
    )
    data, notes, spellings = {}, [], Counter(map(str.casefold, label_names))
    if twins := [name for name in label_names if spellings[name.casefold()] > 1]:
        notes.append(f"The labels {' and '.join(twins)} are different, although only their case differs.")
    for split, where in names.items():
        given: dict[str, Any] = {"label": config.label_column, "may_lack_labels": split == "test", "missing": ""}
        data[split] = task.from_rows(rows[split], where, **given)
        taken = {*text_columns, config.label_column, "label", "idx"}
        if others := [name for name in rows[split].column_names if name not in taken]:
            data[split] = datasets.concatenate_datasets([data[split], rows[split].select_columns(others)], axis=1)
        each = zip(*(data[split][name] for name in text_columns), strict=True)
        filled = [sum(bool(text.strip()) for text in found) for found in each]
        written = [row for row, present in enumerate(filled) if present]
        if half := sum(0 < present < len(text_columns) for present in filled):
            notes.append(f"{Path(where).name}: {half} of {len(filled)} rows have one of their two texts, read alone.")
        if missing := len(rows[split]) - len(written):
            fate = "get no answer" if split == "test" else "are left out"
            notes.append(f"{Path(where).name}: {missing} of {len(rows[split])} rows have no text and {fate}.")
            require(written, f"{where}: no text in any row; name its column with --text_columns")
            data[split] = data[split] if split == "test" else data[split].select(written)
    data = hold_out(data, config, together=text_columns, strata="" if kind == "number" else "label")
    if {"train", "validation"} <= data.keys():
        texts_of = {split: list(zip(*(data[split][name][:] for name in text_columns), strict=True)) for split in data}
        if known := sum(map(set(texts_of["train"]).__contains__, dev := texts_of["validation"])):
            notes.append(f"{known} of {len(dev)} dev rows have the texts of training rows, which flatters the score.")
    for note in notes:
        logger.warning("%s", note)
    return replace(task, data=data, notes=tuple(notes))


def found_text_columns(present: Sequence[str], where: str, trained: Sequence[str] = ()) -> tuple[str, ...]:
    """Returns those that a model was trained on or else the first of `TEXT_COLUMNS`, whichever data has all of."""
    for columns in (tuple(trained), *TEXT_COLUMNS):
        if columns and set(columns) <= set(present):
            return columns
    known = f"{' and '.join(trained)} in training" if trained else ", ".join(map(" and ".join, TEXT_COLUMNS))
    raise UserError(f"{where}: no column of text ({known}); found {listed(present)}; name it with --text_columns")


def _training_labels(config: GlueConfig, rows: "datasets.Dataset", where: str) -> list[list[str]]:
    """Returns the labels of every training row; one each unless rows may have several."""
    require_columns(rows, [config.label_column], where, "name the column of labels with --label_column")
    found = values(rows, config.label_column, where)
    if config.multi_label:
        return _labels_of_rows(found, where, config.label_column)
    empty = [row for row, label in enumerate(found, 1) if not str(label or "").strip()]
    require(not empty, f"{where}: {config.label_column!r} is empty in row {listed(map(str, empty))}; label every row")
    return [[str(label).strip()] for label in found]


def _label_names(labels: Sequence[Sequence[str]], where: str, column: str) -> tuple[str, ...]:
    names = sorted(set(chain.from_iterable(labels)), key=_numbers_first)
    if len(names) < 2:
        found = shown(names[0]) if names else "empty"
        raise UserError(f"{where}: column {column!r} is {found} in every row; two labels are needed")
    numbers = [value for is_text, value, _ in map(_numbers_first, names) if not is_text]
    are_numbers = len(numbers) == len(names) and any(value % 1 for value in numbers)
    if len(names) > 20 and (are_numbers or len(names) > len(labels) // 2):
        found = f"{len(names)} different labels in {len(labels)} rows, such as {shown(names[0])}"
        fix = "name the column of labels with --label_column, or predict numbers with --regression"
        raise UserError(f"{where}: column {column!r} has {found}; {fix}")
    return tuple(names)


def _numbers_first(label: str) -> tuple[int, float, str]:
    try:
        return 0, number(label), label
    except ValueError:
        return 1, 0.0, label


def _balanced_weights(names: Sequence[str], labels: Sequence[Sequence[str]]) -> tuple[float, ...]:
    from sklearn.utils.class_weight import compute_class_weight

    rows = list(chain.from_iterable(labels))
    weights = compute_class_weight("balanced", classes=np.array(names), y=rows).tolist()
    logger.info("balanced class weights: %s", dict(zip(names, weights, strict=True)))
    return tuple(weights)


def _kind_and_labels_of_the_model(config: GlueConfig) -> tuple[str, tuple[str, ...]]:
    """Returns whether a finished model gives a row one `label`, several `labels` or a `number`, and their names."""
    from bert_repro.models.loading import load_config

    model, name = load_config(config.model_name_or_path), config.model_name_or_path
    labels = tuple(model.id2label[index] for index in sorted(model.id2label))
    several = model.problem_type == "multi_label_classification"
    numbers = model.problem_type == "regression" or len(labels) == 1
    require(several or not config.multi_label, f"--multi_label: {name} gives one label to a row; leave it out")
    require(numbers or not config.regression, f"--regression: {name} predicts one of {listed(labels)}; leave it out")
    return ("labels", labels) if several else ("number", (config.label_column,)) if numbers else ("label", labels)
