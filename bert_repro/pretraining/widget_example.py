"""The language of a corpus and a sentence with a masked word for the card of a model that is not English.

The widget of an English model shows a sentence of ours. For other languages we have none, so it shows a sentence of the
held-out documents, which training never reads.
"""

from typing import TYPE_CHECKING, Any

from bert_repro.corpus.prepared_corpus import PreparedCorpus
from bert_repro.utils.arrays import Int64Array

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_ENGLISH = "en"
_DOCUMENTS_TRIED = 50
_SHORTEST = 6  # tokens
_LONGEST = 20  # tokens


def languages_of(corpus: PreparedCorpus) -> list[str]:
    """Returns the codes of a corpus's languages, in the order of its sources."""
    settings: dict[str, Any] = corpus.manifest["settings"]
    sources = settings.get("sources_with")
    if not sources:
        return [str(settings.get("language", _ENGLISH))]
    return list(dict.fromkeys(str(source.get("language", _ENGLISH)) for source in sources))


def widget_example(
    corpus: PreparedCorpus, heldout: Int64Array, tokenizer: "PreTrainedTokenizerFast"
) -> dict[str, str] | None:
    """Returns a held-out sentence with one word masked, or None if the corpus is English or has no fitting sentence.

    Args:
        corpus: the prepared corpus.
        heldout: ids of the documents that training never reads.
        tokenizer: the tokenizer of the corpus.
    """
    if languages_of(corpus) == [_ENGLISH]:
        return None
    for document in heldout[:_DOCUMENTS_TRIED]:
        first_sentence = int(corpus.document_sentences[document])
        last_sentence = int(corpus.document_sentences[document + 1])
        for sentence in range(first_sentence, last_sentence):
            start = int(corpus.sentence_starts[sentence])
            length = int(corpus.sentence_starts[sentence + 1]) - start
            if not _SHORTEST <= length <= _LONGEST:
                continue
            token_ids = corpus.gather([start], [length]).tolist()
            text = _with_mask(token_ids, tokenizer)
            if text is not None:
                return {"text": text}
    return None


def _with_mask(token_ids: list[int], tokenizer: "PreTrainedTokenizerFast") -> str | None:
    """Returns the sentence with the complete word nearest to its middle masked; None if it has no such word."""
    tokens = tokenizer.convert_ids_to_tokens(token_ids)
    if tokenizer.unk_token in tokens:
        return None
    middle = len(tokens) // 2
    # A piece that another piece continues is only a part of a word.
    complete_words = [
        place
        for place in range(1, len(tokens) - 1)
        if tokens[place].isalpha() and not tokens[place + 1].startswith("##")
    ]
    if not complete_words:
        return None
    masked = min(complete_words, key=lambda place: abs(place - middle))
    token_ids[masked] = tokenizer.mask_token_id
    return str(tokenizer.decode(token_ids))
