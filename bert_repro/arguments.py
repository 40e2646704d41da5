"""From `--preset`, `--config FILE.yaml` and flags to a configuration, and the text of `--help`.

Precedence: defaults < --preset < --config FILE.yaml < flags. Imported only when there are flags to parse, since
transformers' parser takes a second to import.
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
from typing import Any, NoReturn, get_args, get_origin

from transformers.hf_argparser import HfArgumentParser

from bert_repro.configs import Config, Phase, TextSource
from bert_repro.configs.base import choices_of, did_you_mean, type_hints
from bert_repro.configs.presets import preset_names, preset_values
from bert_repro.errors import UserError
from bert_repro.utils.readers import parse_yaml, shown

_FIRST: Mapping[str, tuple[str, ...]] = {
    "Model and data": (
        "model_name_or_path", "train_file", "validation_file", "validation_fraction", "test_file", "text_columns",
        "label_column", "regression", "task_name", "data_dir", "do_train", "do_eval",
        "corpus", "input_files", "vocab_size", "extend", "new_tokens",
    ),
    "Training": (
        "learning_rate", "bias_correction", "num_train_epochs", "max_steps", "train_batch_size", "max_seq_length",
        "mixed_precision", "seed", "num_hidden_layers", "hidden_size", "num_attention_heads", "dry_run",
    ),
    "Output and resuming": ("output_dir", "overwrite_output_dir", "save_steps", "resume_from_checkpoint"),
}  # fmt: skip
"""What a recipe with many settings shows in --help, in this order; --help_all shows all."""
_FEW = 20  # settings of a recipe whose --help shows all of them
_FROM_FILES: Mapping[str, Any] = {"phases": Phase, "sources": TextSource}
"""Settings that are lists of mappings, which no flag holds."""


def parse(config_class: type[Config], argv: Sequence[str], *, prog: str = "") -> Any:
    """Builds a configuration from `--preset`, `--config` and flags.

    Raises:
        UserError: an unknown flag, key or preset, a value of the wrong type, or settings that contradict each other.
        SystemExit: help was asked for and printed.
    """
    if config_class.POSITIONAL and argv and not argv[0].startswith("-"):
        argv = [f"--{config_class.POSITIONAL}", *argv]
    parser = _Parser(config_class, prog)
    flags = parser.values(argv)
    if flags.pop("help", False) | flags.pop("help_all", False):
        sys.stdout.write(parser.format_help(everything="--help_all" in argv or "--help-all" in argv))
        sys.exit(0)
    preset, file = flags.pop("preset", None), flags.pop("config", None)
    given = settings_from(read_yaml_mapping(Path(file), "--config"), config_class, f"--config {file}") if file else {}
    given |= flags
    return config_class(**(preset_values(preset, config_class, given) if preset else {}) | given)


def settings_from(document: Mapping[str, Any], config_class: type[Config], where: str) -> dict[str, Any]:
    """Converts and checks the entries of a YAML mapping as if they were flags; some settings are lists of mappings.

    Raises:
        UserError: an unknown key, or a value of the wrong type; the message begins with `where`.
    """
    names = type_hints(config_class)
    values: dict[str, Any] = {}
    argv: list[str] = []
    for key, value in document.items():
        if key not in names:
            raise UserError(f"{where}: unknown setting {shown(key)}; {did_you_mean(str(key), names) or 'see --help'}")
        if value is None:
            values[key] = None
        elif key in _FROM_FILES:
            values[key] = _mappings(key, value, where)
        else:
            argv += [f"--{key}", *map(str, value if isinstance(value, list) else [value])]
    try:
        return values | _Parser(config_class).values(argv)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def read_yaml_mapping(path: Path, flag: str) -> dict[str, Any]:
    """Reads a YAML file that holds a mapping.

    Args:
        path: the file.
        flag: the flag that named it, for messages.

    Raises:
        UserError: there is no such file, or it is something else.
    """
    try:
        document = parse_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{flag} {path}: cannot be read ({error.strerror}); name an existing YAML file") from error
    except ValueError as error:
        raise UserError(f"{flag} {path}: is not valid YAML ({error})") from None
    if not isinstance(document, dict):
        raise UserError(f"{flag} {path}: holds no mapping of settings; write lines such as 'learning_rate: 1e-4'")
    return document


def _mappings(key: str, value: Any, where: str) -> tuple[Any, ...]:
    kind = _FROM_FILES[key]
    try:
        return tuple(kind(**entry) for entry in value)
    except TypeError:
        names = ", ".join(item.name for item in dataclasses.fields(kind))
        raise UserError(f"{where}: {key} is {shown(value)}; write a list of mappings of {names}") from None


class _Parser(HfArgumentParser):  # type: ignore[misc]
    """transformers' parser with groups by configuration class, a short help, and errors of one line.

    Its namespace holds only what was given, so that a preset and a file can come before it.
    """

    def __init__(self, config_class: type[Config], prog: str = "") -> None:
        self._config_class, self._names = config_class, type_hints(config_class)
        super().__init__(
            config_class,
            prog=prog,
            usage="%(prog)s [flags]",
            formatter_class=lambda prog: _HelpFormatter(prog, max_help_position=30, width=_help_width()),
            allow_abbrev=False,
            add_help=False,
        )
        files = self.add_argument_group("Settings from files, and help")
        presets = ", ".join(preset_names(config_class))
        help_of_presets = f"Start from a named set of values: {presets}." if presets else argparse.SUPPRESS
        files.add_argument("--preset", metavar="NAME", help=help_of_presets)
        files.add_argument("--config", metavar="FILE", help="YAML file; it wins over a preset, flags over it.")
        files.add_argument("--help", "-h", action="store_true", help="Print the most important settings.")
        files.add_argument("--help_all", "--help-all", action="store_true", help="Print all settings.")
        for action in self._actions:
            action.default = argparse.SUPPRESS
            if action.dest in self._names:
                action.metavar = self._metavar(action)

    def values(self, argv: Sequence[str]) -> dict[str, Any]:
        """Returns the settings given on a command line: name -> value."""
        given, unknown = self.parse_known_args(argv)
        if unknown:
            flag = next((word.partition("=")[0] for word in unknown if word.startswith("-")), None)
            if flag is None:
                self.error(f"{shown(unknown[0])} is not expected here; every setting is a flag")
            name = flag.lstrip("-").replace("-", "_")
            if name in _FROM_FILES:
                first = next(item.name for item in dataclasses.fields(_FROM_FILES[name]))
                self.error(f"--{name} is set in a file (--config): {name}: [{{{first}: ..., ...}}, ...]")
            self.error(f"unknown flag {flag}; {did_you_mean(name, self._names, '--') or 'see --help_all'}")
        return dict(vars(given))

    def error(self, message: str) -> NoReturn:
        """Raises a `UserError`, which ends the process with code 2 and one line."""
        raise UserError(re.sub(r"^argument (--\w+)(/--[\w-]+)?", r"\1", message))

    def format_help(self, *, everything: bool = False) -> str:
        """Returns the help text, with all settings or with those that people need first."""
        groups = [(str(group.title), group._group_actions) for group in self._action_groups]
        text = inspect.getdoc(self._config_class) or ""
        if not everything and len(self._names) > _FEW:
            actions = {action.dest: action for action in self._actions}
            first = [(title, [actions[name] for name in names if name in actions]) for title, names in _FIRST.items()]
            groups = [*first, groups[-1]]
            text = re.sub(r"From Python:\n\n(    .*\n|\n)+", "", text)  # --help_all and the reference have it
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, [], [])
        for part in text.split("\n\n"):
            formatter.add_text(part if part.startswith(" ") else textwrap.fill(part, formatter._width))
        for title, members in groups:
            formatter.start_section(title)
            formatter.add_arguments(action for action in members if action.option_strings[0] != f"--no_{action.dest}")
            formatter.end_section()
        return str(formatter.format_help())

    def _add_dataclass_arguments(self, dtype: Any) -> None:
        """Adds the settings in groups, each under the class that declares them."""
        added = {*_FROM_FILES}
        for base in dtype.__mro__:
            own = [name for name in inspect.get_annotations(base) if name in self._names and name not in added]
            added.update(own)
            if own:
                title = "Settings of this recipe" if base is dtype else (base.__doc__ or "").splitlines()[0].rstrip(".")
                group = self.add_argument_group(title)
            for name in own:
                self._parse_dataclass_field(group, self._plain_field(name))

    def _plain_field(self, name: str) -> Any:
        """Returns a field as transformers' parser takes it: help alone, lists for tuples; choices are checked later."""
        item, hint = self._config_class.__dataclass_fields__[name], self._names[name]
        text, default = item.metadata["help"], item.default
        if name in self._config_class.REQUIRED and not default:
            text += " (required)"
        elif default not in (None, "", (), False) and "default" not in text.lower():
            shown_default = f"{default:g}" if isinstance(default, float) else default
            text += f" (default: {' '.join(default) if isinstance(default, tuple) else shown_default})"
        plain: Any = dataclasses.field(default=default, metadata={"help": text.replace("%", "%%")})
        several, kinds = get_origin(hint) is tuple, {str, int, float, bool}.intersection((hint, *get_args(hint)))
        kind = kinds.pop() if kinds else str
        plain.name, plain.type = name, list[kind] if several else kind  # type: ignore[valid-type]
        return plain

    def _metavar(self, action: argparse.Action) -> str:
        choices = choices_of(self._config_class, action.dest)
        if choices:
            return "|".join(choices) if len("|".join(choices)) <= 60 else "NAME"
        if action.const is True:
            return "" if self._config_class.__dataclass_fields__[action.dest].default is False else "true|false"
        if action.type in (int, float):
            return "N" if action.type is int else "X"
        ends = {"dir": "FOLDER", "folder": "FOLDER", "file": "FILE", "files": "FILE"}
        return ends.get(action.dest.rpartition("_")[2], "NAME")


def _help_width() -> int:
    """Returns the terminal's width less two, as argparse chooses it, but never less than what a flag needs."""
    return max(shutil.get_terminal_size().columns - 2, 40)


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Shows each flag in one spelling."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        several = " ..." if action.nargs == "+" else ""
        return f"{action.option_strings[0]} {action.metavar or ''}".strip() + several
