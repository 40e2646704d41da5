"""Cleans documents, splits them into sentences and turns the sentences into token ids."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from bert_repro.corpus.cleaning import clean
from bert_repro.corpus.documents import Document
from bert_repro.corpus.language_check import LanguageSigns
from bert_repro.corpus.prepared_corpus import TokenArray, token_dtype
from bert_repro.errors import UserError, flag
from bert_repro.utils.randomness import UInt64Array
from bert_repro.utils.tokenizer_losses import TokenizerLosses, count_marks, strips_accents

SENTENCES_PER_BATCH = 1000
SAMPLE_EVERY = 10
"""Letters and common words are counted in every tenth document, which takes little time and is exact enough."""
SENTENCEX_LANGUAGES = frozenset(
    "am ar bg bn ca da de el en es fi fr gu he hi hy it ja kk kn ml mr my nl pa pl pt ru sk ta te uk ur zh".split()
)
"""Languages that have rules or tests of their own in sentencex. It treats any other code as English without a word."""

Splitter = Callable[[str], Sequence[str]]
"""Cuts a paragraph into sentences."""


@dataclass(frozen=True)
class TokenizeSettings:
    """What decides the tokens of a document.

    Args:
        tokenizer_json: the state of a `tokenizers.Tokenizer`.
        text_passages_only: drop what is not running text (`cleaning.py`); otherwise each line is a paragraph.
        sentence_splitter: as in `CorpusConfig`.
    """

    tokenizer_json: str
    text_passages_only: bool
    sentence_splitter: str


@dataclass(frozen=True)
class Block:
    """Tokenized documents, D of them with N sentences and T tokens.

    Args:
        tokens: [T] token ids.
        sentence_lengths: int32 [N], in tokens, none of them 0.
        document_sentences: int32 [D], sentences of each document.
        document_keys: uint64 [D], hash of each document's sentences.
        counts: what was read, kept and dropped; see the manifest.
        losses: what the tokenizer loses of the text.
        language: signs of whether the text is in its language.
    """

    tokens: TokenArray
    sentence_lengths: npt.NDArray[np.int32]
    document_sentences: npt.NDArray[np.int32]
    document_keys: UInt64Array
    counts: Counter[str]
    losses: TokenizerLosses
    language: LanguageSigns


class BlockTokenizer:
    """Cleans, splits and tokenizes documents.

    Args:
        settings: what decides the tokens.
    """

    def __init__(self, settings: TokenizeSettings) -> None:
        from tokenizers import Tokenizer

        self._settings = settings
        self._tokenizer = Tokenizer.from_str(settings.tokenizer_json)
        # A saved tokenizer may be set to truncate or pad.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        # "[SEP]" written in a text is ordinary text, as in the original implementation.
        self._tokenizer.encode_special_tokens = True
        self._dtype = token_dtype(self._tokenizer.get_vocab_size())
        self._unknown_id = self._tokenizer.token_to_id("[UNK]")
        self._strips_accents = strips_accents(self._tokenizer.normalizer)
        self._splitters: dict[str, Splitter] = {}

    def __call__(self, documents: Sequence[Document]) -> Block:
        """Tokenizes documents. Sentences without tokens and documents without sentences are dropped."""
        # All sentences of a block are tokenized together, which is faster; remember where documents end.
        counts: Counter[str] = Counter()
        sentences: list[str] = []
        document_ends: list[int] = []
        for document in documents:
            sentences += self._sentences(document, counts)
            document_ends.append(len(sentences))
        tokens, lengths = self._tokenize(sentences)

        # Keep the documents that have at least one token, and count them by their source.
        document_sentences: list[int] = []
        keys: list[int] = []
        begin = 0
        for document, end in zip(documents, document_ends, strict=True):
            num_sentences = int(np.count_nonzero(lengths[begin:end]))
            if num_sentences:
                document_sentences.append(num_sentences)
                keys.append(_text_key(sentences[begin:end]))
                counts[f"source_{document.origin}_documents"] += 1
                counts[f"source_{document.origin}_tokens"] += int(lengths[begin:end].sum())
            begin = end
        counts.update(documents=len(keys), sentences=sum(document_sentences), tokens=len(tokens))
        # [UNK] is counted exactly, because the tokens are at hand.
        losses, language = self._signs(documents)
        losses += TokenizerLosses(tokens=len(tokens), unknown_tokens=int((tokens == self._unknown_id).sum()))
        return Block(
            tokens=tokens,
            sentence_lengths=lengths[lengths > 0],
            document_sentences=np.array(document_sentences, dtype=np.int32),
            document_keys=np.array(keys, dtype=np.uint64),
            counts=counts,
            losses=losses,
            language=language,
        )

    def _signs(self, documents: Sequence[Document]) -> tuple[TokenizerLosses, LanguageSigns]:
        """Counts letters with marks, and common words, in a sample of documents."""
        losses, language = TokenizerLosses(), LanguageSigns()
        for document in documents[::SAMPLE_EVERY]:
            losses += count_marks(document.text, self._strips_accents)
            language.count(document.language, document.text)
        return losses, language

    def _sentences(self, document: Document, counts: Counter[str]) -> list[str]:
        """Returns the sentences of a document and adds what was read and dropped to `counts`."""
        # A splitter is loaded once for each language.
        if document.language not in self._splitters:
            splitter = sentence_splitter(self._settings.sentence_splitter, document.language)
            self._splitters[document.language] = splitter
        paragraphs = clean(
            document,
            counts,
            passages_only=self._settings.text_passages_only,
            unwrap=self._settings.sentence_splitter != "lines",
        )
        sentences: list[str] = []
        for paragraph in paragraphs:
            sentences += self._splitters[document.language](paragraph)
        return sentences

    def _tokenize(self, sentences: list[str]) -> tuple[TokenArray, npt.NDArray[np.int32]]:
        """Returns the token ids of all sentences, and the number of tokens of each sentence."""
        ids: list[npt.NDArray[Any]] = [np.empty(0, dtype=self._dtype)]
        lengths: list[int] = []
        for start in range(0, len(sentences), SENTENCES_PER_BATCH):
            batch = sentences[start : start + SENTENCES_PER_BATCH]
            batch_ids: list[int] = []
            for encoding in self._tokenizer.encode_batch_fast(batch, add_special_tokens=False):
                sentence_ids = encoding.ids
                lengths.append(len(sentence_ids))
                batch_ids += sentence_ids
            ids.append(np.array(batch_ids, dtype=self._dtype))
        return np.concatenate(ids), np.array(lengths, dtype=np.int32)


def sentence_splitter(name: str, language: str) -> Splitter:
    """Returns the function that cuts a paragraph of a language into sentences.

    Args:
        name: as in `CorpusConfig.sentence_splitter`.
        language: code of the language.

    Raises:
        UserError: there are no rules for the language, or the package that has them is not installed.
    """
    # As in the original implementation, the text already has one sentence per line.
    if name == "lines":
        return lambda paragraph: [paragraph]
    if name == "nupunkt" or (name == "auto" and language == "en"):
        import nupunkt

        return cast(Splitter, nupunkt.load("default").tokenize)

    if language not in SENTENCEX_LANGUAGES:
        raise UserError(
            f"{flag('language', language)}: there are no rules for the sentences of this language. Use the code of a "
            f"language that is written like it ({' '.join(sorted(SENTENCEX_LANGUAGES))}), or "
            f"{flag('sentence_splitter', 'lines')} and text with one sentence per line.",
            setting="language",
        )
    try:
        import sentencex
    except ImportError:
        raise UserError(
            f"{flag('language', language)} requires the package sentencex. Run: pip install sentencex",
            setting="language",
        ) from None

    # sentencex returns sentences with the spaces around them, and sometimes spaces alone.
    def split(paragraph: str) -> list[str]:
        sentences = (sentence.strip() for sentence in sentencex.segment(language, paragraph))
        return [sentence for sentence in sentences if sentence]

    return split


def _text_key(sentences: list[str]) -> int:
    """Returns a 64-bit hash of a document's sentences."""
    digest = blake2b(digest_size=8)
    for sentence in sentences:
        digest.update(sentence.encode("utf-8"))
        digest.update(b"\n")
    return int.from_bytes(digest.digest(), "little")
