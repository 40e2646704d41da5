"""Raw text -> a prepared corpus, from reading the input to the finished folder.

    documents.py         files and Hub datasets -> documents
    cleaning.py          documents -> text passages; here they become sentences and token ids, in parallel processes
    writer.py            token ids -> parts, parts -> the corpus
    prepared_corpus.py   the corpus as pre-training reads it

The input is cut into parts of about 32 million characters by its order alone, so neither processes nor interruptions
nor shards change what a part holds. An interrupted preparation continues after its last finished part.
"""

import importlib.metadata
import logging
import os
import signal
import threading
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bert_repro.configs import CorpusConfig
from bert_repro.corpus import writer
from bert_repro.corpus.cleaning import RULES_VERSION, find_passages
from bert_repro.corpus.documents import Document, Source, find_sources, read_all, source_identities
from bert_repro.corpus.prepared_corpus import (
    FORMAT_VERSION,
    MANIFEST,
    Block,
    PreparedCorpus,
    TokenArray,
    read_manifest,
    require_equal,
    token_dtype,
)
from bert_repro.corpus.tokenizer import load_tokenizer, tokenizer_fingerprint
from bert_repro.corpus.writer import Shard
from bert_repro.errors import UserError
from bert_repro.utils import process

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

logger = logging.getLogger("bert_repro")

PART_CHARACTERS, BLOCK_CHARACTERS = 32_000_000, 500_000
SENTENCES_PER_BATCH, BLOCKS_PER_PROCESS = 1000, 3
FEW_SENTENCES = 3


def prepare_corpus(config: CorpusConfig) -> dict[str, Any]:
    """Prepares a corpus in `config.output_dir`, or finds it there already prepared with the same settings.

    While it runs the parts are in `<output_dir>.preparing`; started again with the same settings it continues there.
    With `config.shard` it writes that shard's parts and stops; `config.join` makes the corpus out of all shards.

        import bert_repro

        manifest = bert_repro.prepare_corpus(
            bert_repro.CorpusConfig(input_files=("texts.txt",), tokenizer="runs/tokenizer", output_dir="corpus")
        )
        print(manifest["counts"]["documents"])

    Returns:
        The manifest of the corpus: settings, sources, counts (documents, sentences, tokens, words, bytes, lines dropped
        by each rule), versions. For a shard: its name and the number of parts of the complete input.

    Raises:
        UserError: bad input, no text, an output folder with something else in it, shards that are missing or do not
            fit together.

    Source: paper 3.1 (text passages only, document-level corpus); the steps in between are ours.
    """
    sources = find_sources(config.input_files)
    tokenizer = load_tokenizer(config.tokenizer, max_input_chars_per_word=config.max_input_chars_per_word)
    settings = _settings(config, sources, tokenizer)
    output_dir = Path(config.output_dir)
    if (finished := _finished(output_dir, settings, config.overwrite_output_dir)) is not None:
        logger.info("Corpus %s is already prepared with these settings: nothing to do.", output_dir)
        return finished
    folder = writer.preparation_folder(output_dir)
    if not writer.is_joined(folder, settings):
        if config.join:
            writer.require_all_parts(folder, settings)
        else:
            writer.open_folder(folder, settings, config.overwrite_output_dir)
    with writer.held(folder, config.shard):
        if not writer.is_joined(folder, settings):
            if not config.join:
                num_parts = _write_parts(config, sources, tokenizer, folder)
                if source_identities(sources) != settings["sources"]:
                    raise UserError(
                        "an input file has changed while it was prepared, so parts of two versions would be mixed; "
                        "prepare it again with --overwrite_output_dir"
                    )
                if config.shard:
                    return _finish_shard(folder, Shard.parse(config.shard), num_parts, settings)
            writer.join_parts(folder, tokenizer, settings)
        writer.put_in_place(folder, output_dir)
    manifest = read_manifest(output_dir)
    _log_counts(manifest, output_dir)
    return manifest


