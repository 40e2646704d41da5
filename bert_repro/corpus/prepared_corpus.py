"""Reads a prepared corpus through memory maps; pre-training draws its pairs from it.

The folder is a `datasets` folder (`load_from_disk` opens it, one row per document) with index arrays next to it:

    part-00000.arrow ...      rows: input_ids, sentence_lengths (tokens), key
    dataset_info.json  state.json
    document_starts.npy       int64 [D+1]  first token of each document, counted over the complete corpus
    sentence_starts.npy       int64 [N+1]  first token of each sentence, counted the same way
    document_sentences.npy    int64 [D+1]  first sentence of each document
    document_keys.npy         uint64 [D]   hash of each document's text
    token_counts.npy          int64 [V]    how often each token occurs; older corpora do not have it
    manifest.json             settings, sources, counts, versions, SHA-256 of all files and of itself
    tokenizer/

D documents, N sentences, V tokens in the vocabulary. A part is one Arrow record batch, so its tokens are one array that
needs no copy.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, cast

import numpy as np
import numpy.typing as npt

from bert_repro.errors import UserError, flag
from bert_repro.utils.arrays import Int64Array
from bert_repro.utils.files import MANIFEST as MANIFEST
from bert_repro.utils.files import file_digest, json_digest
from bert_repro.utils.process import is_local_main_process
from bert_repro.utils.randomness import Stream, UInt64Array, draw, fraction
from bert_repro.utils.readers import first_line, quoted, read_json_object
from bert_repro.utils.schema import LARGEST_VOCABULARY, Limits, conform

FORMAT_VERSION = 1
INDEX_ARRAYS = ("document_starts", "sentence_starts", "document_sentences", "document_keys")
TOKEN_COUNTS = "token_counts.npy"

TokenArray = npt.NDArray[np.uint16] | npt.NDArray[np.int32]

_PREPARE_AGAIN = "Prepare the corpus again."


class PartEntry(TypedDict, total=False):
    """A part in a manifest."""

    file: str
    sha256: str
    token_dtype: str
    counts: dict[str, int]


class Manifest(TypedDict, total=False):
    """The entries that every manifest has, with their types. A manifest can come from another machine."""

    format_version: int
    tokenizer_fingerprint: str
    vocab_size: Annotated[int, Limits(1, LARGEST_VOCABULARY)]
    token_dtype: Literal["uint16", "int32"]
    special_ids: dict[str, Annotated[int, Limits(0, LARGEST_VOCABULARY)]]
    counts: dict[str, int]
    sources: list[dict[str, Any]]
    dropped_lines: dict[str, int]
    settings: dict[str, Any]
    versions: dict[str, str | None]
    parts: list[PartEntry]
    sha256: dict[str, str]


def token_dtype(vocab_size: int) -> npt.DTypeLike:
    """Returns the smallest type for token ids: uint16 if the vocabulary fits, else int32."""
    return np.uint16 if vocab_size <= 1 << 16 else np.int32


# --- Manifest ---------------------------------------------------------------------------------------------------------


def read_manifest(folder: Path) -> dict[str, Any]:
    """Returns the manifest of a prepared corpus, with all entries and types checked.

    Raises:
        UserError: the folder has no manifest, or one that is damaged, of another version or refers to other folders.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise UserError(f"{folder} is not a prepared corpus: {MANIFEST} is missing. Run prepare_corpus first.")
    # The checksum finds damage; the other checks are for manifests that somebody else wrote.
    manifest = read_json_object(path, damaged=_PREPARE_AGAIN)
    if manifest.get("manifest_sha256") != manifest_digest(manifest):
        raise UserError(f"{path} is damaged: it does not match its own SHA-256. {_PREPARE_AGAIN}")
    if manifest.get("format_version") != FORMAT_VERSION:
        raise UserError(
            f"{path} has the format version {quoted(manifest.get('format_version'))}, not {FORMAT_VERSION}. "
            f"{_PREPARE_AGAIN}"
        )
    entries: dict[str, Any] = conform(manifest, Manifest, str(path), _PREPARE_AGAIN)
    for name in Manifest.__annotations__:
        if name not in entries:
            raise UserError(f"{path}: {name} is missing. {_PREPARE_AGAIN}")
    if entries["token_dtype"] != str(np.dtype(token_dtype(entries["vocab_size"]))):
        raise UserError(f"{path}: token_dtype does not fit vocab_size {entries['vocab_size']}. {_PREPARE_AGAIN}")
    _check_file_names(entries, path)
    return entries


def _check_file_names(manifest: dict[str, Any], path: Path) -> None:
    """Refuses files outside the folder of the corpus and parts without a checksum."""
    file_names = list(manifest["sha256"])
    for part in manifest["parts"]:
        if not {"file", "sha256"} <= part.keys():
            raise UserError(f"{path}: the entry of a part is {quoted(part)}. {_PREPARE_AGAIN}")
        file_names.append(part["file"])
    for name in file_names:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise UserError(f"{path}: {quoted(name)} is not a file in the folder of the corpus. {_PREPARE_AGAIN}")
        if name not in manifest["sha256"]:
            raise UserError(f"{path}: there is no SHA-256 of {quoted(name)}. {_PREPARE_AGAIN}")


def manifest_digest(manifest: dict[str, Any]) -> str:
    """Returns the SHA-256 of all entries of a manifest except this digest itself."""
    return json_digest({name: value for name, value in manifest.items() if name != "manifest_sha256"})


# --- Corpus -----------------------------------------------------------------------------------------------------------


