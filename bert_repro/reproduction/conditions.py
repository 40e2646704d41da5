"""Under which conditions our numbers were made, and whether one may subtract the paper's from them."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import PurePath
from typing import Any

from bert_repro.configs import (
    LOCATIONS,
    Config,
    GlueConfig,
    NerConfig,
    PretrainingConfig,
    SquadConfig,
    SwagConfig,
    decides_result,
)
from bert_repro.reproduction.collect import FinishedRun
from bert_repro.reproduction.paper_results import Column
from bert_repro.tasks.data import SPLIT_ROWS

_CONFIGS: Mapping[str, type[Config]] = {
    "pre-training": PretrainingConfig,
    "swag": SwagConfig,
    "conll2003": NerConfig,
    "squad": SquadConfig,
    "squad_v2": SquadConfig,
}
"""Whose defaults a run's settings had; all other tasks are GLUE's."""
_SAID_OTHERWISE = frozenset({
    "output_dir", "test_file", "seed", "task_name", "do_train", "train_batch_size", "max_steps", "phases",
})  # fmt: skip
"""Settings that decide a result and that results say in other words, in `_facts`."""
_WINDOWED = ("squad", "squad_v2", "conll2003")  # their inputs, which all results count, are not their rows


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
    """Returns what was trained on what, as text."""
    results = run.results
    train, model, data = results.get("train", {}), results.get("model", {}), results.get("data", {})
    shape = [str(model.get(name, "?")) for name in ("num_hidden_layers", "hidden_size", "num_attention_heads")]
    facts = {"layers/hidden/heads": "/".join(shape)}
    if run.is_pretraining:
        if "counts" in data:
            facts["corpus"] = f"{data['counts']['words'] / 1e6:,.1f} M words, vocabulary {data['vocab_size']:,}"
        if "tokens" in train:
            facts["tokens"] = f"{train['tokens'] / 1e6:,.1f} M"
        phases = train.get("phases", ())
        facts["phases"] = ", ".join(f"{p['steps']:,} x {p['batch']} of {p['max_seq_length']}" for p in phases)
    else:
        if (rows := rows_trained(run)) is not None:
            facts["training rows"] = f"{rows:,}"
        if "batch" in train:
            facts["steps"] = f"{train['steps']:,} of {train['batch']}"
        scored = [(name, split["rows_scored"]) for name, split in results["splits"].items() if "rows_scored" in split]
        facts["scored on"] = ", ".join(f"{rows:,} ({name})" for name, rows in scored)
    hardware = results.get("hardware", {})
    facts["hardware"] = f"{hardware.get('processes', 1)} x {hardware.get('processor') or hardware.get('device', '?')}"
    return facts


def named_settings(run: FinishedRun) -> dict[str, str]:
    """Returns the settings that decide a run's numbers and differ from the default, as text.

    A setting that the results lack is younger than the run, which did what is now the default.
    """
    settings = run.settings
    defaults = {item.name: item.default for item in fields(_CONFIGS.get(run.results["task"], GlueConfig))}
    return {
        name: value_text(settings[name])
        for name, default in defaults.items()
        if name in settings
        and (decides_result(name) or name == "mixed_precision")
        and name not in LOCATIONS | _SAID_OTHERWISE
        and settings[name] != (list(default) if isinstance(default, tuple) else default)
    }


def value_text(value: Any) -> str:
    """Returns a setting as one would write it as a flag; of a path its last part."""
    match value:
        case bool() | None:
            return str(value).lower()
        case float():
            return f"{value:g}"
        case list() | tuple():
            return " ".join(map(value_text, value))
        case str():
            return PurePath(value).name if PurePath(value).is_absolute() else value
        case _:
            return str(value)


def no_difference(column: Column, runs: Sequence[FinishedRun]) -> str | None:
    """Returns why ours minus the paper's would mean nothing; None: task, split, metric and data agree.

    What the results do not say is a reason too.
    """
    if column.incomparable:
        return column.incomparable
    reasons = (
        reason for run in runs for reason in (_scored_differently(column, run), _trained_differently(column, run))
    )
    return next(filter(None, reasons), None)


def rows_trained(run: FinishedRun) -> int | None:
    """Returns the rows of the training set that a fine-tuning run learned from, where its results say so.

    A row is what a training set counts: an example, SQuAD's question, CoNLL-2003's sentence. Results from before
    `examples` was counted have inputs only, so for tasks cut into windows the limit that was asked for is taken.
    """
    train = run.results.get("train", {})
    if "examples" not in train and run.results["task"] in _WINDOWED:
        limit: int | None = run.settings.get("max_train_samples")
        return limit
    rows: int | None = train.get("examples", train.get("rows"))
    return rows


def _scored_differently(column: Column, run: FinishedRun) -> str | None:
    if run.split_name(column) != column.split:
        return f"ours is scored on {run.split_name(column)}, the paper on {column.split}"
    rows, published = run.split(column)["rows_scored"], SPLIT_ROWS.get((column.task, column.split))
    if published is None:
        return f"how many rows {column.task}'s {column.split} set has is not published"
    return None if rows == published else f"ours is scored on {rows:,} rows, the published set has {published:,}"


def _trained_differently(column: Column, run: FinishedRun) -> str | None:
    published = SPLIT_ROWS.get((column.task, "train"))
    if published is None:
        return f"how many rows {column.task}'s train set has is not published"
    if own := [name for name in ("train_file", "validation_file") if run.settings.get(name)]:
        return f"ours read custom files ({', '.join(own)})"
    rows = rows_trained(run)
    if rows is None:
        return "the results do not say what ours was fine-tuned on"
    return None if rows == published else f"ours is fine-tuned on {rows:,} rows, the published set has {published:,}"
