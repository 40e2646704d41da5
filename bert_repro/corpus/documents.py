"""Reads documents from text files, JSON lines, Parquet (see `SUFFIXES`) and datasets of the Hugging Face Hub.

Only text and JSON lines may be compressed (.gz, .xz); Parquet has its own compression. Documents come in input order,
one at a time: memory holds one document (for Parquet one batch of rows), never a file, and no document beyond a limit.
Bad input is a `UserError` that names the file and the line, row or byte.
"""

import glob
import gzip
import logging
import lzma
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

from bert_repro.configs import TextConfig, looks_like_a_folder
from bert_repro.errors import UserError
from bert_repro.utils.digests import known_digests
from bert_repro.utils.readers import decode_line, half_surrogate, listed, parse_json, shown

logger = logging.getLogger("bert_repro")

SUFFIXES = (".txt", ".txt.gz", ".txt.xz", ".jsonl", ".jsonl.gz", ".jsonl.xz", ".parquet")
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
PART_CHARACTERS, BLOCK_CHARACTERS = 32_000_000, 500_000
PARQUET_BATCH_ROWS = 256
_PARQUET_BATCH_BYTES = 64_000_000
_BOMB_BYTES, _BOMB_RATIO = 500_000_000, 200  # text is packed to a third, or to a fiftieth where it repeats itself
MAX_DOCUMENT_BYTES = TextConfig.max_document_bytes


class Document(NamedTuple):
    """One document of the input.

    Args:
        text: as in the source, line breaks included.
        title: where the source has one, else None.
        position: bytes of its source read so far, for progress bars; 0 where unknown.
    """

    text: str
    title: str | None
    position: int


@dataclass(frozen=True)
class Source:
    """One file, or one dataset of the Hub.

    Args:
        name: path of the file as given, or id of the dataset.
        size: bytes on disk; 0 for a dataset of the Hub.
        revision: commit of a dataset of the Hub; None for a file.
    """

    name: str
    size: int
    revision: str | None = None


def find_sources(input_files: Sequence[str]) -> list[Source]:
    """Resolves the names the user gave to files and Hub datasets, in a defined order.

    Args:
        input_files: files, folders (searched with their subfolders), glob patterns, or ids of Hub datasets. The order
            given is kept; the files of a folder or pattern are sorted by name.

    Raises:
        UserError: nothing is named, a name does not exist, a format is unknown, or a file is named twice.
    """
    if not input_files:
        raise UserError("input_files is empty; name at least one file, folder, pattern or Hub dataset")
    sources = [source for name in input_files for source in _resolve(name)]
    seen: set[str] = set()
    for source in sources:
        if source.name in seen:
            raise UserError(f"{source.name} is named twice by input_files; name it once")
        seen.add(source.name)
    return sources


def source_identities(sources: list[Source]) -> list[list[Any]]:
    """Returns name, size, revision and SHA-256 of each source: a file written again at equal size is another one."""
    names: dict[Path, list[str]] = {}
    for source in sources:
        if source.revision is None:
            names.setdefault(Path(source.name).parent, []).append(Path(source.name).name)
    digests = {
        str(folder / name): digest for folder in names for name, digest in known_digests(folder, names[folder]).items()
    }
    return [[source.name, source.size, source.revision, digests.get(str(Path(source.name)))] for source in sources]


def read_documents(
    source: Source,
    *,
    text_column: str = "text",
    title_column: str = "title",
    hub_config: str | None = None,
    hub_split: str = "train",
    max_bytes: int = MAX_DOCUMENT_BYTES,
) -> Iterator[Document]:
    """Reads the documents of one source in order.

    In `.txt` a blank line ends a document, as in the input of the original implementation. In the other formats a row
    is a document. Documents without text are skipped.

    Args:
        source: from `find_sources`.
        text_column: field or column that holds the text.
        title_column: field or column that holds the title; it may be missing.
        hub_config: configuration of a Hub dataset, for example `20231101.en`.
        hub_split: split of a Hub dataset.
        max_bytes: longest line or document.

    Raises:
        UserError: the source is damaged, is not UTF-8, lacks the text, or has a longer one; with file and line or row.
    """
    if source.revision is not None:
        documents = _read_hub(source, text_column, title_column, hub_config, hub_split, max_bytes)
    elif source.name.endswith(".parquet"):
        documents = _read_parquet(Path(source.name), text_column, title_column, max_bytes)
    elif ".jsonl" in Path(source.name).suffixes:
        documents = _read_json_lines(Path(source.name), text_column, title_column, max_bytes)
    else:
        documents = _read_text(Path(source.name), max_bytes)
    return (document for document in documents if not document.text.isspace() and document.text)


