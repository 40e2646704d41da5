"""Made-up runs as `run_study.py` leaves them, with scores that are known."""

import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_repro.reproduction.paper_results import TABLES
from bert_repro.tasks.data import SPLIT_ROWS

SEEDS = (1, 2, 3)
SHAPE = {"num_hidden_layers": 2, "hidden_size": 128, "num_attention_heads": 4, "parameters": 1_500_000}
HARDWARE = {"device": "cpu", "processor": "Some Processor", "cores": 2, "cpu_threads": 1, "processes": 1}


def entry(table: Any, row: str, column: Any) -> dict[str, Any]:
    return {"table": str(table), "row": row, "column": str(column)}


def write(folder: Path, results: dict[str, Any], **files: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in {"results": results, **files}.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


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
    scored = {
        "metrics": {metric: float(answers.mean())},
        "rows_scored": rows,
        "degenerate": changes.pop("degenerate", False),
    }
    study = {"table_entries": list(entries), "size_preset": changes.pop("size_preset", "trial")}
    study |= {"model": {"place": changes.pop("place")}} if "place" in changes else {}
    study |= {"pretraining": changes.pop("pretraining", None), "checkpoint_step": changes.pop("step", None)}
    results = {
        "task": task,
        "splits": {split: scored},
        "train": {"examples": trained, "rows": trained, "dropped": 0, "steps": 300, "batch": 32},
        "settings": {"learning_rate": 3e-4, "max_seq_length": 128, "max_train_samples": None},
        "seed": seed,
        "hardware": HARDWARE,
        "model": changes.pop("model", SHAPE),
        "study": study,
        **changes,
    }
    files = {"examples": {split: {metric: scores}}} if examples else {}
    return write(root / name, results, **files)


def row(
    root: Path, entries: Sequence[dict[str, Any]], right: float, spread: float = 0.01, **changes: Any
) -> list[Path]:
    """A run for each seed; `spread` apart."""
    shifts = (0.0, -spread, spread)
    return [
        finetuning(root, entries, right + shift, seed=seed, **changes)
        for seed, shift in zip(SEEDS, shifts, strict=True)
    ]


def pretraining(
    root: Path, name: str, entries: Sequence[dict[str, Any]] = (), perplexity: float = 66.7, **settings: Any
) -> str:
    """A pre-training run; returns its name."""
    kind = "lm" if settings.get("left_to_right") else "mlm"
    shift = zlib.crc32(name.encode()) % 100 / 200
    breakdown = {"by_frequency": [{"predictions": 10, "accuracy": n / 10 * (1 - shift)} for n in range(7)]}
    layers = settings.pop("num_hidden_layers", SHAPE["num_hidden_layers"])
    results = {
        "task": "pre-training",
        "metrics": {f"{kind}_loss": 4.2, f"{kind}_perplexity": perplexity},
        "rows_scored": 512,
        "mlm_breakdown": breakdown,
        "data": {
            "sources": [f"corpus-{number:02d}.jsonl.xz" for number in range(10)],
            "counts": {"documents": 29_361, "words": 82_000_000},
            "vocab_size": 8000,
        },
        "train": {
            "steps": 2000,
            "tokens": 7_600_000,
            "phases": [{"steps": 2000, "batch": 32, "max_seq_length": 128}],
        },
        "seed": 42,
        "settings": {
            "next_sentence_prediction": True,
            "mask_replace_prob": 0.8,
            "random_replace_prob": 0.1,
            **settings,
        },
        "hardware": HARDWARE,
        "model": {**SHAPE, "num_hidden_layers": layers},
        "study": {"table_entries": list(entries), "size_preset": "trial", "pretraining": name, "checkpoint_step": None},
    }
    write(root / name, results)
    return name


def trial(root: Path) -> Path:
    """A study like the trial preset: Tables 5 to 8 and Figure 5, some effects there, some not."""
    base = pretraining(root, "pretraining-base", [entry("6", "2-128-4", "LM perplexity")])
    no_nsp = pretraining(root, "pretraining-no-nsp", next_sentence_prediction=False)
    ltr = pretraining(root, "pretraining-ltr", next_sentence_prediction=False, left_to_right=True)
    starts = dict(zip(TABLES[5].rows, (base, no_nsp, ltr, ltr), strict=True))
    gaps = dict(zip(TABLES[5].rows, (0.0, 0.0, -0.06, -0.05), strict=True))
    for name, start in starts.items():
        for column in TABLES[5].columns:
            rows, trained = {"mnli": (1000, 3000), "qnli": (800, 3000), "squad": (600, 1500)}.get(
                column.task, (None, None)
            )
            entries = [entry("5", name, column.name)]
            if name == "BERT-base" and column.task == "mnli":
                entries.append(entry("8", "80/10/10", "MNLI"))
            row(
                root, entries, 0.62 + gaps[name], task=column.task, split=column.split, metric=column.metric, rows=rows,
                trained=trained, pretraining=start, degenerate=name == "No NSP" and column.task == "mrpc",
            )  # fmt: skip
    for size, share, layers in (("2-128-4", 0.61, 2), ("4-128-4", 0.66, 4)):
        model = {**SHAPE, "num_hidden_layers": layers, "parameters": 1_000_000 * layers}
        start = base
        if layers != 2:
            entries = [entry("6", size, "LM perplexity")]
            start = pretraining(root, f"pretraining-{size}", entries, perplexity=61.5, num_hidden_layers=layers)
        for column in TABLES[6].columns[1:]:
            row(
                root,
                [entry("6", size, column.name)],
                share,
                rows=400,
                task=column.task,
                split=column.split,
                pretraining=start,
                model=model,
            )
    for number, name in enumerate(name for name in TABLES[7].rows if name not in ("ELMo", "CVT", "CSE", "BERT-large")):
        entries = [entry("7", name, "dev")]
        if name == "Concat last four hidden":
            entries.append(entry("8", "80/10/10", "NER feature-based"))
        row(
            root, entries, 0.60 + 0.01 * number, task="conll2003", split="validation", metric="entity_f1", rows=1000,
            pretraining=base, settings={"feature_based": name},
        )  # fmt: skip
    for mix in list(TABLES[8].rows)[1:]:
        masks, same, random = (int(share) / 100 for share in mix.split("/"))
        start = pretraining(
            root, f"pretraining-{mix.replace('/', '-')}", mask_replace_prob=masks, random_replace_prob=random
        )
        row(root, [entry("8", mix, "MNLI")], 0.6 + 0.02 * same, rows=1000, trained=3000, pretraining=start)
    for number, step in enumerate((400, 800, 1200, 1600, 2000)):
        for name, share in (("MLM", 0.5 + 0.03 * number), ("LTR", 0.5 + 0.015 * number)):
            row(root, [entry("figure5", name, step)], share, rows=1000, trained=3000, pretraining=base, step=step)
    return root
