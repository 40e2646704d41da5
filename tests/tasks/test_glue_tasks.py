import datasets
import pytest
from errors import user_error

from bert_repro.errors import UserError
from bert_repro.tasks import TASKS, metrics
from bert_repro.tasks.glue_tasks import COLA, GLUE_TASKS, MNLI, MRPC, QQP, RTE, SST2, STSB

QQP_TRAIN = ("id", "qid1", "qid2", "question1", "question2", "is_duplicate")


@pytest.fixture
def official(tmp_path):
    """Writes an official file: rows of fields, joined by tabs."""

    def write(name: str, *rows, mark: str = ""):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(mark + "".join("\t".join(row) + "\n" for row in rows), encoding="utf-8", newline="")
        return tmp_path

    return write


def read(task, data_dir, split):
    return task.load(data_dir, [split])[split].to_dict()


def test_cola_has_no_header_but_in_the_test_file(official):
    official("CoLA/dev.tsv", ("gj04", "1", "", "It is ."), ("gj04", "0", "*", 'Is it " .'), mark="\ufeff")
    data_dir = official("CoLA/test.tsv", ("index", "sentence"), ("0", "One ."), ("1", "Two ."))
    assert read(COLA, data_dir, "validation") == {"sentence": ["It is .", 'Is it " .'], "label": [1, 0], "idx": [0, 1]}
    assert read(COLA, data_dir, "test") == {"sentence": ["One .", "Two ."], "idx": [0, 1]}


def test_mrpc_with_byte_order_mark_and_open_quotes(official):
    header = ("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String")
    data_dir = official("MRPC/dev.tsv", header, ("1", "7", "8", '" a', "b"), ("0", "9", "9", "c", 'd "'), mark="\ufeff")
    official("MRPC/test.tsv", ("index", *header[1:]), ("0", "7", "8", "a", "b"), mark="\ufeff")
    texts = {"sentence1": ['" a', "c"], "sentence2": ["b", 'd "']}
    assert read(MRPC, data_dir, "validation") == {**texts, "label": [1, 0], "idx": [0, 1]}
    assert read(MRPC, data_dir, "test") == {"sentence1": ["a"], "sentence2": ["b"], "idx": [0]}


def test_qqp_drops_and_counts_rows_with_missing_fields(official, caplog):
    row = ("12", "1", "2", "why ?", "how ?", "1")
    data_dir = official("QQP/train.tsv", QQP_TRAIN, row, row[:4], row)
    official("QQP/test.tsv", ("id", "question1", "question2"), ("4", "a", "b"), ("5", "c", "d"))
    texts = {"question1": ["why ?"] * 2, "question2": ["how ?"] * 2}
    assert read(QQP, data_dir, "train") == {**texts, "label": [1, 1], "idx": [0, 1]}
    assert "dropped 1 rows with missing fields" in caplog.text
    assert read(QQP, data_dir, "test")["idx"] == [4, 5]


def test_ax_is_scored_where_labels_are_there(official):
    ax = TASKS["ax"]
    official("AX/diagnostic.tsv", ("index", "sentence1", "sentence2"), ("0", "a", "b"))
    full = ("Lexical Semantics", "Predicate-Argument Structure", "Logic", "Knowledge", "Domain")
    row = ("", "", "Negation", "", "Artificial", "a", "b")
    rows = ((*full, "Premise", "Hypothesis", "Label"), (*row, "contradiction"), (*row, "neutral"))
    data_dir = official("AX/diagnostic-full.tsv", *rows)
    test, labelled = ax.load(data_dir, ["test"])["test"], ax.load(data_dir, ["validation"])["validation"]
    assert not ax.is_labelled(test) and labelled["label"][:] == [2, 1]
    assert ax.train_split is None and ax.label_names == MNLI.label_names
    assert ax.score({"prediction": [2, 1]}, labelled) == {"matthews_correlation": 1.0, "accuracy": 1.0}
    assert ax.score({"prediction": [0, 0]}, labelled) == {"matthews_correlation": 0.0, "accuracy": 0.0}


