"""What every configuration shares: fields with metadata, and the base class that checks values against it."""

import logging
import math
import os
import stat
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from bert_repro.errors import UserError
from bert_repro.utils.readers import shown

logger = logging.getLogger("bert_repro")

SettingSource = Literal["paper", "original implementation", "transformers", "ours"]

GROUPS = {
    "data": "Data",
    "model": "Model",
    "output": "Output",
    "training": "Training",
    "task": "Task",
    "text": "Text",
    "examples": "Pre-training examples",
    "optimizer": "Optimizer and schedule",
    "sweep": "Sweeps and restarts",
    "logging": "Logging, evaluation and checkpoints",
    "speed": "Speed, memory and devices",
    "adapter": "Adapters (peft)",
    "card": "Model card",
    "hub": "Hugging Face Hub",
}
"""Subject of a setting -> its heading in help texts, in their order: what everybody needs comes first."""


def setting(
    default: Any,
    help: str,
    *,
    group: str,
    source: SettingSource = "ours",
    unit: str | None = None,
    choices: tuple[str, ...] | None = None,
    required: str | None = None,
    checkpoint: bool = False,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    deviation: str | None = None,
    aliases: tuple[str, ...] = (),
    choice_aliases: Mapping[str, str] | None = None,
) -> Any:
    """Returns a dataclass field with the metadata that checks, help texts and documents are made from.

    Args:
        default: the default value; immutable.
        help: one sentence.
        group: a key of `GROUPS`.
        source: who decides the default.
        unit: what a number counts (steps, tokens, epochs, fraction ...).
        choices: the allowed values of a string.
        required: what to give; the setting must then not be empty.
        checkpoint: whether it names a model or tokenizer; `require_checkpoints` then looks for folders.
        at_least: smallest value of a number, or of each of several.
        above: a bound that the value must exceed.
        at_most: largest value.
        below: a bound that the value must stay under.
        deviation: where the paper, the original implementation or this project differ or are silent about this choice,
            and which reading the default takes. Listed in docs/DEVIATIONS.md.
        aliases: earlier names, oldest first; flags and YAML keys accept them for one release, stored results always.
        choice_aliases: earlier value -> the value it is called now.
    """
    assert group in GROUPS, group
    metadata = {
        "help": help,
        "group": group,
        "source": source,
        "unit": unit,
        "choices": choices,
        "required": required,
        "checkpoint": checkpoint,
        "range": Range(at_least, above, at_most, below),
        "deviation": deviation,
        "aliases": aliases,
        "choice_aliases": dict(choice_aliases or {}),
    }
    return field(default=default, metadata=metadata)


def tokenizer_setting() -> Any:
    """Returns the setting `tokenizer_name`, the same in every recipe that loads a model."""
    return setting(
        None, "Tokenizer, where it is not with the model.", source="transformers", group="model", checkpoint=True
    )


@dataclass(frozen=True)
class Range:
    """The allowed values of a number; None: no such bound."""

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None

    def __str__(self) -> str:
        """Returns the range as it reads after "it must"; empty where everything is allowed."""
        low, high = self._low, self._high
        if low is not None and high is not None and high <= 1:
            left, right = "[" if self.above is None else "(", "]" if self.below is None else ")"
            return f"lie in {left}{low:g}, {high:g}{right}"
        if low is None:
            return "" if high is None else f"be {self._upper}"
        lower = f"be {'above' if self.at_least is None else 'at least'} {low}"
        if low == 0 and self.at_least is None:
            lower = "be positive"
        elif low == 0 and high is None:
            lower = "not be negative"
        return lower if high is None else f"{lower} and {self._upper}"

    def fault(self, value: float) -> bool:
        """Returns whether a value lies outside."""
        return (
            (self.at_least is not None and value < self.at_least)
            or (self.above is not None and value <= self.above)
            or (self.at_most is not None and value > self.at_most)
            or (self.below is not None and value >= self.below)
        )

    @property
    def _upper(self) -> str:
        return f"below {self.below}" if self.at_most is None else f"at most {self.at_most:,}"

    @property
    def _low(self) -> float | None:
        return self.above if self.at_least is None else self.at_least

    @property
    def _high(self) -> float | None:
        return self.below if self.at_most is None else self.at_most


