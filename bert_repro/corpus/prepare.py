"""Raw text -> a prepared corpus: the entrance. Documents, passages, sentences and tokens have their own modules.

The work goes part by part, a part being about 32 million characters of input. A part is written beside its place and
renamed, and its record follows, so that an interrupted preparation continues behind its last finished part, and several
machines can share the parts (`--shard`). Parts are numbered by their place in the input alone; neither processes nor
interruptions nor shards change what they hold.
"""

import importlib.metadata
import logging
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_repro.configs import CorpusConfig, TextConfig, TokenizerConfig
from bert_repro.corpus import shards, writer
from bert_repro.corpus.cleaning import RULES, RULES_VERSION, passages
from bert_repro.corpus.prepared_corpus import FORMAT_VERSION, MANIFEST, TokenizedCorpus, read_manifest
from bert_repro.corpus.readers import Document, Source, find_sources, read_documents
from bert_repro.corpus.shards import Shard
from bert_repro.corpus.tokenize import Block, ProcessingSettings, process_blocks
from bert_repro.corpus.tokenizer import load_tokenizer, tokenizer_fingerprint, train_wordpiece
from bert_repro.errors import UserError
from bert_repro.utils import status

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

__all__ = ["TokenizedCorpus", "prepare_corpus", "train_tokenizer_from_corpus"]

logger = logging.getLogger("bert_repro")

PART_CHARACTERS = 32_000_000
BLOCK_CHARACTERS = 500_000
FEW_SENTENCES = 3


