"""What all configurations share: how a setting is declared, and how values and paths are checked before a run starts.

A configuration checks its values when it is created (`Config.__post_init__`). Paths are checked by `require_paths` just
before the run, because a configuration can also be created for a machine that has other files.
"""

import difflib
import functools
import os
import re
import socket
import types
import typing
import urllib.parse
import urllib.request
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Literal

from bert_repro.errors import UserError, flag
from bert_repro.utils.files import is_stream
from bert_repro.utils.process import is_free_folder, is_main_process, is_unfinished_run
from bert_repro.utils.readers import quoted

LOCATIONS = frozenset({"model_name_or_path", "data_dir", "corpus", "train_file", "validation_file"})
"""Settings that say from where a run reads what decides its result. A resumed run compares the content, not the path,
because files may move."""

_MODELS = ("model_name_or_path", "tokenizer", "ensemble_with", "corpus", "cased_corpus")
"""Settings that name a local folder or an id of the Hub."""
_FILES = (
    "train_file", "validation_file", "test_file", "context_file", "data_file", "predictions_file", "null_odds_file",
    "qa_file", "triviaqa_file", "input_file",
)  # fmt: skip
_FOLDERS = ("folder", "runs", "data_dir", "evidence_dir", "glue_dir", "squad_dir", "swag_dir", "conll_dir", "runs_dir")
_OUTPUTS = ("output_dir", "report_dir", "output_file")
_PATHS = frozenset((*_MODELS, *_FILES, *_FOLDERS, *_OUTPUTS, "input_files", "checkpoint", "extend", "vocab_file"))


# --- Declaring settings -----------------------------------------------------------------------------------------------


def setting(
    default: Any,
    help: str | Callable[[], str],
    *,
    decides_result: bool = True,
    choices: Callable[[], tuple[str, ...]] | None = None,
) -> Any:
    """Returns a dataclass field for a setting.

    Args:
        default: the default value; immutable.
        help: one sentence, with the unit of a number; or a function that returns it when it is needed.
        decides_result: False if another value gives the same numbers up to rounding; a resumed run may change it.
        choices: returns the allowed values, if they are not in the setting's type.
    """
    return field(default=default, metadata={"help": help, "decides_result": decides_result, "choices": choices})


def spelling_of(name: str, names: Collection[str]) -> str:
    """Returns how a configuration spells a setting: `text_column` and `text_columns` are accepted for each other.

    Args:
        name: the setting as it was typed.
        names: the settings of the configuration.
    """
    other = {"text_column": "text_columns", "text_columns": "text_column"}.get(name, name)
    return other if name not in names and other in names else name


def encoding_setting() -> Any:
    """Returns the field for the encoding of the user's files of text. The class checks it with `require_encoding`."""
    return setting(
        "utf-8",
        "Encoding of your text, CSV, TSV and JSON files, for example cp1252 of Windows. Excel and Parquet files do not "
        "need it.",
    )


@dataclass(frozen=True)
class Config:
    """Base of all configurations. Subclasses check their values in `__post_init__` and call super's."""

    REQUIRED: ClassVar[tuple[str, ...]] = ()
    """Settings that must be given."""
    CHECKS_OUTPUT_DIR: ClassVar[bool] = False
    """Whether the recipe itself decides what may be in its output folder, for example because it continues there."""
    POSITIONAL: ClassVar[str | None] = None
    """Setting that a first word of the command line without a flag stands for."""

    def __post_init__(self) -> None:
        for name, hint in type_hints(type(self)).items():
            value = _normalized(name, getattr(self, name), hint)
            object.__setattr__(self, name, value)
            if name in self.REQUIRED and not value:
                raise UserError(f"{flag(name)} is missing: {help_of(type(self), name)}", setting=name)
            _require_type(name, value, hint)
            # Empty values and None mean "not given". Finding out the choices can cost an import.
            if value:
                _require_choice(name, value, choices_of(type(self), name))


def _normalized(name: str, value: Any, hint: Any) -> Any:
    """Returns the value of a setting in its one form: several values as a tuple, `~` as the home folder."""
    if typing.get_origin(hint) is tuple:
        value = (value,) if isinstance(value, str | int | float) else tuple(value)
    if name not in _PATHS:
        return value
    # The shell replaces ~ only at the beginning of a word, so --output_dir=~/x and YAML files still contain it.
    if isinstance(value, str):
        return os.path.expanduser(value)
    if isinstance(value, tuple):
        return tuple(os.path.expanduser(path) if isinstance(path, str) else path for path in value)
    return value


