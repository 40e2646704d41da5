"""The report's plots as SVG: the same runs give the same bytes."""

import math
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import PurePath
from typing import Any

from bert_repro.reproduction.collect import FinishedRun
from bert_repro.reproduction.paper_tables import ResultsTable

_WIDTH = 4.8  # inches: a phone's width with letters that can be read
_MARKERS = "osD^vPX*<>"
_ACTIONS = {"mask": "[MASK]", "same": "unchanged", "random": "random token"}
_NSP = {"is_next": "IsNext", "not_next": "NotNext"}


@dataclass(frozen=True)
class Plot:
    """A plot.

    Args:
        name: of its file, without the ending.
        title: what it shows.
        caption: what to know when reading it.
        svg: the drawing, one `svg` element.
    """

    name: str
    title: str
    caption: str
    svg: str


def all_plots(figures: Sequence[ResultsTable], runs: Sequence[FinishedRun]) -> list[Plot]:
    """Draws Figure 5, the loss curves and the breakdowns, of what was run.

    Args:
        figures: Figure 5 at every size preset of ours.
        runs: all runs.
    """
    plots = list(_figure_plots(figures))
    for size_preset in sorted({run.size_preset for run in runs if run.is_pretraining}):
        pretraining = runs_by_label([run for run in runs if run.is_pretraining and run.size_preset == size_preset])
        plots += [*_curve_plots(pretraining, size_preset), *_breakdown_plots(pretraining, size_preset)]
    return plots


def safe_name(size_preset: str) -> str:
    """Returns a size preset's name as part of a file's: of any other text, the readable part and a checksum."""
    if re.fullmatch(r"[A-Za-z0-9_.-]{1,40}", size_preset):
        return size_preset
    readable = re.sub(r"[^A-Za-z0-9_-]+", "-", PurePath(size_preset).stem)[:40]
    return f"{readable}-{zlib.crc32(size_preset.encode()):08x}"


def runs_by_label(runs: Sequence[FinishedRun]) -> dict[str, FinishedRun]:
    """Names pre-training runs by what sets them apart: variant, size where it is not the usual one, else the name."""
    shapes = [_shape(run) for run in runs]
    usual = max(shapes, key=shapes.count, default="")
    labels = [
        _variant(run) if shape == usual else f"{_variant(run)}, {shape}"
        for run, shape in zip(runs, shapes, strict=True)
    ]
    return {
        label if labels.count(label) == 1 else f"{label}, {run.name}": run
        for label, run in zip(labels, runs, strict=True)
    }


def _shape(run: FinishedRun) -> str:
    """Returns layers/hidden/heads."""
    model = run.results.get("model", {})
    return "/".join(str(model.get(name, "?")) for name in ("num_hidden_layers", "hidden_size", "num_attention_heads"))


def _variant(run: FinishedRun) -> str:
    settings = run.settings
    if settings.get("left_to_right"):
        return "left-to-right"
    if not settings.get("next_sentence_prediction", True):
        return "no NSP"
    masks, random = settings.get("mask_replace_prob", 0.8), settings.get("random_replace_prob", 0.1)
    return "/".join(f"{100 * abs(share):.0f}" for share in (masks, 1 - masks - random, random))


def _figure_plots(figures: Sequence[ResultsTable]) -> Iterator[Plot]:
    for figure in figures:

        def draw(axis: Any, figure: ResultsTable = figure) -> None:
            for row, marker in zip(figure.rows, _MARKERS, strict=False):
                points = [(int(step), ours) for step, ours in row.ours.items()]
                if points:
                    means = [ours.mean for _, ours in points]
                    below = [ours.mean - ours.low if ours.low is not None else 0.0 for _, ours in points]
                    above = [ours.high - ours.mean if ours.high is not None else 0.0 for _, ours in points]
                    steps = [step for step, _ in points]
                    axis.errorbar(steps, means, [below, above], marker=marker, capsize=3, label=row.name)
            axis.set(xlabel="pre-training steps", ylabel="MNLI dev accuracy (%)")

        name = f"figure5-{safe_name(str(figure.size_preset))}"
        yield Plot(
            name,
            f"Figure 5: MNLI accuracy along pre-training (size {figure.size_preset})",
            "Ours: mean over fine-tuning seeds with its 95% interval. The paper prints no numbers for its figure.",
            _svg(name, draw),
        )


def _styles(runs: Mapping[str, FinishedRun]) -> dict[str, dict[str, str]]:
    """Returns color and marker of each run, the same in every plot."""
    return {
        label: {"color": f"C{number}", "marker": _MARKERS[number % len(_MARKERS)]} for number, label in enumerate(runs)
    }


def _curve_plots(runs: Mapping[str, FinishedRun], size_preset: str) -> Iterator[Plot]:
    styles = _styles(runs)
    for loss, title in (("mlm_loss", "masked LM"), ("lm_loss", "left-to-right LM"), ("nsp_loss", "NSP")):
        shown = {label: run.curve for label, run in runs.items() if run.curve and loss in run.curve["training"]}
        if not shown:
            continue

        def draw(axis: Any, shown: Mapping[str, Any] = shown, loss: str = loss) -> None:
            for label, curve in shown.items():
                training, heldout, style = curve["training"], curve.get("heldout", {}), styles[label]
                axis.plot(training["step"], training[loss], linewidth=1, alpha=0.7, label=label, color=style["color"])
                if loss in heldout:
                    axis.plot(heldout["step"], heldout[loss], linestyle="none", markersize=4, **style)
            axis.set(xlabel="optimizer step", ylabel="loss (nats)")

        name = f"loss-{loss.removesuffix('_loss')}-{safe_name(size_preset)}"
        yield Plot(
            name,
            f"Loss along pre-training: {title} (size {size_preset})",
            "Lines: training, averaged over neighboring steps. Markers: held-out text, with its own masks."
            + (" Losses of different masking mixes are of different problems." if loss == "mlm_loss" else ""),
            _svg(name, draw),
        )


