"""train_log.jsonl, the progress bar and experiment trackers: what a run reports while it trains."""

import json
import logging
import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import torch
from accelerate import Accelerator
from accelerate.tracking import get_available_trackers
from tqdm.auto import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from bert_repro.configs import RunConfig
from bert_repro.errors import UserError
from bert_repro.training.batches import Step
from bert_repro.training.checkpoint import TrainerState
from bert_repro.training.performance import measured_peak
from bert_repro.utils.files import TRAIN_LOG, disk_errors, write_text
from bert_repro.utils.readers import first_line, redacted, without_machine_paths

logger = logging.getLogger("bert_repro")
_SHOWN = ("loss", "mlm_loss", "nsp_loss")


@dataclass
class TakenStep:
    """A step whose update is made, or on its way, and whose metrics may not have been read.

    Args:
        step: what was asked.
        before: the run's state before it.
        names: loss terms and accuracies.
        values: theirs, tokens, wishes to stop and the gradient norm; on the device until `copy_to_host`.
        learning_rate: used.
    """

    step: Step
    before: TrainerState
    names: tuple[str, ...]
    values: torch.Tensor
    learning_rate: float = 0.0
    _copied: torch.cuda.Event | None = None
    _numbers: list[float] | None = None

    def copy_to_host(self) -> None:
        """Starts the copy that `numbers` waits for."""
        if self.values.device.type == "cuda":
            on_host = torch.empty(self.values.shape, dtype=self.values.dtype, pin_memory=True)
            self.values = on_host.copy_(self.values, non_blocking=True)
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record()

    @property
    def numbers(self) -> list[float]:
        """The values; waits for the device."""
        if self._numbers is None:
            if self._copied is not None:
                self._copied.synchronize()
            self._numbers = self.values.tolist()
        return self._numbers

    @property
    def norm(self) -> float:
        """Gradient norm before clipping."""
        return self.numbers[-1]

    @property
    def stop(self) -> bool:
        """Whether any process wanted to stop."""
        return self.numbers[-2] > 0

    def losses(self) -> dict[str, float]:
        """Returns each loss term of the global batch."""
        named = dict(zip(self.names, self.numbers, strict=False))
        return {term: named[term] for term in self.step.totals}

    def metrics(self) -> dict[str, float]:
        """Returns losses, accuracies, gradient norm, learning rate, tokens, FLOPs."""
        tokens = int(self.numbers[-3])
        metrics = dict(zip(self.names, self.numbers, strict=False)) | {"grad_norm": self.norm}
        metrics |= {"loss": sum(self.losses().values()), "learning_rate": self.learning_rate}
        return metrics | {"tokens": tokens, "flops": tokens * self.step.flops_per_token}


