"""Our numbers in the paper's tables: means, what may be subtracted, what is tested, which orderings appear."""

import json
from dataclasses import replace

import pytest
from made_up import entry, finetuning, pretraining, row

from bert_repro.paper_results import TABLES, Column
from bert_repro.reproduction.collect import collect
from bert_repro.reproduction.conditions import no_difference
from bert_repro.reproduction.orderings import APPEARS, HIDDEN, NOT_MEASURABLE, NOT_RUN, REVERSED, orderings
from bert_repro.reproduction.paper_tables import AllResults, score_range
from bert_repro.reproduction.render import table_view


def table(folder, key, size_preset="trial"):
    results = AllResults(collect(folder))
    return next(
        table for table in [*results.tables, *results.figures] if (table.key, table.size_preset) == (key, size_preset)
    )


def number(folder, key, name, column):
    return table(folder, key).row(name).ours[column]


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
        ("sst2", "SST-2", {"trained": 6000}, "ours is fine-tuned on 6,000 rows, the published set has 67,349"),
        (
            "squad", "SQuAD", {"trained": 20_000},
            "ours is fine-tuned on 20,000 rows, the published set has 87,599",
        ),
        (
            "squad", "SQuAD", {"train": {"rows": 700}, "settings": {"max_train_samples": 500}},
            "ours is fine-tuned on 500 rows, the published set has 87,599",
        ),
        ("sst2", "SST-2", {"trained": 70_000}, "ours is fine-tuned on 70,000 rows, the published set has 67,349"),
        ("sst2", "SST-2", {"train": {}}, "the results do not say what ours was fine-tuned on"),
        (
            "sst2", "SST-2", {"settings": {"train_file": "mine.tsv"}}, "ours read custom files (train_file)",
        ),
        ("qnli", "QNLI", {}, "the paper's QNLI is GLUE's first release (108k training rows); today's has 104,743"),
    ],
)  # fmt: skip
def test_no_difference_where_the_data_do_not_agree(tmp_path, task, column, changes, reason):
    metric = "f1" if task == "squad" else "accuracy"
    row(tmp_path, [entry(5, "BERT-base", column)], 0.7, task=task, split="validation", metric=metric, **changes)
    ours = number(tmp_path, "5", "BERT-base", column)
    assert (ours.difference, ours.reason) == (None, reason)
    assert ours.mean == pytest.approx(70, abs=0.2)


def test_dev_stands_for_a_test_set_without_labels_but_not_against_the_paper(tmp_path):
    runs = row(tmp_path, [entry(1, "BERT-base", "SST-2")], 0.75, **SST2)
    for run in runs:
        record = json.loads((run / "results.json").read_text())
        record["splits"]["test"] = {"rows": 1821, "files": ["predictions.test.tsv"]}
        (run / "results.json").write_text(json.dumps(record))
    ours = number(tmp_path, "1", "BERT-base", "SST-2")
    assert ours.mean == pytest.approx(75, abs=2)
    assert ours.low < ours.mean < ours.high
    assert (ours.difference, ours.reason) == (None, "ours is scored on validation, the paper on test")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"train": {"rows": 401, "examples": 14_000}}, "on 14,000 rows, the published set has 14,041"),
        ({"train": {"rows": 401, "examples": 14_041}}, None),
        ({"train": {"rows": 401}, "settings": {"max_train_samples": 500}}, "on 500 rows, the published set"),
        ({"train": {"rows": 401}}, "the results do not say"),
    ],
)
def test_windows_are_no_rows_of_a_training_set(tmp_path, changes, reason):
    task = {"task": "conll2003", "split": "validation", "metric": "entity_f1"}
    row(tmp_path, [entry(7, "BERT-base", "dev")], 0.7, **task, **changes)
    ours = number(tmp_path, "7", "BERT-base", "dev")
    assert (ours.difference is None) == (reason is not None)
    assert ours.reason is None if reason is None else reason in ours.reason


PUBLISHED = [
    (key, column)
    for key, printed in TABLES.items()
    for column in printed.columns
    if column.task not in ("glue", "pretraining") and not (column.task.startswith("squad") and column.split == "test")
]


