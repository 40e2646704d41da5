"""Reads documents from text files, JSON lines, Parquet (see `SUFFIXES`) and datasets of the Hugging Face Hub.

Only text and JSON lines may be compressed (.gz, .xz); Parquet has its own compression. Documents come in input order,
one at a time: memory holds one document (for Parquet one batch of rows), never a file.
Bad input is a `UserError` that names the file and the line, row or byte.
"""

import glob
import gzip
import logging
import lzma
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from bert_repro.configs import TextConfig, TextSource, looks_like_a_folder, require
from bert_repro.errors import UserError
from bert_repro.utils.files import file_digest, json_digest
from bert_repro.utils.randomness import Stream, draw, fraction
from bert_repro.utils.readers import decode_line, decompressed, first_line, listed, parse_json

logger = logging.getLogger("bert_repro")

SUFFIXES = (".txt", ".txt.gz", ".txt.xz", ".jsonl", ".jsonl.gz", ".jsonl.xz", ".parquet")
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
PART_CHARACTERS, BLOCK_CHARACTERS = 32_000_000, 500_000
PARQUET_BATCH_ROWS = 256
PARAGRAPH_WORDS = 8
NEAR, SKETCH_SIZE, SKETCH_BANDS = 0.7, 128, 32  # bands of 4: a pair at 0.7 is compared with a probability of 0.9998


class Document(NamedTuple):
    """One document of the input.

    Args:
        text: as in the source, line breaks included.
        title: where the source has one, else None.
        position: bytes of its source read so far, for progress bars; 0 where unknown.
        origin: number of its entry in `TextConfig.text_sources`.
        language: code of its language.
    """

    text: str
    title: str | None
    position: int
    origin: int = 0
    language: str = "en"


@dataclass(frozen=True)
class Source:
    """One file, or one dataset of the Hub.

    Args:
        name: path of the file as given, or id of the dataset.
        size: bytes on disk; 0 for a dataset of the Hub.
        revision: commit of a dataset of the Hub; None for a file.
        texts: documents in memory, in place of a file.
        origin: number of its entry in `TextConfig.text_sources`.
        options: that entry.
    """

    name: str
    size: int
    revision: str | None = None
    texts: Sequence[str] | None = None
    origin: int = 0
    options: TextSource = field(default_factory=lambda: TextSource(""))

    @property
    def digest(self) -> str | None:
        """SHA-256 of its texts or its file; None for a dataset of the Hub, which its commit names."""
        if self.texts is not None:
            return json_digest(list(self.texts))
        return None if self.revision else file_digest(Path(self.name))


def find_sources(config: TextConfig, texts: Sequence[str] | None = None) -> list[Source]:
    """Resolves the names the user gave to files and Hub datasets, in a defined order.

    Args:
        config: its `text_sources` name files, folders (searched with their subfolders), glob patterns, or ids of Hub
            datasets. The order given is kept; the files of a folder or pattern are sorted by name.
        texts: documents in memory, in place of them.

    Raises:
        UserError: nothing is named, a name does not exist, a format is unknown, or a file is named twice.
    """
    if texts is not None:
        return [Source("texts in memory", 0, texts=texts, options=TextSource("", language=config.language))]
    require(config.text_sources, "--input_files is missing: name at least one file, folder, pattern or Hub dataset")
    sources = [
        replace(source, origin=number, options=options)
        for number, options in enumerate(config.text_sources)
        for source in _resolve(options.input)
    ]
    seen: dict[str, str] = {}
    for source in sources:
        place = source.name if source.revision else str(Path(source.name).resolve())
        if place in seen:
            raise UserError(f"{source.name} is named twice by input_files (as {seen[place]} too); name it once")
        seen[place] = source.name
    return sources


def source_identities(sources: list[Source]) -> list[list[Any]]:
    """Returns name, size, revision and SHA-256 of each source: a file written again at equal size is another one."""
    return [[source.name, source.size, source.revision, source.digest] for source in sources]


def read_documents(source: Source) -> Iterator[Document]:
    """Reads the documents of one source in order.

    In `.txt` a blank line ends a document, as in the input of the original implementation. In the other formats a row
    is a document. Documents without text are skipped.

    Args:
        source: from `find_sources`.

    Raises:
        UserError: the source is damaged, is not UTF-8 or lacks the text; with file and line or row.
    """
    if source.texts is not None:
        documents: Iterator[Document] = (Document(text, None, 0) for text in source.texts)
    elif source.revision is not None:
        documents = _read_hub(source)
    elif source.name.endswith(".parquet"):
        documents = _read_parquet(Path(source.name), source.options)
    elif ".jsonl" in Path(source.name).suffixes:
        documents = _read_json_lines(Path(source.name), source.options)
    else:
        documents = _read_text(Path(source.name))
    return (
        document._replace(origin=source.origin, language=source.options.language)
        for document in documents
        if not document.text.isspace() and document.text
    )


