"""Makes one corpus of the finished parts: index arrays, files of `datasets`, the tokenizer, and last the manifest."""

import importlib.metadata
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bert_repro.configs import CorpusConfig, TextSource
from bert_repro.corpus.cleaning import RULES
from bert_repro.corpus.part_files import (
    FinishedPart,
    PartFacts,
    arrow_path,
    finished_part,
    read_lengths,
    read_token_counts,
)
from bert_repro.corpus.plan import Plan
from bert_repro.corpus.prepared_corpus import FORMAT_VERSION, INDEX_ARRAYS, MANIFEST, TOKEN_COUNTS, manifest_digest
from bert_repro.errors import UserError, flag
from bert_repro.models.loading import save_tokenizer
from bert_repro.utils.arrays import row_starts
from bert_repro.utils.files import atomic_file, create_array, file_digest, write_json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_SPECIAL_TOKENS = ("pad", "unk", "cls", "sep", "mask")
_PACKAGES = ("nupunkt", "tokenizers", "transformers", "pyarrow")


def join_parts(
    config: CorpusConfig,
    folder: Path,
    finished: Sequence[FinishedPart],
    plan: Plan,
    tokenizer: "PreTrainedTokenizerFast",
    settings: dict[str, Any],
) -> None:
    """Adds to a folder of finished parts what makes them a corpus.

    Args:
        config: names the sources in the manifest.
        folder: the folder of the preparation.
        finished: from `planned_parts`.
        plan: the plan of these parts.
        tokenizer: the tokenizer that made the parts.
        settings: what decides the parts, for the manifest.

    Raises:
        UserError: no part contains a document; the folder is then removed.
    """
    # Sum the counts of all parts, and add what was dropped before the parts were made.
    parts = [part["part"] for part in finished]
    counts: Counter[str] = Counter()
    for part in parts:
        counts.update(part["counts"])
    counts.update(plan.duplicates)
    if not counts["documents"]:
        shutil.rmtree(folder)
        raise _empty_corpus(settings, counts["documents_read"])

    # Everything but the manifest is written first, because the manifest has the checksums of all files.
    _write_index(folder, parts)
    _write_token_counts(folder, parts, len(tokenizer))
    _write_datasets_files(folder, parts)
    save_tokenizer(tokenizer, folder / "tokenizer")
    manifest = {
        "format_version": FORMAT_VERSION,
        "tokenizer_fingerprint": settings["tokenizer_fingerprint"],
        "vocab_size": len(tokenizer),
        "token_dtype": parts[0]["token_dtype"],
        "special_ids": {name: getattr(tokenizer, f"{name}_token_id") for name in _SPECIAL_TOKENS},
        "counts": _public_counts(counts),
        "sources": _source_counts(config.text_sources, counts),
        "dropped_lines": {rule: counts[f"dropped_{rule}"] for rule in RULES},
        "settings": settings,
        "versions": {name: importlib.metadata.version(name) for name in _PACKAGES},
        "parts": parts,
        "sha256": _digests(folder, parts),
    }
    # A folder with a manifest is a complete corpus.
    manifest["manifest_sha256"] = manifest_digest(manifest)
    write_json(folder / MANIFEST, manifest)


def planned_parts(folder: Path, plan: Plan) -> list[FinishedPart]:
    """Returns all parts of a plan.

    Raises:
        UserError: one is missing, damaged or of another plan. Without it documents would be lost.
    """
    finished = []
    for part in plan.parts:
        content = finished_part(folder, part, plan.digest)
        if content is None:
            raise UserError(
                f"{arrow_path(folder, part)}: part {part.number + 1} of {len(plan.parts)} is missing or does not "
                "match the plan, so documents would be lost. Another process may have changed the folder. "
                "Run the same command again; it makes the missing parts."
            )
        finished.append(content)
    return finished


def _empty_corpus(settings: dict[str, Any], documents_read: int) -> UserError:
    names = ", ".join(source[0] for source in settings["sources"])
    if not documents_read:
        return UserError(f"The corpus is empty: there is no text in {names}.", setting="input_files")
    return UserError(
        f"The corpus is empty: none of the {documents_read} documents in {names} contains running text. "
        f"{flag('text_passages_only', False)} keeps all lines.",
        setting="text_passages_only",
    )


