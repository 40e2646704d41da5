"""The conditions below a table: every setting that decides a number and is not the recipe's default."""

import json
from dataclasses import fields

import pytest
from made_up import SHAPE, entry, finetuning, pretraining, row

from bert_repro.configs import GlueConfig, NerConfig, PretrainingConfig, SquadConfig, SwagConfig
from bert_repro.models.modeling_bert_repro import BertReproTokenFeatures
from bert_repro.reproduction.collect import FinishedRun, collect
from bert_repro.reproduction.conditions import NOT_NAMED, inherited_dropout, named_settings, row_conditions, value_text
from bert_repro.reproduction.orderings import orderings
from bert_repro.reproduction.paper_tables import FEATURE_ROWS, AllResults
from bert_repro.reproduction.report import report_files

FLAGS = dict(zip(FEATURE_ROWS, BertReproTokenFeatures.LAYERS, strict=True))  # row -> `--feature_based`
CONFIGS = {
    "pre-training": PretrainingConfig,
    "mnli": GlueConfig,
    "swag": SwagConfig,
    "conll2003": NerConfig,
    "squad": SquadConfig,
    "squad_v2": SquadConfig,
}


def of(task, **settings):
    return FinishedRun("run", {"task": task, "seed": 1, "settings": settings}, "trial")


@pytest.mark.parametrize(("task", "config"), CONFIGS.items())
def test_every_setting_that_decides_is_named_where_it_is_not_the_default(task, config):
    defaults = json.loads(json.dumps({item.name: item.default for item in fields(config)}))
    assert named_settings(of(task, **defaults)) == {}
    for item in fields(config):
        named = named_settings(of(task, **{item.name: "other"}))
        left_out = item.name in NOT_NAMED or (item.name == "model_name_or_path" and task != "pre-training")
        assert named == ({} if left_out else {item.name: "other"})


def test_a_default_is_that_of_the_task_and_what_is_left_out_are_settings():
    assert {item.name for config in CONFIGS.values() for item in fields(config)} >= NOT_NAMED
    assert named_settings(of("swag", learning_rate=2e-5, warmup_ratio=0.1)) == {}
    assert named_settings(of("pre-training", warmup_ratio=0.1)) == {"warmup_ratio": "0.1"}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (True, "true"),
        (None, "none"),
        ([3e-5, 2e-5], "3e-05 2e-05"),
        ("google-bert/bert-base-uncased", "google-bert/bert-base-uncased"),
        ("/some/where/model", "model"),
        ("runs/study/models/one", "one"),
    ],
)
def test_a_value_is_short_and_shows_no_machines_path(value, text):
    assert value_text(value) == text


def conditions(folder, key):
    runs = collect(folder)
    table = next(table for table in AllResults(runs).tables if table.key == key)
    return row_conditions({row.name: row.runs for row in table.rows}, {run.name: run for run in runs})


MADE = {
    "learning_rate": 1.5e-3,
    "initializer_range": 0.1,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "bias_correction": True,
    "mixed_precision": "bf16",
    "adam_beta2": 0.999,
}


def fill_table_5(folder):
    for name, changes in (("BERT-base", {}), ("No NSP", {"next_sentence_prediction": False})):
        start = pretraining(folder, f"start-{len(changes)}", **MADE, **changes)
        tuning = {"learning_rate": 3e-4, "max_seq_length": 128, "bias_correction": True}
        for task, column in (("sst2", "SST-2"), ("mrpc", "MRPC")):
            own = {"bilstm_size": 96} if changes else {}
            row(
                folder, [entry(5, name, column)], 0.7, task=task, split="validation", pretraining=start,
                settings={**tuning, **own},
            )  # fmt: skip


def test_what_made_the_models_is_reported_once_and_what_differs_by_row(tmp_path):
    fill_table_5(tmp_path)
    shared, own = conditions(tmp_path, "5")
    named = shared["pre-training"].split(", ")
    assert {"learning rate 0.0015", "initializer_range 0.1", "hidden_dropout_prob 0", "bias_correction true"} < set(
        named
    )
    assert {"attention_probs_dropout_prob 0", "mixed_precision bf16"} < set(named)
    assert "adam_beta2" not in shared["pre-training"]
    inherited = "learning rate 0.0003, bias_correction true, as pre-trained: hidden_dropout_prob 0"
    assert inherited in shared["fine-tuned on sst2"]
    assert own == {
        "BERT-base": {},
        "No NSP": {"pre-training": "next_sentence_prediction false", "fine-tuned on mrpc; sst2": "bilstm_size 96"},
    }
    files = report_files(collect(tmp_path))
    assert all("initializer_range 0.1" in files[name] for name in ("report.md", "index.html", "numbers.json"))


