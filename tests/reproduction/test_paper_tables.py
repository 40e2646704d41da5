"""Our numbers in the paper's tables: means, what may be subtracted, what is tested, which orderings appear."""

import json

import pytest
from made_up import SHAPE, entry, finetuning, pretraining, row

from bert_repro.reproduction.collect import collect, settings_table
from bert_repro.reproduction.orderings import (
    APPEARS,
    FAILED,
    INCONCLUSIVE,
    NOT_RUN,
    REVERSED,
    model_differences,
    orderings_of,
)
from bert_repro.reproduction.paper_results import TABLES
from bert_repro.reproduction.paper_tables import AllResults


def table(folder, key, size_preset="trial"):
    results = AllResults(collect(folder))
    return next(table for table in results.tables if (table.key, table.size_preset) == (key, size_preset))


def rewrite(run, change):
    """Changes what a run has recorded."""
    record = json.loads((run / "results.json").read_text())
    change(record)
    (run / "results.json").write_text(json.dumps(record))


def number(folder, key, name, column):
    return table(folder, key).rows[name].ours[column]


SST2 = {"task": "sst2", "split": "validation"}


def test_an_entry_is_the_mean_over_seeds_with_interval_and_difference(tmp_path):
    row(tmp_path, [entry(5, "BERT-base", "SST-2")], 0.75, spread=0.02, **SST2)
    ours = number(tmp_path, "5", "BERT-base", "SST-2")
    assert ours.scores == pytest.approx((75, 73, 77), abs=0.1)
    assert (ours.mean, ours.deviation) == pytest.approx((75, 2), abs=0.1)
    assert ours.low < 73 and ours.high > 77  # Student's factor at three seeds is 4.3
    assert ours.difference == pytest.approx(75 - 92.7, abs=0.1)
    assert ours.reason is None


@pytest.mark.parametrize(
    ("task", "column", "changes", "reason"),
    [
        ("sst2", "SST-2", {"rows": 500}, "ours is scored on 500 rows, the published set has 872"),
        ("squad", "SQuAD", {"trained": 20_000}, "ours is fine-tuned on 20,000 rows, the published set has 87,599"),
        ("sst2", "SST-2", {"trained": 70_000}, "ours is fine-tuned on 70,000 rows, the published set has 67,349"),
        ("qnli", "QNLI", {}, "the paper's QNLI is GLUE's first release (108k training rows); today's has 104,743"),
    ],
)  # fmt: skip
def test_no_difference_where_the_data_do_not_agree(tmp_path, task, column, changes, reason):
    metric = "f1" if task == "squad" else "accuracy"
    row(tmp_path, [entry(5, "BERT-base", column)], 0.7, task=task, split="validation", metric=metric, **changes)
    ours = number(tmp_path, "5", "BERT-base", column)
    assert (ours.difference, ours.reason) == (None, reason)
    assert ours.mean == pytest.approx(70, abs=0.2)


def test_an_ensemble_trains_nothing_and_has_no_difference_from_the_papers(tmp_path):
    place = [entry(2, "BERT-large ensemble", "dev F1")]
    for run in row(tmp_path, place, 0.7, task="squad", split="validation", metric="f1"):
        rewrite(run, lambda record: record.pop("train"))
    ours = number(tmp_path, "2", "BERT-large ensemble", "dev F1")
    assert ours.difference is None and "pre-training checkpoints" in ours.reason


def test_dev_stands_for_a_test_set_without_labels_but_not_against_the_paper(tmp_path):
    for run in row(tmp_path, [entry(1, "BERT-base", "SST-2")], 0.75, **SST2):
        rewrite(run, lambda record: record["splits"].update(test={"rows": 1821, "files": ["predictions.test.tsv"]}))
    ours = number(tmp_path, "1", "BERT-base", "SST-2")
    assert ours.mean == pytest.approx(75, abs=2)
    assert ours.low < ours.mean < ours.high
    assert (ours.difference, ours.reason) == (None, "ours is scored on validation, the paper on test")


def test_a_degenerate_run_stays_in_the_mean_and_is_counted(tmp_path):
    entries = [entry(5, "BERT-base", "MRPC")]
    for seed, share, degenerate in ((1, 0.8, False), (2, 0.8, False), (3, 0.684, True)):
        finetuning(tmp_path, entries, share, task="mrpc", split="validation", seed=seed, degenerate=degenerate)
    ours = number(tmp_path, "5", "BERT-base", "MRPC")
    assert ours.mean == pytest.approx((80 + 80 + 68.4) / 3, abs=0.1)
    assert (ours.degenerate, len(ours.runs)) == (1, 3)


def fill_table_1(folder, columns=TABLES[1].columns[:-1], **changes):
    for place, column in enumerate(columns):
        scored = {"task": column.task, "split": column.split, "metric": column.metric, "examples": False}
        finetuning(folder, [entry(1, "BERT-base", column.name)], 0.5 + place / 100, **scored, **changes)


