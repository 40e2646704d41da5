"""Compares the log of a pre-training run with a reference curve, at equal numbers of tokens: is the run on track?

Order of events in `compare_curve`:

1. Read both logs, and the settings of both runs if their folders have them.
2. Refuse curves that start from different losses, because such runs have other vocabularies.
3. Keep evaluations of equally long sequences, and choose the metric that both logs have.
4. Compare the values at the run's last point that the reference reaches, and the tokens that the reference needed to
get    as good.
5. List the settings that differ, draw both curves, print the verdict.
"""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from bert_repro.configs import CurveComparisonConfig, ExampleConfig, PretrainingConfig
from bert_repro.configs.base import type_hints
from bert_repro.errors import UserError, flag
from bert_repro.training import checkpoint, training_log
from bert_repro.utils.files import RESULTS, TRAIN_LOG, atomic_path
from bert_repro.utils.readers import quoted, read_json_object

Verdict = Literal["on track", "behind", "diverged"]
EXIT_CODES: dict[Verdict, int] = {"on track": 0, "behind": 4, "diverged": 5}

Row = Mapping[str, Any]
FloatArray = npt.NDArray[np.float64]

# Metrics in the order of preference; the last one is that of left-to-right models.
_METRICS = ("eval_mlm_loss", "mlm_loss", "eval_lm_loss")
_START_METRIC = "eval_mlm_loss"
_LENGTH = "eval_max_seq_length"

_START_DIFFERENCE = 0.5  # nats; vocabularies of 5,000 and 8,192 word pieces differ by so much, 8,000 and 8,192 do not
_WINDOW = 5  # rows of a training metric that one point averages; held-out metrics are used as they are
_EQUAL = 0.02  # relative difference of two values that is within noise
_DIVERGED = 0.5  # nats above the run's own best value, and above the reference
_TOLERANCE = 0.1  # share of its tokens that a run may lag and still be on track

# Settings that do not decide the losses at equal numbers of tokens, or that every run has its own value of.
_NOT_COMPARED = frozenset(
    {"model_name_or_path", "corpus", "max_eval_sequences", "phases", "seed", "max_steps", "max_train_hours"}
)


@dataclass(frozen=True)
class Curve:
    """A metric over tokens.

    Args:
        tokens: tokens read, ascending.
        values: the metric after so many tokens; NaN if the log has no finite value.
        name: name in messages and in the plot: the run's folder.
    """

    tokens: FloatArray
    values: FloatArray
    name: str = "run"


@dataclass(frozen=True)
class SettingDifference:
    """A setting that differs between two runs.

    Args:
        name: name of the setting.
        run: value in the run.
        reference: value in the reference.
        changes_examples: whether it decides the examples, so that the losses measure different tasks.
    """

    name: str
    run: object
    reference: object
    changes_examples: bool


@dataclass(frozen=True)
class CurveComparison:
    """How a run compares with a reference, at the last number of tokens that both curves reach.

    Args:
        verdict: `on track`, `behind` or `diverged`.
        metric: the metric that was compared; lower is better.
        tokens: tokens of the point.
        value: value of the run.
        reference: value of the reference.
        lag: tokens that the run has read more than the reference needed to become as good as the run; negative if the
            run is ahead. It is 0 if both values are equal within 2%, the run's own tokens if the reference was never as
            bad, and None if the reference never becomes as good.
        run_name: name of the run.
        reference_name: name of the reference.
        differences: settings that differ; None if the settings of one of the runs are not known.
    """

    verdict: Verdict
    metric: str
    tokens: int
    value: float
    reference: float
    lag: int | None
    run_name: str = "run"
    reference_name: str = "reference"
    differences: tuple[SettingDifference, ...] | None = None

    @property
    def is_equal(self) -> bool:
        """Whether both values are equal within 2%."""
        return math.isfinite(self.value) and abs(self.value - self.reference) <= _EQUAL * abs(self.reference)

    def sentence(self) -> str:
        """Returns the comparison in words."""
        metric = self.metric.replace("eval_", "held-out ").replace("_", " ")
        values = (
            f"{self.verdict}: after {self.tokens:,} tokens, {metric} is {self.value:.3f} in {self.run_name} and "
            f"{self.reference:.3f} in {self.reference_name}"
        )
        return f"{values}: {self._relation()}"

    def _relation(self) -> str:
        """Returns how the values compare, and by how many tokens the run is ahead or behind."""
        if not math.isfinite(self.value):
            return "the loss is not finite"
        if self.is_equal:
            return "equal within 2%"
        # Say how far the values are apart, and then how many tokens.
        difference = abs(self.value / self.reference - 1)
        direction = "lower" if self.value < self.reference else "higher"
        relation = f"{difference:.1%} {direction}"
        if self.lag is None:
            return f"{relation}, lower than {self.reference_name} ever gets"
        if self.lag == 0:
            return relation
        return f"{relation}, {abs(self.lag):,} tokens {'ahead' if self.lag < 0 else 'behind'}"

    def settings_text(self) -> str:
        """Returns the settings that differ, one per line; empty if none do."""
        if self.differences is None:
            return (
                "The settings of these runs were not compared, because at least one log has neither a results.json nor "
                "a checkpoint next to it.\n"
            )
        lines: list[str] = []
        for difference in self.differences:
            values = (
                f"{quoted(difference.run)} in {self.run_name}, {quoted(difference.reference)} in {self.reference_name}"
            )
            lines.append(f"  {flag(difference.name)}: {values}\n")
        if not lines:
            return ""
        heading = "Settings that differ:\n"
        if any(difference.changes_examples for difference in self.differences):
            heading = (
                "Settings that differ, some of which change the examples, so the losses measure different tasks:\n"
            )
        return heading + "".join(lines)


