"""Under which conditions our numbers were made, and whether one may subtract the paper's from them.

Three questions about finished runs: which of their settings decide their numbers and are not the recipe's default; what
the rows of a table share and what is a row's own; and whether task, split, metric and data agree with the paper's.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import PurePath
from typing import Any

from bert_repro.configs import Config, GlueConfig, NerConfig, PretrainingConfig, SquadConfig, SwagConfig
from bert_repro.paper_results import SPLIT_ROWS, Column
from bert_repro.reproduction.collect import FinishedRun

Conditions = dict[str, str]

_CONFIGS: Mapping[str, type[Config]] = {
    "pre-training": PretrainingConfig,
    "swag": SwagConfig,
    "conll2003": NerConfig,
    "squad": SquadConfig,
    "squad_v2": SquadConfig,
}
"""Whose defaults a run's settings had; all other tasks are GLUE's."""

FOLDERS = frozenset({
    "output_dir", "overwrite_output_dir", "corpus", "data_dir", "tokenizer_name", "feature_cache_dir", "test_file",
    "resume_from_checkpoint", "report_to", "run_name", "project", "push_to_hub", "hub_model_id", "hub_private_repo",
    "hub_strategy", "pooling",
})  # fmt: skip
SAME_RESULTS = frozenset({
    "per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps", "packing",
    "attn_implementation", "gradient_checkpointing", "fsdp", "torch_compile", "static_shapes", "deterministic",
    "dataloader_num_workers", "dataloader_prefetch_factor", "dataloader_pin_memory", "logging_steps", "eval_steps",
    "save_steps", "save_total_limit", "allow_changed_settings", "sweep_keep_models", "dry_run", "tflops", "device_name",
})  # fmt: skip
NAMED_OTHERWISE = frozenset({
    "seed", "task_name", "do_train", "do_eval", "do_predict", "learning_rate", "train_batch_size", "max_steps",
    "max_seq_length", "phases", "max_train_samples", "max_eval_samples", "num_hidden_layers", "hidden_size",
    "num_attention_heads",
})  # fmt: skip
NOT_NAMED = FOLDERS | SAME_RESULTS | NAMED_OTHERWISE
"""Where a run reads and writes, what changes no number beyond rounding, and what the conditions say in other words."""

DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob")

_WINDOWED = ("squad", "squad_v2", "conll2003")  # their inputs, which all results count, are not their rows
_CUSTOM_FILES = ("train_file", "validation_file")
_MAX_SOURCES = 3
_TASK_PREFIX = "fine-tuned on "
_Facts = dict[str, list[str]]  # condition -> its parts


def row_conditions(
    rows: Mapping[str, Sequence[FinishedRun]], all_runs: Mapping[str, FinishedRun]
) -> tuple[Conditions, dict[str, Conditions]]:
    """Returns what all rows of a table share, and row -> what is its own.

    A condition is shared if it is that of every row which has such a condition: not every row has every task.

    Args:
        rows: row -> our runs behind it.
        all_runs: all runs by name, to find the pre-training behind a run.
    """
    facts = {row: _row_facts(runs, all_runs) for row, runs in rows.items() if runs}
    shared = _shared(list(facts.values()))
    return _joined(shared), {
        row: _merge_equal_tasks(
            _joined({name: [part for part in parts if part not in shared[name]] for name, parts in found.items()})
        )
        for row, found in facts.items()
    }


def _shared(rows: Sequence[_Facts]) -> _Facts:
    shared: _Facts = {}
    # Hardware last, though the first row may have no task.
    for name in sorted(dict.fromkeys(name for facts in rows for name in facts), key=lambda name: name == "hardware"):
        first, *others = [facts[name] for facts in rows if name in facts]
        shared[name] = [part for part in first if all(part in other for other in others)]
    return shared


def _joined(facts: _Facts) -> Conditions:
    return {name: ", ".join(parts) for name, parts in facts.items() if parts}


def _merge_equal_tasks(conditions: Conditions) -> Conditions:
    """Puts what is equal for several tasks into one line."""
    tasks: dict[str, list[str]] = {}
    for name, text in conditions.items():
        if name.startswith(_TASK_PREFIX):
            tasks.setdefault(text, []).append(name.removeprefix(_TASK_PREFIX))
    others = {name: text for name, text in conditions.items() if not name.startswith(_TASK_PREFIX)}
    return others | {_TASK_PREFIX + "; ".join(names): text for text, names in tasks.items()}


def _row_facts(runs: Sequence[FinishedRun], all_runs: Mapping[str, FinishedRun]) -> _Facts:
    starting = [start for start in (all_runs.get(name) for name in _starts(runs)) if start]
    found: _Facts = {
        "model": [_join(_model(run) for run in runs)],
        "pre-training": _united(map(_pretraining, starting)) or [_elsewhere(runs)],
        "pre-training data": [_join(map(_corpus, starting))],
    }
    checkpoints = sorted({run.results["study"]["checkpoint_step"] for run in runs if _checkpoint(run)})
    found["checkpoints"] = [", ".join(f"{step:,}" for step in checkpoints)]
    tuned = [run for run in runs if not run.is_pretraining]
    for task in dict.fromkeys(map(_task, tuned)):
        of_task = [run for run in tuned if _task(run) == task]
        found[_TASK_PREFIX + task] = _united(_finetuning(run, all_runs.get(run.pretraining or "")) for run in of_task)
    found["hardware"] = [_join(_hardware(run) for run in [*starting, *runs])]
    return {name: list(filter(None, parts)) for name, parts in found.items() if any(parts)}


def _starts(runs: Sequence[FinishedRun]) -> list[str]:
    """Returns the names of the pre-training runs behind a row."""
    return sorted({name for run in runs if (name := run.name if run.is_pretraining else run.pretraining)})


def _elsewhere(runs: Sequence[FinishedRun]) -> str:
    """Returns what is known of a pre-training that left no results here."""
    models = [run.settings.get("model_name_or_path") for run in runs]
    return ": ".join(filter(None, ("not in this report", _join(value_text(model) for model in models if model))))


def _united(lists: Iterable[list[str]]) -> list[str]:
    """Returns all parts, each once."""
    return list(dict.fromkeys(part for parts in lists for part in parts))


def _join(texts: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(text for text in texts if text))


def _checkpoint(run: FinishedRun) -> int | None:
    step: int | None = run.results.get("study", {}).get("checkpoint_step")
    return step


def _task(run: FinishedRun) -> str:
    """Returns its task, and the features it takes where the encoder is frozen."""
    features = run.settings.get("feature_based")
    return f"{run.results['task']}, features" if features else str(run.results["task"])


def _model(run: FinishedRun) -> str:
    model = run.results.get("model", {})
    if "num_hidden_layers" not in model:
        return ""
    shape = "/".join(str(model[name]) for name in ("num_hidden_layers", "hidden_size", "num_attention_heads"))
    return f"{shape} (layers/hidden/heads)"


def _pretraining(run: FinishedRun) -> list[str]:
    train = run.results.get("train", {})
    parts = [f"{run.parameters / 1e6:.1f} M parameters"]
    if "steps" in train:
        parts.append(f"{train['steps']:,} steps")
    if "tokens" in train:
        parts.append(f"{train['tokens'] / 1e6:,.1f} M tokens")
    parts += map(_phase, train.get("phases", []))
    return parts + _named(run)


def _phase(phase: Mapping[str, Any]) -> str:
    most = phase.get("max_predictions_per_seq")
    text = f"{phase['steps']:,} x {phase['batch']} sequences of {phase['max_seq_length']}"
    return f"{text} with at most {most} predicted" if most else text


def _named(run: FinishedRun) -> list[str]:
    learning_rate = run.settings.get("learning_rate")
    named = [f"{name} {value}" for name, value in named_settings(run).items()]
    return named if learning_rate is None else [f"learning rate {learning_rate:g}", *named]


def _corpus(run: FinishedRun) -> str:
    data = run.results.get("data", {})
    if "counts" not in data:
        return ""
    counts = data["counts"]
    names = data.get("sources", [])
    sources = ", ".join(names) if len(names) <= _MAX_SOURCES else f"{len(names)} files, {names[0]} to {names[-1]}"
    size = f"{counts['documents']:,} documents, {counts['words'] / 1e6:,.1f} M words, vocabulary {data['vocab_size']:,}"
    return f"{size}: {sources}"


def _finetuning(run: FinishedRun, start: FinishedRun | None) -> list[str]:
    train, settings = run.results.get("train", {}), run.settings
    parts = []
    rows = rows_trained(run)
    if rows is not None:
        parts.append(f"{rows:,} rows")
    elif "rows" in train:
        parts.append(f"{train['rows']:,} inputs")
    if "steps" in train and "batch" in train:
        parts.append(f"{train['steps']:,} steps of {train['batch']}")
    if "max_seq_length" in settings:
        parts.append(f"length {settings['max_seq_length']}")
    scored = [
        f"{split['rows_scored']:,} ({name})" for name, split in run.results["splits"].items() if "rows_scored" in split
    ]
    return [*parts, *_named(run), inherited_dropout(run, start), "scored on " + ", ".join(scored)]


def _hardware(run: FinishedRun) -> str:
    hardware = run.results.get("hardware", {})
    if not hardware:
        return ""
    device = hardware.get("device", "")
    name = hardware.get("processor", "") if device == "cpu" else device
    return f"{hardware.get('processes', 1)} x {name}, {hardware.get('cpu_threads', 1)} thread(s)"


def named_settings(run: FinishedRun) -> dict[str, str]:
    """Returns the settings that decide a run's numbers and differ from the default, as text.

    A setting that the results lack is younger than the run, which did what is now the default.
    """
    config = _CONFIGS.get(run.results["task"], GlueConfig)
    settings, defaults = run.settings, _defaults(config)
    # What fine-tuning starts from is described by its pre-training.
    left_out = NOT_NAMED if run.is_pretraining else NOT_NAMED | {"model_name_or_path"}
    return {
        name: value_text(settings[name])
        for name, default in defaults.items()
        if name in settings and name not in left_out and _plain(settings[name]) != _plain(default)
    }


def inherited_dropout(run: FinishedRun, start: FinishedRun | None) -> str:
    """Returns the dropout of a fine-tuning run, which it has from its pre-trained model; empty for the default."""
    model = run.results.get("model", {})
    known = model if DROPOUTS[0] in model else start.settings if start else {}
    defaults = _defaults(PretrainingConfig)
    if all(known.get(name, defaults[name]) == defaults[name] for name in DROPOUTS):
        return ""
    return "as pre-trained: " + ", ".join(f"{name} {value_text(known.get(name, defaults[name]))}" for name in DROPOUTS)


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
            path = PurePath(value)  # org/name is an id on the Hub
            return path.name if path.is_absolute() or len(path.parts) > 2 else value
        case _:
            return str(value)


def _plain(value: Any) -> Any:
    """Returns a value as JSON gives it back."""
    return list(value) if isinstance(value, tuple) else value


def _defaults(config: type[Config]) -> dict[str, Any]:
    return {item.name: item.default for item in fields(config)}


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
    rows, official = run.split(column)["rows_scored"], SPLIT_ROWS.get((column.task, column.split))
    if official is None:
        return f"how many rows {column.task}'s {column.split} set has is not published"
    if rows != official:
        return f"ours is scored on {rows:,} rows, the published set has {official:,}"
    return None


def _trained_differently(column: Column, run: FinishedRun) -> str | None:
    official = SPLIT_ROWS.get((column.task, "train"))
    if official is None:
        return f"how many rows {column.task}'s train set has is not published"
    settings = run.settings
    if own := [name for name in _CUSTOM_FILES if settings.get(name)]:
        return f"ours read custom files ({', '.join(own)})"
    rows = rows_trained(run)
    if rows is None:
        return "the results do not say what ours was fine-tuned on"
    return None if rows == official else f"ours is fine-tuned on {rows:,} rows, the published set has {official:,}"
