"""Finished runs for the report: their results, their settings, and whether the paper's numbers may be subtracted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bert_repro.configs import LOCATIONS, StudyConfig, decides_result, require
from bert_repro.hub.card import default_settings
from bert_repro.reproduction.paper_results import EXAMPLES_FILE, Column, TableEntry
from bert_repro.results import RunResults, read_results
from bert_repro.tasks.data import SPLIT_ROWS
from bert_repro.utils.files import RESULTS
from bert_repro.utils.readers import read_json_object

_SAID_OTHERWISE = frozenset({"output_dir", "test_file", "seed", "task_name", "do_train", "max_steps", "phases"})
"""Settings that decide a result and that results say in other words, in `_facts`."""

Float64Array = npt.NDArray[np.float64]

_PLATEAU = 0.01
"""Held-out accuracy of all but the most frequent tokens that a pre-training reaches once it predicts anything else."""


@dataclass(frozen=True)
class FinishedRun:
    """A finished run.

    Args:
        name: its folder below that of all runs.
        results: what results.json holds.
        size_preset: the size preset of its study; runs of different presets are never put together.
        entries: the table entries that it fills.
        pretraining: name of the pre-training run that it started from.
        place: of a run that started from a finished model, where that stands among those of the study.
        examples: split -> metric -> the score of every example.
    """

    name: str
    results: RunResults
    size_preset: str
    entries: tuple[TableEntry, ...] = ()
    pretraining: str | None = None
    place: int | None = None
    examples: Mapping[str, Mapping[str, Float64Array]] = field(default_factory=dict)

    @property
    def is_pretraining(self) -> bool:
        """Whether other runs may have started from it."""
        return bool(self.results["task"] == "pre-training")

    @property
    def seeds(self) -> tuple[int, int]:
        """Its pre-training's seed and its own."""
        study = self.results.get("study", {})
        return study.get("pretraining_seed") or StudyConfig.pretraining_seed, self.results["seed"]

    @property
    def settings(self) -> Mapping[str, Any]:
        """Its settings, as far as they are known."""
        return self.results.get("settings", {})

    @property
    def parameters(self) -> int:
        """Parameters of its model, the head included; 0 where they are not known."""
        return int(self.results.get("model", {}).get("parameters", 0))

    @property
    def never_left_the_plateau(self) -> bool:
        """Whether a pre-training predicts nothing but the most frequent tokens, so that it counts as failed."""
        bins = self.results.get("mlm_breakdown", {}).get("by_frequency", [])
        return len(bins) > 1 and all(row["accuracy"] < _PLATEAU for row in bins[:-1])

    def split_name(self, column: Column) -> str:
        """Returns the split scored for a column: the column's, or dev where the test set has no labels."""
        scored = "metrics" in self.results["splits"].get(column.split, {})
        return column.split if scored else column.split.replace("test", "validation")

    def split(self, column: Column) -> Mapping[str, Any]:
        """Returns its results on the split for a column: `metrics`, `rows_scored`."""
        return self.results if self.is_pretraining else self.results["splits"][self.split_name(column)]

    def is_scored(self, column: Column) -> bool:
        """Whether it has a score in a column; the files of a split may have been missing."""
        return self.is_pretraining or "metrics" in self.results["splits"].get(self.split_name(column), {})

    def is_degenerate(self, column: Column) -> bool:
        """Whether it gave one answer for all examples of the split for a column."""
        return bool(self.split(column).get("degenerate"))

    def score(self, column: Column) -> float:
        """Returns its score in a column: a fraction, or a perplexity."""
        return float(self.split(column)["metrics"][column.metric])

    def example_scores(self, column: Column) -> Float64Array | None:
        """Returns the scores of a column's examples, (N,) or for entity F1 (N, 3); None where the run has none."""
        return None if self.is_pretraining else self.examples.get(self.split_name(column), {}).get(column.metric)


def collect(folder: Path) -> list[FinishedRun]:
    """Reads all finished runs below a folder, by name.

    A results.json without `study` belongs to no study: it fills no table entry.

    Raises:
        UserError: there is no such folder, or two runs fill a table entry with one seed.
    """
    require(folder.is_dir(), f"--runs_dir {folder}: no such folder; name one with finished runs below it")
    runs = [_read_run(folder, path) for path in sorted(folder.rglob(RESULTS))]
    filled: dict[tuple[str, TableEntry, tuple[int, int]], str] = {}
    for run in runs:
        for entry in run.entries:
            other = filled.setdefault((run.size_preset, entry, run.seeds), run.name)
            require(other == run.name, f"{other} and {run.name} both fill {entry} with one seed; remove one of them")
    return runs


