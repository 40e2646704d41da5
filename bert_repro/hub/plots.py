"""The plots of a card: training.png (losses, dev scores, learning rate) and scores.png (the confusion matrix).

Both are drawn from the files that a run leaves: results.json and the rows of train_log.jsonl.
"""

import bisect
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from bert_repro.hub.plot_fonts import Fonts, fonts_for
from bert_repro.utils.files import atomic_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LogRow = Mapping[str, Any]

_DOTS_PER_INCH = 120
_SMOOTHED_FROM = 60  # points of a training curve
_DEV_PANEL = "score on dev"
_MOST_METRICS = 3  # curves of the dev panel
_MOST_LABELS_WITH_COUNTS = 12
_MOST_NAMED_LABELS = 30
_LONGEST_LABEL = 24  # characters


@dataclass(frozen=True)
class Curve:
    """A curve of a panel.

    Args:
        field: the name of its values in the log.
        legend: its name in the legend.
        held_out: whether it was measured on held-out text or the dev set.
    """

    field: str
    legend: str
    held_out: bool


@dataclass(frozen=True)
class Panel:
    """A panel of training.png: the label of its y axis and its curves."""

    label: str
    curves: Sequence[Curve]


# --- training.png -----------------------------------------------------------------------------------------------------


def plot_training(path: Path, rows: Sequence[LogRow], results: Mapping[str, Any]) -> None:
    """Draws the losses, dev scores and learning rate of a run over its steps.

    Pre-training has one panel for MLM and one for NSP. Fine-tuning has one for the loss and one for the scores on dev,
    with the baselines as horizontal lines. The warm-up is shaded.

    Args:
        path: the picture to write.
        rows: the rows of train_log.jsonl.
        results: the results of the run.
    """
    rows = _with_first_and_last_scores(rows, results)
    panels = _panels(rows, results)
    title = _training_title(path.parent, rows, results)
    fonts = fonts_for([title, *results.get("baselines", {})])
    with fonts.used():
        figure = _training_figure(title, panels, rows, results, fonts)
        with atomic_path(path) as partial:
            figure.savefig(partial, dpi=_DOTS_PER_INCH)


def _training_figure(
    title: str, panels: Sequence[Panel], rows: Sequence[LogRow], results: Mapping[str, Any], fonts: Fonts
) -> "Figure":
    from matplotlib.figure import Figure

    heights = [3.0] * len(panels) + [1.4]
    figure = Figure(figsize=(8, 2 + 2.2 * len(panels)), layout="constrained")
    axes = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights, squeeze=False)[:, 0]
    figure.suptitle(fonts.shown(title), fontsize=11)

    phase_ends = _phase_ends(results)
    for axis, panel in zip(axes, panels, strict=False):
        _draw_panel(axis, panel, rows, results, phase_ends, fonts)
    warmup_steps = _draw_learning_rate(axes[-1], rows)
    for axis in axes:
        axis.grid(alpha=0.3)
        if warmup_steps:
            axis.axvspan(0, warmup_steps, color="tab:orange", alpha=0.12, linewidth=0)
    return figure


def _with_first_and_last_scores(rows: Sequence[LogRow], results: Mapping[str, Any]) -> list[LogRow]:
    """Returns the log's rows with the scores of the model before training and of the published weights.

    The log itself has neither: both are measured outside of training.
    """
    all_rows = list(rows)
    scores_before = results.get("baselines", {}).get("the model before", {})
    if scores_before:
        all_rows.insert(0, {"step": 0, **_as_eval_fields(scores_before)})

    train = results.get("train", {})
    metrics = results.get("metrics", {})
    last_step = train.get("steps", 0)
    score_fields = _as_eval_fields(metrics).keys()
    scored_steps = {row["step"] for row in all_rows if not score_fields.isdisjoint(row)}
    # With early stopping the published weights are those of an earlier step, whose score is in the log.
    if metrics and "best_step" not in train and last_step not in scored_steps:
        all_rows.append({"step": train["steps"], **_as_eval_fields(metrics)})
    return all_rows


def _as_eval_fields(scores: Mapping[str, float]) -> dict[str, float]:
    """Returns scores under the names that they have in the log."""
    return {f"eval_{name}": value for name, value in scores.items()}


def _panels(rows: Sequence[LogRow], results: Mapping[str, Any]) -> list[Panel]:
    """Returns the panels that the fields of the log allow."""
    fields: set[str] = set()
    for row in rows:
        fields.update(row)

    if "mlm_loss" in fields or "eval_mlm_loss" in fields:
        panels = [_loss_panel("mlm_loss", "MLM loss (nats)")]
        if "nsp_loss" in fields:
            panels.append(_loss_panel("nsp_loss", "NSP loss (nats)"))
        return panels

    unit = "squared error" if results.get("primary_metric") == "pearson" else "nats"
    panels = [_loss_panel("loss", f"loss ({unit})")]
    metrics = [name for name in results.get("metrics", {}) if f"eval_{name}" in fields and "threshold" not in name]
    # One score is no curve; it is in the title.
    if metrics and sum(f"eval_{metrics[0]}" in row for row in rows) > 1:
        metrics.sort(key=lambda name: name != results.get("primary_metric"))
        curves = [Curve(f"eval_{name}", _metric_title(name), held_out=True) for name in metrics[:_MOST_METRICS]]
        panels.append(Panel(_DEV_PANEL, curves))
    return panels


