"""A card says what the results of a run say, in the Hub's own form, and claims no more."""

import ast
import json
import re
import shutil
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard
from running import recipe

from bert_repro.configs import SquadConfig
from bert_repro.hub.card import THRESHOLD, make_card, renamed
from bert_repro.hub.hub_tasks import HUB_TASKS
from bert_repro.results import write_results
from bert_repro.tasks import SPLIT_ROWS, TASKS, configured_task
from bert_repro.tasks.base import Task

METRICS = {"accuracy": 0.8578, "f1": 0.9}
RESULTS = {
    "task": "mrpc",
    "split": "validation",
    "metrics": METRICS,
    "rows_scored": 408,
    "splits": {
        "validation": {"metrics": METRICS, "rows_scored": 408, "published_rows": 408},
        "test": {"missing": True},
    },
    "seed": 7,
    "base_model": "org/bert-mini",
    "settings": {"model_name_or_path": "org/bert-mini", "learning_rate": 3e-5, "warmup_ratio": 0.1, "data_dir": None},
    "versions": {"python": "3.11.7", "torch": "2.13.0"},
    "git_commit": "0123abc",
    "hardware": {"device": "cpu", "processes": 2},
    "command": "python recipes/run_glue.py --task_name mrpc",
    "model": {"class": "BertReproForSequenceClassification", "parameters": 11_171_074, "labels": ["no", "not_yes"]},
    "data": {"dataset": "nyu-mll/glue", "config": "mrpc", "language": "en", "text_columns": ["sentence1", "sentence2"]},
    "train": {"steps": 344, "rows": 3668},
}


def metadata(card: str) -> dict:
    return yaml.safe_load(card.split("---\n")[1])


def test_text_says_what_the_results_say_in_few_words():
    text = make_card(RESULTS, "org/bert-mini-mrpc")
    for part in (
        "# org/bert-mini-mrpc\n",
        "| validation | accuracy | 0.8578 | 408 |",
        "| test | any | not run |",
        "seed 7",
        "11,171,074 parameters",
        "Labels: no, not_yes.",
        "python recipes/run_glue.py --task_name mrpc",
        "| optimizer steps | 344 |",
        "| learning_rate | 3e-05 |",
        "torch 2.13.0",
        "| commit | 0123abc |",
        "| hardware | 2 x cpu |",
        "The license of the training data is not recorded.",
        '"text_pair"',
    ):
        assert part in text, part
    assert "warmup_ratio" not in text, "settings at their default are left out"
    assert "None" not in text and "{{" not in text
    assert len(text.split()) < 500


def test_without_results_a_card_claims_nothing():
    text = make_card({}, "org/unknown")
    assert "Not run." in text and "Training: not run, or not recorded." in text and "How to use it" not in text
    assert not {"model-index", "base_model", "datasets", "language", "pipeline_tag", "widget"} & metadata(text).keys()


def test_renaming_a_card_equals_making_it_with_the_other_name():
    for results in (RESULTS, {}):
        card = make_card(results, "toy")
        assert renamed(card, "org/bert-toy") == make_card(results, "org/bert-toy") != card
        assert renamed(card, "toy") == card
    assert renamed("No title.\n", "org/x") == "No title.\n"


HOSTILE = '"]) # \n---\n```\nimport os; os.system("x")\n```\n# <b>Title</b> | a | `b` [c](http://d)\x1b[0m'


