"""The suite of runs: every entry of the paper's tables, each run once, other data other runs, and what is kept."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
from errors import user_error

from bert_repro.configs import StudyConfig
from bert_repro.recipes import RECIPES
from bert_repro.reproduction import runner
from bert_repro.reproduction.paper_results import TABLE_KEYS, TABLES, TableEntry
from bert_repro.reproduction.size_presets import SIZE_PRESETS, find_size_preset
from bert_repro.reproduction.suite import PlannedRun, given_models, plan_runs, task_fingerprint

TRIAL = SIZE_PRESETS["trial"]
# mini-study is for Table 5 and Figure 5 alone.
PRETRAINING = {name: preset for name, preset in SIZE_PRESETS.items() if preset.sizes and name != "mini-study"}


def by_entry(runs: list[PlannedRun]) -> dict[TableEntry, list[PlannedRun]]:
    found: dict[TableEntry, list[PlannedRun]] = {}
    for run in runs:
        for entry in run.entries:
            found.setdefault(entry, []).append(run)
    return found


@pytest.mark.parametrize("preset", PRETRAINING.values(), ids=PRETRAINING)
def test_every_entry_of_the_papers_tables_has_a_run_for_each_seed_that_its_recipe_takes(preset: Any) -> None:
    plan = plan_runs(TABLE_KEYS, preset, "corpus", str)
    entries = by_entry(plan)
    for table in (5, 7, 8):
        not_run = {"ELMo", "CVT", "CSE", "BERT-large"}
        if preset is TRIAL:  # of four layers the last four are all
            not_run.add("Weighted sum all 12 layers")
        for row in TABLES[table].rows.keys() - not_run:
            for column in TABLES[table].columns:
                assert len(entries[TableEntry(str(table), row, column.name)]) == len(preset.seeds), (table, row, column)
    for size in preset.sizes:
        assert len(entries[TableEntry("6", size, "LM perplexity")]) == 1
        assert len(entries[TableEntry("6", size, "MRPC")]) == len(preset.seeds)
    for row in ("MLM", "LTR"):
        for step in preset.checkpoints:
            assert len(entries[TableEntry("figure5", row, str(step))]) == len(preset.seeds)
    for run in plan:
        folders = {"model_name_or_path": "its start"} if run.start else {"corpus": "its corpus"}
        RECIPES[run.recipe].config(**{**run.settings, **folders})


def test_figure_5_fine_tunes_more_tasks_at_every_checkpoint_for_their_mean() -> None:
    mini = SIZE_PRESETS["mini-study"]
    plan = plan_runs(["figure5"], mini, "corpus", str)
    assert sum(run.is_pretraining for run in plan) == 2
    more = [run for run in plan if run.name.startswith("qnli")]
    assert len(more) == 2 * len(mini.checkpoints) and {run.settings["seed"] for run in more} == {1}
    # The finished models' runs are shared with Table 5.
    with_table_5 = plan_runs(["5", "figure5"], mini, "corpus", str, tasks=["qnli", "mnli", "mrpc", "sst2"])
    assert {run.id for run in more} <= {run.id for run in with_table_5}


def test_runs_that_several_studies_need_are_shared() -> None:
    entries, steps = by_entry(plan_runs(TABLE_KEYS, TRIAL, "corpus", str)), str(TRIAL.pretraining_steps)
    mnli = ("5", "BERT-base", "MNLI-m")
    for shared in (
        [mnli, ("6", TRIAL.base, "MNLI-m"), ("8", "80/10/10", "MNLI"), ("figure5", "MLM", steps)],
        [("7", "Concat last four hidden", "dev"), ("8", "80/10/10", "NER feature-based")],
        [("5", "LTR & no NSP", "MNLI-m"), ("figure5", "LTR", steps)],
    ):
        first, *others = (entries[TableEntry(*entry)] for entry in shared)
        assert all(first == other for other in others)


@pytest.mark.parametrize(
    ("table", "row", "settings"),
    [
        ("5", "No NSP", {"next_sentence_prediction": False}),
        ("5", "LTR & no NSP", {"next_sentence_prediction": False, "left_to_right": True}),
        ("8", "0/20/80", {"mask_replace_prob": 0.0, "random_replace_prob": 0.8}),
        ("8", "80/20/0", {"random_replace_prob": 0.0}),
    ],
)
def test_a_row_differs_from_the_base_in_what_it_is_about_alone(table: str, row: str, settings: dict[str, Any]) -> None:
    entries = by_entry(plan_runs(TABLE_KEYS, TRIAL, "corpus", str))
    base = entries[TableEntry("5", "BERT-base", "MNLI-m")][0].start
    other = next(runs[0].start for entry, runs in entries.items() if (entry.table, entry.row) == (table, row))
    assert base and other and other.settings == {**base.settings, **settings}


def test_another_setting_corpus_or_checkpoint_is_another_run() -> None:
    first = plan_runs(["5"], TRIAL, "corpus", str)
    assert [run.id for run in first] == [run.id for run in plan_runs(["5"], TRIAL, "corpus", str)]
    assert not {run.digest for run in first} & {run.digest for run in plan_runs(["5"], TRIAL, "another corpus", str)}
    faster = dataclasses.replace(TRIAL, pretraining={**TRIAL.pretraining, "learning_rate": 1e-4})
    assert not {run.digest for run in first} & {run.digest for run in plan_runs(["5"], faster, "corpus", str)}
    mnli = dataclasses.replace(TRIAL, tasks={**TRIAL.tasks, "mnli": {"num_train_epochs": 9.0}})
    changed = {run.digest for run in first} - {run.digest for run in plan_runs(["5"], mnli, "corpus", str)}
    assert changed == {run.digest for run in first if run.settings.get("task_name") == "mnli"}


def plan(folders: list[str], tables: Any = ("1", "2", "3", "4", "7"), **choices: Any) -> list[PlannedRun]:
    return plan_runs(tables, SIZE_PRESETS["paper"], "", str, models=given_models(folders), **choices)


def test_a_finished_model_takes_the_place_of_all_pre_training(pretrained: Path, untrained: Path) -> None:
    runs = plan([str(pretrained / "checkpoints/step-40"), str(untrained)])
    assert not [run for run in runs if run.is_pretraining]
    assert {entry.row.split(": ")[0] for run in runs for entry in run.entries} == {"pretrained/step-40", "untrained"}
    entries = by_entry(runs)
    for name in ("pretrained/step-40", "untrained"):
        assert len(entries[TableEntry("3", name, "dev F1")]) == 5
        assert len(entries[TableEntry("7", f"{name}: Last hidden", "test")]) == 5
        for run in entries[TableEntry("1", f"{name}: RTE after MNLI", "RTE")]:
            (mnli,) = [mnli for mnli in entries[TableEntry("1", name, "MNLI-m")] if mnli.id == run.ancestors[0].id]
            assert mnli.settings["seed"] == run.settings["seed"] and mnli.keeps_model
            assert mnli.start is not None and mnli.start.name == name
    table_1, table_7 = entries[TableEntry("1", "untrained", "RTE")][0], entries[TableEntry("7", "untrained", "dev")][0]
    assert table_7.search is not None
    assert len(table_1.settings["sweep_learning_rates"]) == 4
    assert len(table_7.search.settings["sweep_batch_sizes"]) == 2
    # One seed of everything comes before the next.
    starts = [run.settings["seed"] for run in runs if not run.ancestors]
    assert starts == sorted(starts)


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "tokenizer.json"])
def test_another_file_makes_other_runs_and_a_moved_folder_does_not(untrained: Path, tmp_path: Path, file: str) -> None:
    one, moved = str(untrained), tmp_path / "untrained"
    before = {run.id for run in plan([one], ["2"])}
    shutil.copytree(untrained, moved)
    assert {run.id for run in plan([str(moved)], ["2"])} == before
    (moved / file).write_bytes((moved / file).read_bytes() + b"\n")
    assert not {run.id for run in plan([str(moved)], ["2"])} & before
    with user_error("untrained", setting="model_name_or_path"):
        given_models([one, str(moved)])


def test_only_some_tasks(untrained: Path) -> None:
    one = str(untrained)
    runs = plan([one], tasks=["sst2", "conll2003"])
    assert {run.name for run in runs} == {
        f"{task}-seed{seed}" for task in ("sst2", "conll2003") for seed in range(1, 6)
    }
    # Tasks that the preset lacks are left out, unless they are asked for.
    few = dataclasses.replace(SIZE_PRESETS["paper"], tasks={"rte": {}})
    assert {run.settings["task_name"] for run in plan_runs(["1"], few, "", str, models=given_models([one]))} == {"rte"}
    with user_error("sst2", "--table 1", setting="size_preset"):
        plan_runs(["1"], few, "", str, models=given_models([one]), tasks=["sst2"])
    with user_error("--model_name_or_path"):
        plan_runs(["1"], SIZE_PRESETS["evaluation"], "corpus", str)


@pytest.mark.parametrize(
    ("settings", "setting", "value"),
    [
        ({"table": ("5", "figure5")}, "table", "5 figure5"),
        ({"corpus": "corpus"}, "corpus", "--model_name_or_path"),
        ({"model_name_or_path": (), "table": ("5",)}, "corpus", "--model_name_or_path"),
        ({"tasks": ("sst",)}, None, "sst2"),
    ],
)
def test_what_a_finished_model_cannot_be_asked_is_refused(
    settings: dict[str, Any], setting: str | None, value: str
) -> None:
    with user_error(value, setting=setting):
        StudyConfig(**{"model_name_or_path": ("bert",), **settings})


GOOD = """
description: tiny
base: one
sizes: {one: {num_hidden_layers: 1, hidden_size: 16, num_attention_heads: 2}}
pretraining: {max_steps: 4, train_batch_size: 8}
checkpoints: [2, 4]
tasks: {mnli: {}, qnli: {}, mrpc: {}, sst2: {num_train_epochs: 1}, squad: {}, conll2003: {}, features: {}}
seeds: [1]
bilstm_size: 8
"""


def test_a_custom_size_preset_is_read_and_an_unknown_or_wrong_one_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "preset.yaml"
    path.write_text(GOOD)
    preset = find_size_preset(str(path))
    assert (preset.checkpoints, preset.pretraining_steps) == ((2, 4), 4)
    assert preset.tasks["sst2"] == {"num_train_epochs": 1.0}
    with user_error("huge", "paper, one-gpu, trial, mini-study, evaluation", setting="size_preset"):
        find_size_preset("huge")
    for old, new, message in (
        ("max_steps: 4", "max_step: 4", "max_step"),
        ("num_train_epochs: 1", "num_train_epochs: many", "tasks: sst2: --num_train_epochs"),
        ("[2, 4]", "[2, 3]", "[2, 3]"),
        ("seeds:", "seed:", "seed"),
        ("sst2:", "sts2:", "sts2"),
        ("sizes: {", "sizes: {../out: {}, ", "../out"),
    ):
        assert old in GOOD
        path.write_text(GOOD.replace(old, new))
        with user_error(message):
            find_size_preset(str(path))


FILES = {
    "mnli": ("MNLI/train.tsv", "MNLI/dev_matched.tsv", "MNLI/dev_mismatched.tsv"),
    "qnli": ("QNLI/train.tsv", "QNLI/dev.tsv"),
    "mrpc": ("MRPC/train.tsv", "MRPC/dev.tsv"),
    "sst2": ("SST-2/train.tsv", "SST-2/dev.tsv"),
    "squad": ("train-v1.1.json", "dev-v1.1.json"),
    "conll2003": ("eng.train", "eng.testa", "eng.testb"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (name for names in FILES.values() for name in names):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"content of {name}")
    (tmp_path / "MNLI/test_matched.tsv").write_text("not read")
    return tmp_path


def test_every_file_that_a_task_reads_counts_and_a_folder_without_them_is_refused(folder: Path) -> None:
    before = {task: task_fingerprint(task, str(folder)) for task in FILES}
    for task, names in FILES.items():
        for name in names:
            (folder / name).write_text("changed")
            after = {task: task_fingerprint(task, str(folder)) for task in FILES}
            assert [other for other in FILES if before[other] != after[other]] == [task], name
            before = after
    with user_error("--squad_dir", "train-v1.1.json", "--tasks", setting="squad_dir"):
        task_fingerprint("squad", str(folder / "MNLI"))


def test_other_files_make_other_runs_of_their_task_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "corpus_fingerprint", str)
    config = StudyConfig(table=("5",), corpus="toy", glue_dir=str(folder), squad_dir=str(folder))
    before = {run.id for run in runner.planned_runs(config)}
    (folder / "MRPC/train.tsv").write_text("more rows")
    changed = [run for run in runner.planned_runs(config) if run.id not in before]
    assert {run.settings.get("task_name") for run in changed} == {"mrpc"}
    from_hub = {run.id for run in runner.planned_runs(dataclasses.replace(config, squad_dir=None))}
    assert {run.name.rpartition("-")[0] for run in runner.planned_runs(config) if run.id not in from_hub} == {"squad"}


def test_a_sweep_leaves_no_weights(tmp_path):
    store = runner.RunStore(StudyConfig(table=("1",), corpus="toy", output_dir=str(tmp_path)))
    run = next(run for run in plan_runs(["1"], SIZE_PRESETS["paper"], "corpus", str) if run.start)
    weights = store.folder(run) / "sweep" / "lr5e-05-batch32-epochs3" / "seed1" / "model.safetensors"
    weights.parent.mkdir(parents=True)
    weights.write_bytes(b"weights")
    store.drop_weights(run)
    assert not weights.exists()


# --- What is more than a fine-tuning run for each seed ----------------------------------------------------------------


def test_table_2_has_the_ensemble_and_with_a_file_of_triviaqa_its_rows() -> None:
    rows = {entry.row for entry in by_entry(plan_runs(["2"], TRIAL, "corpus", str))}
    assert rows == {"BERT-base", "BERT-base ensemble"}
    entries = by_entry(plan_runs(["2"], TRIAL, "corpus", str, triviaqa="questions"))
    (ensemble,) = entries[TableEntry("2", "BERT-base ensemble", "dev F1")]
    singles = entries[TableEntry("2", "BERT-base", "dev F1")]
    assert [run.id for run in ensemble.needed] == [run.id for run in singles] and all(
        run.keeps_model for run in singles
    )
    assert not ensemble.settings["do_train"] and ensemble.settings["do_eval"]
    after = entries[TableEntry("2", "BERT-base + TriviaQA", "dev F1")]
    for run in after:
        assert run.start and run.start.reads_triviaqa and run.start.data == "questions"
        assert (
            run.start.settings["seed"] == run.settings["seed"]
            and run.start.pretraining.id == singles[0].ancestors[0].id
        )
    (both,) = entries[TableEntry("2", "BERT-base ensemble + TriviaQA", "dev EM")]
    assert [run.id for run in both.needed] == [run.id for run in after]
    assert both.id != ensemble.id
    # Nothing answers together with itself.
    one_seed = dataclasses.replace(TRIAL, seeds=(1,))
    assert {entry.row for entry in by_entry(plan_runs(["2"], one_seed, "corpus", str))} == {"BERT-base"}


def test_table_7_searches_its_grid_once_and_restarts_the_best() -> None:
    preset = SIZE_PRESETS["paper"]
    plan = plan_runs(["7"], preset, "corpus", str, tasks=["conll2003"])
    searches = [run for run in plan if run.settings.get("sweep_batch_sizes")]
    assert [run.settings["seed"] for run in searches] == [1, 1] and not any(run.entries for run in searches)
    for row in ("BERT-base", "BERT-large"):
        restarts = by_entry(plan)[TableEntry("7", row, "test")]
        assert {run.settings["seed"] for run in restarts} == set(preset.seeds)
        for run in restarts:
            assert run.search and run.search.pretraining.id == run.pretraining.id
            assert "sweep_learning_rates" not in run.settings
    assert {run.search.id for run in plan if run.search} == {run.id for run in searches}
    assert all(run.id in {other.id for other in plan} for restart in plan for run in restart.ancestors)


def test_table_7_alone_reads_the_cased_corpus() -> None:
    plan = plan_runs(["5", "7", "8"], TRIAL, "uncased", str, cased_corpus="cased")
    for run in plan:
        tables = {entry.table for entry in run.entries}
        if tables:
            assert (run.pretraining.data == "cased") == (tables == {"7"})
    assert {run.corpus for run in plan if run.is_pretraining and run.data == "cased"} == {"cased_corpus"}


def test_an_uncased_corpus_is_not_taken_for_a_cased_one(world: Any) -> None:
    corpora = {"corpus": str(world.corpus), "cased_corpus": str(world.corpus)}
    with user_error(str(world.corpus), setting="cased_corpus"):
        runner.planned_runs(StudyConfig(table=("7",), **corpora))


def test_the_large_model_is_restarted_on_small_sets_and_mnli_models_predict_ax() -> None:
    plan = plan_runs(["1"], SIZE_PRESETS["paper"], "corpus", str)
    entries = by_entry(plan)
    for column, task in (("CoLA", "cola"), ("STS-B", "stsb"), ("MRPC", "mrpc"), ("RTE", "rte"), ("SST-2", "sst2")):
        runs = entries[TableEntry("1", "BERT-large", column)]
        small = task != "sst2"
        assert {run.settings.get("num_restarts", 1) for run in runs} == {5 if small else 1}
        assert len(runs) == (1 if small else 5)
        assert len(entries[TableEntry("1", "BERT-base", column)]) == 5
    mnli = {run.id for row in ("BERT-base", "BERT-large") for run in entries[TableEntry("1", row, "MNLI-m")]}
    ax = [run for run in plan if run.settings.get("task_name") == "ax"]
    assert {run.start.id for run in ax if run.start} == mnli and len(ax) == 10
    assert not [run for run in plan_runs(["1"], TRIAL, "corpus", str) if run.settings.get("task_name") == "ax"]
