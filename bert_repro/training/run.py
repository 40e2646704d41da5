"""What every training run does before its first step and after its last.

Order of events around a run:

1. `begin`: lock the output folder, check the login for an upload, set up devices, precision and determinism.
2. The caller reads its data and builds its model. Whatever is wrong with them leaves an earlier run's folder as it was.
3. `Run.clear`: remove the products of an earlier run, start trackers.
4. The caller trains and evaluates.
5. `Run.finish`: complete the results, check that nothing is NaN or infinite, plot, publish the folder, upload it.
6. `Run.__exit__`: end the trackers, however the run ended.
"""

import dataclasses
import logging
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedDataParallelKwargs
from torch import nn
from transformers.utils import is_peft_available

from bert_repro.configs import ModelSettings, RunConfig
from bert_repro.errors import NonFiniteError, StopRequested, UserError, flag
from bert_repro.hub.export import MADE_FROM_WEIGHTS, PREDICTIONS, export_checkpoint, model_facts, remove
from bert_repro.hub.plots import plot_scores, plot_training
from bert_repro.hub.push import push_folder
from bert_repro.hub.upload import prepare_repository
from bert_repro.models.cpu_kernels import use_cpu_kernels
from bert_repro.models.loading import load_pretrained, quiet_transformers
from bert_repro.results import RunResults, write_results
from bert_repro.training import adapters, checkpoint, provenance, resume, training_log
from bert_repro.training.checkpoint import find_non_finite, savable, versions
from bert_repro.training.cpu import prepare_cpu
from bert_repro.training.performance import training_totals
from bert_repro.training.trackers import end_trackers, report_results, requested_trackers, start_trackers
from bert_repro.utils import process
from bert_repro.utils.files import (
    ADAPTER,
    BEST,
    CARD,
    CHECKPOINTS,
    RESULTS,
    SAMPLE_INDEX,
    SCORES_PLOT,
    STATUS,
    SWEEP,
    TRAIN_LOG,
    TRAINING_PLOT,
    UNFINISHED,
    atomic_files,
    lock,
)
from bert_repro.utils.process import is_main_process, world_size
from bert_repro.utils.randomness import Stream, torch_seed
from bert_repro.utils.readers import first_line
from bert_repro.utils.redaction import redacted

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger("bert_repro")

_PRODUCTS = (
    CHECKPOINTS, TRAIN_LOG, STATUS, RESULTS, TRAINING_PLOT, SCORES_PLOT, CARD, BEST, ADAPTER, SWEEP,
    SAMPLE_INDEX, *MADE_FROM_WEIGHTS, *PREDICTIONS, *(f"{prefix}*" for prefix in UNFINISHED),
    "*/events.out.tfevents.*", "*/*/events.out.tfevents.*", "*/*/hparams.yml",
)  # fmt: skip
"""Files and folders that a run leaves, logs of trackers included."""


C = TypeVar("C", bound=RunConfig)


