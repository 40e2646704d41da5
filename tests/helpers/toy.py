"""A toy model and batch source for tests of the loop: quick, with dropout, two loss terms with unequal counts.

Run as a script it trains once and writes the losses, for tests that need processes of their own.
"""

import dataclasses
import json
import logging
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn
from transformers.utils import ModelOutput

from bert_repro.configs import OptimizerConfig, RunConfig
from bert_repro.configs.base import setting
from bert_repro.errors import StopRequested
from bert_repro.training import training_log
from bert_repro.training.batches import Ids, MicroBatch, Step, batch_sizes, even_passes
from bert_repro.training.trainer import Trainer
from bert_repro.utils.files import TRAIN_LOG
from bert_repro.utils.process import world_size
from bert_repro.utils.randomness import draw, fraction

WIDTH = 6


def _setting(default: Any) -> Any:
    return setting(default, "Of the toy.")


@dataclass(frozen=True)
class ToyConfig(OptimizerConfig, RunConfig):
    """Settings of a toy run."""

    learning_rate: float = _setting(1e-2)
    dropout: float = _setting(0.2)
    max_steps: int | None = _setting(40)
    train_batch_size: int | None = _setting(8)
    logging_steps: int = _setting(1)
    float64: bool = _setting(False)
    nan_at: int = _setting(-1)
    beside: bool = _setting(False)
    die_at: int = _setting(-1)


@dataclass
class ToyOutput(ModelOutput):  # in a plain dataclass torch 2.11's fully_shard finds no tensors
    token_loss: torch.Tensor | None = None
    row_loss: torch.Tensor | None = None


class ToyModel(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dense = nn.Linear(WIDTH, WIDTH)
        self.LayerNorm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 1)
        self.dropout = nn.Dropout(dropout)

    def forward(self, rows: torch.Tensor, picked: torch.Tensor) -> ToyOutput:
        hidden = self.LayerNorm(self.dropout(torch.tanh(self.dense(rows))))
        token_loss = (hidden - rows).square().mean(-1)[picked].mean()
        return ToyOutput(token_loss, (self.head(hidden).squeeze(-1) - 1).square().mean())

    def save_pretrained(self, folder: Path) -> None:
        from safetensors.torch import save_file

        save_file(self.state_dict(), folder / "model.safetensors")


class ToyTokenizer:
    def get_vocab(self) -> dict[str, int]:
        return {"a": 0}

    def save_pretrained(self, folder: Path) -> None:
        for name, content in (("vocab.txt", "a\n"), ("tokenizer_config.json", "{}")):
            (folder / name).write_text(content)


class ToySource:
    """Rows by a counter hash; a row is "picked" by its id, so micro-batches have unequal counts."""

    def __init__(self, config: ToyConfig, micro: int) -> None:
        self.config, self.micro, self.total_steps = config, micro, config.max_steps or 1
        self.processes = world_size()
        self.data_fingerprint = {"seed": config.seed}

    def steps(self, position: dict[str, Any] | None) -> Iterator[Step]:
        for number in range(position["step"] if position else 0, self.total_steps):
            size = self.config.train_batch_size or 8
            ids = np.arange(number * size, (number + 1) * size)
            yield Step(even_passes(ids, self.micro, self.processes), 0, {"step": number + 1})

    def load(self, ids: Ids, group: int) -> MicroBatch:
        rows = torch.from_numpy(fraction(draw(5, ids[:, None], np.arange(WIDTH))))
        died = Path(f"{self.config.output_dir}.died")
        if self.config.die_at in ids and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if self.config.nan_at in ids:
            rows = rows * float("nan")
        dtype = torch.float64 if self.config.float64 else torch.float32
        inputs = {"rows": rows.to(dtype), "picked": torch.from_numpy(self._picked(ids))}
        return MicroBatch(inputs, self.totals(ids, group), len(ids))

    def _picked(self, ids: Ids) -> Any:
        return ids % 4 != 1

    def totals(self, ids: Ids, group: int) -> dict[str, int]:
        return {"token_loss": int(self._picked(ids).sum()), "row_loss": len(ids)}


def count_right(output: ToyOutput, inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {"row_loss": (inputs["rows"][:, 0] > 0.5).sum()}


def make_trainer(config: ToyConfig) -> Trainer:
    """A trainer on a freshly initialized toy model."""
    Path(config.output_dir).mkdir(parents=True, exist_ok=True)
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(config.seed)
    model = ToyModel(config.dropout)
    if config.float64:
        model.double()
    micro = batch_sizes(config, accelerator.num_processes, 8).micro
    source = ToySource(config, micro)
    trainer = Trainer(accelerator, model, source, config, tokenizer=ToyTokenizer(), count_right=count_right)
    if config.beside:  # as if the device worked beside this process
        trainer.reads_late = True
    return trainer


def losses(config: ToyConfig) -> list[float]:
    """The logged losses of a run."""
    return [row["loss"] for row in training_log.read(Path(config.output_dir) / TRAIN_LOG)]


def run_once(config: ToyConfig) -> None:
    """Trains, and saves the final weights."""
    trainer = make_trainer(config)
    try:
        trainer.train()
    except StopRequested as stop:
        raise SystemExit(stop.exit_code) from None
    finally:
        trainer.accelerator.end_training()
    if trainer.accelerator.is_main_process:
        trainer.model.save_pretrained(trainer.output_dir)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    given = json.loads(sys.argv[1]).items()
    run_once(dataclasses.replace(ToyConfig(), **{k: tuple(v) if isinstance(v, list) else v for k, v in given}))
