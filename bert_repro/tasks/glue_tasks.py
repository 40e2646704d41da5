"""Describes the nine GLUE tasks and the AX diagnostic, as data (paper 4.1; https://gluebenchmark.com).

Columns, labels and their order are those of the Hub's dataset, so models fine-tuned on the official files and on the
Hub's dataset agree. Official files are read as they are published; what is unusual about one is said at its task.
"""

from bert_repro.tasks.base import HubSource
from bert_repro.tasks.official_files import GlueFile, GlueTask, official_files

_HUB_ID = "nyu-mll/glue"
_COLA_HEADER = ("source", "label", "mark", "sentence")
_MNLI_COLUMNS = ("sentence1", "sentence2"), "gold_label"

COLA = GlueTask(
    name="cola",
    title="CoLA",
    text_columns=("sentence",),
    label_names=("unacceptable", "acceptable"),
    file_labels=("0", "1"),
    # Training and dev files have no header; the test file has one.
    files={
        "train": GlueFile("train.tsv", ("sentence",), header=_COLA_HEADER),
        "validation": GlueFile("dev.tsv", ("sentence",), header=_COLA_HEADER),
        "test": GlueFile("test.tsv", ("sentence",), labelled=False, index="index"),
    },
    hub=HubSource(_HUB_ID, "cola"),
    split_rows={"train": 8_551, "validation": 1_043, "test": 1_063},
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
    hub=HubSource(_HUB_ID, "sst2"),
    split_rows={"train": 67_349, "validation": 872, "test": 1_821},
    example_texts=("A film that never lets you go.",),
)

MRPC = GlueTask(
    name="mrpc",
    title="MRPC",
    text_columns=("sentence1", "sentence2"),
    label_names=("not_equivalent", "equivalent"),
    file_labels=("0", "1"),
    files=official_files("#1 String", "#2 String", label="Quality"),
    hub=HubSource(_HUB_ID, "mrpc"),
    split_rows={"train": 3_668, "validation": 408, "test": 1_725},
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
    hub=HubSource(_HUB_ID, "stsb"),
    split_rows={"train": 5_749, "validation": 1_500, "test": 1_379},
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
    # The official training and dev files contain a few rows that line breaks have cut off. The Hub's dataset, which
    # split_rows counts, does not have them either.
    drop_incomplete_rows=True,
    hub=HubSource(_HUB_ID, "qqp"),
    split_rows={"train": 363_846, "validation": 40_430, "test": 390_965},
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
    # The columns between index and sentence1 differ from file to file. All columns are found by their names.
    files={
        "train": GlueFile("train.tsv", *_MNLI_COLUMNS),
        "validation_matched": GlueFile("dev_matched.tsv", *_MNLI_COLUMNS),
        "validation_mismatched": GlueFile("dev_mismatched.tsv", *_MNLI_COLUMNS),
        "test_matched": GlueFile("test_matched.tsv", *_MNLI_COLUMNS, labelled=False, index="index"),
        "test_mismatched": GlueFile("test_mismatched.tsv", *_MNLI_COLUMNS, labelled=False, index="index"),
    },
    hub=HubSource(_HUB_ID, "mnli"),
    split_rows={
        "train": 392_702,
        "validation_matched": 9_815,
        "validation_mismatched": 9_832,
        "test_matched": 9_796,
        "test_mismatched": 9_847,
    },
)

QNLI = GlueTask(
    name="qnli",
    title="QNLI",
    text_columns=("question", "sentence"),
    label_names=("entailment", "not_entailment"),
    files=official_files("question", "sentence"),
    hub=HubSource(_HUB_ID, "qnli"),
    split_rows={"train": 104_743, "validation": 5_463, "test": 5_463},
    data_license="CC BY-SA 4.0 (made from SQuAD)",
    example_texts=("When was the bridge built?", "The bridge was opened in 1932, after six years of work."),
)

RTE = GlueTask(
    name="rte",
    title="RTE",
    text_columns=("sentence1", "sentence2"),
    label_names=("entailment", "not_entailment"),
    files=official_files("sentence1", "sentence2"),
    hub=HubSource(_HUB_ID, "rte"),
    split_rows={"train": 2_490, "validation": 277, "test": 3_000},
)

WNLI = GlueTask(
    name="wnli",
    title="WNLI",
    text_columns=("sentence1", "sentence2"),
    label_names=("not_entailment", "entailment"),
    file_labels=("0", "1"),
    files=official_files("sentence1", "sentence2"),
    hub=HubSource(_HUB_ID, "wnli"),
    split_rows={"train": 635, "validation": 71, "test": 146},
    example_texts=("The cup does not fit into the box because it is too big.", "The cup is too big."),
)

AX = GlueTask(
    name="ax",
    title="AX",
    text_columns=("premise", "hypothesis"),
    label_names=MNLI.label_names,
    # A model fine-tuned on MNLI predicts it. The test file has no labels; a labelled file is published separately.
    train_split=None,
    # The name of the folder in GLUE's own download script.
    other_folders=("diagnostic",),
    files={
        "validation": GlueFile("diagnostic-full.tsv", ("Premise", "Hypothesis"), "Label"),
        "test": GlueFile("diagnostic.tsv", ("sentence1", "sentence2"), labelled=False, index="index"),
    },
    hub=HubSource(_HUB_ID, "ax"),
    split_rows={"test": 1_104},
    metrics=("matthews_correlation", "accuracy"),
    primary_metric="matthews_correlation",
)

GLUE_TASKS = (COLA, SST2, MRPC, STSB, QQP, MNLI, QNLI, RTE, WNLI, AX)
