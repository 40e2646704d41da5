"""A classification task whose labels the text carries by itself: which package does a docstring come from?

Few labelled texts for many classes, as pre-training is meant for; training and dev texts come from different modules.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from bert_repro.errors import UserError
from bert_repro.quickstart.docstrings import Module
from bert_repro.tasks.classification import ClassificationTask
from bert_repro.utils.randomness import draw

if TYPE_CHECKING:
    import datasets

LABELS = ("matplotlib", "networkx", "pandas", "scipy", "sklearn", "sympy", "torch", "transformers")
MIN_WORDS = 20
PER_MODULE = 8
Row = dict[str, Any]
Item = TypeVar("Item")
_CHOICE = 0x43484F4F  # names the draws that choose texts

# A word with a package's name anywhere in it goes, `torch.nn.Module` as a whole; so does a usual alias.
_NAMES = re.compile(
    r"\S*(?:matplotlib|pyplot|networkx|pandas|scipy|sklearn|scikit|sympy|torch|transformers|hugging\s?face|numpy)\S*"
    r"|(?<!\w)(?:np|nx|pd|plt|mpl|sk|sp|spla|hf)(?:\.\S*|(?!\w))",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class PackageTask(ClassificationTask):
    """The task, on the JSON lines that `write_examples` wrote: `train.jsonl` and `validation.jsonl`."""

    name: str = "package"
    title: str = "Which package does a docstring come from?"
    text_columns: tuple[str, ...] = ("text",)
    label_names: tuple[str, ...] = LABELS
    metrics: tuple[str, ...] = ("accuracy",)
    primary_metric: str = "accuracy"
    predict_splits: tuple[str, ...] = ()
    paper_metrics: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def read_splits(self, data_dir: Path | None, splits: Sequence[str]) -> "dict[str, datasets.Dataset]":
        """See `Task.read_splits`; there is no copy on the Hub."""
        import datasets

        if data_dir is None:
            raise UserError(f"--data_dir is missing; task {self.name} is read from files of the quickstart")
        return {split: datasets.Dataset.from_list(read_examples(Path(data_dir), split)) for split in splits}


def choose(modules: Sequence[Module], per_label: int) -> tuple[list[Row], set[Module]]:
    """Chooses as many texts of each label, from as many different modules as their order gives.

    Args:
        modules: where the texts come from.
        per_label: texts of each label.

    Returns:
        The rows, and the modules that a text was taken from.

    Raises:
        UserError: a package has too few.
    """
    by_package = {label: [module for module in modules if module.package == label] for label in LABELS}
    rows: list[Row] = []
    used: set[Module] = set()
    for number, label in enumerate(LABELS):
        texts: list[str] = []
        for module in _drawn(by_package[label], number):
            if len(texts) >= per_label:
                break
            usable = [text for text in map(without_names, module.docstrings) if len(text.split()) >= MIN_WORDS]
            texts += _drawn(usable, number)[:PER_MODULE]
            used.add(module)
        if len(texts) < per_label:
            raise UserError(f"package {label} has {len(texts)} texts, not {per_label}; install it with its sources")
        rows += [{"text": text, "label": number} for text in texts[:per_label]]
    return [{"idx": index, **row} for index, row in enumerate(rows)], used


def _drawn(items: Sequence[Item], *names: int) -> list[Item]:
    order = np.argsort(draw(_CHOICE, *names, np.arange(len(items))), kind="stable")
    return [items[place] for place in order]


def write_examples(folder: Path, split: str, rows: Sequence[Row]) -> None:
    """Writes `SPLIT.jsonl` to an existing folder."""
    lines = (json.dumps(row) + "\n" for row in rows)
    (folder / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8")


def read_examples(folder: Path, split: str) -> list[Row]:
    """The rows of a split: `idx`, `text`, `label`."""
    lines = (folder / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def without_names(text: str) -> str:
    """A text on one line without words that name a package."""
    return " ".join(_NAMES.sub(" ", text).split())


def majority_accuracy(labels: Sequence[int]) -> float:
    """Accuracy of always answering the most frequent label."""
    return float(np.bincount(np.asarray(labels)).max() / len(labels))


def bag_of_words_accuracy(train: Sequence[Row], validation: Sequence[Row]) -> float:
    """Accuracy of TF-IDF weights of words and word pairs with logistic regression."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    weights = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2))
    model = make_pipeline(weights, LogisticRegression(C=10.0, max_iter=1000))
    model.fit([row["text"] for row in train], [row["label"] for row in train])
    return float(model.score([row["text"] for row in validation], [row["label"] for row in validation]))
