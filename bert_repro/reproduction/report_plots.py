"""The plots of the report: orderings, Figure 5, finished models, and accuracy along pre-training by objective."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bert_repro.reproduction.along_pretraining import TaskCurve, curves_of
from bert_repro.reproduction.orderings import APPEARS, INCONCLUSIVE, REVERSED, Ordering
from bert_repro.reproduction.paper_results import FIGURE_5_KEY, table_name
from bert_repro.reproduction.paper_tables import AllResults

ORDERINGS_PLOT = "orderings"
FIGURE_5_PLOT = "figure5"
MODELS_PLOT = "models"
ALONG_PRETRAINING = "along_pretraining"

# Colours and markers that colour-blind readers can tell apart (Okabe and Ito).
_VERDICT_COLORS = {APPEARS: "#009E73", REVERSED: "#D55E00", INCONCLUSIVE: "#7F7F7F"}
_CURVE_STYLES = {
    "masked, with NSP": ("#0072B2", "o"),
    "masked, no NSP": ("#009E73", "s"),
    "left-to-right": ("#D55E00", "^"),
}


def draw_plots(
    results: AllResults, orderings: Sequence[Ordering], differences: Sequence[Ordering], folder: Path
) -> dict[str, Path]:
    """Draws every plot for which there are results.

    Returns:
        Name of the plot -> its file.
    """
    drawings: dict[str, Callable[[Any], bool]] = {
        ORDERINGS_PLOT: partial(_draw_forest, orderings=orderings),
        FIGURE_5_PLOT: partial(_draw_figure_5, results=results),
        MODELS_PLOT: partial(_draw_forest, orderings=differences),
        ALONG_PRETRAINING: partial(_draw_along_pretraining, results=results),
    }
    plots = {}
    for name, draw in drawings.items():
        path = folder / f"{name}.svg"
        if _save(path, draw):
            plots[name] = path
    return plots


def _save(path: Path, draw: Callable[[Any], bool]) -> bool:
    """Draws a figure and saves it, with the same bytes for the same results; False if there was nothing to draw."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update({"svg.hashsalt": path.stem, "font.size": 9.5})
        figure = Figure(layout="constrained")
        has_content = draw(figure)
        if has_content:
            figure.savefig(path, metadata={"Date": None, "Creator": None})
    return has_content


def _draw_forest(figure: Any, orderings: Sequence[Ordering]) -> bool:
    """Draws every tested ordering as a row, turned so that its statement is to the right."""
    tested = [item for item in orderings if item.ours is not None and item.verdict in _VERDICT_COLORS]
    if not tested:
        return False
    figure.set_size_inches(8, 1.2 + 0.25 * len(tested))
    axis = figure.subplots()
    for place, item in enumerate(tested):
        _draw_ordering(axis, place, item)
    for verdict, color in _VERDICT_COLORS.items():
        axis.plot([], [], "o-", color=color, label=f"ours: {verdict}")
    if any(item.paper is not None for item in tested):
        axis.plot([], [], "D", color="black", markerfacecolor="none", label="paper")
    axis.axvline(0, color="black", linewidth=0.8)
    labels = [f"{table_name(item.table)}: {item.statement}, {item.column}" for item in tested]
    axis.set_yticks(range(len(tested)), labels, fontsize=8)
    axis.set_ylim(len(tested) - 0.5, -0.5)
    axis.set_xlabel("difference in points (right: as the statement says)")
    axis.grid(axis="x", alpha=0.3)
    figure.legend(loc="outside lower center", ncols=4, fontsize=8.5, frameon=False)
    return True


def _draw_ordering(axis: Any, place: int, item: Ordering) -> None:
    assert item.ours is not None
    low, high = sorted((item.expected * item.ours.low, item.expected * item.ours.high))
    color = _VERDICT_COLORS[item.verdict]
    axis.plot([low, high], [place, place], color=color, linewidth=1.5)
    axis.plot(item.expected * item.ours.difference, place, "o", color=color, markersize=5)
    if item.paper is not None:
        axis.plot(abs(item.paper), place, "D", color="black", markersize=4, markerfacecolor="none")


def _draw_figure_5(figure: Any, results: AllResults) -> bool:
    """Draws MNLI accuracy against pre-training steps for the masked and the left-to-right model."""
    tables = [table for table in results.tables if table.key == FIGURE_5_KEY and table.columns]
    figure.set_size_inches(5.5, 0.3 + 3.2 * max(1, len(tables)))
    for number, table in enumerate(tables, start=1):
        axis = figure.add_subplot(len(tables), 1, number)
        for row, marker in zip(table.rows.values(), "os", strict=True):
            steps = [int(step) for step in row.ours]
            numbers = list(row.ours.values())
            below = [number.mean - (number.low or number.mean) for number in numbers]
            above = [(number.high or number.mean) - number.mean for number in numbers]
            means = [number.mean for number in numbers]
            axis.errorbar(steps, means, [below, above], marker=marker, capsize=3, label=row.name)
        axis.set(xlabel=f"pre-training steps (size {table.size_preset})", ylabel="MNLI dev accuracy (%)")
        axis.grid(alpha=0.3)
        axis.legend()
    return bool(tables)


def _draw_along_pretraining(figure: Any, results: AllResults) -> bool:
    """Draws MNLI, and the mean of the tasks, against tokens: a panel for each, a line for each objective."""
    panels: list[tuple[str, str, Mapping[str, TaskCurve]]] = []
    for size_preset, curves in curves_of(results).items():
        for title, by_objective in curves.items():
            panels.append((size_preset, title, by_objective))
    if not panels:
        return False
    figure.set_size_inches(4.6 * len(panels), 3.6)
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, (size_preset, title, objectives) in zip(axes, panels, strict=True):
        for objective, curve in objectives.items():
            color, marker = _CURVE_STYLES[objective]
            millions = [tokens / 1e6 for tokens in curve.tokens]
            axis.plot(millions, curve.means, color=color, marker=marker, label=objective)
            if curve.lows and curve.highs:
                axis.fill_between(millions, curve.lows, curve.highs, color=color, alpha=0.15, linewidth=0)
        axis.set(xlabel="million tokens of pre-training", ylabel="dev score (%)")
        axis.set_title(f"{title} (size {size_preset})", fontsize=9.5)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8.5)
    return True
