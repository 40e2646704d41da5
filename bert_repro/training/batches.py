"""From tokenized sequences to the forward passes of one process; shared by pre-training and all tasks.

Sequences become tensors, padded or packed, of static shapes for compiled graphs. A step is a set of example ids.
Processes and micro-batches only partition it, and every loss term is divided by its count over the complete set.
Without dropout, the partition therefore changes nothing but the order of sums. Dropout draws do depend on it.

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
from bert_repro.errors import ProcessKilledError, UserError, flag
from bert_repro.utils.arrays import Int64Array, pad, places_in_row, row_starts
from bert_repro.utils.process import keep_child_signal_handler, leave_signals_to_parent

IGNORE_INDEX = -100
PREFETCHED_STEPS = 4  # by each loader process
_SECONDS_TO_END = 5.0  # until the system has noticed that a loader process was killed

IntArray = npt.NDArray[np.integer]
Ids = npt.NDArray[np.int64]
Batch = dict[str, Any]


def collate_features(
    features: Sequence[Mapping[str, Any]], *, pad_token_id: int, packing: bool, pad_to_multiple_of: int | None = None
) -> Batch:
    """Joins tokenized texts of different lengths into one batch of model inputs.

    Other fields of the features are ignored.

    Args:
        features: one mapping per sequence with `input_ids` and, in every one or none, `token_type_ids`.
        pad_token_id: id of the padding after a sequence's end.
        packing: lay the sequences end to end instead of padding them to the longest.
        pad_to_multiple_of: round S up to a multiple of this; for padded batches only.

    Returns:
        Padded: `input_ids`, `token_type_ids`, `attention_mask`, int64 (B, S).
        Packed: `input_ids`, `token_type_ids`, `position_ids`, int64 (1, T); `cu_seq_lens_q` and `cu_seq_lens_k`, int32
        (B + 1); `max_length_q` and `max_length_k`, plain integers.
        `token_type_ids` only if the features have them.
    """
    names = [name for name in ("input_ids", "token_type_ids") if name in features[0]]
    fields = {name: flatten_field(features, name) for name in names}
    lengths = np.array([len(feature["input_ids"]) for feature in features], dtype=np.int64)
    if packing:
        return packed_batch(fields, lengths, int(lengths.max()))
    multiple = pad_to_multiple_of or 1
    # The width is the longest text, rounded up.
    width = math.ceil(int(lengths.max()) / multiple) * multiple
    return padded_batch(fields, lengths, width, {"input_ids": pad_token_id, "token_type_ids": 0})


def on_device(batch: Mapping[str, Any], device: torch.device | str) -> Batch:
    """Returns a batch with its tensors on a device. It uses torch alone, because the demo has no Accelerate."""
    moved: Batch = {}
    for name, value in batch.items():
        moved[name] = value.to(device) if isinstance(value, torch.Tensor) else value
    return moved


def padded_batch(fields: Mapping[str, IntArray], lengths: Int64Array, width: int, fill: Mapping[str, int]) -> Batch:
    """Pads flat fields to (B, `width`) and adds an `attention_mask`; `fill` has each field's padding value."""
    batch: Batch = {name: int64_tensor(pad(flat, lengths, width, fill[name])) for name, flat in fields.items()}
    batch["attention_mask"] = torch.from_numpy((np.arange(width) < lengths[:, None]).astype(np.int64))
    return batch