def _public_counts(counts: Counter[str]) -> dict[str, int]:
    """Returns the counts without those that have entries of their own in the manifest."""
    other_entries = ("dropped_", "source_")
    return {name: value for name, value in sorted(counts.items()) if not name.startswith(other_entries)}


def _source_counts(sources: Sequence[TextSource], counts: Counter[str]) -> list[dict[str, Any]]:
    entries = []
    for origin, options in enumerate(sources):
        tokens = counts[f"source_{origin}_tokens"]
        entries.append(
            {
                "input": options.input,
                "documents": counts[f"source_{origin}_documents"],
                "tokens": tokens,
                "share": round(tokens / counts["tokens"], 4),
            }
        )
    return entries


def _digests(folder: Path, parts: Sequence[PartFacts]) -> dict[str, str]:
    """Returns the SHA-256 of all files of the corpus. Those of the parts are known."""
    digests = {part["file"]: part["sha256"] for part in parts}
    written_here = [folder / f"{name}.npy" for name in INDEX_ARRAYS]
    written_here += [folder / TOKEN_COUNTS, folder / "dataset_info.json", folder / "state.json"]
    written_here += [path for path in (folder / "tokenizer").rglob("*") if path.is_file()]
    for path in written_here:
        digests[path.relative_to(folder).as_posix()] = file_digest(path)
    return dict(sorted(digests.items()))


def _write_index(folder: Path, parts: Sequence[PartFacts]) -> None:
    """Writes the index arrays through memory maps, part by part, so that memory stays flat."""
    num_documents = sum(part["counts"]["documents"] for part in parts)
    num_sentences = sum(part["counts"]["sentences"] for part in parts)
    document_starts = create_array(folder / "document_starts.npy", np.int64, num_documents + 1)
    sentence_starts = create_array(folder / "sentence_starts.npy", np.int64, num_sentences + 1)
    document_sentences = create_array(folder / "document_sentences.npy", np.int64, num_documents + 1)
    document_keys = create_array(folder / "document_keys.npy", np.uint64, num_documents)

    # Each part writes one entry more than it has documents or sentences: the start of the next part's first one.
    document = sentence = token = 0
    for part in parts:
        lengths = read_lengths(folder / part["file"])
        next_document = document + len(lengths.document_sentences)
        next_sentence = sentence + len(lengths.sentence_lengths)
        # Boundaries in the part become boundaries in the corpus by adding what came before.
        starts = token + row_starts(lengths.sentence_lengths)
        sentence_offsets = row_starts(lengths.document_sentences)
        sentence_starts[sentence : next_sentence + 1] = starts
        document_starts[document : next_document + 1] = starts[sentence_offsets]
        document_sentences[document : next_document + 1] = sentence + sentence_offsets
        document_keys[document:next_document] = lengths.keys
        document, sentence, token = next_document, next_sentence, int(starts[-1])
    for array in (document_starts, sentence_starts, document_sentences, document_keys):
        array.flush()


def _write_token_counts(folder: Path, parts: Sequence[PartFacts], vocab_size: int) -> None:
    """Sums the token counts of the parts, so that a training does not read all tokens before its first step."""
    counts = np.zeros(vocab_size, np.int64)
    for part in parts:
        # A part's counts end with its largest token.
        counts_of_part = read_token_counts(folder / part["file"])
        counts[: len(counts_of_part)] += counts_of_part
    with atomic_file(folder / TOKEN_COUNTS, binary=True) as file:
        np.save(file, counts)


def corpus_features(dtype: npt.DTypeLike) -> Any:
    """Returns the columns of a corpus as `datasets.Features`.

    Args:
        dtype: type of the token ids.
    """
    from datasets import Features, Sequence, Value

    return Features(
        {
            "input_ids": Sequence(Value(str(np.dtype(dtype)))),
            "sentence_lengths": Sequence(Value("int32")),
            "key": Value("uint64"),
        }
    )


def _write_datasets_files(folder: Path, parts: Sequence[PartFacts]) -> None:
    """Writes the two files with which `datasets.load_from_disk` opens the folder without a copy of the parts."""
    from datasets import DatasetInfo

    # The keys of state.json are those that `Dataset.save_to_disk` writes.
    DatasetInfo(features=corpus_features(parts[0]["token_dtype"])).write_to_directory(str(folder))
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
