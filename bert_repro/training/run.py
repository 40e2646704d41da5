"""What every training run does before its first step and after its last."""

import dataclasses
import json
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import is_tensorboard_available, is_wandb_available

from bert_repro.configs import RunConfig
from bert_repro.errors import UserError
from bert_repro.hub.export import MADE_FROM_WEIGHTS, PREDICTIONS, export_checkpoint, remove
from bert_repro.hub.push import prepare_repository, push_folder
from bert_repro.hub.redaction import redacted
from bert_repro.training import adapters, checkpoint, plots, training_log
from bert_repro.training.cpu_performance import prepare_cpu
from bert_repro.training.parallelism import launched_with_fsdp, saveable
from bert_repro.training.results import run_record
from bert_repro.training.totals import training_totals
from bert_repro.utils import status
from bert_repro.utils.randomness import torch_seed

logger = logging.getLogger("bert_repro")

SEARCH = "search"  # folder of a search's runs in its output folder
INITIALISATION = 2  # what is drawn, in the names of `randomness.draw`; loop.DROPOUT is 1
_PRODUCTS = (
    checkpoint.FOLDER, training_log.FILE_NAME, status.FILE_NAME, "results.json", "training.png", "README.md", "plans",
    SEARCH,
    adapters.FOLDER, *MADE_FROM_WEIGHTS, *PREDICTIONS,
)  # fmt: skip


