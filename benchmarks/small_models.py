"""Fine-tuned runs next to bag of words and published small BERTs, as a table in Markdown.

    python benchmarks/small_models.py --runs_dir runs/mini --glue_dir glue --conll_dir conll2003

Every results.json below --runs_dir counts; runs of the same task, model and settings with other seeds are one row, with
mean and standard deviation. Bag of words is logistic regression (STS-B: ridge regression) on words and word pairs of
each text and on the words that both share, fitted to the task's training set, nothing tuned; for tags it is the most
frequent tag of each word. Minutes on two cores, most of them for MNLI.
"""

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from bert_repro.results import read_results
from bert_repro.tasks import get_task
from bert_repro.tasks.metrics import load_metric

TASKS = {
    "sst2": ("SST-2", "accuracy"),
    "mrpc": ("MRPC", "accuracy"),
    "stsb": ("STS-B", "spearmanr"),
    "qnli": ("QNLI", "accuracy"),
    "mnli": ("MNLI-m", "accuracy"),
    "conll2003": ("CoNLL-2003", "entity_f1"),
    "squad": ("SQuAD v1.1", "f1"),
}
"""Title and metric of a column."""
_METRICS = {"spearmanr": "Spearman", "entity_f1": "F1", "f1": "F1"}
_GLUE = ("sst2", "mrpc", "stsb", "qnli", "mnli")

PUBLISHED = {
    "BERT-Tiny 2/128, 3.3 B words: GLUE test (google-research/bert README)": {
        "sst2": 0.832, "stsb": 0.736, "qnli": 0.815, "mnli": 0.702,
    },
    "BERT-Mini 4/256, 3.3 B words: GLUE test (google-research/bert README)": {
        "sst2": 0.859, "stsb": 0.733, "qnli": 0.841, "mnli": 0.748,
    },
    "BERT-Mini, dev (model cards of the M-FAC fine-tunes)": {"mrpc": 0.766, "mnli": 0.733},
    "RoBERTa-base, 10 M words, dev (BabyLM 2023 baseline)": {"sst2": 0.870, "qnli": 0.770, "mnli": 0.732},
    "RoBERTa-base, 100 M words, dev (BabyLM 2023 baseline)": {"sst2": 0.886, "qnli": 0.823, "mnli": 0.687},
}  # fmt: skip
SAME_RUN = ("learning_rate", "train_batch_size", "num_train_epochs", "bias_correction", "max_seq_length")


def main(arguments: list[str] | None = None) -> None:
    """Writes the table to the terminal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs_dir", type=Path, required=True, help="folder with the folders of the runs")
    parser.add_argument("--glue_dir", type=Path, help="GLUE's official files; without: no bag of words")
    parser.add_argument("--conll_dir", type=Path, help="CoNLL-2003's official files; without: no tag of each word")
    options = parser.parse_args(arguments)
    rows = dict(scores_of_runs(options.runs_dir))
    tasks = {name for scores in rows.values() for name in scores}
    baseline = {}
    if options.glue_dir:
        baseline |= {name: bag_of_words(name, options.glue_dir) for name in _GLUE if name in tasks}
    if options.conll_dir and "conll2003" in tasks:
        baseline["conll2003"] = most_frequent_tags(options.conll_dir)
    rows["bag of words; most frequent tag of a word"] = {name: f"{value:.3f}" for name, value in baseline.items()}
    for title, scores in PUBLISHED.items():
        rows[title] = {name: f"{value:.3f}" for name, value in scores.items()}
    sys.stdout.write("\n".join(table(rows)) + "\n")


def scores_of_runs(folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Yields each model with its scores by task, `mean +- standard deviation (seeds)` where several seeds were run."""
    found: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for path in sorted(folder.rglob("results.json")):
        results = read_results(path)
        if results.get("task") not in TASKS:
            continue
        settings: dict[str, Any] = dict(results["settings"])
        _, metric = TASKS[results["task"]]
        shown = ", ".join(f"{name} {settings[name]}" for name in SAME_RUN)
        model = Path(settings["model_name_or_path"]).name
        found[model, results["task"]][shown].append(results["metrics"][metric])
    models: dict[str, dict[str, str]] = defaultdict(dict)
    for (model, task), by_settings in found.items():
        if len(by_settings) > 1:
            raise SystemExit(f"{folder}: runs of {task} from {model} with other settings: {'; '.join(by_settings)}")
        (values,) = by_settings.values()
        spread = f" ± {stdev(values):.3f} ({len(values)})" if len(values) > 1 else ""
        models[model][task] = f"{mean(values):.3f}{spread}"
    yield from models.items()


def bag_of_words(name: str, folder: Path) -> float:
    """Fits words and word pairs to a task of GLUE; returns the task's metric on its first dev set."""
    import numpy as np
    from scipy.sparse import csr_matrix, hstack
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression, Ridge

    task = get_task(name)
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
    model.fit(features(train), list(train["label"]))
    scores = load_metric(name).compute(predictions=model.predict(features(dev)), references=list(dev["label"]))
    return float(scores[TASKS[name][1]])


def most_frequent_tags(folder: Path) -> float:
    """Gives each word the most frequent tag that CoNLL-2003's training set has for it; returns the F1 on dev."""
    task = get_task("conll2003")
    splits = task.load(folder, ["train", "validation"])
    seen: dict[str, Counter[int]] = defaultdict(Counter)
    for words, tags in zip(splits["train"]["words"], splits["train"]["tags"], strict=True):
        for word, tag in zip(words, tags, strict=True):
            seen[word][tag] += 1
    names: Sequence[str] = task.label_names
    predicted = [
        [names[seen[word].most_common(1)[0][0]] if word in seen else "O" for word in words]
        for words in splits["validation"]["words"]
    ]
    references = [[names[tag] for tag in tags] for tags in splits["validation"]["tags"]]
    scores = load_metric("conll2003").compute(predictions=predicted, references=references)
    return float(scores[TASKS["conll2003"][1]])


def table(rows: dict[str, dict[str, str]]) -> list[str]:
    """Returns the lines of a table in Markdown: a row per model, a column per task."""
    head = [f"{title} {_METRICS.get(metric, metric)}" for title, metric in TASKS.values()]
    lines = ["| dev | " + " | ".join(head) + " |", "| --- " * (len(head) + 1) + "|"]
    lines += [
        f"| {title} | " + " | ".join(scores.get(name, "") for name in TASKS) + " |" for title, scores in rows.items()
    ]
    return lines


if __name__ == "__main__":
    main()
