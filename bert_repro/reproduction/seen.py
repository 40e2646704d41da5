"""Finds the documents of a corpus that contain a text, and the steps at which a pre-training run read them.

Order of events in `seen`:

1. Turn the texts into token ids with the tokenizer of the corpus.
2. Scan the memory-mapped token ids once: hash every window of up to eight tokens, look the hashes up among those of the
   texts, compare the candidates token by token.
3. For each occurrence find the examples whose segments contain it, in the sample index of every epoch.
4. Each example has one place in its epoch's order, which gives the step. Rebuild it to show what was masked.

Shape legend: `W` windows of the corpus, `K` occurrences, `E` examples of an epoch.
"""

import logging
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bert_repro.configs import SeenConfig
from bert_repro.corpus.prepared_corpus import PreparedCorpus
from bert_repro.errors import UserError, flag
from bert_repro.pretraining.dataset import ExampleStream, PretrainingSource, permute
from bert_repro.reproduction.replay import PublishedRun, example_texts, open_run
from bert_repro.tasks import TASKS
from bert_repro.utils.arrays import Int64Array
from bert_repro.utils.randomness import Stream

logger = logging.getLogger("bert_repro")

_WINDOW_TOKENS = 8
_CHUNK_TOKENS = 1 << 22  # tokens that are hashed at a time
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # odd, so that multiplication modulo 2**64 loses nothing
_FILTER_BITS = 20  # A table of 2**20 flags excludes nearly all windows before the exact look-up.

UInt64Array = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Occurrence:
    """A place where the corpus contains a text.

    Args:
        text: number of the text.
        document: id of the document.
        start: first token of the text, counted from the start of the document.
        length: tokens of the text.
        is_heldout: whether the document is held out, so that training never reads it.
    """

    text: int
    document: int
    start: int
    length: int
    is_heldout: bool


@dataclass(frozen=True)
class Reading:
    """A step at which the run read an occurrence completely.

    Args:
        occurrence: the occurrence.
        step: the step, counted from 1.
        phase: phase of the step.
        example_id: epoch of the index and row in it, which identify the example.
    """

    occurrence: Occurrence
    step: int
    phase: int
    example_id: tuple[int, int]


@dataclass(frozen=True)
class SeenResult:
    """What was found.

    Args:
        texts: the texts that were looked for.
        occurrences: all places where the corpus contains one of them.
        readings: the steps at which they were read, in order.
    """

    texts: tuple[str, ...]
    occurrences: tuple[Occurrence, ...]
    readings: tuple[Reading, ...]

    @property
    def texts_found(self) -> list[int]:
        """Numbers of the texts that occur in the corpus."""
        return sorted({occurrence.text for occurrence in self.occurrences})


def seen(config: SeenConfig) -> SeenResult:
    """Finds texts in a corpus and the steps at which a run read them, and prints both.

    Raises:
        UserError: there is no such run, corpus or task, or the text is empty.
    """
    published = open_run(config.run, config.corpus)
    texts = _texts(config)
    queries = [_token_ids(published, text) for text in texts]
    if not any(len(query) >= config.min_tokens for query in queries):
        raise UserError(
            f"No text has {config.min_tokens} tokens, so it would be found everywhere. Pass a longer text, or lower "
            f"{flag('min_tokens')}.",
            setting="text",
        )
    long_enough = [query if len(query) >= config.min_tokens else query[:0] for query in queries]

    _, heldout = published.split()
    occurrences = find_texts(published.corpus, long_enough, heldout)
    with tempfile.TemporaryDirectory(prefix="bert_repro-seen-") as folder:
        source = published.source(Path(folder))
        readings = sorted(_readings(source, occurrences), key=lambda reading: reading.step)
        result = SeenResult(tuple(texts), tuple(occurrences), tuple(readings))
        sys.stdout.write(_report(published, source, result, config.max_shown))
    return result


# --- Texts ------------------------------------------------------------------------------------------------------------


def _texts(config: SeenConfig) -> list[str]:
    """Returns the text, or the texts of a task's dev rows."""
    if config.text:
        return [config.text]
    task_name = str(config.task_name)
    if task_name not in TASKS:
        raise UserError(
            f"{flag('task_name', task_name)} is not a task. Choose one of: {', '.join(TASKS)}", setting="task_name"
        )
    task = TASKS[task_name]
    splits = task.load(None if config.data_dir is None else Path(config.data_dir), task.eval_splits)
    texts: dict[str, None] = {}
    for dataset in splits.values():
        for row in dataset:
            # A label's name or an id is not a text to look for.
            texts.update((value.strip(), None) for value in row.values() if isinstance(value, str) and " " in value)
    return list(texts)


def _token_ids(published: PublishedRun, text: str) -> Int64Array:
    ids = published.tokenizer(text, add_special_tokens=False)["input_ids"]
    return np.asarray(ids, dtype=np.int64)


# --- Scan -------------------------------------------------------------------------------------------------------------


def find_texts(corpus: PreparedCorpus, queries: Sequence[Int64Array], heldout: Int64Array) -> list[Occurrence]:
    """Returns every place where the corpus contains one of several texts, in the order of the corpus.

    Args:
        corpus: the prepared corpus.
        queries: token ids of each text, int64; empty ones are skipped.
        heldout: ids of the held-out documents, int64.
    """
    # Texts that are shorter than a window are looked for with windows of their own length.
    by_window: dict[int, list[int]] = {}
    for number, query in enumerate(queries):
        if len(query):
            by_window.setdefault(min(len(query), _WINDOW_TOKENS), []).append(number)

    is_heldout = np.zeros(corpus.num_documents, dtype=bool)
    is_heldout[heldout] = True
    document_starts = np.asarray(corpus.document_starts)
    occurrences: list[Occurrence] = []
    for window, numbers in by_window.items():
        for number, position in _matches(corpus, queries, numbers, window):
            document = int(np.searchsorted(document_starts, position, side="right")) - 1
            length = len(queries[number])
            # A text does not continue in the next document.
            if position + length > document_starts[document + 1]:
                continue
            start = position - int(document_starts[document])
            occurrences.append(Occurrence(number, document, start, length, bool(is_heldout[document])))
    return sorted(occurrences, key=lambda occurrence: (occurrence.document, occurrence.start))


def _matches(
    corpus: PreparedCorpus, queries: Sequence[Int64Array], numbers: Sequence[int], window: int
) -> Iterator[tuple[int, int]]:
    """Yields text and position of every match, among texts whose windows have the same length."""
    hashes = np.array([int(_window_hashes(queries[number][:window], window)[0]) for number in numbers], dtype=np.uint64)
    is_possible = np.zeros(1 << _FILTER_BITS, dtype=bool)
    is_possible[_filter_place(hashes)] = True

    for start, tokens in _chunks(corpus, window):
        window_hashes = _window_hashes(tokens, window)
        candidates = np.flatnonzero(is_possible[_filter_place(window_hashes)])
        for candidate in candidates[np.isin(window_hashes[candidates], hashes)].tolist():
            for number in np.flatnonzero(hashes == window_hashes[candidate]).tolist():
                position = start + candidate
                query = queries[numbers[number]]
                if _is_at(corpus, query, position):
                    yield numbers[number], position


def _chunks(corpus: PreparedCorpus, window: int) -> Iterator[tuple[int, Int64Array]]:
    """Yields position and tokens of overlapping parts of the corpus, so that no window is cut."""
    for start in range(0, corpus.num_tokens, _CHUNK_TOKENS):
        end = min(start + _CHUNK_TOKENS + window - 1, corpus.num_tokens)
        if end - start >= window:
            yield start, _tokens(corpus, start, end)


def _tokens(corpus: PreparedCorpus, start: int, end: int) -> Int64Array:
    """Returns the tokens [start, end) of the corpus, whatever documents and files they are in."""
    # `gather` reads within documents, so cut the range at the documents' borders.
    document_starts = np.asarray(corpus.document_starts)
    first = int(np.searchsorted(document_starts, start, side="right"))
    last = int(np.searchsorted(document_starts, end, side="left"))
    borders = np.concatenate([[start], document_starts[first:last], [end]])
    return corpus.gather(borders[:-1], np.diff(borders)).astype(np.int64)


def _is_at(corpus: PreparedCorpus, query: Int64Array, position: int) -> bool:
    end = position + len(query)
    if end > corpus.num_tokens:
        return False
    return bool(np.array_equal(_tokens(corpus, position, end), query))


