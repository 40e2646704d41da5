"""What every configuration shares: a field with its metadata, and the base class that checks choices and ranges."""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from bert_repro.errors import UserError

logger = logging.getLogger("bert_repro")

Source = Literal["paper", "original implementation", "transformers", "ours"]


def setting(
    default: Any,
    help: str,
    *,
    source: Source = "ours",
    unit: str | None = None,
    choices: tuple[str, ...] | None = None,
    deviation: str | None = None,
    aliases: tuple[str, ...] = (),
    choice_aliases: Mapping[str, str] | None = None,
) -> Any:
    """Returns a dataclass field with the metadata that help texts and documents are generated from.

    Args:
        default: the default value; immutable.
        help: one sentence.
        source: who decides the default.
        unit: what a number counts (steps, tokens, epochs, fraction ...).
        choices: the allowed values of a string.
        deviation: where the paper, the original implementation or this project differ or are silent about this choice,
            and which reading the default takes. Listed in docs/DEVIATIONS.md.
        aliases: earlier names, oldest first; flags and YAML keys accept them for one release, stored results always.
        choice_aliases: earlier value -> the value it is called now.
    """
    metadata = {
        "help": help,
        "source": source,
        "unit": unit,
        "choices": choices,
        "deviation": deviation,
        "aliases": aliases,
        "choice_aliases": dict(choice_aliases or {}),
    }
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Config:
    """Base of all configurations: checks choices and that numbers are finite; a subclass adds its own in `validate`."""

    def __post_init__(self) -> None:
        for item in fields(self):
            self._accept_earlier_value(item.name, item.metadata.get("choice_aliases", {}))
            choices, value = item.metadata.get("choices"), getattr(self, item.name)
            if choices and value is not None and value not in choices and value != item.default:
                raise UserError(f"--{item.name} is {value!r}; it must be one of: {', '.join(choices)}")
            for number in value if isinstance(value, tuple) else (value,):
                if isinstance(number, float) and not math.isfinite(number):
                    raise UserError(f"--{item.name} is {number}; it must be a finite number")
        self.validate()

    def _accept_earlier_value(self, name: str, earlier: Mapping[str, str]) -> None:
        value = getattr(self, name)
        if isinstance(value, str) and value in earlier:
            logger.warning("--%s %s is now called %s; the old name works for one more release", name, value,
                           earlier[value])  # fmt: skip
            object.__setattr__(self, name, earlier[value])

    def validate(self) -> None:
        """Raises `UserError` when settings contradict each other. Each class checks its own and calls super()."""


def aliases_of(config_class: type[Config]) -> dict[str, str]:
    """Returns the earlier names of a configuration's settings: earlier name -> name."""
    return {alias: item.name for item in fields(config_class) for alias in item.metadata.get("aliases", ())}


def current_names(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns stored settings (of results, checkpoints, sweeps) under the names and values of today.

    Args:
        settings: setting -> value as some version wrote them; keys that are no settings pass unchanged.
    """
    names: dict[str, str] = {}
    values: dict[str, Mapping[str, str]] = {}
    for config_class in _all_configs(Config):
        names |= aliases_of(config_class)
        values |= {
            item.name: item.metadata["choice_aliases"]
            for item in fields(config_class)
            if item.metadata.get("choice_aliases")
        }
    renamed = {names.get(key, key): value for key, value in settings.items()}
    return {
        key: values[key].get(value, value) if key in values and isinstance(value, str) else value
        for key, value in renamed.items()
    }


def first_names(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings under the names they had first, so that a digest of them outlives a renaming."""
    first = {
        item.name: item.metadata["aliases"][0]
        for config_class in _all_configs(Config)
        for item in fields(config_class)
        if item.metadata.get("aliases")
    }
    return {first.get(key, key): value for key, value in settings.items()}


def _all_configs(config_class: type[Config]) -> list[type[Config]]:
    below = config_class.__subclasses__()
    return [*below, *(deeper for item in below for deeper in _all_configs(item))]


def require(condition: bool, message: str) -> None:
    """Raises `UserError` with `message` unless the condition holds."""
    if not condition:
        raise UserError(message)
