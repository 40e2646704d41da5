"""The pictures of a card: how training went (training.png) and which labels were confused (scores.png).

Both are drawn from what a run leaves on disk, results.json and the rows of train_log.jsonl.
"""

import textwrap
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from bert_repro.utils.files import atomic_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LogRow = Mapping[str, Any]

_DOTS_PER_INCH = 120
_SMOOTHED_FROM = 60  # points of a training curve
_ON_DEV = "score on dev"
_MOST_LABELS_WITH_COUNTS, _MOST_NAMED_LABELS = 12, 30


# --- training.png ---------------------------------------------------------------------------------------------------


def plot_training(path: Path, rows: Sequence[LogRow], results: Mapping[str, Any]) -> None:
    """Draws losses, dev scores and learning rate over the steps of a run.

    Pre-training has a panel for each of MLM and NSP, fine-tuning one for the scores on dev, with the baselines of the
    first. The warm-up is shaded.

    Args:
        path: the picture.
        rows: of train_log.jsonl.
        results: of the run.
    """
    from matplotlib.figure import Figure

    before = results.get("baselines", {}).get("the model before", {})
    first = [{"step": 0, **{f"eval_{name}": value for name, value in before.items()}}] if before else []
    rows = [*first, *rows, *_last_score(rows, results)]
    panels = _panels(rows, results)
    figure = Figure(figsize=(8, 2 + 2.2 * len(panels)), layout="constrained")
    heights = [3] * len(panels) + [1.4]
    axes = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights, squeeze=False)[:, 0]
    figure.suptitle(_training_title(path.parent, rows, results), fontsize=11)
    for axis, (label, curves) in zip(axes, panels, strict=False):
        ends = list(accumulate(phase["steps"] for phase in results.get("train", {}).get("phases", [])[:-1]))
        for name, curve, held_out in curves:
            _draw_curve(axis, rows, name, curve, ends, held_out=held_out)
        for end in ends:
            axis.axvline(end, color="black", linestyle=":", linewidth=1, label="next phase")
        if label == _ON_DEV:
            for style, (name, scores) in zip(("--", ":"), results.get("baselines", {}).items(), strict=False):
                axis.axhline(scores[results["primary_metric"]], color="gray", linestyle=style, label=name)
            if best := results["train"].get("best_step"):
                axis.axvline(best, color="tab:green", linestyle="--", linewidth=1, label=f"published: step {best}")
        axis.set_ylabel(label)
        axis.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    warmup = _draw_learning_rate(axes[-1], rows)
    for axis in axes:
        axis.grid(alpha=0.3)
        if warmup:
            axis.axvspan(0, warmup, color="tab:orange", alpha=0.12, linewidth=0)
    with atomic_path(path) as partial:
        figure.savefig(partial, dpi=_DOTS_PER_INCH)


Curves = list[tuple[str, str, bool]]
"""Field of the log, its name in the legend, whether it was measured on held-out text."""


def _panels(rows: Sequence[LogRow], results: Mapping[str, Any]) -> list[tuple[str, Curves]]:
    fields = {name for row in rows for name in row}
    if "mlm_loss" in fields or "eval_mlm_loss" in fields:
        terms = [("mlm", "MLM"), *([("nsp", "NSP")] if "nsp_loss" in fields else [])]
        return [
            (f"{title} loss (nats)", [(f"{name}_loss", "training", False), (f"eval_{name}_loss", "held out", True)])
            for name, title in terms
        ]
    unit = "squared error" if results.get("primary_metric") == "pearson" else "nats"
    panels = [(f"loss ({unit})", [("loss", "training", False), ("eval_loss", "held out", True)])]
    # The primary metric first, three at most.
    metrics = [name for name in results.get("metrics", {}) if f"eval_{name}" in fields and "threshold" not in name]
    if metrics and sum(f"eval_{metrics[0]}" in row for row in rows) > 1:  # one score is in the title
        metrics.sort(key=lambda name: name != results.get("primary_metric"))
        panels.append((_ON_DEV, [(f"eval_{name}", _metric(name), True) for name in metrics[:3]]))
    return panels


def _last_score(rows: Sequence[LogRow], results: Mapping[str, Any]) -> list[LogRow]:
    """Returns the scores of the published weights as the last row of the dev curve."""
    train, metrics = results.get("train", {}), results.get("metrics", {})
    measured = {row["step"] for row in rows if any(f"eval_{name}" in row for name in metrics)}
    if not metrics or "best_step" in train or train.get("steps", 0) in measured:
        return []
    return [{"step": train["steps"], **{f"eval_{name}": value for name, value in metrics.items()}}]


def _metric(name: str) -> str:
    words = {"pearson": "Pearson correlation", "spearmanr": "Spearman correlation"}
    return words.get(name, name.replace("_", " ").replace("f1", "F1"))


