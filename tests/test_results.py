"""results.json: what is written is what is read, in today's names, and what is wrong is named."""

import json

import pytest

from bert_repro.errors import UserError
from bert_repro.results import json_schema, read_results, write_results

RESULTS = {
    "task": "mrpc",
    "split": "validation",
    "metrics": {"f1": 0.8, "accuracy": 1},
    "degenerate": False,
    "sweep": {"degenerate": 1, "configurations": [{"degenerate": 1, "best_seed": None}]},
    "versions": {"torch": "2.11", "datasets": None},
    "study": {"cells": [{"table": 1}]},
    "field_of_a_later_version": [1],
}


def test_what_is_written_is_what_is_read_under_older_names_too(tmp_path):
    write_results(tmp_path, RESULTS)
    assert read_results(tmp_path) == read_results(tmp_path / "results.json") == RESULTS
    text = json.dumps(RESULTS).replace("degenerate", "collapsed").replace('"sweep"', '"search"')
    (tmp_path / "results.json").write_text(text.replace('"configurations"', '"cells"'), "utf-8")
    assert read_results(tmp_path) == RESULTS


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"task": ', "is not valid JSON"),
        ("[" * 100_000, "nests too deep to be read"),
        ('{"metrics": {"f1": NaN}}', "the number 'NaN' is not finite"),
        ("[]", "holds a list, not an object"),
        ('{"task": 3}', "field task is 3; it must be a text"),
        ('{"metrics": {"f1": "high"}}', "field metrics.f1 is 'high'; it must be a finite number"),
        ('{"splits": {"test": {"rows_scored": true}}}', "field splits.test.rows_scored is True; it must be an integer"),
        ('{"train": {"phases": [{}, 7]}}', "field train.phases[1] is 7; it must be an object"),
        ('{"search": {"cells": [{"collapsed": "x"}]}}', "field sweep.configurations[0].degenerate is 'x'"),
        ('{"task": "mrpc"}', "field metrics is missing"),
    ],
)
def test_damaged_results_are_one_error_that_names_file_and_field(tmp_path, text, message):
    (tmp_path / "results.json").write_text(text, "utf-8")
    with pytest.raises(UserError) as error:
        read_results(tmp_path, needs=("metrics",))
    assert message in str(error.value) and str(tmp_path / "results.json") in str(error.value)
    assert len(str(error.value)) < 400 + len(str(tmp_path))


def test_a_folder_without_results_is_told(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        read_results(tmp_path)


def test_what_is_not_as_declared_is_not_written(tmp_path):
    with pytest.raises(ValueError, match=r"metrics\.f1 is nan"):
        write_results(tmp_path, {"metrics": {"f1": float("nan")}})
    assert not list(tmp_path.iterdir())


def test_the_schema_describes_nested_fields():
    schema = json_schema()
    assert schema["properties"]["train"] == {"$ref": "#/$defs/TrainResults"}
    assert schema["$defs"]["TrainResults"]["properties"]["flops"]["type"] == "number"
    assert schema["$defs"]["SweepRun"]["properties"]["epochs"]["anyOf"][1] == {"type": "null"}
    assert "class" in schema["$defs"]["ModelResults"]["properties"]
