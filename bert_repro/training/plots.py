"""Plots of a run, from what it logged."""

from pathlib import Path
from typing import Any

from bert_repro.training import training_log
from bert_repro.utils.output_files import TRAIN_LOG


def plot_training(output_dir: Path) -> Path:
    """Draws loss and learning rate over the steps of a run into training.png.

    Args:
        output_dir: a run's folder with its train_log.jsonl.
    """
    from matplotlib.figure import Figure

    rows = training_log.read(output_dir / TRAIN_LOG)
    figure = Figure(figsize=(8, 6), layout="constrained")
    losses, rates = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    training = [row for row in rows if "learning_rate" in row]
    for name, label in (("loss", "loss"), ("mlm_loss", "MLM"), ("nsp_loss", "NSP")):
        _draw(losses, training, name, f"training {label}", linewidth=1.2)
        _draw(losses, rows, f"eval_{name}", f"held-out {label}", marker="o", linestyle="none", markersize=4)
    losses.set_ylabel("loss (nats)")
    losses.set_ylim(bottom=0)
    losses.legend()
    losses.grid(alpha=0.3)
    _draw(rates, training, "learning_rate", None, color="tab:gray")
    rates.set_ylabel("learning rate")
    rates.set_xlabel("optimiser step")
    rates.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    rates.grid(alpha=0.3)
    path = output_dir / "training.png"
    figure.savefig(path, dpi=120)
    return path


def _draw(axis: Any, rows: list[dict[str, Any]], name: str, label: str | None, **style: Any) -> None:
    points = [(row["step"], row[name]) for row in rows if name in row]
    if points:
        axis.plot(*zip(*points, strict=True), label=label, **style)