@pytest.mark.parametrize("ending", HUB_TASKS)
def test_text_of_a_run_cannot_change_the_structure_of_its_card(ending):
    def card_of(text: str) -> str:
        record = {**RESULTS, **dict.fromkeys(("task", "command", "git_commit"), text)}
        record |= {"model": {"class": f"BertRepro{ending}", "labels": [text, "b"]}, "base_model": None, "splits": {}}
        record |= {"data": {"dataset": "a/b", "config": text, "license": text, "note": text}, "metrics": {text: 0.5}}
        record |= {"deviations": {text: text}, "versions": {text: text}, "seed": text}
        record |= {"baselines": {text: {"accuracy": 0.5}}, "primary_metric": "accuracy"}
        record["metrics"] = {text: 0.5, "accuracy": 0.4}
        return make_card({**record, "settings": {"model_name_or_path": text, text: text}}, text)

    plain, odd = card_of("plain"), card_of(HOSTILE)
    assert metadata(odd)["tags"][-1] == HOSTILE
    shape = re.compile(r"^(#+ |`{3,}(?=\w*$)|\| --- |---$|</?\w+>)", re.MULTILINE)
    body = [card.split("---\n", 2)[2] for card in (plain, odd)]
    shapes = [[found[1].replace("````", "```") for found in shape.finditer(text)] for text in body]
    assert shapes[0] == shapes[1]
    snippets = [re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL) for text in body]
    for one, other in zip(*snippets, strict=True):
        calls = [[ast.unparse(node.func) for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
                 for code in (one, other)]  # fmt: skip
        assert calls[0] == calls[1]
    outside_code = re.sub(r"(?<!\\)(`+)(?!`).*?(?<![\\`])\1(?!`)", "", body[1], flags=re.DOTALL)
    assert not re.search(r"(?<!\\)(<b>|\[c\])", outside_code)


def test_a_class_that_is_no_name_is_refused_and_no_secret_reaches_the_card(monkeypatch):
    with pytest.raises(ValueError, match="import os"):
        make_card({"model": {"class": "x; import os #ForMaskedLM"}}, "org/x")
    token = "hf_" + "x1Y" * 9
    monkeypatch.setenv("HF_TOKEN", token)
    results = {**RESULTS, "command": f"run --token {token}", "settings": {"hub_token": token, "note": token}}
    assert token not in make_card(results, "org/x")


def test_a_model_that_transformers_does_not_have_gets_no_upstream_snippet():
    text = make_card({**RESULTS, "model": {**RESULTS["model"], "model_type": "bert_repro"}}, "org/x")
    assert "refuses this folder" in text
    assert "from transformers import pipeline" not in text
    assert "trust_remote_code=True" in text


# ------------------------------------------------------------------------------------------------------------ metadata


def record_of(task: Task) -> dict:
    """What a run of a task leaves, as far as metadata goes."""
    metrics = dict.fromkeys((*task.metrics, task.primary_metric), 0.5)
    split = task.eval_splits[0]
    rows = SPLIT_ROWS[task.name, split]
    return {
        "base_model": "org/bert-mini",
        "settings": {"model_name_or_path": "org/bert-mini"},
        "task": task.name,
        "metrics": metrics,
        "splits": {split: {"metrics": metrics, "rows_scored": rows, "published_rows": rows}},
        "data": task.data_description(),
        "model": {"class": task.head},
    }


@pytest.mark.parametrize("name", sorted({name for name, _ in SPLIT_ROWS} - {"ax"}))
def test_cards_of_all_tasks_are_read_by_the_hubs_types(name):
    record = record_of(TASKS[name])
    card = make_card(record, f"org/bert-{name}")
    read = ModelCard(card).data
    assert read.model_name == f"bert-{name}" and read.base_model == "org/bert-mini" and read.tags
    assert {result.metric_type for result in read.eval_results} == set(record["metrics"])
    assert {result.dataset_type for result in read.eval_results} == {record["data"]["dataset"]}
    assert read.datasets == [record["data"]["dataset"]] and read.language == record["data"]["language"]
    assert f"The license of the training data is {record['data']['license']}." in card


def test_a_score_of_a_part_of_a_split_is_not_tagged_as_the_splits():
    whole = record_of(TASKS["mnli"])
    split = dict(whole["splits"]["validation_matched"])
    other = {"validation_mismatched": {**split, "rows_scored": 100, "published_rows": 9_832}}
    for record, splits in (
        (whole, {"validation_matched"}),
        ({**whole, "splits": whole["splits"] | other}, {"validation_matched"}),
        ({**whole, "splits": {"validation_matched": {**split, "rows_scored": 9_814}}}, set()),
        ({**whole, "data": {**whole["data"], "dataset": None}}, set()),
    ):
        card = make_card(record, "org/x")
        claims = ModelCard(card).data.eval_results or []
        assert {claim.dataset_split for claim in claims} == splits
        assert "| validation\\_matched | accuracy | 0.5000 |" in card or "| validation_matched | accuracy |" in card


def test_a_run_says_how_many_rows_the_published_split_has(world, untrained, tmp_path):
    run = ["run_glue", "--data_dir", world.glue, "--model_name_or_path", untrained, "--output_dir", tmp_path / "run"]
    assert recipe(*run, "--task_name sst2 --do_train --do_eval --max_steps 1") == 0
    split = json.loads((tmp_path / "run" / "results.json").read_text())["splits"]["validation"]
    assert split["rows_scored"] < split["published_rows"] == 872, "official files that were cut short"
    assert "model-index" not in metadata((tmp_path / "run" / "README.md").read_text())


def test_ones_own_files_are_not_published_as_the_tasks_data(tmp_path):
    question = {"id": "1", "question": "Where?", "answers": [{"text": "Paris", "answer_start": 0}]}
    rows = {"data": [{"title": "t", "paragraphs": [{"context": "Paris", "qas": [question]}]}]}
    (tmp_path / "a.json").write_text(json.dumps(rows))
    train = {"do_train": True, "task_name": "squad", "train_file": str(tmp_path / "a.json")}
    config = SquadConfig(model_name_or_path="org/x", **train)
    record = record_of(TASKS["squad"]) | {"data": configured_task(config).prepared(config, None).data_description()}
    card = make_card(record, "org/own")
    assert "Data: not published: `a.json` (train)." in card
    assert not {"datasets", "language"} & set(metadata(card))
    for claim in ModelCard(card).data.eval_results:
        assert (claim.dataset_type, claim.dataset_name) == ("custom", "held out of a.json")


def test_scores_on_ones_own_rows_are_tagged_with_the_file_and_its_rows_and_of_a_part_not_at_all(tmp_path, untrained):
    rows = [{"text": f"a {word} stone", "label": word} for word in ("bright", "quiet")]
    for name, times in (("train", 8), ("dev", 5)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows * times))
    run = ["--max_steps 1 --overwrite_output_dir --model_name_or_path", untrained, "--output_dir", tmp_path / "run"]
    files = ["--train_file", tmp_path / "train.jsonl", "--validation_file", tmp_path / "dev.jsonl"]
    for flags, rows_scored in (("--seed 1", {10}), ("--max_eval_samples 4", set()), ("--max_eval_samples 99", {10})):
        assert recipe("run_glue", *run, *files, flags) == 0
        card = ModelCard((tmp_path / "run" / "README.md").read_text()).data
        assert {claim.dataset_args["rows"] for claim in card.eval_results or ()} == rows_scored
        for claim in card.eval_results or ():
            found = (claim.dataset_type, claim.dataset_name, claim.dataset_split, claim.task_type)
            assert found == ("custom", "dev.jsonl", "validation", "text-classification")
            assert card.base_model is None, "a folder that is not on the Hub"