def read_all(
    config: TextConfig, sources: Sequence[Source], duplicates: "DuplicateFilter | None" = None
) -> Iterator[Document]:
    """Reads the documents of all sources in order, each as often as its source says, up to `max_documents`.

    Args:
        config: passes and languages of the sources, and what counts as a duplicate.
        sources: from `find_sources`.
        duplicates: drops what came before; default: as `config.deduplicate` says.
    """
    from tqdm.auto import tqdm

    duplicates = duplicates or DuplicateFilter(config.deduplicate)
    passes = passes_of(config, sources)
    total = sum(source.size for source in sources)
    number = finished = 0
    with tqdm(total=total or None, unit="B", unit_scale=True, desc="reading", disable=None) as bar:
        for source in sources:
            times, chance = divmod(passes[source.origin], 1)
            for place, document in enumerate(read_documents(source)):
                kept = duplicates(document)
                more = chance > 0 and fraction(draw(Stream.CORPUS_PASSES, source.origin, place)) < chance
                for _ in range(int(times + more)):
                    if kept is None:
                        break
                    if number == config.max_documents:
                        return
                    number += 1
                    yield kept
                bar.update(finished + document.position - bar.n)
            finished += source.size
            bar.update(finished - bar.n)


def passes_of(config: TextConfig, sources: Sequence[Source]) -> list[float]:
    """Returns how often the documents of each source come.

    With `sampling_exponent` a language of n characters, counted in a pass over all text, comes (n / m) ** (exponent -
    1) times as often as the one with most, m (the exponent of multilingual BERT; its published description).
    """
    passes = [options.passes for options in config.text_sources] or [1.0]
    if config.sampling_exponent == 1:
        return passes
    characters: Counter[str] = Counter()
    for source in sources:
        read = sum(len(document.text) for document in read_documents(source))
        characters[source.options.language] += round(read * passes[source.origin])
    most = max(characters.values())
    weights = {name: (number / most) ** (config.sampling_exponent - 1) for name, number in characters.items() if number}
    return [passes[number] * weights.get(options.language, 1.0) for number, options in enumerate(config.text_sources)]


