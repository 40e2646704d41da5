"""Tells the peft library which layers of our models its adapters train by default: those of BERT.

Imported as soon as peft is; see `bert_repro.registration`.
"""

from peft.utils import constants

from .configuration_bert_repro import UPSTREAM_MODEL_TYPE, BertReproConfig

for _defaults in vars(constants).values():
    if isinstance(_defaults, dict) and UPSTREAM_MODEL_TYPE in _defaults:
        _defaults.setdefault(BertReproConfig.model_type, _defaults[UPSTREAM_MODEL_TYPE])