@dataclass
class PreparedCorpus:
    """A prepared corpus. It is cheap to open and to pickle: a copy in another process maps the same files again.

    Args:
        folder: its folder.
        manifest: the content of `manifest.json`.
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
    document_keys: UInt64Array
    _part_starts: Int64Array = field(repr=False)
    _parts: list[TokenArray] = field(repr=False)

    @classmethod
    def load(cls, folder: str | Path) -> "PreparedCorpus":
        """Opens a prepared corpus and compares all its files with its manifest, once on each machine.

        Raises:
            UserError: the folder is not a prepared corpus, or a file is missing or does not match the manifest.
        """
        # Reading all files takes minutes for a large corpus, so one process of each machine does it.
        folder = Path(folder)
        if is_local_main_process():
            for name, digest in read_manifest(folder)["sha256"].items():
                if not (folder / name).is_file() or file_digest(folder / name) != digest:
                    raise UserError(
                        f"The corpus {folder} is damaged: {name} is missing or has changed. {_PREPARE_AGAIN}"
                    )
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
            [sum of lengths] token ids, in the type in which they are stored.
        """
        starts, lengths = np.asarray(starts, dtype=np.int64), np.asarray(lengths, dtype=np.int64)
        if not len(starts):
            return np.empty(0, dtype=self.manifest["token_dtype"])
        # Find the part of each slice, and its place in that part.
        part = np.searchsorted(self._part_starts, starts, side="right") - 1
        begins = starts - self._part_starts[part]
        ends = begins + lengths
        parts = self._parts
        # Plain integers index faster than numpy's; this line copies every token that pre-training reads.
        triples = zip(part.tolist(), begins.tolist(), ends.tolist(), strict=True)
        return np.concatenate([parts[number][begin:end] for number, begin, end in triples])

    def token_counts(self) -> Int64Array:
        """Returns how often each token occurs, int64 [V].

        Raises:
            UserError: the counts do not fit the corpus.
        """
        if TOKEN_COUNTS not in self.manifest["sha256"]:
            # The corpus was prepared by a version of this package that did not write them.
            return self._count_tokens()
        path = self.folder / TOKEN_COUNTS
        try:
            # A mapped file is compared with its header before memory is allocated.
            counts = np.load(path, mmap_mode="r")
        except (OSError, ValueError, EOFError) as error:
            raise UserError(f"{path} cannot be read: {first_line(error)}. {_PREPARE_AGAIN}") from error
        # The corpus can come from another machine, so a correct checksum does not mean correct counts.
        is_array = isinstance(counts, np.ndarray) and counts.dtype == np.int64
        has_all_tokens = is_array and counts.shape == (self.manifest["vocab_size"],)
        if not has_all_tokens or counts.min() < 0 or counts.sum() != self.num_tokens:
            raise UserError(
                f"{path} does not fit the corpus, which has {self.num_tokens} tokens of a vocabulary of "
                f"{self.manifest['vocab_size']}. {_PREPARE_AGAIN}"
            )
        return np.array(counts)

    def _count_tokens(self) -> Int64Array:
        """Counts the tokens by reading all of them once."""
        size = self.manifest["vocab_size"]
        counts = np.zeros(size, dtype=np.int64)
        # bincount copies its input to int64, so memory stays small only part by part.
        for part in self._parts:
            counts_of_part = np.bincount(part, minlength=size)
            if len(counts_of_part) > size:
                raise UserError(
                    f"The corpus {self.folder} has the token {len(counts_of_part) - 1}, but vocab_size {size} in its "
                    f"manifest. {_PREPARE_AGAIN}"
                )
            counts += counts_of_part
        return counts

    def split(self, heldout_fraction: float, *, at_least: int = 1) -> tuple[Int64Array, Int64Array]:
        """Divides the documents into training and held-out documents by their text alone.

        The side of a document depends on the hash of its text and on the fraction. Copies of a text are therefore never
        on both sides, and other documents, their order or the tokenizer change nothing. If chance holds out too few
        documents, those with the lowest draws are held out.

        Args:
            heldout_fraction: share of documents to hold out, between 0 and 1.
            at_least: documents that each side needs; next sentence prediction draws from two.

        Returns:
            Ids of the training documents and of the held-out documents, ascending.

        Raises:
            UserError: one side has too few documents.
        """
        # The draw of a document is a function of its text.
        draws = fraction(draw(Stream.HELDOUT_DOCUMENTS, np.asarray(self.document_keys)))
        # Small corpora: hold out at least as many documents as are needed.
        fewest = min(at_least, len(draws))
        lowest_draws = np.partition(draws, fewest - 1)[:fewest]
        is_heldout = (draws < heldout_fraction) | (draws <= lowest_draws.max())
        training, heldout = np.flatnonzero(~is_heldout), np.flatnonzero(is_heldout)
        if len(training) < at_least or len(heldout) < at_least:
            raise UserError(
                f"The corpus {self.folder} has {self.num_documents} document(s), too few to hold some out with "
                f"{flag('heldout_fraction', heldout_fraction)}: training and held-out data need at least {at_least} "
                "each. Add more, different documents.",
                setting="heldout_fraction",
            )
        return training, heldout


def _map_tokens(path: Path) -> TokenArray:
    """Returns all tokens of a part as one array over the mapped file."""
    import pyarrow as pa

    with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as reader:
        batch = reader.read_next_batch()
    return cast(TokenArray, batch.column("input_ids").values.to_numpy(zero_copy_only=True))
