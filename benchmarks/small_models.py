"""bert-repro-mini after fine-tuning, next to its untrained encoder, bag of words and published small BERTs.

    python benchmarks/small_models.py
    python benchmarks/small_models.py --glue_dir glue --conll_dir conll2003

prints the tables of README.md and docs/explanations/small_models.md from the stored results; with folders of data it
fits the baselines first, in minutes, and stores their scores. Every results.json below --runs_dir counts: runs of one
model, task and settings are one cell, with mean, standard deviation and number of seeds. Bag of words is logistic
regression (STS-B: ridge regression) on words and word pairs of each text and on the words that both share, fitted to
the task's training set, nothing tuned, or the one that a run ends with where that is better; for tags it is the most
frequent tag of each word.
"""

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from bert_repro.results import read_results
from bert_repro.tasks import SPLIT_ROWS
from bert_repro.tasks import TASKS as ALL_TASKS
from bert_repro.tasks.metric_loader import load_metric
from bert_repro.utils.files import write_json

RUNS = Path(__file__).resolve().parents[1] / "model_cards"
BASELINES = "baselines.json"
TASKS = {
    "conll2003": ("CoNLL-2003, F1", "entity_f1"),
    "stsb": ("STS-B, Spearman", "spearmanr"),
    "qnli": ("QNLI, accuracy", "accuracy"),
    "mnli": ("MNLI-m, accuracy", "accuracy"),
    "sst2": ("SST-2, accuracy", "accuracy"),
    "mrpc": ("MRPC, accuracy", "accuracy"),
    "squad": ("SQuAD v1.1, F1", "f1"),
    "minimal pairs": ("BLiMP, 44 paradigms", "mean_paradigm_accuracy"),
}
"""Title and metric of each task."""
GLUE = ("stsb", "qnli", "mnli", "sst2", "mrpc")
MODELS = {"bert-repro-mini": "bert-repro-mini, 200 M tokens", "untrained": "the same encoder, untrained"}
PUBLISHED = {
    "5-gram model (BLiMP paper)": {"minimal pairs": 0.628},
    "logistic regression (SQuAD paper)": {"squad": 0.51},
    "BERT-Mini, 3.3 B words, all rows (Adam baselines in the M-FAC model cards)": {
        "sst2": 0.855, "mrpc": 0.766, "stsb": 0.826, "qnli": 0.839, "mnli": 0.733,
    },
    "RoBERTa-base, 10 M words, all rows (BabyLM 2023 baseline)": {"sst2": 0.870, "qnli": 0.770, "mnli": 0.732},
    "RoBERTa-base, 100 M words, all rows (BabyLM 2023 baseline)": {"sst2": 0.886, "qnli": 0.823, "mnli": 0.687},
}  # fmt: skip
BASELINE_ROWS = ("bag of words", "most frequent tag of a word", *list(PUBLISHED)[:2])
SAME_RUN = ("learning_rate", "train_batch_size", "num_train_epochs", "bias_correction", "max_seq_length")