def compare_curve(config: CurveComparisonConfig) -> CurveComparison:
    """Compares a run's log with a reference curve, prints the verdict and draws both curves.

    Returns:
        The comparison of a run that is on track.

    Raises:
        UserError: a file is missing, the vocabularies differ, or the two have no metric in common.
        SystemExit: the run is behind (code 4) or has diverged (code 5).
    """
    run_rows = _read_log(config.run, "run")
    reference_rows = _read_log(config.reference, "reference")
    _require_same_start(_start_loss(run_rows, config.run), _start_loss(reference_rows, config.reference))

    # Only evaluations of sequences as long as the run's last ones; a row without a length has that one.
    lengths = [row[_LENGTH] for row in run_rows if _LENGTH in row]
    if lengths:
        run_rows = [row for row in run_rows if row.get(_LENGTH, lengths[-1]) == lengths[-1]]
        reference_rows = [row for row in reference_rows if row.get(_LENGTH, lengths[-1]) == lengths[-1]]
    metric = _common_metric(run_rows, reference_rows)

    # Compare, with the names of the folders in messages and in the plot.
    run_name, reference_name = curve_names(config.run, config.reference)
    run = _curve(run_rows, metric, run_name)
    reference = _curve(reference_rows, metric, reference_name)
    differences = setting_differences(_settings(config.run), _settings(config.reference))
    comparison = compare(run, reference, metric, differences)

    # Draw and print.
    path = _log_file(config.run).with_name("curve_comparison.png")
    if config.output_file:
        path = Path(config.output_file)
    _plot(path, comparison, run, reference)
    sys.stdout.write(f"{comparison.sentence()}\n{comparison.settings_text()}Plot: {path}\n")
    code = EXIT_CODES[comparison.verdict]
    if code:
        raise SystemExit(code)
    return comparison


def compare(
    run: Curve, reference: Curve, metric: str, differences: tuple[SettingDifference, ...] | None = None
) -> CurveComparison:
    """Compares two curves at the last point of the run that the reference reaches.

    Args:
        run: curve of the run.
        reference: curve of a run that went well; values that are not finite are left out.
        metric: the loss that both show.
        differences: settings that differ, for the messages.

    Raises:
        UserError: the run begins after the reference ends.
    """
    # A reference may have a gap; interpolate over it.
    is_finite = np.isfinite(reference.values)
    reference_tokens, reference_values = reference.tokens[is_finite], reference.values[is_finite]
    is_shared = run.tokens <= reference_tokens[-1]
    if not is_shared.any():
        raise UserError(
            f"{run.name} begins after {run.tokens[0]:,.0f} tokens, but {reference.name} ends after "
            f"{reference_tokens[-1]:,.0f}. Choose a longer reference.",
            setting="reference",
        )
    # The run's last value, and the reference's at the same number of tokens.
    values = run.values[is_shared]
    tokens, value = float(run.tokens[is_shared][-1]), float(values[-1])
    expected = float(np.interp(tokens, reference_tokens, reference_values))
    lag = _lag(tokens, value, expected, reference_tokens, reference_values)
    return CurveComparison(
        verdict=_verdict(tokens, values, expected, lag),
        metric=metric,
        tokens=int(tokens),
        value=value,
        reference=expected,
        lag=lag,
        run_name=run.name,
        reference_name=reference.name,
        differences=differences,
    )