def read_all(config: TextConfig, sources: Sequence[Source]) -> Iterator[Document]:
    """Reads the documents of all sources in order, up to `max_documents`, with a progress bar over their bytes."""
    from tqdm.auto import tqdm

    total = sum(source.size for source in sources)
    number = finished = 0
    with tqdm(total=total or None, unit="B", unit_scale=True, desc="reading", disable=None) as bar:
        for source in sources:
            for document in read_documents(
                source,
                text_column=config.text_column,
                title_column=config.title_column,
                hub_config=config.hub_config,
                hub_split=config.hub_split,
                max_bytes=config.max_document_bytes,
            ):
                if number == config.max_documents:
                    return
                number += 1
                yield document
                bar.update(finished + document.position - bar.n)
            finished += source.size
            bar.update(finished - bar.n)


def read_blocks(config: TextConfig, sources: Sequence[Source]) -> Iterator[tuple[int, list[Document]]]:
    """Yields (number of the part, documents): cut by characters of the input, so the same in every run."""
    part = part_characters = block_characters = 0
    block: list[Document] = []
    for document in read_all(config, sources):
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
        links = [file for file in found if file.is_symlink()]
        if links:  # one may lead anywhere on this machine, or to a file that is read already
            logger.warning("Not read: links in %s (%s); name the files they lead to.", name, listed(map(str, links)))
        if len(links) == len(found):
            raise UserError(f"folder {name} holds no corpus file; expected one of {', '.join(SUFFIXES)}")
        return [_file_source(file) for file in found if not file.is_symlink()]
    if glob.has_magic(name):
        files = sorted(Path(match) for match in glob.glob(name, recursive=True) if Path(match).is_file())
        if not files:
            raise UserError(f"no file matches the pattern {name!r}")
        return [_file_source(file) for file in files]
    if name.endswith(SUFFIXES) or looks_like_a_folder(name) or not HUB_ID.fullmatch(name):
        raise UserError(f"input file {name} does not exist; check the path")
    return [_hub_source(name)]


def _file_source(path: Path) -> Source:
    if path.name.endswith((".parquet.gz", ".parquet.xz")):
        raise UserError(f"{path}: Parquet has its own compression; decompress the file and name the .parquet file")
    if not path.name.endswith(SUFFIXES):
        raise UserError(f"{path}: unknown corpus format; expected one of {', '.join(SUFFIXES)}")
    return Source(str(path), path.stat().st_size)


def _hub_source(name: str) -> Source:
    from huggingface_hub import HfApi

    try:
        revision = HfApi().dataset_info(name).sha
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(f"{name!r} is neither a local file or folder nor a dataset on the Hub: {reason}") from error
    return Source(name, 0, str(revision))


def _read_text(path: Path, max_bytes: int) -> Iterator[Document]:
    lines: list[str] = []
    position = size = 0
    for number, line, position in _read_lines(path, max_bytes):
        if line.strip():
            lines.append(line)
            size += len(line) + 1
            if size > max_bytes:
                raise _too_long(f"{path}, line {number - len(lines) + 1}: the document", max_bytes)
        elif lines:
            yield Document("\n".join(lines), None, position)
            lines, size = [], 0
    if lines:
        yield Document("\n".join(lines), None, position)


def _read_json_lines(path: Path, text_column: str, title_column: str, max_bytes: int) -> Iterator[Document]:
    for number, line, position in _read_lines(path, max_bytes):
        if not line.strip():
            continue
        place = f"{path}, line {number}"
        row = parse_json(line, place, "write the line again", any_text=True)
        if not isinstance(row, dict):
            raise UserError(f"{place}: expected a JSON object, found {type(row).__name__}")
        yield _row_document(row, place, text_column, title_column, position, max_bytes)