@dataclass(frozen=True)
class Run(Generic[C]):
    """A run that has begun. As a context manager it ends the run's trackers, however the run ends.

    Args:
        config: settings of the run.
        accelerator: devices, precision, trackers.
        began: `time.perf_counter()` at the start.
    """

    config: C
    accelerator: Accelerator
    began: float

    @property
    def output_dir(self) -> Path:
        """The run's folder."""
        return Path(self.config.output_dir)

    def __enter__(self) -> Self:
        """Returns the run."""
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Ends the trackers. After a signal it names the checkpoint to resume from."""
        try:
            if isinstance(error, StopRequested) and is_main_process():
                # A run that was stopped before its first checkpoint has none.
                with suppress(UserError):
                    folder = checkpoint.find(self.output_dir, "latest")
                    logger.info(
                        "Checkpoint: %s. To resume, repeat the command with %s.",
                        folder,
                        flag("resume_from_checkpoint", "latest"),
                    )
        finally:
            end_trackers(self.accelerator)

    def clear(self) -> None:
        """Makes the folder this run's: removes the products of an earlier run if that is allowed, and starts trackers.

        It is called when everything that the run reads has been checked, so that a mistyped name costs nobody a
        finished run. A run that resumes takes over the folder of a finished one later, when its settings have been
        compared with those of the checkpoint.
        """
        if is_main_process():
            with output_dir_errors(self.output_dir):
                if not resume.resumes(self.config):
                    remove(self.output_dir, _PRODUCTS)
                    process.claim_folder(self.output_dir)
        # The other processes must not write what would be removed.
        if self.accelerator.num_processes > 1:
            self.accelerator.wait_for_everyone()
        start_trackers(self.accelerator, self.config)

    def finish(
        self,
        model: Any,
        tokenizer: "PreTrainedTokenizerBase",
        results: Mapping[str, Any],
        *,
        save_model: bool = True,
        pooling: str = "mean",
        last: bool = True,
    ) -> RunResults:
        """Ends a run: results, plot, published folder with its card, upload if requested.

        Args:
            model: the unwrapped model.
            tokenizer: its tokenizer.
            results: what the caller knows: task, split, metrics, rows_scored, data ...
            save_model: False for a run that only evaluated; it writes results.json and no model.
            pooling: see `bert_repro.hub.export.write_pooling`.
            last: leave the process group; False if these processes make another run.

        Returns:
            The complete results, as written to results.json.
        """
        # Complete the results: settings, versions, device, totals of training.
        rows = training_log.read(self.output_dir / TRAIN_LOG) if "train" in results else []
        complete = self._completed(results, model)
        if "train" in complete:
            complete["train"] |= training_totals(rows)
        _require_finite(model, complete)

        # Publish on the main process; the others wait.
        if self.accelerator.is_main_process:
            if rows:
                plot_training(self.output_dir / TRAINING_PLOT, rows, complete)
            plot_scores(self.output_dir / SCORES_PLOT, complete)
            if save_model:
                self._publish(model, tokenizer, complete, pooling)
            else:
                write_results(self.output_dir, complete)
        self.accelerator.wait_for_everyone()

        # After the last barrier, so that no process waits for the upload or hangs if it fails.
        if self.config.push_to_hub and self.accelerator.is_main_process:
            push_folder(self.output_dir, str(self.config.hub_model_id), private=self.config.hub_private_repo)
        report_results(self.accelerator, complete)
        end_trackers(self.accelerator)
        if self.accelerator.is_main_process:
            process.write_status(self.output_dir, 0, "done")
            self._remove_intermediate_weights(complete)
        if last:
            self.accelerator.state.destroy_process_group()
        return complete

    def _publish(self, model: Any, tokenizer: "PreTrainedTokenizerBase", results: RunResults, pooling: str) -> None:
        """Writes the published folder."""
        # The adapter's configuration gets what was decided after training: labels, a tuned threshold.
        if (self.output_dir / ADAPTER).is_dir():
            with atomic_files(self.output_dir / ADAPTER) as unfinished:
                model.config.save_pretrained(unfinished)
        export_checkpoint(savable(model), tokenizer, self.output_dir, results=results, pooling=pooling)

    def _remove_intermediate_weights(self, results: RunResults) -> None:
        """Removes weights that were saved only in case the run would not come this far."""
        shutil.rmtree(self.output_dir / BEST, ignore_errors=True)
        steps = results.get("train", {}).get("steps")
        save_steps = self.config.save_steps
        is_regular_checkpoint = save_steps is not None and steps is not None and steps % save_steps == 0
        if steps is not None and not is_regular_checkpoint:
            checkpoint.drop_last(self.output_dir, steps)

    def _completed(self, results: Mapping[str, Any], model: Any) -> RunResults:
        """Adds what every run reports: settings, versions, device, time."""
        model_name = getattr(self.config, "model_name_or_path", None)
        facts = {
            "seed": self.config.seed,
            "settings": dataclasses.asdict(self.config),
            "versions": versions(),
            "git_commit": provenance.git_commit(),
            "hardware": {
                **provenance.hardware(self.accelerator.device),
                "processes": self.accelerator.num_processes,
            },
            "command": provenance.command(),
            "base_model": provenance.hub_id(model_name),
            "model": model_facts(model),
            "wall_time_seconds": round(time.perf_counter() - self.began, 1),
        }
        return cast(RunResults, redacted({**results, **facts}))


def _require_finite(model: nn.Module, results: RunResults) -> None:
    """Raises `NonFiniteError` if a weight or a metric is not finite, so that nothing of it is published."""
    metrics_by_split = {"": results.get("metrics", {})}
    for name, split in results.get("splits", {}).items():
        metrics_by_split[f"{name}: "] = split.get("metrics", {})
    for split_name, metrics in metrics_by_split.items():
        for name, value in metrics.items():
            if not math.isfinite(value):
                raise NonFiniteError(
                    f"{split_name}{name} is {value}. Nothing was published. Lower {flag('learning_rate')}."
                )
    weight = find_non_finite(model)
    if weight is not None:
        raise NonFiniteError(
            f"The weights {weight} are not finite. Nothing was published. Lower {flag('learning_rate')}."
        )


def begin(config: C) -> Run[C]:
    """Locks the output folder and sets up devices, precision and determinism.

    Nothing in the folder is removed before `Run.clear`.

    Raises:
        UserError: the folder contains another run, or this machine cannot do what the settings ask for.
    """
    began = time.perf_counter()
    if config.peft and not is_peft_available():
        raise UserError(
            f"{flag('peft', config.peft)}: the package peft is not installed. Run: pip install peft", setting="peft"
        )
    if is_main_process():
        _lock_output_dir(config)
        # Check now, and not after a week of training, that this login may write there.
        if config.push_to_hub and config.hub_model_id:
            prepare_repository(config.hub_model_id, private=config.hub_private_repo)
    # Deterministic kernels must be chosen before the first product on a GPU.
    quiet_transformers()
    if config.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)

    _check_launcher()
    accelerator = _accelerator(config)
    _warn_of_missing_processes(accelerator)
    if accelerator.device.type == "cpu" and config.cpu_kernels:
        prepare_cpu()
    return Run(config, accelerator, began)


def _lock_output_dir(config: RunConfig) -> None:
    folder = Path(config.output_dir)
    with output_dir_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        is_locked = lock(folder)
        if not is_locked:
            raise UserError(
                f"{flag('output_dir', folder)} is being written by another run. Stop that run, or choose another "
                "folder.",
                setting="output_dir",
            )
        # Fail now if the folder is not writable, rather than after hours of training.
        with tempfile.TemporaryFile(dir=folder):
            pass
        # A finished run stays one until everything that this run reads has been checked (`Run.clear`).
        resumes_unfinished = config.resume_from_checkpoint and process.recorded_exit_code(folder) != 0
        if process.is_free_folder(folder) or resumes_unfinished:
            process.claim_folder(folder)


@contextmanager
def output_dir_errors(folder: Path) -> Iterator[None]:
    """Turns errors of the system about the output folder into one `UserError`."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{flag('output_dir', folder)} cannot be written ({error.strerror}). Choose another folder.",
            setting="output_dir",
        ) from error


