"""Finished runs for the report: their results, their settings, and whether the paper's numbers may be subtracted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bert_repro.configs import LOCATIONS, StudyConfig, decides_result
from bert_repro.errors import UserError, flag
from bert_repro.hub.card import default_settings
from bert_repro.reproduction.paper_results import (
    EXAMPLES_FILE,
    FIGURE_5,
    FIGURE_5_KEY,
    FIGURE_5_ROWS,
    TABLE_KEYS,
    TABLES,
    Column,
    TableEntry,
)
from bert_repro.reproduction.resampling import Float64Array
from bert_repro.results import RunResults, read_results
from bert_repro.tasks import SPLIT_ROWS
from bert_repro.utils.files import RESULTS
from bert_repro.utils.readers import quoted, read_json_object
from bert_repro.utils.schema import conform

# These settings decide a result, but the report shows them in other words (`_facts`) or as rows and columns.
_SHOWN_ELSEWHERE = frozenset({"output_dir", "test_file", "seed", "task_name", "do_train", "max_steps", "phases"})

# A pre-training that predicts anything beyond token frequencies reaches this held-out accuracy on rarer tokens.
_PLATEAU_ACCURACY = 0.01


@dataclass(frozen=True)
class FinishedRun:
    """A finished run.

    Args:
        name: its folder, relative to the folder of all runs.
        results: the content of its results.json.
        size_preset: the size preset of its study; runs of different presets are never put together.
        entries: the table entries that it fills.
        pretraining: name of the pre-training run that it started from.
        place: if it started from a finished model, the position of that model among those of the study.
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
        """The seed of its pre-training and its own."""
        study = self.results.get("study", {})
        return study.get("pretraining_seed") or StudyConfig.pretraining_seed, self.results["seed"]

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings recorded in its results.json."""
        return self.results.get("settings", {})

    @property
    def parameters(self) -> int:
        """Parameters of its model, the head included; 0 if results.json does not say."""
        return int(self.results.get("model", {}).get("parameters", 0))

    @property
    def never_left_the_plateau(self) -> bool:
        """Whether a pre-training predicts nothing but the most frequent tokens, so that it counts as failed."""
        frequency_bins = self.results.get("mlm_breakdown", {}).get("by_frequency", [])
        if len(frequency_bins) < 2:
            return False
        # The last bin contains the most frequent tokens, which even a failed run predicts.
        return all(row["accuracy"] < _PLATEAU_ACCURACY for row in frequency_bins[:-1])

    def split_name(self, column: Column) -> str:
        """Returns the split scored for a column: the column's own, or dev if the test set has no labels."""
        if "metrics" in self.results["splits"].get(column.split, {}):
            return column.split
        return column.split.replace("test", "validation")

    def split(self, column: Column) -> Mapping[str, Any]:
        """Returns its results on the split for a column: `metrics`, `rows_scored`."""
        if self.is_pretraining:
            return self.results
        scored: Mapping[str, Any] = self.results["splits"][self.split_name(column)]
        return scored

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
        """Returns the scores of a column's examples, (N,) or for entity F1 (N, 3); None if the run has none."""
        if self.is_pretraining:
            return None
        return self.examples.get(self.split_name(column), {}).get(column.metric)


def collect(folder: Path) -> list[FinishedRun]:
    """Reads all finished runs below a folder, sorted by name.

    A results.json without `study` belongs to no study: it fills no table entry.

    Raises:
        UserError: there is no such folder, or two runs fill a table entry with one seed.
    """
    if not folder.is_dir():
        raise UserError(
            f"{flag('runs_dir', folder)} is not a folder. Pass a folder with finished runs below it.",
            setting="runs_dir",
        )
    runs = [_read_run(folder, path) for path in sorted(folder.rglob(RESULTS))]

    # Each seed counts once in an entry.
    filled_by: dict[tuple[str, TableEntry, tuple[int, int]], str] = {}
    for run in runs:
        for entry in run.entries:
            other = filled_by.setdefault((run.size_preset, entry, run.seeds), run.name)
            if other != run.name:
                raise UserError(f"{other} and {run.name} both fill {entry} with the same seed. Remove one of them.")
    return runs


