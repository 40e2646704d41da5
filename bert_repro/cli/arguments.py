"""From `--preset`, `--config FILE.yaml` and flags to a configuration, and the text of `--help`.

Precedence: defaults < --preset < --config FILE.yaml < flags. Unknown flags, YAML keys and values are refused.
A flag may be spelled with hyphens in place of underscores.
"""

import argparse
import dataclasses
import logging
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from bert_repro import configs
from bert_repro.cli.suggestions import answer_unknown, closest
from bert_repro.errors import UserError
from bert_repro.presets import preset_names, preset_values
from bert_repro.utils.readers import parse_yaml, shown

logger = logging.getLogger("bert_repro")

_LARGEST_YAML = 1_000_000  # bytes; the parser takes minutes for a data file that was named by mistake


def parse(
    config_class: type[configs.Config], argv: Sequence[str], *, prog: str = "", description: str | None = None
) -> Any:
    """Builds a configuration from `--preset`, `--config` and flags.

    Raises:
        UserError: an unknown flag, key or preset, a value of the wrong type, or settings that contradict each other.
    """
    parser = _parser(config_class, prog, description or config_class.__doc__)
    hints, aliases = typing.get_type_hints(config_class), configs.aliases_of(config_class)
    given, unknown = parser.parse_known_args([_current_spelling(word, hints, aliases) for word in argv])
    if unknown:
        raise UserError(answer_unknown(unknown, hints))
    flags = {key: value for key, value in vars(given).items() if value is not None}
    preset, yaml_file = flags.pop("preset", None), flags.pop("config", None)
    values: dict[str, Any] = {}
    if preset:
        values.update(preset_values(preset, config_class))
    if yaml_file:
        values.update(read_yaml(Path(yaml_file), config_class))
    values.update(flags)
    return config_class(**values)


def _parser(config_class: type[configs.Config], prog: str, description: str | None) -> "_Parser":
    parser = _Parser(
        prog=prog,
        usage="%(prog)s [flags]",
        description=description,
        formatter_class=HelpFormatter,
        allow_abbrev=False,
        add_help=False,
    )
    hints = typing.get_type_hints(config_class)
    items = _in_help_order(config_class)
    for group in (name for name in configs.GROUPS if any(item.metadata["group"] == name for item in items)):
        section = parser.add_argument_group(configs.GROUPS[group].lower())
        for item in items:
            if item.metadata["group"] == group:
                _add_flag(section, item, hints[item.name])
    section = parser.add_argument_group("settings from files")
    if names := preset_names(config_class):
        section.add_argument("--preset", metavar="NAME", help=f"Start from a named set of values: {', '.join(names)}.")
    else:
        section.add_argument("--preset", metavar="NAME", help=argparse.SUPPRESS)
    section.add_argument("--config", metavar="FILE", help="YAML file of settings; flags win over it, it over a preset.")
    section.add_argument("-h", "--help", action="help", help="Print this text.")
    return parser


def _in_help_order(config_class: type[configs.Config]) -> list["dataclasses.Field[Any]"]:
    """Returns the settings of a configuration: what is required, its own class's, those that all runs share."""
    places = {name: place for place, base in reversed([*enumerate(config_class.__mro__)]) for name in vars(base)}
    return sorted(dataclasses.fields(config_class), key=lambda item: (not item.metadata["required"], places[item.name]))


def read_yaml(path: Path, config_class: type[configs.Config]) -> dict[str, Any]:
    """Reads settings from a YAML mapping; keys and types are checked as for flags."""
    return settings_from(read_yaml_mapping(path, "--config"), config_class, f"--config {path}")


def read_yaml_mapping(path: Path, flag: str) -> dict[str, Any]:
    """Reads a YAML file that holds a mapping.

    Args:
        path: the file.
        flag: the flag that named it, for messages.

    Raises:
        UserError: there is no such file, or it is something else.
    """
    try:
        if path.stat().st_size > _LARGEST_YAML:
            raise UserError(f"{flag} {path}: is larger than {_LARGEST_YAML:,} bytes; name a file of settings")
        document = parse_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{flag} {path}: cannot be read ({error.strerror}); name an existing YAML file") from error
    except UserError:
        raise
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{flag} {path}: is not valid YAML ({reason})") from error
    if not isinstance(document, dict):
        raise UserError(f"{flag} {path}: holds no mapping of settings; write lines such as 'learning_rate: 1e-4'")
    return document


def settings_from(document: dict[str, Any], config_class: type[configs.Config], where: str) -> dict[str, Any]:
    """Reads settings of a configuration from a YAML mapping.

    Args:
        document: the mapping.
        config_class: the configuration.
        where: names the mapping in messages.

    Raises:
        UserError: an unknown key, or a value of the wrong type.
    """
    hints, aliases = typing.get_type_hints(config_class), configs.aliases_of(config_class)
    values = {}
    for key, value in document.items():
        if key in aliases:
            if aliases[key] in document:
                raise UserError(f"{where}: {key} is the old name of {aliases[key]}; leave one of the two out")
            _warn_of_alias(f"{where}: {key}", aliases[key])
            key = aliases[key]
        if key not in hints:
            raise UserError(f"{where}: unknown setting {shown(key)}{_did_you_mean(str(key), hints)}")
        values[key] = _from_yaml(value, hints[key], f"{where}: {key}")
    return values


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors are `UserError`s, not a usage text of hundreds of lines."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message if len(message) <= 300 else message[:300] + ' ...'} (see --help)")