class DuplicateFilter:
    """Takes out of documents what came before; texts are compared without case and spacing.

    Args:
        kind: `none`; `exact`: documents, and paragraphs of eight words and more; `near`: also documents whose sets of
            5-word sequences have an estimated Jaccard similarity of 0.7 with those of an earlier one.

    Attributes:
        counts: what was taken out: documents, paragraphs and their words.

    Raises:
        UserError: the package rensa is missing, which finds near duplicates.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.counts: Counter[str] = Counter()
        self._seen: set[bytes] = set()
        self._sketches: list[Any] = []
        if kind == "near":
            try:
                from rensa import RMinHash, RMinHashLSH
            except ImportError:
                raise UserError(
                    "--deduplicate near: the package rensa is not installed; run: pip install rensa"
                ) from None
            self._sketch, self._index = RMinHash, RMinHashLSH(NEAR, SKETCH_SIZE, SKETCH_BANDS)

    def __call__(self, document: Document) -> Document | None:
        """Returns the document without the paragraphs that came before; None where nothing is left."""
        if self.kind == "none":
            return document
        words = document.text.casefold().split()
        if self._came_before(words) or (self.kind == "near" and self._is_near(words)):
            self.counts["duplicate_documents"] += 1
            self.counts["duplicate_words"] += len(words)
            return None
        kept = []
        for line in document.text.split("\n"):
            of_line = line.casefold().split()
            if PARAGRAPH_WORDS <= len(of_line) < len(words) and self._came_before(of_line):
                self.counts["duplicate_paragraphs"] += 1
                self.counts["duplicate_words"] += len(of_line)
            else:
                kept.append(line)
        text = "\n".join(kept)
        return document._replace(text=text) if text.strip() else None

    def _came_before(self, words: list[str]) -> bool:
        key = blake2b(" ".join(words).encode("utf-8"), digest_size=8).digest()
        came_before = key in self._seen
        self._seen.add(key)
        return came_before

    def _is_near(self, words: list[str]) -> bool:
        shingles = {" ".join(words[start : start + 5]) for start in range(max(1, len(words) - 4))}
        sketch = self._sketch(SKETCH_SIZE, 0)
        sketch.update(sorted(shingles))
        if any(sketch.jaccard(self._sketches[number]) >= NEAR for number in self._index.query(sketch)):
            return True
        self._index.insert(len(self._sketches), sketch)
        self._sketches.append(sketch)
        return False


def read_blocks(
    config: TextConfig, sources: Sequence[Source], duplicates: DuplicateFilter
) -> Iterator[tuple[int, list[Document]]]:
    """Yields (number of the part, documents): cut by characters of the input, so the same in every run."""
    part = part_characters = block_characters = 0
    block: list[Document] = []
    for document in read_all(config, sources, duplicates):
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


def _resolve(name: str) -> list[Source]:
    path = Path(name)
    if path.is_file():
        return [_file_source(path)]
    if path.is_dir():
        found = sorted(file for file in path.rglob("*") if file.is_file() and file.name.endswith(SUFFIXES))
        require(found, f"folder {name} holds no corpus file; expected one of {', '.join(SUFFIXES)}")
        logger.info("%s: reading %d files of these kinds: %s", name, len(found), ", ".join(SUFFIXES))
        return [_file_source(file) for file in found]
    if glob.has_magic(name):
        files = sorted(Path(match) for match in glob.glob(name, recursive=True) if Path(match).is_file())
        require(files, f"no file matches the pattern {name!r}")
        return [_file_source(file) for file in files]
    if name.endswith(SUFFIXES) or looks_like_a_folder(name) or not HUB_ID.fullmatch(name):
        text = ", or give texts as a list" if " " in name else ""
        raise UserError(f"input file {name} does not exist; check the path{text}")
    return [_hub_source(name)]


def _file_source(path: Path) -> Source:
    if not path.name.endswith(SUFFIXES) or ".parquet." in path.name:
        raise UserError(f"{path}: unknown corpus format; expected one of {', '.join(SUFFIXES)}")
    return Source(str(path), path.stat().st_size)


def _hub_source(name: str) -> Source:
    from huggingface_hub import HfApi

    try:
        revision = HfApi().dataset_info(name).sha
    except Exception as error:
        raise UserError(
            f"{name!r} is neither a local file or folder nor a dataset on the Hub: {first_line(error)}"
        ) from error
    return Source(name, 0, str(revision))


def _read_text(path: Path) -> Iterator[Document]:
    lines: list[str] = []
    position = 0
    for _, line, position in _read_lines(path):
        if line.strip():
            lines.append(line)
        elif lines:
            yield Document("\n".join(lines), None, position)
            lines = []
    if lines:
        yield Document("\n".join(lines), None, position)


def _read_json_lines(path: Path, options: TextSource) -> Iterator[Document]:
    for number, line, position in _read_lines(path):
        if line.strip():
            place = f"{path}, line {number}"
            row = parse_json(line, place, "write the line again")
            if not isinstance(row, dict):
                raise UserError(f"{place}: expected a JSON object, found {type(row).__name__}")
            yield _row_document(row, place, options, position)


def _read_parquet(path: Path, options: TextSource) -> Iterator[Document]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            if options.text_column not in names:
                raise UserError(f"{path}: no column {options.text_column!r}; it has {listed(names)}. Set text_column")
            columns = [name for name in (options.text_column, options.title_column) if name in names]
            size, rows = path.stat().st_size, file.metadata.num_rows
            for batch in file.iter_batches(batch_size=PARQUET_BATCH_ROWS, columns=columns):
                for row in batch.to_pylist():
                    number += 1
                    yield _row_document(row, f"{path}, row {number}", options, size * number // rows)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: damaged or not a Parquet file, after row {number} ({first_line(error)})") from error


def _read_hub(source: Source) -> Iterator[Document]:
    from datasets import load_dataset

    options, number = source.options, 0
    config, split = options.hub_config, options.hub_split
    try:
        rows = load_dataset(source.name, config, split=split, streaming=True, revision=source.revision)
        for number, row in enumerate(rows, start=1):
            yield _row_document(row, f"dataset {source.name}, row {number}", options, 0)
    except UserError:
        raise
    except Exception as error:  # what can fail depends on the dataset's files and on the network
        so_far = f"; it failed after row {number}; start again to continue after the finished parts" if number else ""
        dataset = f"dataset {source.name} (configuration {config}, split {split})"
        raise UserError(f"{dataset}: {first_line(error)}{so_far}") from error


def _row_document(row: dict[str, Any], place: str, options: TextSource, position: int) -> Document:
    text_column, title_column = options.text_column, options.title_column
    if text_column not in row:
        raise UserError(f"{place}: no field {text_column!r}; it has {listed(map(str, row))}. Set text_column")
    text, title = row[text_column], row.get(title_column)
    if not isinstance(text, str):
        raise UserError(f"{place}: field {text_column!r} is {type(text).__name__}, expected text")
    return Document(text, title if isinstance(title, str) else None, position)


def _read_lines(path: Path) -> Iterator[tuple[int, str, int]]:
    """Yields (line number from 1, line without its end, bytes of the file read so far)."""
    number = 0
    try:
        with path.open("rb") as raw:
            for number, data in enumerate(decompressed(raw, path.suffix), start=1):
                yield number, decode_line(data, path, number), raw.tell()
    except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(
            f"{path}: damaged after line {number} ({first_line(error)}); download or compress it again"
        ) from error
