import dataclasses
import hashlib
import json
import random
from pathlib import Path
from types import SimpleNamespace

import datasets
import pytest
import torch
from errors import user_error
from tiny_models import SPECIAL
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from bert_repro.configs import NerConfig
from bert_repro.finetuning.data import encode
from bert_repro.finetuning.outputs import output_rows
from bert_repro.tasks import SPLIT_ROWS, metrics, tagging
from bert_repro.tasks.tag_schemes import to_bio
from bert_repro.tasks.tagging import CONLL2003, TAGS
from bert_repro.tasks.tagging_windows import TokenizedDocument, windows

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
PAD, UNK, CLS, SEP = 0, 1, 2, 3
OFFICIAL = """-DOCSTART- -X- O O

EU NNP I-NP I-ORG
rejects VBZ I-VP O
German JJ I-NP I-MISC

Paris NNP I-NP I-LOC
London NNP I-NP B-LOC
-DOCSTART- -X- O O

Peter NNP I-NP I-PER
Blackburn NNP I-NP I-PER
"""


def make_tokenizer(lowercase=False):
    """A token for each character of a word; `~` has none."""
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
    vocabulary = {token: index for index, token in enumerate([*SPECIAL, *letters])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    steps = [normalizers.Replace("~", ""), *([normalizers.Lowercase()] if lowercase else [])]
    backend.normalizer = normalizers.Sequence(steps)
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    special = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **special)


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer()


@pytest.fixture
def official(tmp_path):
    (tmp_path / "eng.train").write_text(OFFICIAL)
    return tmp_path


def dataset(sentences, documents=None, tags=None):
    columns = {"words": sentences, **({} if documents is None else {"document": documents})}
    columns["tags"] = tags or [[number % 9 for number in range(len(words))] for words in sentences]
    return datasets.Dataset.from_dict(columns)


def task(context):
    return dataclasses.replace(CONLL2003, context=context)


def test_official_files_are_read_as_bio_with_their_documents(official):
    train = CONLL2003.load(official, ["train"])["train"]
    assert train["words"][:] == [["EU", "rejects", "German"], ["Paris", "London"], ["Peter", "Blackburn"]]
    names = [[TAGS[tag] for tag in tags] for tags in train["tags"]]
    assert names == [["B-ORG", "O", "B-MISC"], ["B-LOC", "B-LOC"], ["B-PER", "I-PER"]]
    assert train["document"][:] == [0, 0, 1]


@pytest.mark.parametrize(
    ("written", "bio"),
    [
        ("I-A I-A O I-A", "B-A I-A O B-A"),
        ("I-A B-A I-B", "B-A B-A B-B"),
        ("B-A I-A B-A O", "B-A I-A B-A O"),
        ("S-A B-A E-A I-A S-B", "B-A B-A I-A B-A B-B"),
        ("O I-x-y I-x-y", "O B-x-y I-x-y"),
    ],
)
def test_tags_become_bio(written, bio):
    assert to_bio(written.split()) == bio.split()
    assert to_bio(bio.split()) == bio.split()


def random_document(generator):
    room = generator.randint(3, 24)
    counts = [generator.choice([0, 1, 2, 5, 9, 30]) for _ in range(generator.randint(1, 12))]
    sentences = []
    for count in counts:
        sentences.append([[9] * generator.randint(1, room + 3) for _ in range(count)])
    return TokenizedDocument.of(sentences, room, UNK), room, sum(counts)


@pytest.mark.parametrize("context", ["tile", "sentence", "sliding"])
def test_every_word_is_tagged_once_in_a_window_that_fits(context):
    generator = random.Random(0)
    for _ in range(200):
        document, room, num_words = random_document(generator)
        tagged_words = []
        for window in windows(document, context, room):
            tagged_words += range(window.first_tagged, window.last_tagged)
            assert window.first <= window.first_tagged < window.last_tagged <= window.last
            assert 0 < document.word_starts[window.last] - document.word_starts[window.first] <= room
            if context != "sliding":
                assert (window.first, window.last) == (window.first_tagged, window.last_tagged)
        assert tagged_words == list(range(num_words))


def test_sliding_windows_tag_each_word_where_it_has_most_context():
    generator = random.Random(1)
    for _ in range(200):
        document, room, _ = random_document(generator)
        starts = document.word_starts
        found = list(windows(document, "sliding", room))
        for window in found:
            for word in range(window.first_tagged, window.last_tagged):
                contexts = []
                for other in found:
                    if other.first <= word < other.last:
                        left = starts[word] - starts[other.first]
                        contexts.append(min(left, starts[other.last] - 1 - starts[word]))
                own = min(starts[word] - starts[window.first], starts[window.last] - 1 - starts[word])
                assert own == max(contexts)


