"""Raw text -> a prepared corpus, from reading the input to the finished folder. In the order of the data:

    documents.py         files and Hub datasets -> blocks of documents
    cleaning.py          documents -> text passages
    sentences.py         passages -> sentences and token ids, in parallel processes, where cleaning works too
    prepare.py           token ids -> parts, parts -> the corpus
    prepared_corpus.py   the corpus as pre-training reads it

The input is cut into parts of about 32 million characters by its order alone, so neither the number of processes nor
interruptions change what a part holds. While a corpus is prepared its parts are in `<output_dir>.preparing`:

    settings.json             what decides the parts
    part-00000.arrow ...      finished parts, each with its counts in part-00000.json, which is written last

An interrupted preparation continues after its last finished part.
"""

import importlib.metadata
import logging
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bert_repro.configs import CorpusConfig, require
from bert_repro.corpus import documents
from bert_repro.corpus.cleaning import RULES, RULES_VERSION
from bert_repro.corpus.documents import DuplicateFilter, Source, find_sources, source_identities
from bert_repro.corpus.prepared_corpus import (
    FORMAT_VERSION,
    MANIFEST,
    Block,
    PreparedCorpus,
    manifest_digest,
    read_manifest,
)
from bert_repro.corpus.sentences import TokenizeSettings, sentence_splitter, tokenize_blocks
from bert_repro.errors import UserError
from bert_repro.models.loading import load_tokenizer, save_tokenizer, tokenizer_fingerprint
from bert_repro.utils import process
from bert_repro.utils.arrays import row_starts
from bert_repro.utils.files import (
    UNFINISHED,
    atomic_file,
    create_array,
    file_digest,
    lock,
    replace_folder,
    unlock,
    write_json,
)
from bert_repro.utils.readers import read_json_object

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

logger = logging.getLogger("bert_repro")

SETTINGS_FILE = "settings.json"
FEW_SENTENCES, FEW_DOCUMENTS = 3, 100  # of a document, of a corpus


def prepare_corpus(config: CorpusConfig, texts: Sequence[str] | None = None) -> dict[str, Any]:
    """Prepares a corpus in `config.output_dir`, or finds it there already prepared with the same settings.

    Started again with the same settings after an interruption, it continues.

    Args:
        config: all settings.
        texts: documents in memory, in place of `input_files`.

    Returns:
        The manifest of the corpus: settings, sources, counts (documents, sentences, tokens, words, bytes, lines dropped
        by each rule), versions.

    Raises:
        UserError: bad input, no text, or an output folder with something else in it.

    Source: paper 3.1 (text passages only, document-level corpus); the steps in between are ours.
    """
    sources = find_sources(config, texts)
    for language in {source.options.language for source in sources}:
        sentence_splitter(config.sentence_splitter, language)
    duplicates = DuplicateFilter(config.deduplicate)
    tokenizer = load_tokenizer(config.tokenizer)
    if (added := len(tokenizer) - tokenizer.backend_tokenizer.get_vocab_size(with_added_tokens=False)) > 0:
        raise UserError(
            f"--tokenizer {config.tokenizer}: {added} tokens were added with add_tokens, which match inside words; "
            f"extend its vocabulary with train_tokenizer --extend {config.tokenizer}"
        )
    settings = _settings(config, sources, tokenizer)
    output_dir = Path(config.output_dir)
    if (finished := _finished(output_dir, settings, config.overwrite_output_dir)) is not None:
        logger.info("Corpus %s is already prepared with these settings: nothing to do.", output_dir)
        return finished
    folder = output_dir.with_name(output_dir.name + ".preparing")
    folder.mkdir(parents=True, exist_ok=True)
    require(lock(folder), f"{folder}: another process is preparing it; wait for it or choose another --output_dir")
    try:
        _open_folder(folder, settings, config.overwrite_output_dir)
        _write_parts(config, sources, duplicates, tokenizer, folder, settings)
        _join_parts(config, folder, duplicates, tokenizer, settings)
        replace_folder(folder, output_dir)
    finally:
        unlock(folder)
    for name in _only_while_preparing(output_dir):
        name.unlink()
    manifest = read_manifest(output_dir)
    _log_counts(manifest, output_dir)
    return manifest


