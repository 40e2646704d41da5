import datasets
import numpy as np
import pytest
from errors import user_error

from bert_repro.configs import SwagConfig
from bert_repro.finetuning.data import encode
from bert_repro.tasks import configured_task
from bert_repro.tasks.choice import ENDINGS, SWAG
from bert_repro.tasks.data import as_dataset

HEADER = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3"
CLS, SEP = 2, 3


@pytest.fixture
def examples():
    rows = {name: [f"1{place} 2{place}", f"3{place}"] for place, name in enumerate(ENDINGS)}
    rows |= {"sent1": ["1 2", "3"], "sent2": ["4", "5 6"], "label": [2, 0], "idx": [0, 1]}
    return datasets.Dataset.from_dict(rows)


def ids(*words):
    return [word + 5 for word in words]


def write(folder, *rows, name="train.csv", header=f"{HEADER},label"):
    (folder / name).write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return folder


def test_official_files_are_read_with_quotes_and_line_breaks_and_without_labels(tmp_path):
    rows = ['0,v,1,x,"One, ""two""\nthree.",He,gold,a,b,c,d,3', "1,v,1,x,Four.,She,gold,a,b,c,d,0"]
    train = SWAG.load(write(tmp_path, *rows), ["train"])["train"]
    assert train["sent1"][:] == ['One, "two"\nthree.', "Four."]
    assert train["label"][:] == [3, 0] and train["idx"][:] == [0, 1]
    assert SWAG.is_labelled(train)
    test = SWAG.load(write(tmp_path, "0,v,1,x,One.,He,gold,a,b,c,d", name="test.csv", header=HEADER), ["test"])["test"]
    assert not SWAG.is_labelled(test) and len(test) == 1
    empty = SWAG.load(write(tmp_path, "0,v,1,x,One.,He,gold,a,b,c,d,", name="test.csv"), ["test"])["test"]
    assert not SWAG.is_labelled(empty), "a column of labels that is empty"


def test_bad_rows_are_refused_with_their_number(tmp_path):
    for row, contained in (
        ("1,v,1,x,One.,He,gold,a,b,c,,1", ("'ending3'", "empty")),
        ("1,v,1,x,One.,He,gold,a,b,c,d,4", ("'label'", "'4'")),
        ("1,v,1,x,One.,He,gold,a,b,c,d,", ("'label'", "''")),
    ):
        write(tmp_path, "0,v,1,x,One.,He,gold,a,b,c,d,1", row)
        with user_error("train.csv, row 2", *contained):
            SWAG.load(tmp_path, ["train"])


def test_four_sequences_for_each_example(numbers, examples):
    features = encode(SWAG, examples, numbers, 16)
    assert features[0]["input_ids"][0] == [CLS, *ids(1, 2), SEP, *ids(4, 10, 20), SEP]
    assert features[0]["token_type_ids"][0] == [0] * 4 + [1] * 4
    endings = [[*ids(10 + place, 20 + place), SEP] for place in range(4)]
    assert [sequence[-3:] for sequence in features[0]["input_ids"]] == endings
    assert features["length"][:] == [32, 28]
    assert features["labels"][:] == [2, 0]


def test_scores_and_predictions(tmp_path, examples):
    outputs = [np.array(row, dtype=np.float32) for row in ([0, 0, 1e4, 0], [0, 3, 0, 0])]
    predictions = SWAG.postprocess(examples, examples, outputs)
    assert SWAG.score(predictions, examples) == {"accuracy": 0.5}
    assert predictions["probabilities"].sum(axis=1) == pytest.approx([1, 1])
    (path,) = SWAG.write_predictions(tmp_path, "test", examples, predictions)
    record = list(SWAG.records(examples, predictions))[1]
    assert record["answer"] == examples[1]["ending1"] and record["probability"] == record["probability_ending1"]
    lines = path.read_text().splitlines()
    probabilities = ",".join(f"probability_{name}" for name in ENDINGS)
    assert lines[0] == f"index,prediction,label,{probabilities},sent1,sent2,{','.join(ENDINGS)}"
    assert lines[1] == "0,2,2,0.000000,0.000000,1.000000,0.000000,1 2,4,10 20,11 21,12 22,13 23"


def test_rows_of_ones_own_may_have_any_number_of_endings():
    row = {"sent1": "One.", "sent2": "He", "ending0": "a", "ending1": "b", "ending2": "c", "label": 2}
    config = SwagConfig(model_name_or_path="x", do_train=True, train_file="own.jsonl")
    task = configured_task(config, {"train": as_dataset([row, row | {"label": 0}], "x")}).prepared(config, None)
    assert task.load(None, ["train"])["train"]["label"][:] == [2, 0] and task.sequences_per_example == 3
    assert task.data_description()["files"] == {"train": "own.jsonl"}
    assert SWAG.data_description()["dataset"] == "allenai/swag"
    for wrong, contained in (
        (row | {"label": 3}, ("row 1", "'label'", "'3'", "0, 1, 2")),
        ({"sent1": "One.", "ending0": "a"}, ("sent1, sent2, ending0, ending1", "sent1, ending0")),
        ({"sent1": "One.", "ending0": "a", "ending1": "b"}, ("'sent2'", "sent1, ending0, ending1")),
    ):
        with user_error("own.jsonl", *contained):
            configured_task(config, {"train": as_dataset([wrong], "x")})
