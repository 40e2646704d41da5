"""The results that the paper reports (arXiv:1810.04805v2, Tables 1-8 and Figure 5), each number once.

Values are as printed: percent, except the perplexities of Table 6. A difference to a result of ours means something
only where task, split, metric and data agree; `Column.incomparable` says where they cannot.
"""

from collections.abc import Mapping
from dataclasses import dataclass


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


_FIRST_QNLI = "the paper's QNLI is GLUE's first release (108k training rows); today's has 104,743"
_LEADERBOARD = "GLUE test, scored by the leaderboard; the best of several runs on dev"


def _squad_columns(task: str) -> tuple[Column, ...]:
    return tuple(
        Column(f"{name} {head}", task, metric, split)
        for name, split in (("dev", "validation"), ("test", "test"))
        for head, metric in (("EM", "exact_match"), ("F1", "f1"))
    )


TABLES: Mapping[int, PaperTable] = {
    1: PaperTable(
        _LEADERBOARD,
        (
            Column("MNLI-m", "mnli", "accuracy", "test_matched"),
            Column("MNLI-mm", "mnli", "accuracy", "test_mismatched"),
            Column("QQP", "qqp", "f1", "test"),
            Column("QNLI", "qnli", "accuracy", "test", _FIRST_QNLI),
            Column("SST-2", "sst2", "accuracy", "test"),
            Column("CoLA", "cola", "matthews_correlation", "test"),
            Column("STS-B", "stsb", "spearmanr", "test"),
            Column("MRPC", "mrpc", "f1", "test"),
            Column("RTE", "rte", "accuracy", "test"),
            Column("Average", "glue", "mean of the nine columns", "test", _FIRST_QNLI),
        ),
        {
            "Pre-OpenAI SOTA": (80.6, 80.1, 66.1, 82.3, 93.2, 35.0, 81.0, 86.0, 61.7, 74.0),
            "BiLSTM+ELMo+Attn": (76.4, 76.1, 64.8, 79.8, 90.4, 36.0, 73.3, 84.9, 56.8, 71.0),
            "OpenAI GPT": (82.1, 81.4, 70.3, 87.4, 91.3, 45.4, 80.0, 82.3, 56.0, 75.1),
            "BERT-base": (84.6, 83.4, 71.2, 90.5, 93.5, 52.1, 85.8, 88.9, 66.4, 79.6),
            "BERT-large": (86.7, 85.9, 72.1, 92.7, 94.9, 60.5, 86.5, 89.3, 70.1, 82.1),
        },
    ),
    2: PaperTable(
        "SQuAD v1.1; the ensemble is seven systems with different pre-training checkpoints and fine-tuning seeds",
        _squad_columns("squad"),
        {
            "Human": (None, None, 82.3, 91.2),
            "nlnet ensemble": (None, None, 86.0, 91.7),
            "QANet ensemble": (None, None, 84.5, 90.5),
            "BiDAF+ELMo": (None, 85.6, None, 85.8),
            "R.M. Reader ensemble": (81.2, 87.9, 82.3, 88.5),
            "BERT-base": (80.8, 88.5, None, None),
            "BERT-large": (84.1, 90.9, None, None),
            "BERT-large ensemble": (85.8, 91.8, None, None),
            "BERT-large + TriviaQA": (84.2, 91.1, 85.1, 91.8),
            "BERT-large ensemble + TriviaQA": (86.2, 92.2, 87.4, 93.2),
        },
    ),
    3: PaperTable(
        "SQuAD v2.0",
        _squad_columns("squad_v2"),
        {
            "Human": (86.3, 89.0, 86.9, 89.5),
            "MIR-MRC": (None, None, 74.8, 78.0),
            "nlnet": (None, None, 74.2, 77.1),
            "unet": (None, None, 71.4, 74.9),
            "SLQA+": (None, None, 71.4, 74.4),
            "BERT-large": (78.7, 81.9, 80.0, 83.1),
        },
    ),
    4: PaperTable(
        "SWAG",
        (Column("dev", "swag", "accuracy", "validation"), Column("test", "swag", "accuracy", "test")),
        {
            "ESIM+GloVe": (51.9, 52.7),
            "ESIM+ELMo": (59.1, 59.2),
            "OpenAI GPT": (None, 78.0),
            "BERT-base": (81.6, None),
            "BERT-large": (86.6, 86.3),
            "Human (expert)": (None, 85.0),
            "Human (5 annotations)": (None, 88.0),
        },
    ),
    5: PaperTable(
        "Ablation of the pre-training tasks, BERT-base size, dev",
        (
            Column("MNLI-m", "mnli", "accuracy", "validation_matched"),
            Column("QNLI", "qnli", "accuracy", "validation", _FIRST_QNLI),
            Column("MRPC", "mrpc", "accuracy", "validation"),
            Column("SST-2", "sst2", "accuracy", "validation"),
            Column("SQuAD", "squad", "f1", "validation"),
        ),
        {
            "BERT-base": (84.4, 88.4, 86.7, 92.7, 88.5),
            "No NSP": (83.9, 84.9, 86.5, 92.6, 87.9),
            "LTR & no NSP": (82.1, 84.3, 77.5, 92.1, 77.8),
            "LTR & no NSP + BiLSTM": (82.1, 84.1, 75.7, 91.6, 84.9),
        },
    ),
    6: PaperTable(
        "Model size; dev accuracy, mean of 5 restarts. Rows are names of `presets.MODEL_SIZES`",
        (
            Column("LM perplexity", "pretraining", "mlm_perplexity", "heldout", "the held-out data is not described"),
            Column("MNLI-m", "mnli", "accuracy", "validation_matched"),
            Column("MRPC", "mrpc", "accuracy", "validation"),
            Column("SST-2", "sst2", "accuracy", "validation"),
        ),
        {
            "3-768-12": (5.84, 77.9, 79.8, 88.4),
            "6-768-3": (5.24, 80.6, 82.2, 90.7),
            "6-768-12": (4.68, 81.9, 84.8, 91.3),
            "base": (3.99, 84.4, 86.7, 92.9),
            "12-1024-16": (3.54, 85.7, 86.9, 93.3),
            "large": (3.23, 86.6, 87.8, 93.7),
        },
    ),
    7: PaperTable(
        "CoNLL-2003, mean of 5 restarts; the rows from `Embeddings` on are the feature-based approach with BERT-base",
        (Column("dev", "conll2003", "entity_f1", "validation"), Column("test", "conll2003", "entity_f1", "test")),
        {
            "ELMo": (95.7, 92.2),
            "CVT": (None, 92.6),
            "CSE": (None, 93.1),
            "BERT-large": (96.6, 92.8),
            "BERT-base": (96.4, 92.4),
            "Embeddings": (91.0, None),
            "Second-to-last hidden": (95.6, None),
            "Last hidden": (94.9, None),
            "Weighted sum last four hidden": (95.9, None),
            "Concat last four hidden": (96.1, None),
            "Weighted sum all 12 layers": (95.5, None),
        },
    ),
    8: PaperTable(
        "Masking mixes [MASK]/same/random, dev. Its 80/10/10 row differs from Table 7 without an explanation: "
        "never mix the two",
        (
            Column("MNLI", "mnli", "accuracy", "validation_matched"),
            Column("NER fine-tune", "conll2003", "entity_f1", "validation"),
            Column("NER feature-based", "conll2003", "entity_f1", "validation"),
        ),
        {
            "80/10/10": (84.2, 95.4, 94.9),
            "100/0/0": (84.3, 94.9, 94.0),
            "80/0/20": (84.1, 95.2, 94.6),
            "80/20/0": (84.4, 95.2, 94.7),
            "0/20/80": (83.7, 94.8, 94.6),
            "0/0/100": (83.6, 94.9, 94.6),
        },
    ),
}


FIGURE_5 = Column("MNLI", "mnli", "accuracy", "validation_matched")
FIGURE_5_STATEMENT = (
    "The masked model converges marginally slower than the left-to-right one but passes it almost at once."
)
"""What the text of C.1 states; the figure's points are not printed as numbers."""
FEATURE_ROWS = {  # Table 7's row -> what `--feature_based` calls it
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
"""Beside the results of a fine-tuning run: split -> metric -> a score for every example, in the split's order."""


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
