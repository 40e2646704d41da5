"""The learning rate suits the size of the model, unless one is given."""

import logging

import pytest
from running import recipe, results
from tiny_models import save_model

import bert_repro
from bert_repro.configs import GlueConfig, SwagConfig
from bert_repro.finetuning.learning_rate import rate_for, with_suitable_rate

ROWS = [{"text": "bright river", "label": "good"}, {"text": "cold stone", "label": "bad"}] * 4


@pytest.mark.parametrize(
    ("hidden_size", "rate"), [(128, 3e-4), (256, 3e-4), (312, 1e-4), (512, 1e-4), (768, 5e-5), (1024, 5e-5)]
)
def test_the_rule(hidden_size, rate):
    assert rate_for(hidden_size, 5e-5) == rate


def test_without_a_rate_a_small_model_learns_faster(untrained, tmp_path, caplog):
    data = {"model": untrained, "train": ROWS, "max_steps": 1, "train_batch_size": 4}
    with caplog.at_level(logging.INFO, "bert_repro"):
        found = bert_repro.finetune(**data, output_dir=tmp_path / "rule")
    assert found["settings"]["learning_rate"] == 3e-4 and "learning_rate=0.0003" in caplog.text
    assert found["settings"]["bias_correction"] is True
    # A correction that is given stays as it is, and without one only the rule switches it on.
    plain = bert_repro.finetune(**data, bias_correction=False, output_dir=tmp_path / "plain")["settings"]
    assert (plain["learning_rate"], plain["bias_correction"]) == (3e-4, False)
    by_hand = bert_repro.finetune(**data, learning_rate=1e-3, output_dir=tmp_path / "by-hand")["settings"]
    assert (by_hand["learning_rate"], by_hand["bias_correction"]) == (1e-3, False)
    # The number of the default is used as it is if it is typed.
    assert (
        bert_repro.finetune(**data, learning_rate=5e-5, output_dir=tmp_path / "typed")["settings"]["learning_rate"]
        == 5e-5
    )


def test_presets_and_large_models_keep_their_rates(world, untrained, tmp_path):
    wide = save_model(world, tmp_path / "wide", hidden_size=768, num_attention_heads=12)
    for config_class, rate in ((GlueConfig, 5e-5), (SwagConfig, 2e-5)):
        config = config_class(model_name_or_path=str(wide), output_dir="o", do_train=True)
        assert with_suitable_rate(config).learning_rate == rate
    out = tmp_path / "out"
    arguments = f"--task_name sst2 --data_dir {world.glue} --do_train --max_steps 1 --output_dir {out}"
    assert recipe("run_glue", "--preset glue --model_name_or_path", untrained, arguments) == 0
    assert results(out)["settings"]["learning_rate"] == 5e-5


def test_a_sweep_over_seeds_records_the_rate_that_it_used(untrained, tmp_path):
    found = bert_repro.finetune(
        model=untrained, train=ROWS, validation=ROWS, max_steps=1, train_batch_size=4, num_restarts=2,
        output_dir=tmp_path / "sweep",
    )  # fmt: skip
    assert found["settings"]["learning_rate"] == 3e-4
    assert {run["learning_rate"] for run in found["sweep"]["runs"]} == {3e-4}
