"""The example on the card of a model in another language: a held-out sentence of its corpus with one masked word."""

import dataclasses

import pytest
from transformers import AutoTokenizer

from bert_repro.corpus.prepared_corpus import PreparedCorpus
from bert_repro.pretraining.widget_example import languages_of, widget_example


@pytest.fixture
def corpus(world) -> PreparedCorpus:
    return PreparedCorpus.load(world.corpus)


def in_languages(corpus: PreparedCorpus, **settings: object) -> PreparedCorpus:
    manifest = {**corpus.manifest, "settings": {**corpus.manifest["settings"], **settings}}
    return dataclasses.replace(corpus, manifest=manifest)


def test_an_english_corpus_has_no_example(world, corpus: PreparedCorpus) -> None:
    tokenizer = AutoTokenizer.from_pretrained(world.tokenizer, trust_remote_code=False)
    _, heldout = corpus.split(0.2, at_least=2)
    assert languages_of(corpus) == ["en"]
    assert widget_example(corpus, heldout, tokenizer) is None


def test_another_language_has_a_held_out_sentence_with_one_mask(world, corpus: PreparedCorpus) -> None:
    tokenizer = AutoTokenizer.from_pretrained(world.tokenizer, trust_remote_code=False)
    german = in_languages(corpus, language="de")
    _, heldout = corpus.split(0.2, at_least=2)
    example = widget_example(german, heldout, tokenizer)
    assert example is not None and example["text"].count("[MASK]") == 1
    # The words around the mask are those of a sentence of a held-out document.
    before, after = (part.strip().lower() for part in example["text"].split("[MASK]"))
    texts = []
    for document in heldout:
        start, end = corpus.document_starts[document : document + 2]
        texts.append(tokenizer.decode(corpus.gather([start], [end - start]).tolist()))
    assert any(before in text and after in text for text in texts)


def test_languages_of_several_sources(corpus: PreparedCorpus) -> None:
    several = in_languages(corpus, sources_with=[{"language": "de"}, {"language": "fr"}, {"language": "de"}])
    assert languages_of(several) == ["de", "fr"]
