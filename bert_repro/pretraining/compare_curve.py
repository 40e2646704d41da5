"""Is a pre-training run on track? Its log compared with a reference curve, at equal numbers of tokens."""

import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bert_repro.configs import CurveComparisonConfig, require
from bert_repro.errors import UserError
from bert_repro.training import training_log
from bert_repro.utils.files import TRAIN_LOG, atomic_path
from bert_repro.utils.readers import read_json_object

Verdict = Literal["on track", "behind", "diverged"]
EXIT_CODES: dict[Verdict, int] = {"on track": 0, "behind": 4, "diverged": 5}

Rows = list[dict[str, Any]]

_LENGTH = "eval_max_seq_length"
_PREFERRED = ("eval_mlm_loss", "mlm_loss")
_START = 0.5  # nats between starts that show other vocabularies: 5,000 and 8,192 word pieces, not 8,000
_WINDOW = 5  # rows of a training metric that one point averages; held-out metrics are taken as they are
_NOISE = 0.02  # relative difference of values that says nothing
_DIVERGED = 0.5  # nats above the run's own best, and above the reference
_TOLERANCE = 0.1  # share of its tokens that a run may lag and still be on track


@dataclass(frozen=True)
class Curve:
    """A metric over tokens.

    Args:
        tokens: tokens seen, increasing.
        values: the metric there; NaN where the log has none that is finite.
    """

    tokens: np.ndarray[Any, np.dtype[np.float64]]
    values: np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class CurveComparison:
    """How a run compares with a reference.

    Args:
        verdict: `on track`, `behind` or `diverged`.
        metric: what was compared.
        tokens: of the last point that both curves reach.
        value: of the run there.
        reference: of the reference there.
        lag: tokens that the run has seen more than the reference needed for `value`; negative where it is ahead, its
            own tokens where the reference was never as bad, 0 where both values are equal within 2%.
    """

    verdict: Verdict
    metric: str
    tokens: int
    value: float
    reference: float
    lag: int

    def sentence(self) -> str:
        """Returns the comparison in words."""
        name = self.metric.replace("eval_", "held-out ").replace("_", " ")
        lag = f"{abs(self.lag):,} tokens {'ahead' if self.lag < 0 else 'behind'}" if self.lag else "equal within 2%"
        where = f"{name} {self.value:.3f} after {self.tokens:,} tokens, reference {self.reference:.3f}"
        return f"{self.verdict}: {where}, {lag}"


def compare_curve(config: CurveComparisonConfig) -> CurveComparison:
    """Compares a run's log with a reference curve, prints the verdict and draws both curves.

    Returns:
        The comparison of a run that is on track.

    Raises:
        UserError: a file is missing or the two have no metric in common.
        SystemExit: the run is behind (code 4) or has diverged (code 5).
    """
    run, reference = _rows(config.run, "--run"), _rows(config.reference, "--reference")
    starts = _start(run, config.run), _start(reference, config.reference)
    if None not in starts and abs(starts[0] - starts[1]) > _START:  # type: ignore[operator]
        raise UserError(
            f"an untrained model of the run has an MLM loss of {starts[0]:.2f} and the reference begins at "
            f"{starts[1]:.2f}: they have other vocabularies, or one continues; name a reference that begins alike"
        )
    # Evaluations of sequences as long as the run's last ones; where a row says no length, it was that.
    if length := next((row[_LENGTH] for row in reversed(run) if _LENGTH in row), None):
        run, reference = ([row for row in rows if row.get(_LENGTH, length) == length] for rows in (run, reference))
    metric = next(
        (name for name in _PREFERRED if all(any(name in row for row in rows) for rows in (run, reference))), ""
    )
    require(metric, f"run and reference have none of {', '.join(_PREFERRED)} in common; name another reference")
    curves = _curve(run, metric), _curve(reference, metric)
    found = compare(*curves, metric)
    path = Path(config.output_file) if config.output_file else _log_file(config.run).with_name("curve_comparison.png")
    _plot(path, metric, found, *curves)
    sys.stdout.write(f"{found.sentence()}; {path}\n")
    if code := EXIT_CODES[found.verdict]:
        raise SystemExit(code)
    return found


