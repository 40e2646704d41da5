"""Reads a prepared corpus through memory maps; pre-training draws its pairs from it.

The folder is a `datasets` folder (`load_from_disk` opens it, one row per document) with index arrays next to it:

    part-00000.arrow ...      rows: input_ids, sentence_lengths (tokens), key
    dataset_info.json  state.json
    document_starts.npy       int64 [D+1]  first token of each document, counted over the complete corpus
    sentence_starts.npy       int64 [N+1]  first token of each sentence, counted the same way
    document_sentences.npy    int64 [D+1]  first sentence of each document
    document_keys.npy         uint64 [D]   hash of each document's text
    manifest.json             settings, sources, counts, versions, SHA-256 of all files and of itself
    tokenizer/

D documents, N sentences. A part is one Arrow record batch, so its tokens are one array that needs no copy.
"""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from bert_repro.errors import UserError
from bert_repro.utils.arrays import Int64Array
from bert_repro.utils.files import file_digest, json_digest
from bert_repro.utils.process import is_local_main_process
from bert_repro.utils.randomness import Stream, draw, fraction
from bert_repro.utils.readers import read_json_object

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
INDEX_ARRAYS = ("document_starts", "sentence_starts", "document_sentences", "document_keys")

# Names the draws that choose held-out documents among all other draws of the package.

TokenArray = npt.NDArray[np.uint16] | npt.NDArray[np.int32]


def token_dtype(vocab_size: int) -> npt.DTypeLike:
    """Returns the smallest type for token ids: uint16 when the vocabulary fits, else int32."""
    return np.uint16 if vocab_size <= 1 << 16 else np.int32


