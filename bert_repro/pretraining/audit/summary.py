"""The audit's report: a text table and a plot."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np

BINS = 8
_BAR = 40


def text_report(report: dict[str, Any]) -> str:
    """The report as text, for the screen and audit.txt.

    Args:
        report: what audit.json holds.
    """
    figures = report["figures"]
    lines = [f"{'check':<46} {'found':>12}   {'must be':<22} result"]
    lines += [_check_line(check) for check in report["checks"]]
    lines += ["", f"{'figure':<46} {'value':>12}"]
    lines += [f"{name:<46} {value:>12}" for name, value in _figure_lines(figures)]
    lines += ["", f"{'length':<14} {'share':>7}", *_histogram_lines(figures["length_histogram"])]
    failed = sum(not check["passed"] for check in report["checks"])
    total = len(report["checks"])
    lines += ["", f"All {total} checks passed." if not failed else f"{failed} of {total} checks FAILED."]
    return "\n".join(lines) + "\n"


def plot_audit(report: dict[str, Any], path: Path) -> None:
    """Draws lengths, predictions, replacements and padding.

    Args:
        report: what audit.json holds.
        path: PNG file to write.
    """
    from matplotlib.figure import Figure

    figures, config = report["figures"], report["settings"]
    figure = Figure(figsize=(11, 7), layout="constrained")
    lengths, predictions, shares, padding = figure.subplots(2, 2).ravel()
    _plot_counts(lengths, figures["length_histogram"], "tokens of a sequence", bins=32)
    lengths.set_title(f"Lengths: mean {figures['mean_length']:.1f} of {config['max_seq_length']}")
    _plot_counts(predictions, figures["predictions_histogram"], "predicted tokens of a sequence", bins=None)
    predictions.set_title(f"Predictions: mean {figures['predictions_per_sequence']:.2f}")
    _plot_shares(shares, report)
    names = [fill(name, 14) for name in figures["padding"]]
    values = list(figures["padding"].values())
    bars = padding.barh(names, [100 * value for value in values], color="tab:blue")
    padding.bar_label(bars, fmt="%.1f%%", padding=3)
    padding.set_xlim(0, max(10.0, 125 * max(values)))
    padding.set_xlabel("padding, % of all positions")
    padding.set_title("Padding by layout")
    padding.invert_yaxis()
    failed = sum(not check["passed"] for check in report["checks"])
    verdict = "all checks passed" if not failed else f"{failed} of {len(report['checks'])} checks failed"
    figure.suptitle(f"{figures['sequences']:,} sequences of {figures['documents']:,} documents: {verdict}")
    figure.savefig(path, dpi=120)


def _check_line(check: dict[str, Any]) -> str:
    low, high = check["low"], check["high"]
    if low == high == 0:
        bounds = "none"
    elif high is None:
        bounds = f"at least {low:g}"
    else:
        bounds = f"{low:.4f} to {high:.4f}" if low else f"at most {high:.4g}"
    found = f"{check['found']:,}" if isinstance(check["found"], int) else f"{check['found']:.4f}"
    return f"{check['name']:<46} {found:>12}   {bounds:<22} {'pass' if check['passed'] else 'FAIL'}"


def _figure_lines(figures: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in figures.items():
        if name == "padding":
            yield from ((f"padding, {layout}", f"{share:.2%}") for layout, share in value.items())
        elif isinstance(value, int):
            yield name.replace("_", " "), f"{value:,}"
        elif isinstance(value, float):
            is_mean = name in ("mean_length", "predictions_per_sequence")
            yield name.replace("_", " "), f"{value:.2f}" if is_mean else f"{value:.3%}"


def _histogram_lines(histogram: list[int]) -> Iterator[str]:
    edges = np.linspace(0, len(histogram) - 1, BINS + 1).astype(int)
    total = sum(histogram)
    for low, high in pairwise(edges):
        share = sum(histogram[low + 1 : high + 1]) / total
        yield f"{f'{low + 1} to {high}':<14} {share:>7.2%} {'#' * round(_BAR * share)}".rstrip()


def _plot_counts(axis: Any, histogram: list[int], label: str, bins: int | None) -> None:
    values = np.arange(len(histogram))
    edges = np.arange(len(histogram) + 1) - 0.5 if bins is None else np.linspace(0, len(histogram) - 1, bins + 1) + 0.5
    axis.hist(values, edges, weights=100 * np.array(histogram) / sum(histogram), color="tab:blue", edgecolor="white")
    axis.set_xlabel(label)
    axis.set_ylabel("% of sequences")
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter("{x:g}")
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.grid(axis="y", alpha=0.3)


def _plot_shares(axis: Any, report: dict[str, Any]) -> None:
    """Measured shares as bars, and as a mark the range in which 99.9% of correct samples lie."""
    wanted = {
        "NotNext": "NotNext, share",
        "[MASK]": "replaced by [MASK], share",
        "random": "replaced by a random token, share",
        "same": "left as they are, share",
    }
    checks = {check["name"]: check for check in report["checks"]}
    shown = {label: checks[name] for label, name in wanted.items() if name in checks}
    found = [100 * check["found"] for check in shown.values()]
    colours = ["tab:blue" if check["passed"] else "tab:red" for check in shown.values()]
    bars = axis.bar(list(shown), found, color=colours)
    axis.bar_label(bars, fmt="%.2f%%", padding=2)
    if "NotNext" in shown and (forced := report["figures"]["forced_not_next_share"]):
        axis.bar(["NotNext"], [100 * forced], color="tab:gray", label="no choice")
    middle = [50 * (check["low"] + check["high"]) for check in shown.values()]
    spread = [50 * (check["high"] - check["low"]) for check in shown.values()]
    axis.errorbar(
        list(shown), middle, spread, fmt="_", color="black", capsize=6, markersize=14, label="expected, 99.9%"
    )
    axis.set_ylim(0, 1.15 * max(found + middle))
    axis.set_ylabel("% of sequences or predictions")
    axis.set_title("Shares")
    axis.legend()
