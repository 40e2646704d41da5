"""The training step, once for everything that trains: pre-training, fine-tuning, adapters.

What is notable:
- A step is a set of example ids. Processes and micro-batches only partition it; every loss term is divided by its count
  over the complete set. So the update does not depend on how many devices share the work.
- Dropout is seeded per (step, process, micro-batch), so a resumed run needs no saved generator.
- A step whose loss or gradient is not finite is never taken. Where the device works in parallel to this process (CUDA),
  it refuses the update itself, and this process reads what a step gave while the device computes the next one.
- A signal is answered at the end of the step, by all processes together, after a checkpoint.
- Weights that are not finite are never saved; the last step's are saved before anything else is done with them.

A batch source (`BatchSource`) says which ids a step holds and turns ids into model inputs.
"""

import gc
import logging
import math
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import find_tied_parameters, retie_parameters, send_to_device
from accelerate.utils.memory import clear_device_cache, should_reduce_batch_size
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from bert_repro.errors import NonFiniteError, ProcessKilledError, StopRequested, UserError
from bert_repro.training import checkpoint
from bert_repro.training.batches import BatchSource, MicroBatch, Step, load_steps
from bert_repro.training.checkpoint import (
    BestModel,
    TrainerState,
    environment,
    find_non_finite,
    require_same_data,
    require_same_settings,
    savable,
    stored_settings,
)
from bert_repro.training.optimizer import accurate_norm, build_optimizer, learning_rate, set_learning_rate
from bert_repro.training.training_log import TakenStep, TrainingLog
from bert_repro.utils.files import CHECKPOINTS
from bert_repro.utils.process import claim_folder, collect_signals
from bert_repro.utils.randomness import Stream, torch_seed

logger = logging.getLogger("bert_repro")

MOST_SKIPPED_IN_A_ROW = 20
MOST_LOADERS_FOR_A_GPU = 4


CountRight = Callable[[Any, dict[str, Any]], dict[str, torch.Tensor]]
"""Counts the right answers of a forward pass, given its output and inputs, for loss terms that have one."""


