"""Tag schemes: however entities are written, they are scored as entities, or a warning says that they are not."""

import logging
from typing import Any

import pytest
from errors import user_error

from bert_repro.configs import NerConfig
from bert_repro.tasks import configured_task
from bert_repro.tasks.base import Task
from bert_repro.tasks.data import as_dataset

# One sentence: a person of three words, two persons that touch, and an organization of two words.
BIO = "B-PER I-PER I-PER O B-PER B-PER O B-ORG I-ORG".split()
WORDS = [f"w{place}" for place in range(len(BIO))]
SAME_ENTITIES = {
    "BIO": BIO,
    "IOB1": "I-PER I-PER I-PER O I-PER B-PER O I-ORG I-ORG".split(),
    "IOBES": "B-PER I-PER E-PER O S-PER S-PER O B-ORG E-ORG".split(),
    "BILOU": "B-PER I-PER L-PER O U-PER U-PER O B-ORG L-ORG".split(),
    "BMES": "B-PER M-PER E-PER O S-PER S-PER O B-ORG E-ORG".split(),
    "BMEWO": "B-PER M-PER E-PER O W-PER W-PER O B-ORG E-ORG".split(),
    "IOE2": "I-PER I-PER E-PER O E-PER E-PER O I-ORG E-ORG".split(),
    "underscore": "B_PER I_PER I_PER O B_PER B_PER O B_ORG I_ORG".split(),
    "colon": "B:PER I:PER I:PER O B:PER B:PER O B:ORG I:ORG".split(),
    "suffix": "PER-B PER-I PER-I O PER-B PER-B O ORG-B ORG-I".split(),
    "suffix with underscore": "PER_B PER_M PER_E O PER_S PER_S O ORG_B ORG_E".split(),
    "lower-case letters": "b-PER i-PER i-PER o b-PER b-PER o b-ORG i-ORG".split(),
    "zero for O": "B-PER I-PER I-PER 0 B-PER B-PER 0 B-ORG I-ORG".split(),
    "nothing for O": ["B-PER", "I-PER", "I-PER", "", "B-PER", "B-PER", "", "B-ORG", "I-ORG"],
    "spaces around tags": ["B-PER ", "I-PER", "I-PER", " O", "B-PER", "B-PER ", "O", "B-ORG", "I-ORG"],
    "underscore for O": "B-PER I-PER I-PER _ B-PER B-PER _ B-ORG I-ORG".split(),
}


def tagger(*sentences: list[str], **settings: Any) -> Task:
    rows = [{"words": WORDS[: len(tags)], "tags": tags} for tags in sentences]
    config = NerConfig(model_name_or_path="m", do_train=True, train_file="x", **settings)
    return configured_task(config, {"train": as_dataset(rows, "x")})


def entities(task: Task, predicted: list[str]) -> float:
    train = task.load(None, ["train"])["train"]
    return task.score({"prediction": [predicted]}, train)["entity_f1"]


@pytest.mark.parametrize("scheme", SAME_ENTITIES)
def test_the_same_entities_become_the_same_tags_and_the_same_scores(scheme: str) -> None:
    task = tagger(SAME_ENTITIES[scheme])
    assert task.label_names == ("O", "B-ORG", "I-ORG", "B-PER", "I-PER")
    assert task.references(task.load(None, ["train"])["train"]) == [BIO]
    # One of four entities is missing.
    predicted = [*BIO[:7], "O", "O"]
    assert entities(task, predicted) == pytest.approx(2 * 1 * 0.75 / 1.75)


def test_lower_case_types_stay_as_they_are() -> None:
    assert tagger("b-per i-per o".split()).label_names == ("O", "B-per", "I-per")


def test_types_that_differ_only_in_case_are_named(caplog: pytest.LogCaptureFixture) -> None:
    assert len(tagger("B-PER I-PER O B-Per".split()).label_names) == 5
    assert "WARNING" in [record.levelname for record in caplog.records]
    assert "PER" in caplog.text and "Per" in caplog.text


@pytest.mark.parametrize("tags", ["B I O B", "b i o b", "B E O S", "B L O U"])
def test_tags_without_a_type_mark_entities_of_one_type(tags: str) -> None:
    task = tagger(tags.split())
    assert task.label_names == ("O", "B-ENTITY", "I-ENTITY")
    assert task.references(task.load(None, ["train"])["train"]) == [["B-ENTITY", "I-ENTITY", "O", "B-ENTITY"]]


def test_a_run_says_which_scheme_it_assumed(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="bert_repro"):
        tagger(SAME_ENTITIES["BILOU"])
        tagger(SAME_ENTITIES["underscore"])
    assert "BILOU" in caplog.text and "I_PER" in caplog.text