def _read_run(folder: Path, path: Path) -> FinishedRun:
    results = read_results(path, needs=("task", "seed"))
    study = results.get("study", {})
    cells = study.get("table_entries", ())
    try:
        run = FinishedRun(
            path.parent.relative_to(folder).as_posix(),
            results,
            str(study.get("size_preset", "no study")),
            tuple(TableEntry(cell["table"], cell["row"], cell["column"]) for cell in cells),
            study.get("pretraining"),
            study.get("model", {}).get("place"),
            _read_examples(path.with_name(EXAMPLES_FILE)),
        )
        if "study" in results:
            _read_everything(run)
    except KeyError as error:
        raise UserError(f"{path}: the field {error} is missing. Make the run again, or remove the file.") from None
    return run


def _read_examples(path: Path) -> dict[str, dict[str, Float64Array]]:
    """Reads the scores of a run's examples; empty if there are none."""
    examples: dict[str, dict[str, Float64Array]] = {}
    if not path.exists():
        return examples
    remedy = "Make the run again, or remove the file."
    content = conform(read_json_object(path), dict[str, dict[str, list[float | list[float]]]], str(path), remedy)
    for split, metrics in content.items():
        examples[split] = {}
        for metric, values in metrics.items():
            try:
                scores = np.array(values, dtype=np.float64)
            except ValueError:
                scores = np.empty(0)
            # One number for each example, two for a correlation, three for entity F1.
            if not len(scores) or scores.shape[1:] not in ((), (2,), (3,)):
                raise UserError(f"{path}: {quoted(metric)} has not one to three numbers for each example. {remedy}")
            examples[split][metric] = scores
    return examples


def _read_everything(run: FinishedRun) -> None:
    """Reads every field that the tables read, so that a missing one is named together with its file.

    Raises:
        KeyError: a field is missing.
        UserError: an entry of Figure 5 is not a number of steps.
    """
    # The text of the settings, and of a pre-training also its data and phases.
    _facts(run)
    for frequency_bin in run.results.get("mlm_breakdown", {}).get("by_frequency", ()):
        _require(frequency_bin, "accuracy")
    if run.place is not None:
        _require(run.results, "model")
        _require(run.results["model"], "num_hidden_layers", "hidden_size")

    # The scores of the table entries, and what decides whether they can be compared with the paper's.
    if not run.is_pretraining:
        _require(run.results, "splits")
    for entry in run.entries:
        column = _column_of(entry)
        if column is None or not run.is_scored(column):
            continue
        _require(run.split(column), "metrics")
        _require(run.split(column)["metrics"], column.metric)
        if not run.is_pretraining:
            _require(run.split(column), "rows_scored")
            # An ensemble is scored without training.
            if "train" in run.results:
                _require(run.results["train"], "examples")


def _require(content: Mapping[str, Any], *names: str) -> None:
    for name in names:
        if name not in content:
            raise KeyError(name)


def _column_of(entry: TableEntry) -> Column | None:
    """Returns the column of a table entry, or None if there is none, so that the entry is never shown."""
    if entry.table == FIGURE_5_KEY:
        if entry.row not in FIGURE_5_ROWS or not entry.column.isdecimal():
            raise UserError(
                f"{quoted(entry.row)} at step {quoted(entry.column)} is not a point of Figure 5. Its curves are: "
                f"{', '.join(FIGURE_5_ROWS)}."
            )
        return FIGURE_5
    if entry.table not in TABLE_KEYS:
        return None
    columns = {column.name: column for column in TABLES[int(entry.table)].columns}
    return columns.get(entry.column)


# --- Under which conditions the runs were made ------------------------------------------------------------------------