class TrainingLog:
    """Writes what training and evaluation report, on the main process; the others only measure the peak with it.

    What it has added up since its last row is part of a checkpoint (`state`), so a resumed run writes the rows that an
    uninterrupted one would have written.

    Args:
        accelerator: knows the main process and the trackers.
        config: output folder and logging interval.
        total: steps of the run.
        on_row: called with every row, on the main process.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        config: RunConfig,
        total: int,
        *,
        on_row: Callable[[dict[str, float]], None] | None = None,
    ) -> None:
        self.accelerator, self.on_row = accelerator, on_row
        self.every = config.logging_steps or min(10, max(1, total // 100))
        self.precision = config.mixed_precision
        self.path = Path(config.output_dir) / TRAIN_LOG
        self.start, self.total = 0, total
        self.active = accelerator.is_main_process
        self._window: list[dict[str, float]] = []
        self._tokens, self._flops = 0, 0.0
        self._seconds_before = self._window_seconds_before = 0.0
        self._peak: float | None = None
        self._began = self._window_began = time.perf_counter()

    def begin(self, start: int, state: dict[str, Any] | None) -> None:
        """Sets the log back to a checkpoint: rows of an interrupted run beyond its step are dropped from the file.

        Args:
            start: steps already taken.
            state: of that checkpoint; None at the beginning of a run.
        """
        self.start = start
        if state:
            self._window, self._tokens, self._flops = state["window"], state["tokens"], state["flops"]
            self._seconds_before, self._window_seconds_before = state["seconds"], state["window_seconds"]
        if self.active:
            kept = [row for row in read(self.path) if row["step"] <= start] if start else []
            write_text(self.path, "".join(json.dumps(row) + "\n" for row in kept))

    def state(self) -> dict[str, Any]:
        """Returns what `begin` needs to resume at the present step."""
        return {
            "window": [{name: _or_none(value) for name, value in entry.items()} for entry in self._window],
            "tokens": self._tokens,
            "flops": self._flops,
            "seconds": self.seconds(),
            "window_seconds": self._window_seconds(),
        }

    def __enter__(self) -> Self:
        # Seconds between updates: in a log file each is a line.
        pause = 0.1 if sys.stderr.isatty() or "ipykernel" in sys.modules else 10.0
        options: dict[str, Any] = {} if self.active else {"disable": True}  # else TQDM_DISABLE decides
        self._bar = tqdm(
            total=self.total, initial=self.start, unit="step", mininterval=pause, dynamic_ncols=True, **options
        )
        self._redirect = logging_redirect_tqdm([logger])
        self._redirect.__enter__()
        self._began = self._window_began = time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        self._redirect.__exit__(None, None, None)
        self._bar.close()

    def seconds(self) -> float:
        """Returns the seconds of the run so far, its earlier parts included."""
        return self._seconds_before + time.perf_counter() - self._began

    def _window_seconds(self) -> float:
        return self._window_seconds_before + time.perf_counter() - self._window_began

    def step(self, step: int, metrics: dict[str, float]) -> None:
        """Takes the metrics of one step; every `logging_steps` writes their mean over the window.

        In the log `tokens` (real ones) and `flops` count from the beginning of the run, `tokens_per_second` is that of
        the window; `mfu` is the useful FLOPs per second as a share of those of a large matrix product on the same
        devices.
        """
        self._bar.total = self.total  # of a run that is given time, it changes
        self._bar.update(1)
        self._window.append(metrics)
        if step % self.every and step != self.total:
            return
        seconds = self._window_seconds()
        # A product on XLA would be one more graph, and its time that of compiling it.
        if self._peak is None and metrics["flops"] and self.accelerator.device.type != "xla":
            self.accelerator.wait_for_everyone()  # all measure at once, as processes on one chip slow each other down
            peak = measured_peak(self.accelerator.device, self.precision)
            self._peak = float(self.accelerator.reduce(torch.tensor(peak, device=self.accelerator.device), "sum"))
        if self.active:
            self._report(step, self._summary(metrics, seconds))
        self._window, self._window_began, self._window_seconds_before = [], time.perf_counter(), 0.0

    def _report(self, step: int, row: dict[str, float]) -> None:
        self._write(step, row)
        if self.on_row:
            self.on_row(row)
        shown = {name: f"{row[name]:.3f}" for name in _SHOWN if name in row}
        speed = {"tokens/s": f"{row['tokens_per_second']:,.0f}"}
        if "mfu" in row:
            speed["MFU"] = f"{row['mfu']:.0%}"
        self._bar.set_postfix({**shown, **speed}, refresh=False)

    def _summary(self, last: dict[str, float], seconds: float) -> dict[str, float]:
        """Returns means over the window, the last step's learning rate, tokens so far, and the window's speed."""
        window = self._window
        sums = {name: sum(entry[name] for entry in window) for name in ("tokens", "flops")}
        row = {name: _mean([entry[name] for entry in window]) for name in window[0] if name != "flops"}
        self._tokens += int(sums["tokens"])
        row |= {"learning_rate": last["learning_rate"], "tokens": self._tokens}
        row["tokens_per_second"] = sums["tokens"] / seconds
        if sums["flops"]:
            self._flops += sums["flops"]
            row["flops"] = self._flops
            if self._peak:
                row["mfu"] = sums["flops"] / seconds / self._peak
        return row

    def evaluation(self, step: int, evaluate: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Evaluates, writes the metrics, each named `eval_...`, and returns them; no speed counts the time it takes."""
        began = time.perf_counter()
        metrics = evaluate()
        if self.active:
            self._write(step, {f"eval_{name}": value for name, value in metrics.items()})
            shown = ", ".join(f"{name} {value:.4f}" for name, value in metrics.items() if isinstance(value, float))
            logger.info("step %d: %s", step, shown)
        self._window_began += time.perf_counter() - began
        return metrics

    def _write(self, step: int, metrics: dict[str, Any]) -> None:
        known = {name: _or_none(value) for name, value in metrics.items()}
        with disk_errors(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **known, "seconds": self.seconds()}, allow_nan=False) + "\n")
        report(self.accelerator, metrics, step)