@pytest.mark.parametrize(
    ("tags", "named"),
    [
        ("PER PER O ORG", "PER"),  # no prefixes: where does an entity begin?
        ("B-PER I-PER O LOC", "LOC"),  # one tag is not in the scheme
        ("BPER IPER O BORG", "BPER"),
        ("1 2 0 0 3 4", "0"),  # numbers, as datasets are exported without their names
        ("0.98 0.7 1 0.98", "0.7"),  # the last column is the confidence of another program
        ("B-PER U-PER M-PER S-PER O", "S-PER"),  # letters of different schemes
    ],
)
def test_entities_that_cannot_be_read_are_scored_by_words_with_a_warning(
    tags: str, named: str, caplog: pytest.LogCaptureFixture
) -> None:
    task = tagger(tags.split())
    assert task.primary_metric == "accuracy"
    assert "WARNING" in [record.levelname for record in caplog.records]
    assert named in caplog.text and "accuracy" in caplog.text


@pytest.mark.parametrize("tags", ["DET NOUN VERB X", "NN-S NN-P VB-S", "s-adj e-adv b-noun", "B-x-y NN"])
def test_parts_of_speech_are_scored_by_words_without_a_warning(tags: str, caplog: pytest.LogCaptureFixture) -> None:
    task = tagger(tags.split())
    assert task.primary_metric == "accuracy" and set(task.label_names) == set(tags.split())
    assert "WARNING" not in [record.levelname for record in caplog.records]


def test_every_split_may_have_a_scheme_of_its_own() -> None:
    rows = {
        split: as_dataset([{"words": WORDS, "tags": SAME_ENTITIES[scheme]}], split)
        for split, scheme in (("train", "BILOU"), ("validation", "suffix"))
    }
    config = NerConfig(model_name_or_path="m", do_train=True, train_file="x", do_eval=True, validation_file="y")
    task = configured_task(config, rows)
    assert task.references(task.load(None, ["validation"])["validation"]) == [BIO]


def test_an_unknown_type_on_dev_is_named_in_the_scheme_of_the_file() -> None:
    rows = {
        "train": as_dataset([{"words": ["a", "b"], "tags": ["U-PER", "O"]}], "x"),
        "validation": as_dataset([{"words": ["a", "b"], "tags": ["U-LOC", "O"]}], "y"),
    }
    config = NerConfig(model_name_or_path="m", do_train=True, train_file="x", do_eval=True, validation_file="y")
    with user_error("row 1", "U-LOC", "B-PER"):
        configured_task(config, rows)


def test_a_label_of_the_whole_sentence_is_not_its_tags() -> None:
    config = NerConfig(model_name_or_path="m", do_train=True, train_file="x", do_predict=True, test_file="y")
    train = as_dataset([{"words": ["Ada"], "tags": ["B-PER"], "label": "arts"}], "x")
    test = as_dataset([{"words": ["Ada"], "label": "arts"}], "y")
    task = configured_task(config, {"train": train, "test": test})
    assert task.load(None, ["test"])["test"].column_names == ["words"]


def test_tags_before_words_are_refused() -> None:
    rows = [{"words": ["B-PER", "O", "B-LOC"], "tags": ["Ada", "saw", "Rome"]}]
    config = NerConfig(model_name_or_path="m", do_train=True, train_file="x")
    with user_error("x", "B-LOC", "Ada"):
        configured_task(config, {"train": as_dataset(rows, "x")})


@pytest.mark.parametrize("labels", ["O B-PER L-PER I-PER U-PER", "O B_PER I_PER"])
def test_a_finished_model_of_another_scheme_is_scored_by_entities(labels: str, monkeypatch: Any) -> None:
    from types import SimpleNamespace

    names = labels.split()
    model = SimpleNamespace(id2label=dict(enumerate(names)))
    monkeypatch.setattr("bert_repro.models.loading.load_config", lambda name: model)
    config = NerConfig(model_name_or_path="m", do_eval=True, validation_file="x")
    tags = ["U-PER" if "U-PER" in names else "B_PER", "O"]
    task = configured_task(config, {"validation": as_dataset([{"words": ["Ada", "sang"], "tags": tags}], "x")})
    dev = task.load(None, ["validation"])["validation"]
    assert task.label_names == tuple(names)
    assert task.score({"prediction": [tags]}, dev) == {"entity_f1": 1.0}
    assert task.score({"prediction": [["O", "O"]]}, dev) == {"entity_f1": 0.0}
