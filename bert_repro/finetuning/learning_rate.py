"""The learning rate of fine-tuning if none is given: it depends on the size of the model.

The paper's rates (2e-5 to 5e-5) suit BERT-base and BERT-large. Small models learn too little with them in a few epochs.
So without `--learning_rate` the rule is:

| hidden size | learning rate | Adam's bias correction |
| --- | --- | --- |
| up to 256 | 3e-4 | on |
| 257 to 512 | 1e-4 | on |
| more | the task's: 5e-5, or 2e-5 for SWAG | off |

The correction is part of the rule because without it a higher rate lost points on STS-B and QNLI
(`benchmarks/small_learning_rates.py`, on models of hidden size 256). A rate or a correction that is given, on the
command line, in a file, in a preset or for a sweep, is always used as it is.
"""

import dataclasses
import logging

from bert_repro.configs import FinetuningConfig
from bert_repro.configs.finetuning import DefaultRate
from bert_repro.errors import flag
from bert_repro.models.loading import load_config

logger = logging.getLogger("bert_repro")

RATES = ((256, 3e-4), (512, 1e-4))
"""Largest hidden size -> its learning rate, in ascending order."""


def rate_for(hidden_size: int, default: float) -> float:
    """Returns the learning rate for a model of this size.

    Args:
        hidden_size: the model's hidden size.
        default: the rate for larger models.
    """
    for largest, rate in RATES:
        if hidden_size <= largest:
            return rate
    return default


def with_suitable_rate(config: FinetuningConfig) -> FinetuningConfig:
    """Returns the settings with learning rate and bias correction for the size of the model, unless a rate is given."""
    is_given = not isinstance(config.learning_rate, DefaultRate)
    if not config.do_train or is_given or config.sweep_learning_rates:
        return dataclasses.replace(config, bias_correction=bool(config.bias_correction))
    hidden_size = load_config(config.model_name_or_path).hidden_size
    rate = rate_for(hidden_size, float(config.learning_rate))
    is_small = rate != config.learning_rate
    corrects = config.bias_correction
    if corrects is None:
        corrects = is_small
    if is_small:
        logger.info(
            "Using %s %s, because this is a small model (hidden size %d). Larger models use %g.",
            flag("learning_rate", rate),
            flag("bias_correction", corrects),
            hidden_size,
            config.learning_rate,
        )
    return dataclasses.replace(config, learning_rate=rate, bias_correction=corrects)
