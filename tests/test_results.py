"""results.json is strict JSON that names what is wrong with it."""

import json

import pytest
from errors import user_error

from bert_repro.results import read_results, write_results


def test_what_is_written_is_what_is_read(tmp_path):
    results = {"task": "mrpc", "metrics": {"accuracy": 0.5}, "labels": ["é"]}
    write_results(tmp_path, results)
    assert read_results(tmp_path) == read_results(tmp_path / "results.json") == results
    with user_error("results.json", "split"):
        read_results(tmp_path, needs=("task", "split"))
    with pytest.raises(ValueError, match="JSON compliant"):
        write_results(tmp_path, {"metrics": {"loss": float("nan")}})
    assert read_results(tmp_path) == results


@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_what_is_no_result_is_one_line(tmp_path, content):
    if content is not None:
        (tmp_path / "results.json").write_text(content)
    with user_error("results.json"):
        read_results(tmp_path)


@pytest.mark.parametrize(
    ("results", "named"),
    [
        ({"metrics": [1]}, "metrics"),
        ({"metrics": {"accuracy": "high"}}, "accuracy"),
        ({"task": {"<script>": 1}}, "task"),
        ({"seed": "# heading"}, "seed"),
        ({"splits": {"dev": 7}}, "splits.dev"),
        ({"splits": {"dev": {"rows": "many"}}}, "splits.dev.rows"),
        ({"train": {"phases": 3}}, "train.phases"),
        ({"model": {"labels": "a"}}, "model.labels"),
        ({"settings": []}, "settings"),
    ],
    ids=str,
)
def test_results_from_outside_are_checked_where_they_are_read(tmp_path, results, named):
    (tmp_path / "results.json").write_text(json.dumps(results))
    with user_error(named):
        read_results(tmp_path)


def test_unknown_fields_null_and_whole_numbers_are_accepted(tmp_path):
    results = {
        "metrics": {"loss": 1},
        "git_commit": None,
        "wall_time_seconds": 3,
        "of_a_later_version": [1],
        "sweep": {"best": {"a": 1}},
    }
    (tmp_path / "results.json").write_text(json.dumps(results))
    assert read_results(tmp_path) == results