def _check_launcher() -> None:
    """Refuses sharding, and warns of restarts that may hang."""
    if os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true":
        raise UserError(
            "accelerate launch --use_fsdp is not supported, because models of BERT's size need no sharding. Launch "
            "without it."
        )
    # torchrun's store keeps the addresses of processes that died (seen with torch 2.13).
    shares_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if shares_store and os.environ["TORCHELASTIC_MAX_RESTARTS"] != "0":
        logger.warning(
            "After a restart, torchrun may wait for the addresses of dead processes. Set "
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 to avoid that."
        )


def _accelerator(config: RunConfig) -> Accelerator:
    """Returns Accelerate's object for the devices and the precision of a run.

    Raises:
        UserError: the device cannot do what the settings ask for.
    """
    trackers = requested_trackers(config)
    # Batches without padding differ in size, which would leave gaps in a GPU's memory.
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    forget_precision(config.mixed_precision)
    # Gradients as views of DDP's buckets: one copy of the gradients less.
    ddp_options = DistributedDataParallelKwargs(gradient_as_bucket_view=True)
    try:
        accelerator = Accelerator(
            mixed_precision=config.mixed_precision,
            log_with=trackers or None,
            project_dir=config.output_dir,
            kwargs_handlers=[ddp_options],
        )
    except ValueError as error:
        raise UserError(
            f"{flag('mixed_precision', config.mixed_precision)} cannot be used: {first_line(error)}",
            setting="mixed_precision",
        ) from error

    # Accelerate shows nothing if it finds no GPU, and each process would train alone into the same folder.
    if world_size() > 1 and accelerator.num_processes == 1:
        raise UserError(
            f"WORLD_SIZE is {world_size()}, so several processes were started, but they find no GPU. To share the work "
            "on CPUs, set ACCELERATE_USE_CPU=true. Otherwise start one process."
        )
    device = accelerator.device.type
    if config.mixed_precision == "fp16" and device == "cpu":
        raise UserError(
            f"{flag('mixed_precision', 'fp16')} requires a GPU. Use {flag('mixed_precision', 'auto')} on this device.",
            setting="mixed_precision",
        )
    if config.torch_compile and device == "xla":
        raise UserError(
            f"{flag('torch_compile')} has no effect on XLA, which compiles by itself. Leave it out.",
            setting="torch_compile",
        )
    return accelerator


