"""Reads each source once and records what planning needs to know of its documents, in parallel processes.

    scan/source-00000.npz   the scan of a source: where its documents start and how long they are
    scan/copy-00000.arrow   its documents, if the source cannot be read from the middle (compressed, or on the Hub)

`documents_from` then reads a source from any document on.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bert_repro.configs import TextConfig
from bert_repro.corpus.documents import Document, Source, read_documents
from bert_repro.corpus.duplicates import Fingerprint, Paragraph, fingerprint
from bert_repro.utils.arrays import Int64Array, row_starts
from bert_repro.utils.files import atomic_file, atomic_path
from bert_repro.utils.parts import Engine, make_parts
from bert_repro.utils.randomness import UInt64Array

SCAN_FOLDER = "scan"
COPY_BATCH_CHARACTERS = 1_000_000
BYTES_PER_PROCESS = 50_000_000
"""A process that scans less than this takes longer to start than to scan."""


@dataclass(frozen=True)
class Scan:
    """The documents of one source, D of them with P paragraphs that are long enough to be compared.

    The keys of documents and paragraphs are only recorded if duplicates are to be found by them.

    Args:
        starts: int64 [D], where each document starts; see `Document.start`.
        lengths: int64 [D], characters.
        copy_batches: int64, the first document of each batch in the copy of the source; empty without a copy.
        keys: uint64 [D], hash of the words of each document.
        words: int64 [D].
        only_paragraphs: bool [D], whether nothing is left of a document if all its paragraphs are dropped.
        paragraph_starts: int64 [D + 1], the first paragraph of each document.
        paragraph_keys: uint64 [P].
        paragraph_lines: int64 [P], the line of each paragraph in its document.
        paragraph_words: int64 [P].
        paragraph_lengths: int64 [P], characters.
    """

    starts: Int64Array
    lengths: Int64Array
    copy_batches: Int64Array
    keys: UInt64Array
    words: Int64Array
    only_paragraphs: npt.NDArray[np.bool_]
    paragraph_starts: Int64Array
    paragraph_keys: UInt64Array
    paragraph_lines: Int64Array
    paragraph_words: Int64Array
    paragraph_lengths: Int64Array

    @property
    def num_documents(self) -> int:
        """Number of documents, D."""
        return len(self.starts)

    def fingerprint_of(self, document: int, paragraphs: Int64Array) -> Fingerprint:
        """Returns the fingerprint of a document, limited to some of its paragraphs.

        Args:
            document: its number.
            paragraphs: numbers of its paragraphs that are to be compared. The others count as text that stays.
        """
        # If a paragraph is left out of the comparison, it stays in the document.
        all_paragraphs = self.paragraph_starts[document + 1] - self.paragraph_starts[document]
        compared = [self._paragraph(number) for number in paragraphs.tolist()]
        return Fingerprint(
            key=int(self.keys[document]),
            words=int(self.words[document]),
            paragraphs=tuple(compared),
            only_paragraphs=bool(self.only_paragraphs[document]) and len(compared) == all_paragraphs,
        )

    def _paragraph(self, number: int) -> Paragraph:
        return Paragraph(
            line=int(self.paragraph_lines[number]),
            key=int(self.paragraph_keys[number]),
            words=int(self.paragraph_words[number]),
            characters=int(self.paragraph_lengths[number]),
        )


def scan_sources(config: TextConfig, sources: Sequence[Source], folder: Path, engine: Engine) -> None:
    """Scans all sources; those that have been scanned before are skipped.

    Args:
        config: decides whether keys are recorded, and how many documents are enough.
        sources: from `find_sources`.
        folder: where the scans are written.
        engine: where the sources are scanned.

    Raises:
        UserError: a source is damaged.
    """
    (folder / SCAN_FOLDER).mkdir(exist_ok=True)
    # Near duplicates are found by their text, so they need no keys.
    scanner = _Scanner(tuple(sources), folder.absolute(), config.deduplicate == "exact", _documents_needed(config))
    weights = [max(1, source.size) for source in sources]
    num_proc = min(engine.num_proc, sum(weights) // BYTES_PER_PROCESS + 1)
    make_parts(
        range(len(sources)),
        scanner,
        is_done=lambda number: _scan_path(folder, number).is_file(),
        engine=replace(engine, num_proc=num_proc),
        weights=weights,
        label="scanning",
    )


def read_scan(folder: Path, source: int) -> Scan:
    """Returns the scan of a source."""
    with np.load(_scan_path(folder, source)) as arrays:
        return Scan(**{name: arrays[name] for name in arrays.files})


def documents_from(source: Source, number: int, folder: Path, *, first: int, start: int) -> Iterator[Document]:
    """Reads the documents of a scanned source from the middle.

    Args:
        source: the source.
        number: its number.
        folder: the folder with its scan.
        first: number of the first document to read.
        start: where that document starts; see `Document.start`.
    """
    if source.can_start_anywhere:
        return read_documents(source, start)
    # Compressed files and Hub datasets were copied by the scan.
    batches = read_scan(folder, number).copy_batches
    return _read_copy(source, _copy_path(folder, number), batches, first)


def _documents_needed(config: TextConfig) -> int | None:
    """Returns how many documents of a source are enough for `max_documents`; None if all must be scanned.

    If documents come less than once, are dropped as duplicates or are weighted by the size of their language, nobody
    can say before the scan how many are needed.
    """
    passes = [source.passes for source in config.text_sources] or [1.0]
    if config.max_documents is None or config.deduplicate != "none":
        return None
    if config.sampling_exponent != 1 or min(passes) < 1:
        return None
    # One more, because reading ends at the document after the last one.
    return config.max_documents + 1


def _scan_path(folder: Path, source: int) -> Path:
    return folder / SCAN_FOLDER / f"source-{source:05d}.npz"


def _copy_path(folder: Path, source: int) -> Path:
    return folder / SCAN_FOLDER / f"copy-{source:05d}.arrow"


# --- One source -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Scanner:
    """Scans the source with a given number. It is sent to worker processes, so its folder is absolute."""

    sources: tuple[Source, ...]
    folder: Path
    with_keys: bool
    documents_needed: int | None

    def __call__(self, number: int) -> None:
        source = self.sources[number]
        recorder = _ScanRecorder(self.with_keys)
        # The scan is written last: a source with a scan also has its copy.
        if source.can_start_anywhere:
            self._read(source, recorder, None)
        else:
            with _copy_writer(_copy_path(self.folder, number)) as copy:
                self._read(source, recorder, copy)
                recorder.copy_batches = copy.finish()
        recorder.write(_scan_path(self.folder, number))

    def _read(self, source: Source, recorder: "_ScanRecorder", copy: "_CopyWriter | None") -> None:
        for document in read_documents(source):
            recorder.add(document)
            if copy is not None:
                copy.add(document)
            if recorder.num_documents == self.documents_needed:
                return


class _ScanRecorder:
    """Collects the arrays of a scan as lists, document by document; see `Scan`.

    Args:
        with_keys: whether to record the keys of documents and paragraphs.
    """

    def __init__(self, with_keys: bool) -> None:
        self.with_keys = with_keys
        self.copy_batches: list[int] = []
        self._starts: list[int] = []
        self._lengths: list[int] = []
        self._keys: list[int] = []
        self._words: list[int] = []
        self._only_paragraphs: list[bool] = []
        self._paragraph_counts: list[int] = []
        self._paragraph_keys: list[int] = []
        self._paragraph_lines: list[int] = []
        self._paragraph_words: list[int] = []
        self._paragraph_lengths: list[int] = []

    @property
    def num_documents(self) -> int:
        return len(self._starts)

    def add(self, document: Document) -> None:
        self._starts.append(document.start)
        self._lengths.append(len(document.text))
        if self.with_keys:
            self._add_keys(fingerprint(document.text))

    def _add_keys(self, document: Fingerprint) -> None:
        self._keys.append(document.key)
        self._words.append(document.words)
        self._only_paragraphs.append(document.only_paragraphs)
        self._paragraph_counts.append(len(document.paragraphs))
        # The paragraphs of all documents become one array, with the start of each document in it.
        for paragraph in document.paragraphs:
            self._paragraph_keys.append(paragraph.key)
            self._paragraph_lines.append(paragraph.line)
            self._paragraph_words.append(paragraph.words)
            self._paragraph_lengths.append(paragraph.characters)

    def write(self, path: Path) -> None:
        with atomic_file(path, binary=True) as file:
            np.savez(
                file,
                starts=np.array(self._starts, np.int64),
                lengths=np.array(self._lengths, np.int64),
                copy_batches=np.array(self.copy_batches, np.int64),
                keys=np.array(self._keys, np.uint64),
                words=np.array(self._words, np.int64),
                only_paragraphs=np.array(self._only_paragraphs, bool),
                paragraph_starts=row_starts(np.array(self._paragraph_counts, np.int64)),
                paragraph_keys=np.array(self._paragraph_keys, np.uint64),
                paragraph_lines=np.array(self._paragraph_lines, np.int64),
                paragraph_words=np.array(self._paragraph_words, np.int64),
                paragraph_lengths=np.array(self._paragraph_lengths, np.int64),
            )


# --- Copies of sources that cannot be read from the middle ------------------------------------------------------------


@dataclass
class _CopyWriter:
    """Writes documents to a compressed Arrow file, in batches that can be read one by one."""

    writer: Any
    schema: Any
    _batch: list[Document] = field(default_factory=list)
    _batch_characters: int = 0
    _num_documents: int = 0
    _batch_starts: list[int] = field(default_factory=list)

    def add(self, document: Document) -> None:
        self._batch.append(document)
        self._batch_characters += len(document.text)
        if self._batch_characters >= COPY_BATCH_CHARACTERS:
            self._write_batch()

    def finish(self) -> list[int]:
        """Writes the last batch; returns the number of the first document of each batch."""
        if self._batch:
            self._write_batch()
        return self._batch_starts

    def _write_batch(self) -> None:
        import pyarrow as pa

        texts = pa.array([document.text for document in self._batch], pa.large_string())
        titles = pa.array([document.title for document in self._batch], pa.large_string())
        self.writer.write_batch(pa.record_batch([texts, titles], schema=self.schema))
        self._batch_starts.append(self._num_documents)
        self._num_documents += len(self._batch)
        self._batch, self._batch_characters = [], 0


@contextmanager
def _copy_writer(path: Path) -> Iterator[_CopyWriter]:
    import pyarrow as pa

    schema = pa.schema([("text", pa.large_string()), ("title", pa.large_string())])
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with atomic_path(path) as temporary, pa.ipc.new_file(str(temporary), schema, options=options) as writer:
        yield _CopyWriter(writer, schema)


def _read_copy(source: Source, path: Path, batch_starts: Int64Array, first: int) -> Iterator[Document]:
    """Reads the documents of a copy from number `first` on."""
    import pyarrow as pa

    with pa.memory_map(str(path)) as file:
        reader = pa.ipc.open_file(file)
        # Batches before the first document are not decompressed.
        first_batch = int(np.searchsorted(batch_starts, first, side="right")) - 1
        number = int(batch_starts[first_batch])
        for batch_number in range(first_batch, reader.num_record_batches):
            batch = reader.get_batch(batch_number)
            # Documents of the same batch before the first one are skipped.
            rows = zip(batch.column("text").to_pylist(), batch.column("title").to_pylist(), strict=True)
            for text, title in rows:
                if number >= first:
                    yield Document(text, title, number, 0, source.origin, source.options.language)
                number += 1