def count_nothing(output: Any, inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Counts nothing: the `CountRight` of losses without an accuracy."""
    return {}


def place(model: Any, device: torch.device) -> Any:
    """Moves a model to a device; on the way to XLA every module gets parameters of its own, so they are tied again."""
    tied = find_tied_parameters(model)
    retie_parameters(model.to(device), tied)
    return model


class TrainingForward(nn.Module):
    """A forward pass down to what a training step reads: losses, and numbers of right answers.

    It is compiled and wrapped with the model in it, so that logits are no output of a graph. As one they would get a
    gradient, zeros as large as themselves, which is written and read again.

    Args:
        model: the model.
        count_right: what is counted in addition to the losses.
    """

    def __init__(self, model: nn.Module, count_right: CountRight) -> None:
        super().__init__()
        self.model, self.count_right = model, count_right

    def forward(
        self, terms: tuple[str, ...], inputs: dict[str, Any]
    ) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """Returns the mean of each loss term, and the right answers of those that count them."""
        output = self.model(**inputs)
        return {term: getattr(output, term) for term in terms}, self.count_right(output, inputs)


class ParallelModel:
    """A model on the devices of a run.

    Args:
        accelerator: says where, and wraps the model for DDP.
        model: not yet wrapped.
        compile_options: of `torch.compile`; None does not compile.
        by_layer: compile each encoder layer for itself, in a third of the time, and leave the rest as it is.
        count_right: what is counted in addition to the losses.

    Attributes:
        model: whose parameters train.
        wrapped: what a training step calls: a `TrainingForward`.
        compiles: whether training steps are compiled.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        model: nn.Module,
        *,
        compile_options: dict[str, Any] | None = None,
        by_layer: bool = False,
        count_right: CountRight = count_nothing,
    ) -> None:
        self.accelerator = accelerator
        self.compiles = compile_options is not None
        if self.compiles:
            # All our models share code, of which PyTorch compiles eight versions in a process and runs the others
            # eagerly; an experiment makes many models in one process.
            torch.compiler.reset()
        self._on_xla = accelerator.device.type == "xla"
        self.model = place(model, accelerator.device)
        self._graphs_before = self._graphs_of_process()
        self.wrapped: nn.Module = accelerator.prepare_model(TrainingForward(self.model, count_right))
        # Accelerate's autocast also turns every output into float32, logits of the complete vocabulary among them.
        accelerator.unwrap_model(self.wrapped, keep_fp32_wrapper=False)
        self._compiled_layers: list[nn.Module] = []
        if compile_options is not None and by_layer:
            self._compiled_layers = [
                layer for layer in self.model.modules() if isinstance(layer, GradientCheckpointingLayer)
            ]
            for layer in self._compiled_layers:
                layer.compile(**compile_options)
        elif compile_options is not None:
            self.wrapped = torch.compile(self.wrapped, **compile_options)  # type: ignore[assignment]

    def seed(self, seed: int) -> None:
        """Seeds dropout on this process's device."""
        torch.manual_seed(seed)
        if self._on_xla:
            import torch_xla.core.xla_model as xla_model

            xla_model.set_rng_state(seed, self.accelerator.device)

    def scalar(self, value: float) -> Any:
        """Returns a number that changes from step to step, to compute with on the device.

        XLA makes equal numbers one input of its graph, and a 0 or 1 a part of it, so that it compiles again when two
        happen to be equal; an array stays an input.
        """
        return torch.tensor([value], device=self.accelerator.device)[0] if self._on_xla else value

    def execute(self) -> None:
        """Makes XLA run what it has recorded; does nothing elsewhere."""
        if self._on_xla:
            import torch_xla

            torch_xla.sync()

    def compiled_graphs(self) -> int:
        """Returns the number of graphs compiled for this model so far, by `torch.compile` or XLA."""
        return self._graphs_of_process() - self._graphs_before

    def _graphs_of_process(self) -> int:
        if self._on_xla:
            import torch_xla.debug.metrics as metrics

            compilations = metrics.metric_data("CompileTime")
            return int(compilations[0]) if compilations else 0
        if not self.compiles:
            return 0
        from torch._dynamo.utils import counters

        return int(counters["stats"]["unique_graphs"])

    def unwrap(self) -> None:
        """Releases DDP and what is compiled for training."""
        for layer in self._compiled_layers:
            layer._compiled_call_impl = None
        # It must be released before the process group: whoever holds the group last joins its threads while holding the
        # interpreter's lock, and gloo's threads may wait for that lock.
        self.wrapped = self.model
        if self.accelerator.num_processes > 1:
            self.accelerator.free_memory()


