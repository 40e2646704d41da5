"""What all configurations share: how a setting is declared and how values are checked."""

import difflib
import functools
import typing
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal

from bert_repro.errors import UserError
from bert_repro.utils.readers import shown

LOCATIONS = frozenset({
    "model_name_or_path", "tokenizer_name", "data_dir", "corpus", "train_file", "validation_file",
})  # fmt: skip
"""Settings that say where a run reads what decides its result. Files may move: a resumed run compares their content."""


def setting(default: Any, help: str, *, decides_result: bool = True) -> Any:
    """Returns a dataclass field for a setting.

    Args:
        default: the default value; immutable.
        help: one sentence, with the unit of a number.
        decides_result: False where another value gives the same numbers up to rounding; a resumed run may change it.
    """
    return field(default=default, metadata={"help": help, "decides_result": decides_result})


@dataclass(frozen=True)
class Config:
    """Base of all configurations. Subclasses check their values in `__post_init__` and call super's."""

    REQUIRED: ClassVar[tuple[str, ...]] = ()
    """Settings that must be given."""

    def __post_init__(self) -> None:
        for name, hint in type_hints(type(self)).items():
            value = getattr(self, name)
            if typing.get_origin(hint) is tuple:
                value = (value,) if isinstance(value, str | int | float) else tuple(value)
                object.__setattr__(self, name, value)
            if name in self.REQUIRED and not value:
                raise UserError(f"--{name} is missing: {self.__dataclass_fields__[name].metadata['help']}")
            if names := _choices(hint):
                for one in value if isinstance(value, tuple) else [value] if value else []:
                    if one not in names:
                        fix = did_you_mean(str(one), names) or f"it must be one of: {', '.join(names)}"
                        raise UserError(f"--{name} is {shown(one)}; {fix}")


def type_hints(config_class: type[Config]) -> dict[str, Any]:
    """Returns the types of a configuration's settings: name -> type."""
    hints = typing.get_type_hints(config_class)
    return {item.name: hints[item.name] for item in fields(config_class)}


def choices_of(config_class: type[Config], name: str) -> tuple[str, ...]:
    """Returns the values that a setting allows; empty where it allows any."""
    return _choices(type_hints(config_class)[name])


def _choices(hint: Any) -> tuple[str, ...]:
    for arm in (hint, *typing.get_args(hint)):
        if typing.get_origin(arm) is Literal:
            return tuple(choice for choice in typing.get_args(arm) if choice)
    return ()


def decides_result(name: str) -> bool:
    """Returns whether a setting of that name decides the numbers of a run, by what its field says."""
    return name not in _without_influence()


def deciding_settings(config: Config) -> dict[str, Any]:
    """Returns the settings of a configuration that decide the numbers of its run: name -> value."""
    return {item.name: getattr(config, item.name) for item in fields(config) if decides_result(item.name)}


@functools.cache
def _without_influence() -> frozenset[str]:
    from bert_repro import configs

    classes = [item for item in vars(configs).values() if isinstance(item, type) and issubclass(item, Config)]
    return frozenset(
        item.name for config_class in classes for item in fields(config_class) if not item.metadata["decides_result"]
    )


def did_you_mean(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Returns "did you mean ...?" with the known name closest to a mistyped one; empty where none is close."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {prefix}{close[0]}?" if close else ""


def require(condition: bool, message: str) -> None:
    """Raises `UserError` with `message` unless the condition holds."""
    if not condition:
        raise UserError(message)


def require_positive(config: Config, *names: str) -> None:
    """Refuses settings that are zero, negative or not a number; None is allowed, of several numbers each is checked."""
    for name in names:
        for value in _numbers(config, name):
            require(value > 0, f"--{name} is {value}; it must be positive")


def require_fraction(config: Config, *names: str, below_one: bool = False) -> None:
    """Refuses settings outside 0 to 1, and 1 itself where `below_one`; None is allowed."""
    for name in names:
        for value in _numbers(config, name):
            fits = 0 <= value < 1 if below_one else 0 <= value <= 1
            require(fits, f"--{name} is {value}; it is a fraction from 0 to 1{', less than 1' if below_one else ''}")


def _numbers(config: Config, name: str) -> list[float]:
    value = getattr(config, name)
    return [one for one in (value if isinstance(value, tuple) else (value,)) if one is not None]
