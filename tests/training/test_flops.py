"""FLOPs of a run: of every phase at its length, of every sequence of an example."""

from bert_repro.training.flops import flops_per_token, training_totals

LOG = [{"step": 5, "tokens": 400, "seconds": 3.5}, {"step": 10, "tokens": 800, "seconds": 7.0}, {"step": 10, "f1": 1}]
SHAPE = {"num_hidden_layers": 2, "hidden_size": 8, "vocab_size": 30, "intermediate_size": 32}
TRAIN = {"steps": 10, "batch": 4}


def results(head, settings=None, **train):
    return {"model": {**SHAPE, "class": f"BertRepro{head}"}, "settings": settings or {}, "train": {**TRAIN, **train}}


def flops(length, predicted_fraction=0.0):
    return flops_per_token(2, 8, 30, length, intermediate_size=32, predicted_fraction=predicted_fraction)


def test_each_phase_of_pretraining_counts_at_its_length():
    phases = [{"max_seq_length": 16, "steps": 5}, {"max_seq_length": 64, "steps": 5}]
    totals = training_totals(LOG, results("ForPreTraining", {"masked_lm_prob": 0.15}, phases=phases))
    expected = 400 * (flops(16, 0.15) + flops(64, 0.15))
    assert totals == {"tokens": 800, "seconds": 7.0, "flops": float(f"{expected:.3g}")}


def test_each_ending_of_multiple_choice_is_a_sequence():
    totals = training_totals(LOG, results("ForMultipleChoice", sequences_per_example=4))
    assert totals["flops"] == float(f"{800 * flops(800 // (10 * 4 * 4)):.3g}")


def test_flops_are_not_given_where_they_are_not_counted():
    assert "flops" not in training_totals(LOG, results("ForSequenceClassification", {"peft": "lora"}))
    assert "flops" not in training_totals(LOG, results("ForCausalLM"))
    assert training_totals([], results("ForSequenceClassification")) == {}