def read_manifest(folder: Path) -> dict[str, Any]:
    """Returns the manifest of a prepared corpus.

    Raises:
        UserError: the folder holds none, or one of another format version.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise UserError(f"{folder}: not a prepared corpus ({MANIFEST} is missing); run prepare_corpus first")
    manifest = read_json_object(path, damaged="prepare the corpus again")
    if manifest.get("manifest_sha256") != manifest_digest(manifest) or manifest["format_version"] != FORMAT_VERSION:
        raise UserError(f"{path}: is damaged or of another version; prepare the corpus again")
    return manifest


def manifest_digest(manifest: dict[str, Any]) -> str:
    """Returns the SHA-256 of all entries of a manifest but that of this digest."""
    return json_digest({name: value for name, value in manifest.items() if name != "manifest_sha256"})


@dataclass(frozen=True)
class Block:
    """Tokenized documents, D of them with N sentences and T tokens.

    Args:
        tokens: [T] token ids.
        sentence_lengths: int32 [N], in tokens, none of them 0.
        document_sentences: int32 [D], sentences of each document.
        document_keys: uint64 [D], hash of each document's sentences.
        counts: what was read, kept and dropped; see the manifest.
    """

    tokens: TokenArray
    sentence_lengths: npt.NDArray[np.int32]
    document_sentences: npt.NDArray[np.int32]
    document_keys: npt.NDArray[np.uint64]
    counts: Counter[str]


@dataclass
class PreparedCorpus:
    """A prepared corpus. Cheap to open and to pickle: a copy in another process maps the same files again.

    Args:
        folder: its folder.
        manifest: as read from `manifest.json`.
        document_starts: int64 [D+1], in tokens.
        sentence_starts: int64 [N+1], in tokens.
        document_sentences: int64 [D+1], in sentences.
        document_keys: uint64 [D].
    """

    folder: Path
    manifest: dict[str, Any]
    document_starts: Int64Array
    sentence_starts: Int64Array
    document_sentences: Int64Array
    document_keys: npt.NDArray[np.uint64]
    _part_starts: Int64Array = field(repr=False)
    _parts: list[TokenArray] = field(repr=False)

    @classmethod
    def load(cls, folder: str | Path) -> "PreparedCorpus":
        """Opens a prepared corpus and compares all its files with the digests of its manifest, once on each machine.

        Raises:
            UserError: the folder is not a prepared corpus, or a file is missing or unlike the manifest.
        """
        folder = Path(folder)
        if is_local_main_process():
            for name, digest in read_manifest(folder)["sha256"].items():
                if not (folder / name).is_file() or file_digest(folder / name) != digest:
                    raise UserError(f"corpus {folder} is damaged: {name} is missing or has changed; prepare it again")
        return cls._open(folder)

    @classmethod
    def _open(cls, folder: str | Path) -> "PreparedCorpus":
        folder = Path(folder)
        manifest = read_manifest(folder)
        arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in INDEX_ARRAYS}
        parts = [_map_tokens(folder / part["file"]) for part in manifest["parts"]]
        part_starts = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
        return cls(folder=folder, manifest=manifest, **arrays, _part_starts=part_starts, _parts=parts)

    def __reduce__(self) -> tuple[Any, ...]:
        return PreparedCorpus._open, (self.folder,)

    @property
    def num_documents(self) -> int:
        """Number of documents, D."""
        return len(self.document_keys)

    @property
    def num_tokens(self) -> int:
        """Tokens of the complete corpus, without special tokens."""
        return int(self.document_starts[-1])

    @property
    def content_digest(self) -> str:
        """SHA-256 of all tokens and boundaries."""
        return json_digest([part["sha256"] for part in self.manifest["parts"]])

    def gather(self, starts: npt.ArrayLike, lengths: npt.ArrayLike) -> TokenArray:
        """Copies slices of tokens, one after the other.

        Args:
            starts: [n] first token of each slice, counted over the complete corpus.
            lengths: [n] tokens of each slice. A slice must not leave its document.

        Returns:
            [sum of lengths] token ids, in the type they are stored in.
        """
        starts, lengths = np.asarray(starts, dtype=np.int64), np.asarray(lengths, dtype=np.int64)
        if not len(starts):
            return np.empty(0, dtype=self.manifest["token_dtype"])
        part = np.searchsorted(self._part_starts, starts, side="right") - 1
        begins = starts - self._part_starts[part]
        ends = begins + lengths
        parts = self._parts
        triples = zip(part.tolist(), begins.tolist(), ends.tolist(), strict=True)
        return np.concatenate([parts[number][begin:end] for number, begin, end in triples])

    def token_counts(self) -> Int64Array:
        """Returns how often each token occurs, int64 [V]; reads all tokens once."""
        size = self.manifest["vocab_size"]
        counts = np.zeros(size, dtype=np.int64)
        for part in self._parts:
            counts += np.bincount(part, minlength=size)
        return counts

    def split(self, heldout_fraction: float, *, at_least: int = 1) -> tuple[Int64Array, Int64Array]:
        """Divides the documents into training and held-out ones, by their text alone.

        A document's side depends on the hash of its text and the fraction: copies of a text are never on both sides,
        and other documents, their order, or the tokenizer change nothing. When chance holds out too few, those with the
        lowest draws are.

        Args:
            heldout_fraction: share of documents to hold out, between 0 and 1.
            at_least: documents that each side needs; next sentence prediction draws from two.

        Returns:
            Ids of training documents and of held-out documents, ascending.

        Raises:
            UserError: one side has too few documents.
        """
        draws = fraction(draw(Stream.HELDOUT_DOCUMENTS, np.asarray(self.document_keys)))
        lowest = np.partition(draws, min(at_least, len(draws)) - 1)[: min(at_least, len(draws))]
        heldout = (draws < heldout_fraction) | (draws <= lowest.max())
        if (~heldout).sum() < at_least or heldout.sum() < at_least:
            raise UserError(
                f"corpus {self.folder} has {self.num_documents} document(s), too few to hold some out with"
                f" heldout_fraction={heldout_fraction} (each side needs {at_least}); give more, different documents"
            )
        return np.flatnonzero(~heldout), np.flatnonzero(heldout)


def _map_tokens(path: Path) -> TokenArray:
    """Returns all tokens of a part as one array over the mapped file."""
    import pyarrow as pa

    with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as reader:
        batch = reader.read_next_batch()
    return cast(TokenArray, batch.column("input_ids").values.to_numpy(zero_copy_only=True))