def _or_none(value: Any) -> Any:
    """Returns a value for JSON, which has no word for a gradient that is not finite, as in a step that fp16 skips."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _mean(values: list[float | None]) -> float:
    """Returns the mean of the finite values; NaN where there is none."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.nan


def read(path: Path) -> list[dict[str, Any]]:
    """Returns the rows of a train_log.jsonl; a last line cut off by a kill is left out.

    Raises:
        UserError: another line is not as a run writes it.
    """
    if not path.exists():
        return []
    rows = []
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), start=1):
        if not line.endswith(b"\n"):
            continue
        try:
            row = json.loads(line)
            rows.append({"step": int(row["step"]), **row})
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path}, line {number}: is no row of a training log; remove the line") from error
    return rows


# --- Trackers -------------------------------------------------------------------------------------------------------
#
# Credentials and servers are the trackers' own business (their logins and environment variables): no setting takes
# them. Trackers run on the main process alone, and what is sent has no tokens and no paths of this machine.


def wanted_trackers(config: RunConfig) -> list[Any]:
    """Returns the trackers that a run reports to, `all` as it is.

    Raises:
        UserError: the package of one is not installed.
    """
    names = [name for name in config.report_to if name != "none"]
    for name in names:
        if name not in ("all", *map(str, get_available_trackers())):
            raise UserError(f"--report_to {name}: the package is not installed; run: pip install {name}")
    return names


def start_trackers(accelerator: Accelerator, config: RunConfig) -> None:
    """Starts the trackers of `Accelerator(log_with=wanted_trackers(config))` and sends them the run's settings.

    Raises:
        UserError: one does not start, for example because nobody is logged in.
    """
    if not accelerator.log_with or accelerator.trackers:
        return
    try:
        accelerator.init_trackers(config.project, config=_settings(config), init_kwargs=_options(config))
    except Exception as error:  # each library has exceptions of its own
        names = " ".join(map(str, accelerator.log_with))
        raise UserError(f"--report_to {names}: does not start: {first_line(error)}") from error


def report(accelerator: Accelerator, values: Mapping[str, Any], step: int) -> None:
    """Sends numbers to all trackers; one that fails is left out from then on, so that training does not end with it."""
    if not accelerator.is_main_process:
        return
    numbers = {name: value for name, value in values.items() if isinstance(value, int | float)}
    for tracker in list(accelerator.trackers):
        try:
            tracker.log(numbers, step=step)
        except Exception as error:
            logger.warning("--report_to %s failed (%s); the run continues without it", tracker.name, first_line(error))
            accelerator.trackers.remove(tracker)


def report_results(accelerator: Accelerator, results: Mapping[str, Any]) -> None:
    """Sends the final results of a run, such as `final/validation/accuracy`, and the totals of its training."""
    splits = results.get("splits") or {"held-out": results}
    values = {
        f"final/{split}/{name}": value
        for split, content in splits.items()
        for name, value in content.get("metrics", {}).items()
    }
    train = results.get("train", {})
    values |= {f"final/train/{name}": value for name, value in train.items()}
    report(accelerator, values, train.get("steps", 0))


def end_trackers(accelerator: Accelerator) -> None:
    """Ends all trackers, however the run ended; a second call does nothing."""
    trackers, accelerator.trackers = list(accelerator.trackers), []
    for tracker in trackers:
        try:
            tracker.finish()
        except Exception as error:
            logger.warning("--report_to %s did not end properly: %s", tracker.name, first_line(error))


def run_name(config: RunConfig) -> str:
    """Returns how trackers name the run: `run_name`, or the output folder's name."""
    return config.run_name or Path(config.output_dir).resolve().name


def _settings(config: RunConfig) -> dict[str, Any]:
    """Returns the settings of a run for a tracker: texts, numbers and flags, without secrets and folders of this
    machine."""
    settings: dict[str, Any] = without_machine_paths(redacted(asdict(config)))
    return {name: value if isinstance(value, str | int | float) else str(value) for name, value in settings.items()}


def _options(config: RunConfig) -> dict[str, dict[str, Any]]:
    """Returns what the trackers that take a name call it."""
    name = run_name(config)
    return {
        "wandb": {"name": name},
        "trackio": {"name": name, "resume": "allow" if config.resume_from_checkpoint else "never"},
        "mlflow": {"run_name": name},
    }
