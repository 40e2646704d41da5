"""The nine GLUE tasks and the AX diagnostic, as data (paper 4.1; https://gluebenchmark.com).

Columns, labels and their order are those of the Hub's dataset, so a model fine-tuned on official files and one
fine-tuned on the Hub's dataset agree. Official files are read as published; quirks are at the task that has them.
"""

from bert_repro.tasks.classification import GlueFile, GlueTask, official_files

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
    example_texts=("The letter was written by her sister.",),
)

SST2 = GlueTask(
    name="sst2",
    title="SST-2",
    text_columns=("sentence",),
    label_names=("negative", "positive"),
    file_labels=("0", "1"),
    files=official_files("sentence"),
    example_texts=("A film that never lets you go.",),
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
    example_texts=("The firm was founded in 1999.", "It was in 1999 that the firm was founded."),
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
)

QNLI = GlueTask(
    name="qnli",
    title="QNLI",
    text_columns=("question", "sentence"),
    label_names=("entailment", "not_entailment"),
    files=official_files("question", "sentence"),
    data_license="CC BY-SA 4.0 (made from SQuAD)",
    example_texts=("When was the bridge built?", "The bridge was opened in 1932, after six years of work."),
)

RTE = GlueTask(
    name="rte",
    title="RTE",
    text_columns=("sentence1", "sentence2"),
    label_names=("entailment", "not_entailment"),
    files=official_files("sentence1", "sentence2"),
)

WNLI = GlueTask(
    name="wnli",
    title="WNLI",
    text_columns=("sentence1", "sentence2"),
    label_names=("not_entailment", "entailment"),
    file_labels=("0", "1"),
    files=official_files("sentence1", "sentence2"),
    example_texts=("The cup does not fit into the box because it is too big.", "The cup is too big."),
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
)

GLUE_TASKS = (COLA, SST2, MRPC, STSB, QQP, MNLI, QNLI, RTE, WNLI, AX)
