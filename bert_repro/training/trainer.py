"""The training loop, once for everything that trains: pre-training, fine-tuning, adapters.

A step is a set of example ids, given by a batch source (`BatchSource`). Processes and micro-batches only partition this
set; every loss term is divided by its count over the complete set. Without dropout, the update is therefore the same
on one and on several devices, up to rounding. Dropout draws differ with the partition, and so do the results.

Order of events in one step (`Trainer._run`):

1. Load the micro-batches of this process, ahead of time if there are loader processes.
2. For each micro-batch: seed dropout with (step, process, micro-batch), so that a resumed run needs no saved generator
   state; run the forward pass; weight each loss term by its share of the step's total; run the backward pass. On the
   last micro-batch DDP adds up the gradients of all processes. If the device runs out of memory, the step starts again
   with micro-batches of half the size.
3. Compute the gradient norm and clip the gradient.
4. Add up losses, right answers, tokens and stop requests over all processes, in one collective.
5. Check that the losses and the norm are finite, or the run ends without this update. (a) On a CPU, and under fp16, the
   host checks before the update. (b) On CUDA the optimizer kernel skips a non-finite update, and all later ones, on
   the device; the host reads the numbers of step n while the device computes step n + 1, so no synchronization is
   needed. fp16 is different: the gradient scaler lowers its scale and skips the step, which is normal.
6. Set the learning rate, update the weights, clear the gradient, advance the state.
7. Log the steps whose numbers have arrived.
8. If due: evaluate, and compare with the best evaluation so far.
9. If due, or if a process received a signal: all processes write a checkpoint together. After a signal the run ends.
10. If due: plan the remaining steps of a run with a time limit.
11. End after the last step, or if the dev score has stopped improving.

Weights that are not finite are never saved, and the weights of the last step are saved before anything else happens.
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
from accelerate.utils import send_to_device
from accelerate.utils.memory import clear_device_cache, should_reduce_batch_size
from torch import nn

from bert_repro.configs import TrainingSettings
from bert_repro.errors import NonFiniteError, ProcessKilledError, StopRequested, UserError, flag
from bert_repro.training import checkpoint, resume
from bert_repro.training.batches import BatchSource, MicroBatch, Step, load_steps
from bert_repro.training.best_model import BestModel
from bert_repro.training.checkpoint import TrainerState, environment, find_non_finite, savable
from bert_repro.training.optimizer import accurate_norm, build_optimizer, learning_rate, set_learning_rate
from bert_repro.training.parallel import CountRight, Losses, ParallelModel, TrainingForward, count_nothing, place
from bert_repro.training.training_log import GRADIENT_NORM, STOP_REQUESTS, TOKENS, StepResult, TrainingLog
from bert_repro.utils.files import CHECKPOINTS
from bert_repro.utils.process import claim_folder, collect_signals
from bert_repro.utils.randomness import Stream, torch_seed

__all__ = ["CountRight", "ParallelModel", "Trainer", "TrainingForward", "count_nothing", "place"]

logger = logging.getLogger("bert_repro")

MOST_SKIPPED_IN_A_ROW = 20  # fp16 steps
MOST_LOADERS_FOR_A_GPU = 4


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
        compile_options: options of `torch.compile` for training steps; None does not compile.
        by_layer: whether each encoder layer is compiled for itself.
        static_shapes: whether all micro-batches must have one shape, so that they cannot be divided.
        layer_decay: learning rate of each layer as a fraction of that of the layer above.
        pooling: see `bert_repro.hub.export.write_pooling`.
        best: compares every evaluation, keeps the best weights and may stop the run early.
        replan: called with steps taken and seconds of training when a row of the log is due. It may change the steps of
            the source, for a run with a time limit.

    Attributes:
        state: steps taken and the position in the data.
        log: the training log.
        micro_batch_splits: parts into which each micro-batch is divided. Doubled each time the device runs out of
            memory.
        reads_late: whether the numbers of a step are read while the device computes the next one.
        compiled_graphs: number of compiled graphs, known after training.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        model: nn.Module,
        source: BatchSource,
        config: TrainingSettings,
        *,
        tokenizer: Any,
        count_right: CountRight = count_nothing,
        evaluate: Callable[[], dict[str, Any]] | None = None,
        on_row: Callable[[dict[str, float]], None] | None = None,
        compile_options: dict[str, Any] | None = None,
        by_layer: bool = False,
        static_shapes: bool = False,
        layer_decay: float = 1.0,
        pooling: str = "mean",
        best: BestModel | None = None,
        replan: Callable[[int, float], None] | None = None,
    ) -> None:
        if compile_options is not None and config.deterministic and config.gradient_checkpointing:
            raise UserError(
                f"{flag('deterministic')} and {flag('gradient_checkpointing')} cannot be combined in compiled steps: "
                "the "
                "dropout of recomputed layers does not follow the seed of the step, so a resumed run would differ. Add "
                f"{flag('torch_compile', False)}.",
                setting="torch_compile",
            )
        self.accelerator = accelerator
        self.source = source
        self.config = config
        self.tokenizer = tokenizer
        self.evaluate = evaluate
        self.best = best
        self.replan = replan
        self.static_shapes = static_shapes
        self.pooling = pooling
        self.output_dir = Path(config.output_dir)

        self.parallel = ParallelModel(
            accelerator, model, compile_options=compile_options, by_layer=by_layer, count_right=count_right
        )
        self.model = self.parallel.model
        optimizer = build_optimizer(self.model, config, layer_decay)
        self.optimizer = accelerator.prepare_optimizer(optimizer, device_placement=False)
        self._parameters = list(self.model.parameters())
        self.state = TrainerState()
        self.log = TrainingLog(accelerator, config, source.total_steps, on_row=on_row)

        # The fused optimizer's kernel on CUDA can skip an update by itself. Under fp16 the scaler has to wait anyway.
        self.reads_late = accelerator.device.type == "cuda" and accelerator.scaler is None
        self._found_non_finite: torch.Tensor | None = None  # 1 from the first step on that was not finite
        self._unread: deque[StepResult] = deque()

        self.compiled_graphs = 0
        self.micro_batch_splits = 1
        self._has_tried_memory = False
        self._skipped_in_a_row = 0
        self._saved_step = -1  # step of the newest checkpoint

    def train(self) -> None:
        """Runs every remaining step. The trained state is then on disk, whatever happens afterwards.

        Raises:
            NonFiniteError: the loss, the gradient norm or a weight is not finite; nothing was saved from it.
            StopRequested: a signal was received; a checkpoint has been written.
        """
        if resume.resumes(self.config):
            self._resume()
        self.log.begin(self.state.step, self.state.log)
        try:
            with self.log, collect_signals() as received:
                self._run(received)
                if self._saved_step != self.state.step:
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

    def replay(self, last_step: int) -> Iterator[tuple[int, dict[str, float]]]:
        """Makes the steps up to `last_step` without writing anything, to compare them with those of an earlier run.

        Args:
            last_step: the last step to make.

        Yields:
            The number of each step, and its metrics as the log has them.
        """
        if resume.resumes(self.config):
            self._resume()
        try:
            for step, micro_batches in self._loaded_steps():
                self.parallel.wrapped.train()
                self._step(step, micro_batches, stop=False)
                result = self._unread.pop()
                self._require_finite(result)
                yield result.before.step + 1, result.metrics()
                if self.state.step >= last_step:
                    break
        finally:
            self.parallel.unwrap()

    def _run(self, received: list[int]) -> None:
        """Runs the remaining steps; the module's docstring has the order of events.

        Args:
            received: numbers of the signals received so far; filled by the signal handler.
        """
        # The run had already stopped early before it was interrupted.
        if self.best and self.best.should_stop:
            return
        for number, (step, micro_batches) in enumerate(self._loaded_steps()):
            # An evaluation leaves the model in evaluation mode.
            if not self.model.training:
                self.parallel.wrapped.train()
            self._step(step, micro_batches, stop=bool(received))
            # Everything that the run has loaded so far stays, so garbage collections need not look at it again.
            if number == 0:
                gc.freeze()

            stop = self._log_step()
            if self._is_due(self.config.eval_steps) and self.evaluate:
                self._evaluate(self.evaluate)
            if stop or self._is_due(self.config.save_steps):
                self.save()
            if stop:
                logger.info("Stopped after step %d.", self.state.step)
                raise StopRequested(received[0] if received else signal.SIGTERM)

            if self.replan and self._is_due(self.log.every):
                self.replan(self.state.step, self.log.seconds())
                self.log.total = self.source.total_steps
            if self._is_over():
                break
        self._read_results()

    def _is_over(self) -> bool:
        """Returns whether the run ends with this step: all steps are taken, or the dev score has stopped improving."""
        if self.state.step >= self.source.total_steps:
            return True
        if self.best and self.best.should_stop:
            logger.info("Stopped early at step %d: %s no longer improves.", self.state.step, self.best.metric)
            return True
        return False

    # --- Data ---------------------------------------------------------------------------------------------------------

    def _loaded_steps(self) -> Iterator[tuple[Step, list[MicroBatch]]]:
        """Yields the steps with this process's micro-batches.

        If a loader process is killed, a checkpoint is written first, so that nothing is lost.
        """
        on_gpu = self.accelerator.device.type == "cuda"
        # A run with a time limit changes its number of steps, so the source decides when to end.
        steps_left = None if self.replan else self.source.total_steps - self.state.step
        steps = load_steps(
            self.source,
            self.state.position,
            steps_left,
            process=self.accelerator.process_index,
            processes=self.accelerator.num_processes,
            num_workers=self._num_loaders(on_gpu),
            pin_memory=on_gpu,
        )
        try:
            yield from steps
        except ProcessKilledError as error:
            self._read_results()
            # Several processes cannot save together here: the others may wait in another collective.
            if self.accelerator.num_processes == 1 and self._saved_step != self.state.step:
                self.save()
            raise ProcessKilledError(
                f"Stopped after step {self.state.step}: {error}. Resume with "
                f"{flag('resume_from_checkpoint', 'latest')}, "
                f"if necessary with a lower {flag('dataloader_num_workers')}."
            ) from error

    def _num_loaders(self, on_gpu: bool) -> int:
        """Returns the number of loader processes: as configured, else this process's share of the cores on a GPU."""
        if self.config.dataloader_num_workers is not None:
            return self.config.dataloader_num_workers
        if not on_gpu:
            return 0
        cores = (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", 1))
        return min(MOST_LOADERS_FOR_A_GPU, max(1, cores - 1))

    # --- One step -----------------------------------------------------------------------------------------------------

    def _step(self, step: Step, micro_batches: list[MicroBatch], *, stop: bool) -> None:
        """Computes gradients and makes the update of one global batch. `_read_results` logs its numbers."""
        sums = self._gradients(step, micro_batches)
        norm = self._clip_gradient(self.config.max_grad_norm or math.inf)
        tokens = sum(micro_batch.tokens for micro_batch in micro_batches)
        names = (*sums, TOKENS, STOP_REQUESTS, GRADIENT_NORM)
        result = StepResult(step, self.state, names, self._add_up_over_processes(sums, tokens, stop, norm))

        if self.reads_late:
            self._skip_on_device_if_non_finite(result)
            result.copy_to_host()
        else:
            self._require_finite(result)
        result.learning_rate = self._update()
        is_skipped = not self.reads_late and not math.isfinite(result.norm)
        self._advance(step, is_skipped=is_skipped)
        self._unread.append(result)

    def _gradients(self, step: Step, micro_batches: list[MicroBatch]) -> Losses:
        """Adds up the gradients of a global batch, with smaller micro-batches if the device runs out of memory.

        Returns:
            This process's share of every loss term and accuracy.
        """
        if self.accelerator.num_processes > 1 and not self._has_tried_memory:
            self._find_micro_batch_that_fits(step, micro_batches)
        while True:
            try:
                return self._add_up_gradients(step, self._divided(step, micro_batches))
            except RuntimeError as error:
                # Several processes cannot retry: the others would wait in the all-reduce of the gradients.
                if self.accelerator.num_processes > 1 or not should_reduce_batch_size(error):
                    raise
            # Outside of the handler, so that the exception no longer keeps the tensors of the failed pass alive.
            self._divide_further(step)

    def _add_up_gradients(self, step: Step, micro_batches: list[MicroBatch]) -> Losses:
        sums: Losses = {}
        for number, micro_batch in enumerate(micro_batches):
            process = self.accelerator.process_index
            self.parallel.seed(torch_seed(self.config.seed, Stream.DROPOUT, self.state.step, process, number))
            # Gradients are added up over the processes once, with the last micro-batch.
            is_last = number == len(micro_batches) - 1
            with nullcontext() if is_last else self.accelerator.no_sync(self.parallel.wrapped):
                shares = self._backward(step, micro_batch)
            for name, share in shares.items():
                sums[name] = sums[name] + share if name in sums else share
        return sums

    def _backward(self, step: Step, micro_batch: MicroBatch) -> Losses:
        """Adds the gradients of a micro-batch; returns its share of every loss term and accuracy of the global "
        "batch."""
        inputs = send_to_device(micro_batch.inputs, self.accelerator.device, non_blocking=True)
        with self.accelerator.autocast():
            means, right = self.parallel.wrapped(tuple(step.totals), inputs)

        # The model returns means over the micro-batch. Weighted by their counts they add up to the mean over the step.
        losses: Losses = {}
        for term, total in step.totals.items():
            losses[term] = means[term] * self.parallel.scalar(micro_batch.counts[term] / total)
        # DDP averages gradients over the processes, but the totals already count all of them.
        loss = sum(losses.values()) * self.accelerator.num_processes
        self.accelerator.backward(loss)

        shares = {term: loss.detach() for term, loss in losses.items()}
        for term, number in right.items():
            total_on_device = self.parallel.scalar(step.totals[term])
            shares[term.replace("loss", "accuracy")] = number.to(shares[term].dtype) / total_on_device
        return shares

    def _clip_gradient(self, max_norm: float) -> torch.Tensor:
        """Scales the gradient to a norm of at most `max_norm`; returns its norm before."""
        if self.accelerator.device.type != "cpu":
            return cast(torch.Tensor, self.accelerator.clip_grad_norm_(self._parameters, max_norm))
        norm = accurate_norm(parameter.grad for parameter in self._parameters if parameter.grad is not None)
        torch.nn.utils.clip_grads_with_norm_(self._parameters, max_norm, norm)
        return norm

    def _add_up_over_processes(self, sums: Losses, tokens: int, stop: bool, norm: torch.Tensor) -> torch.Tensor:
        """Adds up losses, accuracies, tokens and stop requests over the processes, in one collective.

        Returns:
            These sums and the gradient norm, in the order of `StepResult.names`, on the device.
        """
        values = torch.stack([*sums.values()])
        # Copies from page-locked memory do not wait for the device.
        on_gpu = values.device.type == "cuda"
        counts = torch.tensor([tokens, stop], dtype=values.dtype, pin_memory=on_gpu)
        own = torch.cat([values, counts.to(values.device, non_blocking=on_gpu)])
        total = own
        if self.accelerator.num_processes > 1:
            total = self.accelerator.reduce(own, "sum")
        numbers = torch.cat([total, norm.to(total.dtype).reshape(1)])
        self.parallel.execute()
        return numbers

    def _skip_on_device_if_non_finite(self, result: StepResult) -> None:
        """Makes the optimizer's kernel skip this update and all later ones if the step is not finite."""
        is_non_finite = (~torch.isfinite(result.values).all()).to(torch.float32)
        if self._found_non_finite is None:
            self._found_non_finite = is_non_finite
        else:
            self._found_non_finite = torch.maximum(self._found_non_finite, is_non_finite)
        self.optimizer.optimizer.found_inf = self._found_non_finite

    def _require_finite(self, result: StepResult) -> None:
        """Ends the run if a step is not finite. Neither it nor a later one was taken."""
        losses = result.losses()
        has_finite_loss = math.isfinite(sum(losses.values()))
        # Under fp16 the scaler handles a gradient that is not finite: it lowers its scale and skips the step.
        has_scaler = self.accelerator.scaler is not None
        if has_finite_loss and (math.isfinite(result.norm) or has_scaler):
            return
        self.state = result.before
        self._unread.clear()
        raise NonFiniteError(
            f"Stopped at step {self.state.step}: loss {losses}, gradient norm {result.norm}. The update was not made "
            f"and nothing was saved from it. {_remedy()}"
        )

    def _update(self) -> float:
        """Updates the weights; returns the learning rate."""
        step = self.state.step - self.state.skipped
        value = learning_rate(step, self.config, self.source.total_steps)
        set_learning_rate(self.optimizer.optimizer, value)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.parallel.execute()
        return value

    def _advance(self, step: Step, *, is_skipped: bool) -> None:
        """Counts the step. Ends the run if fp16 has skipped too many in a row."""
        self._skipped_in_a_row = self._skipped_in_a_row + 1 if is_skipped else 0
        if self._skipped_in_a_row == MOST_SKIPPED_IN_A_ROW:
            raise NonFiniteError(
                f"Stopped at step {self.state.step}: {MOST_SKIPPED_IN_A_ROW} fp16 steps in a row had no finite "
                f"gradient. Use {flag('mixed_precision', 'bf16')} or a lower {flag('learning_rate')}."
            )
        self.state = TrainerState(self.state.step + 1, self.state.skipped + is_skipped, step.position)

    # --- Memory -------------------------------------------------------------------------------------------------------

    def _find_micro_batch_that_fits(self, step: Step, micro_batches: list[MicroBatch]) -> None:
        """Tries the fullest micro-batch before the first step of several processes, and divides until it fits.

        Later this would be too late: a process that runs out of memory would leave the others waiting.
        """
        fits = False
        while not fits:
            fullest = max(self._divided(step, micro_batches), key=lambda micro_batch: micro_batch.tokens)
            ran_out_of_memory = False
            try:
                with self.accelerator.no_sync(self.parallel.wrapped):
                    self._backward(step, fullest)
            except RuntimeError as error:
                if not should_reduce_batch_size(error):
                    raise
                ran_out_of_memory = True
            self.optimizer.zero_grad()
            fits = not self._any_process(ran_out_of_memory)
            if not fits:
                self._divide_further(step)
        self._has_tried_memory = True

    def _any_process(self, condition: bool) -> bool:
        """Returns whether a condition holds on any process."""
        if self.accelerator.num_processes == 1:
            return condition
        value = torch.tensor([float(condition)], device=self.accelerator.device)
        return bool(self.accelerator.reduce(value, "sum").item())

    def _divided(self, step: Step, micro_batches: list[MicroBatch]) -> list[MicroBatch]:
        """Returns the micro-batches of a step, each in `micro_batch_splits` parts."""
        if self.micro_batch_splits == 1:
            return micro_batches
        parts: list[MicroBatch] = []
        for ids in step.passes[self.accelerator.process_index :: self.accelerator.num_processes]:
            divided_ids = np.array_split(ids, min(self.micro_batch_splits, len(ids)))
            parts.extend(self.source.load(part, step.group) for part in divided_ids)
        return parts

    def _divide_further(self, step: Step) -> None:
        """Halves the micro-batches from now on, after the device ran out of memory."""
        self.optimizer.zero_grad()
        clear_device_cache(garbage_collection=True)
        largest = -(-max(len(ids) for ids in step.passes) // self.micro_batch_splits)
        if largest == 1 or self.static_shapes:
            size = "batches of one shape" if self.static_shapes else "a single sequence"
            raise UserError(
                f"The device is out of memory with {size}. Add {flag('gradient_checkpointing')}, or lower "
                f"{flag('max_seq_length')} or {flag('per_device_train_batch_size')}.",
                setting="per_device_train_batch_size",
            )
        self.micro_batch_splits *= 2
        logger.warning(
            "Step %d: out of memory with %d sequences per forward pass. Retrying with %d; the batch size per update "
            "stays the same. Dropout draws differ from those of an undivided batch.",
            self.state.step + 1,
            largest,
            -(-largest // 2),
        )

    # --- Log, evaluation, checkpoints ---------------------------------------------------------------------------------

    def _is_due(self, every: int | None) -> bool:
        return every is not None and self.state.step % every == 0

    def _log_step(self) -> bool:
        """Logs the steps whose numbers have arrived; returns whether any process was asked to stop."""
        # Evaluations and checkpoints need the numbers of all steps. Otherwise the newest step stays on the device.
        reads_all = self._is_due(self.config.eval_steps) or self._is_due(self.config.save_steps) or not self.reads_late
        return self._read_results(leave=0 if reads_all else 1)

    def _read_results(self, leave: int = 0) -> bool:
        """Logs the numbers of the steps taken.

        Args:
            leave: newest steps to leave unread.

        Returns:
            Whether any process was asked to stop; then all steps are read.

        Raises:
            NonFiniteError: a step was not finite; neither it nor a later one was taken.
        """
        stop = False
        while len(self._unread) > leave:
            result = self._unread.popleft()
            if self.reads_late:
                self._require_finite(result)
            if result.stop:
                stop = True
                leave = 0
            self.log.step(result.before.step + 1, result.metrics())
        return stop

    def _evaluate(self, evaluate: Callable[[], dict[str, Any]]) -> None:
        """Evaluates, logs the metrics and compares them with the best ones so far."""
        # Layers are not compiled again for the shapes of an evaluation.
        with torch.compiler.set_stance("force_eager") if self.parallel.compiles else nullcontext():
            metrics = self.log.evaluation(self.state.step, evaluate)
        if self.best:
            self.best.consider(metrics, self.state.step, self.model, write=self.accelerator.is_main_process)

    def save(self, keep: int | None = None) -> None:
        """Writes a checkpoint of the present state on the main process. All processes call it together.

        Args:
            keep: number of checkpoints to keep; default: `save_total_limit`.

        Raises:
            NonFiniteError: a weight is not finite; nothing was written.
        """
        self._require_finite_weights()
        if self.accelerator.is_main_process:
            self._write_checkpoint(keep or self.config.save_total_limit)
            if self.best:
                self.best.forget_others()
        self._saved_step = self.state.step
        # On XLA even a barrier of one process compiles a graph.
        if self.accelerator.num_processes > 1:
            self.accelerator.wait_for_everyone()

    def _write_checkpoint(self, keep: int) -> None:
        scaler = self.accelerator.scaler
        state = replace(
            self.state,
            scaler=scaler.state_dict() if scaler else None,
            data_fingerprint=dict(self.source.data_fingerprint),
            settings=resume.stored_settings(self.config),
            log=self.log.state(),
            best=self.best.state() if self.best else None,
        )
        named_state = checkpoint.named_state(self.model, self.optimizer.optimizer)
        checkpoint.save(
            self.output_dir,
            savable(self.model),
            {name: value.cpu() for name, value in named_state},
            state,
            tokenizer=self.tokenizer,
            environment=environment(self.accelerator),
            keep=keep,
            pooling=self.pooling,
        )

    def _require_finite_weights(self) -> None:
        """Ends all processes together if a weight of any of them is not finite."""
        name = find_non_finite(self.model)
        if self._any_process(name is not None):
            raise NonFiniteError(
                f"Stopped after step {self.state.step}: weights are not finite ({name or 'on another process'}). "
                f"Nothing was saved from it. {_remedy()}"
            )

    def _resume(self) -> None:
        """Continues from a checkpoint; the docstring of `resume` has the order of events."""
        folder = checkpoint.find(self.output_dir, self.config.resume_from_checkpoint or "")
        state = checkpoint.read_state(folder)
        resume.require_same_data(folder, state, self.source, self.config)
        resume.require_same_settings(folder, state.settings, self.config)
        if self.accelerator.is_main_process:
            claim_folder(self.output_dir)

        checkpoint.load(folder, self.model, self.optimizer.optimizer, environment(self.accelerator))
        self.state = state
        # The checkpoint of another run is not one of this run's.
        is_own = folder.parent.resolve() == (self.output_dir / CHECKPOINTS).resolve()
        self._saved_step = state.step if is_own else -1
        if self.best:
            self.best.load(state.best)
        if self.accelerator.scaler is not None and state.scaler:
            self.accelerator.scaler.load_state_dict(state.scaler)
        logger.info("Resuming from %s", folder)


def _remedy() -> str:
    """Returns what helps a run whose numbers were not finite."""
    return f"Lower {flag('learning_rate')} or lengthen the warm-up, then resume."