def prepare_corpus(config: CorpusConfig) -> dict[str, Any]:
    """Prepares a corpus in `config.output_dir`, or finds it there already prepared with the same settings.

    While it runs the parts lie in `<output_dir>.preparing`; started again with the same settings it continues there.
    With `config.shard` it writes that shard's parts and stops; `config.join` makes the corpus out of all shards.

    Args:
        config: input, tokenizer, output and how to split.

    Returns:
        The manifest of the corpus: settings, sources, counts (documents, sentences, tokens, words, bytes, lines dropped
        by each rule), versions. For a shard: its name and the number of parts of the whole input.

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
        logger.info("Corpus %s is prepared with these settings already: nothing to do.", output_dir)
        return finished
    folder = shards.work_folder(output_dir)
    if not shards.is_joined(folder, settings):
        if config.join:
            shards.require_all_parts(folder, settings)
        else:
            shards.open_folder(folder, settings, config.overwrite_output_dir)
            num_parts = _write_parts(config, sources, tokenizer, folder)
            if config.shard:
                return _finish_shard(folder, Shard.parse(config.shard), num_parts, settings)
        _join_parts(folder, tokenizer, settings)
    shards.put_in_place(folder, output_dir)
    manifest = read_manifest(output_dir)
    _report(manifest, output_dir)
    return manifest


def train_tokenizer_from_corpus(config: TokenizerConfig) -> "PreTrainedTokenizerFast":
    """Trains a WordPiece vocabulary on the text of a corpus and saves the tokenizer in `config.output_dir`.

    Args:
        config: input, output and settings of the vocabulary.

    Raises:
        UserError: bad input, no text, or an output folder that is not empty.
    """
    output_dir = Path(config.output_dir)
    if not status.is_free(output_dir) and not config.overwrite_output_dir:
        raise UserError(f"output_dir {output_dir} is not empty; choose another or give --overwrite_output_dir")
    tokenizer = train_wordpiece(
        _texts(config, find_sources(config.input_files)),
        vocab_size=config.vocab_size,
        lowercase=config.lowercase,
        strip_accents=config.strip_accents,
        handle_chinese_chars=config.handle_chinese_chars,
        min_frequency=config.min_frequency,
        limit_alphabet=config.limit_alphabet,
        max_input_chars_per_word=config.max_input_chars_per_word,
    )
    tokenizer.save_pretrained(output_dir)
    return tokenizer


def _settings(config: CorpusConfig, sources: list[Source], tokenizer: "PreTrainedTokenizerFast") -> dict[str, Any]:
    """All that decides what the parts hold; equal settings make equal parts."""
    is_nupunkt = config.sentence_splitter == "nupunkt"
    return {
        "format_version": FORMAT_VERSION,
        "sources": [[source.name, source.size, source.revision] for source in sources],
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
    if output_dir.is_file():
        raise UserError(f"output_dir {output_dir} is a file: name a folder")
    if status.is_free(output_dir):
        return None
    if not (output_dir / MANIFEST).is_file():
        raise UserError(f"output_dir {output_dir} exists and is no prepared corpus: choose another folder")
    if overwrite:
        return None
    manifest = read_manifest(output_dir)
    mend = "choose another output_dir or give --overwrite_output_dir"
    shards.require_equal(settings, manifest["settings"], str(output_dir), mend)
    return TokenizedCorpus.load(output_dir).manifest


def _write_parts(
    config: CorpusConfig, sources: list[Source], tokenizer: "PreTrainedTokenizerFast", folder: Path
) -> int:
    """Writes the parts that are not finished yet, or those of a shard; returns how many parts the whole input has."""
    done = writer.finished_parts(folder)
    if done:
        logger.info("Continuing %s: %d parts are finished.", folder, len(done))
    shard = Shard.parse(config.shard or "1/1")
    num_parts = 0

    def blocks() -> Iterator[tuple[int, list[Document]]]:
        nonlocal num_parts
        for part, documents in _blocks(config, sources):
            num_parts = part + 1
            if part not in done and shard.holds(part):
                yield part, documents

    settings = ProcessingSettings(
        tokenizer.backend_tokenizer.to_str(), config.text_passages_only, config.sentence_splitter
    )
    number = 0
    collected: list[Block] = []
    for part, block in process_blocks(blocks(), settings, config.num_proc):
        if part != number and collected:
            writer.write_part(folder, number, collected)
            collected = []
        number = part
        collected.append(block)
    if collected:
        writer.write_part(folder, number, collected)
    return num_parts


def _finish_shard(folder: Path, shard: Shard, num_parts: int, settings: dict[str, Any]) -> dict[str, Any]:
    shards.finish_shard(folder, shard, num_parts, settings)
    finished = len(writer.finished_parts(folder))
    logger.info("Shard %s is prepared; %d of all %d parts are in %s.", shard, finished, num_parts, folder)
    if finished == num_parts:
        logger.info("All parts are there: the same command with --join in place of --shard makes the corpus.")
    return {"shard": str(shard), "num_parts": num_parts}


def _blocks(config: TextConfig, sources: list[Source]) -> Iterator[tuple[int, list[Document]]]:
    """Yields (number of the part, documents): cut by characters of the input, so the same in every run."""
    part = part_characters = block_characters = 0
    block: list[Document] = []
    for document in _documents(config, sources):
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


def _documents(config: TextConfig, sources: list[Source]) -> Iterator[Document]:
    """All documents in order, up to `max_documents`, with a progress bar over the bytes of the sources."""
    from tqdm import tqdm

    total = sum(source.size for source in sources)
    number = finished = 0
    with tqdm(total=total or None, unit="B", unit_scale=True, desc="reading", disable=None) as bar:
        for source in sources:
            for document in read_documents(
                source,
                text_column=config.text_column,
                title_column=config.title_column,
                hub_config=config.hub_config,
                hub_split=config.hub_split,
            ):
                if number == config.max_documents:
                    return
                number += 1
                yield document
                bar.update(finished + document.position - bar.n)
            finished += source.size
            bar.update(finished - bar.n)


def _texts(config: TokenizerConfig, sources: list[Source]) -> Iterator[str]:
    words = 0
    for document in _documents(config, sources):
        texts = passages(document.text, document.title) if config.text_passages_only else [document.text]
        for text in texts:
            yield text
            words += len(text.split())
            if config.max_words is not None and words >= config.max_words:
                return


def _join_parts(work_dir: Path, tokenizer: "PreTrainedTokenizerFast", settings: dict[str, Any]) -> None:
    """Makes the finished parts of a folder one corpus: index arrays, tokenizer, `datasets` files, last the manifest."""
    records = writer.finished_parts(work_dir)
    counts: Counter[str] = Counter()
    for record in records.values():
        counts.update(record["counts"])
    if not counts["documents"]:
        shutil.rmtree(work_dir)
        dropped = f"; {counts['documents_read']} documents were read and none kept" if counts["documents_read"] else ""
        raise UserError(f"the corpus is empty: no text in {', '.join(s[0] for s in settings['sources'])}{dropped}")
    ordered = [records[number] for number in sorted(records)]
    writer.write_index(work_dir, ordered)
    writer.write_datasets_files(work_dir, ordered)
    tokenizer.save_pretrained(work_dir / "tokenizer")
    manifest = {
        "format_version": FORMAT_VERSION,
        "tokenizer_fingerprint": settings["tokenizer_fingerprint"],
        "vocab_size": len(tokenizer),
        "token_dtype": ordered[0]["token_dtype"],
        "special_ids": {name: getattr(tokenizer, f"{name}_token_id") for name in ("pad", "unk", "cls", "sep", "mask")},
        "counts": {name: value for name, value in sorted(counts.items()) if not name.startswith("dropped_")},
        "dropped_lines": {rule: counts[f"dropped_{rule}"] for rule in RULES},
        "settings": settings,
        "versions": {
            name: importlib.metadata.version(name) for name in ("nupunkt", "tokenizers", "transformers", "pyarrow")
        },
        "parts": ordered,
    }
    manifest["files"] = shards.corpus_files(work_dir)
    writer.write_json(work_dir / MANIFEST, manifest)


def _report(manifest: dict[str, Any], output_dir: Path) -> None:
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
            " document: take blank lines between paragraphs out.",
            counts["sentences"] / counts["documents"],
        )