def packed_batch(fields: Mapping[str, IntArray], lengths: Int64Array, longest: int) -> Batch:
    """Returns flat fields as (1, T), with positions and the offsets of the sequences."""
    batch: Batch = {name: int64_tensor(flat[None]) for name, flat in fields.items()}
    batch["position_ids"] = torch.from_numpy(places_in_row(lengths)[None])
    # Flash kernels require offsets of 32 bits, once for queries and once for keys.
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
        passes: example ids of each forward pass, in the source's own form. Process p of n computes `passes[p::n]`; all
            processes have the same number of passes, because collectives pair them up.
        group: number of the part of the run (a pre-training phase), for the source's `load`.
        position: position in the data after this step; JSON.
        flops_per_token: useful FLOPs per token, from which the MFU follows; 0 shows none.
        totals: for each loss term of the model's output, the count over the global batch that its sum is divided by;
            filled in when the batch is loaded.
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
        counts: for each loss term, the number of predictions that this micro-batch's mean is over.
        tokens: tokens, without padding.
    """

    inputs: dict[str, Any]
    counts: dict[str, int]
    tokens: int

    def pin_memory(self) -> "MicroBatch":
        """Returns a copy in page-locked memory, from which copies to a device overlap with its work."""
        pinned: dict[str, Any] = {}
        for name, value in self.inputs.items():
            pinned[name] = value.pin_memory() if torch.is_tensor(value) else value
        return MicroBatch(pinned, self.counts, self.tokens)


class BatchSource(Protocol):
    """The data of a run, step by step. It is picklable, so that loader processes can call `load`.

    Args:
        total_steps: optimizer steps of the complete run.
        data_fingerprint: everything that decides the examples of each step and their meaning; a resumed run must have
            the same one.
    """

    total_steps: int
    data_fingerprint: dict[str, Any]

    def steps(self, position: dict[str, Any] | None) -> Iterator[Step]:
        """Yields the steps after a position; None starts at the beginning."""

    def load(self, ids: Ids, group: int) -> MicroBatch:
        """Reads, masks and collates examples; a pure function of its arguments."""

    def totals(self, ids: Ids, group: int) -> dict[str, int]:
        """Returns the `totals` of a step. It may read its examples."""


@dataclass(frozen=True)
class BatchSizes:
    """The sizes of a global batch and its parts.

    Args:
        batch: sequences per optimizer step over all devices.
        micro: sequences per device and forward pass, at most.
    """

    batch: int
    micro: int


def batch_sizes(config: RunConfig, processes: int, default: int, *, fixed: int | None = None) -> BatchSizes:
    """Resolves the three batch settings (docs/explanations/batches.md).

    Args:
        config: its `train_batch_size`, `per_device_train_batch_size` and `gradient_accumulation_steps`.
        processes: devices that share the work.
        default: the paper's batch, used if no setting decides it.
        fixed: a batch that is already decided (a phase's), in place of `train_batch_size`.

    Raises:
        UserError: the settings contradict each other, or the batch cannot be divided evenly.
    """
    per_device = config.per_device_train_batch_size
    accumulation = config.gradient_accumulation_steps
    batch = fixed or config.train_batch_size
    if batch is None:
        batch = default
        if per_device is not None:
            batch = per_device * (accumulation or 1) * processes
    elif per_device is not None and accumulation is not None and batch != per_device * accumulation * processes:
        raise UserError(
            f"The batch size is {batch}, but {flag('per_device_train_batch_size', per_device)} x "
            f"{flag('gradient_accumulation_steps', accumulation)} x {processes} processes is "
            f"{per_device * accumulation * processes}. Leave one of them out.",
            setting="gradient_accumulation_steps",
        )
    if batch % processes:
        raise UserError(
            f"A batch of {batch} sequences cannot be divided evenly among {processes} processes. Choose a multiple of "
            f"{processes}.",
            setting="train_batch_size",
        )

    # Each process computes its share in as many passes as it takes.
    share = batch // processes
    micro = per_device or math.ceil(share / (accumulation or 1))
    return BatchSizes(batch, min(share, micro))


def even_passes(ids: Ids, micro: int, processes: int) -> list[Ids]:
    """Divides a batch into the `Step.passes` of all processes, of at most `micro` examples each.

    All examples count the same, whatever their length.
    """
    passes_by_process: list[list[Ids]] = []
    for process in range(processes):
        share = ids[process::processes]
        passes_by_process.append(np.array_split(share, math.ceil(len(share) / micro)))

    # The first pass of each process, then the second of each, and so on.
    passes: list[Ids] = []
    for number in range(len(passes_by_process[0])):
        passes.extend(own_passes[number] for own_passes in passes_by_process)
    return passes


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
    """Yields the next steps with this process's micro-batches, loaded ahead if there are loader processes.

    Args:
        source: the data.
        position: position in the data.
        count: steps to load; None loads all that the source has.
        process: index of this process.
        processes: number of processes.
        num_workers: loader processes; 0 loads in this process.
        pin_memory: whether batches are put into page-locked memory.

    Raises:
        UserError: raised by the source's `load`, in whichever process.
        ProcessKilledError: a loader process was killed.
    """
    # The sampler yields steps, and the data set turns each into micro-batches; the loader only runs them ahead.
    loader = DataLoader(
        _Share(source, process, processes),
        sampler=source.steps(position),
        batch_size=None,
        collate_fn=_as_is,
        num_workers=num_workers,
        prefetch_factor=PREFETCHED_STEPS if num_workers else None,
        pin_memory=pin_memory,
        worker_init_fn=_leave_signals_to_parent,
        # By default the base seed of loader processes is drawn from the global generator, which would move dropout.
        generator=torch.Generator(),
    )
    # Starting loader processes replaces the handler of SIGCHLD.
    with keep_child_signal_handler():
        loaded = iter(loader)
    try:
        for item in itertools.islice(loaded, count):
            # An error in the data, handed over by `_Share`.
            if isinstance(item, UserError):
                raise item
            yield item
    except (RuntimeError, OSError, EOFError) as error:
        # The loader raises these, or the transfer of a tensor from a process that no longer exists. The connections of
        # a killed process close a moment before it is gone, so wait for that.
        sentinels = [worker.sentinel for worker in getattr(loaded, "_workers", ())]
        has_ended = bool(sentinels) and multiprocessing.connection.wait(sentinels, timeout=_SECONDS_TO_END)
        if not has_ended:
            raise
        raise ProcessKilledError("a process that loads data was killed, most often because memory ran out") from error


class _Share(Dataset["tuple[Step, list[MicroBatch]] | UserError"]):
    """This process's micro-batches of a step, or the error in its data.

    The error is returned and not raised: PyTorch's loader would put the traceback of its process into the message.
    """

    def __init__(self, source: BatchSource, process: int, processes: int) -> None:
        self.source = source
        self.process = process
        self.processes = processes

    def __getitem__(self, step: Step) -> tuple[Step, list[MicroBatch]] | UserError:  # type: ignore[override]
        try:
            step = replace(step, totals=self.source.totals(step.ids, step.group))
            own_passes = step.passes[self.process :: self.processes]
            return step, [self.source.load(ids, step.group) for ids in own_passes]
        except UserError as error:
            return error


def _leave_signals_to_parent(_: int) -> None:
    # The loader must continue until the step is finished and its checkpoint written.
    leave_signals_to_parent()


def _as_is(item: object) -> object:
    return item
