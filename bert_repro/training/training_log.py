"""train_log.jsonl, the progress bar and the tracker: one line per logged step, for people, plots and programs."""

import json
import logging
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from accelerate import Accelerator
from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from bert_repro.configs import RunConfig
from bert_repro.training.cpu_performance import measured_peak
from bert_repro.utils.output_files import TRAIN_LOG

logger = logging.getLogger("bert_repro")

_SHOWN = ("loss", "mlm_loss", "nsp_loss")


class TrainingLog:
    """Writes what training and evaluation report; does nothing on other processes than the main one.

    Args:
        accelerator: knows the main process and the trackers.
        config: output folder and logging interval.
        start: steps already taken; later lines of an interrupted run are dropped from the file.
        total: steps of the whole run.
        watch: called with every row, on the main process.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        config: RunConfig,
        start: int,
        total: int,
        *,
        watch: Callable[[dict[str, float]], None] | None = None,
    ) -> None:
        self.accelerator, self.every, self.watch = accelerator, config.logging_steps, watch
        self.precision = config.mixed_precision
        self.path = Path(config.output_dir) / TRAIN_LOG
        self.start, self.total = start, total
        self.active = accelerator.is_main_process
        self._window: list[dict[str, float]] = []

    def __enter__(self) -> Self:
        if self.active:
            kept = [row for row in read(self.path) if row["step"] <= self.start] if self.start else []
            self.path.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
            self._seconds_before = kept[-1]["seconds"] if kept else 0.0
            self._tokens = max((row["tokens"] for row in kept if "tokens" in row), default=0)
            self._peak: float | None = None
        self._bar = tqdm(total=self.total, initial=self.start, unit="step", disable=not self.active, dynamic_ncols=True)
        self._redirect = logging_redirect_tqdm([logger])
        self._redirect.__enter__()
        self._began = self._window_began = time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        self._redirect.__exit__(None, None, None)
        self._bar.close()

    def step(self, step: int, figures: dict[str, float]) -> None:
        """Takes the figures of one step; every `logging_steps` writes their mean over the window.

        In the log `tokens` counts real tokens since the beginning of the run, `tokens_per_second` those of the window;
        `peak_share` is the useful work as a share of what a large matrix product reached on the same devices.
        """
        self._bar.update(1)
        self._window.append(figures)
        if not self.active or (step % self.every and step != self.total):
            return
        row = self._summary(figures)
        self._write(step, row)
        if self.watch:
            self.watch(row)
        shown = {name: f"{row[name]:.3f}" for name in _SHOWN if name in row}
        speed = {"tokens/s": f"{row['tokens_per_second']:,.0f}"}
        if "peak_share" in row:
            speed["of peak"] = f"{row['peak_share']:.0%}"
        self._bar.set_postfix({**shown, **speed})
        self._window, self._window_began = [], time.perf_counter()

    def _summary(self, last: dict[str, float]) -> dict[str, float]:
        """Means over the window, the last step's rate, tokens so far, and the window's speed."""
        window, seconds = self._window, time.perf_counter() - self._window_began
        sums = {name: sum(entry[name] for entry in window) for name in ("tokens", "flops")}
        row = {name: _mean([entry[name] for entry in window]) for name in window[0] if name != "flops"}
        self._tokens += int(sums["tokens"])
        row |= {"learning_rate": last["learning_rate"], "tokens": self._tokens}
        row["tokens_per_second"] = sums["tokens"] / seconds
        # A product on XLA would be one more graph, and its time that of compiling it.
        if sums["flops"] and self.accelerator.device.type != "xla":
            row["peak_share"] = sums["flops"] / seconds / self._measured_peak()
        return row

    def _measured_peak(self) -> float:
        if self._peak is None:
            self._peak = measured_peak(self.accelerator.device, self.precision) * self.accelerator.num_processes
        return self._peak

    def evaluation(self, step: int, figures: dict[str, Any]) -> None:
        """Writes the figures of an evaluation, each named `eval_...`; its time does not count as training time."""
        began = time.perf_counter()
        if self.active:
            self._write(step, {f"eval_{name}": value for name, value in figures.items()})
            told = ", ".join(f"{name} {value:.4f}" for name, value in figures.items() if isinstance(value, float))
            logger.info("step %d: %s", step, told)
        self._window_began += time.perf_counter() - began

    def _write(self, step: int, figures: dict[str, Any]) -> None:
        seconds = self._seconds_before + time.perf_counter() - self._began
        with self.path.open("a", encoding="utf-8") as file:
            # JSON has no word for a gradient that is not finite, as in a step that fp16 skips.
            known = {name: None if _is_lost(value) else value for name, value in figures.items()}
            file.write(json.dumps({"step": step, **known, "seconds": seconds}, allow_nan=False) + "\n")
        self.accelerator.log(figures, step=step)


def _is_lost(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _mean(values: list[float]) -> float:
    """Over the steps that have a figure; NaN where none has."""
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.nan


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a train_log.jsonl; a last line cut off by a kill is left out."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows
