"""Makes one part of a corpus from its plan and writes it; checks finished parts; reads them for joining.

A finished part is three files in the folder of the preparation. The last one is written last:

    part-00000.arrow   one record batch: input_ids, sentence_lengths (tokens) and key of each document
    part-00000.npy     how often each token occurs, int64; only for joining
    part-00000.json    counts, SHA-256 of the other files, and the digest of the plan
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypedDict, cast

import numpy as np
import numpy.typing as npt

from bert_repro.corpus.documents import Document, Source
from bert_repro.corpus.language_check import LanguageSigns
from bert_repro.corpus.plan import Part, read_part
from bert_repro.corpus.sentences import Block, BlockTokenizer, TokenizeSettings
from bert_repro.errors import UserError
from bert_repro.utils.arrays import Int64Array, row_starts
from bert_repro.utils.files import atomic_file, file_digest, write_json
from bert_repro.utils.randomness import UInt64Array
from bert_repro.utils.readers import read_json_object
from bert_repro.utils.tokenizer_losses import TokenizerLosses

BLOCK_CHARACTERS = 500_000
"""Documents are tokenized in blocks of this size, so that a part never exists as Python objects at once."""


class PartFacts(TypedDict):
    """What the manifest says about a part."""

    file: str
    sha256: str
    token_dtype: str
    counts: dict[str, int]


class FinishedPart(TypedDict):
    """The JSON object in part-00000.json. Losses and signs are shown at the end and are not part of the manifest."""

    plan: str
    part: PartFacts
    token_counts_sha256: str
    losses: dict[str, int]
    language: dict[str, dict[str, int]]


@dataclass(frozen=True)
class PartMaker:
    """Makes a part. It is sent to worker processes, so its folder is absolute.

    Args:
        folder: the folder of the preparation, with the plan.
        plan_digest: `Plan.digest`.
        passes: `Plan.passes`.
        sources: from `find_sources`.
        settings: what decides the tokens.
        schema: of the Arrow files, serialized. The package datasets, which makes it, takes seconds to import.
    """

    folder: Path
    plan_digest: str
    passes: tuple[float, ...]
    sources: tuple[Source, ...]
    settings: TokenizeSettings
    schema: bytes

    def __call__(self, part: Part) -> None:
        """Reads, cleans and tokenizes the documents of a part and writes its files."""
        # Read and tokenize block by block.
        tokenizer = _tokenizer(self.settings)
        documents = read_part(part, self.passes, self.sources, self.folder)
        blocks = [tokenizer(block) for block in _blocks(documents)]
        tokens = np.concatenate([block.tokens for block in blocks])
        counts: Counter[str] = Counter()
        losses, language = TokenizerLosses(), LanguageSigns()
        for block in blocks:
            counts.update(block.counts)
            losses += block.losses
            language.add(block.language)

        # Write the tokens first: a part counts as finished when its JSON file exists.
        path = arrow_path(self.folder, part)
        _write_arrow(path, self.schema, tokens, blocks)
        with atomic_file(_counts_path(self.folder, part), binary=True) as file:
            np.save(file, np.bincount(tokens).astype(np.int64))
        facts = PartFacts(file=path.name, sha256=file_digest(path), token_dtype=str(tokens.dtype), counts=dict(counts))
        content = FinishedPart(
            plan=self.plan_digest,
            part=facts,
            token_counts_sha256=file_digest(_counts_path(self.folder, part)),
            losses=asdict(losses),
            language=asdict(language),
        )
        write_json(_json_path(self.folder, part), content)


@lru_cache(maxsize=1)
def _tokenizer(settings: TokenizeSettings) -> BlockTokenizer:
    """Returns the tokenizer of this process. Loading it takes longer than many parts."""
    return BlockTokenizer(settings)


def _blocks(documents: Iterator[Document]) -> Iterator[list[Document]]:
    """Groups documents into blocks of about `BLOCK_CHARACTERS`."""
    block: list[Document] = []
    characters = 0
    for document in documents:
        block.append(document)
        characters += len(document.text)
        if characters >= BLOCK_CHARACTERS:
            yield block
            block, characters = [], 0
    if block:
        yield block


def _write_arrow(path: Path, schema: bytes, tokens: npt.NDArray[Any], blocks: list[Block]) -> None:
    import pyarrow as pa

    sentence_lengths = np.concatenate([block.sentence_lengths for block in blocks])
    document_sentences = np.concatenate([block.document_sentences for block in blocks])
    keys = np.concatenate([block.document_keys for block in blocks])
    # A list column is one flat array and the place at which each row starts in it.
    sentence_offsets = row_starts(document_sentences)
    token_offsets = row_starts(sentence_lengths)[sentence_offsets]
    batch = pa.record_batch(
        [
            pa.ListArray.from_arrays(pa.array(token_offsets, pa.int32()), pa.array(tokens)),
            pa.ListArray.from_arrays(pa.array(sentence_offsets, pa.int32()), pa.array(sentence_lengths)),
            pa.array(keys),
        ],
        schema=pa.ipc.read_schema(pa.py_buffer(schema)),
    )
    with atomic_file(path, binary=True) as file, pa.ipc.new_stream(file, batch.schema) as writer:
        writer.write_batch(batch)


def arrow_path(folder: Path, part: Part) -> Path:
    """Returns the file with the tokens of a part."""
    return folder / f"part-{part.number:05d}.arrow"


def read_token_counts(path: Path) -> Int64Array:
    """Returns how often each token occurs in a part, up to its largest token.

    Args:
        path: the Arrow file of the part; the counts are next to it.
    """
    counts: Int64Array = np.load(path.with_suffix(".npy"))
    return counts


def _counts_path(folder: Path, part: Part) -> Path:
    return arrow_path(folder, part).with_suffix(".npy")


def _json_path(folder: Path, part: Part) -> Path:
    return folder / f"part-{part.number:05d}.json"


def finished_part(folder: Path, part: Part, plan_digest: str) -> FinishedPart | None:
    """Returns what is known of a finished part, or None if it is missing, damaged or of another plan."""
    try:
        content = cast(FinishedPart, read_json_object(_json_path(folder, part)))
        # A part of another plan has other documents, although its file has the same name.
        facts = content["part"]
        is_planned = content["plan"] == plan_digest and facts["counts"].get("documents_read") == part.documents
        path = arrow_path(folder, part)
        if not is_planned or facts["file"] != path.name:
            return None
        # A part that an earlier version of this package made has no token counts, and is made again.
        has_counts = file_digest(_counts_path(folder, part)) == content["token_counts_sha256"]
        if has_counts and file_digest(path) == facts["sha256"]:
            return content
    except (UserError, OSError, KeyError, TypeError, AttributeError):
        # A file that is missing or damaged means that the part must be made again.
        return None
    return None


@dataclass(frozen=True)
class PartLengths:
    """The boundaries in a part with D documents and N sentences.

    Args:
        sentence_lengths: int32 [N], tokens.
        document_sentences: int64 [D], sentences.
        keys: uint64 [D], hash of each document's text.
    """

    sentence_lengths: npt.NDArray[np.int32]
    document_sentences: Int64Array
    keys: UInt64Array


def read_lengths(path: Path) -> PartLengths:
    """Returns the boundaries in a part, without reading its tokens."""
    import pyarrow as pa

    with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as reader:
        batch = reader.read_next_batch()
        lengths = batch.column("sentence_lengths")
        return PartLengths(
            sentence_lengths=lengths.values.to_numpy(),
            document_sentences=np.diff(lengths.offsets.to_numpy()).astype(np.int64),
            keys=batch.column("key").to_numpy(),
        )
