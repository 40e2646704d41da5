"""Registers our model type and pipelines with transformers as soon as transformers is imported.

`import bert_repro` must register (as every plugin of the Auto classes does) and must not import torch, or `--help` and
processes that only split text would take seconds and hundreds of megabytes. transformers has no entry points that it
would read itself, its Auto classes want the model classes as objects and not by name, and `from transformers import
AutoConfig` already imports torch. Importing bert_repro last would do, but a plugin that depends on the order of imports
fails without a word. So an import hook waits for transformers: it fires once, when the first module that could show a
registration has been executed, and removes itself.
"""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def _register_with_peft() -> None:
    """Says which layers of our models peft's adapters train by default: those of BERT."""
    from peft.utils import constants

    from bert_repro.models.configuration_bert_repro import UPSTREAM_MODEL_TYPE, BertReproConfig

    for defaults in vars(constants).values():
        if isinstance(defaults, dict) and UPSTREAM_MODEL_TYPE in defaults:
            defaults.setdefault(BertReproConfig.model_type, defaults[UPSTREAM_MODEL_TYPE])


_REGISTERING: dict[str, Callable[[], object]] = {
    "transformers": partial(importlib.import_module, "bert_repro.models"),
    "transformers.pipelines": partial(importlib.import_module, "bert_repro.inference.pipelines"),
    "peft.utils.constants": _register_with_peft,
}
"""A module that can show a registration -> what registers there."""


def register() -> None:
    """Registers now with what has been imported of transformers, and later with what has not."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _RegisterAfter)]
    for awaited, registers in _REGISTERING.items():
        if awaited in sys.modules:
            registers()
        else:
            sys.meta_path.insert(0, _RegisterAfter(awaited))


@contextmanager
def postponed() -> Iterator[None]:
    """Lets something be imported from transformers without torch; whoever then needs the models calls `register`."""
    waiting = [finder for finder in sys.meta_path if isinstance(finder, _RegisterAfter)]
    sys.meta_path[:] = [finder for finder in sys.meta_path if finder not in waiting]
    yield
    sys.meta_path[:0] = [finder for finder in waiting if finder.awaited not in sys.modules]


class _RegisterAfter(MetaPathFinder):
    """Waits for the first import of a module and registers when it has been executed."""

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
                _REGISTERING[fullname]()

            spec.loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec
