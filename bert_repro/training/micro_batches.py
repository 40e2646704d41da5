"""From the data of a run to the forward passes of one process.

A step is a set of example ids. How processes share it and cut it into micro-batches changes nothing but the order of
sums: every loss term is divided by its count over the whole set. So it may be cut to make forward passes alike: as many
tokens everywhere, and a fixed shape where a compiled graph wants one.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from bert_repro.configs import RunConfig
from bert_repro.errors import UserError
from bert_repro.utils.signals import leave_signals_to_parent

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Step:
    """One optimizer step.

    Args:
        ids: example ids of the global batch, in the source's own form; first dimension is the batch.
        totals: for each loss term of the model's output, what its sum is divided by over the global batch.
        micro: most sequences per device and forward pass.
        group: which part of the run this is (a pre-training phase); the source's `load` needs it.
        position: position in the data after this step; JSON.
        flops_per_token: useful FLOPs per token, from which the MFU is shown; 0: not shown.
        lengths: tokens of each example, int64 [batch], where forward passes are to hold as many tokens each.
        token_budget: most tokens per device and forward pass; needs `lengths`.
    """

    ids: Ids
    totals: dict[str, int]
    micro: int
    group: int
    position: dict[str, Any]
    flops_per_token: float = 0.0
    lengths: Ids | None = None
    token_budget: int | None = None


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

    def count_right(self, output: Any, inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
        """Counts the right answers of a forward pass, for loss terms that have one; logged as an accuracy."""


@dataclass(frozen=True)
class BatchSizes:
    """How a global batch is laid out: `batch` sequences a step, `micro` of them at most per device and forward pass."""

    batch: int
    micro: int


def batch_sizes(config: RunConfig, processes: int, default: int, *, fixed: int | None = None) -> BatchSizes:
    """Resolves the three batch settings (README, "Batch sizes").

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


def forward_passes(step: Step, process: int, processes: int) -> list[Ids]:
    """Returns the ids of each forward pass of one process; all have as many passes, since collectives pair them up.

    With `lengths` the passes of all processes hold nearly as many tokens each: examples are dealt out longest first,
    back and forth (1 2 3 3 2 1 ...). Where a pass would still go over `token_budget`, all processes take one more.
    """
    if step.lengths is None:
        ids = step.ids[process::processes]
        return np.array_split(ids, math.ceil(len(ids) / step.micro))
    longest_first = np.argsort(-step.lengths, kind="stable")
    passes = math.ceil(len(step.ids) / (processes * step.micro))
    while True:
        dealt = _deal(longest_first, passes * processes)
        if step.token_budget is None or _most_tokens(step.lengths, dealt) <= step.token_budget:
            return [step.ids[examples] for examples in dealt[process::processes]]
        passes += 1


def fullest_pass(lengths: Ids, micro: int, processes: int) -> int:
    """Returns the tokens of the fullest forward pass of a step whose examples have these lengths."""
    passes = math.ceil(len(lengths) / (processes * micro)) * processes
    return _most_tokens(lengths, _deal(np.argsort(-lengths, kind="stable"), passes))


def _most_tokens(lengths: Ids, passes: list[Ids]) -> int:
    return max(int(lengths[examples].sum()) for examples in passes)


def _deal(examples: Ids, passes: int) -> list[Ids]:
    rounds = -(-len(examples) // passes)
    table = np.full((rounds, passes), -1, dtype=np.int64)
    table.flat[: len(examples)] = examples
    table[1::2] = table[1::2, ::-1]
    return [column[column >= 0] for column in table.T]


def load_steps(
    source: BatchSource,
    position: dict[str, Any] | None,
    count: int,
    *,
    process: int,
    processes: int,
    num_workers: int,
    prefetch_factor: int,
    pin_memory: bool,
) -> Iterator[tuple[Step, list[MicroBatch]]]:
    """Yields the next steps with this process's micro-batches, loaded ahead where there are loader processes.

    Args:
        source: the data.
        position: position in the data.
        count: steps to load.
        process: index of this process.
        processes: number of processes.
        num_workers: loader processes; 0 loads in this process.
        prefetch_factor: steps that each loader process is ahead.
        pin_memory: whether batches end in page-locked memory.
    """
    loader = DataLoader(
        _Share(source, process, processes),
        sampler=_Schedule(source, position),
        batch_size=None,
        collate_fn=_as_is,
        num_workers=num_workers,
        prefetch_factor=prefetch_factor if num_workers else None,
        pin_memory=pin_memory,
        worker_init_fn=_leave_signals_to_parent,
        # The default draws the base seed of loader processes from the global generator.
        generator=torch.Generator(),
    )
    return itertools.islice(iter(loader), count)


class _Schedule(Sampler[Step]):
    """Feeds the loader the steps from a position on."""

    def __init__(self, source: BatchSource, position: dict[str, Any] | None) -> None:
        self.source, self.position = source, position

    def __iter__(self) -> Iterator[Step]:
        return self.source.steps(self.position)


class _Share(Dataset[tuple[Step, list[MicroBatch]]]):
    """This process's micro-batches of a step."""

    def __init__(self, source: BatchSource, process: int, processes: int) -> None:
        self.source, self.process, self.processes = source, process, processes

    def __getitem__(self, step: Step) -> tuple[Step, list[MicroBatch]]:  # type: ignore[override]
        passes = forward_passes(step, self.process, self.processes)
        return step, [self.source.load(ids, step.group) for ids in passes]


def _leave_signals_to_parent(_: int) -> None:
    leave_signals_to_parent()  # the loader must continue until the step is finished


def _as_is(item: Any) -> Any:
    return item


def to_device(inputs: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """Moves the tensors among a model's inputs to a device."""
    return {
        name: value.to(device, non_blocking=True) if isinstance(value, torch.Tensor) else value
        for name, value in inputs.items()
    }
