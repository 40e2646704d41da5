"""The paper's arithmetic holds in our numbers, and every preset makes a valid configuration."""

from dataclasses import replace

import pytest

from bert_repro.configs import FinetuningConfig, GlueConfig, PretrainingConfig, SquadConfig, SwagConfig
from bert_repro.configs.presets import (
    MASKING_MIXES,
    MODEL_SIZES,
    PAPER_PHASES,
    PRESETS,
    preset_values,
    tokens_including_padding,
)
from bert_repro.errors import UserError
from bert_repro.reproduction.paper_results import TABLES
from bert_repro.training.performance import flops_per_token

# What a configuration needs beside a preset.
REQUIRED = {
    PretrainingConfig: {"corpus": "corpus"},
    FinetuningConfig: {"model_name_or_path": "model", "task_name": "task", "do_train": True, "do_eval": True},
    GlueConfig: {"model_name_or_path": "model", "task_name": "mrpc", "do_train": True, "do_eval": True},
    SquadConfig: {"model_name_or_path": "model", "task_name": "squad", "do_train": True},
    SwagConfig: {"model_name_or_path": "model", "do_train": True},
}


def test_phases_mixes_and_sizes_are_those_of_the_paper():
    assert tokens_including_padding(PAPER_PHASES) == 42_598_400_000
    assert tokens_including_padding(PAPER_PHASES, max_seq_length=512) == 131_072_000_000
    for phase in PAPER_PHASES:
        assert round(0.15 * phase.max_seq_length) <= phase.max_predictions_per_seq
    assert all(sum(mix) == pytest.approx(1) for mix in MASKING_MIXES)
    names = ["/".join(f"{100 * share:.0f}" for share in mix) for mix in MASKING_MIXES]
    assert names == list(TABLES[8].rows)
    assert TABLES[6].rows.keys() < MODEL_SIZES.keys()


@pytest.mark.parametrize(
    ("shape", "length", "mflop"),
    [((12, 768), 128, 545), ((12, 768), 512, 588), ((8, 512), 128, 172), ((4, 512), 128, 93)],
)
def test_flops_per_token(shape, length, mflop):
    assert flops_per_token(*shape, 30_522, length) / 1e6 == pytest.approx(mflop, abs=0.5)
    assert flops_per_token(12, 768, 30_522, 128, predicted_fraction=1) / 1e6 == pytest.approx(668, abs=0.5)


@pytest.mark.parametrize("name", PRESETS)
def test_preset_makes_a_valid_configuration(name):
    config_class = PRESETS[name].config
    values = preset_values(name, config_class)
    config = config_class(**REQUIRED[config_class], **values)
    assert replace(config) == config
    assert all(getattr(config, key) == value for key, value in values.items())


@pytest.mark.parametrize("size", ["base", "large"])
def test_bert_repros_updates_are_the_papers_in_smaller_passes_of_bfloat16(size):
    paper, ours = (preset_values(f"{name}-{size}", PretrainingConfig) for name in ("paper", "bert-repro"))
    assert ours.pop("mixed_precision") == "bf16"
    assert all(phase.batch % phase.per_device_batch == 0 for phase in ours["phases"])
    ours["phases"] = tuple(replace(phase, per_device_batch=None) for phase in ours["phases"])
    assert ours == paper


def test_preset_values_are_a_copy_and_an_unknown_name_lists_what_fits():
    assert preset_values("cpu-trial", PretrainingConfig, {"max_steps": 49})["warmup_steps"] == 3
    assert preset_values("cpu-trial", PretrainingConfig, {"max_steps": 9_800})["warmup_steps"] == 300
    preset_values("paper-base", PretrainingConfig)["learning_rate"] = 0.0
    assert preset_values("paper-base", PretrainingConfig)["learning_rate"] == 1e-4
    with pytest.raises(UserError, match=r"^--preset paper-bsae .*did you mean paper-base\?$"):
        preset_values("paper-bsae", PretrainingConfig)
    message = r"^--preset tiny [^\n]*paper-base[^\n]*$"
    with pytest.raises(UserError, match=message) as error:
        preset_values("tiny", PretrainingConfig)
    assert "squad" not in str(error.value)


@pytest.mark.parametrize("row", TABLES[1].rows)
def test_table_1_average_is_the_mean_of_its_nine_columns(row):
    *columns, average = TABLES[1].rows[row]
    assert len(columns) == 9
    assert sum(columns) / 9 == pytest.approx(average, abs=0.06)