def _lag(
    tokens: float, value: float, expected: float, reference_tokens: FloatArray, reference_values: FloatArray
) -> int | None:
    """Returns how many tokens the run is behind; see `CurveComparison.lag`."""
    if not math.isfinite(value):
        return round(tokens)
    if abs(value - expected) <= _EQUAL * abs(expected):
        return 0
    # Tokens after which the reference was first as good as the run. Negated, its best value so far is ascending.
    best_so_far = np.minimum.accumulate(reference_values)
    if value < best_so_far[-1]:
        return None
    tokens_needed = float(np.interp(-value, -best_so_far, reference_tokens, left=0.0))
    return round(tokens - tokens_needed)


def _verdict(tokens: float, values: FloatArray, expected: float, lag: int | None) -> Verdict:
    """Judges the run's last value.

    Args:
        tokens: tokens of the last value.
        values: values of the run up to there.
        expected: value of the reference there.
        lag: tokens that the run is behind.
    """
    value = float(values[-1])
    if not math.isfinite(value):
        return "diverged"
    rose_again = value - np.nanmin(values) > _DIVERGED
    if rose_again and value - expected > _DIVERGED:
        return "diverged"
    is_late = lag is not None and lag > _TOLERANCE * tokens
    if value > expected and is_late:
        return "behind"
    return "on track"


# --- Logs and settings ------------------------------------------------------------------------------------------------


def _log_file(name: str) -> Path:
    path = Path(name)
    return path / TRAIN_LOG if path.is_dir() else path


def _read_log(name: str, setting: str) -> list[dict[str, Any]]:
    path = _log_file(name)
    if not path.is_file():
        raise UserError(
            f"{flag(setting, path)}: there is no such file. Pass a run's folder, or a file like its {TRAIN_LOG}.",
            setting=setting,
        )
    rows = training_log.read(path)
    if not any("tokens" in row for row in rows):
        raise UserError(
            f"{flag(setting, path)} has no row with tokens. Pass the {TRAIN_LOG} of a pre-training run.",
            setting=setting,
        )
    return rows


def _start_loss(rows: Sequence[Row], name: str) -> float | None:
    """Returns the held-out MLM loss before the first step, or that of guessing uniformly from the run's vocabulary."""
    loss = rows[0].get(_START_METRIC)
    if loss is not None and not rows[0].get("tokens"):
        return float(loss)
    config_file = _log_file(name).with_name("config.json")
    if not config_file.exists():
        return None
    return math.log(read_json_object(config_file)["vocab_size"])


def _require_same_start(run: float | None, reference: float | None) -> None:
    """Refuses runs with other vocabularies, whose losses do not compare."""
    if run is None or reference is None:
        return
    if abs(run - reference) > _START_DIFFERENCE:
        raise UserError(
            f"An untrained model of the run has an MLM loss of {run:.2f}, but the reference starts at {reference:.2f}. "
            "They have other vocabularies, or one continues a checkpoint. Choose a reference with the same start.",
            setting="reference",
        )


def _common_metric(run: Sequence[Row], reference: Sequence[Row]) -> str:
    """Returns the first metric that both logs have."""
    for metric in _METRICS:
        run_has_it = any(metric in row for row in run)
        reference_has_it = any(metric in row for row in reference)
        if run_has_it and reference_has_it:
            return metric
    raise UserError(
        f"Run and reference have none of the metrics {', '.join(_METRICS)} in common. Choose another reference.",
        setting="reference",
    )


def curve_names(run: str, reference: str) -> tuple[str, str]:
    """Returns the names of two curves: their folders, or the names of log files that have another name.

    If both are the same, as many folders above are added as it takes to tell them apart.
    """
    # Add folders from the right until the names differ.
    run_parts = _name_parts(run)
    reference_parts = _name_parts(reference)
    for count in range(1, max(len(run_parts), len(reference_parts)) + 1):
        run_name = "/".join(run_parts[-count:])
        reference_name = "/".join(reference_parts[-count:])
        if run_name != reference_name:
            return run_name, reference_name
    # Both are the same file.
    return run_parts[-1], reference_parts[-1]


def _name_parts(name: str) -> tuple[str, ...]:
    path = _log_file(name).resolve()
    named = path.parent if path.name == TRAIN_LOG else path.with_suffix("")
    return tuple(part for part in named.parts if part != named.anchor)


