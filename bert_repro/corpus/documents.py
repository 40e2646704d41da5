"""Reads documents from text files, JSON lines, Parquet, tables (see `SUFFIXES`) and datasets of the Hugging Face Hub.

`find_sources` turns the names that the user gave into sources; `read_documents` reads the documents of one source, from
its beginning or from the middle. Documents come in input order, one at a time: memory contains one document (for
Parquet one batch of rows), never a file.

Text and JSON lines may be compressed (.gz, .xz); Parquet has its own compression. Files may also be addressed by a URL
that fsspec understands, such as s3://bucket/folder/file.jsonl. Bad input is a `UserError` that names the file and the
line, row or byte.
"""

import glob
import logging
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from bert_repro.configs import TextConfig, TextSource, looks_like_a_folder
from bert_repro.errors import UserError, flag
from bert_repro.utils import tables
from bert_repro.utils.files import file_digest, json_digest
from bert_repro.utils.readers import (
    DAMAGED_COMPRESSION,
    comma_separated,
    decode_line,
    decompressed,
    first_line,
    format_of,
    numbered_lines,
    parse_json,
)

logger = logging.getLogger("bert_repro")

FOLDER_SUFFIXES = (".txt", ".txt.gz", ".txt.xz", ".jsonl", ".jsonl.gz", ".jsonl.xz", ".parquet")
"""The files of a folder that are read. Tables next to them are often lists of the files, so they must be named."""
_TABLE_SUFFIXES = (".csv", ".tsv", ".xlsx")
SUFFIXES = (*FOLDER_SUFFIXES, *_TABLE_SUFFIXES)
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
PARQUET_BATCH_ROWS = 256
_URL = re.compile(r"[a-z][a-z0-9+.-]+://")


class Document(NamedTuple):
    """One document of the input.

    Args:
        text: as in the source, line breaks included.
        title: its title, or None if the source has none.
        start: where it starts in its source: the byte of a text or JSON lines file, the row of a Parquet file or Hub
            dataset, the index of a text in memory. `read_documents` can start there.
        position: bytes of its source that have been read after it, for progress bars; 0 if unknown.
        origin: number of its entry in `TextConfig.text_sources`.
        language: code of its language.
    """

    text: str
    title: str | None
    start: int
    position: int = 0
    origin: int = 0
    language: str = "en"


@dataclass(frozen=True)
class Source:
    """One file, one dataset of the Hub, or texts in memory.

    Args:
        name: path or URL as the user gave it, or the id of the dataset.
        size: bytes on disk; 0 for a dataset of the Hub.
        location: absolute path or URL of a file, valid in other processes and on other machines too.
        revision: commit of a dataset of the Hub; None for a file.
        texts: documents in memory, instead of a file.
        origin: number of its entry in `TextConfig.text_sources`.
        options: that entry.
    """

    name: str
    size: int
    location: str = ""
    revision: str | None = None
    texts: Sequence[str] | None = None
    origin: int = 0
    options: TextSource = field(default_factory=lambda: TextSource(""))

    @property
    def can_start_anywhere(self) -> bool:
        """Whether reading can start in the middle without reading what comes before."""
        return self.revision is None and not self.name.endswith((".gz", ".xz", *_TABLE_SUFFIXES))

    @property
    def digest(self) -> str | None:
        """SHA-256 of its texts or its file; None for a dataset of the Hub, whose commit identifies it."""
        if self.texts is not None:
            return json_digest(list(self.texts))
        if self.revision is not None:
            return None
        if is_url(self.location):
            return _remote_digest(self.location)
        return file_digest(Path(self.location))


# --- Finding sources --------------------------------------------------------------------------------------------------


def find_sources(config: TextConfig, texts: Sequence[str] | None = None) -> list[Source]:
    """Turns the names that the user gave into files and Hub datasets, in a defined order.

    Args:
        config: its `text_sources` name files, folders (searched with their subfolders), glob patterns, URLs, or ids of
            Hub datasets. Their order is kept; the files of a folder or pattern are sorted by name.
        texts: documents in memory, instead of them.

    Raises:
        UserError: nothing is named, a name does not exist, a format is unknown, or a file is named twice.
    """
    if texts is not None:
        return [Source("texts in memory", 0, texts=texts, options=TextSource("", language=config.language))]
    if not config.text_sources:
        raise UserError(
            f"{flag('input_files')} is missing. Name at least one file, folder, pattern or Hub dataset.",
            setting="input_files",
        )
    sources = []
    for origin, options in enumerate(config.text_sources):
        for source in _resolve(options.input):
            sources.append(replace(source, origin=origin, options=options))
    _require_different(sources)
    return sources


