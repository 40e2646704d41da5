"""What every training run does before its first step and after its last."""

import dataclasses
import logging
import math
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import typing
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedDataParallelKwargs
from transformers.utils import is_peft_available

from bert_repro.configs import RunConfig, require
from bert_repro.errors import NonFiniteError, StopRequested, UserError
from bert_repro.hub.export import MADE_FROM_WEIGHTS, PREDICTIONS, export_checkpoint, model_facts, remove
from bert_repro.hub.plots import plot_scores, plot_training
from bert_repro.hub.push import push_folder
from bert_repro.hub.upload import prepare_repository
from bert_repro.models.cpu_kernels import use_cpu_kernels
from bert_repro.models.loading import load_pretrained, quiet_transformers
from bert_repro.results import HardwareResults, RunResults, read_results, write_results
from bert_repro.training import adapters, checkpoint, training_log
from bert_repro.training.checkpoint import device_name, find_non_finite, savable, versions
from bert_repro.training.performance import prepare_cpu, training_totals
from bert_repro.training.training_log import end_trackers, report_results, start_trackers, wanted_trackers
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
from bert_repro.utils.readers import first_line, redacted

logger = logging.getLogger("bert_repro")

_NOTEBOOKS = ("ipykernel_launcher", "colab_kernel_launcher")

_PRODUCTS = (
    CHECKPOINTS, TRAIN_LOG, STATUS, RESULTS, TRAINING_PLOT, SCORES_PLOT, CARD, BEST, ADAPTER, SWEEP,
    SAMPLE_INDEX, *MADE_FROM_WEIGHTS, *PREDICTIONS, *(f"{prefix}*" for prefix in UNFINISHED),
    "*/events.out.tfevents.*", "*/*/events.out.tfevents.*", "*/*/hparams.yml",
)  # fmt: skip
"""What an earlier run left, logs of trackers included."""


@dataclass(frozen=True)
class Run:
    """A run that has begun; as a context manager it ends the run's trackers, however the run ends.

    Args:
        config: its settings.
        accelerator: devices, precision, trackers.
        began: `time.perf_counter()` at the start.
    """

    config: Any
    accelerator: Accelerator
    began: float

    @property
    def output_dir(self) -> Path:
        """The run's folder."""
        return Path(self.config.output_dir)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            if isinstance(error, StopRequested) and is_main_process():
                with suppress(UserError):  # it was stopped before there was one
                    found = checkpoint.find(self.output_dir, "latest")
                    logger.info("checkpoint: %s; resume: the same command with --resume_from_checkpoint latest", found)
        finally:
            end_trackers(self.accelerator)

    def clear(self) -> None:
        """Makes the folder this run's: the products of an earlier run are removed, where they may be. Starts trackers.

        Called when all that the run reads has been found right, so that a mistyped name costs nobody a finished run. A
        run that resumes takes the folder of a finished one later, when its settings are those of the checkpoint.
        """
        if is_main_process():
            with output_dir_errors(self.output_dir):
                if not checkpoint.resumes(self.config):
                    remove(self.output_dir, _PRODUCTS)
                    process.claim_folder(self.output_dir)
        if self.accelerator.num_processes > 1:  # nobody writes what would be removed
            self.accelerator.wait_for_everyone()
        start_trackers(self.accelerator, self.config)

    def finish(
        self, model: Any, tokenizer: Any, results: Mapping[str, Any], *, save_model: bool = True, last: bool = True
    ) -> RunResults:
        """Ends a run: results, plot, published folder with its card, upload where asked.

        Args:
            model: the unwrapped model.
            tokenizer: its tokenizer.
            results: what the caller knows: task, split, metrics, rows_scored, data ...
            save_model: False for a run that only evaluated; it leaves results.json alone.
            last: leave the process group; False where these processes make another run.

        Returns:
            The complete results, as written to results.json.
        """
        rows = training_log.read(self.output_dir / TRAIN_LOG) if "train" in results else []
        complete = self._completed(results, model)
        if "train" in complete:
            complete["train"] |= training_totals(rows)
        self._require_finite(model, complete)
        if self.accelerator.is_main_process:
            if rows:
                plot_training(self.output_dir / TRAINING_PLOT, rows, complete)
            plot_scores(self.output_dir / SCORES_PLOT, complete)
            if save_model:
                if (self.output_dir / ADAPTER).is_dir():  # labels, a tuned threshold
                    with atomic_files(self.output_dir / ADAPTER) as unfinished:
                        model.config.save_pretrained(unfinished)
                pooling = getattr(self.config, "pooling", "mean")  # the setting of models without a task
                export_checkpoint(savable(model), tokenizer, self.output_dir, results=complete, pooling=pooling)
            else:
                write_results(self.output_dir, complete)
        self.accelerator.wait_for_everyone()
        if self.config.push_to_hub and self.accelerator.is_main_process:
            # After the last barrier: nobody waits for the upload, and nobody hangs when it fails.
            push_folder(self.output_dir, self.config.hub_model_id, private=self.config.hub_private_repo)
        report_results(self.accelerator, complete)
        end_trackers(self.accelerator)
        if self.accelerator.is_main_process:
            process.write_status(self.output_dir, 0, "done")
            # What was saved only for the case that the run would not come this far.
            shutil.rmtree(self.output_dir / BEST, ignore_errors=True)
            steps, save_steps = complete.get("train", {}).get("steps"), self.config.save_steps
            if steps is not None and (save_steps is None or steps % save_steps):
                checkpoint.drop_last(self.output_dir, steps)
        if last:
            self.accelerator.state.destroy_process_group()
        return complete

    def _require_finite(self, model: Any, results: RunResults) -> None:
        """Raises `NonFiniteError` where a weight or a metric is not finite: nothing of it is published."""
        scored = {"": results.get("metrics", {})} | {
            f"{name}: ": split.get("metrics", {}) for name, split in results.get("splits", {}).items()
        }
        for split, metrics in scored.items():
            for name, value in metrics.items():
                if not math.isfinite(value):
                    raise NonFiniteError(f"{split}{name} is {value}; nothing was published. Lower --learning_rate")
        if (lost := find_non_finite(model)) is not None:
            raise NonFiniteError(f"the weights {lost} are not finite; nothing was published. Lower --learning_rate")

    def _completed(self, results: Mapping[str, Any], model: Any) -> RunResults:
        """Adds what every run says of itself: settings, versions, device, time."""
        facts = {
            "seed": self.config.seed,
            "settings": dataclasses.asdict(self.config),
            "versions": versions(),
            "git_commit": git_commit(),
            "hardware": hardware(self.accelerator.device) | {"processes": self.accelerator.num_processes},
            "command": command(),
            "base_model": _hub_id(self.config.model_name_or_path),
            "model": model_facts(model),
            "wall_time_seconds": round(time.perf_counter() - self.began, 1),
        }
        return typing.cast(RunResults, redacted({**results, **facts}))