def _settings(config: CorpusConfig, sources: list[Source], tokenizer: "PreTrainedTokenizerFast") -> dict[str, Any]:
    """Returns all that decides what the parts hold; equal settings make equal parts."""
    is_english = {source.options.language for source in sources} == {"en"}
    is_nupunkt = config.sentence_splitter == "nupunkt" or (config.sentence_splitter == "auto" and is_english)
    asked = (
        "text_column", "title_column", "hub_config", "hub_split", "language", "sampling_exponent", "deduplicate",
        "text_passages_only", "max_documents",
    )  # fmt: skip
    return {
        "format_version": FORMAT_VERSION,
        "sources": source_identities(sources),
        "sources_with": [vars(options) for options in config.sources] or None,
        "tokenizer_fingerprint": tokenizer_fingerprint(tokenizer),
        **{name: getattr(config, name) for name in asked},
        "rules_version": RULES_VERSION,
        "sentence_splitter": "nupunkt" if is_nupunkt else config.sentence_splitter,
        "sentence_splitter_version": None
        if config.sentence_splitter == "lines"
        else importlib.metadata.version("nupunkt" if is_nupunkt else "sentencex"),
        "part_characters": documents.PART_CHARACTERS,
    }


def _finished(output_dir: Path, settings: dict[str, Any], overwrite: bool) -> dict[str, Any] | None:
    """Returns the manifest of a corpus that is there already, None where one is to be prepared."""
    if process.is_free_folder(output_dir):
        return None
    if not (output_dir / MANIFEST).is_file():
        raise UserError(f"--output_dir {output_dir} exists and is not a prepared corpus; choose another folder")
    if overwrite:
        return None
    _require_equal(settings, read_manifest(output_dir)["settings"], output_dir)
    return PreparedCorpus.load(output_dir).manifest


def _require_equal(settings: dict[str, Any], found: dict[str, Any], folder: Path) -> None:
    for name in {**settings, **found}:
        value = settings.get(name)
        if found.get(name) != value:
            is_input = name in ("sources", "sources_with")
            what = "from other input" if is_input else f"with {name} {found.get(name)}, not {value}"
            raise UserError(f"{folder} was prepared {what}; choose another --output_dir or give --overwrite_output_dir")


def _open_folder(folder: Path, settings: dict[str, Any], overwrite: bool) -> None:
    """Accepts the folder of an interrupted preparation, or empties it for a new one."""
    if (folder / SETTINGS_FILE).is_file():
        found = read_json_object(folder / SETTINGS_FILE)
        if found == settings:
            return
        if not overwrite:
            _require_equal(settings, found, folder)
        for path in folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    elif any(folder.iterdir()):
        raise UserError(f"{folder} is not a corpus in preparation; remove it or choose another --output_dir")
    write_json(folder / SETTINGS_FILE, settings)


def _write_parts(
    config: CorpusConfig,
    sources: list[Source],
    duplicates: DuplicateFilter,
    tokenizer: "PreTrainedTokenizerFast",
    folder: Path,
    settings: dict[str, Any],
) -> None:
    """Writes the unfinished parts.

    Raises:
        UserError: a file of the input has changed meanwhile.
    """
    done = {number for number, _ in _finished_parts(folder)}
    if done:
        logger.info("Continuing %s: finished parts: %d.", folder, len(done))
    wanted = ((part, block) for part, block in documents.read_blocks(config, sources, duplicates) if part not in done)
    json = tokenizer.backend_tokenizer.to_str()
    tokenizing = TokenizeSettings(json, config.text_passages_only, config.sentence_splitter)
    blocks = tokenize_blocks(wanted, tokenizing, config.num_proc)
    for number, of_part in groupby(blocks, key=lambda pair: pair[0]):
        _write_part(folder, number, [block for _, block in of_part])
    if source_identities(sources) != settings["sources"]:
        raise UserError(
            "an input file has changed while it was prepared, so parts of two versions would be mixed; prepare it "
            "again with --overwrite_output_dir"
        )