@pytest.mark.parametrize(("key", "column"), PUBLISHED)
def test_every_column_with_published_data_is_held_to_it(tmp_path, key, column):
    # Ten rows scored and twenty learned from have no place beside the paper's.
    shape = {"task": column.task, "split": column.split, "metric": column.metric, "examples": False}
    name = next(
        name for name, values in TABLES[key].rows.items() if name in ("BERT-base", "BERT-large", "base", "80/10/10")
    )
    finetuning(tmp_path / "scored", [entry(key, name, column.name)], 0.6, rows=10, **shape)
    finetuning(tmp_path / "trained", [entry(key, name, column.name)], 0.6, trained=20, **shape)
    finetuning(tmp_path / "complete", [entry(key, name, column.name)], 0.6, **shape)
    reasons = {kind: no_difference(column, collect(tmp_path / kind)) for kind in ("scored", "trained", "complete")}
    assert reasons["scored"] and reasons["trained"]
    assert reasons["complete"] == column.incomparable


@pytest.mark.parametrize("task", ["squad", "squad_v2"])
def test_a_split_of_unknown_size_has_a_reason(tmp_path, task):
    column = next(column for column in TABLES[2 if task == "squad" else 3].columns if column.split == "test")
    finetuning(tmp_path, [], 0.6, task=task, split="test", metric=column.metric, rows=9_533)
    assert no_difference(column, collect(tmp_path)) == f"how many rows {task}'s test set has is not published"


def test_a_row_the_paper_lacks_stands_without_its_numbers(tmp_path):
    row(tmp_path, [entry(6, "tiny", "MRPC")], 0.7, task="mrpc", split="validation")
    found = table(tmp_path, "6").row("tiny")
    assert found.paper == {} and found.ours["MRPC"].difference is None and found.ours["MRPC"].reason is None


def test_a_degenerate_run_stays_in_the_mean_and_is_counted(tmp_path):
    entries = [entry(5, "BERT-base", "MRPC")]
    for seed, share, degenerate in ((1, 0.8, False), (2, 0.8, False), (3, 0.684, True)):
        finetuning(tmp_path, entries, share, task="mrpc", split="validation", seed=seed, degenerate=degenerate)
    ours = number(tmp_path, "5", "BERT-base", "MRPC")
    assert ours.mean == pytest.approx((80 + 80 + 68.4) / 3, abs=0.1)
    assert (ours.degenerate, len(ours.runs)) == (1, 3)


def fill_table_1(folder, shift=0.0, name="BERT-base", columns=TABLES[1].columns[:-1], **changes):
    for place, column in enumerate(columns):
        finetuning(
            folder, [entry(1, name, column.name)], 0.5 + shift + place / 100, task=column.task, split=column.split,
            metric=column.metric, examples=False, **changes,
        )  # fmt: skip


def test_the_average_of_table_1_needs_all_nine_columns(tmp_path):
    columns = TABLES[1].columns[:-1]
    fill_table_1(tmp_path, columns=columns[:-1], rows=1000)
    assert table(tmp_path, "1").row("BERT-base").average is None
    last = columns[-1]
    finetuning(tmp_path, [entry(1, "BERT-base", last.name)], 0.58, task="rte", split="test", rows=1000)
    assert table(tmp_path, "1").row("BERT-base").average == pytest.approx(54)


def line_of(found, row, kind):
    view = table_view(found, ({}, {}))
    (line,) = [line for line in view.lines if (line.row, line.kind) == (row, kind)]
    return dict(zip([head for head, _ in view.columns], line.cells, strict=True)), view.notes