def begin(config: RunConfig) -> Run:
    """Locks the output folder and sets up devices, precision and determinism; `Run.clear` makes the folder the run's.

    Raises:
        UserError: the folder holds another run, or this machine cannot do what was asked.
    """
    began = time.perf_counter()
    if config.peft and not is_peft_available():
        raise UserError(f"--peft {config.peft}: the package peft is not installed; run: pip install peft")
    if is_main_process():
        _lock_output_dir(config)
        if config.push_to_hub and config.hub_model_id:
            # Now, not after a week: whether this login may write there.
            prepare_repository(config.hub_model_id, private=config.hub_private_repo)
    quiet_transformers()
    if config.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    if os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true":
        raise UserError("accelerate launch --use_fsdp: models of BERT's size need no sharding; launch without it")
    # torchrun's store keeps the addresses of processes that died (seen with torch 2.13).
    shares_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if shares_store and os.environ["TORCHELASTIC_MAX_RESTARTS"] != "0":
        logger.warning("torchrun may restart and wait for dead processes; set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1")
    accelerator = _accelerator(config)
    if accelerator.device.type == "cpu" and config.cpu_kernels:
        prepare_cpu()
    return Run(config, accelerator, began)


def _lock_output_dir(config: RunConfig) -> None:
    folder = Path(config.output_dir)
    with output_dir_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        require(lock(folder), f"--output_dir {folder} is being written by another run; stop it or name another")
        with tempfile.TemporaryFile(dir=folder):  # before hours are spent on what belongs there
            pass
        resumes = config.resume_from_checkpoint and process.recorded_exit_code(folder) != 0
        if process.is_free_folder(folder) or resumes:
            process.claim_folder(folder)  # a finished run stays one until this run is found right


@contextmanager
def output_dir_errors(folder: Path) -> Iterator[None]:
    """Turns errors of the system about the output folder into one `UserError`."""
    try:
        yield
    except OSError as error:
        raise UserError(f"--output_dir {folder} cannot be written ({error.strerror}); name another folder") from error