def _loss_panel(field: str, label: str) -> Panel:
    training = Curve(field, "training", held_out=False)
    held_out = Curve(f"eval_{field}", "held out", held_out=True)
    return Panel(label, (training, held_out))


def _metric_title(name: str) -> str:
    """Returns a metric's name as people write it."""
    titles = {"pearson": "Pearson correlation", "spearmanr": "Spearman correlation"}
    return titles.get(name, name.replace("_", " ").replace("f1", "F1"))


def _phase_ends(results: Mapping[str, Any]) -> list[int]:
    """Returns the last step of each pre-training phase except the last one."""
    phases = results.get("train", {}).get("phases", [])
    return list(accumulate(phase["steps"] for phase in phases[:-1]))


def _training_title(folder: Path, rows: Sequence[LogRow], results: Mapping[str, Any]) -> str:
    """Returns the title: run, task, steps and the score on dev."""
    name = results.get("settings", {}).get("run_name") or folder.resolve().name
    task = results.get("data", {}).get("title") or results.get("task", "")
    steps = results.get("train", {}).get("steps") or max((row["step"] for row in rows), default=0)
    if task == "pre-training":
        title = f"{name}: {task}, {steps:,} steps"
    elif task:
        title = f"{name}: fine-tuned on {task}, {steps:,} steps"
    else:
        title = f"{name}: {steps:,} steps"

    metrics = results.get("metrics", {})
    primary = results.get("primary_metric") or ""
    if primary in metrics:
        title += f"; {_metric_title(primary)} {metrics[primary]:.3f} on {results.get('split', 'dev')}"
    return textwrap.fill(_without_formulas(title), 90)


def _draw_panel(
    axis: "Axes",
    panel: Panel,
    rows: Sequence[LogRow],
    results: Mapping[str, Any],
    phase_ends: Sequence[int],
    fonts: Fonts,
) -> None:
    """Draws the curves of a panel and the vertical and horizontal lines that belong to it."""
    for curve in panel.curves:
        _draw_curve(axis, curve, rows, phase_ends)
    for end in phase_ends:
        axis.axvline(end, color="black", linestyle=":", linewidth=1, label="next phase")
    if panel.label == _DEV_PANEL:
        line_styles = ("--", ":")
        for style, (name, scores) in zip(line_styles, results.get("baselines", {}).items(), strict=False):
            label = _without_formulas(fonts.shown(name))
            axis.axhline(scores[results["primary_metric"]], color="gray", linestyle=style, label=label)
        best_step = results["train"].get("best_step")
        if best_step:
            axis.axvline(
                best_step, color="tab:green", linestyle="--", linewidth=1, label=f"published: step {best_step}"
            )
    axis.set_ylabel(panel.label)
    axis.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))


def _draw_curve(axis: "Axes", curve: Curve, rows: Sequence[LogRow], phase_ends: Sequence[int]) -> None:
    """Draws a curve: held-out scores as points, a short training curve as it is, a long one with its smoothed form."""
    points = [(row["step"], row[curve.field]) for row in rows if row.get(curve.field) is not None]
    if not points:
        return
    steps, values = zip(*points, strict=True)

    if curve.held_out:
        # A line between only two points would say more than was measured.
        width = 1.2 if len(points) > 2 else 0.0
        (line,) = axis.plot(steps, values, marker="o", markersize=4, linewidth=width, label=curve.legend)
        if curve.field.endswith("loss"):
            line.set_color("tab:orange")
    elif len(points) < _SMOOTHED_FROM:
        axis.plot(steps, values, marker=".", linewidth=1.2, color="tab:blue", label=curve.legend)
    else:
        axis.plot(steps, values, linewidth=0.8, alpha=0.35, color="tab:blue")
        smoothed = _smoothed(steps, values, phase_ends)
        axis.plot(steps, smoothed, linewidth=1.6, color="tab:blue", label=f"{curve.legend}, smoothed")


