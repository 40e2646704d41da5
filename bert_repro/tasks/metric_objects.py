"""The scores of the tasks as objects of the `evaluate` library, through which the recipes score.

Each computes on this machine alone and takes the options of `evaluate.Metric`: batches can be added one by one or by
several processes, and `evaluate.combine` joins objects. Importing `evaluate` takes seconds, so this module is imported
where something is scored; `bert_repro.tasks.metrics.load_metric` makes the objects by name.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import datasets
import evaluate
import numpy as np

from bert_repro.tasks.metrics import METRICS, compute
from bert_repro.tasks.squad import scoring

_FEATURES = {
    "labels": datasets.Value("int64"),
    "label_sets": datasets.List(datasets.Value("int64")),
    "numbers": datasets.Value("float64"),
    "tags": datasets.List(datasets.Value("string")),
}
_ANSWERS = {"text": datasets.List(datasets.Value("string")), "answer_start": datasets.List(datasets.Value("int32"))}
_QUESTION = {"id": datasets.Value("string"), "answers": _ANSWERS}


class _LocalMetric(evaluate.Metric):  # type: ignore[misc]
    """A metric that keeps what it is given in memory, unless several processes add to it.

    Args:
        config_name: names the object's files, where several processes write some.
        options: of `evaluate.Metric`: `num_process`, `process_id`, `experiment_id`, `cache_dir` ...
    """

    def __init__(self, config_name: str, **options: Any) -> None:
        options.setdefault("keep_in_memory", options.get("num_process", 1) == 1)
        super().__init__(config_name=config_name, **options)

    def _described(self, description: str, predictions: Any, references: Any) -> Any:
        features = datasets.Features({"predictions": predictions, "references": references})
        return evaluate.MetricInfo(description=description, citation="", features=features)


class Scores(_LocalMetric):
    """Several scores of labels, numbers or tags.

    Args:
        names: keys of `bert_repro.tasks.metrics.METRICS` that compare the same kind of values.
        options: of `evaluate.Metric`.

    Raises:
        ValueError: the scores compare different kinds of values.
    """

    def __init__(self, names: Sequence[str], **options: Any) -> None:
        kinds = [kind for kind in _FEATURES if all(kind in METRICS[name].compares for name in names)]
        if not kinds:
            raise ValueError(f"scores {', '.join(names)} do not compare one kind of values")
        self.names, self._kind = tuple(names), kinds[0]
        super().__init__("-".join(names), **options)

    def _info(self) -> Any:
        feature = _FEATURES[self._kind]
        return self._described(f"{', '.join(self.names)} of {self._kind}, as fractions", feature, feature)

    def _compute(self, predictions: Any, references: Any) -> dict[str, float]:
        return compute(self.names, predictions, references)


class Squad(_LocalMetric):
    """Exact match and F1 of SQuAD v1.1, as fractions; inputs as of the Hub's metric `squad`.

    Predictions are `{"id", "prediction_text"}`, references `{"id", "answers": {"text", "answer_start"}}`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__("squad", **options)

    def _info(self) -> Any:
        prediction = {"id": datasets.Value("string"), "prediction_text": datasets.Value("string")}
        return self._described("exact_match and f1 of SQuAD v1.1, as fractions", prediction, _QUESTION)

    def _compute(
        self, predictions: Sequence[Mapping[str, Any]], references: Sequence[Mapping[str, Any]]
    ) -> dict[str, float]:
        texts = [prediction["prediction_text"] for prediction in _by_question(predictions, references)]
        return scoring.score_questions(texts, _right_answers(references), unanswerable=False).summary()


class SquadV2(_LocalMetric):
    """Exact match and F1 of SQuAD v2.0, as fractions; inputs as of the Hub's metric `squad_v2`.

    Predictions are `{"id", "prediction_text", "no_answer_probability"}`; the last may be any number that orders the
    questions, such as the null odds of BERT. `compute` takes `no_answer_threshold`: a question counts as unanswered
    where the number exceeds it (default 1, as on the Hub).
    """

    def __init__(self, **options: Any) -> None:
        super().__init__("squad_v2", **options)

    def _info(self) -> Any:
        prediction = {
            "id": datasets.Value("string"),
            "prediction_text": datasets.Value("string"),
            "no_answer_probability": datasets.Value("float64"),
        }
        return self._described("exact_match and f1 of SQuAD v2.0, as fractions", prediction, _QUESTION)

    def _compute(
        self,
        predictions: Sequence[Mapping[str, Any]],
        references: Sequence[Mapping[str, Any]],
        no_answer_threshold: float = 1.0,
    ) -> dict[str, float]:
        ordered = _by_question(predictions, references)
        texts = [prediction["prediction_text"] for prediction in ordered]
        odds = np.array([prediction["no_answer_probability"] for prediction in ordered], dtype=np.float64)
        questions = scoring.score_questions(texts, _right_answers(references), unanswerable=True)
        return scoring.scores_at_threshold(questions, odds, no_answer_threshold)


def _by_question(
    predictions: Sequence[Mapping[str, Any]], references: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    by_id = {prediction["id"]: prediction for prediction in predictions}
    for reference in references:
        if reference["id"] not in by_id:
            raise ValueError(f"question {reference['id']!r} has no prediction; predict every question")
    return [by_id[reference["id"]] for reference in references]


def _right_answers(references: Sequence[Mapping[str, Any]]) -> list[Sequence[str]]:
    return [reference["answers"]["text"] for reference in references]
