import json
from dataclasses import replace

import numpy as np
import pytest

from bert_repro import BertReproConfig
from bert_repro.configs import GlueConfig, NerConfig, SquadConfig, SwagConfig
from bert_repro.errors import UserError
from bert_repro.tasks import TASKS, configured_task, get_task
from bert_repro.tasks.custom_data import _numbers_first
from bert_repro.tasks.glue.glue_tasks import GLUE_TASKS
from bert_repro.tasks.multiple_choice import SWAG
from bert_repro.tasks.squad.squad_task import SQUAD_TASKS
from bert_repro.tasks.tagging.tagging_task import CONLL2003

ROWS = [('Good, "really".', "yes"), ("bad\tthing", "no"), ("so so", "maybe"), ("fine", "yes")]
MODEL = {"model_name_or_path": "m"}


@pytest.fixture
def csv_file(tmp_path):
    return write_csv(tmp_path / "train.csv", ROWS)


def write_csv(path, rows, header="text,label"):
    quoted = [",".join('"' + str(value).replace('"', '""') + '"' for value in row) for row in rows]
    path.write_text("\ufeff" + "\r\n".join([header, *quoted]) + "\r\n", encoding="utf-8", newline="")
    return path


def write_json_lines(path, rows, names=("text", "label")):
    path.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n\n" for row in rows), encoding="utf-8")
    return path


def config(**settings):
    return GlueConfig(**MODEL, do_train=True, **{name: str(value) for name, value in settings.items()})


def loaded(config, split="train"):
    return configured_task(config).load(None, [split])[split]


def test_csv_and_json_lines_say_the_same_at_any_length(tmp_path, csv_file):
    from_csv = loaded(config(train_file=csv_file))
    from_json = loaded(config(train_file=write_json_lines(tmp_path / "train.jsonl", ROWS)))
    assert from_csv[:] == from_json[:]
    assert from_csv["text"][:] == [text for text, _ in ROWS]
    assert from_csv["idx"][:] == [0, 1, 2, 3]
    long = "word " * 40_000
    assert loaded(config(train_file=write_csv(tmp_path / "x.csv", [(long, "yes"), ("b", "no")])))["text"][0] == long


def test_label_names_come_from_the_training_file_in_order(csv_file):
    task = configured_task(config(train_file=csv_file))
    assert task.label_names == ("maybe", "no", "yes")
    assert task.model_settings()["id2label"] == {0: "maybe", 1: "no", 2: "yes"}
    assert task.load(None, ["train"])["train"]["label"][:] == [2, 1, 0, 2]
    assert task.metrics == ("accuracy", "macro_f1", "weighted_f1", "matthews_correlation")


def test_labels_that_are_numbers_are_ordered_as_numbers(tmp_path):
    rows = [("a", 10), ("b", 9), ("c", 1), ("d", 10)]
    path = write_json_lines(tmp_path / "train.jsonl", rows)
    assert configured_task(config(train_file=path)).label_names == ("1", "9", "10")
    assert sorted(["b", "inf", "2", "nan", "1", "a"], key=_numbers_first) == ["1", "2", "a", "b", "inf", "nan"]


def test_pairs_and_names_of_columns(tmp_path):
    (tmp_path / "train.tsv").write_text('text_a\ttext_b\tlabel\na "x\tb\t0\nc\td\t1\n')
    assert configured_task(config(train_file=tmp_path / "train.tsv")).text_columns == ("text_a", "text_b")
    pairs = write_csv(tmp_path / "glue.csv", [("q", "p", 1), ("r", "s", 0)], header="sentence1,sentence2,label")
    assert configured_task(config(train_file=pairs)).text_columns == ("sentence1", "sentence2")
    write_csv(tmp_path / "other.csv", [("q", "p", 1), ("r", "s", 0)], header="question,passage,fits")
    settings = GlueConfig(
        **MODEL,
        do_train=True,
        train_file=str(tmp_path / "other.csv"),
        text_columns=("question", "passage"),
        label_column="fits",
    )
    assert loaded(settings)[0] == {"question": "q", "passage": "p", "label": 1, "idx": 0}


def test_numbers_are_predicted_where_asked(tmp_path):
    path = write_csv(tmp_path / "train.csv", [("a", "-2.5"), ("b", "1e3")])
    settings = GlueConfig(**MODEL, do_train=True, train_file=str(path), regression=True)
    task = configured_task(settings)
    assert task.load(None, ["train"])["train"]["label"][:] == [-2.5, 1000.0]
    assert task.model_settings()["problem_type"] == "regression" and task.metrics == ("pearson", "spearmanr")
    write_csv(path, [("a", "-2.5"), ("b", "inf")])
    with pytest.raises(UserError, match=r"line 3: column 'label': label 'inf' is not a number"):
        task.load(None, ["train"])