def _smoothed(steps: Sequence[int], values: Sequence[float], phase_ends: Sequence[int]) -> list[float]:
    """Returns the mean of each value and its neighbors, a fortieth of the curve to either side.

    Neighbors in another phase are left out, because the loss jumps when the sequence length changes.
    """
    reach = max(1, len(values) // 40)
    # The phase of each point: how many phases have ended before its step.
    phases = [bisect.bisect_left(phase_ends, step) for step in steps]
    smoothed = []
    for place, phase in enumerate(phases):
        first = max(0, place - reach)
        last = min(place + reach, len(values) - 1)
        neighbors = [values[near] for near in range(first, last + 1) if phases[near] == phase]
        smoothed.append(fmean(neighbors))
    return smoothed


def _draw_learning_rate(axis: "Axes", rows: Sequence[LogRow]) -> int:
    """Draws the learning rate and returns the logged step at which the warm-up ends, or 0 if there is none."""
    from matplotlib.ticker import MaxNLocator

    points = [(row["step"], row["learning_rate"]) for row in rows if row.get("learning_rate") is not None]
    warmup_steps = 0
    if points:
        steps, rates = zip(*points, strict=True)
        peak = rates.index(max(rates))
        # If the first logged rate is the highest, the warm-up was over before it.
        warmup_steps = int(steps[peak]) if peak > 0 else 0
        axis.plot(steps, rates, color="tab:gray")
    axis.set_ylabel("learning rate")
    axis.set_xlabel("optimizer step (shaded: warm-up)" if warmup_steps else "optimizer step")
    axis.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    axis.set_xlim(left=0)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    return warmup_steps


# --- scores.png -------------------------------------------------------------------------------------------------------


def plot_scores(path: Path, results: Mapping[str, Any]) -> bool:
    """Draws the confusion matrix of the first scored split that has one, and removes an older picture otherwise.

    Args:
        path: the picture to write.
        results: the results of the run.

    Returns:
        Whether a picture was drawn.
    """
    from matplotlib.figure import Figure

    split_names = []
    for name, split in results.get("splits", {}).items():
        # Runs of earlier versions have a matrix without names of labels.
        if {"confusion_matrix", "labels"} <= split.get("details", {}).keys():
            split_names.append(name)
    if not split_names:
        path.unlink(missing_ok=True)
        return False

    split_name = split_names[0]
    split = results["splits"][split_name]
    matrix = split["details"]["confusion_matrix"]
    label_names = split["details"]["labels"]
    # A run that only scores a test file has no primary metric.
    primary = results.get("primary_metric") or next(iter(split["metrics"]))

    side = 2.6 + 0.3 * min(len(matrix), _MOST_NAMED_LABELS)
    run_name = path.parent.resolve().name
    title = f"{run_name}: {_metric_title(primary)} {split['metrics'][primary]:.3f} on {split_name}"
    title = textwrap.fill(_without_formulas(title), 40)
    fonts = fonts_for([title, *label_names])
    with fonts.used():
        figure = Figure(figsize=(side + 1, side), layout="constrained")
        figure.suptitle(fonts.shown(title), fontsize=11)
        _draw_confusion_matrix(figure.subplots(), label_names, matrix, fonts)
        with atomic_path(path) as partial:
            figure.savefig(partial, dpi=_DOTS_PER_INCH)
    return True


def _draw_confusion_matrix(
    axis: "Axes", label_names: Sequence[str], matrix: Sequence[Sequence[int]], fonts: Fonts
) -> None:
    """Draws a confusion matrix; many labels have no counts, and very many no names.

    Labels that no installed font can show are drawn as numbers, in the order in which the card lists them.

    Args:
        axis: where to draw.
        label_names: names of the labels.
        matrix: counts, [true label, predicted label].
        fonts: the fonts of the picture.
    """
    # Each row is shaded by its own sum, so that rare labels are visible too.
    shares = []
    for counts in matrix:
        row_sum = max(1, sum(counts))
        shares.append([count / row_sum for count in counts])
    axis.imshow(shares, cmap="Blues", vmin=0, vmax=1)

    if len(label_names) <= _MOST_LABELS_WITH_COUNTS:
        for row, counts in enumerate(matrix):
            for column, count in enumerate(counts):
                color = "white" if shares[row][column] > 0.5 else "black"
                axis.text(column, row, f"{count:,}", ha="center", va="center", fontsize=8, color=color)
    has_names = all(fonts.can_show(name) for name in label_names)
    if len(label_names) <= _MOST_NAMED_LABELS:
        texts = [_short_label(name) for name in label_names]
        if not has_names:
            texts = [str(number) for number in range(1, len(label_names) + 1)]
        places = range(len(texts))
        if max(map(len, texts)) * len(texts) > 40:
            axis.set_xticks(places, texts, fontsize=8, rotation=45, ha="right")
        else:
            axis.set_xticks(places, texts, fontsize=8)
        axis.set_yticks(places, texts, fontsize=8)
    axis.set_xlabel("predicted" if has_names else "predicted (numbers: the labels as listed in the card)")
    axis.set_ylabel("true (shade: share of the row)")


def _short_label(name: str) -> str:
    """Returns a label shortened for an axis."""
    return _without_formulas(textwrap.shorten(name, _LONGEST_LABEL, placeholder="..."))


def _without_formulas(text: str) -> str:
    """Returns a text for matplotlib, which would read a dollar sign as the start of a formula."""
    return text.replace("$", r"\$")
