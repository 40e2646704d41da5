"""From tokenized sequences to the forward passes of one process; shared by pre-training and all tasks.

Sequences become tensors, padded or packed, of static shapes for compiled graphs. A step is a set of example ids: how
processes share it and cut it into micro-batches changes nothing but the order of sums, as every loss term is divided by
its count over the complete set.

Shape legend: `B` sequences, `S` columns of a padded batch, `T` tokens of all sequences together.
"""

import itertools
import math
import multiprocessing.connection
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, Dataset

from bert_repro.configs import RunConfig
from bert_repro.errors import ProcessKilledError, UserError
from bert_repro.utils.arrays import Int64Array, pad, places_in_row, row_starts
from bert_repro.utils.process import keep_child_signal_handler, leave_signals_to_parent

IGNORE_INDEX = -100
PREFETCHED_STEPS = 4  # by each loader process
_SECONDS_TO_END = 5.0

IntArray = npt.NDArray[np.integer]
Ids = npt.NDArray[np.int64]
Batch = dict[str, Any]


def collate_features(
    features: Sequence[Mapping[str, Any]], *, pad_token_id: int, packing: bool, pad_to_multiple_of: int | None = None
) -> Batch:
    """Puts tokenized texts of different lengths into one batch of model inputs.

    Other fields of the features are left to the caller.

    Args:
        features: one mapping per sequence with `input_ids` and, in every one or none, `token_type_ids`.
        pad_token_id: fills the places after a sequence's end.
        packing: lay the sequences end to end instead of padding them to the longest.
        pad_to_multiple_of: round S up to a multiple of this; for padded batches only.

    Returns:
        Padded: `input_ids`, `token_type_ids`, `attention_mask`, int64 (B, S).
        Packed: `input_ids`, `token_type_ids`, `position_ids`, int64 (1, T); `cu_seq_lens_q` and `cu_seq_lens_k`, int32
        (B + 1); `max_length_q` and `max_length_k`, plain integers.
        `token_type_ids` only if the features have them.
    """
    fields = {name: flatten_field(features, name) for name in ("input_ids", "token_type_ids") if name in features[0]}
    lengths = np.array([len(feature["input_ids"]) for feature in features], dtype=np.int64)
    if packing:
        return packed_batch(fields, lengths, int(lengths.max()))
    multiple = pad_to_multiple_of or 1
    width = math.ceil(int(lengths.max()) / multiple) * multiple
    return padded_batch(fields, lengths, width, {"input_ids": pad_token_id, "token_type_ids": 0})


def on_device(batch: Mapping[str, Any], device: torch.device | str) -> Batch:
    """Returns a batch with its tensors on a device; needs torch alone, as the demo has no Accelerate."""
    return {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in batch.items()}


def padded_batch(fields: Mapping[str, IntArray], lengths: Int64Array, width: int, fill: Mapping[str, int]) -> Batch:
    """Lays flat fields out as (B, `width`) with an `attention_mask`; `fill` names each field's padding value."""
    batch: Batch = {name: int64_tensor(pad(flat, lengths, width, fill[name])) for name, flat in fields.items()}
    batch["attention_mask"] = torch.from_numpy((np.arange(width) < lengths[:, None]).astype(np.int64))
    return batch


def packed_batch(fields: Mapping[str, IntArray], lengths: Int64Array, longest: int) -> Batch:
    """Lays flat fields out as (1, T) with positions and the offsets that attention needs."""
    batch: Batch = {name: int64_tensor(flat[None]) for name, flat in fields.items()}
    batch["position_ids"] = torch.from_numpy(places_in_row(lengths)[None])
    starts = torch.from_numpy(row_starts(lengths).astype(np.int32))
    batch.update(cu_seq_lens_q=starts, cu_seq_lens_k=starts, max_length_q=longest, max_length_k=longest)
    return batch


def flatten_field(features: Sequence[Mapping[str, Any]], name: str) -> Int64Array:
    """Joins one field of all sequences, int64 [T]."""
    return np.concatenate([np.asarray(feature[name], dtype=np.int64) for feature in features])


def int64_tensor(array: npt.NDArray[np.generic]) -> torch.Tensor:
    """Returns the array as an int64 tensor."""
    return torch.from_numpy(array.astype(np.int64, copy=False))


@dataclass(frozen=True)
class Step:
    """One optimizer step.

    Args:
        passes: example ids of each forward pass, in the source's own form; process p of n takes `passes[p::n]`, and all
            processes have as many, since collectives pair them up.
        group: which part of the run this is (a pre-training phase); the source's `load` needs it.
        position: position in the data after this step; JSON.
        flops_per_token: useful FLOPs per token, from which the MFU is shown; 0: not shown.
        totals: for each loss term of the model's output, what its sum is divided by over the global batch; filled in
            when the batch is loaded.
    """

    passes: list[Ids]
    group: int
    position: dict[str, Any]
    flops_per_token: float = 0.0
    totals: dict[str, int] = field(default_factory=dict)

    @property
    def ids(self) -> Ids:
        """Example ids of the global batch; first dimension is the batch."""
        return np.concatenate(self.passes)


@dataclass(frozen=True)
class MicroBatch:
    """One forward pass.

    Args:
        inputs: keyword arguments of the model.
        counts: for each loss term, how many terms this micro-batch's mean is over.
        tokens: tokens, padding not counted.
    """

    inputs: dict[str, Any]
    counts: dict[str, int]
    tokens: int

    def pin_memory(self) -> "MicroBatch":
        """Returns the same in page-locked memory, from which copies to a device overlap with its work."""
        pinned = {name: value.pin_memory() if torch.is_tensor(value) else value for name, value in self.inputs.items()}
        return MicroBatch(pinned, self.counts, self.tokens)


class BatchSource(Protocol):
    """What each step of a run reads; picklable, so that loader processes can `load`.

    Args:
        total_steps: optimizer steps of the complete run.
        data_fingerprint: what decides which examples each step takes and what they mean; a resumed run must have the
            same.
    """

    total_steps: int
    data_fingerprint: dict[str, Any]

    def steps(self, position: dict[str, Any] | None) -> Iterator[Step]:
        """Yields the steps from a position on (None: from the beginning)."""

    def load(self, ids: Ids, group: int) -> MicroBatch:
        """Reads, masks and collates examples; a pure function of its arguments."""

    def totals(self, ids: Ids, group: int) -> dict[str, int]:
        """Returns the `totals` of a step; may read its examples."""


@dataclass(frozen=True)
class BatchSizes:
    """How a global batch is laid out: `batch` sequences a step, `micro` of them at most per device and forward pass."""

    batch: int
    micro: int


def batch_sizes(config: RunConfig, processes: int, default: int, *, fixed: int | None = None) -> BatchSizes:
    """Resolves the three batch settings (docs/explanations/batches.md).

    Args:
        config: its `train_batch_size`, `per_device_train_batch_size` and `gradient_accumulation_steps`.
        processes: devices that share the work.
        default: the paper's batch, where the user gives nothing.
        fixed: a batch that is already decided (a phase's), in place of `train_batch_size`.

    Raises:
        UserError: the settings contradict each other, or the batch cannot be shared evenly.
    """
    per_device, accumulation = config.per_device_train_batch_size, config.gradient_accumulation_steps
    batch = fixed or config.train_batch_size
    if batch is None:
        batch = default if per_device is None else per_device * (accumulation or 1) * processes
    elif per_device is not None and accumulation is not None and batch != per_device * accumulation * processes:
        raise UserError(
            f"a batch of {batch} sequences is not --per_device_train_batch_size {per_device} x "
            f"--gradient_accumulation_steps {accumulation} x {processes} processes; leave one of them out"
        )
    if batch % processes:
        raise UserError(f"a batch of {batch} sequences cannot be shared by {processes} processes; choose a multiple")
    share = batch // processes
    return BatchSizes(batch, min(share, per_device or math.ceil(share / (accumulation or 1))))


def even_passes(ids: Ids, micro: int, processes: int) -> list[Ids]:
    """Cuts a batch into the `Step.passes` of all processes, of at most `micro` examples each, counted alone."""
    shares = [ids[process::processes] for process in range(processes)]
    cut = [np.array_split(share, math.ceil(len(share) / micro)) for share in shares]
    return [passes[number] for number in range(len(cut[0])) for passes in cut]


def load_steps(
    source: BatchSource,
    position: dict[str, Any] | None,
    count: int | None,
    *,
    process: int,
    processes: int,
    num_workers: int,
    pin_memory: bool,
) -> Iterator[tuple[Step, list[MicroBatch]]]:
    """Yields the next steps with this process's micro-batches, loaded ahead where there are loader processes.

    Args:
        source: the data.
        position: position in the data.
        count: steps to load; None: all that the source has.
        process: index of this process.
        processes: number of processes.
        num_workers: loader processes; 0 loads in this process.
        pin_memory: whether batches end in page-locked memory.

    Raises:
        UserError: of the source's `load`, in whichever process.
        ProcessKilledError: a loader process was killed.
    """
    loader = DataLoader(
        _Share(source, process, processes),
        sampler=source.steps(position),
        batch_size=None,
        collate_fn=_as_is,
        num_workers=num_workers,
        prefetch_factor=PREFETCHED_STEPS if num_workers else None,
        pin_memory=pin_memory,
        worker_init_fn=_leave_signals_to_parent,
        # The default draws the base seed of loader processes from the global generator.
        generator=torch.Generator(),
    )
    with keep_child_signal_handler():
        loaded = iter(loader)
    try:
        for item in itertools.islice(loaded, count):
            if isinstance(item, UserError):
                raise item
            yield item
    except (RuntimeError, OSError, EOFError) as error:  # of the loader, or of a tensor that can no longer be fetched
        # Its connections close a moment before a killed process is gone.
        sentinels = [worker.sentinel for worker in getattr(loaded, "_workers", ())]
        if not sentinels or not multiprocessing.connection.wait(sentinels, timeout=_SECONDS_TO_END):
            raise
        raise ProcessKilledError("a process that loads data was killed, most often for want of memory") from error


class _Share(Dataset["tuple[Step, list[MicroBatch]] | UserError"]):
    """This process's micro-batches of a step, or what is wrong with its data.

    A loader process that raises has its traceback put into the message, so the error is handed over as it is.
    """

    def __init__(self, source: BatchSource, process: int, processes: int) -> None:
        self.source, self.process, self.processes = source, process, processes

    def __getitem__(self, step: Step) -> tuple[Step, list[MicroBatch]] | UserError:  # type: ignore[override]
        try:
            step = replace(step, totals=self.source.totals(step.ids, step.group))
            return step, [self.source.load(ids, step.group) for ids in step.passes[self.process :: self.processes]]
        except UserError as error:
            return error


def _leave_signals_to_parent(_: int) -> None:
    leave_signals_to_parent()  # the loader must continue until the step is finished


def _as_is(item: Any) -> Any:
    return item
