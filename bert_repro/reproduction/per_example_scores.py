"""What the report needs of a run beside results.json: two small files that hold no text of any data set.

`examples.json` holds a score for every example of each scored split, in the split's order, for paired statistics:

    {"validation": {"accuracy": [1, 0, ...]}}

A score is 0 or 1 for `accuracy` and `exact_match`, a fraction for SQuAD's `f1`, and for `entity_f1`, which is no mean
over sentences, what it counts in each: [right entities, predicted entities, entities].

`curve.json` holds the losses along a pre-training run, at most `CURVE_POINTS` of each:

    {"training": {"step": [...], "mlm_loss": [...], "nsp_loss": [...]}, "heldout": {"step": [...], "mlm_loss": [...]}}

A left-to-right model has `lm_loss` instead of `mlm_loss`.
"""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bert_repro.errors import UserError
from bert_repro.tasks.base import Task
from bert_repro.tasks.classification import ClassificationTask
from bert_repro.tasks.multiple_choice import SwagTask
from bert_repro.tasks.squad.questions import read_json
from bert_repro.tasks.squad.scoring import answer_texts, score_questions
from bert_repro.tasks.squad.squad_task import SquadTask
from bert_repro.tasks.tagging.tag_files import read_tagged_text
from bert_repro.tasks.tagging.tagging_task import TaggingTask
from bert_repro.training import training_log

if TYPE_CHECKING:
    import datasets

EXAMPLES_FILE = "examples.json"
CURVE_FILE = "curve.json"
CURVE_POINTS = 200
_DIGITS = 5  # of a score or a loss; what is drawn or resampled needs no more
_CURVES = ("mlm_loss", "nsp_loss", "lm_loss")

Scores = dict[str, list[float] | list[list[int]]]


def example_scores(task: Task, split: str, dataset: "datasets.Dataset", run_folder: Path) -> Scores:
    """The score of every example of a split, by metric.

    Args:
        task: what was learnt.
        split: the split's name.
        dataset: the split as `Task.load` gives it. Of a run that was scored on the first rows, those rows are taken.
        run_folder: the run's output folder with its predictions.

    Raises:
        UserError: the predictions are missing or are not those of the split, or the task's score is no sum over
            examples (correlations).
    """
    match task:
        case SquadTask():
            return _answer_scores(task, split, dataset, run_folder)
        case TaggingTask():
            return {"entity_f1": _entity_counts(task, dataset, run_folder / f"predictions.{split}.txt")}
        case ClassificationTask() if task.number_range is None:
            return {"accuracy": _right_labels(task, dataset, run_folder / f"predictions.{split}.tsv")}
        case SwagTask():
            return {"accuracy": _right_labels(task, dataset, run_folder / f"predictions.{split}.csv")}
        case _:
            raise UserError(f"task {task.name}: its score is no sum over examples, so there are none to resample")


def loss_curve(run_folder: Path) -> dict[str, dict[str, list[float]]]:
    """The losses that a pre-training run logged; neighbouring points are averaged where there are too many.

    Args:
        run_folder: the run's output folder.

    Raises:
        UserError: the run has logged no loss.
    """
    path = run_folder / training_log.FILE_NAME
    rows = training_log.read(path)
    training = [row for row in rows if "learning_rate" in row]
    if not training:
        raise UserError(f"{path}: logs no training step; name the output folder of a pre-training run")
    if "mlm_loss" not in training[0]:
        training = [{**row, "lm_loss": row["loss"]} for row in training]
    evaluations = [row for row in rows if "learning_rate" not in row]
    heldout = [{name.removeprefix("eval_"): value for name, value in row.items()} for row in evaluations]
    return {"training": _columns(training), "heldout": _columns(heldout)}


def _columns(rows: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    if not rows:
        return {}
    groups = np.array_split(np.arange(len(rows)), min(CURVE_POINTS, len(rows)))
    columns: dict[str, list[float]] = {"step": [int(rows[group[-1]]["step"]) for group in groups]}
    for name in _CURVES:
        if all(name in row for row in rows):
            columns[name] = [round(float(np.mean([rows[place][name] for place in group])), _DIGITS) for group in groups]
    return columns


def _right_labels(task: Task, dataset: "datasets.Dataset", path: Path) -> list[float]:
    """1 where the predicted label is right, 0 elsewhere."""
    rows = _read_rows(path)
    _check_rows(path, [row["index"] for row in rows], [str(index) for index in dataset["idx"]])
    # SWAG's file has the label's number, GLUE's its name.
    names = task.label_names if isinstance(task, ClassificationTask) else tuple(map(str, range(len(rows[0]) - 2)))
    labels = dataset["label"][: len(rows)]
    return [int(row["prediction"] == names[label]) for row, label in zip(rows, labels, strict=True)]


def _answer_scores(task: SquadTask, split: str, dataset: "datasets.Dataset", run_folder: Path) -> Scores:
    path = run_folder / ("predictions.json" if split == "validation" else f"predictions.{split}.json")
    texts = read_json(path)
    _check_rows(path, list(texts), list(dataset["id"]))
    kept = dataset.select(range(len(texts)))
    found = score_questions([texts[name] for name in kept["id"]], answer_texts(kept), unanswerable=task.unanswerable)
    return {"exact_match": found.exact_match.astype(int).tolist(), "f1": found.f1.round(_DIGITS).tolist()}


def _entity_counts(task: TaggingTask, dataset: "datasets.Dataset", path: Path) -> list[list[int]]:
    """Right, predicted and true entities of every sentence."""
    from seqeval.metrics.sequence_labeling import get_entities

    sentences = read_tagged_text(path)
    words = dataset["words"][: len(sentences.words)]
    _check_rows(path, [" ".join(sentence) for sentence in sentences.words], [" ".join(sentence) for sentence in words])
    counts = []
    for predicted, tags in zip(sentences.tags or [], dataset["tags"][: len(words)], strict=True):
        ours = set(get_entities(predicted))
        true = set(get_entities([task.label_names[tag] for tag in tags]))
        counts.append([len(ours & true), len(ours), len(true)])
    return counts


def _read_rows(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        raise UserError(f"{path}: no such file; name the output folder of a run with --do_eval")
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ",", quoting=csv.QUOTE_NONE))


def _check_rows(path: Path, found: Sequence[str], wanted: Sequence[str]) -> None:
    """The predictions are of the split's first rows, all of them or fewer."""
    if not found or list(found) != list(wanted[: len(found)]):
        row = next(
            (row for row, pair in enumerate(zip(found, wanted, strict=False)) if pair[0] != pair[1]), len(wanted)
        )
        raise UserError(
            f"{path}: row {row} of {len(found)} is not that of the data set's {len(wanted)}; name the data the "
            "predictions were made for"
        )