def _training_title(folder: Path, rows: Sequence[LogRow], results: Mapping[str, Any]) -> str:
    name = results.get("settings", {}).get("run_name") or folder.resolve().name
    task = results.get("data", {}).get("title") or results.get("task", "")
    steps = results.get("train", {}).get("steps") or max((row["step"] for row in rows), default=0)
    primary = results.get("primary_metric") or ""
    on = "" if task == "pre-training" else "fine-tuned on "
    title = f"{name}: {on}{task}, {steps:,} steps" if task else f"{name}: {steps:,} steps"
    if primary in results.get("metrics", {}):
        title += f"; {_metric(primary)} {results['metrics'][primary]:.3f} on {results.get('split', 'dev')}"
    return textwrap.fill(title, 90)


def _draw_curve(
    axis: "Axes", rows: Sequence[LogRow], name: str, label: str, ends: Sequence[int], *, held_out: bool
) -> None:
    points = [(row["step"], row[name]) for row in rows if row.get(name) is not None]
    if not points:
        return
    steps, values = zip(*points, strict=True)
    if held_out:
        # A line between two points says more than was measured.
        (line,) = axis.plot(steps, values, marker="o", markersize=4, linewidth=1.2 * (len(points) > 2), label=label)
        if name.endswith("loss"):
            line.set_color("tab:orange")
    elif len(points) < _SMOOTHED_FROM:
        axis.plot(steps, values, marker=".", linewidth=1.2, color="tab:blue", label=label)
    else:
        axis.plot(steps, values, linewidth=0.8, alpha=0.35, color="tab:blue")
        # The mean of each value and its neighbors in its phase, a fortieth of the curve to either side.
        reach, phases = max(1, len(values) // 40), [sum(step > end for end in ends) for step in steps]
        near = [range(max(0, place - reach), min(place + reach + 1, len(values))) for place in range(len(values))]
        smoothed = [fmean(values[i] for i in near[k] if phases[i] == phase) for k, phase in enumerate(phases)]
        axis.plot(steps, smoothed, linewidth=1.6, color="tab:blue", label=f"{label}, smoothed")


def _draw_learning_rate(axis: "Axes", rows: Sequence[LogRow]) -> int:
    """Draws the learning rate; returns the logged step at the end of the warm-up, 0 where there was none."""
    from matplotlib.ticker import MaxNLocator

    points = [(row["step"], row["learning_rate"]) for row in rows if row.get("learning_rate") is not None]
    highest = max(range(len(points)), key=lambda place: points[place][1], default=0)
    warmup = int(points[highest][0]) if highest else 0
    if points:
        axis.plot(*zip(*points, strict=True), color="tab:gray")
    axis.set_ylabel("learning rate")
    axis.set_xlabel("optimizer step" + (" (shaded: warm-up)" if warmup else ""))
    axis.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    axis.set_xlim(left=0)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    return warmup


# --- scores.png -----------------------------------------------------------------------------------------------------


def plot_scores(path: Path, results: Mapping[str, Any]) -> bool:
    """Draws the confusion matrix of the first scored split that has one.

    Returns:
        Whether there was one; if not, there is no picture.
    """
    from matplotlib.figure import Figure

    splits = results.get("splits", {}).items()
    of_matrix = ((name, split) for name, split in splits if split.get("details", {}).get("confusion_matrix"))
    if (found := next(of_matrix, None)) is None:
        path.unlink(missing_ok=True)
        return False
    name, split = found
    matrix, names = split["details"]["confusion_matrix"], split["details"]["labels"]
    side = 2.6 + 0.3 * min(len(matrix), _MOST_NAMED_LABELS)
    figure = Figure(figsize=(side + 1, side), layout="constrained")
    primary = results.get("primary_metric") or next(iter(split["metrics"]))  # of a test file alone the first
    title = f"{path.parent.resolve().name}: {_metric(primary)} {split['metrics'][primary]:.3f} on {name}"
    figure.suptitle(textwrap.fill(title, 40), fontsize=11)
    _draw_confusions(figure.subplots(), names, matrix)
    with atomic_path(path) as partial:
        figure.savefig(partial, dpi=_DOTS_PER_INCH)
    return True


def _draw_confusions(axis: "Axes", names: list[str], matrix: list[list[int]]) -> None:
    shares = [[count / max(1, sum(row)) for count in row] for row in matrix]
    axis.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    if len(names) <= _MOST_LABELS_WITH_COUNTS:
        for row, counts in enumerate(matrix):
            for column, count in enumerate(counts):
                color = "white" if shares[row][column] > 0.5 else "black"
                axis.text(column, row, f"{count:,}", ha="center", va="center", fontsize=8, color=color)
    if len(names) <= _MOST_NAMED_LABELS:
        texts = [textwrap.shorten(name.replace("$", r"\$"), 24, placeholder="...") for name in names]
        slanted = max(map(len, texts)) * len(texts) > 40
        axis.set_xticks(
            range(len(names)), texts, fontsize=8, rotation=45 if slanted else 0, ha="right" if slanted else "center"
        )
        axis.set_yticks(range(len(names)), texts, fontsize=8)
    axis.set_xlabel("predicted")
    axis.set_ylabel("true (shade: share of the row)")