def _settings(config: CorpusConfig, sources: list[Source], tokenizer: "PreTrainedTokenizerFast") -> dict[str, Any]:
    """Returns all that decides what the parts hold; equal settings make equal parts."""
    is_nupunkt = config.sentence_splitter == "nupunkt"
    return {
        "format_version": FORMAT_VERSION,
        "sources": source_identities(sources),
        "tokenizer_fingerprint": tokenizer_fingerprint(tokenizer),
        "text_column": config.text_column,
        "title_column": config.title_column,
        "hub_config": config.hub_config,
        "hub_split": config.hub_split,
        "text_passages_only": config.text_passages_only,
        "rules_version": RULES_VERSION if config.text_passages_only else None,
        "sentence_splitter": config.sentence_splitter,
        "sentence_splitter_version": importlib.metadata.version("nupunkt") if is_nupunkt else None,
        "max_documents": config.max_documents,
        "part_characters": PART_CHARACTERS,
    }


def _finished(output_dir: Path, settings: dict[str, Any], overwrite: bool) -> dict[str, Any] | None:
    """Returns the manifest of a corpus that is there already, None where one is to be prepared."""
    if output_dir.is_file():
        raise UserError(f"--output_dir {output_dir} is a file; name a folder")
    if process.is_free_folder(output_dir):
        return None
    if not (output_dir / MANIFEST).is_file():
        raise UserError(f"--output_dir {output_dir} exists and is not a prepared corpus; choose another folder")
    if overwrite:
        return None
    fix = "choose another --output_dir or give --overwrite_output_dir"
    require_equal(settings, read_manifest(output_dir)["settings"], str(output_dir), fix)
    return PreparedCorpus.load(output_dir).manifest


def _write_parts(
    config: CorpusConfig, sources: list[Source], tokenizer: "PreTrainedTokenizerFast", folder: Path
) -> int:
    """Writes the unfinished parts, or those of a shard; returns how many parts the complete input has."""
    done = writer.finished_parts(folder)
    if done:
        logger.info("Continuing %s: %d parts are finished.", folder, len(done))
    shard = Shard.parse(config.shard or "1/1")
    num_parts = 0

    def blocks() -> Iterator[tuple[int, list[Document]]]:
        nonlocal num_parts
        for part, documents in _blocks(read_all(config, sources)):
            num_parts = part + 1
            if part not in done and shard.holds(part):
                yield part, documents

    settings = TokenizeSettings(
        tokenizer.backend_tokenizer.to_str(), config.text_passages_only, config.sentence_splitter
    )
    number = 0
    collected: list[Block] = []
    for part, block in tokenize_blocks(blocks(), settings, config.num_proc):
        if part != number and collected:
            writer.write_part(folder, number, collected)
            collected = []
        number = part
        collected.append(block)
    if collected:
        writer.write_part(folder, number, collected)
    return num_parts


def _blocks(documents: Iterator[Document]) -> Iterator[tuple[int, list[Document]]]:
    """Yields (number of the part, documents): cut by characters of the input, so the same in every run."""
    part = part_characters = block_characters = 0
    block: list[Document] = []
    for document in documents:
        block.append(document)
        block_characters += len(document.text)
        part_characters += len(document.text)
        if block_characters >= BLOCK_CHARACTERS or part_characters >= PART_CHARACTERS:
            yield part, block
            block, block_characters = [], 0
        if part_characters >= PART_CHARACTERS:
            part, part_characters = part + 1, 0
    if block:
        yield part, block


def _finish_shard(folder: Path, shard: Shard, num_parts: int, settings: dict[str, Any]) -> dict[str, Any]:
    writer.finish_shard(folder, shard, num_parts, settings)
    finished = len(writer.finished_parts(folder))
    logger.info("Shard %s is prepared; %d of all %d parts are in %s.", shard, finished, num_parts, folder)
    if finished == num_parts:
        logger.info("All parts are there: the same command with --join in place of --shard makes the corpus.")
    return {"shard": str(shard), "num_parts": num_parts}


def _log_counts(manifest: dict[str, Any], output_dir: Path) -> None:
    counts, dropped = manifest["counts"], manifest["dropped_lines"]
    logger.info(
        "Corpus %s: %d of %d documents, %d sentences, %d tokens, %d words; lines dropped: %s.",
        output_dir,
        counts["documents"],
        counts["documents_read"],
        counts["sentences"],
        counts["tokens"],
        counts["words"],
        ", ".join(f"{rule} {lines}" for rule, lines in dropped.items()),
    )
    if counts["sentences"] < FEW_SENTENCES * counts["documents"]:
        logger.warning(
            "Documents have %.1f sentences on average, few for next sentence prediction. In .txt a blank line ends a"
            " document: remove blank lines between paragraphs.",
            counts["sentences"] / counts["documents"],
        )


@dataclass(frozen=True)
class TokenizeSettings:
    """What decides the tokens of a document.

    Args:
        tokenizer_json: the state of a `tokenizers.Tokenizer`.
        text_passages_only: drop what is not running text (cleaning.py); else each line is a paragraph.
        sentence_splitter: `nupunkt`, or `lines` where each line is a sentence.
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

        self._settings = settings
        self._tokenizer = Tokenizer.from_str(settings.tokenizer_json)
        # A saved tokenizer may cut or pad, and "[SEP]" written in a text is text, as in the original implementation.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True
        self._dtype = token_dtype(self._tokenizer.get_vocab_size())
        self._splitter: Any = None
        if settings.sentence_splitter == "nupunkt":
            import nupunkt

            self._splitter = nupunkt.load("default")

    def __call__(self, documents: Sequence[Document]) -> Block:
        """Tokenizes documents. A sentence without tokens and a document without sentences is dropped."""
        counts: Counter[str] = Counter()
        sentences: list[str] = []
        document_ends: list[int] = []
        for document in documents:
            sentences += self._sentences(document, counts)
            document_ends.append(len(sentences))
        tokens, lengths = self._tokenize(sentences)

        owner = np.repeat(np.arange(len(documents)), np.diff([0, *document_ends]))
        per_document = np.bincount(owner[lengths > 0], minlength=len(documents)).astype(np.int32)
        keys = [
            _text_key(sentences[begin:end])
            for begin, end, kept in zip([0, *document_ends], document_ends, per_document > 0, strict=False)
            if kept
        ]
        counts["documents"], counts["sentences"] = len(keys), int(per_document.sum())
        counts["tokens"] = len(tokens)
        return Block(
            tokens=tokens,
            sentence_lengths=lengths[lengths > 0],
            document_sentences=per_document[per_document > 0],
            document_keys=np.array(keys, dtype=np.uint64),
            counts=counts,
        )

    def _sentences(self, document: Document, counts: Counter[str]) -> list[str]:
        counts["documents_read"] += 1
        counts["bytes_read"] += len(document.text.encode("utf-8"))
        paragraphs = self._paragraphs(document, counts)
        counts["words"] += sum(len(paragraph.split()) for paragraph in paragraphs)
        counts["bytes"] += sum(len(paragraph.encode("utf-8")) for paragraph in paragraphs)
        if self._splitter is None:
            return paragraphs
        return [sentence for paragraph in paragraphs for sentence in self._splitter.tokenize(paragraph)]

    def _paragraphs(self, document: Document, counts: Counter[str]) -> list[str]:
        if not self._settings.text_passages_only:
            return [line.strip() for line in document.text.splitlines() if line.strip()]
        found = find_passages(document.text, document.title, unwrap=self._splitter is not None)
        counts["lines_repaired"] += found.repaired
        for rule, lines in found.dropped.items():
            counts[f"dropped_{rule}"] += lines
        return found.kept

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
    executor = _executor(settings, num_proc)
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


def _executor(settings: TokenizeSettings, num_proc: int) -> ProcessPoolExecutor:
    import multiprocessing

    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(num_proc, mp_context=context, initializer=_start_worker, initargs=(settings,))


def _start_worker(settings: TokenizeSettings) -> None:
    global _worker_tokenizer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _worker_tokenizer = BlockTokenizer(settings)


def _exit_with_parent() -> None:
    """Ends a worker whose parent was killed; it would wait for work for ever."""
    import multiprocessing

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
