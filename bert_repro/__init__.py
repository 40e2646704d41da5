"""The BERT of Devlin et al. (2019) as a Hugging Face plugin. Importing it registers the model type `bert_repro`, and
pipelines for extractive question answering and next sentence prediction.

The model classes bring torch and transformers: seconds and hundreds of megabytes that neither `--help` nor a process
that only splits text should pay. So they are imported when one of them is named, or as soon as transformers is, which
is when a registration can be seen.
"""

import importlib
import importlib.util
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

__version__ = "0.1.0"

__all__ = [
    "HEADS",
    "BertReproConfig",
    "BertReproForCausalLM",
    "BertReproForMaskedLM",
    "BertReproForMultipleChoice",
    "BertReproForNextSentencePrediction",
    "BertReproForPreTraining",
    "BertReproForQuestionAnswering",
    "BertReproForSequenceClassification",
    "BertReproForTokenClassification",
    "BertReproModel",
    "__version__",
]

_MODELS = f"{__name__}.models"


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _MODELS if name in ("HEADS", "BertReproConfig") else f"{_MODELS}.modeling_bert_repro"
    value = globals()[name] = getattr(importlib.import_module(module), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


_REGISTERING = {"transformers": _MODELS, "transformers.pipelines": f"{__name__}.inference.pipelines"}
"""A module of transformers that can show a registration -> the module of ours that registers there."""


class _RegisterWithTransformers(MetaPathFinder):
    """Waits for the first import of a module and registers what is ours with it when it is complete."""

    def __init__(self, awaited: str) -> None:
        self.awaited = awaited

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != self.awaited:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_register(module: ModuleType) -> None:
                execute(module)
                importlib.import_module(_REGISTERING[fullname])

            spec.loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec


for _awaited, _registering in _REGISTERING.items():
    if _awaited in sys.modules:
        importlib.import_module(_registering)
    else:
        sys.meta_path.insert(0, _RegisterWithTransformers(_awaited))
