import json
from pathlib import Path

import pytest

from bert_repro.errors import NonFiniteError
from bert_repro.tasks import TASKS, metrics
from bert_repro.tasks.metric_loader import load_metric


@pytest.mark.parametrize("name", ["pearson", "spearmanr", "matthews_correlation"])
@pytest.mark.parametrize(("predictions", "references"), [([1, 1, 1], [0, 1, 2]), ([0, 1, 2], [1, 1, 1]), ([1], [1])])
def test_degenerate_correlations_are_zero_and_never_nan(name, predictions, references):
    assert metrics.compute([name], predictions, references) == {name: 0.0}


@pytest.mark.parametrize("name", ["accuracy", "f1", "matthews_correlation", "pearson", "spearmanr"])
def test_scores_refuse_rows_that_are_empty_unequal_or_not_finite(name):
    for predictions, references in (([], []), ([1], [1, 0])):
        with pytest.raises(ValueError, match="shape"):
            metrics.compute([name], predictions, references)
    if name in ("pearson", "spearmanr"):
        with pytest.raises(NonFiniteError):
            metrics.compute([name], [1.0, float("nan")], [1.0, 2.0])


GLUE = Path(__file__).parents[1] / "golden" / "glue"
RECORDED = json.loads((GLUE / "expected.json").read_text("utf-8"))["scores"]


@pytest.mark.parametrize("record", RECORDED, ids=lambda record: f"{record['file']} {record['metric']}")
def test_golden_scores_are_what_the_functions_of_glues_evaluation_gave(record):
    """The predictions are those of real runs; tests/golden/reproduce.py repeats the expected values."""
    lines = [line.split("\t") for line in (GLUE / record["file"]).read_text("utf-8").splitlines()[1:]]
    assert len(lines) == record["rows"]
    kind = int if record["metric"] == "matthews_correlation" else float
    predictions, references = ([kind(line[column]) for line in lines] for column in (0, 1))
    score = metrics.compute([record["metric"]], predictions, references)[record["metric"]]
    assert score == pytest.approx(record["printed"], abs=1e-12)
    assert 0.05 < score < 0.95, "predictions that are neither right nor blind"


class TestLoadMetric:
    """Objects of the `evaluate` library that score as the functions do."""

    @pytest.mark.parametrize(
        ("name", "predictions", "references"),
        [
            *[(name, [1, 0, 1, 1], [1, 1, 1, 0]) for name in ("cola", "mrpc", "qqp", "mnli", "swag", "accuracy")],
            ("stsb", [0.1, 2.5, 3.0], [1.0, 4.75, 4.0]),
            ("seqeval", [["B-PER", "O"], ["O"]], [["B-PER", "O"], ["B-LOC"]]),
        ],
    )
    def test_it_scores_as_the_functions_whether_given_at_once_or_row_by_row(self, name, predictions, references):
        metric = load_metric(name)
        names = TASKS["conll2003" if name == "seqeval" else name].metrics if name != "accuracy" else ("accuracy",)
        expected = metrics.compute(names, predictions, references)
        assert metric.compute(predictions=predictions, references=references) == expected
        for prediction, reference in zip(predictions, references, strict=True):
            metric.add(prediction=prediction, reference=reference)
        assert metric.compute() == expected

    def test_squad_takes_what_the_hubs_metric_takes(self):
        answers = [{"text": ["cat"], "answer_start": [0]}, {"text": ["a bird", "dog house"], "answer_start": [0, 9]}]
        references = [{"id": str(row), "answers": answer} for row, answer in enumerate(answers)]
        predictions = [{"id": "1", "prediction_text": "dog"}, {"id": "0", "prediction_text": "the cat"}]
        scores = load_metric("squad").compute(predictions=predictions, references=references)
        assert scores == {"exact_match": 0.5, "f1": (1 + 2 * 1 * 0.5 / 1.5) / 2}
        with pytest.raises(ValueError, match="question '0' has no prediction"):
            load_metric("squad").compute(predictions=predictions[:1] * 2, references=references)

    def test_squad_v2_leaves_a_question_unanswered_above_the_threshold(self):
        answers = {"a": {"text": ["cat"], "answer_start": [0]}, "b": {"text": [], "answer_start": []}}
        references = [{"id": name, "answers": answer} for name, answer in answers.items()]
        predictions = [
            {"id": name, "prediction_text": text, "no_answer_probability": probability}
            for name, text, probability in (("a", "cat", 0.1), ("b", "dog", 0.9))
        ]
        metric = load_metric("squad_v2")
        assert metric.compute(predictions=predictions, references=references)["exact_match"] == 0.5
        scores = metric.compute(predictions=predictions, references=references, no_answer_threshold=0.5)
        assert (scores["exact_match"], scores["no_answer_accuracy"], scores["best_f1"]) == (1.0, 1.0, 1.0)