def test_the_average_has_a_difference_or_a_reason(tmp_path, monkeypatch):
    fill_table_1(tmp_path)
    cells, notes = line_of(table(tmp_path, "1"), "BERT-base", "difference")
    assert cells["Average"] == cells["QNLI"] == "none (a)" and "GLUE's first release" in notes[0]
    # Were QNLI today's, all nine could be subtracted and so could their mean.
    columns = tuple(replace(column, incomparable=None) for column in TABLES[1].columns)
    monkeypatch.setitem(TABLES, 1, replace(TABLES[1], columns=columns))
    found = table(tmp_path, "1")
    assert found.row("BERT-base").average_difference == pytest.approx(54 - 79.6, abs=0.05)
    assert line_of(found, "BERT-base", "difference")[0]["Average"] == "−25.6"
    fill_table_1(tmp_path / "part", rows=10, size_preset="part")
    cells, notes = line_of(table(tmp_path, "1", "part"), "BERT-base", "difference")
    assert cells["Average"] == cells["MNLI-m"] == "none (a)" and "scored on 10 rows" in notes[0]


def test_an_average_that_is_not_there_has_neither(tmp_path):
    fill_table_1(tmp_path, columns=TABLES[1].columns[:3])
    found = table(tmp_path, "1")
    assert line_of(found, "BERT-base", "ours")[0]["Average"] == "not all nine run"
    assert line_of(found, "BERT-base", "difference")[0]["Average"] == "–"


def test_a_line_of_nothing_but_dashes_is_left_out(tmp_path):
    for seed, examples in ((1, True), (2, False)):
        entries = [entry(5, name, "SST-2") for name in ("BERT-base", "No NSP")]
        finetuning(tmp_path, entries, 0.7, **SST2, seed=seed, examples=examples)
    view = table_view(table(tmp_path, "5"), ({}, {}))
    assert [line.kind for line in view.lines if line.row == "No NSP"] == ["paper", "ours", "difference"]


def test_two_averages_are_ordered(tmp_path):
    fill_table_1(tmp_path)
    fill_table_1(tmp_path, 0.1, name="BERT-large")
    assert verdicts(tmp_path)["1", "BERT-large above BERT-base", "Average"] == APPEARS


def test_no_interval_leaves_what_a_score_can_be(tmp_path):
    ner = {"task": "conll2003", "split": "validation", "metric": "entity_f1", "rows": 100}
    row(tmp_path, [entry(7, "Last hidden", "dev")], 0.06, spread=0.05, **ner)
    row(tmp_path, [entry(7, "BERT-base", "dev")], 0.94, spread=0.05, **ner)
    assert number(tmp_path, "7", "Last hidden", "dev").low == 0.0
    assert number(tmp_path, "7", "BERT-base", "dev").high == 100.0
    comparison = number(tmp_path, "7", "Last hidden", "dev").comparison
    assert -100 <= comparison.low <= comparison.difference <= comparison.high <= 100


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("accuracy", (0, 100)),
        ("entity_f1", (0, 100)),
        ("matthews_correlation", (-100, 100)),
        ("spearmanr", (-100, 100)),
    ],
)
def test_a_correlation_may_be_negative(metric, expected):
    assert score_range(Column("", "", metric, "")) == expected


def test_rows_are_tested_against_the_baseline_on_the_same_examples(tmp_path):
    row(tmp_path, [entry(5, "BERT-base", "SST-2")], 0.80, **SST2)
    row(tmp_path, [entry(5, "No NSP", "SST-2")], 0.60, **SST2)
    row(tmp_path, [entry(5, "LTR & no NSP", "SST-2")], 0.60, examples=False, **SST2)
    found = table(tmp_path, "5")
    assert found.baseline == "BERT-base"
    tested = found.row("No NSP").ours["SST-2"].comparison
    assert tested.difference == pytest.approx(-20, abs=0.2) and tested.p_value < 0.01
    assert found.row("BERT-base").ours["SST-2"].comparison is None
    assert found.row("LTR & no NSP").ours["SST-2"].comparison is None
    row(tmp_path / "other", [entry(5, "BERT-base", "SST-2")], 0.8, **SST2)
    row(tmp_path / "other", [entry(5, "No NSP", "SST-2")], 0.6, rows=500, **SST2)
    assert number(tmp_path / "other", "5", "No NSP", "SST-2").comparison is None