def settings_table(runs: Sequence[FinishedRun]) -> list[tuple[str, str, str]]:
    """Returns rows of (setting, values, tasks) for the settings that differ from their default.

    Several values of a setting belong to different rows of the paper's tables.
    """
    # (setting, task) -> its values, in the order in which they are met; pre-training first.
    values_of: dict[tuple[str, str], list[str]] = {}
    for run in sorted(runs, key=lambda run: not run.is_pretraining):
        task = str(run.results["task"])
        if run.settings.get("feature_based"):
            task += ", features"
        for name, value in {**_facts(run), **named_settings(run)}.items():
            values = values_of.setdefault((name, task), [])
            if value not in values:
                values.append(value)

    # Tasks with the same values of a setting share a row.
    tasks_of: dict[tuple[str, str], list[str]] = {}
    for (name, task), values in values_of.items():
        tasks_of.setdefault((name, "; ".join(values)), []).append(task)
    return sorted((name, values, "; ".join(tasks)) for (name, values), tasks in tasks_of.items())


def _facts(run: FinishedRun) -> dict[str, str]:
    """Returns what results.json records of a run besides its settings, as text."""
    results = run.results
    facts = {"seeds": str(results["seed"])}
    if run.is_pretraining:
        data = results["data"]
        train = results["train"]
        facts["corpus"] = f"{data['counts']['words'] / 1e6:,.1f} M words, vocabulary {data['vocab_size']:,}"
        phases = [f"{phase['steps']:,} x {phase['batch']} of {phase['max_seq_length']}" for phase in train["phases"]]
        facts["phases"] = f"{', '.join(phases)} ({train['tokens'] / 1e6:,.1f} M tokens)"
    hardware = results.get("hardware", {})
    device = hardware.get("processor") or hardware.get("device", "?")
    facts["hardware"] = f"{hardware.get('processes', 1)} x {device}"
    return facts


def named_settings(run: FinishedRun) -> dict[str, str]:
    """Returns the settings that decide a run's numbers and differ from the default, as text.

    If results.json lacks a setting, the setting was added after the run, and its default is what the run did.
    """
    named = {}
    for name, default in default_settings(run.results).items():
        if name not in run.settings or name in LOCATIONS | _SHOWN_ELSEWHERE:
            continue
        if not (decides_result(name) or name == "mixed_precision"):
            continue
        stored_default = list(default) if isinstance(default, tuple) else default
        if run.settings[name] != stored_default:
            named[name] = value_text(run.settings[name])
    return named


def value_text(value: Any) -> str:
    """Returns a setting of results.json as it is written on the command line."""
    match value:
        case bool() | None:
            return str(value).lower()
        case float():
            return f"{value:g}"
        case list():
            return " ".join(map(value_text, value))
        case _:
            return str(value)


# --- Whether ours and the paper's may be subtracted -------------------------------------------------------------------


def no_difference(column: Column, runs: Sequence[FinishedRun]) -> str | None:
    """Returns why our score cannot be compared with the paper's, or None if task, split, metric and data match."""
    reasons = [column.incomparable]
    for run in runs:
        if run.is_pretraining:
            continue
        reasons.append(_scored_differently(column, run))
        reasons.append(_trained_differently(column, run))
        # For example an uncased vocabulary on CoNLL-2003, which the paper reads with a cased one.
        reasons += run.results.get("deviations", {}).values()
    distinct = dict.fromkeys(reason for reason in reasons if reason)
    return "; ".join(distinct) or None


def _trained_differently(column: Column, run: FinishedRun) -> str | None:
    """Returns how the training differs from the paper's, or None if it is on the same rows."""
    if "train" not in run.results:
        # Only an ensemble is scored without training.
        return "our ensemble combines fine-tuning seeds, the paper's also different pre-training checkpoints"
    rows = run.results["train"]["examples"]
    published = SPLIT_ROWS[column.task, "train"]
    if rows == published:
        return None
    return f"ours is fine-tuned on {rows:,} rows, the published set has {published:,}"


def _scored_differently(column: Column, run: FinishedRun) -> str | None:
    """Returns how the scored rows differ from the paper's, or None if they are the same."""
    split = run.split_name(column)
    rows = run.split(column)["rows_scored"]
    published = SPLIT_ROWS[column.task, split]
    if split != column.split:
        part = "" if rows == published else f"{rows:,} rows of "
        return f"ours is scored on {part}{split}, the paper on {column.split}"
    if rows == published:
        return None
    return f"ours is scored on {rows:,} rows, the published set has {published:,}"