def test_the_average_of_table_1_needs_all_nine_columns(tmp_path):
    columns = TABLES[1].columns[:-1]
    fill_table_1(tmp_path, columns[:-1], rows=1000)
    assert table(tmp_path, "1").rows["BERT-base"].average is None
    fill_table_1(tmp_path, columns, rows=1000)
    assert table(tmp_path, "1").rows["BERT-base"].average == pytest.approx(54)


def test_the_leaderboards_average_counts_nine_tasks_of_the_papers_majority_on_wnli(tmp_path):
    fill_table_1(tmp_path, rows=1000)  # 0.50 to 0.58, from left to right
    for run in tmp_path.glob("mrpc-*"):
        rewrite(run, lambda record: record["splits"]["test"]["metrics"].update(accuracy=0.37))
    mnli, mrpc = (50 + 51) / 2, (57 + 37) / 2
    tasks = [mnli, 52, 53, 54, 55, 56, mrpc, 58, 65.1]
    assert table(tmp_path, "1").rows["BERT-base"].leaderboard == pytest.approx(sum(tasks) / 9)


LARGE = {**SHAPE, "num_hidden_layers": 24, "hidden_size": 1024}


def test_finished_models_stand_beside_the_papers_row_of_their_size_and_against_the_first(tmp_path):
    for place, (name, share, shape) in enumerate((("second", 0.80, SHAPE), ("a", 0.70, SHAPE), ("big", 0.801, LARGE))):
        known = {"place": place, "model": shape}
        row(tmp_path, [entry(1, name, "SST-2")], share, **SST2, **known)
        row(tmp_path, [entry(2, name, "dev F1")], share, task="squad", split="validation", metric="f1", **known)
        feature = {"task": "conll2003", "split": "validation", "metric": "entity_f1", "rows": 100}
        row(tmp_path, [entry(7, f"{name}: Last hidden", "dev")], share, **feature, **known)
    rows = table(tmp_path, "2").rows
    assert [name for name in rows if name not in TABLES[2].rows] == ["second", "a", "big"]
    assert [rows[name].paper_row for name in ("second", "big")] == ["BERT-base", "BERT-large"]
    assert rows["big"].ours["dev F1"].difference == pytest.approx(80.1 - 90.9, abs=0.1)
    assert table(tmp_path, "7").rows["a: Last hidden"].paper_row == "Last hidden"
    found = {(item.statement, item.column): item for item in model_differences(AllResults(collect(tmp_path)))}
    assert {column for _, column in found} == {"SST-2", "SQuAD v1.1 dev F1", "mean of the tasks"}
    worse, equal = (found[f"{name} against second", "mean of the tasks"] for name in ("a", "big"))
    assert (worse.verdict, equal.verdict) == (REVERSED, INCONCLUSIVE)
    parts = [item.ours for (statement, _), item in found.items() if statement == worse.statement and item is not worse]
    assert worse.ours.difference == pytest.approx(sum(part.difference for part in parts) / 2)
    # Two independent errors: the mean's is their root mean square over the root of two.
    half = sum(((part.high - part.low) / 2) ** 2 for part in parts) ** 0.5 / 2
    assert (worse.ours.high - worse.ours.low) / 2 == pytest.approx(half)


def test_a_column_whose_files_were_missing_is_not_run(tmp_path):
    for run in row(tmp_path, [entry(1, "BERT-base", "MNLI-m"), entry(1, "BERT-base", "MNLI-mm")], 0.6, rows=500):
        rewrite(run, lambda record: record["splits"].update(validation_mismatched={"missing": True}))
    ours = table(tmp_path, "1").rows["BERT-base"].ours
    assert set(ours) == {"MNLI-m"}
    assert ours["MNLI-m"].reason.startswith(
        "ours is scored on 500 rows of validation_matched, the paper on test_matched"
    )


def test_no_interval_leaves_what_a_score_can_be(tmp_path):
    ner = {"task": "conll2003", "split": "validation", "metric": "entity_f1", "rows": 100}
    row(tmp_path, [entry(7, "Last hidden", "dev")], 0.06, spread=0.05, **ner)
    row(tmp_path, [entry(7, "BERT-base", "dev")], 0.94, spread=0.05, **ner)
    assert number(tmp_path, "7", "Last hidden", "dev").low == 0.0
    assert number(tmp_path, "7", "BERT-base", "dev").high == 100.0


def test_size_presets_are_never_put_together(tmp_path):
    entries = [entry(5, "BERT-base", "SST-2")]
    for size_preset, share in (("one-gpu", 0.9), ("trial", 0.7)):
        row(tmp_path, entries, share, **SST2, size_preset=size_preset)
    for size_preset, share in (("one-gpu", 90), ("trial", 70)):
        ours = table(tmp_path, "5", size_preset).rows["BERT-base"].ours["SST-2"]
        assert ours.mean == pytest.approx(share, abs=0.1) and len(ours.runs) == 3


