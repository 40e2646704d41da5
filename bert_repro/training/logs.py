"""train_log.jsonl, the progress bar and the tracker: one line per logged step, for people, plots and programs."""

import json
import logging
import time
from pathlib import Path
from typing import Any, Self

from accelerate import Accelerator
from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from bert_repro.configs import RunConfig

logger = logging.getLogger("bert_repro")

FILE_NAME = "train_log.jsonl"
_SHOWN = ("loss", "mlm_loss", "nsp_loss")


class TrainingLog:
    """Writes what training and evaluation report; does nothing on other processes than the main one.

    Args:
        accelerator: knows the main process and the trackers.
        config: output folder and logging interval.
        start: steps already taken; later lines of an interrupted run are dropped from the file.
        total: steps of the whole run.
    """

    def __init__(self, accelerator: Accelerator, config: RunConfig, start: int, total: int) -> None:
        self.accelerator, self.every = accelerator, config.logging_steps
        self.path = Path(config.output_dir) / FILE_NAME
        self.start, self.total = start, total
        self.active = accelerator.is_main_process
        self._window: list[dict[str, float]] = []

    def __enter__(self) -> Self:
        if self.active:
            kept = [row for row in read(self.path) if row["step"] <= self.start] if self.start else []
            self.path.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
            self._seconds_before = kept[-1]["seconds"] if kept else 0.0
            self._tokens = kept[-1].get("tokens", 0) if kept else 0
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

        `tokens` counts real tokens since the beginning of the run, `tokens_per_second` those of the window.
        """
        self._bar.update(1)
        self._window.append(figures)
        if not self.active or (step % self.every and step != self.total):
            return
        now, window = time.perf_counter(), self._window
        tokens = sum(row["tokens"] for row in window)
        self._tokens += int(tokens)
        row = {name: sum(entry[name] for entry in window) / len(window) for name in window[0]}
        row.update(
            learning_rate=figures["learning_rate"],
            tokens=self._tokens,
            tokens_per_second=tokens / (now - self._window_began),
        )
        self._write(step, row)
        shown = {name: f"{row[name]:.3f}" for name in _SHOWN if name in row}
        self._bar.set_postfix({**shown, "tokens/s": f"{row['tokens_per_second']:,.0f}"})
        self._window, self._window_began = [], time.perf_counter()

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
            file.write(json.dumps({"step": step, **figures, "seconds": seconds}) + "\n")
        self.accelerator.log(figures, step=step)


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