def _require_different(sources: list[Source]) -> None:
    """Refuses a file that is named twice, because its documents would be counted as if they were different."""
    names: dict[str, str] = {}
    for source in sources:
        # Two spellings of a path lead to the same file; ids and URLs have one spelling.
        place = source.name
        if source.revision is None and not is_url(source.location):
            place = str(Path(source.location).resolve())
        if place in names:
            raise UserError(
                f"{source.name} is named twice in {flag('input_files')}, also as {names[place]}. Name it once.",
                setting="input_files",
            )
        names[place] = source.name


def source_identities(sources: list[Source]) -> list[list[Any]]:
    """Returns name, size, revision and SHA-256 of each source. A file with changed content is another source."""
    return [[source.name, source.size, source.revision, source.digest] for source in sources]


def _resolve(name: str) -> list[Source]:
    """Returns the sources that one name stands for."""
    # An existing file or folder wins over a pattern or an id of the Hub with the same name.
    if is_url(name):
        return _remote_sources(name)
    path = Path(name)
    if path.is_file():
        return [_file_source(path)]
    if path.is_dir():
        return [_file_source(file) for file in _files_in(path)]
    if glob.has_magic(name):
        return [_file_source(file) for file in _files_matching(name)]
    # What looks like a path but does not exist is mistyped, and is not searched on the Hub.
    if name.endswith(SUFFIXES) or looks_like_a_folder(name) or not HUB_ID.fullmatch(name):
        hint = " In Python, pass texts as a list." if " " in name else ""
        raise UserError(f"The input file {name} does not exist. Check the path.{hint}", setting="input_files")
    return [_hub_source(name)]


def _files_in(folder: Path) -> list[Path]:
    files = [path for path in folder.rglob("*") if path.name.endswith(FOLDER_SUFFIXES) and path.is_file()]
    if not files:
        raise UserError(
            f"The folder {folder} contains no corpus file. The files of a folder that are read end in one of "
            f"{', '.join(FOLDER_SUFFIXES)}. Name tables ({', '.join(_TABLE_SUFFIXES)}) as files.",
            setting="input_files",
        )
    logger.info("%s: reading %d files of these kinds: %s", folder, len(files), ", ".join(FOLDER_SUFFIXES))
    return sorted(files)


def _files_matching(pattern: str) -> list[Path]:
    files = [Path(match) for match in glob.glob(pattern, recursive=True) if os.path.isfile(match)]
    if not files:
        raise UserError(f"No file matches the pattern {pattern!r}.", setting="input_files")
    return sorted(files)


def _file_source(path: Path) -> Source:
    _require_known_format(str(path))
    return Source(str(path), path.stat().st_size, location=os.path.abspath(path))


def _require_known_format(name: str) -> None:
    if not name.endswith(SUFFIXES) or ".parquet." in name:
        raise UserError(
            f"{name} has an unknown format. Corpus files end in one of {', '.join(SUFFIXES)}.", setting="input_files"
        )


def _hub_source(name: str) -> Source:
    from huggingface_hub import HfApi

    # The commit is recorded, so that a preparation that continues reads the same data.
    try:
        revision = HfApi().dataset_info(name).sha
    except Exception as error:
        raise UserError(
            f"{name!r} is neither a local file or folder nor a dataset on the Hub: {first_line(error)}",
            setting="input_files",
        ) from error
    return Source(name, 0, revision=str(revision))


# --- Files behind a URL -----------------------------------------------------------------------------------------------


def is_url(name: str) -> bool:
    """Returns whether a name is a URL such as s3://bucket/file, not a path of this machine."""
    return _URL.match(name) is not None


def _remote_sources(url: str) -> list[Source]:
    """Returns the files that a URL names: one file, the files of a folder, or those that match a pattern."""
    file_system, path = _file_system(url)
    try:
        if glob.has_magic(path):
            paths = [match for match in file_system.glob(path) if match.endswith(SUFFIXES)]
        elif file_system.isdir(path):
            paths = [match for match in file_system.find(path) if match.endswith(SUFFIXES)]
        else:
            _require_known_format(url)
            paths = [path] if file_system.exists(path) else []
        if not paths:
            raise UserError(f"{url} does not exist or contains no corpus file.", setting="input_files")
        return [_remote_source(file_system, path) for path in sorted(paths)]
    except UserError:
        raise
    except Exception as error:
        # Each storage service has errors of its own.
        raise UserError(f"{url} cannot be read: {first_line(error)}", setting="input_files") from error


def _remote_source(file_system: Any, path: str) -> Source:
    name = str(file_system.unstrip_protocol(path))
    return Source(name, int(file_system.size(path) or 0), location=name)


def _remote_digest(url: str) -> str:
    """Returns what identifies the content of a remote file: the checksum of its storage service, if it has one."""
    file_system, path = _file_system(url)
    info = file_system.info(path)
    # S3, Google Cloud Storage and the Hub each have a checksum under a name of their own.
    for name in ("ETag", "etag", "md5Hash", "sha256", "blob_id"):
        if info.get(name):
            return f"{name} {info[name]}"
    return json_digest([str(file_system.checksum(path))])


def _file_system(url: str) -> tuple[Any, str]:
    """Returns the fsspec file system of a URL and the path in it.

    Raises:
        UserError: no driver for this kind of URL is installed.
    """
    import fsspec

    try:
        return cast(tuple[Any, str], fsspec.core.url_to_fs(url))
    except (ImportError, ValueError) as error:
        raise UserError(
            f"{url} cannot be opened: {first_line(error)} fsspec drivers are packages such as s3fs and gcsfs.",
            setting="input_files",
        ) from error


def _open(location: str) -> IO[bytes]:
    if is_url(location):
        file_system, path = _file_system(location)
        return cast(IO[bytes], file_system.open(path, "rb"))
    return open(location, "rb")


# --- Reading ----------------------------------------------------------------------------------------------------------


def read_documents(source: Source, start: int = 0) -> Iterator[Document]:
    """Reads the documents of one source in order.

    In `.txt` a blank line ends a document, as in the input of the original implementation. In the other formats a row
    is a document. Documents without text are skipped.

    Args:
        source: from `find_sources`.
        start: the `start` of the first document to read, from an earlier reading. Only for sources that
            `can_start_anywhere`.

    Raises:
        UserError: the source is damaged, is not UTF-8 or has no text; names file and line or row.
    """
    for document in _reader(source, start):
        if document.text and not document.text.isspace():
            yield document._replace(origin=source.origin, language=source.options.language)


def _reader(source: Source, start: int) -> Iterator[Document]:
    if source.texts is not None:
        return _read_memory(source.texts, start)
    if source.revision is not None:
        return _read_hub(source)
    if source.name.endswith(".parquet"):
        return _read_parquet(source, start)
    if source.name.endswith(_TABLE_SUFFIXES):
        return _read_table(source)
    if ".jsonl" in Path(source.name).suffixes:
        return _read_json_lines(source, start)
    return _read_text(source, start)


def _read_memory(texts: Sequence[str], start: int) -> Iterator[Document]:
    for index in range(start, len(texts)):
        yield Document(texts[index], None, index)


def _read_text(source: Source, start: int) -> Iterator[Document]:
    # Lines of the current document, and the byte at which it started.
    lines: list[str] = []
    document_start = position = start
    for line in _read_lines(source, start):
        position = line.end
        if line.text.strip():
            if not lines:
                document_start = line.start
            lines.append(line.text)
        elif lines:
            # A blank line ends the document.
            yield Document("\n".join(lines), None, document_start, position)
            lines = []
    # The last document of a file needs no blank line after it.
    if lines:
        yield Document("\n".join(lines), None, document_start, position)


def _read_json_lines(source: Source, start: int) -> Iterator[Document]:
    for line in _read_lines(source, start):
        if not line.text.strip():
            continue
        place = f"{source.name}, line {line.number}"
        row = parse_json(line.text, place, "Write the line again.")
        if not isinstance(row, dict):
            raise UserError(f"{place} is a {type(row).__name__}, not a JSON object. Write one object per line.")
        yield _row_document(row, place, source.options, line.start, line.end)


def _read_table(source: Source) -> Iterator[Document]:
    """Reads the rows of a CSV, TSV or Excel file. It is always read from its beginning."""
    if is_url(source.location):
        raise UserError(f"{source.name}: tables are only read from local files. Copy it.", setting="input_files")
    path, encoding = Path(source.location), source.options.encoding
    rows = tables.rows_of(path, format_of(path), lambda: numbered_lines(path, encoding))
    for index, (number, row) in enumerate(tables.named_rows(path, rows)):
        yield _row_document(row, f"{source.name}, line {number}", source.options, index, 0)


