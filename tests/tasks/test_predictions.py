"""Scores of each label, confusions, calibration and the surest errors, and the files that hold predictions."""

import json

import datasets
import numpy as np
import pytest

from bert_repro.tasks import get_task
from bert_repro.tasks.predictions import calibration_details, entity_details, label_details, surest_errors

PREDICTED, EXPECTED = np.array([0, 0, 1, 2, 2, 2]), np.array([0, 1, 1, 2, 2, 0])


def test_labels_are_scored_one_by_one():
    details = label_details(PREDICTED, EXPECTED, ("a", "b", "c"))
    assert details["confusion_matrix"] == [[1, 0, 1], [1, 1, 0], [0, 0, 2]]
    assert details["per_label"]["b"] == {"precision": 1.0, "recall": 0.5, "f1": pytest.approx(2 / 3), "rows": 2}
    f1 = [0.5, 2 / 3, 0.8]
    assert details["macro_f1"] == pytest.approx(np.mean(f1)) == details["weighted_f1"]
    assert "confusion_matrix" not in label_details(PREDICTED, EXPECTED, [str(n) for n in range(51)])


def test_calibration_error_is_the_distance_of_confidence_from_accuracy():
    probabilities = np.array([[0.9, 0.1]] * 10 + [[0.3, 0.7]] * 10)
    predictions = probabilities.argmax(axis=1)
    references = np.array([0] * 5 + [1] * 5 + [1] * 7 + [0] * 3)
    # The first ten are sure by 0.9 and half of them right; of the others 0.7 are right, as their probability says.
    found = calibration_details(probabilities.max(axis=1), predictions == references)
    assert found["calibration_error"] == pytest.approx(0.5 * 0.4)
    assert [(round(each["probability"], 3), each["correct"], each["rows"]) for each in found["calibration_bins"]] == [
        (0.7, 0.7, 10), (0.9, 0.5, 10),
    ]  # fmt: skip


def test_the_surest_errors_come_first_and_are_a_hundred_at_most():
    generator = np.random.default_rng(0)
    columns = (generator.integers(0, 2, 400), generator.integers(0, 2, 400), generator.random(400))
    records = [
        dict(zip(("prediction", "label", "probability"), row, strict=True)) for row in zip(*columns, strict=True)
    ]
    found = surest_errors(iter(records))
    sure = [record["probability"] for record in found]
    assert len(found) == 100 and (np.diff(sure) <= 0).all()
    assert all(record["prediction"] != record["label"] for record in found)


def test_entities_are_scored_by_type():
    found = entity_details([["B-PER", "O", "B-LOC"]], [["B-PER", "B-LOC", "B-LOC"]])
    assert found["per_entity"] == {
        "LOC": {"precision": 1.0, "recall": 0.5, "f1": pytest.approx(2 / 3), "entities": 2},
        "PER": {"precision": 1.0, "recall": 1.0, "f1": 1.0, "entities": 1},
    }
    assert (found["precision"], found["recall"]) == (1.0, pytest.approx(2 / 3))


def test_predictions_carry_their_texts_and_the_right_labels(tmp_path):
    rows = {"sentence1": ["a\tb", "c"], "sentence2": ["d", "e\nf"], "label": [0, 0], "idx": [3, 5]}
    dataset = datasets.Dataset.from_dict(rows)
    predictions = {"prediction": np.array([0, 1]), "probabilities": np.array([[0.75, 0.25], [0.125, 0.875]])}
    table, errors = get_task("rte").write_predictions(tmp_path, "validation", dataset, predictions)
    assert table.read_text() == (
        "index\tprediction\tlabel\tprobability_entailment\tprobability_not_entailment\tsentence1\tsentence2\n"
        "3\tentailment\tentailment\t0.750000\t0.250000\ta b\td\n"
        "5\tnot_entailment\tentailment\t0.125000\t0.875000\tc\te f\n"
    )
    assert [json.loads(line) for line in errors.read_text().splitlines()] == [
        {
            "index": 5, "sentence1": "c", "sentence2": "e\nf", "label": "entailment", "prediction": "not_entailment",
            "probability": 0.875, "probabilities": {"entailment": 0.125, "not_entailment": 0.875},
        }
    ]  # fmt: skip