class Trainer:
    """Trains a model on a batch source.

    Args:
        accelerator: places and wraps the model, runs autocast and the gradient scaler.
        model: a model whose output has one attribute per loss term (`loss`, or `mlm_loss` and `nsp_loss`), each a mean.
        source: the data.
        config: settings of the run and of the optimizer.
        tokenizer: saved in every checkpoint.
        count_right: counts the right answers of a forward pass, by loss term; logged as accuracies.
        evaluate: called every `eval_steps`; returns metrics for the log.
        on_row: called with every row of the training log.
        compile_options: of `torch.compile`, for training steps; None does not compile.
        by_layer: whether each encoder layer is compiled for itself.
        best: takes every evaluation, keeps the best weights and may stop the run.
        replan: called with steps taken and seconds of training where a row of the log is due; may change the steps of
            the source, for a run that is to end in time.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        model: torch.nn.Module,
        source: BatchSource,
        config: Any,
        *,
        tokenizer: Any,
        count_right: CountRight = count_nothing,
        evaluate: Callable[[], dict[str, Any]] | None = None,
        on_row: Callable[[dict[str, float]], None] | None = None,
        compile_options: dict[str, Any] | None = None,
        by_layer: bool = False,
        best: BestModel | None = None,
        replan: Callable[[int, float], None] | None = None,
    ) -> None:
        if compile_options is not None and config.deterministic and config.gradient_checkpointing:
            raise UserError(
                "--deterministic --gradient_checkpointing: in a compiled step the dropout of recomputed layers does "
                "not follow the seed of the step, so a resumed run would differ; add --torch_compile false"
            )
        self.accelerator, self.source, self.config, self.tokenizer = accelerator, source, config, tokenizer
        self.evaluate, self.best, self.replan = evaluate, best, replan
        self.output_dir = Path(config.output_dir)
        self.parallel = ParallelModel(
            accelerator, model, compile_options=compile_options, by_layer=by_layer, count_right=count_right
        )
        self.model = self.parallel.model
        self.optimizer = accelerator.prepare_optimizer(build_optimizer(self.model, config), device_placement=False)
        self._parameters = list(self.model.parameters())
        self.state = TrainerState()
        self.log = TrainingLog(accelerator, config, source.total_steps, on_row=on_row)
        # The fused optimizer's kernel can refuse an update; with fp16 the scaler's own wait comes first.
        self.reads_late = accelerator.device.type == "cuda" and accelerator.scaler is None
        self._refused: torch.Tensor | None = None  # 1 from the first step on that was not finite
        self._unread: deque[TakenStep] = deque()
        self.compiled_graphs = 0
        self._skipped_in_a_row = 0
        self._saved = -1  # step of the newest checkpoint
        self._probed = False
        self.micro_batch_parts = 1  # more where memory did not suffice

    def train(self) -> None:
        """Runs every remaining step. The trained state is then on disk, whatever happens in what follows.

        Raises:
            NonFiniteError: the loss, the gradient norm or a weight is not finite; nothing was saved from it.
            StopRequested: a signal came; a checkpoint has been written.
        """
        if checkpoint.resumes(self.config):
            self._resume()
        self.log.begin(self.state.step, self.state.log)
        try:
            with self.log, collect_signals() as received:
                self._run(received)
                if self._saved != self.state.step:
                    self.save(keep=self.config.save_total_limit + 1)
            if received:
                raise StopRequested(received[0])
        finally:
            gc.unfreeze()
            self.parallel.unwrap()
        self.compiled_graphs = self.parallel.compiled_graphs()
        if self.best:
            self.accelerator.wait_for_everyone()
            self.best.restore(self.model)

    def _run(self, received: list[int]) -> None:
        if self.best and self.best.should_stop:
            return  # an interrupted run had stopped early before
        for taken, (step, micro_batches) in enumerate(self._loaded_steps()):
            if not self.model.training:
                self.parallel.wrapped.train()
            self._step(step, micro_batches, stop=bool(received))
            if taken == 0:  # what the run has loaded stays; no collection need look at it again
                gc.freeze()
            read_all = self._due(self.config.eval_steps) or self._due(self.config.save_steps) or not self.reads_late
            stop = self._read(leave=0 if read_all else 1)
            if self._due(self.config.eval_steps) and self.evaluate:
                # Layers are not compiled again for the shapes of an evaluation.
                with torch.compiler.set_stance("force_eager") if self.parallel.compiles else nullcontext():
                    scores = self.log.evaluation(self.state.step, self.evaluate)
                if self.best:
                    self.best.consider(scores, self.state.step, self.model, write=self.accelerator.is_main_process)
            if stop or self._due(self.config.save_steps):
                self.save()
            if stop:
                logger.info("stopped after step %d", self.state.step)
                raise StopRequested(received[0] if received else signal.SIGTERM)
            if self.replan and self._due(self.log.every):
                self.replan(self.state.step, self.log.seconds())
                self.log.total = self.source.total_steps
            if self.state.step >= self.source.total_steps:
                break
            if self.best and self.best.should_stop:
                logger.info("stopped early at step %d: no better %s", self.state.step, self.best.metric)
                break
        self._read()

    def _loaded_steps(self) -> Iterator[tuple[Step, list[MicroBatch]]]:
        """Yields the steps; writes a checkpoint where one cannot come because a loader process was killed."""
        accelerator, config = self.accelerator, self.config
        on_gpu = accelerator.device.type == "cuda"
        workers = config.dataloader_num_workers
        if workers is None:
            cores = (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", 1))
            workers = min(MOST_LOADERS_FOR_A_GPU, max(1, cores - 1)) if on_gpu else 0
        steps = load_steps(
            self.source,
            self.state.position,
            None if self.replan else self.source.total_steps - self.state.step,
            process=accelerator.process_index,
            processes=accelerator.num_processes,
            num_workers=workers,
            pin_memory=on_gpu,
        )
        try:
            yield from steps
        except ProcessKilledError as error:
            self._read()
            if accelerator.num_processes == 1 and self._saved != self.state.step:
                self.save()
            raise ProcessKilledError(
                f"stopped after step {self.state.step}: {error}; resume with --resume_from_checkpoint latest, "
                "where need be with a lower --dataloader_num_workers"
            ) from error

    def save(self, keep: int | None = None) -> None:
        """Writes a checkpoint of the present state on the main process; all processes call it together.

        Args:
            keep: checkpoints to keep; default: `save_total_limit`.

        Raises:
            NonFiniteError: a weight is not finite; nothing was written.
        """
        self._require_finite_weights()
        if self.accelerator.is_main_process:
            scaler = self.accelerator.scaler
            state = replace(
                self.state,
                scaler=scaler.state_dict() if scaler else None,
                data_fingerprint=dict(self.source.data_fingerprint),
                settings=stored_settings(self.config),
                log=self.log.state(),
                best=self.best.state() if self.best else None,
            )
            checkpoint.save(
                self.output_dir,
                savable(self.model),
                {name: value.cpu() for name, value in checkpoint.named_state(self.model, self.optimizer.optimizer)},
                state,
                tokenizer=self.tokenizer,
                environment=environment(self.accelerator),
                keep=keep or self.config.save_total_limit,
                pooling=getattr(self.config, "pooling", "mean"),
            )
            if self.best:
                self.best.forget_others()
        self._saved = self.state.step
        if self.accelerator.num_processes > 1:  # on XLA even waiting for nobody compiles a graph
            self.accelerator.wait_for_everyone()

    def _require_finite_weights(self) -> None:
        """Stops all processes together where a weight of any of them is not finite."""
        found = find_non_finite(self.model)
        some = found is not None
        if self.accelerator.num_processes > 1:
            flag = torch.tensor([float(some)], device=self.accelerator.device)
            some = bool(self.accelerator.reduce(flag, "sum").item())
        if some:
            raise NonFiniteError(
                f"stopped after step {self.state.step}: weights are not finite ({found or 'on another process'}); "
                "nothing was saved from it. Lower --learning_rate or lengthen the warm-up, then resume"
            )

    def _resume(self) -> None:
        folder = checkpoint.find(self.output_dir, self.config.resume_from_checkpoint)
        state = checkpoint.read_state(folder)
        require_same_data(folder, state, self.source, self.config)
        require_same_settings(folder, state.settings, self.config)
        if self.accelerator.is_main_process:
            claim_folder(self.output_dir)
        checkpoint.load(folder, self.model, self.optimizer.optimizer, environment(self.accelerator))
        self.state = state
        self._saved = self.state.step if folder.parent.resolve() == (self.output_dir / CHECKPOINTS).resolve() else -1
        if self.best:
            self.best.load(self.state.best)
        if self.accelerator.scaler is not None and self.state.scaler:
            self.accelerator.scaler.load_state_dict(self.state.scaler)
        logger.info("resuming from %s", folder)

    def _step(self, step: Step, micro_batches: list[MicroBatch], *, stop: bool) -> None:
        """Computes forward, backward and update of one global batch; `_read` gives its metrics."""
        sums = self._gradients(step, micro_batches)
        tokens = sum(micro_batch.tokens for micro_batch in micro_batches)
        taken = TakenStep(step, self.state, tuple(sums), self._clip_and_add_up(sums, tokens, stop))
        if self.reads_late:
            # The optimizer's kernel refuses this update and all later ones if the step is not finite.
            bad = (~torch.isfinite(taken.values).all()).to(torch.float32)
            self._refused = bad if self._refused is None else torch.maximum(self._refused, bad)
            self.optimizer.optimizer.found_inf = self._refused
            taken.copy_to_host()
        else:
            self._require_finite(taken)
        taken.learning_rate = self._update()
        self._advance(step, skipped=not self.reads_late and not math.isfinite(taken.norm))
        self._unread.append(taken)

    def _gradients(self, step: Step, micro_batches: list[MicroBatch]) -> dict[str, Any]:
        """Adds up the gradients of a global batch, in smaller micro-batches from where the device runs out of memory.

        Returns:
            This process's share of every loss term and accuracy.
        """
        if self.accelerator.num_processes > 1 and not self._probed:
            self._find_micro_batch_that_fits(step, micro_batches)
        while True:
            try:
                return self._add_up(step, self._divided(step, micro_batches))
            except RuntimeError as error:
                if self.accelerator.num_processes > 1 or not should_reduce_batch_size(error):
                    raise
            self._divide_further(step)

    def _add_up(self, step: Step, micro_batches: list[MicroBatch]) -> dict[str, Any]:
        sums: dict[str, Any] = {}
        for number, micro_batch in enumerate(micro_batches):
            names = (self.config.seed, Stream.DROPOUT, self.state.step, self.accelerator.process_index, number)
            self.parallel.seed(torch_seed(*names))
            last = number == len(micro_batches) - 1
            with nullcontext() if last else self.accelerator.no_sync(self.parallel.wrapped):  # gradients add up here
                shares = self._backward(step, micro_batch)
            for name, share in shares.items():
                sums[name] = sums.get(name, 0) + share
        return sums

    def _find_micro_batch_that_fits(self, step: Step, micro_batches: list[MicroBatch]) -> None:
        """Tries the fullest micro-batch before the first step, as later one process would leave the others waiting."""
        self._probed = fits = False
        while not fits:
            fullest = max(self._divided(step, micro_batches), key=lambda micro_batch: micro_batch.tokens)
            failed = 0.0
            try:
                with self.accelerator.no_sync(self.parallel.wrapped):
                    self._backward(step, fullest)
            except RuntimeError as error:
                if not should_reduce_batch_size(error):
                    raise
                failed = 1.0
            self.optimizer.zero_grad()
            flag = torch.tensor([failed], device=self.accelerator.device)
            fits = not self.accelerator.reduce(flag, "sum").item()
            if not fits:
                self._divide_further(step)
        self._probed = True

    def _divided(self, step: Step, micro_batches: list[MicroBatch]) -> list[MicroBatch]:
        """Returns the micro-batches of a step, each in as many parts as memory asks for."""
        if self.micro_batch_parts == 1:
            return micro_batches
        own = step.passes[self.accelerator.process_index :: self.accelerator.num_processes]
        parts = (part for ids in own for part in np.array_split(ids, min(self.micro_batch_parts, len(ids))))
        return [self.source.load(part, step.group) for part in parts]

    def _divide_further(self, step: Step) -> None:
        self.optimizer.zero_grad()
        clear_device_cache(garbage_collection=True)
        largest = -(-max(map(len, step.passes)) // self.micro_batch_parts)
        if largest == 1 or getattr(self.config, "static_shapes", False):
            raise UserError(
                "the device is out of memory with one sequence, or with batches of one shape; add "
                "--gradient_checkpointing, or lower --max_seq_length or --per_device_train_batch_size"
            )
        self.micro_batch_parts *= 2
        logger.warning(
            "step %d: the device is out of memory with %d sequences at once; from here on it takes half as many. The "
            "update is that of the same batch; only dropout draws differ",
            self.state.step + 1,
            largest,
        )

    def _read(self, leave: int = 0) -> bool:
        """Logs the metrics of the steps taken, but for the newest `leave`; returns whether any process wants to stop.

        Raises:
            NonFiniteError: a step was not finite; neither it nor a later one was taken.
        """
        stop = False
        while len(self._unread) > leave:
            taken = self._unread.popleft()
            if self.reads_late:
                self._require_finite(taken)
            stop = stop or taken.stop
            self.log.step(taken.before.step + 1, taken.metrics())
            leave = 0 if stop else leave
        return stop

    def _backward(self, step: Step, micro_batch: MicroBatch) -> dict[str, torch.Tensor]:
        """Adds up gradients; returns this micro-batch's share of every loss term and accuracy of the global batch."""
        inputs = send_to_device(micro_batch.inputs, self.accelerator.device, non_blocking=True)
        with self.accelerator.autocast():
            means, right = self.parallel.wrapped(tuple(step.totals), inputs)
        losses = {
            term: means[term] * self.parallel.scalar(micro_batch.counts[term] / total)
            for term, total in step.totals.items()
        }
        # DDP averages gradients over the processes, while the totals already count all of them.
        self.accelerator.backward(sum(losses.values()) * self.accelerator.num_processes)
        shares = {term: loss.detach() for term, loss in losses.items()}
        for term, number in right.items():
            total = self.parallel.scalar(step.totals[term])
            shares[term.replace("loss", "accuracy")] = number.to(shares[term].dtype) / total
        return shares

    def _clip_and_add_up(self, sums: dict[str, Any], tokens: int, stop: bool) -> torch.Tensor:
        """Clips the gradient; adds up loss terms, tokens and wishes to stop over the processes, in one collective.

        Returns:
            The sums, tokens, wishes and the gradient norm before clipping, on the device.
        """
        norm = self._clip_gradient(self.config.max_grad_norm or math.inf)
        values = torch.stack([*sums.values()])
        on_gpu = values.device.type == "cuda"  # from page-locked memory nobody waits for the copy
        counts = torch.tensor([tokens, stop], dtype=values.dtype, pin_memory=on_gpu)
        own = torch.cat([values, counts.to(values.device, non_blocking=on_gpu)])
        total = self.accelerator.reduce(own, "sum") if self.accelerator.num_processes > 1 else own
        read = torch.cat([total, norm.to(total.dtype).reshape(1)])
        self.parallel.execute()
        return read

    def _clip_gradient(self, max_norm: float) -> torch.Tensor:
        """Scales the gradient to a norm of at most `max_norm`; returns its norm before."""
        if self.accelerator.device.type != "cpu":
            return cast(torch.Tensor, self.accelerator.clip_grad_norm_(self._parameters, max_norm))
        norm = accurate_norm(parameter.grad for parameter in self._parameters if parameter.grad is not None)
        torch.nn.utils.clip_grads_with_norm_(self._parameters, max_norm, norm)
        return norm

    def _require_finite(self, taken: TakenStep) -> None:
        """Refuses a step that is not finite, and with it all that came after."""
        # With fp16 a gradient that is not finite is the scaler's business: it lowers its scale and skips the step.
        scales_loss = self.accelerator.scaler is not None
        losses = taken.losses()
        if not math.isfinite(sum(losses.values())) or not (math.isfinite(taken.norm) or scales_loss):
            self.state = taken.before
            self._unread.clear()
            raise NonFiniteError(
                f"stopped at step {self.state.step}: loss {losses}, gradient norm {taken.norm}; the update was not "
                "made and nothing was saved from it. Lower --learning_rate or lengthen the warm-up, then resume"
            )

    def _update(self) -> float:
        """Takes the step; returns the learning rate."""
        value = learning_rate(self.state.step - self.state.skipped, self.config, self.source.total_steps)
        set_learning_rate(self.optimizer.optimizer, value)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.parallel.execute()
        return value

    def _advance(self, step: Step, *, skipped: bool) -> None:
        self._skipped_in_a_row = self._skipped_in_a_row + 1 if skipped else 0
        if self._skipped_in_a_row == MOST_SKIPPED_IN_A_ROW:
            raise NonFiniteError(
                f"stopped at step {self.state.step}: {MOST_SKIPPED_IN_A_ROW} fp16 steps in a row had no finite "
                "gradient; use --mixed_precision bf16 or a lower --learning_rate"
            )
        self.state = TrainerState(self.state.step + 1, self.state.skipped + skipped, step.position)

    def _due(self, every: int | None) -> bool:
        return every is not None and self.state.step % every == 0