def verdicts(folder):
    return {
        (item.table, item.statement, item.column): item.verdict for item in orderings_of(AllResults(collect(folder)))
    }


def test_orderings_appear_are_inconclusive_are_reversed_or_not_run(tmp_path):
    for name, share in (("BERT-base", 0.62), ("No NSP", 0.62), ("LTR & no NSP", 0.56)):
        row(tmp_path, [entry(5, name, "MNLI-m")], share, rows=1000)
    for size, share, layers in (("2-128-4", 0.61, 2), ("4-128-4", 0.66, 4)):
        pretraining(tmp_path, size, [entry(6, size, "LM perplexity")], 70 - layers, num_hidden_layers=layers)
        row(tmp_path, [entry(6, size, "MNLI-m")], share, rows=400, model={**SHAPE, "parameters": 1_000_000 * layers})
    for name, share in (("BERT-base", 0.60), ("Concat last four hidden", 0.65)):
        scored = {"task": "conll2003", "split": "validation", "metric": "entity_f1", "rows": 1000}
        row(tmp_path, [entry(7, name, "dev")], share, **scored)
    for name, share in (("MLM", 0.62), ("LTR", 0.56)):
        row(tmp_path, [entry("figure5", name, 2000)], share, rows=1000, step=2000)
    found = verdicts(tmp_path)
    assert found["5", "LTR & no NSP below No NSP", "MNLI-m"] == APPEARS
    assert found["5", "No NSP below BERT-base", "MNLI-m"] == INCONCLUSIVE
    assert found["7", "Concat last four hidden below BERT-base", "dev"] == REVERSED
    assert found["6", "4-128-4 below 2-128-4", "LM perplexity"] == INCONCLUSIVE  # one run a row cannot be tested
    assert found["6", "4-128-4 above 2-128-4", "MNLI-m"] == APPEARS
    assert found["figure5", "MLM above LTR", "step 2,000"] == APPEARS
    assert found["1", "BERT-large above BERT-base", "MNLI-m"] == NOT_RUN
    assert found["8", "100/0/0 below 80/10/10", "NER fine-tune"] == NOT_RUN


@pytest.mark.parametrize(("degenerate", "verdict"), [(1, APPEARS), (2, FAILED)])
@pytest.mark.parametrize("side", ["No NSP", "BERT-base"])
def test_an_ordering_with_a_degenerate_side_has_failed(tmp_path, degenerate, verdict, side):
    for name, share in (("No NSP", 0.5), ("BERT-base", 0.8)):
        for seed in (1, 2, 3):
            finetuning(
                tmp_path, [entry(5, name, "SST-2")], share, **SST2, seed=seed,
                degenerate=name == side and seed <= degenerate,
            )  # fmt: skip
    assert verdicts(tmp_path)["5", "No NSP below BERT-base", "SST-2"] == verdict


def test_a_pre_training_that_never_left_the_plateau_takes_no_part_in_a_verdict(tmp_path):
    for name, share in (("No NSP", 0.5), ("BERT-base", 0.8)):
        start = pretraining(tmp_path, f"start of {name}")
        row(tmp_path, [entry(5, name, "SST-2")], share, **SST2, pretraining=start)
    assert verdicts(tmp_path)["5", "No NSP below BERT-base", "SST-2"] == APPEARS
    path = tmp_path / "start of No NSP" / "results.json"
    record = json.loads(path.read_text())
    for found in record["mlm_breakdown"]["by_frequency"][:-1]:
        found["accuracy"] = 0.002  # nothing but the most frequent tokens is ever predicted
    path.write_text(json.dumps(record))
    assert verdicts(tmp_path)["5", "No NSP below BERT-base", "SST-2"] == FAILED
    assert AllResults(collect(tmp_path)).failed_pretrainings == ["start of No NSP"]


# ------------------------------------------------------------------------------------------------------------ settings


def test_settings_are_listed_once_with_what_they_were_used_for(tmp_path):
    for name, nsp in (("one", True), ("two", False)):
        pretraining(tmp_path, name, learning_rate=1.5e-3, next_sentence_prediction=nsp)
    for task in ("sst2", "mrpc"):
        settings = {"learning_rate": 3e-4, "train_file": "/a/b"}
        finetuning(tmp_path, [], 0.7, task=task, split="validation", settings=settings)
    table = settings_table(collect(tmp_path))
    assert ("learning_rate", "0.0015", "pre-training") in table and ("learning_rate", "0.0003", "mrpc; sst2") in table
    assert ("next_sentence_prediction", "false", "pre-training") in table
    assert not any("/a/b" in values for _, values, _ in table), "no path of the machine"
