"""Under which conditions our numbers were made: what differs between the rows of a table, and what all share."""

from collections.abc import Iterable, Mapping, Sequence

from bert_repro.report.agreement import rows_trained
from bert_repro.report.collect import Run
from bert_repro.report.tables import Table, parameters

Conditions = dict[str, str]
_MOST_SOURCES = 3


def table_conditions(table: Table, runs: Mapping[str, Run]) -> tuple[Conditions, dict[str, Conditions]]:
    """The conditions of a table's rows.

    Args:
        table: the table.
        runs: all runs by name, to find the pre-training behind a run.

    Returns:
        What all rows of ours share, and row -> what is its own.
    """
    rows = {row.name: _row_conditions(row.runs, runs) for row in table.rows if row.runs}
    names = list(dict.fromkeys(name for found in rows.values() for name in found))
    shared = {name: next(iter(rows.values()))[name] for name in names if _is_shared(name, list(rows.values()))}
    return shared, {
        row: {name: text for name, text in found.items() if name not in shared} for row, found in rows.items()
    }


def _is_shared(name: str, rows: Sequence[Conditions]) -> bool:
    return len({found.get(name) for found in rows}) == 1


def _row_conditions(runs: Sequence[Run], all_runs: Mapping[str, Run]) -> Conditions:
    starts = {run.name if run.pretrains else run.pretraining for run in runs}
    starting = [all_runs[name] for name in sorted(filter(None, starts)) if name in all_runs]
    found = {
        "model": _join(_model(run) for run in runs),
        "pre-training": _join(map(_pretraining, starting)) or "not in this report",
        "pre-training data": _join(map(_corpus, starting)),
    }
    checkpoints = sorted({run.record["study"]["checkpoint_step"] for run in runs if _checkpoint(run)})
    if checkpoints:
        found["checkpoints"] = ", ".join(f"{step:,}" for step in checkpoints)
    by_task = {_task(run): run for run in runs if not run.pretrains}
    found |= {f"fine-tuned on {task}": _finetuning(run) for task, run in by_task.items()}
    found["hardware"] = _join(_hardware(run) for run in [*starting, *runs])
    return {name: text for name, text in found.items() if text}


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


def _pretraining(run: Run) -> str:
    train = run.record.get("train", {})
    parts = [f"{parameters(run) / 1e6:.1f} M parameters"]
    if "steps" in train:
        parts.append(f"{train['steps']:,} steps")
    if "tokens" in train:
        parts.append(f"{train['tokens'] / 1e6:,.1f} M tokens")
    phases = train.get("phases", [])
    parts += [f"{phase['steps']:,} x {phase['batch']} sequences of {phase['max_seq_length']}" for phase in phases]
    return ", ".join(parts)


def _corpus(run: Run) -> str:
    data = run.record.get("data", {})
    if "counts" not in data:
        return ""
    counts = data["counts"]
    names = data.get("sources", [])
    sources = ", ".join(names) if len(names) <= _MOST_SOURCES else f"{len(names)} files, {names[0]} to {names[-1]}"
    size = f"{counts['documents']:,} documents, {counts['words'] / 1e6:,.1f} M words, vocabulary {data['vocab_size']:,}"
    return f"{size}: {sources}"


def _finetuning(run: Run) -> str:
    train, settings = run.record.get("train", {}), run.record.get("settings", {})
    parts = []
    rows = rows_trained(run)
    if rows is not None:
        parts.append(f"{rows:,} rows")
    elif "rows" in train:
        parts.append(f"{train['rows']:,} inputs")
    if "steps" in train and "batch" in train:
        parts.append(f"{train['steps']:,} steps of {train['batch']}")
    if "learning_rate" in settings:
        parts.append(f"rate {settings['learning_rate']:g}")
    if "max_seq_length" in settings:
        parts.append(f"length {settings['max_seq_length']}")
    scored = [
        f"{split['rows_scored']:,} ({name})" for name, split in run.record["splits"].items() if "rows_scored" in split
    ]
    return ", ".join([*parts, "scored on " + ", ".join(scored)])


def _hardware(run: Run) -> str:
    hardware = run.record.get("hardware", {})
    if not hardware:
        return ""
    device = hardware.get("device", "")
    name = hardware.get("processor", "") if device == "cpu" else device
    return f"{hardware.get('processes', 1)} x {name}, {hardware.get('cpu_threads', 1)} thread(s)"