@dataclass(frozen=True)
class Run:
    """A run that has begun.

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

    def clear(self) -> None:
        """Makes the folder this run's: an earlier run's products go, where they may.

        Called when all that the run reads has been found right, so that a mistyped name costs nobody a finished run.
        """
        if int(os.environ.get("RANK", "0")) == 0:
            with _told_of_the_folder(self.output_dir):
                if not status.is_free(self.output_dir) and not self.config.resume_from_checkpoint:
                    remove(self.output_dir, _PRODUCTS)
                status.claim(self.output_dir)
        if self.accelerator.num_processes > 1:  # nobody writes what would be removed
            self.accelerator.wait_for_everyone()

    def finish(
        self, model: Any, tokenizer: Any, results: dict[str, Any], *, save_model: bool = True, last: bool = True
    ) -> dict[str, Any]:
        """Writes results.json, the plot, the published folder with its card, and uploads it where asked.

        Args:
            model: the unwrapped model.
            tokenizer: its tokenizer.
            results: what the caller knows: task, split, metrics, rows_scored, data ...
            save_model: False for a run that only evaluated.
            last: leave the process group; False where these processes go on with another run.

        Returns:
            The complete record, as written to results.json.
        """
        complete = redacted({**results, **run_record(self.config, self.accelerator, model)})
        complete["wall_time_seconds"] = round(time.perf_counter() - self.began, 1)
        if "train" in complete:
            complete["train"] |= training_totals(self.output_dir, complete)
        if self.accelerator.is_main_process:
            if (self.output_dir / training_log.FILE_NAME).exists():
                plots.plot_training(self.output_dir)
            if save_model:
                export_checkpoint(saveable(model), tokenizer, self.output_dir, results=complete)
                adapters.complete(model, self.output_dir)
            else:
                status.write_json(self.output_dir / "results.json", complete)
        self.accelerator.wait_for_everyone()
        if self.config.push_to_hub and self.accelerator.is_main_process:
            # After the last barrier: nobody waits for the upload, and nobody hangs when it fails.
            push_folder(self.output_dir, self.config.hub_model_id, private=self.config.hub_private_repo)
        for tracker in self.accelerator.trackers:
            tracker.finish()
        if last:
            self.accelerator.state.destroy_process_group()
        return dict(complete)


def begin(config: RunConfig) -> Run:
    """Locks the output folder and sets up devices, precision and determinism; `Run.clear` makes the folder the run's.

    Raises:
        UserError: the folder holds another run, or this machine cannot do what was asked.
    """
    began = time.perf_counter()
    if config.push_to_hub and not config.hub_model_id:
        raise UserError("--push_to_hub needs --hub_model_id, for example org/bert-repro-base")
    adapters.require_peft(config)
    if int(os.environ.get("RANK", "0")) == 0:
        _lock_output_dir(config)
        if config.push_to_hub and config.hub_model_id:
            # Now, not after a week: whether this login may write there.
            prepare_repository(config.hub_model_id, private=config.hub_private_repo)
    _quiet_transformers()
    if config.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    if launched_with_fsdp():
        config = dataclasses.replace(config, fsdp=True)
    accelerator = _accelerator(config)
    if accelerator.device.type == "cpu":
        prepare_cpu(config)
    return Run(config, accelerator, began)


def load_model(model_class: Any, config: Any, *, may_add_weights: bool, **options: Any) -> Any:
    """Loads `--model_name_or_path` in float32, whatever precision it was saved in; autocast decides the precision.

    With `--peft` the model gets its adapter.

    Args:
        model_class: one of our model classes.
        config: its `model_name_or_path`, `attn_implementation`, `seed` and `gradient_checkpointing`.
        may_add_weights: whether weights that the checkpoint lacks, or a head of another size, may be initialised.
        options: what else `from_pretrained` takes, for example `id2label`.

    Raises:
        UserError: there is no such checkpoint, it does not fit, or it lacks weights that may not be new.
    """
    name = config.model_name_or_path
    if adapters.is_adapter(name):
        raise UserError(
            f"--model_name_or_path {name}: is an adapter alone; name the run's folder above it, which holds the merged "
            "model, or the checkpoint the adapter belongs to"
        )
    torch.manual_seed(torch_seed(config.seed, INITIALISATION))
    options |= {"dtype": torch.float32, "attn_implementation": config.attn_implementation}
    try:
        model, info = model_class.from_pretrained(
            name, output_loading_info=True, ignore_mismatched_sizes=True, **options
        )
    except (OSError, ValueError, ImportError, RuntimeError) as error:
        raise UserError(f"--model_name_or_path {name}: {_first_line(error)}") from error
    missing, misfits = set(info["missing_keys"]), sorted(info["mismatched_keys"])
    for key, saved, wanted in misfits:
        if not may_add_weights or key.startswith(f"{model.base_model_prefix}."):
            raise UserError(
                f"--model_name_or_path {name}: {key} has the shape {list(saved)}, where its configuration asks for "
                f"{list(wanted)}; get the model again"
            )
    if missing and not may_add_weights:
        raise UserError(f"--model_name_or_path {name}: lacks {min(missing)}; name a finished model, or add --do_train")
    new = sorted(missing | {key for key, *_ in misfits})
    if new:
        modules = dict.fromkeys(key.rpartition(".")[0] for key in new)
        logger.info("new weights, not in %s: %s", name, ", ".join(modules))
    model = prepare_model(model, config)
    if config.peft:
        torch.manual_seed(torch_seed(config.seed, INITIALISATION, 1))
        model = adapters.add_adapter(model, config, new)
    return model


def prepare_model(model: Any, config: RunConfig) -> Any:
    """Applies the settings that every model takes."""
    if config.gradient_checkpointing:
        model.gradient_checkpointing_enable()
    return model


def _quiet_transformers() -> None:
    # Its report of missing and unused weights is replaced by one line of `load_model`.
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()


def _lock_output_dir(config: RunConfig) -> None:
    folder = Path(config.output_dir)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--output_dir {folder} is a file; name a folder")
    with _told_of_the_folder(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if not status.lock(folder):
            raise UserError(f"--output_dir {folder} is written by a run that is still going; stop it or name another")
        status.try_writing(folder)
        if not (status.is_free(folder) or config.resume_from_checkpoint or config.overwrite_output_dir):
            raise UserError(
                f"--output_dir {folder} is not empty; name another folder, give --overwrite_output_dir, or go on with "
                "--resume_from_checkpoint latest"
            )


@contextmanager
def _told_of_the_folder(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"--output_dir {folder} cannot be written ({error.strerror}); name another folder") from error


def _accelerator(config: RunConfig) -> Accelerator:
    for tracker, available in (("tensorboard", is_tensorboard_available), ("wandb", is_wandb_available)):
        if config.report_to == tracker and not available():
            raise UserError(f"--report_to {tracker}: the package is not installed; pip install bert-repro[{tracker}]")
    tracked = config.report_to != "none"
    try:
        accelerator = Accelerator(
            mixed_precision=config.mixed_precision,
            log_with=config.report_to if tracked else None,
            project_dir=config.output_dir,
        )
    except ValueError as error:
        raise UserError(f"--mixed_precision {config.mixed_precision}: {_first_line(error)}") from error
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if started > 1 and accelerator.num_processes == 1:
        # Accelerate says nothing where it finds no GPU, and each process would train alone into the same folder.
        raise UserError(
            f"WORLD_SIZE is {started}: so many processes were started, but they see no GPU; for them to "
            "share the work on CPUs set ACCELERATE_USE_CPU=true, else start one"
        )
    if config.mixed_precision == "fp16" and accelerator.device.type == "cpu":
        raise UserError("--mixed_precision fp16 needs a GPU; use bf16 on this device")
    if tracked:
        accelerator.init_trackers("bert_repro")
    return accelerator


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def read_results(folder: Path) -> dict[str, Any]:
    """The record of a finished run."""
    results: dict[str, Any] = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    return results
