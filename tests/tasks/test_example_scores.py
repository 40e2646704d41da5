"""Scores of single examples, read from the predictions that a run wrote, give the score that the task computes."""

import datasets
import numpy as np
import pytest
from errors import user_error

from bert_repro.reproduction.resampling import resampled_scores
from bert_repro.tasks import TASKS
from bert_repro.tasks.choice import ENDINGS

ROWS = 40


def glue_data(generator):
    labels = generator.integers(0, 3, ROWS)
    return {"premise": ["a"] * ROWS, "hypothesis": ["b"] * ROWS, "label": labels.tolist(), "idx": list(range(ROWS))}


def swag_data(generator):
    texts = {name: ["a"] * ROWS for name in ("sent1", "sent2", *ENDINGS)}
    return {**texts, "label": generator.integers(0, 4, ROWS).tolist(), "idx": list(range(ROWS))}


def tagged_data(generator):
    lengths = generator.integers(1, 9, ROWS)
    return {
        "words": [[f"w{row}"] * length for row, length in enumerate(lengths)],
        "tags": [generator.integers(0, 9, length).tolist() for length in lengths],
    }


def question_data(generator, unanswerable=False):
    words = ["river", "old stone", "green", "old bird"]
    texts = [[str(generator.choice(words))] if not unanswerable or row % 2 else [] for row in range(ROWS)]
    return {
        "id": [f"q{row}" for row in range(ROWS)],
        "question": ["what"] * ROWS,
        "context": ["a river"] * ROWS,
        "answers": [{"text": t, "answer_start": [0] * len(t)} for t in texts],
    }


def made_up(name):
    """A task, its split, a data set and predictions of it, some right."""
    generator = np.random.default_rng(0)
    task = TASKS[name]
    if name == "conll2003":
        data = datasets.Dataset.from_dict(tagged_data(generator))
        names = [[task.label_names[tag if generator.random() < 0.7 else 0] for tag in tags] for tags in data["tags"]]
        return task, "validation", data, {"prediction": names, "probabilities": [[0.5] * len(row) for row in names]}
    if name.startswith("squad"):
        data = datasets.Dataset.from_dict(question_data(generator, name == "squad_v2"))
        texts = generator.choice(["river", "stone", "an old stone", "bird"], ROWS).tolist()
        odds = generator.normal(size=ROWS).tolist()
        return task, "validation", data, {"prediction": texts, "nbest": [[]] * ROWS, "null_odds": odds}
    data = datasets.Dataset.from_dict(swag_data(generator) if name == "swag" else glue_data(generator))
    split, chosen = "validation" if name == "swag" else "validation_matched", generator.integers(0, 3, ROWS)
    return task, split, data, {"prediction": chosen, "probabilities": np.eye(4 if name == "swag" else 3)[chosen]}


@pytest.mark.parametrize("name", ["mnli", "swag", "squad", "squad_v2", "conll2003"])
def test_the_scores_of_examples_give_the_score_of_the_split_and_other_data_are_refused(tmp_path, name):
    task, split, data, predictions = made_up(name)
    task.write_predictions(tmp_path, split, data, predictions)
    expected = task.score(predictions, data)
    for metric, scores in task.example_scores(split, data, tmp_path).items():
        values = np.array(scores)
        assert len(values) == ROWS
        found = 2 * values[:, 0].sum() / values[:, 1:].sum() if metric == "entity_f1" else values.mean()
        assert 0 < found < 1
        assert found == pytest.approx(expected[metric], abs=1e-5)
    with user_error("predictions.", 40, 39):
        task.example_scores(split, data.select(range(1, ROWS)), tmp_path)


@pytest.mark.parametrize(
    ("name", "metrics"),
    [("mrpc", {"accuracy", "f1"}), ("cola", {"accuracy", "matthews_correlation"}), ("stsb", {"pearson", "spearmanr"})],
)
def test_f1_and_correlations_are_resampled_from_their_parts(tmp_path, name, metrics):
    generator, task = np.random.default_rng(0), TASKS[name]
    labels = generator.random(ROWS) * 5 if name == "stsb" else generator.integers(0, 2, ROWS)
    predicted = labels + generator.normal(size=ROWS) if name == "stsb" else np.where(range(ROWS), labels, 1 - labels)
    predicted = np.where(generator.random(ROWS) < 0.8, predicted, predicted[::-1])
    texts = {column: ["a"] * ROWS for column in task.text_columns}
    data = datasets.Dataset.from_dict({**texts, "label": labels.tolist(), "idx": list(range(ROWS))})
    task.write_predictions(tmp_path, "validation", data, {"prediction": predicted})
    expected = task.score({"prediction": predicted}, data)
    found = task.example_scores("validation", data, tmp_path)
    assert set(found) == metrics
    draws = np.random.default_rng(1).integers(ROWS, size=(200, ROWS))
    drawn = [task.score({"prediction": predicted[draw]}, data.select(draw)) for draw in draws]
    for metric, scores in found.items():
        resampled = resampled_scores(np.array(scores, dtype=float))
        assert resampled.mean() == pytest.approx(expected[metric], abs=0.03)
        # Ranks are those of the complete split, which changes Spearman's spread a little.
        assert resampled.std() == pytest.approx(np.std([scores[metric] for scores in drawn]), rel=0.2)
