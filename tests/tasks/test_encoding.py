import dataclasses
import inspect
from pathlib import Path
from typing import Any

import datasets
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from bert_repro.configs import NerConfig, SquadConfig
from bert_repro.errors import UserError
from bert_repro.tasks import encoding, get_task
from bert_repro.tasks.base import Task
from bert_repro.tasks.encoding import join, require_length, token_ids, truncated_lengths
from bert_repro.tasks.glue import leaderboard_zip
from bert_repro.tasks.squad.questions import tokenize_passages
from bert_repro.tasks.tagging import tagged_text
from bert_repro.tasks.tagging.tagging_task import TaggingTask


def test_truncation_equals_popping_one_token_at_a_time():
    for limit in (1, 2, 5, 8):
        for length_a in range(12):
            for length_b in range(12):
                a, b = list(range(length_a)), list(range(length_b))
                while len(a) + len(b) > limit:
                    (a if len(a) > len(b) else b).pop()
                assert truncated_lengths(length_a, length_b, limit) == (len(a), len(b)), (length_a, length_b, limit)


def test_join_marks_segments_through_the_first_separator():
    ids, segments = join(101, 102, [5, 6], [7])
    assert ids.tolist() == [101, 5, 6, 102, 7, 102]
    assert segments.tolist() == [0, 0, 0, 0, 1, 1]
    ids, segments = join(101, 102, [])
    assert ids.tolist() == [101, 102] and segments.tolist() == [0, 0]
    # An empty second text still has its separator: a pair never turns into a single text.
    assert join(101, 102, [5], [])[0].tolist() == [101, 5, 102, 102]


def test_too_short_a_length_is_refused():
    with pytest.raises(UserError, match="--max_seq_length is 4; it must be at least 8"):
        require_length(4)


def test_special_tokens_written_in_a_text_are_text():
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "[", "]", "SEP", "MASK"]
    backend = Tokenizer(models.WordLevel({token: number for number, token in enumerate(tokens)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = {"unk_token": "[UNK]", "sep_token": "[SEP]", "cls_token": "[CLS]", "mask_token": "[MASK]"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]", **special)
    assert tokenizer("a [SEP] b")["input_ids"] == [5, 3, 6]
    expected = [5, 7, 9, 8, 6, 7, 10, 8]
    assert token_ids(tokenizer, ["a [SEP] b[MASK]"]) == [expected]
    (passage,) = tokenize_passages(tokenizer, ["a [SEP] b[MASK]"])
    assert passage.ids.tolist() == expected and passage.starts.tolist() == [0, 2, 3, 6, 8, 9, 10, 14]


ROWS = {"sentence": ["a small river", "the old house falls slowly near a green tree"], "label": [0, 1], "idx": [0, 1]}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path / "cache" / "bert_repro"


@pytest.fixture
def tokenizer(world: Any) -> Any:
    return AutoTokenizer.from_pretrained(world.tokenizer)


def encoded(task: Task, rows: dict[str, list[Any]], tokenizer: Any, length: int = 16) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = task.encode(datasets.Dataset.from_dict(rows), tokenizer, length).to_list()
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
        encoding._source.cache_clear()
        monkeypatch.setattr(inspect, "getsource", lambda part, changed=changed: source(part) + "#" * (part is changed))
        encoded(get_task("sst2"), ROWS, tokenizer)
        assert len(list(cache.iterdir())) == files
    encoding._source.cache_clear()


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