def _add_flag(parser: argparse._ArgumentGroup, item: "dataclasses.Field[Any]", hint: Any) -> None:
    base, many = _value_type(hint)
    if dataclasses.is_dataclass(base):
        return  # nested settings (phases) come from a preset or YAML
    text = help_of(item, base).replace("%", "%%")
    options: dict[str, Any] = {"help": text, "default": None, "metavar": metavar(item, base)}
    if base is bool:
        options.update(nargs="?", const=True, type=_boolean)
    else:
        options.update(type=base)
    if many:
        options.update(nargs="+", action=_TupleAction)
    parser.add_argument(f"--{item.name}", **options)


class _TupleAction(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        setattr(namespace, self.dest, tuple(values))


def _value_type(hint: Any) -> tuple[type, bool]:
    """Returns the type of one value, and whether the setting takes several (`tuple[str, ...]` does)."""
    if isinstance(hint, types.UnionType):
        hint = next(arm for arm in typing.get_args(hint) if arm is not type(None))
    if typing.get_origin(hint) is tuple:
        return typing.get_args(hint)[0], True
    return hint, False


def _boolean(text: str) -> bool:
    if text.lower() in ("true", "1", "yes"):
        return True
    if text.lower() in ("false", "0", "no"):
        return False
    raise argparse.ArgumentTypeError(f"{shown(text)} is not true or false")


def _from_yaml(value: Any, hint: Any, where: str) -> Any:
    base, many = _value_type(hint)
    if many:
        values = value if isinstance(value, list) else [value]
        return tuple(_single_from_yaml(element, base, where) for element in values)
    if value is None and isinstance(hint, types.UnionType):
        return None
    return _single_from_yaml(value, base, where)


def _single_from_yaml(value: Any, base: type, where: str) -> Any:
    if dataclasses.is_dataclass(base):
        hints = typing.get_type_hints(base)
        try:
            return base(**{key: _from_yaml(field, hints[key], f"{where}: {key}") for key, field in value.items()})
        except (AttributeError, KeyError, TypeError) as error:
            names = ", ".join(field.name for field in dataclasses.fields(base))
            raise UserError(f"{where}: {shown(value)} does not fit; write a mapping of {names}") from error
    if base is float and isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            return float(value)  # YAML 1.1 reads 1e-4 as a string
        except (ValueError, OverflowError):
            pass
    elif isinstance(value, base) and not (base is int and isinstance(value, bool)):
        return value
    raise UserError(f"{where}: {shown(value)} is not of type {base.__name__}")


def _current_spelling(word: str, known: typing.Container[str], aliases: Mapping[str, str]) -> str:
    """Returns a flag with hyphens, or under an earlier name, as it is spelled now; anything else unchanged."""
    flag, equals, value = word.partition("=")
    name = flag.removeprefix("--").replace("-", "_")
    if not flag.startswith("--") or (name not in known and name not in aliases):
        return word
    if name in aliases:
        _warn_of_alias(f"--{name}", f"--{aliases[name]}")
    return f"--{aliases.get(name, name)}{equals}{value}"


def _warn_of_alias(earlier: str, now: str) -> None:
    logger.warning("%s is now called %s; the old name works for one more release", earlier, now)


def _did_you_mean(name: str, known: typing.Iterable[str]) -> str:
    close = closest(name, known)
    return f"; did you mean {close}?" if close else " (see --help)"


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Keeps the line breaks of examples and writes yes-or-no flags as they are typed."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if action.nargs == "?":
            return action.option_strings[0] + (f" {action.metavar}" if action.metavar else "")
        if action.nargs == "+":
            return f"{action.option_strings[0]} {action.metavar} ..."
        return super()._format_action_invocation(action)


def metavar(item: "dataclasses.Field[Any]", kind: type) -> str:
    """Returns how help names the value of a setting; empty for a flag without a value."""
    choices: tuple[str, ...] | None = item.metadata["choices"]
    if kind is bool:
        return "" if item.default is False else "true|false"
    if choices:
        return "|".join(choices) if len("|".join(choices)) <= 36 else "NAME"
    if kind in (int, float):
        return {int: "N", float: "X"}[kind]
    for ending, name in (("dir", "FOLDER"), ("folder", "FOLDER"), ("file", "FILE"), ("files", "FILE")):
        if item.name.endswith(ending):
            return name
    return "NAME"


def help_of(item: "dataclasses.Field[Any]", kind: type) -> str:
    """Returns the help text of a setting: what it does, choices, unit, default."""
    choices: tuple[str, ...] | None = item.metadata["choices"]
    text: str = item.metadata["help"]
    if choices and metavar(item, kind) == "NAME":
        text = f"{text} One of: {', '.join(choices)}."
    notes = []
    if item.metadata["unit"]:
        notes.append(item.metadata["unit"])
    if item.metadata["required"]:
        notes.append("required")
    elif (default := default_text(item.default)) and "default" not in text.lower():
        notes.append(f"default: {default}")
    return f"{text} [{'; '.join(notes)}]" if notes else text


def default_text(value: Any) -> str:
    """Returns a default as it would be typed; empty for none and for a flag that is off."""
    if value in (None, "", (), False):
        return ""
    if value is True:
        return "true"
    if isinstance(value, float):
        return f"{value:g}"
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
