"""The training step, once for everything that trains: pre-training, fine-tuning, adapters.

What is notable:
- A step is a set of example ids. Processes and micro-batches only partition it; every loss term is divided by its count
  over the whole set. So the update does not depend on how many devices share the work.
- Dropout is seeded per (step, process, micro-batch), so a resumed run needs no saved generator.
- A step whose loss or gradient is not finite is refused before the update.
- A signal is answered at the end of the step, by all processes together, after a checkpoint.

A batch source (`BatchSource`) says which ids a step holds and turns ids into model inputs.
"""

import itertools
import logging
import math
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, Dataset, Sampler

from bert_repro.configs import RunConfig
from bert_repro.errors import NonFiniteError, StopRequested, UserError
from bert_repro.optimization import build_optimizer, learning_rate
from bert_repro.randomness import torch_seed
from bert_repro.training import checkpoint, record
from bert_repro.training.checkpoint import TrainerState
from bert_repro.training.logs import TrainingLog

logger = logging.getLogger("bert_repro")

DROPOUT = 1  # what is drawn, in the names of `randomness.draw`
MOST_SKIPPED_IN_A_ROW = 20
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Step:
    """One optimiser step of the plan.

    Args:
        ids: example ids of the global batch, in the source's own form; first dimension is the batch.
        totals: for each loss term of the model's output, what its sum is divided by over the global batch.
        micro: most sequences per device and forward pass.
        group: which stretch of the run this is (a pre-training phase); the source's `load` needs it.
        position: where the data stands after this step; JSON.
        flops_per_token: useful operations per token, to show the speed as a share of the hardware's; 0: not shown.
    """

    ids: Ids
    totals: dict[str, int]
    micro: int
    group: int
    position: dict[str, Any]
    flops_per_token: float = 0.0


@dataclass(frozen=True)
class MicroBatch:
    """One forward pass.

    Args:
        inputs: keyword arguments of the model.
        counts: for each loss term, how many terms this micro-batch's mean is over.
        tokens: tokens that are no padding.
    """

    inputs: dict[str, Any]
    counts: dict[str, int]
    tokens: int