def _write_part(folder: Path, number: int, blocks: list[Block]) -> None:
    import pyarrow as pa

    tokens = np.concatenate([block.tokens for block in blocks])
    sentence_lengths = np.concatenate([block.sentence_lengths for block in blocks])
    document_sentences = np.concatenate([block.document_sentences for block in blocks])
    keys = np.concatenate([block.document_keys for block in blocks])
    sentence_offsets = row_starts(document_sentences)
    token_offsets = row_starts(sentence_lengths)[sentence_offsets]
    batch = pa.record_batch(
        [
            pa.ListArray.from_arrays(pa.array(token_offsets, pa.int32()), pa.array(tokens)),
            pa.ListArray.from_arrays(pa.array(sentence_offsets, pa.int32()), pa.array(sentence_lengths)),
            pa.array(keys),
        ],
        schema=_features(tokens.dtype).arrow_schema,
    )
    name = f"part-{number:05d}.arrow"
    with atomic_file(folder / name, binary=True) as file, pa.ipc.new_stream(file, batch.schema) as writer:
        writer.write_batch(batch)
    counts: Counter[str] = Counter()
    for block in blocks:
        counts.update(block.counts)
    part = {
        "file": name,
        "sha256": file_digest(folder / name),
        "token_dtype": str(tokens.dtype),
        "counts": counts,
    }
    write_json(folder / f"part-{number:05d}.json", part)


def _finished_parts(folder: Path) -> list[tuple[int, dict[str, Any]]]:
    """Returns number and counts of each finished part; one whose file has changed since is not finished."""
    found = []
    for path in sorted(folder.glob("part-*.json")):
        part = read_json_object(path)
        file = folder / part["file"]
        if file.is_file() and file_digest(file) == part["sha256"]:
            found.append((int(path.stem.removeprefix("part-")), part))
    return found


def _join_parts(
    config: CorpusConfig,
    folder: Path,
    duplicates: DuplicateFilter,
    tokenizer: "PreTrainedTokenizerFast",
    settings: dict[str, Any],
) -> None:
    """Makes one corpus of the finished parts of a folder: index arrays, tokenizer, `datasets` files, last the manifest.

    Raises:
        UserError: no part holds a document; the folder is removed.
    """
    parts = [part for _, part in _finished_parts(folder)]
    counts: Counter[str] = Counter()
    for part in parts:
        counts.update(part["counts"])
    counts.update(duplicates.counts)
    if not counts["documents"]:
        shutil.rmtree(folder)
        dropped = f"; none of {counts['documents_read']} documents is kept; --text_passages_only false keeps all lines"
        names = ", ".join(source[0] for source in settings["sources"])
        raise UserError(f"the corpus is empty: no text in {names}{dropped if counts['documents_read'] else ''}")
    _write_index(folder, parts)
    _write_datasets_files(folder, parts)
    save_tokenizer(tokenizer, folder / "tokenizer")
    manifest = {
        "format_version": FORMAT_VERSION,
        "tokenizer_fingerprint": settings["tokenizer_fingerprint"],
        "vocab_size": len(tokenizer),
        "token_dtype": parts[0]["token_dtype"],
        "special_ids": {name: getattr(tokenizer, f"{name}_token_id") for name in ("pad", "unk", "cls", "sep", "mask")},
        "counts": {
            name: value for name, value in sorted(counts.items()) if not name.startswith(("dropped_", "source_"))
        },
        "sources": [
            {
                "input": options.input,
                "documents": counts[f"source_{number}_documents"],
                "tokens": counts[f"source_{number}_tokens"],
                "share": round(counts[f"source_{number}_tokens"] / counts["tokens"], 4),
            }
            for number, options in enumerate(config.text_sources)
        ],
        "dropped_lines": {rule: counts[f"dropped_{rule}"] for rule in RULES},
        "settings": settings,
        "versions": {
            name: importlib.metadata.version(name) for name in ("nupunkt", "tokenizers", "transformers", "pyarrow")
        },
        "parts": parts,
    }
    left_out = [folder / MANIFEST, *_only_while_preparing(folder)]
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path not in left_out)
    digests = {part["file"]: part["sha256"] for part in parts}
    manifest["sha256"] = {
        path.relative_to(folder).as_posix(): digests.get(path.name) or file_digest(path) for path in files
    }
    manifest["manifest_sha256"] = manifest_digest(manifest)
    write_json(folder / MANIFEST, manifest)