@pytest.mark.parametrize(
    ("task", "name", "rows", "message"),
    [
        (RTE, "RTE/train.tsv", [("index", "sentence1", "sentence2", "label"), ("0", "a", "b", "maybe")],
         r"train\.tsv, row 1: column 'label': label 'maybe' is not known; it must be one of: entailment, not_entail"),
        (SST2, "SST-2/train.tsv", [("sentence", "label"), ("a", "1"), ("b", "2")],
         r"train\.tsv, row 2: column 'label': label '2' is not known; it must be one of: 0, 1"),
        (STSB, "STS-B/train.tsv", [("sentence1", "sentence2", "score"), ("a", "b", "5.1")],
         r"row 1: column 'score': label '5\.1' is out of range; it must be a number from 0 to 5"),
        (STSB, "STS-B/train.tsv", [("sentence1", "sentence2", "score"), ("a", "b", "nan")], "'nan' is not a number"),
        (COLA, "CoLA/train.tsv", [("gj04", "1", "", "a"), ("gj04", "1", "a")], "line 2 has 3 columns instead of 4"),
        (RTE, "RTE/train.tsv", [("index", "sentence1", "label"), ("0", "a", "b")],
         "no column 'sentence2'; found sentence1, label"),
        (RTE, "RTE/train.tsv", [("index", "sentence1", "sentence2", "label")], "no rows"),
    ],
)  # fmt: skip
def test_bad_files_give_one_clear_line(official, task, name, rows, message):
    with pytest.raises(UserError, match=rf"^[^\n]*{message}[^\n]*$"):
        task.load(official(name, *rows), ["train"])


@pytest.fixture
def published(tmp_path, monkeypatch):
    """A folder that `load_dataset` reads like the Hub's dataset."""
    text, labels = datasets.Value("string"), datasets.ClassLabel(names=["entailment", "not_entailment"])
    columns = {"sentence1": text, "sentence2": text, "label": labels, "idx": datasets.Value("int32")}
    for split, label in {"validation": 1, "test": -1}.items():
        rows = {"sentence1": ["a"], "sentence2": ["b"], "label": [label], "idx": [0]}
        datasets.Dataset.from_dict(rows, datasets.Features(columns)).to_parquet(tmp_path / f"hub/rte/{split}.parquet")
    files = "".join(f"  - split: {split}\n    path: rte/{split}.parquet\n" for split in ("validation", "test"))
    (tmp_path / "hub" / "README.md").write_text(f"---\nconfigs:\n- config_name: rte\n  data_files:\n{files}---\n")
    hub = str(tmp_path / "hub")
    for task in (RTE, MRPC):
        monkeypatch.setitem(vars(task), "hub", (hub, task.name, None))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def test_the_hubs_dataset_without_its_placeholder_labels(published):
    labelled = RTE.load(None, ["validation"])["validation"]
    assert RTE.is_labelled(labelled)
    assert labelled.to_dict() == {"sentence1": ["a"], "sentence2": ["b"], "label": [1], "idx": [0]}
    assert not RTE.is_labelled(RTE.load(None, ["test"])["test"])
    with user_error("(rte)", "train", setting="data_dir"):
        RTE.load(None, ["train"])
    with pytest.raises(UserError, match=r"\(mrpc\) cannot be read from the Hub: .*--data_dir"):
        MRPC.load(None, ["train"])


def test_the_registry_is_the_contract():
    glue = ["cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli", "ax"]
    of_the_paper = [*glue, "squad", "squad_v2", "swag", "conll2003"]
    assert [name for name in TASKS if name in of_the_paper] == of_the_paper
    assert [task.name for task in GLUE_TASKS] == glue


@pytest.mark.parametrize("task", GLUE_TASKS, ids=lambda task: task.name)
def test_tasks_are_complete(task):
    assert set(task.metrics) <= set(metrics.METRICS) and task.primary_metric in task.metrics
    splits = [*filter(None, [task.train_split]), *task.eval_splits, *task.predict_splits]
    assert sorted(task.files) == sorted(splits)
    assert all(len(file.texts) == len(task.text_columns) for file in task.files.values())
    assert len(task.file_labels or task.label_names) == len(task.label_names)