def main(arguments: list[str] | None = None) -> None:
    """Writes both tables to the terminal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs_dir", type=Path, default=RUNS, help="folder with the folders of the runs")
    parser.add_argument("--glue_dir", type=Path, help="GLUE's official files: fits bag of words")
    parser.add_argument("--conll_dir", type=Path, help="CoNLL-2003's official files: counts each word's tags")
    options = parser.parse_args(arguments)
    stored = options.runs_dir / BASELINES
    baselines: dict[str, dict[str, float]] = json.loads(stored.read_text("utf-8")) if stored.exists() else {}
    if options.glue_dir:
        tasks = scores_of_runs(options.runs_dir)["training rows"]
        baselines |= {name: bag_of_words(name, options.glue_dir) for name in GLUE if name in tasks}
    if options.conll_dir:
        splits = (task := ALL_TASKS["conll2003"]).load(options.conll_dir, ["train", "validation"])
        scores = task.baselines(splits["train"], splits["validation"])
        baselines["conll2003"] = {name: found["entity_f1"] for name, found in scores.items()}
    if options.glue_dir or options.conll_dir:
        write_json(stored, baselines)
    sys.stdout.write("\n".join(tables(options.runs_dir, baselines)))


def tables(folder: Path, baselines: dict[str, dict[str, float]]) -> tuple[str, str]:
    """Returns the tables of README.md, a row per task, and of docs/explanations/small_models.md, a row per model."""
    cells = scores_of_runs(folder)
    for task, scores in baselines.items():
        for name, score in scores.items():
            cells.setdefault(name, {})[task] = f"{score:.3f}"
    for name, scores in PUBLISHED.items():
        cells[name] = {task: f"{score:.3f}" for task, score in scores.items()}
    tasks = [task for task in TASKS if task in cells["training rows"]]
    columns = [name for name in ("training rows", *MODELS.values()) if name in cells]
    short = [["dev", *columns, "baseline"]]
    for task in tasks:
        baseline = (f"{cells[name][task]}, {name}" for name in BASELINE_ROWS if task in cells.get(name, {}))
        short.append([TASKS[task][0], *(cells[name].get(task, "") for name in columns), next(baseline, "")])
    long = [["dev", *(TASKS[task][0] for task in tasks)]]
    long += [[name, *(scores.get(task, "") for task in tasks)] for name, scores in cells.items()]
    return markdown(short), markdown(long)


def scores_of_runs(folder: Path) -> dict[str, dict[str, str]]:
    """Reads all runs below a folder.

    Returns:
        Row -> task -> text: the rows trained on, and of each model `mean ± standard deviation (seeds)`.
    """
    runs: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for path in sorted(folder.rglob("results.json")):
        results: Any = read_results(path)
        if results.get("task") in TASKS:
            runs[Path(results["settings"]["model_name_or_path"]).name, results["task"]].append(results)
    cells: dict[str, dict[str, str]] = {"training rows": {}} | {MODELS.get(model, model): {} for model, _ in runs}
    for (model, task), same in runs.items():
        settings = {", ".join(f"{name} {run['settings'].get(name)}" for name in SAME_RUN) for run in same}
        if len(settings) > 1:
            raise SystemExit(
                f"{folder}: runs of {task} from {model} with other settings: {'; '.join(sorted(settings))}"
            )
        values = [run["metrics"][TASKS[task][1]] for run in same]
        spread = f" ± {stdev(values):.3f}" if len(values) > 1 else ""
        cells[MODELS.get(model, model)][task] = f"{mean(values):.3f}{spread} ({len(values)})"
        rows, published = same[0].get("train", {}).get("examples", 0), SPLIT_ROWS.get((task, "train"), 0)
        cells["training rows"][task] = (
            "none" if not rows else f"{rows:,} " + ("(all)" if rows == published else f"of {published:,}")
        )
    return cells


def bag_of_words(name: str, folder: Path) -> dict[str, float]:
    """Fits words and word pairs to a task of GLUE; returns the task's metric on its first dev set.

    The score is the better of this model and the one that a run ends with, which reads at most 20,000 rows.
    """
    import numpy as np
    from scipy.sparse import csr_matrix, hstack
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression, Ridge

    task = ALL_TASKS[name]
    splits = task.load(folder, ["train", task.eval_splits[0]])
    train, dev = splits["train"], splits[task.eval_splits[0]]

    def counts(columns: Sequence[str], pairs: bool) -> Any:
        texts = [text for column in columns for text in train[column]]
        return CountVectorizer(binary=True, min_df=2, ngram_range=(1, 1 + pairs)).fit(texts)

    each = [counts([column], pairs=True) for column in task.text_columns]
    both = counts(task.text_columns, pairs=False)

    def features(split: Any) -> Any:
        parts = [words.transform(split[column]) for words, column in zip(each, task.text_columns, strict=True)]
        if len(task.text_columns) == 2:
            first, second = (both.transform(split[column]) for column in task.text_columns)
            shared = first.multiply(second)
            longer = np.maximum(1, np.maximum(first.sum(axis=1), second.sum(axis=1)))
            parts += [shared, csr_matrix(shared.sum(axis=1) / longer)]
        return hstack(parts).tocsr()

    model = Ridge(alpha=10.0) if name == "stsb" else LogisticRegression(max_iter=300)
    predicted = model.fit(features(train), train["label"][:]).predict(features(dev))
    key = TASKS[name][1]
    found = {baseline: scores[key] for baseline, scores in task.baselines(train, dev).items()}
    score = load_metric(name).compute(predictions=predicted, references=dev["label"][:])[key]
    return {"bag of words": max(float(score), found.pop("bag of words"))} | found


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Writes a table; the first row is its head."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "| --- " * len(rows[0]) + "|", *lines[1:]]) + "\n"


if __name__ == "__main__":
    main()
