"""Reads a prepared corpus through memory maps; pre-training draws its pairs from it.

The folder is a `datasets` folder (`load_from_disk` opens it, one row per document) with index arrays beside it:

    part-00000.arrow ...      rows: input_ids, sentence_lengths (tokens), key
    dataset_info.json  state.json
    document_starts.npy       int64 [D+1]  first token of each document, counted over the complete corpus
    sentence_starts.npy       int64 [N+1]  first token of each sentence, counted the same way
    document_sentences.npy    int64 [D+1]  first sentence of each document
    document_keys.npy         uint64 [D]   hash of each document's text
    manifest.json             settings, sources, counts, versions, sizes and SHA-256 of all files and of itself
    tokenizer/

D documents, N sentences. A part is one Arrow record batch, so its tokens are one array that needs no copy.

SHA-256 of these files are remembered on this machine, bound to size, inode, time of modification and time of change of
a file; the last of these cannot be set back, so a file written again, even with as many bytes, is read again.
"""

import logging
import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bert_repro.errors import UserError
from bert_repro.utils.digests import json_digest, known_digests
from bert_repro.utils.process import is_local_main_process
from bert_repro.utils.ragged import Int64Array
from bert_repro.utils.randomness import draw, fraction
from bert_repro.utils.readers import read_json

logger = logging.getLogger("bert_repro")

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
INDEX_ARRAYS = ("document_starts", "sentence_starts", "document_sentences", "document_keys")