def _require_type(name: str, value: Any, hint: Any) -> None:
    """Refuses a text for a setting that is a number or a switch."""
    options = {*typing.get_args(hint), hint}
    is_number_or_switch = bool(options & {int, float, bool}) and str not in options and not _choices(hint)
    if isinstance(value, str) and is_number_or_switch:
        kind = "true or false" if bool in options else "a number"
        raise UserError(f"{flag(name)} is {quoted(value)}; it must be {kind}.", setting=name)


def _require_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Refuses a value that is not among the choices of a setting, if it has any."""
    if not choices:
        return
    for choice in value if isinstance(value, tuple) else (value,):
        if choice not in choices:
            advice = did_you_mean(str(choice), choices) or f"it must be one of: {', '.join(choices)}"
            raise UserError(f"{flag(name)} is {quoted(choice)}; {advice}", setting=name)


_read_hints: Callable[[type], dict[str, Any]] = functools.cache(typing.get_type_hints)


def type_hints(config_class: type[Config]) -> dict[str, Any]:
    """Returns the types of a configuration's settings: name -> type."""
    hints = _read_hints(config_class)
    return {item.name: hints[item.name] for item in fields(config_class)}


def choices_of(config_class: type[Config], name: str) -> tuple[str, ...]:
    """Returns the values that a setting allows; empty if it allows any."""
    choices: Callable[[], tuple[str, ...]] | None = config_class.__dataclass_fields__[name].metadata.get("choices")
    if choices is not None:
        return choices()
    return _choices(type_hints(config_class)[name])


def help_of(config_class: type[Config], name: str) -> str:
    """Returns the help text of a setting."""
    text = config_class.__dataclass_fields__[name].metadata["help"]
    return str(text() if callable(text) else text)


def _choices(hint: Any) -> tuple[str, ...]:
    for option in (hint, *typing.get_args(hint)):
        if typing.get_origin(option) is Literal:
            return tuple(choice for choice in typing.get_args(option) if choice)
    return ()


def decides_result(name: str) -> bool:
    """Returns whether a setting with that name decides the numbers of a run."""
    return name not in _settings_without_influence()


def deciding_settings(config: Config) -> dict[str, Any]:
    """Returns the settings of a configuration that decide the numbers of its run: name -> value."""
    return {item.name: getattr(config, item.name) for item in fields(config) if decides_result(item.name)}


@functools.cache
def _settings_without_influence() -> frozenset[str]:
    from bert_repro import configs

    names: set[str] = set()
    for item in vars(configs).values():
        if isinstance(item, type) and issubclass(item, Config):
            names.update(setting.name for setting in fields(item) if not setting.metadata["decides_result"])
    return frozenset(names)


# --- Checking values --------------------------------------------------------------------------------------------------

# Names that people type, and the name that the search for similar names should start from.
_ALIASES = types.MappingProxyType(
    {
        "lr": "learning_rate",
        "model": "model_name_or_path",
        "model_name_or_path": "folder",
        "bf16": "mixed_precision",
        "finetune": "run_glue",
    }
)


def did_you_mean(name: str, known: Iterable[str], prefix: str = "", *, cutoff: float = 0.6) -> str:
    """Returns "did you mean X?" for a mistyped name, or an empty text if no known name is similar.

    Args:
        name: what was typed.
        known: the names that exist. One that is similar is preferred, then one that contains `name`.
        prefix: put before the name that is suggested.
        cutoff: how similar names must be, from 0 to 1.
    """
    candidates = list(known)
    name = _ALIASES.get(name, name)
    similar = difflib.get_close_matches(name, candidates, n=1, cutoff=cutoff)
    if not similar and len(name) > 3:
        similar = [candidate for candidate in candidates if name in candidate]
    return f"did you mean {prefix}{similar[0]}?" if similar else ""


def require_positive(config: Config, *names: str) -> None:
    """Refuses settings that are zero, negative or not a number. None is allowed; of several numbers each is checked."""
    for name in names:
        for number in _numbers(config, name):
            if not number > 0:
                raise UserError(f"{flag(name)} is {number}; it must be positive", setting=name)


def require_fraction(config: Config, *names: str, below_one: bool = False) -> None:
    """Refuses settings outside 0 to 1, and 1 itself if `below_one`. None is allowed."""
    for name in names:
        for number in _numbers(config, name):
            if below_one and not 0 <= number < 1:
                raise UserError(
                    f"{flag(name)} is {number}; it is a fraction from 0 to 1, and must be less than 1", setting=name
                )
            if not 0 <= number <= 1:
                raise UserError(f"{flag(name)} is {number}; it is a fraction from 0 to 1", setting=name)