def _breakdown_plots(runs: Mapping[str, FinishedRun], size_preset: str) -> Iterator[Plot]:
    styles, named = _styles(runs), safe_name(size_preset)
    measured = {label: run.breakdown for label, run in runs.items() if run.breakdown}
    by_action = {label: breakdown["by_action"] for label, breakdown in measured.items() if "by_action" in breakdown}
    if by_action:
        yield Plot(
            f"breakdown-action-{named}",
            f"Accuracy by what replaces the predicted token (size {size_preset})",
            "Held-out accuracy of predicted tokens by what replaces them. Only actions of the model's own mix.",
            _svg(f"breakdown-action-{named}", lambda axis: _draw_actions(axis, by_action, styles)),
        )
    if measured:
        yield Plot(
            f"breakdown-frequency-{named}",
            f"Accuracy on rare and frequent tokens (size {size_preset})",
            "Held-out accuracy by how often the token occurs in the corpus; a left-to-right model's is of next tokens.",
            _svg(f"breakdown-frequency-{named}", lambda axis: _draw_frequencies(axis, measured, styles)),
        )
    confusions = {
        label: breakdown["nsp_confusion"] for label, breakdown in measured.items() if "nsp_confusion" in breakdown
    }
    if confusions:
        yield Plot(
            f"breakdown-nsp-{named}",
            f"Next sentence prediction: confusion (size {size_preset})",
            "Of the held-out pairs with each label, the share that the model calls IsNext and NotNext.",
            _svg(
                f"breakdown-nsp-{named}",
                lambda axis: _draw_confusions(axis, confusions),
                height=0.7 + 0.5 * len(confusions),
            ),
        )


def _draw_actions(
    axis: Any, by_action: Mapping[str, Mapping[str, Mapping[str, float]]], styles: Mapping[str, Mapping[str, str]]
) -> None:
    height = 0.8 / len(by_action)
    for number, (label, actions) in enumerate(by_action.items()):
        places = [list(_ACTIONS).index(name) + number * height for name in actions]
        shares = [100 * action["accuracy"] for action in actions.values()]
        axis.barh(places, shares, height, label=label, align="edge", color=styles[label]["color"])
    axis.set_yticks([place + 0.4 for place in range(len(_ACTIONS))], list(_ACTIONS.values()))
    axis.invert_yaxis()
    axis.set_xlabel("right (%)")


def _draw_frequencies(
    axis: Any, measured: Mapping[str, Mapping[str, Any]], styles: Mapping[str, Mapping[str, str]]
) -> None:
    for label, breakdown in measured.items():
        bins = breakdown["by_frequency"]
        shares = [100 * row["accuracy"] for row in bins]
        axis.plot([row["at_least"] for row in bins], shares, label=label, **styles[label])
    axis.set_xscale("log")
    axis.set(xlabel="occurrences in the corpus, at least", ylabel="right (%)")


def _draw_confusions(axis: Any, confusions: Mapping[str, Mapping[str, Mapping[str, int]]]) -> None:
    rows = [(label, truth, counts[truth]) for label, counts in confusions.items() for truth in _NSP]
    shares = [[100 * counts[said] / (sum(counts.values()) or 1) for said in _NSP] for _, _, counts in rows]
    # Rectangles, not an image: an image would be a resource, which the page forbids itself.
    axis.pcolormesh(shares, cmap="Blues", vmin=0, vmax=100, edgecolors="white", linewidth=1)
    for row, pair in enumerate(shares):
        for column, share in enumerate(pair):
            axis.text(
                column + 0.5,
                row + 0.5,
                f"{share:.0f}%",
                ha="center",
                va="center",
                color="white" if share > 55 else "black",
            )
    axis.set_xticks([0.5, 1.5], [f"says {name}" for name in _NSP.values()])
    axis.xaxis.tick_top()
    axis.invert_yaxis()
    axis.set_yticks([row + 0.5 for row in range(len(rows))], [f"{label}: {_NSP[truth]}" for label, truth, _ in rows])
    axis.grid(False)


def _svg(name: str, draw: Callable[[Any], None], height: float = 3.2) -> str:
    """Draws a plot that can share a page with others: ids of its own, no date, no program name."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update({"svg.hashsalt": name, "font.size": 9.5})
        figure = Figure(layout="constrained")
        axis = figure.subplots()
        axis.grid(alpha=0.3)
        draw(axis)
        named = len(axis.get_legend_handles_labels()[1])
        if named:
            figure.legend(loc="outside lower center", ncols=2, fontsize=8.5, frameon=False)
        figure.set_size_inches(_WIDTH, height + 0.19 * math.ceil(named / 2))
        file = StringIO()
        figure.savefig(file, format="svg")
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", text)
    return re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE).strip() + "\n"
