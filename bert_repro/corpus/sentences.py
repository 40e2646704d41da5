"""Blocks of documents -> sentences and token ids, in parallel processes, in which the documents are cleaned too."""

import multiprocessing
import os
import signal
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from bert_repro.corpus.cleaning import clean
from bert_repro.corpus.documents import Document
from bert_repro.corpus.prepared_corpus import Block, TokenArray, token_dtype
from bert_repro.errors import UserError

SENTENCES_PER_BATCH, BLOCKS_PER_PROCESS = 1000, 3
# Those with rules or tests of their own in sentencex, which takes other codes for English without a word.
SENTENCEX_LANGUAGES = frozenset(
    "am ar bg bn ca da de el en es fi fr gu he hi hy it ja kk kn ml mr my nl pa pl pt ru sk ta te uk ur zh".split()
)


@dataclass(frozen=True)
class TokenizeSettings:
    """What decides the tokens of a document.

    Args:
        tokenizer_json: the state of a `tokenizers.Tokenizer`.
        text_passages_only: drop what is not running text (cleaning.py); else each line is a paragraph.
        sentence_splitter: as in `CorpusConfig`.
    """

    tokenizer_json: str
    text_passages_only: bool
    sentence_splitter: str


class BlockTokenizer:
    """Cleans, splits and tokenizes documents.

    Args:
        settings: what decides the tokens.
    """

    def __init__(self, settings: TokenizeSettings) -> None:
        from tokenizers import Tokenizer

        self._passages_only = settings.text_passages_only
        self._tokenizer = Tokenizer.from_str(settings.tokenizer_json)
        # A saved tokenizer may cut or pad, and "[SEP]" written in a text is text, as in the original implementation.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True
        self._dtype = token_dtype(self._tokenizer.get_vocab_size())
        self._splitting = settings.sentence_splitter
        self._splitters: dict[str, Splitter] = {}

    def __call__(self, documents: Sequence[Document]) -> Block:
        """Tokenizes documents. A sentence without tokens and a document without sentences is dropped."""
        counts: Counter[str] = Counter()
        sentences: list[str] = []
        document_ends: list[int] = []
        for document in documents:
            paragraphs = clean(document, counts, passages_only=self._passages_only, unwrap=self._splitting != "lines")
            if document.language not in self._splitters:
                self._splitters[document.language] = sentence_splitter(self._splitting, document.language)
            sentences += chain.from_iterable(map(self._splitters[document.language], paragraphs))
            document_ends.append(len(sentences))
        tokens, lengths = self._tokenize(sentences)
        document_sentences: list[int] = []
        keys: list[int] = []
        begin = 0
        for document, end in zip(documents, document_ends, strict=True):
            if kept := int(np.count_nonzero(lengths[begin:end])):
                document_sentences.append(kept)
                keys.append(_text_key(sentences[begin:end]))
                counts[f"source_{document.origin}_documents"] += 1
                counts[f"source_{document.origin}_tokens"] += int(lengths[begin:end].sum())
            begin = end
        counts.update(documents=len(keys), sentences=sum(document_sentences), tokens=len(tokens))
        return Block(
            tokens=tokens,
            sentence_lengths=lengths[lengths > 0],
            document_sentences=np.array(document_sentences, dtype=np.int32),
            document_keys=np.array(keys, dtype=np.uint64),
            counts=counts,
        )

    def _tokenize(self, sentences: list[str]) -> tuple[TokenArray, npt.NDArray[np.int32]]:
        ids: list[npt.NDArray[Any]] = [np.empty(0, dtype=self._dtype)]
        lengths: list[int] = []
        for start in range(0, len(sentences), SENTENCES_PER_BATCH):
            batch = sentences[start : start + SENTENCES_PER_BATCH]
            encodings = self._tokenizer.encode_batch_fast(batch, add_special_tokens=False)
            pieces = [encoding.ids for encoding in encodings]
            lengths += map(len, pieces)
            ids.append(np.fromiter((piece for sentence in pieces for piece in sentence), dtype=self._dtype))
        return np.concatenate(ids), np.array(lengths, dtype=np.int32)


Splitter = Callable[[str], Sequence[str]]


def sentence_splitter(name: str, language: str) -> Splitter:
    """Returns what cuts a paragraph of a language into sentences.

    Raises:
        UserError: there are no rules for the language, or the package with them is not installed.
    """
    if name == "lines":
        return lambda paragraph: [paragraph]
    if name == "nupunkt" or (name == "auto" and language == "en"):
        import nupunkt

        return cast(Splitter, nupunkt.load("default").tokenize)
    if language not in SENTENCEX_LANGUAGES:
        raise UserError(
            f"--language {language}: there are no rules for its sentences; use the code of a language that is written "
            f"like it ({' '.join(sorted(SENTENCEX_LANGUAGES))}), or --sentence_splitter lines with a sentence on each "
            "line"
        )
    try:
        import sentencex
    except ImportError:
        raise UserError(
            f"--language {language}: the package sentencex is not installed; run: pip install sentencex"
        ) from None
    return lambda paragraph: [sentence for part in sentencex.segment(language, paragraph) if (sentence := part.strip())]


def tokenize_blocks(
    blocks: Iterator[tuple[int, list[Document]]], settings: TokenizeSettings, num_proc: int
) -> Iterator[tuple[int, Block]]:
    """Tokenizes blocks of documents; the result and its order are the same for any number of processes.

    Args:
        blocks: (label, documents). Read only as far ahead as the processes need.
        settings: what decides the tokens.
        num_proc: worker processes; with 1 the work is done in this process.

    Yields:
        (label, block) in the order of `blocks`.
    """
    if num_proc == 1:
        tokenizer = BlockTokenizer(settings)
        yield from ((label, tokenizer(documents)) for label, documents in blocks)
        return
    pending: deque[tuple[int, Future[Block]]] = deque()
    # Workers start from a fresh interpreter: a fork would copy the threads' locks of libraries already in use.
    context = multiprocessing.get_context("spawn")
    executor = ProcessPoolExecutor(num_proc, mp_context=context, initializer=_start_worker, initargs=(settings,))
    try:
        for label, documents in blocks:
            pending.append((label, executor.submit(_tokenize_in_worker, documents)))
            if len(pending) >= BLOCKS_PER_PROCESS * num_proc:
                label, future = pending.popleft()
                yield label, future.result()
        while pending:
            label, future = pending.popleft()
            yield label, future.result()
    finally:
        executor.shutdown(cancel_futures=True)


_worker_tokenizer: BlockTokenizer | None = None


def _start_worker(settings: TokenizeSettings) -> None:
    global _worker_tokenizer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _worker_tokenizer = BlockTokenizer(settings)


def _exit_with_parent() -> None:
    """Ends a worker whose parent was killed; it would wait for work for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _tokenize_in_worker(documents: list[Document]) -> Block:
    assert _worker_tokenizer is not None
    return _worker_tokenizer(documents)


def _text_key(sentences: list[str]) -> int:
    digest = blake2b(digest_size=8)
    for sentence in sentences:
        digest.update(sentence.encode("utf-8"))
        digest.update(b"\n")
    return int.from_bytes(digest.digest(), "little")
