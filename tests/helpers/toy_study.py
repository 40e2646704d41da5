"""A study whose runs take a moment and learn nothing."""

import hashlib
import json
import time
from pathlib import Path
from typing import Any

from bert_repro.configs import PretrainingConfig
from bert_repro.reproduction import runner
from bert_repro.tasks import TASKS


class ToyRun:
    """Replaces the recipes: writes what a run leaves, with a score that its settings decide, and logs itself."""

    def __init__(self, log: Path, seconds: float) -> None:
        self.log, self.seconds = log, seconds

    def __call__(self, config: Any) -> None:
        folder = Path(config.output_dir)
        self._say(f"begin {folder.name}")
        time.sleep(self.seconds)
        name = folder.name + Path(getattr(config, "model_name_or_path", None) or "").name
        score = int(hashlib.sha256(name.encode()).hexdigest()[:4], 16) / 65536
        settings = {"output_dir": str(folder), "seed": config.seed}
        results = {"settings": settings, "seed": config.seed, **scored(config, score)}
        pretrains = isinstance(config, PretrainingConfig)
        last = (config.max_steps or sum(phase.steps for phase in config.phases)) if pretrains else 0
        steps = range(config.save_steps, last + 1, config.save_steps) if pretrains else ()
        for place in (folder, *(folder / "checkpoints" / f"step-{step}" for step in steps)):
            place.mkdir(parents=True, exist_ok=True)
            (place / "model.safetensors").write_bytes(b"weights")
        (folder / "results.json").write_text(json.dumps(results))
        if getattr(config, "do_predict", False):
            write_test_predictions(folder, TASKS[config.task_name])
        self._say(f"end {folder.name}")

    def _say(self, line: str) -> None:
        with self.log.open("a") as file:
            file.write(line + "\n")


def scored(config: Any, score: float) -> dict[str, Any]:
    """Task and scores as a run records them: the same score in every metric of every split."""
    if isinstance(config, PretrainingConfig):
        metrics = {"lm_perplexity" if config.left_to_right else "mlm_perplexity": 100 * score}
        about = {"data": {"counts": {"words": 8}, "vocab_size": 8}, "train": {"tokens": 8, "phases": []}}
        return {"task": "pre-training", "metrics": metrics, "rows_scored": 8, **about}
    task = TASKS[config.task_name]
    metrics = dict.fromkeys(task.metrics, score)
    splits = (*task.eval_splits, *(task.predict_splits if config.do_predict else ()))
    found = {split: {"metrics": metrics, "rows_scored": 8, "degenerate": False} for split in splits}
    return {"task": task.name, "metrics": metrics, "splits": found, "train": {"examples": 8}}


def write_test_predictions(folder: Path, task: Any) -> None:
    """One prediction for every row of the task's official test sets; not for CoNLL-2003, which has labels."""
    for split in task.predict_splits:
        prediction = "2.5" if getattr(task, "number_range", None) else task.label_names[0]
        rows = "".join(f"{row}\t{prediction}\n" for row in range(task.split_rows[split]))
        (folder / f"predictions.{split}.tsv").write_text(f"index\tprediction\n{rows}")


def install(log: Path, seconds: float = 0.0) -> None:
    """Makes the runner run toys."""
    runner.start_run = ToyRun(log, seconds)
    runner.example_scores = lambda config: {}
    runner.corpus_fingerprint = lambda corpus: "toy corpus"
