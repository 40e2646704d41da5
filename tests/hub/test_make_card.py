"""Cards made anew from the folders of finished runs."""

import json
from pathlib import Path

import pytest
import yaml
from running import recipe

from bert_repro.training.flops import flops_per_token
from bert_repro.training.totals import training_totals

RECORD = {
    "task": "cola",
    "split": "validation",
    "metrics": {"matthews_correlation": 0.25, "accuracy": 0.75},
    "rows_scored": 1043,
    "train": {"steps": 10, "batch": 4},
    "seed": 1,
    "settings": {"output_dir": "/srv/runs/cola", "learning_rate": 5e-5, "seed": 1, "model_name_or_path": "/srv/bert"},
    "command": "python recipes/run_glue.py --data_dir /srv/glue --output_dir=/srv/runs/cola --config ../a.yaml",
    "model": {
        "class": "BertReproForSequenceClassification",
        "num_hidden_layers": 2,
        "hidden_size": 8,
        "vocab_size": 30,
        "intermediate_size": 32,
    },
}
LOG = [{"step": 5, "tokens": 400, "seconds": 3.5}, {"step": 10, "tokens": 800, "seconds": 7.0}]


def run_folder(root: Path, name: str = "cola", **changes: object) -> Path:
    folder = root / name
    folder.mkdir()
    (folder / "results.json").write_text(json.dumps({**RECORD, **changes}))
    (folder / "train_log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in LOG))
    return folder


def test_a_card_is_complete_and_without_paths_of_this_machine(tmp_path):
    folder, card = run_folder(tmp_path), tmp_path / "bert-cola.md"
    facts = "--base_model org/bert --license mit --language en de --hub_model_id org/bert-cola"
    assert recipe("make_card", "--folder", folder, "--output_file", card, facts) == 0
    text = card.read_text()
    fields = yaml.safe_load(text.split("---\n")[1])
    assert (fields["base_model"], fields["license"], fields["language"]) == ("org/bert", "mit", ["en", "de"])
    assert fields["datasets"] == ["nyu-mll/glue"]
    assert "/srv" not in text and "../a.yaml" not in text
    assert "run_glue.py --data_dir glue --output_dir=cola --config a.yaml" in text
    flops = 800 * flops_per_token(2, 8, 30, 20, intermediate_size=32, predicted_fraction=0)
    for part in ("| tokens | 800 |", f"| flops | {float(f'{flops:.3g}'):.3g} |", "| learning_rate | 5e-05 |"):
        assert part in text, part


def test_a_missing_folder_is_made_and_an_unwritable_file_refused(tmp_path, capsys):
    folder = run_folder(tmp_path)
    card = tmp_path / "cards" / "of" / "bert-cola.md"
    assert recipe("make_card", "--folder", folder, "--output_file", card) == 0 and card.read_text()
    below = card / "other.md"
    assert recipe("make_card", "--folder", folder, "--output_file", below) == 2
    last = capsys.readouterr().err.rstrip().splitlines()[-1]
    assert last.startswith(f"error: --output_file {below}: cannot be written (") and last.endswith("; name another")


def test_seeds_are_shown_with_mean_and_deviation(tmp_path):
    folder = run_folder(tmp_path)
    settings = {**RECORD["settings"], "seed": 2, "output_dir": "elsewhere"}
    other = run_folder(
        tmp_path, "cola2", seed=2, settings=settings, metrics={"matthews_correlation": 0.35, "accuracy": 0.75}
    )
    assert recipe("make_card", "--folder", folder, "--same_runs", other) == 0
    text = (folder / "README.md").read_text()
    assert "with the seeds 1, 2" in text
    assert "| validation | matthews_correlation | 2 | 0.3000 | 0.0707 |" in text


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"seed": 1}, "has the same seed 1"),
        ({"seed": 2, "settings": {**RECORD["settings"], "learning_rate": 1e-4}}, "learning_rate is 0.0001, not 5e-05"),
        ({"seed": 2, "task": "rte"}, "task is 'rte', not 'cola'"),
    ],
)
def test_runs_that_are_not_the_same_are_refused(tmp_path, capsys, changes, told):
    folder, other = run_folder(tmp_path), run_folder(tmp_path, "other", **changes)
    assert recipe("make_card", "--folder", folder, "--same_runs", other) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("facts", "told"),
    [("--base_model ../bert", "base_model: '../bert'"), ("--language English", "language: 'English'")],
)
def test_facts_that_the_hub_would_refuse(tmp_path, capsys, facts, told):
    assert recipe("make_card", "--folder", run_folder(tmp_path), facts) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "cola" / "README.md").exists()


def test_a_folder_without_a_record(tmp_path, capsys):
    assert recipe("make_card", "--folder", tmp_path) == 2
    assert "results.json: cannot be read as a record" in capsys.readouterr().err


