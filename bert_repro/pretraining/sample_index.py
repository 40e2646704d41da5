"""The plan of an epoch: its pre-training pairs, drawn once from the documents, as a table on disk."""

import json
import logging
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO
from zlib import crc32

import numpy as np

from bert_repro.configs import ExampleConfig
from bert_repro.errors import UserError
from bert_repro.pretraining.segment_pairs import (
    FORCED,
    NOT_NEXT,
    ROW,
    PairGenerator,
    PairRules,
    RowArray,
    SentenceBoundaries,
)
from bert_repro.utils.ragged import Int64Array

logger = logging.getLogger("bert_repro")

_FORMAT_VERSION = 1
_HEADER_BYTES = 4096
_CHECKSUM_BYTES = 1 << 24


@dataclass(frozen=True)
class PlanStatistics:
    """What an epoch plan holds.

    Args:
        rows: examples.
        not_next: examples labelled NotNext.
        forced: of those, where the released sampling left no choice.
        tokens: tokens of all examples, [CLS] and [SEP] included.
    """

    rows: int
    not_next: int
    forced: int
    tokens: int

    @property
    def not_next_share(self) -> float:
        """Share of NotNext: 0.5 in paper mode, more in released mode."""
        return self.not_next / self.rows

    @property
    def forced_share(self) -> float:
        """Share of examples that could only be NotNext."""
        return self.forced / self.rows

    @property
    def mean_length(self) -> float:
        """Tokens per example."""
        return self.tokens / self.rows


class EpochPlan:
    """The examples of one epoch: a memory-mapped table on disk, 28 bytes a row.

    The file is a JSON header of fixed size (what the rows were made from, their statistics, a checksum) and the rows.

    Args:
        path: the file.
        header: its decoded header.
    """

    def __init__(self, path: Path, header: dict[str, Any]) -> None:
        self.path = path
        self.statistics = PlanStatistics(**header["statistics"])
        self._header = header
        self.rows: RowArray = np.memmap(path, ROW, mode="r", offset=_HEADER_BYTES, shape=(self.statistics.rows,))

    def __len__(self) -> int:
        return self.statistics.rows

    @classmethod
    def build(
        cls,
        corpus: SentenceBoundaries,
        documents: Int64Array,
        config: ExampleConfig,
        *,
        max_seq_length: int,
        seed: int,
        phase: int,
        epoch: int,
        folder: str | Path,
    ) -> "EpochPlan":
        """Draws an epoch's examples, or opens the plan that an earlier call left in `folder`.

        Args:
            corpus: boundaries of documents and sentences.
            documents: ids of the documents to use, int64.
            config: how pairs are made.
            max_seq_length: tokens of an example at most, [CLS] and [SEP] included.
            seed: the run's seed.
            phase: number of the phase.
            epoch: number of the pass over the documents; with static examples, of so many passes as `dupe_factor` says.
            folder: where plans are kept.

        Raises:
            UserError: too few documents for pairs, or no document that makes an example.
        """
        rules = PairRules.of(config, max_seq_length)
        passes = config.dupe_factor or 1
        made_from = _made_from(corpus, documents, rules, passes, (seed, phase, epoch))
        path = _plan_path(folder, made_from)
        if path.exists():
            try:
                plan = cls.open(path)
                plan.verify()
                return plan
            except UserError as error:
                logger.warning("%s; drawing the examples again", error)
        blocks = (
            block
            for number in range(epoch * passes, (epoch + 1) * passes)
            for block in PairGenerator(corpus, documents, rules, seed, phase, number).blocks()
        )
        return _write_plan(path, made_from, blocks)

    @classmethod
    def open(cls, path: str | Path) -> "EpochPlan":
        """Opens a plan without reading its rows.

        Raises:
            UserError: the file is no plan, is truncated, or its header is damaged.
        """
        path = Path(path)
        try:
            with path.open("rb") as file:
                header = json.loads(file.read(_HEADER_BYTES))
            plan_bytes = _HEADER_BYTES + header["statistics"]["rows"] * ROW.itemsize
            version = header["made_from"]["format_version"]
            if version != _FORMAT_VERSION:
                raise UserError(f"{path}: format_version {version}, this package reads {_FORMAT_VERSION}; remove it")
            if path.stat().st_size != plan_bytes:
                raise UserError(f"{path}: has {path.stat().st_size} bytes, not {plan_bytes}: it is damaged; remove it")
            return cls(path, header)
        except FileNotFoundError as error:
            raise UserError(f"{path}: no such file; build the epoch plan first") from error
        except UserError:
            raise
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path}: not an epoch plan, or its header is damaged; remove it") from error

    def verify(self) -> None:
        """Reads all rows and compares their checksum with the header's.

        Raises:
            UserError: they differ.
        """
        rows, step = self.rows, _CHECKSUM_BYTES // ROW.itemsize
        checksum = 0
        for start in range(0, len(rows), step):
            checksum = crc32(rows[start : start + step].tobytes(), checksum)
        if _seal(self._header, checksum) != self._header["checksum"]:
            raise UserError(f"{self.path}: checksum does not match: it is damaged; remove it")

    def remove_earlier(self, epoch: int) -> None:
        """Removes the files of plans that differ from this one in the epoch alone and come before `epoch`."""
        series = self.path.name[: self.path.name.rindex("-epoch")]
        for path in self.path.parent.glob(f"{series}-epoch*.plan"):
            if int(path.stem.removeprefix(f"{series}-epoch")) < epoch:
                path.unlink(missing_ok=True)


