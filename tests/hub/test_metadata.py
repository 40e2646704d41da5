"""Metadata of cards: what they claim, and what our check of them accepts and refuses."""

import math
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard, parse_eval_result_entries

from bert_repro.configs import FinetuningConfig, GlueConfig, NerConfig, SquadConfig
from bert_repro.hub.card import make_card
from bert_repro.hub.metadata import HUB_TASKS, eval_result_entries, find_card_errors, hub_task_of
from bert_repro.models.configuration_bert_repro import AUTO_CLASSES
from bert_repro.tasks import TASKS, configured_task
from bert_repro.tasks.base import Task


def record_of(task: Task) -> dict:
    """What a run of a task leaves, as far as metadata goes."""
    metrics = dict.fromkeys((*task.metrics, task.primary_metric), 0.5)
    return {
        "task": task.name,
        "split": task.eval_splits[0],
        "metrics": metrics,
        "rows_scored": 10,
        "primary_metric": task.primary_metric,
        "seed": 1,
        "data": task.data_description(),
        "base_model": "org/bert-mini",
        "settings": {"model_name_or_path": "org/bert-mini"},
        "model": {"class": task.head},
    }


def fields_of(card: str) -> dict:
    return yaml.safe_load(card.split("---\n")[1])


@pytest.mark.parametrize("name", TASKS)
def test_cards_of_all_tasks_are_accepted_by_us_and_by_the_hubs_types(name):
    record = record_of(TASKS[name])
    card = make_card(record, f"org/bert-{name}")
    assert find_card_errors(card) == []
    read = ModelCard(card).data
    assert read.model_name == f"bert-{name}" and read.base_model == "org/bert-mini" and read.license and read.tags
    assert {result.metric_type for result in read.eval_results} == set(record["metrics"])
    (entry,) = parse_eval_result_entries(eval_result_entries(record))
    assert entry.dataset_id == record["data"]["dataset"] and entry.value == 0.5
    assert read.datasets == [entry.dataset_id] and read.language == "en"
    assert f"License of the data: {record['data']['license']}." in card


def data_files(root: Path) -> dict[str, FinetuningConfig]:
    """A run on custom data of every family that takes some."""
    (root / "own.csv").write_text("text,label\nA river.,x\nA stone.,y\n")
    (root / "own.txt").write_text("Paris B-LOC\nfalls O\n")
    (root / "own.json").write_text('[{"question": "What falls?", "context": "A stone falls.", "answer": "stone"}]')
    start = {"model_name_or_path": "org/bert-mini", "do_train": True}
    return {
        "squad": SquadConfig(**start, task_name="squad", train_file=str(root / "own.json")),
        "squad_v2": SquadConfig(**start, task_name="squad_v2", train_file=str(root / "own.json")),
        "glue": GlueConfig(**start, train_file=str(root / "own.csv")),
        "ner": NerConfig(**start, train_file=str(root / "own.txt")),
    }


@pytest.mark.parametrize("family", ["squad", "squad_v2", "glue", "ner"])
def test_ones_own_files_are_not_published_as_the_tasks_data(tmp_path, family):
    config = data_files(tmp_path)[family]
    record = record_of(configured_task(config).prepared(config, None))
    assert record["data"]["dataset"] is None
    assert record["data"]["files"] == {"train": Path(config.train_file).name}
    assert "Custom data, not published: `own." in make_card(record, "org/own")
    fields = fields_of(make_card(record, "org/own"))
    assert not {"datasets", "language", "model-index"} & set(fields)
    assert eval_result_entries(record) == []


def test_cards_of_all_heads_are_accepted():
    assert len(HUB_TASKS) == len(AUTO_CLASSES)
    for auto_class, head in AUTO_CLASSES.items():
        assert hub_task_of(head.ours).auto_class == auto_class
        for name in (head.ours, head.upstream.replace("LMHeadModel", "ForCausalLM")):
            assert find_card_errors(make_card({"model": {"class": name}}, "org/x")) == []
    with pytest.raises(ValueError, match="T5Stack"):
        hub_task_of("T5Stack")


CARDS = [path for path in Path(__file__).parents[2].glob("model_cards/*.md") if path.name != "README.md"]


@pytest.mark.parametrize("path", CARDS, ids=lambda path: path.stem)
def test_the_committed_cards_are_right(path):
    card = path.read_text("utf-8")
    assert find_card_errors(card) == []
    assert ModelCard(card).data.model_name in (path.stem, None)  # None: scored on other data than the task's
    assert f"\n# {path.stem}\n" in card


RIGHT = {
    "library_name": "transformers",
    "license": "apache-2.0",
    "language": ["en", "de"],
    "tags": ["bert"],
    "datasets": ["nyu-mll/glue"],
    "base_model": "org/bert-mini",
    "pipeline_tag": "question-answering",
    "widget": [{"text": "Where?", "context": "Here.", "example_title": "place"}],
    "model-index": [
        {
            "name": "x",
            "results": [
                {
                    "task": {"type": "question-answering"},
                    "dataset": {"type": "rajpurkar/squad", "name": "squad"},
                    "metrics": [{"type": "f1", "value": 0.5}],
                }
            ],
        }
    ],
}


def card_with(**changes: object) -> str:
    fields = {name: value for name, value in {**RIGHT, **changes}.items() if value is not None}
    return f"---\n{yaml.safe_dump(fields)}---\n# x\n"