def _read_parquet(path: Path, text_column: str, title_column: str, max_bytes: int) -> Iterator[Document]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    row = 0
    try:
        schema = pq.read_schema(path)
        if text_column not in schema.names:
            raise UserError(f"{path}: no column {text_column!r}; it has {listed(schema.names)}. Set text_column")
        columns = [name for name in (text_column, title_column) if name in schema.names]
        for name in (name for name in columns if pa.types.is_nested(schema.field(name).type)):
            raise UserError(f"{path}: column {name!r} holds {shown(str(schema.field(name).type))}; it must hold texts")
        # A text that is stored once and named often stays so: unpacked, a few bytes a row can be gigabytes.
        texts = [name for name in columns if schema.field(name).type in (pa.string(), pa.large_string())]
        with pq.ParquetFile(path, read_dictionary=texts) as file:
            size, rows = path.stat().st_size, file.metadata.num_rows
            _refuse_bomb(path, file.metadata)
            mean_bytes = _mean_bytes(file.metadata)
            if mean_bytes > max_bytes:  # refused before one such row is unpacked
                raise _too_long(f"{path}: a row", max_bytes)
            batch_rows = int(max(1, min(PARQUET_BATCH_ROWS, _PARQUET_BATCH_BYTES // max(1, mean_bytes))))
            for batch in file.iter_batches(batch_size=batch_rows, columns=columns):
                for number in range(batch.num_rows):
                    row += 1
                    values = {name: batch.column(name)[number].as_py() for name in columns}
                    place = f"{path}, row {row}"
                    yield _row_document(values, place, text_column, title_column, size * row // max(1, rows), max_bytes)
            if row != rows:
                raise UserError(f"{path}: damaged, it holds {row:,} rows and says {rows:,}; get the file again")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}, row {row}: not UTF-8 ({_one_line(error)}); write the file again") from error
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path}: damaged or not a Parquet file, after row {row} ({_one_line(error)})") from error


def _refuse_bomb(path: Path, metadata: Any) -> None:
    """Refuses rows that unpack to so much of so little as no text does.

    Only row groups are asked: about a damaged column the library ends the process.
    """
    packed = path.stat().st_size
    for number in range(metadata.num_row_groups):
        unpacked = metadata.row_group(number).total_byte_size
        if unpacked > _BOMB_BYTES and unpacked > _BOMB_RATIO * packed:
            raise UserError(
                f"{path}: unpacks {packed:,} bytes to {unpacked:,} or more, which is no text; get the file again"
            )


def _mean_bytes(metadata: Any) -> float:
    """Returns the unpacked bytes of a row on average, in the row group where they are most."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    return float(max([0.0, *(group.total_byte_size / max(1, group.num_rows) for group in groups)]))


def _read_hub(
    source: Source, text_column: str, title_column: str, config: str | None, split: str, max_bytes: int
) -> Iterator[Document]:
    from datasets import load_dataset

    dataset = f"dataset {source.name} (configuration {config}, split {split})"
    number = 0
    try:
        rows = iter(load_dataset(source.name, config, split=split, streaming=True, revision=source.revision))
        while (row := next(rows, None)) is not None:
            number += 1
            place = f"dataset {source.name}, row {number}"
            yield _row_document(row, place, text_column, title_column, 0, max_bytes)
    except UserError:
        raise
    except Exception as error:  # what can fail depends on the dataset's files and on the network
        so_far = f"; it failed after row {number}; start again to continue after the finished parts" if number else ""
        raise UserError(f"{dataset}: {_one_line(error)}{so_far}") from error


def _row_document(
    row: dict[str, Any], place: str, text_column: str, title_column: str, position: int, max_bytes: int
) -> Document:
    if text_column not in row:
        raise UserError(f"{place}: no field {text_column!r}; it has {listed(map(str, row))}. Set text_column")
    text, title = row[text_column], row.get(title_column)
    if not isinstance(text, str):
        raise UserError(f"{place}: field {text_column!r} is {type(text).__name__}, expected text")
    if len(text) > max_bytes:
        raise _too_long(f"{place}: field {text_column!r}", max_bytes)
    if place_of_half := half_surrogate(text):
        raise UserError(
            f"{place}: field {text_column!r} has half a surrogate pair at character {place_of_half}; repair it"
        )
    return Document(text, title if isinstance(title, str) else None, position)


def _read_lines(path: Path, max_bytes: int) -> Iterator[tuple[int, str, int]]:
    """Yields (line number from 1, line without its end, bytes of the file read so far)."""
    number = 0
    with open(path, "rb") as raw:
        try:
            file = _decompressor(path)(raw)
            while data := file.readline(max_bytes + 1):  # a small compressed file may unpack to one line of gigabytes
                number += 1
                if len(data) > max_bytes:
                    raise _too_long(f"{path}, line {number}", max_bytes)
                yield number, decode_line(data, path, number), raw.tell()
        except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile) as error:
            raise UserError(
                f"{path}: damaged after line {number} ({_one_line(error)}); download or compress it again"
            ) from error


def _too_long(what: str, max_bytes: int) -> UserError:
    return UserError(
        f"{what} is longer than {max_bytes:,} bytes; split it (in .txt a blank line ends a document) or raise "
        "--max_document_bytes"
    )


def _decompressor(path: Path) -> Callable[[IO[bytes]], IO[bytes]]:
    if path.suffix == ".gz":
        return lambda raw: gzip.open(raw)  # type: ignore[return-value]
    if path.suffix == ".xz":
        return lambda raw: lzma.open(raw)
    return lambda raw: raw


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
