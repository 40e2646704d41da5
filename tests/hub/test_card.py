"""A card says what the record says, in the Hub's own form."""

import pytest
import yaml
from huggingface_hub import ModelCard

from bert_repro.hub.card import HEADS, eval_result_entries, head_of, make_card, renamed
from bert_repro.models.configuration_bert_repro import HEADS as ISLAND_HEADS

RECORD = {
    "task": "mrpc",
    "split": "validation",
    "metrics": {"accuracy": 0.8578, "f1": 0.9},
    "rows_scored": 408,
    "splits": {
        "validation": {"metrics": {"accuracy": 0.8578, "f1": 0.9}, "rows_scored": 408},
        "test": {"missing": True},
    },
    "seed": 7,
    "base_model": "org/bert-mini",
    "settings": {"model_name_or_path": "org/bert-mini", "learning_rate": 5e-5, "data_dir": None},
    "versions": {"python": "3.11.7", "torch": "2.13.0"},
    "git_commit": "0123abc",
    "hardware": {"device": "cpu", "cores": 2},
    "wall_time_seconds": 61.2,
    "command": "python recipes/run_glue.py --task_name mrpc",
    "model": {"class": "BertReproForSequenceClassification", "parameters": 11_171_074, "labels": ["no", "yes"]},
    "data": {"dataset": "nyu-mll/glue", "config": "mrpc", "language": "en", "text_columns": ["sentence1", "sentence2"]},
    "train": {"steps": 344, "rows": 3668},
}


def metadata(card: str) -> dict:
    return yaml.safe_load(card.split("---")[1])


def test_metadata():
    found = metadata(make_card(RECORD, "org/bert-mini-mrpc"))
    assert found["pipeline_tag"] == "text-classification"
    assert found["library_name"] == "transformers"
    assert found["base_model"] == "org/bert-mini"
    assert found["datasets"] == ["nyu-mll/glue"]
    assert found["language"] == "en"
    assert found["license"] == "apache-2.0"
    assert found["tags"] == ["bert", "bert-repro", "mrpc"]
    assert "widget" not in found, "the Hub's widget takes no pair of sentences"
    (entry,) = found["model-index"]
    assert entry["name"] == "bert-mini-mrpc"
    (result,) = entry["results"]
    assert result["dataset"] == {"name": "mrpc", "type": "nyu-mll/glue", "config": "mrpc", "split": "validation"}
    assert {metric["type"]: metric["value"] for metric in result["metrics"]} == {"accuracy": 0.8578, "f1": 0.9}


def test_the_hub_reads_the_card_back():
    card = ModelCard(make_card(RECORD, "org/bert-mini-mrpc"))
    assert card.data.model_name == "bert-mini-mrpc"
    assert {result.metric_type for result in card.data.eval_results} == {"accuracy", "f1"}


def test_text_says_what_the_record_says():
    text = make_card(RECORD, "org/bert-mini-mrpc")
    for part in (
        "| validation | accuracy | 0.8578 | 408 |",
        "| test | any | not run |",
        "seed 7",
        "11,171,074 parameters",
        "Labels: no, yes.",
        "python recipes/run_glue.py --task_name mrpc",
        "| steps | 344 |",
        "| learning_rate | 5e-05 |",
        "torch 2.13.0",
        "`0123abc`",
        "Wall time: 61 s.",
        "The licence of the training data is not recorded.",
        '"text_pair"',
    ):
        assert part in text, part
    assert "data_dir" not in text
    assert "None" not in text
    assert "{{" not in text.replace("{{BERT}", "")


def test_an_empty_record_makes_a_card_that_claims_nothing():
    text = make_card({}, "org/unknown")
    assert "Not run." in text
    assert "Training: not run, or not recorded." in text
    assert "How to use it" not in text
    assert not {"model-index", "base_model", "datasets", "language", "pipeline_tag", "widget"} & metadata(text).keys()


@pytest.mark.parametrize("key", RECORD)
def test_any_key_may_be_missing(key):
    text = make_card({name: value for name, value in RECORD.items() if name != key}, "org/x")
    assert text.startswith("---\n")


def test_only_the_run_itself_knows_whether_its_start_was_a_folder():
    record = {name: value for name, value in RECORD.items() if name != "base_model"}
    assert "base_model" not in metadata(make_card(record, "org/x"))


