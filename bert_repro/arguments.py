"""Turns `--preset`, `--config FILE.yaml` and flags into a configuration, and writes the text of `--help`.

Precedence: defaults < --preset < --config FILE.yaml < flags. This module is imported only when there are flags to
parse, because transformers' parser takes a second to import.
"""

import argparse
import dataclasses
import inspect
import re
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar, get_args, get_origin

from transformers.hf_argparser import HfArgumentParser

from bert_repro.configs import Config, Phase, TextSource
from bert_repro.configs.base import choices_of, did_you_mean, help_of, spelling_of, type_hints
from bert_repro.configs.presets import preset_names, preset_values
from bert_repro.configs.upstream_flags import upstream_advice
from bert_repro.errors import UserError
from bert_repro.utils.readers import parse_yaml, quoted
from bert_repro.utils.schema import conform

ConfigType = TypeVar("ConfigType", bound=Config)

_IN_SHORT_HELP: Mapping[str, tuple[str, ...]] = {
    "Model and data": (
        "model_name_or_path", "train_file", "validation_file", "validation_fraction", "test_file", "dataset_name",
        "text_columns", "label_column", "encoding", "regression", "multi_label", "task_name", "data_dir", "do_train",
        "do_eval", "corpus", "input_files", "vocab_size", "extend", "new_tokens",
    ),
    "Training": (
        "learning_rate", "bias_correction", "class_weights", "num_train_epochs", "max_steps", "train_batch_size",
        "max_seq_length", "objective", "masked_lm_prob",
        "mixed_precision", "seed", "num_hidden_layers", "hidden_size", "num_attention_heads", "dry_run",
    ),
    "Output and resuming": ("output_dir", "overwrite_output_dir", "save_steps", "resume_from_checkpoint"),
}  # fmt: skip
"""What --help shows of a recipe with many settings, in this order. --help_all shows all settings."""
_SETTINGS_FOR_SHORT_HELP = 20
"""A recipe with at most this many settings shows all of them in --help."""
_LONGEST_CHOICES = 60
"""Characters of a list of choices that is shown next to its flag."""
_ONLY_IN_FILES: Mapping[str, type[Phase] | type[TextSource]] = {"phases": Phase, "sources": TextSource}
"""Settings that are lists of mappings, which a flag cannot express -> the class of an entry."""


# --- Reading settings -------------------------------------------------------------------------------------------------


def parse(config_class: type[ConfigType], argv: Sequence[str], *, prog: str = "") -> ConfigType:
    """Builds a configuration from `--preset`, `--config` and flags.

    Args:
        config_class: the configuration of the recipe.
        argv: the command line without the program's name.
        prog: the command, for the help text.

    Raises:
        UserError: an unknown flag, key or preset, a value of the wrong type, or settings that contradict each other.
        SystemExit: help was requested and has been printed.
    """
    if config_class.POSITIONAL and argv and not argv[0].startswith("-"):
        argv = [f"--{config_class.POSITIONAL}", *argv]
    parser = _Parser(config_class, prog)
    flags = parser.values(argv)
    wants_help = flags.pop("help", False)
    wants_all_help = flags.pop("help_all", False)
    if wants_help or wants_all_help:
        sys.stdout.write(parser.format_help(everything=wants_all_help))
        sys.exit(0)

    # Later values replace earlier ones: preset, file, flags.
    preset = flags.pop("preset", None)
    file = flags.pop("config", None)
    given: dict[str, Any] = {}
    if file is not None:
        given = settings_from(read_yaml_mapping(Path(file), "--config"), config_class, f"--config {file}")
    given |= flags
    values = preset_values(preset, config_class, given) if preset is not None else {}
    return config_class(**(values | given))


def settings_from(document: Mapping[str, Any], config_class: type[Config], where: str) -> dict[str, Any]:
    """Converts and checks the entries of a YAML mapping as if they were flags. Some settings are lists of mappings.

    Args:
        document: the mapping.
        config_class: the configuration that it is for.
        where: the file, for messages.

    Raises:
        UserError: an unknown key, or a value of the wrong type; the message begins with `where`.
    """
    names = type_hints(config_class)
    if not isinstance(document, Mapping):
        raise UserError(f"{where} is {quoted(document)}, not a mapping of settings. Write lines such as 'seed: 1'.")
    values: dict[str, Any] = {}
    argv: list[str] = []
    for typed_key, value in document.items():
        key = spelling_of(typed_key, names)
        if key not in names:
            advice = did_you_mean(str(key), names) or "see --help"
            raise UserError(f"{where}: unknown setting {quoted(key)}; {advice}")
        if value is None:
            if type(None) not in get_args(names[key]):
                raise UserError(f"{where}: {key} has no value. Write one, or remove the line.")
            values[key] = None
        elif key in _ONLY_IN_FILES:
            values[key] = _entries(key, value, where)
        else:
            # argparse converts the texts of flags to numbers and switches, so YAML values go the same way.
            words = value if isinstance(value, list) else [value]
            argv += [f"--{key}", *map(str, words)]
    try:
        return values | _Parser(config_class).values(argv)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def read_yaml_mapping(path: Path, flag: str) -> dict[str, Any]:
    """Reads a YAML file that contains a mapping.

    Args:
        path: the file.
        flag: the flag that named it, for messages.

    Raises:
        UserError: the file does not exist or contains something else.
    """
    try:
        document = parse_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{flag} {path}: cannot be read ({error.strerror}). Name an existing YAML file.") from error
    except ValueError as error:
        raise UserError(f"{flag} {path}: is not valid YAML ({error})") from None
    if not isinstance(document, dict):
        raise UserError(f"{flag} {path}: holds no mapping of settings. Write lines such as 'learning_rate: 1e-4'.")
    return document