def _accelerator(config: RunConfig) -> Accelerator:
    trackers = wanted_trackers(config)
    # Batches without padding differ in size, which would leave gaps in a GPU's memory.
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    forget_precision(config.mixed_precision)
    try:
        accelerator = Accelerator(
            mixed_precision=config.mixed_precision,
            log_with=trackers or None,
            project_dir=config.output_dir,
            kwargs_handlers=[DistributedDataParallelKwargs(gradient_as_bucket_view=True)],  # one copy of gradients less
        )
    except ValueError as error:
        raise UserError(f"--mixed_precision {config.mixed_precision}: {first_line(error)}") from error
    started = world_size()
    if started > 1 and accelerator.num_processes == 1:
        # Accelerate says nothing where it finds no GPU, and each process would train alone into the same folder.
        raise UserError(
            f"WORLD_SIZE is {started}: so many processes were started, but they see no GPU; for them to "
            "share the work on CPUs set ACCELERATE_USE_CPU=true, else start one"
        )
    device, precision = accelerator.device.type, config.mixed_precision
    require(precision != "fp16" or device != "cpu", "--mixed_precision fp16 needs a GPU; use auto on this device")
    require(not config.torch_compile or device != "xla", "--torch_compile: XLA compiles by itself; leave it out")
    return accelerator


def forget_precision(wanted: str) -> None:
    """Lets an `Accelerator` have another precision than an earlier run of this process; the processes stay together."""
    if AcceleratorState._shared_state.get("_mixed_precision") not in (None, wanted):
        AcceleratorState._reset_state()


def load_model(model_class: Any, config: Any, *, may_add_weights: bool, **options: Any) -> Any:
    """Loads `--model_name_or_path` for a run, with its adapter where `--peft` asks for one.

    Args:
        model_class: one of our model classes.
        config: its `model_name_or_path`, `attn_implementation`, `seed`, `gradient_checkpointing` and `cpu_kernels`.
        may_add_weights: whether weights that the checkpoint lacks, or a head of another size, may be initialized.
        options: what else `from_pretrained` takes, for example `id2label`.

    Raises:
        UserError: there is no such checkpoint, it does not fit, or it lacks weights that may not be new.
    """
    name = config.model_name_or_path
    if (Path(name) / adapters.CONFIG).is_file():
        raise UserError(
            f"--model_name_or_path {name}: is an adapter alone; name the run's folder above it, which holds the merged "
            "model, or the checkpoint the adapter belongs to"
        )
    torch.manual_seed(torch_seed(config.seed, Stream.INITIALIZATION))
    options |= {"attn_implementation": config.attn_implementation, "ignore_mismatched_sizes": True}
    model, info = load_pretrained(model_class, name, **options)
    new = sorted(info["missing_keys"] | {key for key, *_ in info["mismatched_keys"]})
    if new and not may_add_weights:
        raise UserError(f"--model_name_or_path {name}: lacks {new[0]}; name a finished model, or add --do_train")
    if new and not config.resume_from_checkpoint:  # whose checkpoint has them
        modules = dict.fromkeys(key.rpartition(".")[0] for key in new)
        logger.info("new weights, not in %s: %s", name, ", ".join(modules))
    model = prepare_model(model, config)
    if config.peft:
        torch.manual_seed(torch_seed(config.seed, Stream.INITIALIZATION, 1))
        model = adapters.add_adapter(model, config, new)
    return model


def prepare_model(model: Any, config: RunConfig) -> Any:
    """Applies the settings that every model of a run takes, new or loaded."""
    if config.gradient_checkpointing:
        # The first name is the later one; transformers 5.17 has the second alone.
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        enable()
    if config.cpu_kernels:
        use_cpu_kernels(model)
    return model


def git_commit() -> str | None:
    """Returns the commit of the source tree, with `-dirty` when it has changes; None for an installed package."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    describe = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(describe, cwd=root, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def hardware(device: torch.device) -> HardwareResults:
    """Returns device, processor, cores and threads."""
    return {
        "device": device_name(device),
        "processor": _processor_name(),
        "cores": os.cpu_count(),
        "cpu_threads": torch.get_num_threads(),
    }


def command() -> str:
    """Returns the command line of this process, without the folders before the script's name."""
    script = Path(sys.argv[0])
    if script.stem in _NOTEBOOKS:
        return "a notebook"
    name = "bert-repro" if script.parts[-2:] == ("bert_repro", "__main__.py") else script.name
    if not name.endswith(".py"):  # the installed `bert-repro`, which is a program
        return shlex.join([name, *sys.argv[1:]])
    shown = f"recipes/{script.name}" if script.parent.name == "recipes" else script.name
    return shlex.join(["python", shown, *sys.argv[1:]])


def _hub_id(name: str | None) -> str | None:
    """Returns the id on the Hub of a checkpoint, where it is known: a folder has one if its own run was pushed."""
    if not name:
        return None
    folder = Path(name).expanduser()
    if not folder.exists():  # asked here, where the run is
        return None if name.count("/") > 1 or name[0] in "./~" else name
    try:
        settings = read_results(folder).get("settings", {})
    except UserError:
        return None
    return settings.get("hub_model_id") if settings.get("push_to_hub") else None


def _processor_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
