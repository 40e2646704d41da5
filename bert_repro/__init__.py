"""The BERT of Devlin et al. (2019) as a Hugging Face plugin.

Importing it registers the model type `bert_repro` with transformers' Auto classes, and the pipelines of this package.
Everything in `__all__` is imported when it is first named, so that the import itself is light.

    import bert_repro

    results = bert_repro.finetune(
        bert_repro.GlueConfig(
            model_name_or_path="google-bert/bert-base-uncased",
            train_file="train.csv",
            validation_file="dev.csv",
            do_train=True,
            do_eval=True,
            output_dir="runs/my-classifier",
        )
    )
    results["metrics"]
"""

import os as _os
from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from . import registration as _registration

if _TYPE_CHECKING:
    from .api import RunResult, finetune, predict, prepare_corpus, pretrain, train_tokenizer
    from .configs import (
        CorpusConfig,
        ExampleConfig,
        GlueConfig,
        NerConfig,
        Phase,
        PretrainingConfig,
        SquadConfig,
        SwagConfig,
        TokenizerConfig,
    )
    from .corpus.tokenizer import train_wordpiece
    from .hub.export import export_checkpoint
    from .inference.pipelines import ExtractiveQuestionAnsweringPipeline, NextSentencePipeline
    from .models import HEADS
    from .models.configuration_bert_repro import BertReproConfig
    from .models.modeling_bert_repro import (
        BertReproForCausalLM,
        BertReproForMaskedLM,
        BertReproForMultipleChoice,
        BertReproForNextSentencePrediction,
        BertReproForPreTraining,
        BertReproForQuestionAnswering,
        BertReproForSequenceClassification,
        BertReproForTokenClassification,
        BertReproModel,
    )
    from .pretraining.collator import DataCollatorForBertPreTraining
    from .results import RunResults, read_results
    from .tasks.metric_loader import load_metric

__version__ = "0.1.0"

__all__ = [
    "HEADS", "BertReproConfig", "BertReproForCausalLM", "BertReproForMaskedLM", "BertReproForMultipleChoice",
    "BertReproForNextSentencePrediction", "BertReproForPreTraining", "BertReproForQuestionAnswering",
    "BertReproForSequenceClassification", "BertReproForTokenClassification", "BertReproModel", "CorpusConfig",
    "DataCollatorForBertPreTraining", "ExampleConfig", "ExtractiveQuestionAnsweringPipeline", "GlueConfig", "NerConfig",
    "NextSentencePipeline", "Phase", "PretrainingConfig", "RunResult", "RunResults", "SquadConfig",
    "SwagConfig", "TokenizerConfig", "__version__", "export_checkpoint", "finetune", "load_metric", "predict",
    "prepare_corpus", "pretrain", "read_results", "train_tokenizer", "train_wordpiece",
]  # fmt: skip

_HOMES = {
    "api": ("RunResult", "finetune", "predict", "prepare_corpus", "pretrain", "train_tokenizer"),
    "corpus.tokenizer": ("train_wordpiece",),
    "hub.export": ("export_checkpoint",),
    "inference.pipelines": ("ExtractiveQuestionAnsweringPipeline", "NextSentencePipeline"),
    "models": ("HEADS", "BertReproConfig"),
    "pretraining.collator": ("DataCollatorForBertPreTraining",),
    "results": ("RunResults", "read_results"),
    "tasks.metric_loader": ("load_metric",),
}
"""Module of this package -> public names that it defines; other models and settings follow from their names."""


def __getattr__(name: str) -> _Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    other = "models.modeling_bert_repro" if name.startswith("BertRepro") else "configs"
    home = next((module for module, names in _HOMES.items() if name in names), other)
    value = globals()[name] = getattr(_import_module(f"{__name__}.{home}"), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


# Threads of OpenMP spin while they wait for each other, by default for so long that one busy program on the same cores
# costs most of the speed of training (docs/LOG.md). The library reads this when torch is first imported.
if not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & _os.environ.keys():
    _os.environ["GOMP_SPINCOUNT"] = "8000"

_registration.register()