@dataclass(frozen=True)
class Config:
    """Base of all configurations: checks each setting by what its field declares; `validate` checks combinations."""

    def __post_init__(self) -> None:
        for item in fields(self):
            if isinstance(item.default, tuple) and isinstance(getattr(self, item.name), str):
                object.__setattr__(self, item.name, (getattr(self, item.name),))  # one value, as Python code gives it
            self._accept_earlier_value(item.name, item.metadata["choice_aliases"])
            self._check(item)
        self.validate()

    def _check(self, item: "Field[Any]") -> None:
        name, value, allowed = item.name, getattr(self, item.name), item.metadata
        if allowed["required"] and value in ("", ()):
            raise UserError(f"--{name} is missing; {allowed['required']}")
        values = value if isinstance(value, tuple) else (value,)
        for one in values if allowed["choices"] and value not in (None, item.default) else ():
            if one not in allowed["choices"]:
                raise UserError(f"--{name} is {shown(one)}; it must be one of: {', '.join(allowed['choices'])}")
        if any(isinstance(one, str) and "\0" in one for one in values):
            raise UserError(f"--{name} is {shown(value)}; it must not hold a null character")
        for number in values:
            if not isinstance(number, int | float) or isinstance(number, bool):
                continue
            if isinstance(number, float) and not math.isfinite(number):
                raise UserError(f"--{name} is {number}; it must be a finite number")
            if allowed["range"].fault(number):
                raise UserError(f"--{name} is {shown(number)}; it must {allowed['range']}")

    def _accept_earlier_value(self, name: str, earlier: Mapping[str, str]) -> None:
        value = getattr(self, name)
        if isinstance(value, str) and value in earlier:
            message = "--%s %s is now called %s; the old name works for one more release"
            logger.warning(message, name, value, earlier[value])
            object.__setattr__(self, name, earlier[value])

    def validate(self) -> None:
        """Raises `UserError` when settings contradict each other. Each class checks its own and calls super()."""


def require_checkpoints(config: Config) -> None:
    """Refuses names of models and tokenizers that look like folders and are none, before anything asks the Hub.

    Raises:
        UserError: there is no such folder.
    """
    for item in fields(config):
        value = getattr(config, item.name) if item.metadata["checkpoint"] else None
        for name in value if isinstance(value, tuple) else (value,):
            if not name or os.path.isfile(name):  # unlike Path's, false for a name that is too long
                continue
            if not os.path.isdir(name) and looks_like_a_folder(name):
                raise UserError(
                    f"--{item.name} {name}: no such folder; name the output folder of a finished run, or an id of the "
                    "Hub such as google-bert/bert-base-uncased"
                )


def require_places(config: Config) -> None:
    """Refuses output folders and files that cannot be made, before anything is read.

    Raises:
        UserError: a folder is a file, a file is a folder, one of the folders above is a file, or a name is too long.
    """
    for item in fields(config):
        name = getattr(config, item.name)
        if item.metadata["group"] != "output" or not item.name.endswith(("_dir", "_file")):
            continue
        if not name or not isinstance(name, str):  # not given, or a switch such as overwrite_output_dir
            continue
        for path in (Path(name), *Path(name).parents):
            try:
                mode = path.stat().st_mode
            except (FileNotFoundError, NotADirectoryError):
                continue
            except (OSError, ValueError) as error:  # too long a name, a loop of links, a null byte
                reason = error.strerror if isinstance(error, OSError) else error
                raise UserError(f"--{item.name} {name}: {reason}; name another place") from error
            is_output_file = path == Path(name) and item.name.endswith("_file")
            if is_output_file and stat.S_ISDIR(mode):
                raise UserError(f"--{item.name} {name} is a folder; name a file")
            if not is_output_file and not stat.S_ISDIR(mode):
                below = "is a file" if path == Path(name) else f"lies below the file {path}"
                raise UserError(f"--{item.name} {name} {below}; name a folder")
            break


def looks_like_a_folder(name: str) -> bool:
    """Returns whether a name is meant as a place on the disk, not as an id of the Hub."""
    first, *rest = Path(name).parts
    return (
        name.startswith((".", "~"))
        or name.endswith("/")
        or Path(name).is_absolute()
        or first == "runs"
        or len(rest) > 1
    )


def aliases_of(config_class: type[Config]) -> dict[str, str]:
    """Returns the earlier names of a configuration's settings: earlier name -> name."""
    return {alias: item.name for item in fields(config_class) for alias in item.metadata["aliases"]}


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
            if item.metadata["choice_aliases"]
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
        if item.metadata["aliases"]
    }
    return {first.get(key, key): value for key, value in settings.items()}


def _all_configs(config_class: type[Config]) -> list[type[Config]]:
    below = config_class.__subclasses__()
    return [*below, *(deeper for item in below for deeper in _all_configs(item))]


def require(condition: bool, message: str) -> None:
    """Raises `UserError` with `message` unless the condition holds."""
    if not condition:
        raise UserError(message)