def test_size_presets_are_never_put_together(tmp_path):
    entries = [entry(5, "BERT-base", "SST-2")]
    for size_preset, share in (("gpu", 0.9), ("trial", 0.7)):
        row(tmp_path, entries, share, **SST2, size_preset=size_preset)
    for size_preset, share in (("gpu", 90), ("trial", 70)):
        ours = table(tmp_path, "5", size_preset).row("BERT-base").ours["SST-2"]
        assert ours.mean == pytest.approx(share, abs=0.1) and len(ours.runs) == 3


def test_table_6_compares_with_the_smallest_size_that_was_run(tmp_path):
    for name, count in (("tiny", 4_000_000), ("mini", 11_000_000)):
        size = {"num_hidden_layers": 2, "hidden_size": 128, "num_attention_heads": 2, "parameters": count}
        row(tmp_path, [entry(6, name, "MRPC")], 0.7, task="mrpc", split="validation", model=size)
    found = table(tmp_path, "6")
    assert found.baseline == "tiny"
    assert [item.name for item in found.rows if item.ours] == ["tiny", "mini"]


def verdicts(folder):
    found = orderings(AllResults(collect(folder)))
    return {(item.table, item.statement, item.column): item.verdict for item in found}


@pytest.fixture(scope="module")
def found(trial):
    return verdicts(trial)


def test_orderings_appear_are_hidden_by_noise_are_reversed_or_not_tried(found):
    assert found["5", "LTR & no NSP below No NSP", "MNLI-m"] == APPEARS
    assert found["5", "No NSP below BERT-base", "MNLI-m"] == HIDDEN
    assert found["7", "Concat last four hidden below BERT-base", "dev"] == REVERSED
    assert found["6", "4-128-4 below 2-128-4", "LM perplexity"] == APPEARS  # lower is better; one run a row
    assert found["6", "4-128-4 above 2-128-4", "MNLI-m"] == APPEARS
    assert found["figure5", "MLM above LTR", "step 2,000"] == APPEARS
    assert found["1", "BERT-large above BERT-base", "MNLI-m"] == NOT_RUN
    assert found["8", "100/0/0 below 80/10/10", "NER fine-tune"] == NOT_RUN
    assert not [key for key in found if key[0] == "5" and "BiLSTM" in key[1] and key[2] == "MNLI-m"]


@pytest.mark.parametrize(
    ("degenerate", "verdict"), [(0, APPEARS), (1, APPEARS), (2, NOT_MEASURABLE), (3, NOT_MEASURABLE)]
)
@pytest.mark.parametrize("side", ["No NSP", "BERT-base"])
def test_an_ordering_with_a_degenerate_side_is_not_measurable(tmp_path, degenerate, verdict, side):
    for name, share in (("No NSP", 0.5), ("BERT-base", 0.8)):
        for seed in (1, 2, 3):
            finetuning(
                tmp_path, [entry(5, name, "SST-2")], share, **SST2, seed=seed,
                degenerate=name == side and seed <= degenerate,
            )  # fmt: skip
    assert verdicts(tmp_path)["5", "No NSP below BERT-base", "SST-2"] == verdict
    cells, _ = line_of(table(tmp_path, "5"), "No NSP", "test")
    assert (cells["SST-2"] == "not measurable") == (verdict == NOT_MEASURABLE)


def test_a_worse_larger_model_is_reversed(tmp_path):
    pretraining(tmp_path, "small", [entry(6, "2-128-4", "LM perplexity")], perplexity=50.0)
    model = {"num_hidden_layers": 4, "hidden_size": 128, "num_attention_heads": 4, "parameters": 10**7}
    name = pretraining(tmp_path, "large", [entry(6, "4-128-4", "LM perplexity")], perplexity=60.0)
    row(tmp_path, [entry(6, "4-128-4", "MRPC")], 0.7, task="mrpc", split="validation", model=model, pretraining=name)
    statements = [key for key, verdict in verdicts(tmp_path).items() if verdict == REVERSED]
    assert [(key[0], key[2]) for key in statements] == [("6", "LM perplexity")]