def compare(run: Curve, reference: Curve, metric: str) -> CurveComparison:
    """Compares two curves at the last point of the run that the reference reaches.

    Args:
        run: the run.
        reference: a run that went well; values that are not finite are left out.
        metric: the loss that both show.

    Raises:
        UserError: the run begins after the reference ends.
    """
    kept = np.isfinite(reference.values)
    known, best = reference.tokens[kept], np.minimum.accumulate(reference.values[kept])
    within = run.tokens <= known[-1]
    if not within.any():
        raise UserError(
            f"the run's first point is after {run.tokens[0]:,.0f} tokens, the reference ends after {known[-1]:,.0f}; "
            "name a longer reference"
        )
    tokens, values = run.tokens[within], run.values[within]
    at, value = float(tokens[-1]), float(values[-1])
    expected = float(np.interp(at, known, reference.values[kept]))
    # Tokens after which the reference was first as good; 0 if it always was, its last if it never is.
    reached = float(np.interp(-value, -best, known, left=0.0)) if math.isfinite(value) else 0.0
    lag = 0.0 if abs(value - expected) <= _NOISE * abs(expected) else at - reached
    verdict: Verdict = "on track"
    if not math.isfinite(value) or (value - np.nanmin(values) > _DIVERGED and value - expected > _DIVERGED):
        verdict = "diverged"
    elif value > expected and lag > _TOLERANCE * at:
        verdict = "behind"
    return CurveComparison(verdict, metric, int(at), value, expected, round(lag))


def _log_file(name: str) -> Path:
    path = Path(name)
    return path / TRAIN_LOG if path.is_dir() else path


def _rows(name: str, flag: str) -> Rows:
    path = _log_file(name)
    if not path.is_file():
        raise UserError(f"{flag} {path}: no such file; name a run's folder, or a file like its train_log.jsonl")
    rows = training_log.read(path)
    if not any("tokens" in row for row in rows):
        raise UserError(f"{flag} {path}: holds no row with tokens; name the train_log.jsonl of a pre-training run")
    return rows


def _start(rows: Rows, name: str) -> float | None:
    """Returns the held-out MLM loss before the first step, or that of guessing, by the vocabulary of a run's folder."""
    if (found := rows[0].get("eval_mlm_loss")) is not None and not rows[0].get("tokens"):
        return float(found)
    config = _log_file(name).with_name("config.json")
    return math.log(read_json_object(config)["vocab_size"]) if config.exists() else None


def _curve(rows: Rows, metric: str) -> Curve:
    """Returns the metric's curve; rows of an evaluation have the tokens of the training row before them."""
    tokens, points = 0.0, []
    for row in rows:
        tokens = max(tokens, row.get("tokens", 0.0))
        if metric in row:
            value = row[metric]
            points.append((tokens, math.nan if value is None else float(value)))
    seen, values = (np.array(column, dtype=np.float64) for column in zip(*points, strict=True))
    if not metric.startswith("eval_"):
        starts = [max(0, end - _WINDOW) for end in range(1, len(values) + 1)]
        values = np.array([values[start : end + 1].mean() for end, start in enumerate(starts)])
    return Curve(seen, values)


def _plot(path: Path, metric: str, found: CurveComparison, run: Curve, reference: Curve) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axis = figure.subplots()
    axis.plot(reference.tokens / 1e6, reference.values, color="tab:gray", label="reference")
    axis.plot(run.tokens / 1e6, run.values, color="tab:blue", marker=".", label="run")
    axis.set_xlim(0, 1.2 * run.tokens[-1] / 1e6)
    axis.set_xlabel("tokens (millions)")
    axis.set_ylabel(metric.replace("_", " ").replace("eval", "held-out"))
    axis.set_title(found.sentence(), fontsize="small", wrap=True)
    axis.grid(alpha=0.3)
    axis.legend()
    with atomic_path(path) as unfinished:
        figure.savefig(unfinished, dpi=120)