def _window_hashes(tokens: npt.NDArray[np.integer], window: int) -> UInt64Array:
    """Returns a polynomial hash of each window of tokens, uint64 [W]."""
    count = len(tokens) - window + 1
    values = tokens.astype(np.uint64) + np.uint64(1)
    hashes = np.zeros(count, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for offset in range(window):
            hashes = hashes * _MULTIPLIER + values[offset : offset + count]
        # The low bits of a product depend on low bits only, so mix the high ones in.
        return (hashes ^ (hashes >> np.uint64(31))) * _MULTIPLIER


def _filter_place(hashes: UInt64Array) -> Int64Array:
    return (hashes >> np.uint64(64 - _FILTER_BITS)).astype(np.int64)


# --- Steps ------------------------------------------------------------------------------------------------------------


def _readings(source: PretrainingSource, occurrences: Sequence[Occurrence]) -> Iterator[Reading]:
    """Yields the steps at which a run reads occurrences completely."""
    training = [occurrence for occurrence in occurrences if not occurrence.is_heldout]
    if not training:
        return
    first_step = 1
    for number, phase in enumerate(source.phases):
        stream = source.streams[number]
        examples_left = phase.steps * phase.batch
        examples_taken = 0
        epoch = 0
        while examples_left > 0:
            size = len(stream.indexes.get(epoch))
            places_read = min(size, examples_left)
            for occurrence, row, place in _examples_of_epoch(source, number, stream, epoch, training):
                # The phase ends inside of this epoch.
                if place >= places_read:
                    continue
                step = first_step + (examples_taken + place) // phase.batch
                yield Reading(occurrence, step, number, (stream.indexes.drawn_in(epoch), row))
            stream.indexes.discard_before(epoch)
            examples_left -= places_read
            examples_taken += places_read
            epoch += 1
        first_step += phase.steps


def _examples_of_epoch(
    source: PretrainingSource,
    phase: int,
    stream: ExampleStream,
    epoch: int,
    occurrences: Sequence[Occurrence],
) -> Iterator[tuple[Occurrence, int, int]]:
    """Yields the examples of an epoch that contain an occurrence: occurrence, row of the index, place in the order."""
    index = stream.indexes.get(epoch)
    documents = np.unique([occurrence.document for occurrence in occurrences])
    has_document = np.isin(index["document_a"], documents)
    has_document |= np.isin(index["document_b"], documents) & (index["length_b"] > 0)
    rows = np.flatnonzero(has_document)
    if not rows.size:
        return
    entries = index[rows]

    # The order is a permutation from places to rows; invert it.
    places = np.arange(len(index))
    place_of_row = np.empty(len(index), dtype=np.int64)
    place_of_row[permute(places, len(index), source.config.seed, phase, epoch, Stream.EXAMPLE_ORDER)] = places

    for occurrence in occurrences:
        is_inside = np.zeros(len(rows), dtype=bool)
        for segment in ("a", "b"):
            starts, lengths = entries[f"start_{segment}"], entries[f"length_{segment}"]
            is_same_document = entries[f"document_{segment}"] == occurrence.document
            begins_before = starts <= occurrence.start
            ends_after = starts + lengths >= occurrence.start + occurrence.length
            is_inside |= is_same_document & begins_before & ends_after
        for row in rows[is_inside].tolist():
            yield occurrence, row, int(place_of_row[row])


# --- Report -----------------------------------------------------------------------------------------------------------


def _report(published: PublishedRun, source: PretrainingSource, result: SeenResult, max_shown: int) -> str:
    """Returns what was found as text."""
    documents = {occurrence.document for occurrence in result.occurrences}
    heldout = {occurrence.document for occurrence in result.occurrences if occurrence.is_heldout}
    lines: list[str] = []
    if len(result.texts) > 1:
        lines.append(f"{len(result.texts_found):,} of {len(result.texts):,} texts occur in the corpus")
    lines.append(
        f"{len(result.occurrences):,} occurrence(s) in {len(documents):,} document(s), {len(heldout):,} of them held "
        "out from training"
    )
    for occurrence in result.occurrences[:max_shown]:
        side = "held out" if occurrence.is_heldout else "training"
        lines.append(
            f"  document {occurrence.document:,} ({side}), token {occurrence.start:,}{_quoted(result, occurrence)}"
        )

    lines.append(f"read completely at {len(result.readings):,} step(s) of {published.total_steps:,}")
    for reading in result.readings[:max_shown]:
        ids = np.array([reading.example_id], dtype=np.int64)
        (text,) = example_texts(published, source, reading.phase, ids)
        lines += [f"  step {reading.step:,}{_quoted(result, reading.occurrence)}", f"    {text}"]
    hidden = max(len(result.occurrences), len(result.readings)) - max_shown
    if hidden > 0:
        lines.append(f"the first {max_shown} are shown; {flag('max_shown')} shows more")
    return "\n".join(lines) + "\n"


def _quoted(result: SeenResult, occurrence: Occurrence) -> str:
    """Returns the text of an occurrence if several texts were looked for."""
    if len(result.texts) == 1:
        return ""
    return f": {result.texts[occurrence.text][:80]}"
