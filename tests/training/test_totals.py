"""What a run's log sums up to: real tokens, seconds and FLOPs."""

import json
from pathlib import Path

import pytest

from bert_repro.training.flops import flops_per_token
from bert_repro.training.totals import training_totals

MODEL = {
    "class": "BertReproForSequenceClassification",
    "num_hidden_layers": 2,
    "hidden_size": 8,
    "vocab_size": 30,
    "intermediate_size": 32,
}
RESULTS = {"model": MODEL, "train": {"steps": 10, "batch": 4}, "settings": {}}
LOG = [{"step": 5, "tokens": 400, "seconds": 3.5}, {"step": 10, "tokens": 800, "seconds": 7.0}]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train_log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in LOG))
    return tmp_path


@pytest.mark.parametrize(("head", "sequences"), [("ForSequenceClassification", 1), ("ForMultipleChoice", 4)])
def test_fine_tuning_counts_every_sequence_of_an_example(folder, head, sequences):
    length = 800 // (10 * 4 * sequences)
    flops = 800 * flops_per_token(2, 8, 30, length, intermediate_size=32, predicted_fraction=0)
    totals = training_totals(folder, {**RESULTS, "model": {**MODEL, "class": f"BertRepro{head}"}})
    assert totals == {"tokens": 800, "seconds": 7.0, "flops": float(f"{flops:.3g}")}


def test_pretraining_counts_each_phase_at_its_length(folder):
    phases = [{"max_seq_length": 16, "steps": 5}, {"max_seq_length": 64, "steps": 5}]
    model = {**MODEL, "class": "BertReproForPreTraining"}
    results = {"model": model, "settings": {"masked_lm_prob": 0.15}, "train": {"steps": 10, "phases": phases}}
    costs = [flops_per_token(2, 8, 30, length, intermediate_size=32, predicted_fraction=0.15) for length in (16, 64)]
    assert training_totals(folder, results)["flops"] == float(f"{400 * sum(costs):.3g}")


def test_flops_that_are_not_counted_are_left_out(folder):
    assert "flops" not in training_totals(folder, {**RESULTS, "settings": {"peft": "lora"}})
    assert "flops" not in training_totals(folder, {**RESULTS, "model": {**MODEL, "class": "BertReproForCausalLM"}})
    (folder / "train_log.jsonl").unlink()
    assert training_totals(folder, RESULTS) == {}
