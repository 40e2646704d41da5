"""Under which conditions our numbers were made: what differs between the rows of a table, and what all share."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bert_repro.reproduction.agreement import rows_trained
from bert_repro.reproduction.collect import Run
from bert_repro.reproduction.settings import inherited_dropout, named_settings, value_text
from bert_repro.reproduction.tables import Table, parameters

Conditions = dict[str, str]
Facts = dict[str, list[str]]
_MOST_SOURCES = 3
_TUNED = "fine-tuned on "


def table_conditions(table: Table, runs: Mapping[str, Run]) -> tuple[Conditions, dict[str, Conditions]]:
    """The conditions of a table's rows.

    Args:
        table: the table.
        runs: all runs by name, to find the pre-training behind a run.

    Returns:
        What all rows of ours share that have such a condition, and row -> what is its own.
    """
    rows = {row.name: _row_facts(row.runs, runs) for row in table.rows if row.runs}
    shared = _shared(list(rows.values()))
    return _told(shared), {
        row: _gathered(_told({name: [p for p in parts if p not in shared[name]] for name, parts in facts.items()}))
        for row, facts in rows.items()
    }


def _shared(rows: Sequence[Facts]) -> Facts:
    """The parts that every row has which has the condition at all: not every row has every task."""
    shared: Facts = {}
    # Hardware last, though the first row may have no task.
    for name in sorted(dict.fromkeys(name for facts in rows for name in facts), key=lambda name: name == "hardware"):
        first, *others = [facts[name] for facts in rows if name in facts]
        shared[name] = [part for part in first if all(part in other for other in others)]
    return shared


def _told(facts: Facts) -> Conditions:
    return {name: ", ".join(parts) for name, parts in facts.items() if parts}


def _gathered(conditions: Conditions) -> Conditions:
    """What is the same of several tasks in one line."""
    tasks: dict[str, list[str]] = {}
    for name, text in conditions.items():
        if name.startswith(_TUNED):
            tasks.setdefault(text, []).append(name.removeprefix(_TUNED))
    others = {name: text for name, text in conditions.items() if not name.startswith(_TUNED)}
    return others | {_TUNED + "; ".join(names): text for text, names in tasks.items()}


def _row_facts(runs: Sequence[Run], all_runs: Mapping[str, Run]) -> Facts:
    starting = [start for start in (all_runs.get(name) for name in _starts(runs)) if start]
    found: Facts = {
        "model": [_join(_model(run) for run in runs)],
        "pre-training": _united(map(_pretraining, starting)) or [_elsewhere(runs)],
        "pre-training data": [_join(map(_corpus, starting))],
    }
    checkpoints = sorted({run.record["study"]["checkpoint_step"] for run in runs if _checkpoint(run)})
    found["checkpoints"] = [", ".join(f"{step:,}" for step in checkpoints)]
    tuned = [run for run in runs if not run.pretrains]
    for task in dict.fromkeys(map(_task, tuned)):
        of_task = [run for run in tuned if _task(run) == task]
        found[_TUNED + task] = _united(_finetuning(run, all_runs.get(run.pretraining or "")) for run in of_task)
    found["hardware"] = [_join(_hardware(run) for run in [*starting, *runs])]
    return {name: list(filter(None, parts)) for name, parts in found.items() if any(parts)}


def _starts(runs: Sequence[Run]) -> list[str]:
    """Names of the pre-training runs behind a row."""
    return sorted({name for run in runs if (name := run.name if run.pretrains else run.pretraining)})


def _elsewhere(runs: Sequence[Run]) -> str:
    """What is known of a pre-training that left no record here."""
    models = [run.record.get("settings", {}).get("model_name_or_path") for run in runs]
    return ": ".join(filter(None, ("not in this report", _join(value_text(model) for model in models if model))))


def _united(lists: Iterable[list[str]]) -> list[str]:
    """All parts, each once."""
    return list(dict.fromkeys(part for parts in lists for part in parts))


def _join(texts: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(text for text in texts if text))


def _checkpoint(run: Run) -> int | None:
    step: int | None = run.record.get("study", {}).get("checkpoint_step")
    return step


def _task(run: Run) -> str:
    """Its task, and the features it takes where the encoder is frozen."""
    features = run.record.get("settings", {}).get("feature_based")
    return f"{run.record['task']}, features" if features else str(run.record["task"])


def _model(run: Run) -> str:
    model = run.record.get("model", {})
    if "num_hidden_layers" not in model:
        return ""
    shape = "/".join(str(model[name]) for name in ("num_hidden_layers", "hidden_size", "num_attention_heads"))
    return f"{shape} (layers/hidden/heads)"


def _pretraining(run: Run) -> list[str]:
    train = run.record.get("train", {})
    parts = [f"{parameters(run) / 1e6:.1f} M parameters"]
    if "steps" in train:
        parts.append(f"{train['steps']:,} steps")
    if "tokens" in train:
        parts.append(f"{train['tokens'] / 1e6:,.1f} M tokens")
    parts += map(_phase, train.get("phases", []))
    return parts + _rate_and_settings(run)


def _phase(phase: Mapping[str, Any]) -> str:
    most = phase.get("max_predictions_per_seq")
    told = f"{phase['steps']:,} x {phase['batch']} sequences of {phase['max_seq_length']}"
    return f"{told} with at most {most} predicted" if most else told


def _rate_and_settings(run: Run) -> list[str]:
    rate = run.record.get("settings", {}).get("learning_rate")
    named = [f"{name} {value}" for name, value in named_settings(run).items()]
    return named if rate is None else [f"rate {rate:g}", *named]


def _corpus(run: Run) -> str:
    data = run.record.get("data", {})
    if "counts" not in data:
        return ""
    counts = data["counts"]
    names = data.get("sources", [])
    sources = ", ".join(names) if len(names) <= _MOST_SOURCES else f"{len(names)} files, {names[0]} to {names[-1]}"
    size = f"{counts['documents']:,} documents, {counts['words'] / 1e6:,.1f} M words, vocabulary {data['vocab_size']:,}"
    return f"{size}: {sources}"


def _finetuning(run: Run, start: Run | None) -> list[str]:
    train, settings = run.record.get("train", {}), run.record.get("settings", {})
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
        f"{split['rows_scored']:,} ({name})" for name, split in run.record["splits"].items() if "rows_scored" in split
    ]
    return [*parts, *_rate_and_settings(run), inherited_dropout(run, start), "scored on " + ", ".join(scored)]


def _hardware(run: Run) -> str:
    hardware = run.record.get("hardware", {})
    if not hardware:
        return ""
    device = hardware.get("device", "")
    name = hardware.get("processor", "") if device == "cpu" else device
    return f"{hardware.get('processes', 1)} x {name}, {hardware.get('cpu_threads', 1)} thread(s)"