def test_sliding_windows_give_every_word_a_quarter_of_a_window_on_both_sides_or_all_there_is():
    room = 40
    document = TokenizedDocument.of([[[9]] * 7] * 50, room, UNK)
    num_tokens = len(document.tokens)
    for window in windows(document, "sliding", room):
        for word in range(window.first_tagged, window.last_tagged):
            assert word - window.first >= min(word, room // 4 - 1)
            assert window.last - word > min(num_tokens - 1 - word, room // 4 - 1)
    # A document that fits is one window, as with tiles.
    assert list(windows(document, "sliding", 1000)) == list(windows(document, "tile", 1000)) == [(0, 350, 0, 350)]


@pytest.mark.parametrize(
    ("context", "texts"),
    [
        ("tile", ["[CLS]abcd[SEP]", "[CLS]ef[SEP]"]),
        ("sliding", ["[CLS]abcd[SEP]", "[CLS]ef[SEP]"]),
        ("sentence", ["[CLS]abc[SEP]", "[CLS]d[SEP]", "[CLS]ef[SEP]"]),
    ],
)
def test_windows_stay_in_their_document(tokenizer, context, texts):
    sentences = dataset([["ab", "c"], ["d"], ["ef"]], documents=[0, 0, 1], tags=[[1, 2], [3], [4]])
    features = encode(task(context), sentences, tokenizer, 10)
    assert [tokenizer.decode(ids).replace(" ", "") for ids in features["input_ids"]] == texts
    labels = [label for row in features["labels"] for label in row if label != -100]
    assert labels == [1, 2, 3, 4]
    rows = task(context).loss_items(list(features))
    assert rows.sum() == 4 and features["length"][:] == [len(text) - 8 for text in texts]


def test_words_without_tokens_and_words_longer_than_a_window_are_tagged_all_the_same(tokenizer):
    words = ["~", "a" * 50, "b"]
    for context in ("tile", "sentence"):
        features = encode(task(context), dataset([words], documents=[0], tags=[[1, 2, 3]]), tokenizer, 10)
        labels = [label for row in features["labels"] for label in row if label != -100]
        assert labels == [1, 2, 3]
        assert features[0]["input_ids"][1] == UNK
        assert CONLL2003.count_truncated(features) == 1
        assert max(features["length"]) <= 10


def test_reading_sentences_alone_and_an_uncased_vocabulary_are_deviations(tokenizer):
    sentences = dataset([["ab"], ["c"]])
    assert len(encode(CONLL2003, sentences, tokenizer, 20)) == 2
    assert set(CONLL2003.deviations(tokenizer, {"train": sentences})) == {"no_documents"}
    assert task("sentence").deviations(tokenizer, {"train": sentences}) == {}
    sentences = dataset([["ab"]], documents=[0])
    assert set(CONLL2003.deviations(make_tokenizer(lowercase=True), {"train": sentences})) == {"uncased"}
    assert CONLL2003.deviations(tokenizer, {"train": sentences}) == {}


@pytest.mark.parametrize("packing", [True, False])
def test_from_logits_to_tags_of_sentences(tokenizer, packing):
    sentences = dataset([["ab", "c"], ["d"], ["ef"]], documents=[0, 0, 1], tags=[[1, 2], [0], [4]])
    features = encode(CONLL2003, sentences, tokenizer, 8)
    batch = CONLL2003.collate(list(features), pad_token_id=PAD, packing=packing)
    assert batch["labels"].shape == batch["input_ids"].shape
    labels = batch["labels"]
    logits = torch.nn.functional.one_hot(labels.clamp(min=0), 9).float()
    logits[labels == -100] = torch.nan  # what is between the words' first tokens plays no part
    outputs = output_rows(SimpleNamespace(logits=logits), features["length"][:])
    predictions = CONLL2003.postprocess(sentences, features, outputs)
    assert predictions["prediction"] == [["B-PER", "I-PER"], ["O"], ["I-ORG"]]
    assert CONLL2003.score(predictions, sentences) == {"entity_f1": 1.0}


def test_predictions_are_written_in_the_columns_of_conlleval(tmp_path):
    sentences = dataset([["EU", "acts"], ["Paris"]], documents=[0, 0], tags=[[3, 0], [5]])
    predictions = {"prediction": [["B-ORG", "O"], ["O"]], "probabilities": [[0.75, 0.5], [0.875]]}
    path, lines = CONLL2003.write_predictions(tmp_path, "test", sentences, predictions)
    assert path.read_text() == "EU B-ORG B-ORG\nacts O O\n\nParis B-LOC O\n\n"
    first = {"index": 0, "words": ["EU", "acts"], "label": ["B-ORG", "O"], "prediction": ["B-ORG", "O"]}
    assert json.loads(lines.read_text().splitlines()[0]) == {**first, "probability": [0.75, 0.5]}
    path, _ = CONLL2003.write_predictions(tmp_path, "test", sentences.remove_columns("tags"), predictions)
    assert path.read_text() == "EU B-ORG\nacts O\n\nParis O\n\n"


def test_entity_f1_is_that_of_conlleval():
    expected = json.loads((GOLDEN / "conll_expected.json").read_text())
    blocks = (GOLDEN / "conll_predictions.txt").read_text().strip().split("\n\n")
    sentences = [[line.split(" ") for line in block.splitlines()] for block in blocks]
    references, predictions = ([[fields[column] for fields in rows] for rows in sentences] for column in (1, 2))
    assert sum(map(len, references)) == expected["tokens"]
    score = metrics.entity_f1(predictions, references)
    exact = 2 * expected["correct"] / (expected["entities"] + expected["predicted"])
    assert score == pytest.approx(exact, abs=1e-12)
    assert round(100 * score, 2) == expected["f1_percent"]
    names = sorted({tag for tags in references + predictions for tag in tags})
    tagging_task = dataclasses.replace(task("sentence"), label_names=tuple(names))
    rows = datasets.Dataset.from_dict({"tags": [[names.index(tag) for tag in tags] for tags in references]})
    found = tagging_task.score_details({"prediction": predictions}, rows)["entities"]["micro avg"]
    assert found["f1-score"] == pytest.approx(score) and found["support"] == expected["entities"]
    assert found["precision"] == pytest.approx(expected["correct"] / expected["predicted"])


def test_the_baseline_gives_each_word_its_most_frequent_tag():
    train = dataset([["Ann", "met", "Ann", "in", "Rome"], ["Ann"]], tags=[[1, 0, 0, 0, 5], [1]])
    dev = dataset([["Ann", "in", "Oslo"], ["Rome"]], tags=[[1, 0, 5], [0]])
    scores = task("sentence").baselines(train, dev)
    assert scores == {"most frequent tag of a word": {"entity_f1": 0.5}}  # Ann right, Oslo missed, Rome too much


def test_the_hubs_rows_get_their_documents_only_where_every_word_agrees(official, tmp_path, monkeypatch):
    ours = CONLL2003.read_official("train", official / "eng.train")
    hub = ours.select_columns(["words", "tags"]).rename_columns({"words": "tokens", "tags": "ner_tags"})
    assert CONLL2003.from_published(hub).column_names == ["words", "tags"]  # not known: `no_documents`
    digest = hashlib.sha256(b"EU rejects German\nParis London\nPeter Blackburn").hexdigest()[:16]
    (tmp_path / "documents.json").write_text(json.dumps({digest: "2 1"}))
    monkeypatch.setattr(tagging, "DOCUMENTS", tmp_path / "documents.json")
    assert CONLL2003.from_published(hub)["document"][:] == ours["document"][:] == [0, 0, 1]
    other = hub.map(lambda row: {"tokens": [word.replace("EU", "UN") for word in row["tokens"]]})
    assert CONLL2003.from_published(other).column_names == ["words", "tags"]


def test_the_documents_that_are_shipped_are_those_of_the_published_splits():
    known = json.loads((Path(tagging.__file__).with_name(tagging.DOCUMENTS)).read_text())
    counts = [[int(count) for count in sentences.split()] for sentences in known.values()]
    published = [SPLIT_ROWS["conll2003", split] for split in ("train", "validation", "test")]
    assert list(map(sum, counts)) == published and list(map(len, counts)) == [946, 216, 231]


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"do_eval": True}, "--do_train"),
        ({"do_train": True, "packing": False}, "--packing false"),
        ({"do_train": True, "peft": "lora"}, "--peft lora"),
    ],
)
def test_features_of_a_frozen_encoder_exclude_other_settings(settings, named):
    with user_error("--feature_based last", named, setting="feature_based"):
        NerConfig(model_name_or_path="m", feature_based="last", **settings)


def test_a_dev_set_of_one_tag_or_without_entities_and_a_baseline_of_zero_are_said(caplog):
    words = [["a", "b"], ["c"]]
    only_other = datasets.Dataset.from_dict({"words": words, "tags": [[0, 0], [0]]})
    with_entities = datasets.Dataset.from_dict({"words": words, "tags": [[TAGS.index("B-PER"), 0], [0]]})
    answers = {"prediction": [["O", "O"], ["O"]]}

    (note,) = CONLL2003.score_details(answers, only_other)["notes"]
    assert "All 3 words" in note and "'O'" in note and "entity_f1" in note and note in caplog.text
    assert not CONLL2003.is_degenerate(answers, only_other)
    assert "notes" not in CONLL2003.score_details(answers, with_entities)
    assert CONLL2003.is_degenerate(answers, with_entities)

    caplog.clear()
    with caplog.at_level("INFO", "bert_repro"):
        assert CONLL2003.baselines(only_other, with_entities)["most frequent tag of a word"]["entity_f1"] == 0
    assert "'most frequent tag of a word'" in caplog.text and "entity_f1 0" in caplog.text