def _warn_of_missing_processes(accelerator: Accelerator) -> None:
    """Warns if `accelerate launch` was asked for several processes and started only this one.

    That is what `accelerate launch --cpu --num_processes 2` does. It sets the address of the main process as for
    several processes, but neither their number nor their ranks.
    """
    is_launched = "ACCELERATE_MIXED_PRECISION" in os.environ
    expects_others = "MASTER_ADDR" in os.environ and "WORLD_SIZE" not in os.environ
    if is_launched and expects_others and accelerator.num_processes == 1:
        logger.warning(
            "accelerate launch --num_processes has started one process only, and this run uses one. On CPUs several "
            "processes are started by: ACCELERATE_USE_CPU=true torchrun --nproc_per_node 2 -m bert_repro ..."
        )


def forget_precision(mixed_precision: str) -> None:
    """Allows a new `Accelerator` to have another precision than an earlier run of this process.

    Accelerate keeps its state for the process, and refuses another precision. The process group stays.
    """
    if AcceleratorState._shared_state.get("_mixed_precision") not in (None, mixed_precision):
        AcceleratorState._reset_state()


def load_model(
    model_class: Any,
    config: ModelSettings,
    *,
    may_add_weights: bool,
    after_loading: Callable[[Any], None] | None = None,
    **options: Any,
) -> Any:
    """Loads `--model_name_or_path` for a run, with an adapter if `--peft` asks for one.

    Args:
        model_class: one of our model classes.
        config: settings of the run.
        may_add_weights: whether weights that the checkpoint does not have, or a head of another size, may be
            initialized.
        after_loading: changes the loaded model before an adapter is added to it.
        options: further arguments of `from_pretrained`, for example `id2label`.

    Raises:
        UserError: there is no such checkpoint, it does not fit, or weights are missing that may not be new.
    """
    name = str(config.model_name_or_path)
    if (Path(name) / adapters.CONFIG).is_file():
        raise UserError(
            f"{flag('model_name_or_path', name)} is an adapter alone. Pass the run's folder above it, which contains "
            "the merged model, or the checkpoint that the adapter belongs to.",
            setting="model_name_or_path",
        )

    # New weights are drawn from this seed.
    torch.manual_seed(torch_seed(config.seed, Stream.INITIALIZATION))
    options |= {"attn_implementation": config.attn_implementation, "ignore_mismatched_sizes": True}
    model, info = load_pretrained(model_class, name, **options)

    new_weights = sorted(info["missing_keys"] | {key for key, *_ in info["mismatched_keys"]})
    if new_weights and not may_add_weights:
        raise UserError(
            f"{flag('model_name_or_path', name)} does not contain {new_weights[0]}, so it cannot be evaluated. Pass a "
            f"fine-tuned model, or add {flag('do_train')}.",
            setting="model_name_or_path",
        )
    # When resuming, the checkpoint contains these weights, so the message would be wrong.
    if new_weights and not config.resume_from_checkpoint:
        modules = dict.fromkeys(key.rpartition(".")[0] for key in new_weights)
        logger.info("Newly initialized because %s does not contain them: %s", name, ", ".join(modules))

    if after_loading is not None:
        after_loading(model)
    # Memory and kernels, then the adapter.
    model = prepare_model(model, config)
    if config.peft:
        torch.manual_seed(torch_seed(config.seed, Stream.INITIALIZATION, 1))
        model = adapters.add_adapter(model, config, new_weights)
    return model


def prepare_model(model: Any, config: ModelSettings) -> Any:
    """Applies the settings that concern every model of a run, new or loaded."""
    if config.gradient_checkpointing:
        # The first name is the later one; transformers 5.17 has only the second.
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        enable()
    if config.cpu_kernels:
        use_cpu_kernels(model)
    return model