def _read_run(folder: Path, path: Path) -> FinishedRun:
    results = read_results(path, needs=("task", "seed"))
    study, examples_file = results.get("study", {}), path.with_name(EXAMPLES_FILE)
    examples = read_json_object(examples_file) if examples_file.exists() else {}
    return FinishedRun(
        path.parent.relative_to(folder).as_posix(),
        results,
        str(study.get("size_preset", "no study")),
        tuple(TableEntry(**entry) for entry in study.get("table_entries", ())),
        study.get("pretraining"),
        study.get("model", {}).get("place"),
        {
            split: {metric: np.array(values, dtype=np.float64) for metric, values in scores.items()}
            for split, scores in examples.items()
        },
    )


# ---------------------------------------------------------------------------------------------------------- conditions


def settings_table(runs: Sequence[FinishedRun]) -> list[tuple[str, str, str]]:
    """Returns rows of (setting, values, what was trained with them), for settings that differ from the default.

    Several values of a setting are those of different rows of the tables.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for run in sorted(runs, key=lambda run: not run.is_pretraining):
        kind = str(run.results["task"]) + (", features" if run.settings.get("feature_based") else "")
        for name, value in {**_facts(run), **named_settings(run)}.items():
            values = found.setdefault((name, kind), [])
            if value not in values:
                values.append(value)
    kinds: dict[tuple[str, str], list[str]] = {}
    for (name, kind), values in found.items():
        kinds.setdefault((name, "; ".join(values)), []).append(kind)
    return sorted((name, values, "; ".join(of)) for (name, values), of in kinds.items())


def _facts(run: FinishedRun) -> dict[str, str]:
    """Returns what results say beside the settings of a run, as text."""
    results, facts = run.results, {"seeds": str(run.results["seed"])}
    if run.is_pretraining:
        data, train = results["data"], results["train"]
        facts["corpus"] = f"{data['counts']['words'] / 1e6:,.1f} M words, vocabulary {data['vocab_size']:,}"
        phases = [f"{p['steps']:,} x {p['batch']} of {p['max_seq_length']}" for p in train["phases"]]
        facts["phases"] = f"{', '.join(phases)} ({train['tokens'] / 1e6:,.1f} M tokens)"
    hardware = results.get("hardware", {})
    facts["hardware"] = f"{hardware.get('processes', 1)} x {hardware.get('processor') or hardware.get('device', '?')}"
    return facts


def named_settings(run: FinishedRun) -> dict[str, str]:
    """Returns the settings that decide a run's numbers and differ from the default, as text.

    A setting that the results lack is younger than the run, which did what is now the default.
    """
    settings = run.settings
    defaults = default_settings(run.results)
    return {
        name: value_text(settings[name])
        for name, default in defaults.items()
        if name in settings
        and (decides_result(name) or name == "mixed_precision")
        and name not in LOCATIONS | _SAID_OTHERWISE
        and settings[name] != (list(default) if isinstance(default, tuple) else default)
    }


def value_text(value: Any) -> str:
    """Returns a setting of results.json as one would write it as a flag."""
    match value:
        case bool() | None:
            return str(value).lower()
        case float():
            return f"{value:g}"
        case list():
            return " ".join(map(value_text, value))
        case _:
            return str(value)


def no_difference(column: Column, runs: Sequence[FinishedRun]) -> str | None:
    """Returns why ours minus the paper's would mean nothing; None: task, split, metric and data agree."""
    reasons = [column.incomparable]
    for run in runs:
        if not run.is_pretraining:
            reasons.append(_scored_differently(column, run))
            rows, published = run.results["train"]["examples"], SPLIT_ROWS[column.task, "train"]
            if rows != published:
                reasons.append(f"ours is fine-tuned on {rows:,} rows, the published set has {published:,}")
    return "; ".join(dict.fromkeys(filter(None, reasons))) or None


def _scored_differently(column: Column, run: FinishedRun) -> str | None:
    split, rows = run.split_name(column), run.split(column)["rows_scored"]
    published = SPLIT_ROWS[column.task, split]
    if split != column.split:
        part = "" if rows == published else f"{rows:,} rows of "
        return f"ours is scored on {part}{split}, the paper on {column.split}"
    return None if rows == published else f"ours is scored on {rows:,} rows, the published set has {published:,}"