def test_a_task_that_not_every_row_has_is_reported_once(tmp_path):
    for name in ("BERT-base", "No NSP"):
        finetuning(tmp_path, [entry(5, name, "SST-2")], 0.7, task="sst2", split="validation")
    finetuning(tmp_path, [entry(5, "No NSP", "MRPC")], 0.7, task="mrpc", split="validation")
    shared, own = conditions(tmp_path, "5")
    assert "3,668 rows" in shared["fine-tuned on mrpc"] and not any(own.values())


def test_seeds_with_other_settings_are_not_hidden(tmp_path):
    for seed, rate in ((1, 3e-4), (2, 5e-5)):
        settings = {"learning_rate": rate}
        finetuning(
            tmp_path, [entry(5, "BERT-base", "SST-2")], 0.7, task="sst2", split="validation", seed=seed,
            settings=settings,
        )  # fmt: skip
    (text,) = [text for name, text in conditions(tmp_path, "5")[0].items() if name == "fine-tuned on sst2"]
    assert "learning rate 0.0003" in text and "learning rate 5e-05" in text


def test_a_model_from_elsewhere_is_named(tmp_path):
    settings = {"model_name_or_path": "google-bert/bert-base-cased"}
    finetuning(tmp_path, [entry(5, "BERT-base", "SST-2")], 0.7, task="sst2", split="validation", settings=settings)
    assert conditions(tmp_path, "5")[0]["pre-training"] == "not in this report: google-bert/bert-base-cased"


def test_dropout_is_inherited_where_it_is_not_the_default():
    start = of("pre-training", hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.0)
    assert inherited_dropout(of("mnli"), start).endswith("hidden_dropout_prob 0.1, attention_probs_dropout_prob 0")
    assert inherited_dropout(of("mnli"), of("pre-training", hidden_dropout_prob=0.1)) == ""
    assert inherited_dropout(of("mnli"), None) == ""


def test_the_features_of_a_row_are_those_that_the_model_reads():
    for name, (combine, layers) in FEATURE_ROWS.items():
        assert BertReproTokenFeatures.LAYERS[FLAGS[name]] == layers
        assert (combine == "concat") == FLAGS[name].startswith("concat")


LAST_FOUR, ALL, CONCAT = "Weighted sum last four hidden", "Weighted sum all 12 layers", "Concat last four hidden"


def fill_table_7(folder, layers, rates=(5e-3, 5e-3, 5e-3)):
    for name, rate, share in zip((LAST_FOUR, ALL, CONCAT), rates, (0.5, 0.5, 0.7), strict=True):
        finetuning(
            folder, [entry(7, name, "dev")], share, task="conll2003", split="validation", metric="entity_f1", rows=400,
            model={**SHAPE, "num_hidden_layers": layers}, pretraining="start",
            settings={"learning_rate": rate, "feature_based": FLAGS[name]},
        )  # fmt: skip
    results = AllResults(collect(folder))
    return results, next(table for table in results.tables if table.key == "7")


def tried(results):
    return [item.statement for item in orderings(results) if item.table == "7" and item.difference is not None]


def test_with_four_layers_two_rows_are_one(tmp_path):
    results, table = fill_table_7(tmp_path, 4)
    assert table.row(ALL).same_as == LAST_FOUR and table.row(CONCAT).same_as is table.row(LAST_FOUR).same_as is None
    assert tried(results) == [f"{LAST_FOUR} below {CONCAT}"]
    files = report_files(results.runs)
    note = f"With 4 layers, {ALL} is the same computation as {LAST_FOUR}"
    assert all(note in files[name] for name in ("report.md", "index.html")) and '"same_as"' in files["numbers.json"]


@pytest.mark.parametrize(("layers", "rates"), [(6, (5e-3, 5e-3, 5e-3)), (4, (5e-3, 1e-3, 5e-3))])
def test_other_rows_are_not(tmp_path, layers, rates):
    results, table = fill_table_7(tmp_path, layers, rates)
    assert table.row(ALL).same_as is None
    assert len(tried(results)) == 2


def test_a_row_stands_for_itself_where_its_twin_was_not_run(tmp_path):
    fill_table_7(tmp_path, 4)
    for path in tmp_path.glob("*/results.json"):
        if json.loads(path.read_text())["settings"]["feature_based"] == "weighted_last_four":
            path.unlink()
    assert tried(AllResults(collect(tmp_path))) == [f"{ALL} below {CONCAT}"]
