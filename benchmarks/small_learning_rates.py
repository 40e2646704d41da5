"""The learning rate of small models: scores of GLUE tasks with several rates, for models of several sizes.

    python benchmarks/small_learning_rates.py --models checkpoints/bert-repro-mini --glue_dir glue --output_file r.json

Every model is fine-tuned on the same rows of every task with every rate, and scored on the same rows of the dev set.
The record has each score, the rate that the rule of `bert_repro.finetuning.learning_rate` chooses, and how often it is
better than the default of large models. It supports a rule for few rows and epochs; it is no comparison of models.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import bert_repro
from bert_repro.configs import GlueConfig
from bert_repro.finetuning.learning_rate import rate_for
from bert_repro.models.loading import load_config
from bert_repro.utils.files import write_json

LARGE_MODELS_RATE = 5e-5
TASKS = ("cola", "sst2", "mrpc", "stsb", "qnli", "rte")


def main(arguments: list[str] | None = None) -> None:
    """Fine-tunes the models and writes the record. Scores that the record already has are not measured again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, nargs="+", required=True, help="folders of pre-trained models")
    parser.add_argument("--glue_dir", required=True, help="GLUE's official files")
    parser.add_argument("--tasks", nargs="+", default=TASKS)
    parser.add_argument("--rates", type=float, nargs="+", default=(LARGE_MODELS_RATE, 1e-4, 3e-4))
    parser.add_argument(
        "--bias_correction", action="store_true", help="of Adam; the default is without, as in the paper"
    )
    parser.add_argument("--rows", type=int, default=1000, help="training rows of each task")
    parser.add_argument("--dev_rows", type=int, default=500)
    parser.add_argument("--output_file", type=Path, required=True)
    options = parser.parse_args(arguments)

    record: dict[str, Any] = {"command": " ".join(["python", "benchmarks/small_learning_rates.py", *sys.argv[1:]])}
    scores: list[dict[str, Any]] = []
    if options.output_file.exists():
        scores = json.loads(options.output_file.read_text("utf-8"))["scores"]
    measured = {(entry["model"], entry["task"], entry["learning_rate"], entry["bias_correction"]) for entry in scores}
    for model in options.models:
        for task in options.tasks:
            for rate in options.rates:
                if (model.name, task, rate, options.bias_correction) not in measured:
                    scores.append(measure(model, task, rate, options))
                    # An interrupted benchmark continues here.
                    write_json(options.output_file, {**record, **summary(scores), "scores": scores})
    sys.stdout.write(json.dumps(summary(scores), indent=1) + "\n")


def measure(model: Path, task: str, rate: float, options: argparse.Namespace) -> dict[str, Any]:
    """Fine-tunes a model on a task with a learning rate and returns its score on dev."""
    with tempfile.TemporaryDirectory() as folder:
        found = bert_repro.finetune(
            GlueConfig(
                model_name_or_path=str(model),
                task_name=task,
                data_dir=options.glue_dir,
                do_train=True,
                do_eval=True,
                learning_rate=rate,
                bias_correction=options.bias_correction,
                train_batch_size=32,
                num_train_epochs=3.0,
                max_seq_length=64,
                max_train_samples=options.rows,
                max_eval_samples=options.dev_rows,
                seed=1,
                output_dir=f"{folder}/run",
            )
        )
    shape = load_config(str(model))
    return {
        "model": model.name,
        "hidden_size": shape.hidden_size,
        "layers": shape.num_hidden_layers,
        "task": task,
        "learning_rate": rate,
        "bias_correction": options.bias_correction,
        "metric": found["primary_metric"],
        "score": round(found["metrics"][found["primary_metric"]], 4),
        "rows": found["train"]["examples"],
    }


def summary(scores: list[dict[str, Any]]) -> dict[str, Any]:
    """Compares the rule's rate with that of large models: for each model the tasks on which it is better or worse."""
    by_cell = {}
    for entry in scores:
        by_cell[entry["model"], entry["task"], entry["learning_rate"], entry["bias_correction"]] = entry["score"]
    comparison: dict[str, dict[str, Any]] = {}
    for entry in scores:
        # The rule has the correction, the setting of large models has none.
        rate = rate_for(entry["hidden_size"], LARGE_MODELS_RATE)
        ours = by_cell.get((entry["model"], entry["task"], rate, True))
        theirs = by_cell.get((entry["model"], entry["task"], LARGE_MODELS_RATE, False))
        if ours is None or theirs is None:
            continue
        model = comparison.setdefault(entry["model"], {"rule": rate, "better": [], "equal": [], "worse": []})
        outcome = "better" if ours > theirs else "worse" if ours < theirs else "equal"
        if entry["task"] not in model[outcome]:
            model[outcome].append(entry["task"])
    return {"comparison": comparison}


if __name__ == "__main__":
    main()