def test_a_file_to_predict_may_lack_labels(tmp_path, csv_file):
    path = tmp_path / "test.csv"
    for without in ("text\nwhat\n", "text,label\nwhat,\n"):
        path.write_text(without)
        task = configured_task(config(train_file=csv_file, test_file=path))
        assert not task.is_labelled(task.load(None, ["test"])["test"])
    assert task.is_labelled(loaded(config(train_file=csv_file, test_file=csv_file), "test"))


def test_without_training_the_labels_are_the_models(tmp_path, csv_file):
    names = {0: "yes", 1: "no", 2: "maybe"}
    BertReproConfig(id2label=names, label2id={name: index for index, name in names.items()}).save_pretrained(tmp_path)
    settings = GlueConfig(model_name_or_path=str(tmp_path), do_eval=True, validation_file=str(csv_file))
    task = configured_task(settings)
    assert task.label_names == ("yes", "no", "maybe")
    assert task.load(None, ["validation"])["validation"]["label"][:] == [0, 1, 2, 0]


def save_config(folder, **settings):
    BertReproConfig(**settings).save_pretrained(folder)
    return {"model_name_or_path": str(folder), "do_predict": True}


@pytest.mark.parametrize("settings", [{"num_labels": 1, "problem_type": "regression"}, {"num_labels": 1}])
def test_without_training_the_model_says_that_it_predicts_numbers(tmp_path, settings):
    path = write_csv(tmp_path / "test.csv", [("a", "-2.5"), ("b", "1e3")])
    model = save_config(tmp_path / "model", **settings)
    for given in ({}, {"regression": True}):
        task = configured_task(GlueConfig(**model, **given, test_file=str(path)))
        assert task.metrics == ("pearson", "spearmanr") and task.model_settings()["problem_type"] == "regression"
        test = task.load(None, ["test"])["test"]
        assert test["label"][:] == [-2.5, 1000.0]
        predictions = task.postprocess(test, test, [np.array([0.25]), np.array([7.0])])
        written, errors = task.write_predictions(tmp_path, "test", test, predictions)
        assert errors.name == "predictions.test.errors.jsonl"
        assert written.read_text() == "index\tprediction\tlabel\ttext\n0\t0.25\t-2.5\ta\n1\t7\t1000\tb\n"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"id2label": {0: "no", 1: "yes"}}, "predicts a label, one of no, yes; leave --regression out"),
        ({"num_labels": 3, "problem_type": "regression"}, "predicts 3 numbers for each row; name a model that"),
    ],
)
def test_a_finished_model_that_predicts_something_else_is_refused(tmp_path, csv_file, settings, message):
    model = save_config(tmp_path / "model", **settings)
    with pytest.raises(UserError, match=message):
        configured_task(GlueConfig(**model, regression=True, test_file=str(csv_file)))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.csv", "text,label\na,yes\nb\n", "line 3: 1 columns, expected 2"),
        ("x.csv", "text,label\na,yes\nb,never\n", "line 3: column 'label': label 'never' is not known"),
        ("x.csv", "text,mark\na,yes\n", "no column 'label'; found text, mark"),
        ("x.csv", "", "no column 'text'"),
        ("x.csv", "text,label\n", "no rows"),
        ("x.csv", b"text,label\n\xff,yes\n", "line 2: byte 0xff at position 0 is not UTF-8"),
        ("x.tsv", "text\tlabel\na\tb\tyes\n", "line 2: 3 columns, expected 2"),
        ("x.jsonl", '{"text": "a", "label": "yes"}\n{"text": "a"}\n', "line 2: no field 'label'; found text"),
        ("x.jsonl", '{"text": "a", "label": "yes"}\n{"text": null, "label": "yes"}\n', "line 2: field 'text' is null"),
        ("x.jsonl", '{"text": "a", "label": "yes"}\n{"text": \n', "line 2: is not valid JSON"),
        ("x.jsonl", "[1]\n", "line 1: is not a JSON object"),
        ("x.jsonl", '{"text": "a \\ud83d b", "label": "yes"}\n', "line 1: field 'text' has half a surrogate pair at"),
        ("x.jsonl", "", "no rows"),
        ("x.xlsx", "", "unknown format"),
    ],
)
def test_a_bad_file_is_refused_with_its_line(tmp_path, csv_file, name, content, message):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=r"^[^\n]*$") as raised:
        loaded(config(train_file=csv_file, validation_file=path), "validation")
    assert str(path) in str(raised.value) and message in str(raised.value)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"text_columns": ("label",)}, "--text_columns: 'label' is the column of labels; name another"),
        ({"label_column": "text"}, "--text_columns: 'text' is the column of labels; name another"),
        ({"text_columns": ("text", "idx")}, "--text_columns: 'idx' cannot name a text here; rename that column"),
        ({"text_columns": ("label",), "label_column": "idx"}, "--text_columns: 'label' cannot name a text here"),
    ],
)
def test_text_and_labels_are_columns_of_their_own(tmp_path, columns, message):
    path = write_csv(tmp_path / "x.csv", [("a", "yes", 1), ("b", "no", 2)], header="text,label,idx")
    with pytest.raises(UserError, match=message):
        configured_task(GlueConfig(**MODEL, do_train=True, train_file=str(path), **columns))


