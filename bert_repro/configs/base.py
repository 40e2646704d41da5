"""What every configuration shares: a field with its metadata, and the base class that checks choices."""

import math
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from bert_repro.errors import UserError

Source = Literal["paper", "released", "transformers", "ours"]


def setting(
    default: Any,
    help: str,
    *,
    source: Source = "ours",
    unit: str | None = None,
    choices: tuple[str, ...] | None = None,
    deviation: str | None = None,
) -> Any:
    """A dataclass field with the metadata that help texts and documents are generated from.

    Args:
        default: the default value; immutable.
        help: one sentence.
        source: who decides the default.
        unit: what a number counts (steps, tokens, epochs, fraction ...).
        choices: the allowed values of a string.
        deviation: where the paper, the released code or this project differ or are silent about this choice, and
            which reading the default takes. Listed in docs/DEVIATIONS.md.
    """
    metadata = {"help": help, "source": source, "unit": unit, "choices": choices, "deviation": deviation}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Config:
    """Base of all configurations: checks choices and that numbers are finite; a subclass adds its own in `validate`."""

    def __post_init__(self) -> None:
        for item in fields(self):
            choices, value = item.metadata.get("choices"), getattr(self, item.name)
            if choices and value is not None and value not in choices and value != item.default:
                raise UserError(f"--{item.name} is {value!r}; it must be one of: {', '.join(choices)}")
            for number in value if isinstance(value, tuple) else (value,):
                if isinstance(number, float) and not math.isfinite(number):
                    raise UserError(f"--{item.name} is {number}; it must be a finite number")
        self.validate()

    def validate(self) -> None:
        """Raises `UserError` when settings contradict each other. Each class checks its own and calls super()."""


def require(condition: bool, message: str) -> None:
    """Raises `UserError` with `message` unless the condition holds."""
    if not condition:
        raise UserError(message)
