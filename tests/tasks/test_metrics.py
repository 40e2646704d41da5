import json
import math
from pathlib import Path

import evaluate
import numpy as np
import pytest

from bert_repro.errors import NonFiniteError
from bert_repro.tasks import TASKS, metrics


def test_accuracy_and_f1_of_class_one_by_hand():
    assert metrics.accuracy([1, 0, 2, 2], [1, 1, 2, 2]) == 0.75
    # TP 2, FP 1, FN 2, TN 1: 4 / (4 + 1 + 2); class 0 would give 2 / 5, the macro mean something between.
    assert metrics.f1([1, 1, 1, 0, 0, 0], [1, 1, 0, 1, 1, 0]) == pytest.approx(4 / 7, abs=1e-15)
    assert metrics.f1([0, 0], [0, 0]) == 0.0
    with pytest.raises(ValueError, match="0 or 1"):
        metrics.f1([0, 2], [0, 1])


def test_matthews_is_the_formula_of_two_classes_and_the_correlation_of_indicators():
    tp, fp, fn, tn = 5, 2, 3, 7
    predictions = [1] * tp + [1] * fp + [0] * fn + [0] * tn
    references = [1] * tp + [0] * fp + [1] * fn + [0] * tn
    expected = (tp * tn - fp * fn) / math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    assert metrics.matthews_correlation(predictions, references) == pytest.approx(expected, abs=1e-15)
    rng = np.random.default_rng(0)
    references, predictions = rng.integers(0, 3, (2, 200))
    one_hot = np.eye(3)
    x, y = one_hot[predictions], one_hot[references]
    x, y = x - x.mean(0), y - y.mean(0)
    expected = (x * y).sum() / math.sqrt((x * x).sum() * (y * y).sum())
    assert metrics.matthews_correlation(predictions, references) == pytest.approx(expected, abs=1e-12)


def test_pearson_follows_the_formula_and_spearman_shares_tied_ranks():
    # x - mean = -1.5 -0.5 0.5 1.5, y - mean = -2 0 -1 3: 7 / sqrt(5 * 14)
    assert metrics.pearson([1, 2, 3, 4], [1, 3, 2, 6]) == pytest.approx(7 / math.sqrt(70), abs=1e-15)
    # Deviations of the ranks: -1.5 0 0 1.5 against -1.5 -0.5 0.5 1.5.
    assert metrics.spearman([0.1, 7, 7, 900], [1, 2, 3, 4]) == pytest.approx(4.5 / math.sqrt(4.5 * 5), abs=1e-15)


@pytest.mark.parametrize("name", ["pearson", "spearmanr", "matthews_correlation"])
@pytest.mark.parametrize(("predictions", "references"), [([1, 1, 1], [0, 1, 2]), ([0, 1, 2], [1, 1, 1]), ([1], [1])])
def test_degenerate_correlations_are_zero_and_never_nan(name, predictions, references):
    assert metrics.compute([name], predictions, references) == {name: 0.0}


@pytest.mark.parametrize("name", ["pearson", "spearmanr"])
def test_correlations_refuse_what_is_not_finite(name):
    with pytest.raises(NonFiniteError):
        metrics.compute([name], [1.0, float("nan")], [1.0, 2.0])


@pytest.mark.parametrize("name", ["accuracy", "f1", "matthews_correlation", "pearson", "spearmanr"])
@pytest.mark.parametrize(("predictions", "references"), [([], []), ([1], [1, 0])])
def test_scores_refuse_empty_or_unequal_rows(name, predictions, references):
    with pytest.raises(ValueError, match="must have one shape, not empty"):
        metrics.compute([name], predictions, references)


@pytest.mark.parametrize(
    ("predictions", "references", "expected"),
    [
        # The type is right and one end wrong: no credit.
        ([["B-PER", "O"]], [["B-PER", "I-PER"]], 0.0),
        # conlleval starts an entity at I- after O; the strict mode would not.
        ([["O", "I-LOC"]], [["O", "B-LOC"]], 1.0),
        # I- of another type starts a new entity: PER and LOC found, LOC alone expected.
        ([["B-PER", "I-LOC"]], [["O", "B-LOC"]], 2 / 3),
        # Two adjacent entities are not one.
        ([["B-PER", "B-PER"]], [["B-PER", "I-PER"]], 0.0),
        # An entity ends with its sentence.
        ([["B-PER"], ["I-PER"]], [["B-PER"], ["B-PER"]], 1.0),
        # Micro average over types: 2 right, 3 predicted, 3 expected.
        ([["B-PER", "O", "B-LOC", "B-ORG"]], [["B-PER", "B-PER", "B-LOC", "O"]], 2 / 3),
        ([["O"]], [["B-PER"]], 0.0),
        ([["O"]], [["O"]], 0.0),
    ],
)
def test_entity_f1_counts_as_conlleval(predictions, references, expected):
    assert metrics.entity_f1(predictions, references) == pytest.approx(expected, abs=1e-15)


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
        metric = metrics.load_metric(name)
        names = TASKS["conll2003" if name == "seqeval" else name].metrics if name != "accuracy" else ("accuracy",)
        expected = metrics.compute(names, predictions, references)
        assert metric.compute(predictions=predictions, references=references) == expected
        for prediction, reference in zip(predictions, references, strict=True):
            metric.add(prediction=prediction, reference=reference)
        assert metric.compute() == expected

    def test_every_task_and_the_hubs_names_have_one(self):
        for name in (*TASKS, "mnli_matched", "mnli_mismatched", "seqeval"):
            assert isinstance(metrics.load_metric(name), evaluate.Metric)
        with pytest.raises(ValueError, match="metric 'bleu' is not known; it must be one of: cola, "):
            metrics.load_metric("bleu")

    def test_squad_takes_what_the_hubs_metric_takes(self):
        answers = [{"text": ["cat"], "answer_start": [0]}, {"text": ["a bird", "dog house"], "answer_start": [0, 9]}]
        references = [{"id": str(row), "answers": answer} for row, answer in enumerate(answers)]
        predictions = [{"id": "1", "prediction_text": "dog"}, {"id": "0", "prediction_text": "the cat"}]
        scores = metrics.load_metric("squad").compute(predictions=predictions, references=references)
        assert scores == {"exact_match": 0.5, "f1": (1 + 2 * 1 * 0.5 / 1.5) / 2}
        with pytest.raises(ValueError, match="question '0' has no prediction"):
            metrics.load_metric("squad").compute(predictions=predictions[:1] * 2, references=references)

    def test_squad_v2_leaves_a_question_unanswered_above_the_threshold(self):
        references = [
            {"id": "a", "answers": {"text": ["cat"], "answer_start": [0]}},
            {"id": "b", "answers": {"text": [], "answer_start": []}},
        ]
        predictions = [
            {"id": "a", "prediction_text": "cat", "no_answer_probability": 0.1},
            {"id": "b", "prediction_text": "dog", "no_answer_probability": 0.9},
        ]
        metric = metrics.load_metric("squad_v2")
        assert metric.compute(predictions=predictions, references=references)["exact_match"] == 0.5
        scores = metric.compute(predictions=predictions, references=references, no_answer_threshold=0.5)
        assert (scores["exact_match"], scores["no_answer_accuracy"], scores["best_f1"]) == (1.0, 1.0, 1.0)