def result(**changes: object) -> list:
    return [{"name": "x", "results": [{**RIGHT["model-index"][0]["results"][0], **changes}]}]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"license": "bsd-2-clause"},
        {"license": ["mit", "cc-by-sa-4.0"]},
        {"license": "other", "license_name": "own", "license_link": "LICENSE"},
        {"new_version": "org/bert-2", "co2_eq_emissions": {"emissions": 1.5, "source": "codecarbon"}},
        {"co2_eq_emissions": 1.5, "thumbnail": "https://host/x.png", "extra_gated_prompt": "Ask."},
        {"language": ["en", "zh-Hant", "multilingual"]},
    ],
)
def test_what_the_hub_accepts_is_accepted(changes):
    assert find_card_errors(card_with(**changes)) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"license": None}, "license: is missing"),
        ({"license": "Apache 2"}, "license: 'Apache 2' is not a license as the Hub spells it"),
        ({"library_name": 3}, "library_name: 3 is not the name of a library"),
        ({"language": "English"}, "language: 'English' is not an ISO 639 code"),
        ({"language": False}, "language: False is not an ISO 639 code"),
        ({"datasets": ["/data/glue"]}, "datasets: '/data/glue' is not the id of a dataset"),
        ({"datasets": []}, "datasets: is an empty list"),
        ({"base_model": "../bert"}, "base_model: '../bert' is not the id of a model"),
        ({"base_model": "org/a..b"}, "base_model: 'org/a..b' is not the id of a model"),
        ({"base_model": "runs/a/b"}, "base_model: 'runs/a/b' is not the id of a model"),
        ({"pipeline_tag": "qa"}, "pipeline_tag: 'qa' is not a task of BERT models"),
        ({"widgets": []}, "widgets: is unknown to the Hub; did you mean widget?"),
        ({"new_version": "../bert"}, "new_version: '../bert' is not the id of a model"),
        ({"co2_eq_emissions": "low"}, "co2_eq_emissions: must be a number"),
        ({"widget": ["Where?"]}, "widget[0]: 'Where?' must be a mapping"),
        ({"widget": [{"text": "Where?"}]}, "widget[0]: question-answering needs the text of context"),
        ({"widget": [{"text": "a", "context": "b", "src": "c"}]}, "widget[0]: src is no input"),
        ({"widget": {"text": "a"}}, "widget: must be a list"),
        ({"pipeline_tag": "multiple-choice"}, "widget: the pipeline tag multiple-choice has no widget"),
        ({"pipeline_tag": "fill-mask", "widget": [{"text": "No mask."}]}, "widget[0]: the text must hold [MASK] once"),
        ({"model-index": {"name": "x"}}, "model-index: must be a list"),
        ({"model-index": [{"results": []}]}, "model-index: every entry needs a name and results"),
        ({"model-index": result(dataset={"type": "a/b"})}, "result 0: dataset needs type and name"),
        ({"model-index": result(metrics=[])}, "result 0: metrics must be a list"),
        ({"model-index": result(metrics=[{"type": "f1", "value": "0.5"}])}, "needs a type and a finite number"),
        ({"model-index": result(metrics=[{"type": "f1", "value": True}])}, "needs a type and a finite number"),
        ({"model-index": result(metrics=[{"type": "f1", "value": math.nan}])}, "needs a type and a finite number"),
        ({"base_model": None, "base_model_relation": "finetune"}, "base_model_relation: says nothing without"),
    ],
)
def test_what_is_wrong_is_named(changes, message):
    assert [fault for fault in find_card_errors(card_with(**changes)) if message in fault], find_card_errors(
        card_with(**changes)
    )


@pytest.mark.parametrize("card", ["# no block\n", "---\n: : :\n---\n", "---\n- a\n---\n"])
def test_a_block_that_is_none(card):
    (fault,) = find_card_errors(card)
    assert fault.startswith("metadata: ")


def test_a_benchmark_gets_no_score_of_a_part_of_its_split_nor_the_card():
    record = record_of(TASKS["mrpc"])
    assert eval_result_entries({**record, "settings": {"max_eval_samples": 100}}) == []
    assert eval_result_entries({**record, "metrics": {"f1": math.nan}}) == []
    assert eval_result_entries({**record, "data": {}}) == []
    assert eval_result_entries({**record, "degenerate": True}) == []
    finite = {**record, "metrics": {"f1": math.nan, "accuracy": 0.5}}
    (result,) = fields_of(make_card(finite, "org/x"))["model-index"][0]["results"]
    assert [metric["type"] for metric in result["metrics"]] == ["accuracy"]
    record["settings"]["max_eval_samples"] = 100
    card = make_card(record, "org/bert-mrpc")
    assert "model-index" not in fields_of(card) and find_card_errors(card) == []
    assert "| validation | F1 | 0.5000 | 10 |" in card and "Scored on the first 100 examples only." in card


def test_a_threshold_is_no_score_and_is_said_to_be_tuned():
    record = {**record_of(TASKS["squad_v2"]), "train": {}}
    record["metrics"] = {"f1": 0.5, "null_score_diff_threshold": -1.5, "best_f1_threshold": -1.5}
    card = make_card(record, "org/x")
    (result,) = fields_of(card)["model-index"][0]["results"]
    assert [metric["type"] for metric in result["metrics"]] == ["f1"]
    assert "chosen on the split" in card and "chosen on this split" in eval_result_entries(record)[0]["notes"]
    assert 'else "no answer"' in card
    given = {**record, "settings": {"null_score_diff_threshold": 0.0}}
    assert "chosen on" not in make_card(given, "org/x")
    assert 'else "no answer"' not in make_card({**record, "metrics": {"f1": 0.5}}, "org/x")


def test_a_widget_takes_no_pair_of_sentences():
    record = record_of(TASKS["sst2"])
    assert fields_of(make_card(record, "org/x"))["widget"] == [{"text": "A film that never lets you go."}]
    assert "widget" not in fields_of(make_card(record_of(TASKS["mrpc"]), "org/x"))