@pytest.mark.parametrize("label", ["", " "])
def test_a_row_to_train_on_has_a_label(tmp_path, label):
    path = write_csv(tmp_path / "x.csv", [("a", "yes"), ("b", label), ("c", "no")])
    with pytest.raises(UserError, match=r"x.csv, line 3: column 'label' is empty; give the row a label, or leave it"):
        configured_task(config(train_file=path))


def test_columns_that_are_no_labels_are_noticed(tmp_path):
    with pytest.raises(UserError, match="is 'a' in every row; two labels are needed"):
        configured_task(config(train_file=write_csv(tmp_path / "one.csv", [("x", "a")] * 3)))
    with pytest.raises(UserError, match="30 different labels in 30 rows"):
        configured_task(config(train_file=write_csv(tmp_path / "ids.csv", [("x", n) for n in range(30)])))
    with pytest.raises(UserError, match=r"no.csv: no column of text \('text', 'text_a' and 'text_b', 'sentence1'"):
        configured_task(config(train_file=write_csv(tmp_path / "no.csv", [("x", 1)], header="body,label")))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task_name": "mrpc", "train_file": "x.csv"}, "--task_name mrpc excludes --train_file"),
        ({"data_dir": "glue", "train_file": "x.csv"}, "--data_dir glue excludes --train_file"),
        ({"validation_file": "x.csv"}, "--do_train needs --train_file"),
    ],
)
def test_settings_that_contradict_each_other(settings, message):
    with pytest.raises(UserError, match=message):
        GlueConfig(**MODEL, do_train=True, **settings)


def test_each_recipe_takes_its_own_tasks_only():
    own = {GlueConfig: GLUE_TASKS, SquadConfig: SQUAD_TASKS, SwagConfig: (SWAG,), NerConfig: (CONLL2003,)}
    assert {task.name for tasks in own.values() for task in tasks} == set(TASKS)
    for recipe, tasks in own.items():
        names = [task.name for task in tasks]
        for name in TASKS:
            if name in names:
                assert configured_task(recipe(**MODEL, do_eval=True, task_name=name)) is get_task(name)
                continue
            with pytest.raises(UserError, match=f"^--task_name is '{name}'; it must be one of: {', '.join(names)}$"):
                recipe(**MODEL, do_eval=True, task_name=name)


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (GlueConfig, "--task_name is missing; it must be one of: cola, .*, ax, or name custom data with --train"),
        (SquadConfig, "--task_name is missing; it must be one of: squad, squad_v2$"),
    ],
)
def test_a_task_must_be_named(recipe, message):
    with pytest.raises(UserError, match=message):
        configured_task(recipe(**MODEL, do_eval=True))


def tagging(path, **settings):
    return configured_task(NerConfig(**MODEL, do_train=True, train_file=str(path), **settings))


def test_entities_of_any_types_are_scored_by_entity_f1(tmp_path):
    path = tmp_path / "train.txt"
    path.write_text("The\tO\naspirin\tI-DRUG\n\nacts\tO\n")
    task = tagging(path, ner_context="sentence")
    assert task.label_names == ("O", "B-DRUG", "I-DRUG") and task.metrics == ("entity_f1",)
    train = task.load(None, ["train"])["train"]
    assert train["tags"][:] == [[0, 1], [0]] and "document" not in train.column_names
    path.write_text("The O\naspirin I-GENE\n")
    with pytest.raises(UserError, match="line 2: tag 'I-GENE' is not known"):
        task.load(None, ["train"])


def test_other_tags_are_scored_by_accuracy(tmp_path):
    path = tmp_path / "train.txt"
    path.write_text("The DET\ndog NOUN\nbarks VERB\n")
    task = tagging(path)
    assert task.label_names == ("DET", "NOUN", "VERB") and task.metrics == ("accuracy",)
    train = task.load(None, ["train"])["train"]
    assert task.score({"prediction": [["DET", "NOUN", "NOUN"]]}, train) == {"accuracy": pytest.approx(2 / 3)}


def test_without_custom_files_the_task_is_the_named_one():
    assert configured_task(NerConfig(**MODEL, do_train=True)) is get_task("conll2003")
    assert configured_task(GlueConfig(**MODEL, do_train=True, task_name="rte")) is get_task("rte")


def test_labels_that_differ_in_case_alone_are_two_labels(tmp_path):
    task = configured_task(config(train_file=write_csv(tmp_path / "x.csv", [("a", "US"), ("b", "us"), ("c", "We")])))
    assert task.label_names == ("US", "We", "us")
    assert task.label_columns({0: "us", 1: "US", 2: "We"}) == [1, 2, 0]
    with pytest.raises(UserError, match="the model tells apart us, Us, We, but task custom needs US, We, us"):
        task.label_columns({0: "us", 1: "Us", 2: "We"})
    assert replace(task, label_names=("Yes", "no")).label_columns({0: "NO", 1: "yes"}) == [1, 0]