def _entries(key: str, value: Any, where: str) -> tuple[Phase | TextSource, ...]:
    """Converts a list of mappings to the objects that they describe."""
    entry_class = _ONLY_IN_FILES[key]
    names = ", ".join(item.name for item in dataclasses.fields(entry_class))
    remedy = f"Write a list of mappings of {names}."
    entries = conform({key: value}, dict[str, tuple[entry_class, ...]], where, remedy)[key]  # type: ignore[valid-type]
    try:
        return tuple(entry_class(**entry) for entry in entries)
    except TypeError:
        # A name is missing, or there is one more.
        raise UserError(f"{where}: {key} is {quoted(value)}. {remedy}") from None


# --- Parser -----------------------------------------------------------------------------------------------------------


class _Parser(HfArgumentParser):  # type: ignore[misc]
    """transformers' parser with groups by configuration class, a short help, and errors of one line.

    Its namespace contains only the settings that were given, so that a preset and a file can supply the others.
    """

    def __init__(self, config_class: type[Config], prog: str = "") -> None:
        self._config_class = config_class
        self._hints = type_hints(config_class)
        super().__init__(
            config_class,
            prog=prog,
            usage="%(prog)s [flags]",
            formatter_class=lambda prog: _HelpFormatter(prog, max_help_position=30, width=_help_width()),
            allow_abbrev=False,
            add_help=False,
        )
        self._add_common_flags()
        for action in self._actions:
            action.default = argparse.SUPPRESS
            if action.dest in self._hints:
                action.metavar = self._metavar(action)

    def _add_common_flags(self) -> None:
        group = self.add_argument_group("Settings from files, and help")
        presets = ", ".join(preset_names(self._config_class))
        preset_help = f"Start from a named set of values: {presets}." if presets else argparse.SUPPRESS
        group.add_argument("--preset", metavar="NAME", help=preset_help)
        group.add_argument("--config", metavar="FILE", help="YAML file; it wins over a preset, flags over it.")
        group.add_argument("--help", "-h", action="store_true", help="Print the most important settings.")
        group.add_argument("--help_all", "--help-all", action="store_true", help="Print all settings.")

    def values(self, argv: Sequence[str]) -> dict[str, Any]:
        """Returns the settings given on a command line: name -> value."""
        given, unknown = self.parse_known_args([self._spelled(word) for word in argv])
        if unknown:
            self._refuse_unknown(unknown)
        return dict(vars(given))

    def _spelled(self, word: str) -> str:
        """Returns a word of the command line; a flag in the spelling of this recipe."""
        if not word.startswith("--"):
            return word
        name, equals, value = word[2:].partition("=")
        return f"--{spelling_of(name, self._hints)}{equals}{value}"

    def _refuse_unknown(self, words: list[str]) -> NoReturn:
        """Raises for words that are not flags of this recipe, with the flag that was probably meant."""
        # --flag=value and --flag value are both possible.
        flags = [word.partition("=")[0] for word in words if word.startswith("-")]
        if not flags:
            self.error(f"{quoted(words[0])} is not expected here; every setting is a flag")
        name = flags[0].lstrip("-").replace("-", "_")
        if name in _ONLY_IN_FILES:
            first_field = dataclasses.fields(_ONLY_IN_FILES[name])[0].name
            self.error(f"--{name} is set in a file (--config): {name}: [{{{first_field}: ..., ...}}, ...]")
        advice = upstream_advice(name)
        if advice is not None:
            self.error(f"{flags[0]} is a flag of transformers' scripts. {advice}")
        self.error(f"unknown flag {flags[0]}; {did_you_mean(name, self._hints, '--') or 'see --help_all'}")

    def error(self, message: str) -> NoReturn:
        """Raises a `UserError`, which ends the process with code 2 and one line."""
        # argparse writes "argument --name/--other-name: ...".
        raise UserError(re.sub(r"^argument (--\w+)(/--[\w-]+)?", r"\1", message))

    # --- Help ---

    def format_help(self, *, everything: bool = False) -> str:
        """Returns the help text, with all settings or with those that people need first."""
        text = inspect.getdoc(self._config_class) or ""
        groups = [(str(group.title), group._group_actions) for group in self._action_groups]
        if not everything and len(self._hints) > _SETTINGS_FOR_SHORT_HELP:
            groups = [*self._short_groups(), groups[-1]]
            # The example in Python is in --help_all and in the reference.
            text = re.sub(r"From Python:\n\n(    .*\n|\n)+", "", text)

        formatter = self._get_formatter()
        formatter.add_usage(self.usage, [], [])
        for paragraph in text.split("\n\n"):
            # An indented paragraph is an example and keeps its line breaks.
            is_example = paragraph.startswith(" ")
            formatter.add_text(paragraph if is_example else textwrap.fill(paragraph, formatter._width))
        for title, actions in groups:
            formatter.start_section(title)
            formatter.add_arguments(action for action in actions if action.option_strings[0] != f"--no_{action.dest}")
            formatter.end_section()
        return str(formatter.format_help())

    def _short_groups(self) -> list[tuple[str, list[argparse.Action]]]:
        actions = {action.dest: action for action in self._actions}
        for action in actions.values():
            action.help = _first_sentence(action.help or "")
        groups = []
        for title, names in _IN_SHORT_HELP.items():
            groups.append((title, [actions[name] for name in names if name in actions]))
        return groups

    def _add_dataclass_arguments(self, dtype: Any) -> None:
        """Adds the settings in groups, each under the class that declares them. Called by transformers' parser."""
        added = set(_ONLY_IN_FILES)
        for declaring_class in dtype.__mro__:
            annotations = inspect.get_annotations(declaring_class)
            # Subclasses come first; a setting that a subclass declares again is not added twice.
            names = [name for name in annotations if name in self._hints and name not in added]
            if not names:
                continue
            added.update(names)
            title = "Settings of this recipe"
            if declaring_class is not dtype:
                title = (declaring_class.__doc__ or "").splitlines()[0].rstrip(".")
            group = self.add_argument_group(title)
            for name in names:
                self._parse_dataclass_field(group, self._plain_field(name))

    def _plain_field(self, name: str) -> Any:
        """Returns a setting as a field that transformers' parser understands: lists for tuples, and no choices.

        Choices are checked by the configuration, whose message names the nearest one.
        """
        hint = self._hints[name]
        plain: Any = dataclasses.field(
            default=self._config_class.__dataclass_fields__[name].default,
            metadata={"help": self._help_text(name).replace("%", "%%")},
        )
        kinds = {str, int, float, bool}.intersection((hint, *get_args(hint)))
        kind: Any = kinds.pop() if kinds else str
        plain.name = name
        plain.type = list[kind] if get_origin(hint) is tuple else kind
        return plain

    def _help_text(self, name: str) -> str:
        """Returns the help of a setting with its default, or with the note that it must be given."""
        item = self._config_class.__dataclass_fields__[name]
        text, default = help_of(self._config_class, name), item.default
        if name in self._config_class.REQUIRED and not default:
            return f"{text} (required)"
        if default in (None, "", (), False) or "default" in text.lower():
            return text
        if isinstance(default, float):
            default = f"{default:g}"
        elif isinstance(default, tuple):
            default = " ".join(default)
        return f"{text} (default: {default})"

    def _metavar(self, action: argparse.Action) -> str:
        """Returns what --help shows after a flag: its choices, or the kind of value."""
        # Long lists of choices are in the error message and in the reference.
        choices = "|".join(choices_of(self._config_class, action.dest))
        if choices:
            return choices if len(choices) <= _LONGEST_CHOICES else "NAME"
        if action.const is True:
            is_off_by_default = self._config_class.__dataclass_fields__[action.dest].default is False
            return "" if is_off_by_default else "true|false"
        if action.type is int:
            return "N"
        if action.type is float:
            return "X"
        kinds = {"dir": "FOLDER", "folder": "FOLDER", "file": "FILE", "files": "FILE"}
        return kinds.get(action.dest.rpartition("_")[2], "NAME")


def _first_sentence(text: str) -> str:
    """Returns the first sentence of a help text, and its default. --help_all has the other sentences."""
    sentences = re.split(r"(?<=[.)]) (?=[A-Z(])", text)
    defaults = [sentence for sentence in sentences[1:] if sentence.lower().startswith(("default", "(default", "(req"))]
    return " ".join([sentences[0], *defaults])


def _help_width() -> int:
    """Returns the terminal's width less two, as argparse chooses it, but never less than what a flag needs."""
    return max(shutil.get_terminal_size().columns - 2, 40)


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Shows each flag in one spelling."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        ellipsis = " ..." if action.nargs == "+" else ""
        return f"{action.option_strings[0]} {action.metavar or ''}".strip() + ellipsis
