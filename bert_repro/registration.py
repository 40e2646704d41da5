"""Registers our model type and pipelines with transformers as soon as transformers is imported.

`import bert_repro` must register, as every plugin of the Auto classes does. It must not import torch, or `--help` and
processes that only split text would take seconds and hundreds of megabytes. transformers has no entry points that it
would read itself, its Auto classes require the model classes as objects and not by name, and `from transformers import
AutoConfig` already imports torch. Importing bert_repro after transformers would work, but a plugin that depends on the
order of imports fails without a word.

Order of events:

1. `register`, at `import bert_repro`, adds an import hook for each module of `_REGISTERING` that is not imported yet.
2. When such a module is imported for the first time, its hook removes itself and lets the import run.
3. After the module has been executed, the hook registers with it.
"""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def _register_with_peft() -> None:
    """Gives our model type the same default layers in peft's adapters as BERT has."""
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
"""Module that keeps a registry -> function that registers there."""


def register() -> None:
    """Registers now in modules that are imported already, and later in the others."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _RegisterAfter)]
    for module_name, register_there in _REGISTERING.items():
        if module_name in sys.modules:
            register_there()
        else:
            sys.meta_path.insert(0, _RegisterAfter(module_name))


@contextmanager
def postponed() -> Iterator[None]:
    """Removes the import hooks inside the `with` block, so that importing transformers does not import torch.

    If a module was imported in the block, its hook is not put back: whoever needs the models then calls `register`.
    """
    hooks = [finder for finder in sys.meta_path if isinstance(finder, _RegisterAfter)]
    sys.meta_path[:] = [finder for finder in sys.meta_path if finder not in hooks]
    yield
    sys.meta_path[:0] = [hook for hook in hooks if hook.module_name not in sys.modules]


class _RegisterAfter(MetaPathFinder):
    """Import hook that waits for the first import of a module and registers when it has been executed."""

    def __init__(self, module_name: str) -> None:
        self.module_name = module_name

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns the module's own spec with a loader that registers afterwards; None for other modules."""
        del path, target
        if fullname != self.module_name:
            return None
        # Without this hook the search finds the module itself.
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_register(module: ModuleType) -> None:
                execute(module)
                _REGISTERING[fullname]()

            spec.loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec
