"""A model that says the same whatever it reads is found, in every family of tasks."""

from dataclasses import replace

import datasets
import numpy as np
import pytest

from bert_repro.tasks import get_task


def split(**columns):
    return datasets.Dataset.from_dict(columns)


@pytest.mark.parametrize(
    ("predictions", "labels", "degenerate"),
    [
        ([1, 1, 1, 1], [0, 1, 1, 0], True),
        ([0, 0, 0, 0], [0, 1, 1, 0], True),
        ([1, 1, 1, 0], [0, 1, 1, 0], False),
        ([1, 1, 1, 1], [1, 1, 1, 1], False),  # what such a split asks for
        ([1], [0], False),
    ],
)
def test_one_label_for_all(predictions, labels, degenerate):
    found = get_task("rte").is_degenerate({"prediction": np.array(predictions)}, split(label=labels))
    assert found is degenerate


@pytest.mark.parametrize(("spread", "degenerate"), [(0.0, True), (1e-4, True), (0.005, True), (0.05, False)])
def test_numbers_that_hardly_differ(spread, degenerate):
    labels = np.linspace(0, 5, 101)
    assert np.std(labels) == pytest.approx(1.458, abs=1e-3)
    noise = np.random.default_rng(0).normal(scale=spread, size=101)
    assert get_task("stsb").is_degenerate({"prediction": 2.6 + noise}, split(label=labels)) is degenerate


def test_one_ending_tag_or_answer_for_all():
    swag = get_task("swag")
    assert swag.is_degenerate({"prediction": np.array([3, 3, 3])}, split(label=[0, 1, 2]))
    assert not swag.is_degenerate({"prediction": np.array([3, 3, 2])}, split(label=[0, 1, 2]))
    task, data = get_task("conll2003"), split(words=[["a", "b"], ["c"]], tags=[[0, 1], [0]])
    assert task.is_degenerate({"prediction": [["O", "O"], ["O"]]}, data)
    assert not task.is_degenerate({"prediction": [["O", "B-PER"], ["O"]]}, data)
    data = split(id=["a", "b"])
    same, odds = {"prediction": ["it", "it"], "null_odds": [-1.0, 3.0]}, {"prediction": ["it", "he"]}
    assert get_task("squad").is_degenerate(same, data)
    assert not get_task("squad").is_degenerate(odds, data)
    squad_v2 = get_task("squad_v2")
    assert not squad_v2.is_degenerate(same, data)  # one is answered, one is not
    assert replace(squad_v2, null_score_diff_threshold=-2.0).is_degenerate(odds | {"null_odds": [-1.0, 3.0]}, data)
