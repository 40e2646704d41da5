"""The results that the paper reports (arXiv:1810.04805v2, Tables 1-8 and Figure 5), each number once.

Values are as printed: percent, except the perplexities of Table 6. A difference to a result of ours means something
only where task, split, metric and data agree; `Column.incomparable` says where they cannot.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml


@dataclass(frozen=True)
class Column:
    """What a column of a table measures.

    Args:
        name: the column's head.
        task: task name as in `--task_name`.
        metric: what is scored, with the names of `bert_repro.tasks.metrics.METRICS` where it is one of them.
        split: on which examples, with the names of our tasks' splits; the paper's "dev" is `validation`.
        incomparable: why no difference may be printed although task, metric and split agree; None: it may.
    """

    name: str
    task: str
    metric: str
    split: str
    incomparable: str | None = None


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper.

    Args:
        title: what it shows and how (restarts, selection).
        columns: left to right.
        rows: row name -> one value per column, None where the paper prints none.
    """

    title: str
    columns: tuple[Column, ...]
    rows: Mapping[str, tuple[float | None, ...]]


def _read_tables() -> Mapping[int, PaperTable]:
    """Reads Tables 1 to 8; a row of the file has one number per column, null where the paper prints none."""
    document = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
    tables = {}
    for number, table in document.items():
        # A column of the file is a list with the fields of `Column` in their order.
        columns = tuple(Column(*fields) for fields in table["columns"])
        rows = {name: tuple(values) for name, values in table["rows"].items()}
        tables[number] = PaperTable(table["title"], columns, rows)
    return tables


TABLES: Mapping[int, PaperTable] = _read_tables()
FIGURE_5 = Column("MNLI", "mnli", "accuracy", "validation_matched")
FIGURE_5_STATEMENT = (
    "The masked model converges marginally slower than the left-to-right one but passes it almost at once."
)
"""What the text of C.1 states; the figure's points are not printed as numbers."""
LEADERBOARD = {"OpenAI GPT": 72.8, "BERT-large": 80.5}
"""GLUE's score on its leaderboard, in the text of 4.1."""
WNLI_MAJORITY = 65.1
"""Accuracy of the majority class on WNLI's test set, which the paper submits in place of a model's answers."""
# Table 7's row -> what `--feature_based` calls it.
FEATURE_ROWS = {
    "Embeddings": "embeddings",
    "Second-to-last hidden": "second_to_last",
    "Last hidden": "last",
    "Weighted sum last four hidden": "weighted_last_four",
    "Concat last four hidden": "concat_last_four",
    "Weighted sum all 12 layers": "weighted_all",
}
FIGURE_5_KEY = "figure5"
FIGURE_5_ROWS = ("MLM", "LTR")
TABLE_KEYS = (*map(str, TABLES), FIGURE_5_KEY)
"""Names of the tables and the figure in flags and results."""
EXAMPLES_FILE = "examples.json"
"""Next to the results of a fine-tuning run: split -> metric -> a score for every example, in the split's order."""


@dataclass(frozen=True)
class TableEntry:
    """One entry of a table of the paper, or one point of Figure 5.

    Args:
        table: one of `TABLE_KEYS`.
        row: name of the row; in Figure 5 `MLM` or `LTR`.
        column: name of the column; in Figure 5 the number of pre-training steps.
    """

    table: str
    row: str
    column: str

    def __str__(self) -> str:
        return f"{table_name(self.table)}, {self.row}, {self.column}"


def table_name(key: str) -> str:
    """Returns the name of a table or of the figure in prose, from one of `TABLE_KEYS`."""
    return "Figure 5" if key == FIGURE_5_KEY else f"Table {key}"
