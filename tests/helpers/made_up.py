"""Made-up runs as `run_study.py` leaves them, with scores that are known."""

import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_repro.results import write_results
from bert_repro.tasks import SPLIT_ROWS

SHAPE = {"num_hidden_layers": 2, "hidden_size": 128, "num_attention_heads": 4, "parameters": 1_500_000}
HARDWARE = {"device": "cpu", "processor": "Some Processor", "cores": 2, "cpu_threads": 1, "processes": 1}


def entry(table: Any, row: str, column: Any) -> dict[str, Any]:
    return {"table": str(table), "row": row, "column": str(column)}


def finetuning(
    root: Path,
    entries: Sequence[dict[str, Any]],
    right: float,
    *,
    task: str = "mnli",
    split: str = "validation_matched",
    metric: str = "accuracy",
    seed: int = 1,
    rows: int | None = None,
    trained: int | None = None,
    examples: bool = True,
    **changes: Any,
) -> Path:
    """A fine-tuning run that is right on a share of the examples, the harder ones wrong first but for some noise."""
    rows = SPLIT_ROWS[task, split] if rows is None else rows
    trained = SPLIT_ROWS[task, "train"] if trained is None else trained
    name = f"{task}-{zlib.crc32(json.dumps([entries, seed, changes.get('size_preset')]).encode()):08x}"
    generator = np.random.default_rng([seed, zlib.crc32(name.encode())])
    hardness = np.random.default_rng(0).random(rows) + generator.normal(0, 0.3, rows)
    answers = np.zeros(rows, dtype=int)
    answers[np.argsort(hardness, kind="stable")[: round(right * rows)]] = 1
    scores: list[Any] = [[int(one), 1, 1] for one in answers] if metric == "entity_f1" else answers.tolist()
    scored = {"metrics": {metric: float(answers.mean())}, "rows_scored": rows}
    scored["degenerate"] = changes.pop("degenerate", False)
    study = {"table_entries": list(entries), "size_preset": changes.pop("size_preset", "trial")}
    study |= {"model": {"place": changes.pop("place")}} if "place" in changes else {}
    study |= {"pretraining": changes.pop("pretraining", None), "checkpoint_step": changes.pop("step", None)}
    results = {
        "task": task, "splits": {split: scored}, "seed": seed, "hardware": HARDWARE, "study": study, "model": SHAPE,
        "train": {"examples": trained, "rows": trained, "steps": 300, "batch": 32},
        "settings": {"learning_rate": 3e-4, "max_seq_length": 128, "max_train_samples": None},
    }  # fmt: skip
    results |= changes
    folder = root / name
    write_results(folder, results)
    if examples:
        (folder / "examples.json").write_text(json.dumps({split: {metric: scores}}))
    return folder


def row(root: Path, entries: Sequence[dict[str, Any]], right: float, spread: float = 0.01, **more: Any) -> list[Path]:
    """Runs with the seeds 1 to 3; `spread` apart."""
    shifts = (0.0, -spread, spread)
    return [finetuning(root, entries, right + shift, seed=seed, **more) for seed, shift in enumerate(shifts, 1)]


def pretraining(
    root: Path, name: str, entries: Sequence[dict[str, Any]] = (), perplexity: float = 66.7, **settings: Any
) -> str:
    """A pre-training run; returns its name."""
    kind = "lm" if settings.get("left_to_right") else "mlm"
    shift = zlib.crc32(name.encode()) % 100 / 200
    breakdown = {"by_frequency": [{"predictions": 10, "accuracy": n / 10 * (1 - shift)} for n in range(7)]}
    layers = settings.pop("num_hidden_layers", SHAPE["num_hidden_layers"])
    mix = {"next_sentence_prediction": True, "mask_replace_prob": 0.8, "random_replace_prob": 0.1}
    results = {
        "task": "pre-training", "seed": 42, "hardware": HARDWARE, "settings": mix | settings, "rows_scored": 512,
        "metrics": {f"{kind}_perplexity": perplexity}, "mlm_breakdown": breakdown,
        "data": {"counts": {"documents": 29_361, "words": 82_000_000}, "vocab_size": 8000},
        "train": {"tokens": 7_600_000, "phases": [{"steps": 2000, "batch": 32, "max_seq_length": 128}]},
        "model": {**SHAPE, "num_hidden_layers": layers},
        "study": {"table_entries": list(entries), "size_preset": "trial", "pretraining": name, "checkpoint_step": None},
    }  # fmt: skip
    write_results(root / name, results)
    return name