# Names the draws that choose held-out documents among all other draws of the package.
_HELDOUT_DRAW = 0x48454C44

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
    manifest = read_json(path)
    if not isinstance(manifest, dict) or not {"format_version", "files", "parts", "counts"} <= set(manifest):
        raise UserError(f"{path}: is damaged or not the manifest of a corpus; prepare the corpus again")
    if manifest["format_version"] != FORMAT_VERSION:
        raise UserError(
            f"{path}: format_version {manifest['format_version']}, this package reads {FORMAT_VERSION}; prepare the "
            "corpus again"
        )
    has_digests = {"sha256", "manifest_sha256"} & set(manifest)  # those of earlier versions have none
    if has_digests and manifest.get("manifest_sha256") != manifest_digest(manifest):
        raise UserError(f"{path}: is damaged (its digest does not match); prepare the corpus again")
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
        """Opens a prepared corpus and compares all its files with the digests of its manifest.

        Once on each machine; files that have not changed since are not read again. Copies in other processes are
        opened without this.

        Raises:
            UserError: the folder is not a prepared corpus, or a file is missing or unlike the manifest.
        """
        manifest = read_manifest(Path(folder))
        if "sha256" not in manifest:
            logger.warning(
                "Corpus %s has no digests (an earlier version prepared it): only the sizes of its files are checked. "
                "Prepare it again to have all damage found.",
                folder,
            )
        elif is_local_main_process():
            _require_sizes(Path(folder), manifest)
            found = known_digests(Path(folder), manifest["sha256"])
            for name, digest in manifest["sha256"].items():
                if found[name] != digest:
                    raise _damage(Path(folder), f"the content of {name} has changed")
        return cls._open(folder)

    @classmethod
    def _open(cls, folder: str | Path) -> "PreparedCorpus":
        folder = Path(folder)
        manifest = read_manifest(folder)
        _require_sizes(folder, manifest)
        try:
            arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in INDEX_ARRAYS}
        except ValueError as error:
            raise _damage(folder, " ".join(str(error).split())) from error
        parts = [_map_tokens(folder / part["file"]) for part in manifest["parts"]]
        part_starts = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
        corpus = cls(folder=folder, manifest=manifest, **arrays, _part_starts=part_starts, _parts=parts)
        corpus._check()
        return corpus

    def __reduce__(self) -> tuple[Any, ...]:
        return PreparedCorpus._open, (self.folder,)

    @property
    def num_documents(self) -> int:
        """Number of documents, D."""
        return len(self.document_keys)

    @property
    def num_sentences(self) -> int:
        """Number of sentences, N."""
        return len(self.sentence_starts) - 1

    @property
    def num_tokens(self) -> int:
        """Tokens of the complete corpus, without special tokens."""
        return int(self.document_starts[-1])

    @property
    def token_dtype(self) -> np.dtype[Any]:
        """Type of the token ids: uint16 or int32."""
        dtype: np.dtype[Any] = np.dtype(self.manifest["token_dtype"])
        return dtype

    @property
    def content_digest(self) -> str | None:
        """SHA-256 of all tokens and boundaries; None where an earlier version prepared the corpus."""
        parts = [part.get("sha256") for part in self.manifest["parts"]]
        return json_digest(parts) if all(parts) else None

    def gather(self, starts: npt.ArrayLike, lengths: npt.ArrayLike) -> TokenArray:
        """Copies slices of tokens, one after the other.

        Args:
            starts: [n] first token of each slice, counted over the complete corpus.
            lengths: [n] tokens of each slice. A slice must not leave its document.

        Returns:
            [sum of lengths] token ids, in the type they are stored in.

        Raises:
            UserError: a file has become shorter since it was opened; reading it would end the process.
        """
        starts, lengths = np.asarray(starts, dtype=np.int64), np.asarray(lengths, dtype=np.int64)
        if not len(starts):
            return np.empty(0, dtype=self.token_dtype)
        part = np.searchsorted(self._part_starts, starts, side="right") - 1
        begins = starts - self._part_starts[part]
        ends = begins + lengths
        parts = self._parts
        for number in np.unique(part).tolist():
            self._require_size(number)
        triples = zip(part.tolist(), begins.tolist(), ends.tolist(), strict=True)
        tokens: TokenArray = np.concatenate([parts[number][begin:end] for number, begin, end in triples])
        return tokens

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
            UserError: the fraction is out of range, or one side has too few documents.
        """
        if not 0.0 < heldout_fraction < 1.0:
            raise UserError(
                f"heldout_fraction={heldout_fraction} is out of range; choose it between 0 and 1, exclusive"
            )
        draws = fraction(draw(_HELDOUT_DRAW, np.asarray(self.document_keys)))
        lowest = np.partition(draws, min(at_least, len(draws)) - 1)[: min(at_least, len(draws))]
        heldout = (draws < heldout_fraction) | (draws <= lowest.max())
        if (~heldout).sum() < at_least or heldout.sum() < at_least:
            raise UserError(
                f"corpus {self.folder} has {self.num_documents} document(s), too few to hold some out with"
                f" heldout_fraction={heldout_fraction} (each side needs {at_least}); give more, different documents"
            )
        return np.flatnonzero(~heldout), np.flatnonzero(heldout)

    def _require_size(self, number: int) -> None:
        part = self.manifest["parts"][number]
        if os.path.getsize(self.folder / part["file"]) < part["size"]:
            raise _damage(self.folder, f"{part['file']} was truncated while in use")

    def _check(self) -> None:
        documents, sentences = self.num_documents, self.num_sentences
        agree = (
            len(self.document_starts) == len(self.document_sentences) == documents + 1
            and documents == self.manifest["counts"]["documents"]
            and sentences == self.manifest["counts"]["sentences"] == int(self.document_sentences[-1])
            and int(self.document_starts[-1]) == int(self.sentence_starts[-1]) == int(self._part_starts[-1])
            and self.num_tokens == self.manifest["counts"]["tokens"]
        )
        if not agree:
            raise _damage(self.folder, "its index arrays disagree")


def _require_sizes(folder: Path, manifest: dict[str, Any]) -> None:
    for name, size in manifest["files"].items():
        found = (folder / name).stat().st_size if (folder / name).is_file() else None
        if found != size:
            raise _damage(folder, f"{name} " + ("is missing" if found is None else f"has {found} bytes, not {size}"))


def _damage(folder: Path, what: str) -> UserError:
    return UserError(f"corpus {folder} is damaged: {what}; prepare it again")


def _map_tokens(path: Path) -> TokenArray:
    """Returns all tokens of a part as one array over the mapped file."""
    import pyarrow as pa

    try:
        with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as reader:
            batch = reader.read_next_batch()
    except (pa.ArrowInvalid, OSError, StopIteration) as error:
        raise UserError(f"{path} is damaged ({' '.join(str(error).split())}); prepare the corpus again") from error
    tokens: TokenArray = batch.column("input_ids").values.to_numpy(zero_copy_only=True)
    return tokens


def require_equal(settings: dict[str, Any], found: dict[str, Any], what: str, fix: str) -> None:
    """Raises `UserError` that names the first setting with which `what` was prepared differently."""
    for name, value in settings.items():
        if name == "sources" and not _same_sources(value, found.get(name)):
            raise UserError(f"{what} was prepared from other input: {_first_difference(value, found.get(name))}; {fix}")
        if name != "sources" and found.get(name) != value:
            given = f"({found.get(name)} there, {value} given)"
            raise UserError(f"{what} was prepared with other settings: {name} differs {given}; {fix}")


def same_settings(settings: dict[str, Any], found: dict[str, Any] | None) -> bool:
    """Returns whether a preparation with these settings would give what was prepared with `found`."""
    return found is not None and all(
        _same_sources(value, found.get(name)) if name == "sources" else found.get(name) == value
        for name, value in settings.items()
    )


def _same_sources(given: list[list[Any]], found: Any) -> bool:
    """Compares name, size, revision and SHA-256; the last is not there in what an earlier version prepared."""
    if not isinstance(found, list) or len(given) != len(found):
        return False
    return all(source[: len(earlier)] == earlier for source, earlier in zip(given, found, strict=True))


def _first_difference(given: list[list[Any]], found: Any) -> str:
    for source, earlier in zip(given, found if isinstance(found, list) else [], strict=False):
        if source[: len(earlier)] != earlier:
            return f"{source[0]} in place of {earlier[0]}" if source[0] != earlier[0] else f"{source[0]} has changed"
    return f"{len(given)} files given, {len(found) if isinstance(found, list) else 0} there"