def test_a_part_of_the_published_training_set_is_said():
    record = {**record_of(TASKS["sst2"]), "train": {"examples": 500, "published_rows": 67_349}}
    assert "Trained on 500 of the 67,349 published rows." in make_card(record, "org/x")
    record["train"]["examples"] = 67_349
    assert "published rows" not in make_card(record, "org/x")


def test_a_threshold_is_no_score_and_is_said_to_be_tuned():
    record = {**record_of(TASKS["squad_v2"]), "train": {}}
    record["metrics"] = {"f1": 0.5, THRESHOLD: -1.5}
    record["splits"]["validation"]["metrics"] = record["metrics"]
    card = make_card(record, "org/x")
    assert [claim.metric_type for claim in ModelCard(card).data.eval_results] == ["f1"]
    assert "chosen on the split" in card
    assert "chosen on" not in make_card({**record, "settings": {THRESHOLD: 0.0}}, "org/x")


def test_the_committed_card_is_that_of_the_committed_results_and_loads_as_typed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = Path("checkpoints") / "bert-repro-mini"
    shutil.copytree(Path(__file__).parents[2] / folder, folder)
    committed = (folder / "README.md").read_text()
    assert recipe("make_card", "--folder", folder, "--license apache-2.0") == 0
    assert (folder / "README.md").read_text() == committed
    assert 'model="checkpoints/bert-repro-mini"' in committed and "(training.png)" in committed
    assert ModelCard(committed).data.license == "apache-2.0" and len(re.findall(r"\S*\w\S*", committed)) <= 500


# ------------------------------------------------------------------------------------------------ recipes/make_card.py


def test_the_recipe_adds_facts(tmp_path):
    cola = {**RESULTS, "task": "cola", "settings": {"model_name_or_path": "/srv/bert"}, "base_model": None}
    write_results(tmp_path, cola)
    card = tmp_path / "README.md"
    facts = "--base_model org/bert --license bsd-2-clause --language en de --hub_model_id org/bert-cola"
    assert recipe("make_card", "--folder", tmp_path, facts) == 0
    fields = metadata(card.read_text())
    assert (fields["base_model"], fields["license"], fields["language"]) == ("org/bert", "bsd-2-clause", ["en", "de"])
    assert fields["datasets"] == ["nyu-mll/glue"]


def test_a_run_that_made_no_model_has_no_card(tmp_path, refused):
    assert "results.json: no such file" in refused("make_card", "--folder", tmp_path)
    write_results(tmp_path, {name: value for name, value in RESULTS.items() if name != "train"})
    assert "--folder" in refused("make_card", "--folder", tmp_path)
    assert not (tmp_path / "README.md").exists()
