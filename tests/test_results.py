"""results.json is strict JSON that names what is wrong with it."""

import pytest

from bert_repro.errors import UserError
from bert_repro.results import read_results, write_results


def test_what_is_written_is_what_is_read(tmp_path):
    results = {"task": "mrpc", "metrics": {"accuracy": 0.5}, "labels": ["é"]}
    write_results(tmp_path, results)
    assert read_results(tmp_path) == read_results(tmp_path / "results.json") == results
    with pytest.raises(UserError, match=r"results\.json: field split is missing; name the folder of a finished run"):
        read_results(tmp_path, needs=("task", "split"))
    with pytest.raises(ValueError, match="JSON compliant"):
        write_results(tmp_path, {"metrics": {"loss": float("nan")}})
    assert read_results(tmp_path) == results


@pytest.mark.parametrize(("content", "message"), [(None, "no such file"), ("{", "is not valid JSON"), ("[]", "holds")])
def test_what_is_no_result_is_one_line(tmp_path, content, message):
    if content is not None:
        (tmp_path / "results.json").write_text(content)
    with pytest.raises(UserError, match=rf"results\.json: {message}"):
        read_results(tmp_path)