def _read_parquet(source: Source, start: int) -> Iterator[Document]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    row_number = 0
    try:
        with _open(source.location) as raw, pq.ParquetFile(raw) as file:
            # Row groups before the first row are not even decompressed.
            columns = _parquet_columns(source, file.schema_arrow.names)
            groups, row_number = _row_groups_from(file, start)
            batches = file.iter_batches(batch_size=PARQUET_BATCH_ROWS, columns=columns, row_groups=groups)
            for batch in batches:
                for row in batch.to_pylist():
                    row_number += 1
                    if row_number <= start:
                        continue
                    position = source.size * row_number // file.metadata.num_rows
                    place = f"{source.name}, row {row_number}"
                    yield _row_document(row, place, source.options, row_number - 1, position)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"{source.name} is damaged or not a Parquet file, after row {row_number} ({first_line(error)})."
        ) from error


def _parquet_columns(source: Source, names: list[str]) -> list[str]:
    """Returns the columns of a Parquet file that are read."""
    options = source.options
    if options.text_column not in names:
        raise UserError(
            f"{source.name} has no column {options.text_column!r}, only {comma_separated(names)}. "
            f"Name the column with {flag('text_column')}.",
            setting="text_column",
        )
    return [name for name in (options.text_column, options.title_column) if name in names]


def _row_groups_from(file: Any, row: int) -> tuple[list[int], int]:
    """Returns the row groups of a Parquet file from the one that contains a row, and the rows before them."""
    rows_before = 0
    for group in range(file.num_row_groups):
        group_rows = file.metadata.row_group(group).num_rows
        if row < rows_before + group_rows:
            return list(range(group, file.num_row_groups)), rows_before
        rows_before += group_rows
    return [], rows_before


def _read_hub(source: Source) -> Iterator[Document]:
    from datasets import load_dataset

    options, number = source.options, 0
    try:
        rows = load_dataset(
            source.name, options.hub_config, split=options.hub_split, streaming=True, revision=source.revision
        )
        # Streaming: a dataset of the Hub may be larger than the disk of this machine.
        for number, row in enumerate(rows, start=1):
            yield _row_document(row, f"dataset {source.name}, row {number}", options, number - 1, 0)
    except UserError:
        raise
    except Exception as error:
        # What can fail depends on the dataset's files and on the network.
        dataset = f"dataset {source.name} (configuration {options.hub_config}, split {options.hub_split})"
        progress = f" It failed after row {number}." if number else ""
        raise UserError(f"{dataset} cannot be read: {first_line(error)}.{progress}") from error


def _row_document(row: dict[str, Any], place: str, options: TextSource, start: int, position: int) -> Document:
    """Turns a row of a JSON lines file, Parquet file or Hub dataset into a document."""
    if options.text_column not in row:
        raise UserError(
            f"{place} has no field {options.text_column!r}, only {comma_separated(map(str, row))}. "
            f"Name the field with {flag('text_column')}.",
            setting="text_column",
        )
    # A missing title is normal; a missing text is a mistake in the input.
    text, title = row[options.text_column], row.get(options.title_column)
    if not isinstance(text, str):
        raise UserError(f"{place}: the field {options.text_column!r} is {type(text).__name__}, not text.")
    return Document(text, title if isinstance(title, str) else None, start, position)


class _Line(NamedTuple):
    """A line of a file, without its end.

    Args:
        number: from 1; counted from where reading started.
        text: the line.
        start: byte of the file at which it starts.
        end: byte after it. For a compressed file both are bytes of the compressed file, good for progress only.
    """

    number: int
    text: str
    start: int
    end: int


def _read_lines(source: Source, start: int) -> Iterator[_Line]:
    number = 0
    try:
        with _open(source.location) as raw:
            # A compressed file is only read from its beginning.
            raw.seek(start)
            position = start
            for number, data in enumerate(decompressed(raw, Path(source.name).suffix), start=1):
                # Only the first line of a file can have a byte-order mark.
                text = decode_line(data, source.name, number if start == 0 else number + 1, source.options.encoding)
                line_start, position = position, raw.tell()
                yield _Line(number, text, line_start, position)
    except DAMAGED_COMPRESSION as error:
        raise UserError(
            f"{source.name} is damaged after line {number} ({first_line(error)}). Download or compress it again."
        ) from error