def test_pretraining_counts_each_phase_at_its_length(tmp_path):
    phases = [{"max_seq_length": 16, "steps": 5}, {"max_seq_length": 64, "steps": 5}]
    model = {**RECORD["model"], "class": "BertReproForPreTraining"}
    settings = {"masked_lm_prob": 0.15}
    record = {"model": model, "settings": settings, "train": {"steps": 10, "phases": phases}}
    rates = [flops_per_token(2, 8, 30, length, intermediate_size=32, predicted_fraction=0.15) for length in (16, 64)]
    totals = training_totals(run_folder(tmp_path), record)
    assert totals == {"tokens": 800, "seconds": 7.0, "flops": float(f"{400 * sum(rates):.3g}")}


def test_multiple_choice_counts_each_ending_as_a_sequence(tmp_path):
    model = {**RECORD["model"], "class": "BertReproForMultipleChoice"}
    folder = run_folder(tmp_path, "swag", task="swag", model=model, metrics={"accuracy": 0.5}, data={})
    flops = 800 * flops_per_token(2, 8, 30, 800 // (10 * 4 * 4), intermediate_size=32, predicted_fraction=0)
    assert training_totals(folder, {**RECORD, "model": model})["flops"] == float(f"{flops:.3g}")
    assert recipe("make_card", "--folder", folder) == 0
    text = (folder / "README.md").read_text()
    fields = yaml.safe_load(text.split("---\n")[1])
    assert (fields["datasets"], fields["language"]) == (["allenai/swag"], "en")
    assert "configuration `regular`" in text and "Licence of the data: unknown" in text and "| flops |" in text


def test_nothing_is_said_of_operations_that_are_not_counted(tmp_path):
    folder = run_folder(tmp_path)
    assert "flops" not in training_totals(folder, {**RECORD, "settings": {"peft": "lora"}})
    causal = {**RECORD["model"], "class": "BertReproForCausalLM"}
    assert "flops" not in training_totals(folder, {**RECORD, "model": causal})
    (folder / "train_log.jsonl").unlink()
    assert training_totals(folder, RECORD) == {}


def test_other_data_than_the_tasks_makes_no_claim_about_it(tmp_path):
    folder, card = run_folder(tmp_path), tmp_path / "bert-cola.md"
    for dataset, shown in (("none", None), ("org/other", ["org/other"])):
        assert recipe("make_card", "--folder", folder, "--output_file", card, f"--dataset {dataset}") == 0
        fields = yaml.safe_load(card.read_text().split("---\n")[1])
        assert fields.get("datasets") == shown
        assert ("model-index" in fields) is (dataset != "none")
        assert "language" not in fields and "The licence of the training data is not recorded." in card.read_text()


def test_ones_own_files_are_not_taken_for_the_tasks_data_even_where_an_older_record_says_so(tmp_path):
    settings = {**RECORD["settings"], "train_file": "/srv/own.json", "validation_file": "/srv/own.json"}
    published = {"dataset": "rajpurkar/squad", "language": "en", "license": "CC BY-SA 4.0"}
    model = {**RECORD["model"], "class": "BertReproForQuestionAnswering"}
    for name, data in (("older", published), ("newer", {"dataset": None})):
        told = {"task": "squad", "settings": settings, "data": data, "model": model, "metrics": {"f1": 0.5}}
        folder = run_folder(tmp_path, name, **told)
        assert recipe("make_card", "--folder", folder) == 0
        text = (folder / "README.md").read_text()
        fields = yaml.safe_load(text.split("---\n")[1])
        assert not {"datasets", "model-index", "language"} & set(fields)
        assert "rajpurkar" not in text and "CC BY-SA" not in text


def test_a_run_that_only_scored_other_models_has_no_card(tmp_path, capsys):
    folder = run_folder(tmp_path)
    record = {name: value for name, value in RECORD.items() if name != "train"}
    (folder / "results.json").write_text(json.dumps(record))
    assert recipe("make_card", "--folder", folder) == 2
    assert "its run made no model" in capsys.readouterr().err
    assert not (folder / "README.md").exists()


def test_a_card_of_the_folders_own_takes_the_claims_to_benchmarks_along(tmp_path):
    folder = run_folder(tmp_path)
    claim = folder / ".eval_results" / "cola.yaml"
    assert recipe("make_card", "--folder", folder) == 0
    (entry,) = yaml.safe_load(claim.read_text())
    assert (entry["dataset"], entry["value"]) == ({"id": "nyu-mll/glue", "task_id": "cola"}, 0.25)
    elsewhere = tmp_path / "bert-cola.md"
    assert recipe("make_card", "--folder", folder, "--output_file", elsewhere, "--dataset none") == 0
    assert claim.exists(), "a card elsewhere leaves the folder as it is"
    assert recipe("make_card", "--folder", folder, "--dataset org/other") == 0
    (entry,) = yaml.safe_load(claim.read_text())
    assert entry["dataset"]["id"] == "org/other"
    assert recipe("make_card", "--folder", folder, "--dataset none") == 0
    assert not claim.exists()