def _numbers(config: Config, name: str) -> list[float]:
    value = getattr(config, name)
    numbers = value if isinstance(value, tuple) else (value,)
    return [number for number in numbers if number is not None]


# --- Checking paths ---------------------------------------------------------------------------------------------------

_CACHED_FILES = ("config.json", "tokenizer.json", "vocab.txt", "manifest.json")
"""Every model, tokenizer and corpus on the Hub has at least one of them."""
_TEXT_ENDINGS = ("/", ".txt", ".jsonl", ".parquet", ".csv", ".tsv", ".xlsx", ".gz", ".xz")
"""Endings of `input_files` that are neither a pattern nor an id of the Hub."""
_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
_URL = re.compile(r"[a-z][a-z0-9+.-]+://")


def require_paths(config: Config, data: Collection[str] = ()) -> None:
    """Refuses names of models, inputs and outputs that cannot be right.

    Args:
        config: the settings.
        data: splits that are given in memory. The settings `train_file` and so on are then no paths.

    Raises:
        UserError: a model, file or folder does not exist (the message names the most similar one), a file is given for
            a folder or the reverse, a URL is given for a local path, or an output is in use.
    """
    for item in fields(config):
        value = getattr(config, item.name)
        for name in value if isinstance(value, tuple) else (value,):
            is_path = isinstance(name, str) and name != "" and item.name.removesuffix("_file") not in data
            if is_path:
                _require_path(item.name, name)
    # The other processes may see files that the main process has already begun to write.
    if is_main_process():
        _require_unused_file(config)
        _require_unused_folder(config)


def _require_path(setting: str, name: str) -> None:
    """Checks one path; settings that are not paths are accepted."""
    if setting in _PATHS and setting != "input_files" and _URL.match(name):
        raise UserError(
            f"{flag(setting, name)} is a URL, but this setting requires a local path. Copy the files, or mount the "
            "storage.",
            setting=setting,
        )
    if setting in _MODELS:
        _require_model_or_corpus(setting, name)
    elif setting in _FILES:
        _require_input(setting, name, is_file=True)
    elif setting in _FOLDERS:
        _require_input(setting, name, is_file=False)
    elif setting == "input_files":
        is_plain_path = name.endswith(_TEXT_ENDINGS) and not set("*?[ ") & set(name) and not _URL.match(name)
        if is_plain_path:
            _require_input(setting, name, is_file=not os.path.isdir(name))
    elif setting in _OUTPUTS:
        _require_place(setting, Path(name))


def looks_like_a_folder(name: str) -> bool:
    """Returns whether a name is meant as a local path, not as an id of the Hub."""
    parts = Path(name).parts
    is_in_runs = len(parts) > 1 and parts[0] == "runs"
    return name.startswith((".", "~")) or name.endswith("/") or is_in_runs or not _HUB_ID.fullmatch(name)


def _require_model_or_corpus(setting: str, name: str) -> None:
    """Refuses a name that is neither a local folder nor possibly an id of the Hub."""
    if os.path.exists(name):
        _require_local_model_or_corpus(setting, name)
        return
    suggestion = nearest(Path(name))
    if suggestion or looks_like_a_folder(name):
        advice = suggestion or "name the output folder of a finished run, or an id of the Hub such as org/name"
        raise UserError(f"{flag(setting, name)}: no such folder; {advice}", setting=setting)
    kind = "dataset" if setting == "corpus" else "model"
    if not hub_is_reachable() and not _is_cached(name, kind):
        raise UserError(
            f"{flag(setting, name)}: no such folder, the Hub cannot be reached, and its cache on this machine has no "
            f"such {kind}. Check the path or the connection. HF_HUB_OFFLINE=1 uses the cache alone.",
            setting=setting,
        )


def _require_local_model_or_corpus(setting: str, name: str) -> None:
    # A tokenizer may be the file vocab.txt alone.
    if not os.path.isdir(name) and setting != "tokenizer":
        raise UserError(f"{flag(setting, name)} is a file; name a folder", setting=setting)
    if setting == "corpus" and not os.path.exists(os.path.join(name, "manifest.json")):
        raise UserError(
            f"{flag(setting, name)}: not a prepared corpus (manifest.json is missing). Run prepare_corpus first.",
            setting=setting,
        )