def test_another_name_is_the_card_that_it_would_have_made():
    for record in (RECORD, {**RECORD, "revision": "step-5"}, {**RECORD, "data": {"dataset": None}}, {}):
        card = make_card(record, "toy")
        assert renamed(card, "org/bert-toy") == make_card(record, "org/bert-toy") != card
        assert renamed(card, "toy") == card
    assert renamed("No title.\n", "org/x") == "No title.\n"
    by_hand = make_card(RECORD, "toy") + '\nIt is called "toy" at home.\n'
    assert renamed(by_hand, "org/x").endswith('\nIt is called "toy" at home.\n')


def test_a_degenerate_run_says_so_and_claims_nothing():
    record = {**RECORD, "primary_metric": "accuracy"}
    assert eval_result_entries(record) and "degenerate" not in make_card(record, "org/x")
    record["degenerate"] = True
    assert not eval_result_entries(record) and "**This run is degenerate**" in make_card(record, "org/x")


def test_a_threshold_is_no_score_and_is_said_to_be_tuned():
    metrics = {"f1": 0.5, "null_score_diff_threshold": -1.5, "best_f1_threshold": -1.5}
    record = {**RECORD, "task": "squad_v2", "splits": {}, "metrics": metrics, "primary_metric": "f1"}
    record["model"] = {"class": "BertReproForQuestionAnswering"}
    card = make_card(record, "org/x")
    (result,) = metadata(card)["model-index"][0]["results"]
    assert [metric["type"] for metric in result["metrics"]] == ["f1"]
    assert "chosen on the split" in card and "chosen on this split" in eval_result_entries(record)[0]["notes"]
    assert 'else "no answer"' in card
    told = {**record, "settings": {"null_score_diff_threshold": 0.0}}
    assert "chosen on" not in make_card(told, "org/x")
    assert 'else "no answer"' not in make_card({**record, "metrics": {"f1": 0.5}}, "org/x")


def test_other_data_than_the_tasks_gets_no_score_on_the_tasks():
    found = metadata(make_card({**RECORD, "data": {"dataset": None}}, "org/x"))
    assert not {"model-index", "datasets"} & found.keys()


def test_scores_that_are_not_finite_stay_out_of_the_metadata():
    record = {**RECORD, "splits": {}, "metrics": {"matthews_correlation": float("nan"), "accuracy": 0.5}}
    (result,) = metadata(make_card(record, "org/x"))["model-index"][0]["results"]
    assert [metric["type"] for metric in result["metrics"]] == ["accuracy"]


def test_no_secret_reaches_the_card():
    token = "hf_" + "x1Y" * 9
    record = {**RECORD, "command": f"run --token {token}", "settings": {"hub_token": token, "note": token}}
    assert token not in make_card(record, "org/x")


def test_table_cells_cannot_break_the_table():
    record = {**RECORD, "settings": {"input_files": ["a|b", "c\nd"]}}
    assert r"| input_files | a\|b, c d |" in make_card(record, "org/x")


def test_a_model_that_transformers_does_not_have_gets_no_stock_snippet():
    record = {**RECORD, "model": {**RECORD["model"], "model_type": "bert_repro"}}
    text = make_card(record, "org/x")
    assert "refuses this folder" in text
    assert "from transformers import pipeline" not in text
    assert "trust_remote_code=True" in text


def test_heads_are_those_of_the_model_family():
    for auto_class, head in ISLAND_HEADS.items():
        assert head_of(head.ours).auto_class == auto_class
    assert len(HEADS) == len(ISLAND_HEADS)
    with pytest.raises(ValueError, match="T5Stack"):
        head_of("T5Stack")


def test_a_widget_fits_the_task():
    record = {**RECORD, "data": {"text_columns": ["sentence"]}}
    assert metadata(make_card(record, "org/x"))["widget"] == [{"text": "A film that never lets you go."}]


def test_departures_and_parts_are_told():
    record = {
        **RECORD,
        "deviations": {"uncased": "the vocabulary is uncased"},
        "settings": {"max_eval_samples": 50, "max_train_samples": 1000, "data_dir": "/d/glue"},
    }
    text = make_card(record, "org/x")
    for part in (
        "- uncased: the vocabulary is uncased",
        "Scored on the first 50 examples only.",
        "Trained on the first 1,000 examples only.",
        "read from its official files",
    ):
        assert part in text, part


def test_paths_inside_the_run_are_relative():
    settings = {"output_dir": "/data/run", "resume_from_checkpoint": "/data/run/checkpoints/step-5"}
    text = make_card({**RECORD, "settings": settings}, "org/x")
    assert "| resume_from_checkpoint | checkpoints/step-5 |" in text and "| output_dir | run |" in text
    assert "the run was resumed" in text
