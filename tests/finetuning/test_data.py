import dataclasses
import inspect
from pathlib import Path
from typing import Any

import datasets
import pytest
from transformers import AutoTokenizer

from bert_repro.configs import NerConfig, SquadConfig
from bert_repro.finetuning import data
from bert_repro.finetuning.data import encode
from bert_repro.tasks import encoding, get_task
from bert_repro.tasks.base import Task
from bert_repro.tasks.glue import leaderboard_zip
from bert_repro.tasks.tagging import tagged_text
from bert_repro.tasks.tagging.tagging_task import TaggingTask

ROWS = {"sentence": ["a small river", "the old house falls slowly near a green tree"], "label": [0, 1], "idx": [0, 1]}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path / "cache" / "bert_repro"


@pytest.fixture
def tokenizer(world: Any) -> Any:
    return AutoTokenizer.from_pretrained(world.tokenizer)


def encoded(task: Task, rows: dict[str, list[Any]], tokenizer: Any, length: int = 16) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = encode(task, datasets.Dataset.from_dict(rows), tokenizer, length).to_list()
    return made


def test_the_same_split_is_tokenized_once(cache: Path, tokenizer: Any) -> None:
    first = encoded(get_task("sst2"), ROWS, tokenizer)
    (file,) = cache.iterdir()
    written = file.stat().st_mtime_ns
    assert encoded(get_task("sst2"), ROWS, tokenizer) == first
    assert [file.stat().st_mtime_ns for file in cache.iterdir()] == [written]


def test_only_a_change_of_the_code_that_encodes_throws_features_away(
    cache: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded(get_task("sst2"), ROWS, tokenizer)
    source = inspect.getsource
    for changed, files in ((leaderboard_zip, 1), (tagged_text, 1), (encoding, 2)):
        data._source.cache_clear()
        monkeypatch.setattr(inspect, "getsource", lambda part, changed=changed: source(part) + "#" * (part is changed))
        encoded(get_task("sst2"), ROWS, tokenizer)
        assert len(list(cache.iterdir())) == files
    data._source.cache_clear()


def test_other_text_length_or_labels_are_tokenized_again(cache: Path, tokenizer: Any) -> None:
    task, first = get_task("sst2"), encoded(get_task("sst2"), ROWS, tokenizer)
    for changed in ({"sentence": ["a small stone", "the old house falls"]}, {"label": [1, 1]}):
        assert encoded(task, {**ROWS, **changed}, tokenizer) != first
    assert encoded(task, ROWS, tokenizer, length=8) != first
    assert len(list(cache.iterdir())) == 4


def test_settings_that_decide_the_features_are_in_the_name(cache: Path, tokenizer: Any) -> None:
    words = {"words": [["a", "small", "river"], ["the", "house"]], "document": [0, 0]}
    for context in ("tile", "sentence"):
        settings = NerConfig(model_name_or_path="-", ner_context=context, do_train=True)
        encoded(get_task("conll2003").prepared(settings, tokenizer), words, tokenizer)
    question = {"question": ["what falls"], "context": ["the small old house falls under a bright green tree"]}
    for stride in (2, 4):
        settings = SquadConfig(
            model_name_or_path="-",
            task_name="squad",
            do_train=True,
            max_seq_length=16,
            max_query_length=8,
            doc_stride=stride,
        )
        encoded(get_task("squad").prepared(settings, tokenizer), question, tokenizer)
    swag = get_task("swag")
    choices = {name: ["a river"] for name in ("sent1", "sent2", "ending0", "ending1", "ending2", "ending3")}
    for segment in ("A", "B"):
        encoded(dataclasses.replace(swag, start_segment=segment), choices, tokenizer)
    assert len(list(cache.iterdir())) == 6


def test_documents_stay_complete_however_many_sentences_there_are(cache: Path, tokenizer: Any) -> None:
    rows = {"words": [["river"]] * 2500, "document": [0] * 2500}
    task = get_task("conll2003")
    assert isinstance(task, TaggingTask)
    features = encoded(dataclasses.replace(task, context="tile"), rows, tokenizer, length=500)
    assert sum(len(row["places"]) for row in features) == 2500
    assert len(features) == -(-sum(row["length"] - 2 for row in features) // 498)
