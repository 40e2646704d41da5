"""train_log.jsonl and the progress bar: what a run reports while it trains.

A row of training has the means over the steps since the row before; a row of an evaluation has its metrics, each named
`eval_...`. Rows are also sent to trackers (`trackers`).
"""

import json
import logging
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypedDict

import torch
from accelerate import Accelerator
from tqdm.auto import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from bert_repro.configs import RunConfig, TrainingSettings
from bert_repro.errors import UserError
from bert_repro.training.batches import Step
from bert_repro.training.checkpoint import TrainerState
from bert_repro.training.performance import measured_peak, possible_mfu
from bert_repro.training.trackers import report
from bert_repro.utils.files import TRAIN_LOG, disk_errors, write_text

logger = logging.getLogger("bert_repro")

_IN_PROGRESS_BAR = ("loss", "mlm_loss", "nsp_loss")
_BAR_SECONDS = 0.1  # between two updates of the bar
_BAR_SECONDS_IN_FILES = 10.0  # In a log file each update is a line.
_MOST_STEPS_PER_ROW = 10  # by default
_ROWS_PER_RUN = 100  # by default

# The numbers of a step after its losses and accuracies, in this order: read by `StepResult`, written by the trainer.
TOKENS = "tokens"
STOP_REQUESTS = "stop requests"
GRADIENT_NORM = "grad_norm"


@dataclass
class StepResult:
    """The numbers of a step whose update is made, or on its way. They stay on the device until they are read.

    Args:
        step: the step.
        before: the run's state before it.
        names: names of the numbers: loss terms, accuracies, `TOKENS`, `STOP_REQUESTS`, `GRADIENT_NORM`.
        values: the numbers, of the global batch.
        learning_rate: learning rate of the update.
    """

    step: Step
    before: TrainerState
    names: tuple[str, ...]
    values: torch.Tensor
    learning_rate: float = 0.0
    _copied: torch.cuda.Event | None = None
    _numbers: dict[str, float] | None = None

    def copy_to_host(self) -> None:
        """Starts the copy that `numbers` waits for."""
        if self.values.device.type == "cuda":
            on_host = torch.empty(self.values.shape, dtype=self.values.dtype, pin_memory=True)
            self.values = on_host.copy_(self.values, non_blocking=True)
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record()

    @property
    def numbers(self) -> dict[str, float]:
        """The numbers by name; waits for the device."""
        if self._numbers is None:
            if self._copied is not None:
                self._copied.synchronize()
            self._numbers = dict(zip(self.names, self.values.tolist(), strict=True))
        return self._numbers

    @property
    def norm(self) -> float:
        """Gradient norm before clipping."""
        return self.numbers[GRADIENT_NORM]

    @property
    def stop(self) -> bool:
        """Whether a process was asked to stop."""
        return self.numbers[STOP_REQUESTS] > 0

    def losses(self) -> dict[str, float]:
        """Returns each loss term of the global batch."""
        return {term: self.numbers[term] for term in self.step.totals}

    def metrics(self) -> dict[str, float]:
        """Returns losses, accuracies, gradient norm, learning rate, tokens and FLOPs."""
        tokens = int(self.numbers[TOKENS])
        metrics = {name: value for name, value in self.numbers.items() if name not in (TOKENS, STOP_REQUESTS)}
        metrics["loss"] = sum(self.losses().values())
        metrics["learning_rate"] = self.learning_rate
        metrics[TOKENS] = tokens
        metrics["flops"] = tokens * self.step.flops_per_token
        return metrics


class LogState(TypedDict):
    """The part of a checkpoint that the log continues from.

    `window` has the metrics of each step since the last row, `tokens` and `flops` those of the rows so far, `seconds`
    the time of the run and `window_seconds` the time since the last row.
    """

    window: list[dict[str, float | None]]
    tokens: int
    flops: float
    seconds: float
    window_seconds: float