def _settings(name: str) -> Mapping[str, Any] | None:
    """Returns the settings of a run from its results.json or its newest checkpoint, or None if it has neither."""
    folder = _log_file(name).parent
    results = folder / RESULTS
    # A log of another name, such as those of docs/reference_curves, may lie next to another run's results.
    if _log_file(name).name != TRAIN_LOG:
        results = _log_file(name).with_suffix(".json")
    if results.is_file():
        settings = read_json_object(results).get("settings")
        return settings if isinstance(settings, dict) else None
    for candidate in checkpoint.newest_first(folder):
        try:
            return checkpoint.read_state(candidate).settings
        except (OSError, ValueError, TypeError):
            continue
    return None


def setting_differences(
    run: Mapping[str, Any] | None, reference: Mapping[str, Any] | None
) -> tuple[SettingDifference, ...] | None:
    """Returns the pre-training settings that differ and decide the losses, those of the examples first.

    Args:
        run: settings of the run; None if they are not known.
        reference: settings of the reference.

    Returns:
        The differences, or None if the settings of one run are not known.
    """
    if run is None or reference is None:
        return None
    # Every setting that decides the numbers of a run, as its field says.
    example_settings = set(type_hints(ExampleConfig))
    differences: list[SettingDifference] = []
    for field in fields(PretrainingConfig):
        name = field.name
        if not field.metadata["decides_result"] or name in _NOT_COMPARED:
            continue
        if name not in run or name not in reference or _same(run[name], reference[name]):
            continue
        differences.append(SettingDifference(name, run[name], reference[name], name in example_settings))
    differences += _phase_differences(run, reference)
    return tuple(sorted(differences, key=lambda difference: not difference.changes_examples))


def _phase_differences(run: Mapping[str, Any], reference: Mapping[str, Any]) -> list[SettingDifference]:
    """Compares the phases. Their steps are left out: curves are compared at equal numbers of tokens."""
    run_phases = [_without_steps(phase) for phase in run.get("phases") or ()]
    reference_phases = [_without_steps(phase) for phase in reference.get("phases") or ()]
    if run_phases == reference_phases:
        return []
    return [SettingDifference("phases", run_phases, reference_phases, changes_examples=False)]


def _without_steps(phase: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in phase.items() if name not in ("steps", "per_device_batch")}


def _same(first: object, second: object) -> bool:
    """Returns whether two settings are equal as JSON, which has lists in place of tuples."""
    return json.dumps(first, sort_keys=True, default=str) == json.dumps(second, sort_keys=True, default=str)


# --- Curves -----------------------------------------------------------------------------------------------------------


def _curve(rows: Sequence[Row], metric: str, name: str) -> Curve:
    """Returns the metric's curve. A row of an evaluation has the tokens of the training row before it."""
    # Collect the points of the metric.
    tokens: list[float] = []
    values: list[float] = []
    tokens_so_far = 0.0
    for row in rows:
        tokens_so_far = max(tokens_so_far, row.get("tokens", 0.0))
        if metric in row:
            value = row[metric]
            tokens.append(tokens_so_far)
            values.append(math.nan if value is None else float(value))
    curve = np.array(values, dtype=np.float64)
    if not metric.startswith("eval_"):
        curve = _moving_average(curve)
    return Curve(np.array(tokens, dtype=np.float64), curve, name)


def _moving_average(values: FloatArray) -> FloatArray:
    """Returns the mean of each value and the few before it."""
    averages: list[float] = []
    for end in range(1, len(values) + 1):
        start = max(0, end - _WINDOW)
        averages.append(float(values[start:end].mean()))
    return np.array(averages)


def _plot(path: Path, comparison: CurveComparison, run: Curve, reference: Curve) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axis = figure.subplots()
    axis.plot(reference.tokens / 1e6, reference.values, color="tab:gray", label=reference.name)
    axis.plot(run.tokens / 1e6, run.values, color="tab:blue", marker=".", label=run.name)
    axis.set_xlim(0, 1.2 * run.tokens[-1] / 1e6)
    axis.set_xlabel("tokens (millions)")
    axis.set_ylabel(comparison.metric.replace("_", " ").replace("eval", "held-out"))
    title = comparison.sentence()
    if comparison.differences:
        names = ", ".join(difference.name for difference in comparison.differences)
        title += f"\nsettings that differ: {names}"
    axis.set_title(title, fontsize="small", wrap=True)
    axis.grid(alpha=0.3)
    axis.legend()
    with atomic_path(path) as unfinished:
        figure.savefig(unfinished, dpi=120)
