"""Raw text -> a prepared corpus, from reading the input to the finished folder. In the order of the data:

    documents.py         files and Hub datasets -> blocks of documents
    cleaning.py          documents -> text passages
    sentences.py         passages -> sentences and token ids, in parallel processes, where cleaning works too
    writer.py            token ids -> parts, parts -> the corpus
    prepared_corpus.py   the corpus as pre-training reads it

The input is cut into parts of about 32 million characters by its order alone, so neither processes nor interruptions
nor shards change what a part holds. An interrupted preparation continues after its last finished part.
"""

import importlib.metadata
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_repro.configs import CorpusConfig
from bert_repro.corpus import documents, writer
from bert_repro.corpus.cleaning import RULES_VERSION
from bert_repro.corpus.documents import Document, Source, find_sources, source_identities
from bert_repro.corpus.prepared_corpus import FORMAT_VERSION, MANIFEST, PreparedCorpus, read_manifest, require_equal
from bert_repro.corpus.sentences import TokenizeSettings, tokenize_blocks
from bert_repro.corpus.tokenizer import load_tokenizer, tokenizer_fingerprint
from bert_repro.corpus.writer import Shard
from bert_repro.errors import UserError
from bert_repro.utils import process

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

logger = logging.getLogger("bert_repro")

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
        writer.open_folder(folder, settings, config.overwrite_output_dir)
    with writer.held(folder, None):
        if not writer.is_joined(folder, settings):
            _write_parts(config, sources, tokenizer, folder, settings)
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
        "part_characters": documents.PART_CHARACTERS,
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
    config: CorpusConfig,
    sources: list[Source],
    tokenizer: "PreTrainedTokenizerFast",
    folder: Path,
    settings: dict[str, Any],
) -> int:
    """Writes the unfinished parts, or those of a shard; returns how many parts the complete input has.

    Raises:
        UserError: a file of the input has changed meanwhile.
    """
    done = writer.finished_parts(folder)
    if done:
        logger.info("Continuing %s: %d parts are finished.", folder, len(done))
    shard = Shard.parse("1/1")
    num_parts = 0

    def wanted() -> Iterator[tuple[int, list[Document]]]:
        nonlocal num_parts
        for part, block in documents.read_blocks(config, sources):
            num_parts = part + 1
            if part not in done and shard.holds(part):
                yield part, block

    json = tokenizer.backend_tokenizer.to_str()
    tokenizing = TokenizeSettings(json, config.text_passages_only, config.sentence_splitter)
    writer.write_parts(folder, tokenize_blocks(wanted(), tokenizing, config.num_proc))
    if source_identities(sources) != settings["sources"]:
        raise UserError(
            "an input file has changed while it was prepared, so parts of two versions would be mixed; prepare it "
            "again with --overwrite_output_dir"
        )
    return num_parts


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
