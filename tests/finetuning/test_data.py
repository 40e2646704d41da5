"""Tokenized splits: equal whoever makes them, made again when anything that decides them changes."""

import dataclasses
import stat
from pathlib import Path
from typing import Any

import datasets
import pytest
from transformers import AutoTokenizer

from bert_repro.configs import NerConfig, SquadConfig
from bert_repro.finetuning.data import encode
from bert_repro.tasks import TASKS
from bert_repro.tasks.choice import ENDINGS

ROWS = {"sentence": ["a small river", "the old house falls slowly near a green tree"], "label": [0, 1], "idx": [0, 1]}


@pytest.fixture
def tokenizer(world: Any) -> Any:
    return AutoTokenizer.from_pretrained(world.tokenizer)


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A dataset that `load_dataset` keeps in a cache of its own."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "hub").mkdir()
    datasets.Dataset.from_dict(ROWS).to_parquet(tmp_path / "hub" / "train.parquet")
    return tmp_path / "hub"


def test_a_split_of_the_hub_is_tokenized_once_for_each_tokenizer_length_and_setting(published, tokenizer, monkeypatch):
    task = TASKS["sst2"]
    calls: list[int] = []
    original = type(task).encode_batch
    monkeypatch.setattr(
        type(task), "encode_batch", lambda self, *rest, **more: (calls.append(1), original(self, *rest, **more))[1]
    )
    for length, expected in ((16, 1), (16, 1), (8, 2)):
        read = datasets.load_dataset(str(published), split="train")
        own = original(task, ROWS, tokenizer, length)["input_ids"]
        assert encode(task, read, tokenizer, length)["input_ids"][:] == list(map(list, own))
        assert len(calls) == expected
    folder = Path(read.cache_files[0]["filename"]).parent
    folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        assert len(encode(task, read, tokenizer, 12)) == 2, "a cache that cannot be written is not needed"
    finally:
        folder.chmod(stat.S_IRWXU)


def test_everything_that_decides_the_features_decides_their_fingerprint(tokenizer: Any) -> None:
    words = datasets.Dataset.from_dict({"words": [["a", "small", "river"], ["the", "house"]], "document": [0, 0]})
    question = datasets.Dataset.from_dict({"question": ["what falls"], "context": ["the old house falls under a tree"]})
    choices = datasets.Dataset.from_dict({name: ["a river"] for name in ("sent1", "sent2", *ENDINGS)})
    found = []
    for context in ("tile", "sentence"):
        settings = NerConfig(model_name_or_path="-", ner_context=context, do_train=True)
        found.append((TASKS["conll2003"].prepared(settings, tokenizer), words))
    for stride in (2, 4):
        shape = {"max_seq_length": 16, "max_query_length": 8, "doc_stride": stride}
        asked = SquadConfig(model_name_or_path="-", task_name="squad", do_train=True, **shape)
        found.append((TASKS["squad"].prepared(asked, tokenizer), question))
    for names in (ENDINGS, ENDINGS[:2]):
        found.append((dataclasses.replace(TASKS["swag"], text_columns=("sent1", "sent2", *names)), choices))
    assert len({encode(task, rows, tokenizer, 16)._fingerprint for task, rows in found}) == 6