def _is_cached(name: str, kind: str) -> bool:
    """Returns whether the Hub's cache on this machine has a model or dataset."""
    from huggingface_hub import try_to_load_from_cache

    paths = [try_to_load_from_cache(name, file, repo_type=kind) for file in _CACHED_FILES]
    return any(isinstance(path, str) for path in paths)


def hub_is_reachable() -> bool:
    """Returns whether the address of the Hub can be resolved.

    If not, its library is set to offline mode, because it would retry for minutes.
    """
    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    host = urllib.parse.urlsplit(endpoint).hostname
    # In offline mode and behind a proxy nothing can be said.
    if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0") or urllib.request.getproxies():
        return True
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        from huggingface_hub import constants

        os.environ["HF_HUB_OFFLINE"] = "1"
        constants.HF_HUB_OFFLINE = True
        return False
    return True


def _require_input(setting: str, name: str, *, is_file: bool) -> None:
    kind, other_kind = ("file", "folder") if is_file else ("folder", "file")
    if not os.path.exists(name):
        advice = nearest(Path(name)) or "check the path"
        raise UserError(f"{flag(setting, name)}: no such {kind}; {advice}", setting=setting)
    if os.path.isdir(name) == is_file:
        raise UserError(f"{flag(setting, name)} is a {other_kind}; name a {kind}", setting=setting)


def nearest(path: Path) -> str:
    """Returns "did you mean X?" with the most similar path next to one that does not exist, or an empty text."""
    # A name such as bert-base-uncased is a model of the Hub.
    if len(path.parts) < 2 and "." not in path.name:
        return ""
    try:
        if not path.parent.exists():
            return _nearest_folder(path)
        names = os.listdir(path.parent)
    except (OSError, ValueError):
        return ""
    prefix = "" if path.parent == Path() else f"{path.parent}/"
    return did_you_mean(path.name, names, prefix, cutoff=0.75)


def _nearest_folder(path: Path) -> str:
    """Returns a suggestion for a path whose folder is mistyped."""
    candidates = {other.parent.name: str(other) for other in path.parent.parent.glob(f"*/{path.name}")}
    similar = difflib.get_close_matches(path.parent.name, candidates, n=1, cutoff=0.8)
    return f"did you mean {candidates[similar[0]]}?" if similar else ""


def _require_place(setting: str, path: Path) -> None:
    """Refuses an output at whose place is something of another kind, or which no disk can contain."""
    try:
        present = next(part for part in (path, *path.parents) if part.exists())
    except OSError as error:
        raise UserError(
            f"{flag(setting, path)} is not possible: {error.strerror}. Choose another path.", setting=setting
        ) from error
    if present == path and setting.endswith("_file"):
        if path.is_dir():
            raise UserError(f"{flag(setting, path)} is a folder; name a file", setting=setting)
    elif not present.is_dir():
        problem = "is a file" if present == path else f"lies below the file {present}"
        raise UserError(f"{flag(setting, path)} {problem}; name a folder", setting=setting)


def _require_unused_file(config: Config) -> None:
    """Refuses to replace an output file. Devices and pipes are written to, not replaced."""
    output_file = getattr(config, "output_file", None)
    if not output_file or getattr(config, "overwrite_output_file", True):
        return
    if os.path.exists(output_file) and not is_stream(Path(output_file)):
        raise UserError(
            f"{flag('output_file', output_file)} exists. Choose another path, or add {flag('overwrite_output_file')} "
            "to replace it.",
            setting="output_file",
        )


def _require_unused_folder(config: Config) -> None:
    """Refuses to write into a folder with other files. Recipes that continue there check it themselves."""
    output_dir = getattr(config, "output_dir", None)
    if not output_dir or config.CHECKS_OUTPUT_DIR or getattr(config, "sweeps", False):
        return
    # A job that is started again with `auto` may find its own unfinished run, but nothing else.
    resume = getattr(config, "resume_from_checkpoint", None)
    resumes = is_unfinished_run(Path(output_dir)) if resume == "auto" else bool(resume)
    if getattr(config, "overwrite_output_dir", True) or resumes or is_free_folder(Path(output_dir)):
        return

    problem = "contains a finished run or other files" if resume else "is not empty"
    advice = f"name another folder, or add {flag('overwrite_output_dir')} to replace its content"
    if hasattr(config, "max_steps") and not resume:
        advice += f", or {flag('resume_from_checkpoint', 'latest')} to continue it"
    raise UserError(f"{flag('output_dir', output_dir)} {problem}; {advice}", setting="output_dir")