def _only_while_preparing(folder: Path) -> list[Path]:
    return [*folder.glob("part-*.json"), *folder.glob(SETTINGS_FILE), *folder.glob(f"{UNFINISHED[0]}*")]


def _write_index(folder: Path, parts: list[dict[str, Any]]) -> None:
    """Writes the index arrays through memory maps, part by part, so that memory stays flat."""
    documents = sum(part["counts"]["documents"] for part in parts)
    sentences = sum(part["counts"]["sentences"] for part in parts)
    document_starts = create_array(folder / "document_starts.npy", np.int64, documents + 1)
    sentence_starts = create_array(folder / "sentence_starts.npy", np.int64, sentences + 1)
    document_sentences = create_array(folder / "document_sentences.npy", np.int64, documents + 1)
    keys = create_array(folder / "document_keys.npy", np.uint64, documents)
    document = sentence = token = 0
    for lengths, counts, part_keys in _read_parts(folder, parts):
        starts = token + row_starts(lengths)
        sentence_offsets = row_starts(counts)
        sentence_starts[sentence : sentence + len(starts)] = starts
        document_starts[document : document + len(counts) + 1] = starts[sentence_offsets]
        document_sentences[document : document + len(counts) + 1] = sentence + sentence_offsets
        keys[document : document + len(counts)] = part_keys
        document, sentence, token = document + len(counts), sentence + len(lengths), int(starts[-1])
    for array in (document_starts, sentence_starts, document_sentences, keys):
        array.flush()


def _read_parts(
    folder: Path, parts: list[dict[str, Any]]
) -> Iterator[tuple[npt.NDArray[np.int32], npt.NDArray[np.int64], npt.NDArray[np.uint64]]]:
    """Yields (sentence lengths, sentences of each document, keys) of each part."""
    import pyarrow as pa

    for part in parts:
        with pa.memory_map(str(folder / part["file"])) as file, pa.ipc.open_stream(file) as reader:
            batch = reader.read_next_batch()
            lengths = batch.column("sentence_lengths")
            counts = np.diff(lengths.offsets.to_numpy()).astype(np.int64)
            yield lengths.values.to_numpy(), counts, batch.column("key").to_numpy()


def _write_datasets_files(folder: Path, parts: list[dict[str, Any]]) -> None:
    """Writes the two files with which `datasets.load_from_disk` opens the folder without a copy of the parts."""
    from datasets import DatasetInfo

    DatasetInfo(features=_features(np.dtype(parts[0]["token_dtype"]))).write_to_directory(str(folder))
    state: dict[str, Any] = {
        "_data_files": [{"filename": part["file"]} for part in parts],
        "_fingerprint": "bert_repro_corpus",
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": None,
    }
    write_json(folder / "state.json", state)


def _features(dtype: np.dtype[Any]) -> Any:
    from datasets import Features, Sequence, Value

    return Features(
        {"input_ids": Sequence(Value(str(dtype))), "sentence_lengths": Sequence(Value("int32")), "key": Value("uint64")}
    )


def _log_counts(manifest: dict[str, Any], output_dir: Path) -> None:
    counts, dropped = manifest["counts"], manifest["dropped_lines"]
    numbers = ", ".join(f"{counts[name]} {name}" for name in ("sentences", "tokens", "words"))
    rules = ", ".join(f"{rule} {lines}" for rule, lines in dropped.items() if lines) or "none"
    text = "Corpus %s: %d of %d documents, %s; lines dropped (--text_passages_only false keeps all): %s."
    report = logger.info if 2 * counts["documents"] >= counts["documents_read"] else logger.warning
    report(text, output_dir, counts["documents"], counts["documents_read"], numbers, rules)
    if counts["documents"] < FEW_DOCUMENTS:
        logger.warning("Only %d documents, some to be held out: in .txt a blank line ends one.", counts["documents"])
    if counts["sentences"] < FEW_SENTENCES * counts["documents"]:
        logger.warning(
            "Documents have %.1f sentences on average, few for next sentence prediction: give longer texts (in .txt a "
            "blank line ends a document), or keep all lines with --text_passages_only false.",
            counts["sentences"] / counts["documents"],
        )