class BatchSource(Protocol):
    """The plan of a run's data; picklable, so that loader processes can `load`."""

    total_steps: int

    def steps(self, position: dict[str, Any] | None) -> Iterator[Step]:
        """The steps from a position on (None: from the beginning)."""

    def load(self, ids: Ids, group: int) -> MicroBatch:
        """Reads, masks and collates examples; a pure function of its arguments."""

    def count_right(self, output: Any, inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
        """For loss terms with a right answer, how many of this forward pass are right; logged as an accuracy."""


@dataclass(frozen=True)
class BatchSizes:
    """How a global batch is laid out: `batch` sequences a step, `micro` of them at most per device and forward pass."""

    batch: int
    micro: int


def batch_sizes(config: RunConfig, processes: int, default: int, *, fixed: int | None = None) -> BatchSizes:
    """Settles the three batch settings (README, "Batch sizes").

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


class Trainer:
    """Trains a model on a batch source.

    Args:
        accelerator: places and wraps the model, runs autocast and the gradient scaler.
        model: a model whose output has one attribute per loss term (`loss`, or `mlm_loss` and `nsp_loss`), each a mean.
        source: the plan.
        config: settings of the run and of the optimiser.
        tokenizer: saved in every checkpoint.
        evaluate: called every `eval_steps`; returns figures for the log.
        watch: called with every row of the training log.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        model: torch.nn.Module,
        source: BatchSource,
        config: Any,
        *,
        tokenizer: Any,
        evaluate: Callable[[], dict[str, Any]] | None = None,
        watch: Callable[[dict[str, float]], None] | None = None,
    ) -> None:
        self.accelerator, self.source, self.config, self.tokenizer = accelerator, source, config, tokenizer
        self.evaluate, self.watch = evaluate, watch
        self.output_dir = Path(config.output_dir)
        self.model = model.to(accelerator.device)
        self.wrapped, self.optimizer = accelerator.prepare(self.model, build_optimizer(self.model, config))
        self.state = TrainerState()
        self._skipped_in_a_row = 0

    def train(self) -> None:
        """Runs every remaining step.

        Raises:
            NonFiniteError: the loss or the gradient norm is not finite; the update was not made.
            StopRequested: a signal came; a checkpoint has been written.
        """
        if self.config.resume_from_checkpoint:
            self._resume()
        log = TrainingLog(self.accelerator, self.config, self.state.step, self.source.total_steps, watch=self.watch)
        try:
            with log, _stop_signals() as received:
                self._run(log, received)
        finally:
            self._unwrap()

    def _run(self, log: TrainingLog, received: list[int]) -> None:
        for step, micro_batches in self._steps():
            self.wrapped.train()
            figures, stop = self._step(step, micro_batches, stop=bool(received))
            log.step(self.state.step, figures)
            if self._due(self.config.eval_steps) and self.evaluate:
                log.evaluation(self.state.step, self.evaluate())
            if stop or self._due(self.config.save_steps):
                self.save()
            if stop:
                raise StopRequested(received[0] if received else signal.SIGTERM)

    def _unwrap(self) -> None:
        # DDP must go before the process group: whoever holds the group last joins its threads while holding the
        # interpreter's lock, and gloo's threads may wait for that lock.
        if self.wrapped is not self.model:
            self.wrapped = self.model
            self.accelerator.free_memory()

    def save(self) -> None:
        """Writes a checkpoint of the present state, from the main process."""
        if self.accelerator.is_main_process:
            checkpoint.save(
                self.output_dir,
                self.model,
                self.optimizer.optimizer,
                self.state,
                tokenizer=self.tokenizer,
                environment=record.environment(self.accelerator),
                keep=self.config.save_total_limit,
            )
        self.accelerator.wait_for_everyone()

    def _resume(self) -> None:
        folder = checkpoint.find(self.output_dir, self.config.resume_from_checkpoint)
        environment = record.environment(self.accelerator)
        self.state = checkpoint.load(folder, self.model, self.optimizer.optimizer, environment)
        if self.accelerator.scaler is not None and self.state.scaler:
            self.accelerator.scaler.load_state_dict(self.state.scaler)
        logger.info("resuming from %s", folder)

    def _steps(self) -> Iterator[tuple[Step, list[MicroBatch]]]:
        """The remaining steps with this process's micro-batches, loaded ahead where there are loader processes."""
        accelerator = self.accelerator
        share = _Share(self.source, accelerator.process_index, accelerator.num_processes)
        loader: Iterator[tuple[Step, list[MicroBatch]]] = iter(
            DataLoader(
                share,
                sampler=_Schedule(self.source, self.state.position),
                batch_size=None,
                collate_fn=_as_is,
                num_workers=self.config.dataloader_num_workers,
                pin_memory=accelerator.device.type == "cuda",
                worker_init_fn=_leave_signals_to_parent,
                # The default draws the base seed of loader processes from the global generator.
                generator=torch.Generator(),
            )
        )
        return itertools.islice(loader, self.source.total_steps - self.state.step)

    def _step(self, step: Step, micro_batches: list[MicroBatch], *, stop: bool) -> tuple[dict[str, float], bool]:
        """Forward, backward and update of one global batch.

        Returns:
            The step's figures (losses, accuracies, rate, gradient norm, tokens), and whether any process wants to stop.
        """
        sums: dict[str, Any] = {}
        for number, micro_batch in enumerate(micro_batches):
            self._seed_dropout(number)
            last = number == len(micro_batches) - 1
            with nullcontext() if last else self.accelerator.no_sync(self.wrapped):
                shares = self._backward(step, micro_batch)
            for name, share in shares.items():
                sums[name] = sums.get(name, 0) + share
        tokens = sum(micro_batch.tokens for micro_batch in micro_batches)
        figures, tokens, stop = self._over_processes(sums, tokens, stop)
        losses = {term: figures[term] for term in step.totals}
        rate, norm = self._update(losses)
        self._advance(step)
        figures |= {"loss": sum(losses.values()), "learning_rate": rate, "grad_norm": norm}
        figures |= {"tokens": tokens, "flops": tokens * step.flops_per_token}
        return figures, stop

    def _backward(self, step: Step, micro_batch: MicroBatch) -> dict[str, torch.Tensor]:
        """This micro-batch's share of every loss term and accuracy of the global batch; gradients are added up."""
        inputs = to_device(micro_batch.inputs, self.accelerator.device)
        output = self.wrapped(**inputs)
        losses = {
            term: getattr(output, term) * (micro_batch.counts[term] / total) for term, total in step.totals.items()
        }
        # DDP averages gradients over the processes, while the totals already count all of them.
        self.accelerator.backward(sum(losses.values()) * self.accelerator.num_processes)
        shares = {term: loss.detach() for term, loss in losses.items()}
        for term, right in self.source.count_right(output, inputs).items():
            shares[term.replace("loss", "accuracy")] = right.to(shares[term].dtype) / step.totals[term]
        return shares

    def _seed_dropout(self, micro_batch: int) -> None:
        names = (self.config.seed, DROPOUT, self.state.step, self.accelerator.process_index, micro_batch)
        torch.manual_seed(torch_seed(*names))

    def _over_processes(self, sums: dict[str, Any], tokens: int, stop: bool) -> tuple[dict[str, float], int, bool]:
        """Adds up loss terms, tokens and stop requests with one collective."""
        values = torch.stack([*sums.values()])
        own = torch.cat([values, torch.tensor([tokens, stop], dtype=values.dtype, device=values.device)])
        total = self.accelerator.reduce(own, "sum").tolist()
        return dict(zip(sums, total, strict=False)), int(total[-2]), total[-1] > 0

    def _update(self, losses: dict[str, float]) -> tuple[float, float]:
        """Clips and steps; returns the learning rate and the gradient norm before clipping."""
        rate = learning_rate(self.state.step - self.state.skipped, self.config, self.source.total_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        norm = float(self.accelerator.clip_grad_norm_(self.wrapped.parameters(), self.config.max_grad_norm or math.inf))
        scales_loss = self.accelerator.scaler is not None
        if not math.isfinite(sum(losses.values())) or not (math.isfinite(norm) or scales_loss):
            raise NonFiniteError(
                f"stopped at step {self.state.step}: loss {losses}, gradient norm {norm}; the update was not made and "
                "nothing was saved from it. Lower --learning_rate or lengthen the warm-up, then resume"
            )
        self.optimizer.step()
        self.optimizer.zero_grad()
        return rate, norm

    def _advance(self, step: Step) -> None:
        skipped = bool(self.optimizer.step_was_skipped)
        self._skipped_in_a_row = self._skipped_in_a_row + 1 if skipped else 0
        if self._skipped_in_a_row == MOST_SKIPPED_IN_A_ROW:
            raise NonFiniteError(
                f"stopped at step {self.state.step}: {MOST_SKIPPED_IN_A_ROW} fp16 steps in a row had no finite "
                "gradient; use --mixed_precision bf16 or a lower --learning_rate"
            )
        scaler = self.accelerator.scaler
        self.state = TrainerState(
            step=self.state.step + 1,
            skipped=self.state.skipped + skipped,
            position=step.position,
            scaler=scaler.state_dict() if scaler is not None else None,
        )

    def _due(self, every: int | None) -> bool:
        return every is not None and self.state.step % every == 0


class _Schedule(Sampler[Step]):
    """Feeds the loader the plan's steps from a position on."""

    def __init__(self, source: BatchSource, position: dict[str, Any] | None) -> None:
        self.source, self.position = source, position

    def __iter__(self) -> Iterator[Step]:
        return self.source.steps(self.position)


class _Share(Dataset[tuple[Step, list[MicroBatch]]]):
    """This process's micro-batches of a step."""

    def __init__(self, source: BatchSource, process: int, processes: int) -> None:
        self.source, self.process, self.processes = source, process, processes

    def __getitem__(self, step: Step) -> tuple[Step, list[MicroBatch]]:  # type: ignore[override]
        ids = step.ids[self.process :: self.processes]
        pieces = np.array_split(ids, math.ceil(len(ids) / step.micro))
        return step, [self.source.load(piece, step.group) for piece in pieces]


def _leave_signals_to_parent(_: int) -> None:
    # Ctrl-C reaches the whole process group; the loader must go on until the step is finished.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # how the parent ends its loader processes


def _as_is(item: Any) -> Any:
    return item


def to_device(inputs: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """Moves the tensors among a model's inputs to a device."""
    return {
        name: value.to(device, non_blocking=True) if isinstance(value, torch.Tensor) else value
        for name, value in inputs.items()
    }


@contextmanager
def _stop_signals() -> Iterator[list[int]]:
    """Collects TERM, INT and USR1 instead of dying of them; the list holds the signals that came."""
    received: list[int] = []
    wanted = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    before = {number: signal.signal(number, lambda number, _: received.append(number)) for number in wanted}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
