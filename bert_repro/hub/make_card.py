"""recipes/make_card.py: the card of a finished run, made anew from its record."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_repro.configs import CardConfig
from bert_repro.errors import UserError
from bert_repro.hub.card import make_card
from bert_repro.hub.export import write_eval_results
from bert_repro.hub.metadata import find_card_errors
from bert_repro.hub.push import CARD
from bert_repro.results import with_current_names
from bert_repro.tasks import TASKS, Task
from bert_repro.training.totals import training_totals

logger = logging.getLogger("bert_repro")

RESULTS = "results.json"
_OWN_FILES = ("train_file", "validation_file")


def write_card(config: CardConfig) -> Path:
    """Writes the card of a run, from its results.json, its log and the facts given.

    With the folder's own README.md, what the folder claims in `.eval_results` is written anew too: a push sends both.

    Returns:
        The file.

    Raises:
        UserError: the folder has no record, runs that should be the same are not, or a fact given is not as the Hub
            wants it.
    """
    folder = Path(config.folder)
    record = completed_record(folder)
    if "train" not in record:
        raise UserError(
            f"--folder {folder}: its run made no model, it scored others; name the folder of a training run"
        )
    record["data"] = {**_data(record, config.dataset), **_told_of_data(config)}
    facts = {"base_model": config.base_model, "license": config.license}
    record |= {name: value for name, value in facts.items() if value}
    record["runs"] = [_same_run(Path(name), record) for name in config.same_runs]
    name = config.hub_model_id or record.get("settings", {}).get("hub_model_id") or folder.resolve().name
    card = make_card(record, name)
    if errors := find_card_errors(card):
        raise UserError(f"the card would not be right: {errors[0]}")
    path = Path(config.output_file) if config.output_file else folder / CARD
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(card, encoding="utf-8")
    except OSError as error:
        raise UserError(f"--output_file {path}: cannot be written ({error.strerror}); name another") from error
    if path.resolve() == (folder / CARD).resolve():
        write_eval_results(folder, record)
    logger.info("wrote %s", path)
    return path


def completed_record(folder: Path) -> dict[str, Any]:
    """The record of a run with what older versions did not write: what its log sums up to, and what its task reads.

    Raises:
        UserError: there is none.
    """
    record = _read(folder)
    if "train" in record:
        record["train"] = {**training_totals(folder, record), **record["train"]}
    task = TASKS.get(record.get("task", ""))
    if task is not None:
        record["data"] = _known_data(task, record)
        record.setdefault("primary_metric", task.primary_metric)
    return record


def _known_data(task: Task, record: Mapping[str, Any]) -> dict[str, Any]:
    """What is known of a run's data; older versions took one's own files for the task's published data."""
    told = record.get("data", {})
    if told.get("dataset", "") is None:  # what belongs to the task's own data says nothing of other data
        return dict(told)
    if any(record.get("settings", {}).get(name) for name in _OWN_FILES):
        return {"dataset": None}
    return {**task.data_description(), **told}


def _data(record: Mapping[str, Any], dataset: str | None) -> dict[str, Any]:
    """What a record says about its data; of other data than the task's, all that the task does not decide."""
    data = dict(record.get("data", {}))
    if dataset is None:
        return data
    others = ("config", "language", "license") if record.get("task") in TASKS else ("config",)
    kept = {name: value for name, value in data.items() if name not in others}
    return {**kept, "dataset": None if dataset == "none" else dataset}


def _told_of_data(config: CardConfig) -> dict[str, Any]:
    """What is given about the data, beside their id."""
    told = {"language": list(config.language), "license": config.data_license, "note": config.note}
    return {name: value for name, value in told.items() if value}


def _same_run(folder: Path, record: dict[str, Any]) -> dict[str, Any]:
    """Seed and scores of a run that differs from another by its seed alone."""
    other = _read(folder)
    for name in ("task", "settings"):
        mine, yours = _comparable(record.get(name)), _comparable(other.get(name))
        if mine != yours:
            raise UserError(
                f"--same_runs {folder}: its {_difference(name, mine, yours)}; name runs of other seeds only"
            )
    if other.get("seed") == record.get("seed"):
        raise UserError(f"--same_runs {folder}: has the same seed {other.get('seed')}; name runs of other seeds only")
    return {name: other[name] for name in ("seed", "split", "splits", "metrics", "rows_scored") if name in other}


def _comparable(value: Any) -> Any:
    apart = ("seed", "output_dir", "overwrite_output_dir", "resume_from_checkpoint", "save_steps", "logging_steps")
    return {name: item for name, item in value.items() if name not in apart} if isinstance(value, dict) else value


def _difference(name: str, mine: Any, yours: Any) -> str:
    if not (isinstance(mine, dict) and isinstance(yours, dict)):
        return f"{name} is {yours!r}, not {mine!r}"
    key = min(key for key in {*mine, *yours} if mine.get(key) != yours.get(key))
    return f"{key} is {yours.get(key)!r}, not {mine.get(key)!r}"


def _read(folder: Path) -> dict[str, Any]:
    try:
        return dict(with_current_names(json.loads((folder / RESULTS).read_text(encoding="utf-8"))))
    except (OSError, ValueError) as error:
        raise UserError(f"{folder / RESULTS}: cannot be read as a record ({error}); name a finished run") from error