class TrainingLog:
    """Writes the log on the main process; the other processes only measure the device's peak together with it.

    Its sums since the last row are part of a checkpoint (`state`), so a resumed run writes the rows that an
    uninterrupted one would have written.

    Args:
        accelerator: knows the main process and the trackers.
        config: output folder, logging interval, precision.
        total: steps of the run.
        on_row: called with every row of training, on the main process.

    Attributes:
        every: steps between two rows.
        total: steps of the run; a run with a time limit changes it.
        tokens: tokens of all rows so far, without padding.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        config: RunConfig | TrainingSettings,
        total: int,
        *,
        on_row: Callable[[dict[str, float]], None] | None = None,
    ) -> None:
        self.accelerator = accelerator
        self.on_row = on_row
        self.every = config.logging_steps or min(_MOST_STEPS_PER_ROW, max(1, total // _ROWS_PER_RUN))
        self.precision = config.mixed_precision
        self.path = Path(config.output_dir) / TRAIN_LOG
        self.start = 0
        self.total = total
        self.active = accelerator.is_main_process
        self.tokens = 0
        self._flops = 0.0
        self._window: list[dict[str, float | None]] = []
        self._peak: float | None = None
        self._has_warned_of_mfu = False

        # Seconds before this process began, and the clock of this process.
        self._seconds_before = 0.0
        self._window_seconds_before = 0.0
        self._began = time.perf_counter()
        self._window_began = self._began

    def begin(self, start: int, state: LogState | None) -> None:
        """Sets the log back to a checkpoint: rows of an interrupted run beyond its step are dropped from the file.

        Args:
            start: steps already taken.
            state: state of that checkpoint; None at the beginning of a run.
        """
        self.start = start
        if state:
            self._window = state["window"]
            self.tokens = state["tokens"]
            self._flops = state["flops"]
            self._seconds_before = state["seconds"]
            self._window_seconds_before = state["window_seconds"]
        if self.active:
            rows = [row for row in read(self.path) if row["step"] <= start] if start else []
            write_text(self.path, "".join(json.dumps(row) + "\n" for row in rows))

    def state(self) -> LogState:
        """Returns what `begin` needs to resume at the present step."""
        return {
            "window": [_without_non_finite(metrics) for metrics in self._window],
            "tokens": self.tokens,
            "flops": self._flops,
            "seconds": self.seconds(),
            "window_seconds": self._window_seconds(),
        }

    def __enter__(self) -> Self:
        """Shows the progress bar and starts the clock."""
        is_interactive = sys.stderr.isatty() or "ipykernel" in sys.modules
        # On the main process the environment variable TQDM_DISABLE decides.
        options: dict[str, Any] = {} if self.active else {"disable": True}
        self._bar = tqdm(
            total=self.total,
            initial=self.start,
            unit="step",
            mininterval=_BAR_SECONDS if is_interactive else _BAR_SECONDS_IN_FILES,
            dynamic_ncols=True,
            **options,
        )
        self._redirect = logging_redirect_tqdm([logger])
        self._redirect.__enter__()
        self._began = time.perf_counter()
        self._window_began = self._began
        return self

    def __exit__(self, *error: object) -> None:
        """Closes the progress bar."""
        self._redirect.__exit__(None, None, None)
        self._bar.close()

    def seconds(self) -> float:
        """Returns the seconds of the run so far, those before it was resumed included."""
        return self._seconds_before + time.perf_counter() - self._began

    def _window_seconds(self) -> float:
        return self._window_seconds_before + time.perf_counter() - self._window_began

    def step(self, step: int, metrics: dict[str, float]) -> None:
        """Adds the metrics of one step; every `logging_steps` steps it writes a row with their means.

        In the row `tokens` (without padding) and `flops` count from the beginning of the run. `tokens_per_second` is
        the window's speed; `mfu` its useful FLOPs per second as a share of those of a large matrix product on the same
        devices.
        """
        # A run with a time limit changes its number of steps.
        self._bar.total = self.total
        self._bar.update(1)
        self._window.append(dict(metrics))
        if step % self.every and step != self.total:
            return

        seconds = self._window_seconds()
        if self._peak is None and metrics["flops"]:
            self._measure_peak()
        if self.active:
            self._report(step, self._row(metrics, seconds))
        self._window = []
        self._window_began = time.perf_counter()
        self._window_seconds_before = 0.0

    def _measure_peak(self) -> None:
        """Measures the peak of all devices together."""
        device = self.accelerator.device
        # A product on XLA would be one more graph, and its time that of compiling it.
        if device.type == "xla":
            return
        # All processes measure at the same time, because processes on one chip slow each other down.
        self.accelerator.wait_for_everyone()
        peak = torch.tensor(measured_peak(device, self.precision), device=device)
        self._peak = float(self.accelerator.reduce(peak, "sum"))

    def _row(self, last: dict[str, float], seconds: float) -> dict[str, float]:
        """Returns a row: means over the window, the last step's learning rate, sums over the run, the window's "
        "speed."""
        row: dict[str, float] = {}
        for name in self._window[0]:
            if name != "flops":
                row[name] = _mean([metrics[name] for metrics in self._window])
        window_tokens = sum(metrics[TOKENS] or 0 for metrics in self._window)
        window_flops = sum(metrics["flops"] or 0 for metrics in self._window)

        self.tokens += int(window_tokens)
        row["learning_rate"] = last["learning_rate"]
        row[TOKENS] = self.tokens
        row["tokens_per_second"] = window_tokens / seconds
        if window_flops:
            self._flops += window_flops
            row["flops"] = self._flops
            if self._peak:
                mfu = possible_mfu(window_flops / seconds / self._peak)
                if mfu is None:
                    self._warn_of_mfu()
                else:
                    row["mfu"] = mfu
        return row

    def _warn_of_mfu(self) -> None:
        if not self._has_warned_of_mfu:
            self._has_warned_of_mfu = True
            logger.info(
                "The MFU is not shown, because the run computes faster than the measured peak of the device. Something "
                "else was running while the peak was measured."
            )

    def _report(self, step: int, row: dict[str, float]) -> None:
        """Writes a row of training and shows it in the progress bar."""
        self._write(step, row)
        if self.on_row:
            self.on_row(row)
        postfix = {name: f"{row[name]:.3f}" for name in _IN_PROGRESS_BAR if name in row}
        postfix["tokens/s"] = f"{row['tokens_per_second']:,.0f}"
        if "mfu" in row:
            postfix["MFU"] = f"{row['mfu']:.0%}"
        self._bar.set_postfix(postfix, refresh=False)

    def evaluation(self, step: int, evaluate: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Evaluates, writes the metrics, each named `eval_...`, and returns them.

        The time that it takes does not count as training time of the window.
        """
        began = time.perf_counter()
        metrics = evaluate()
        if self.active:
            self._write(step, {f"eval_{name}": value for name, value in metrics.items()})
            scores = [f"{name} {value:.4f}" for name, value in metrics.items() if isinstance(value, float)]
            logger.info("Step %d: %s", step, ", ".join(scores))
        self._window_began += time.perf_counter() - began
        return metrics

    def _write(self, step: int, metrics: dict[str, Any]) -> None:
        row = {"step": step, **_without_non_finite(metrics), "seconds": self.seconds()}
        with disk_errors(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, allow_nan=False) + "\n")
        report(self.accelerator, metrics, step)


def _without_non_finite(metrics: dict[str, Any]) -> dict[str, Any]:
    """Returns metrics with None for NaN and infinity, which JSON does not have.

    A step that fp16 skips has a gradient norm that is not finite.
    """
    values: dict[str, Any] = {}
    for name, value in metrics.items():
        is_non_finite = isinstance(value, float) and not math.isfinite(value)
        values[name] = None if is_non_finite else value
    return values


def _mean(values: list[float | None]) -> float:
    """Returns the mean of the finite values; NaN if there is none."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    if not finite:
        return math.nan
    return sum(finite) / len(finite)


def read(path: Path) -> list[dict[str, Any]]:
    """Returns the rows of a train_log.jsonl. A last line that was cut off by a kill is left out.

    Raises:
        UserError: another line is not valid.
    """
    if not path.exists():
        return []
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), start=1):
        if not line.endswith(b"\n"):
            continue
        try:
            row = json.loads(line)
            rows.append({"step": int(row["step"]), **row})
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{path}, line {number} is not a valid row of a training log. Delete the line, or use an intact log."
            ) from error
    return rows
