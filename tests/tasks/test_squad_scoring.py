"""Scores against hand-worked cases and the golden files.

The golden scores are those of the official scripts, which are not part of this project. Whoever has them repeats this:

    python tests/golden/reproduce.py path/to/evaluate-v1.1.py path/to/evaluate-v2.0.py

They print percentages under their own names: exact and f1 are our exact_match and f1, best_f1_thresh is our
best_f1_threshold.
"""

import json
from pathlib import Path

import pytest
from errors import user_error

from bert_repro.configs import SquadConfig, SquadScoringConfig
from bert_repro.tasks import squad_scoring as scoring

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "squad"


def read(name):
    return json.loads((GOLDEN / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("version", ["1.1", "2.0"])
def test_golden_files(version):
    files = {"data_file": f"dev-v{version}.json", "predictions_file": f"predictions-v{version}.json"}
    if version == "2.0":
        files["null_odds_file"] = "null_odds-v2.0.json"
    paths = {name: str(GOLDEN / file) for name, file in files.items()}
    config = SquadScoringConfig(task_name="squad" if version == "1.1" else "squad_v2", **paths)
    assert scoring.score_squad(config) == read("expected.json")[f"v{version}"]["scores"]


# ------------------------------------------------------------------------------------------------------------ bad input


def score(tmp_path, predictions, data=None, null_odds=None):
    paths = {}
    contents = {"data_file": data or read("dev-v2.0.json"), "predictions_file": predictions}
    if null_odds is not None:
        contents["null_odds_file"] = null_odds
    for name, content in contents.items():
        paths[name] = str(tmp_path / f"{name}.json")
        Path(paths[name]).write_text(json.dumps(content), encoding="utf-8")
    return scoring.score_squad(SquadScoringConfig(task_name="squad_v2", **paths))


def test_bad_predictions_are_one_line_and_surplus_ones_count_nothing(tmp_path):
    good = read("predictions-v2.0.json")
    some = next(iter(good))
    lacking = {name: text for name, text in good.items() if name != some}
    with user_error("predictions_file.json", some, f"1 of {len(good)}"):
        score(tmp_path, lacking)
    with user_error("predictions_file.json", some, "None", setting="predictions_file"):
        score(tmp_path, {**good, some: None})
    odds = dict.fromkeys(good, 0.5)
    with user_error("null_odds_file.json", some, "high", setting="null_odds_file"):
        score(tmp_path, good, null_odds={**odds, some: "high"})
    with user_error("data_file.json", setting="data_file"):
        bare = {"context": "x", "qas": [{"id": "q", "question": "?"}]}
        score(tmp_path, {"q": "x"}, data={"data": [{"paragraphs": [bare]}]})
    assert score(tmp_path, {**good, "other": "x"}) == score(tmp_path, good)


@pytest.mark.parametrize(
    ("settings", "setting"),
    [
        ({"max_answer_length": -1}, "max_answer_length"),
        ({"max_seq_length": 60, "max_query_length": 60}, "max_seq_length"),
        ({"qa_softmax": "padded"}, "qa_softmax"),
    ],
)
def test_settings_that_exclude_each_other(settings, setting):
    with user_error(f"--{setting}", settings[setting], setting=setting):
        SquadConfig(model_name_or_path="m", do_eval=True, **settings)


def test_null_odds_are_for_v2_only():
    with user_error("--null_odds_file odds.json", "--task_name squad_v2", setting="null_odds_file"):
        SquadScoringConfig(data_file="dev.json", predictions_file="p.json", null_odds_file="odds.json")
