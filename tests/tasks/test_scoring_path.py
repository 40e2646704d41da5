"""Every score of a run is computed by the metric object of the `evaluate` library that `load_metric` returns."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import recipe, results

from bert_repro.errors import NonFiniteError
from bert_repro.tasks import evaluate_metrics, metrics
from bert_repro.tasks.evaluate_metrics import compute_metrics, make_metric


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of rows of each call of a metric object."""
    metric_class: Any = evaluate_metrics._metric_class()
    computed = metric_class._compute
    rows: list[int] = []

    def counted(self: Any, predictions: Any, references: Any, **settings: Any) -> Any:
        rows.append(len(predictions))
        return computed(self, predictions, references, **settings)

    monkeypatch.setattr(metric_class, "_compute", counted)
    return rows


def moods(path: Path, count: int) -> Path:
    lines = [f"a {word} day {number},{word}" for number in range(count // 2) for word in ("good", "bad")]
    path.write_text("\n".join(["text,label", *lines, ""]))
    return path


def test_evaluation_early_stopping_and_sweeps_score_with_it(untrained: Path, tmp_path: Path, calls: list[int]) -> None:
    data = ["--train_file", moods(tmp_path / "train.csv", 24), "--validation_file", moods(tmp_path / "dev.csv", 10)]
    common = ["--model_name_or_path", untrained, "--max_seq_length 16 --train_batch_size 8 --max_steps 4", *data]

    # One score at the end, and those of the two baselines.
    assert recipe("run_glue", *common, "--output_dir", tmp_path / "one") == 0
    assert calls == [10] * 3
    baselines = results(tmp_path / "one")["baselines"]
    assert baselines["most frequent label"]["accuracy"] == 0.5 and len(baselines) == 2

    # Early stopping also scores after every second step.
    calls.clear()
    stopping = "--eval_steps 2 --early_stopping_patience 5 --load_best_model_at_end"
    assert recipe("run_glue", *common, stopping, "--output_dir", tmp_path / "stop") == 0
    assert calls == [10] * 5

    # A sweep scores each of its runs and computes the baselines once.
    calls.clear()
    assert recipe("run_glue", *common, "--sweep_learning_rates 1e-3 1e-4", "--output_dir", tmp_path / "sweep") == 0
    assert calls == [10] * 4


def test_scores_equal_those_of_the_functions_to_the_last_digit() -> None:
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 3, (2, 997))
    numbers = generator.normal(size=(2, 997))
    flags = generator.integers(0, 2, (2, 97, 5))
    for names, (predictions, references) in (
        (("accuracy", "macro_f1", "weighted_f1", "matthews_correlation"), labels),
        (("pearson", "spearmanr"), numbers),
        (("micro_f1", "macro_f1", "exact_match"), flags),
    ):
        scores = compute_metrics(names, predictions, references.tolist())
        assert scores == metrics.compute(names, predictions, references) and tuple(scores) == names


def test_a_failed_call_leaves_nothing_behind() -> None:
    with pytest.raises(NonFiniteError):
        compute_metrics(("pearson", "spearmanr"), [1.0, float("nan"), 2.0], [1.0, 2.0, 3.0])
    with pytest.raises(ValueError):
        compute_metrics(("pearson", "spearmanr"), [1.0, 2.0, 3.0], [1.0, 2.0])
    assert compute_metrics(("pearson", "spearmanr"), [1.0, 2.0], [3.0, 4.0])["spearmanr"] == pytest.approx(1.0)


def test_rows_in_memory_need_no_writable_home(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    metric = make_metric("none", {}, lambda predictions, references: {}, cache_dir=str(tmp_path / "file" / "cache"))
    assert len(metric) == 0
