"""Flags of transformers' scripts that differ here are answered with ours."""

import re

import pytest
from errors import user_error

from bert_repro import configs
from bert_repro.arguments import parse
from bert_repro.configs import GlueConfig, NerConfig, PretrainingConfig, SquadConfig
from bert_repro.configs.base import type_hints
from bert_repro.configs.upstream_flags import UPSTREAM_FLAGS

ALL_FLAGS = [flag for flags in UPSTREAM_FLAGS.values() for flag in flags]


@pytest.mark.parametrize(
    ("config_class", "arguments", "ours"),
    [
        (GlueConfig, ["--fp16"], "--mixed_precision fp16"),
        (GlueConfig, ["--bf16", "True"], "--mixed_precision bf16"),
        (GlueConfig, ["--evaluation_strategy=epoch"], "--eval_steps"),
        (GlueConfig, ["--text-column-name", "text"], "--text_columns"),
        (PretrainingConfig, ["--mlm_probability", "0.15"], "--masked_lm_prob"),
        (SquadConfig, ["--version_2_with_negative"], "--task_name squad_v2"),
        (NerConfig, ["--return_entity_level_metrics"], "results.json"),
    ],
)
def test_a_flag_of_transformers_is_answered_with_ours(config_class, arguments, ours):
    with user_error(arguments[0].split("=")[0], ours):
        parse(config_class, arguments)


def test_every_flag_is_listed_once_and_its_advice_names_settings_that_exist():
    names = [flag.name for flag in ALL_FLAGS]
    assert len(set(names)) == len(names)
    classes = [item for item in vars(configs).values() if isinstance(item, type) and issubclass(item, configs.Config)]
    settings = {name for item in classes for name in type_hints(item)}
    for flag in ALL_FLAGS:
        assert flag.ours or flag.note
        assert set(re.findall(r"--(\w+)", flag.advice)) <= settings, flag