def sequence_lengths(rows: RowArray) -> Int64Array:
    """Tokens of each example, [CLS] and [SEP] included.

    Args:
        rows: rows of a plan, [B].

    Returns:
        int64 [B].
    """
    lengths: Int64Array = rows["length_a"].astype(np.int64) + rows["length_b"] + np.where(rows["length_b"] > 0, 3, 2)
    return lengths


def _made_from(
    corpus: SentenceBoundaries, documents: Int64Array, rules: PairRules, passes: int, names: tuple[int, int, int]
) -> dict[str, Any]:
    """Everything that decides a plan's rows, in a form that JSON keeps."""
    return {
        "format_version": _FORMAT_VERSION,
        **asdict(rules),
        "passes": passes,
        **dict(zip(("seed", "phase", "epoch"), names, strict=True)),
        "boundaries": _digest(corpus.sentence_starts, corpus.document_sentences),
        "documents": _digest(documents),
    }


def _digest(*arrays: Int64Array) -> str:
    digest = blake2b(digest_size=16)
    for array in arrays:
        digest.update(np.ascontiguousarray(array, dtype=np.int64).data)
    return digest.hexdigest()


def _plan_path(folder: str | Path, made_from: dict[str, Any]) -> Path:
    series = {name: value for name, value in made_from.items() if name != "epoch"}
    digest = blake2b(json.dumps(series, sort_keys=True).encode(), digest_size=8).hexdigest()
    return Path(folder) / f"phase{made_from['phase']}-{digest}-epoch{made_from['epoch']}.plan"


def _seal(header: dict[str, Any], checksum: int) -> int:
    """Goes on with the checksum of the rows over what the header says of them."""
    return crc32(json.dumps([header["made_from"], header["statistics"]], sort_keys=True).encode(), checksum)


def _write_plan(path: Path, made_from: dict[str, Any], blocks: Iterator[RowArray]) -> EpochPlan:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Several processes may draw the same plan at once; each writes its own file, and the last rename wins.
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(b" " * _HEADER_BYTES)
            statistics, checksum = _write_rows(file, blocks)
            header: dict[str, Any] = {"made_from": made_from, "statistics": asdict(statistics)}
            header["checksum"] = _seal(header, checksum)
            file.seek(0)
            file.write(json.dumps(header).encode())
            file.flush()
            os.fsync(file.fileno())
        # Mapped before it gets its name, after which another process may discard it.
        plan = EpochPlan.open(temporary)
        os.replace(temporary, path)
        plan.path = path
        return plan
    finally:
        temporary.unlink(missing_ok=True)


def _write_rows(file: BinaryIO, blocks: Iterator[RowArray]) -> tuple[PlanStatistics, int]:
    rows = not_next = forced = tokens = checksum = 0
    for block in blocks:
        data = block.view(np.uint8).data
        file.write(data)
        checksum = crc32(data, checksum)
        rows += len(block)
        not_next += int(np.count_nonzero(block["flags"] & NOT_NEXT))
        forced += int(np.count_nonzero(block["flags"] & FORCED))
        tokens += int(sequence_lengths(block).sum())
    if not rows:
        raise UserError("no document makes a pre-training example: each has one token; give longer documents")
    return PlanStatistics(rows, not_next, forced, tokens), checksum
