"""What all configurations share: how a setting is declared, how values and paths are checked before a run begins."""

import difflib
import functools
import os
import re
import socket
import typing
import urllib.parse
import urllib.request
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Literal

from bert_repro.errors import UserError
from bert_repro.utils.process import is_free_folder, is_main_process, is_unfinished_run
from bert_repro.utils.readers import shown

LOCATIONS = frozenset({"model_name_or_path", "data_dir", "corpus", "train_file", "validation_file"})
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
    POSITIONAL: ClassVar[str | None] = None
    """Setting that a first word of the command line without a flag stands for."""

    def __post_init__(self) -> None:
        for name, hint in type_hints(type(self)).items():
            value = getattr(self, name)
            if typing.get_origin(hint) is tuple:
                value = (value,) if isinstance(value, str | int | float) else tuple(value)
                object.__setattr__(self, name, value)
            if name in self.REQUIRED and not value:
                raise UserError(f"--{name} is missing: {self.__dataclass_fields__[name].metadata['help']}")
            arms = {*typing.get_args(hint), hint}
            if isinstance(value, str) and arms & {int, float, bool} and str not in arms and not _choices(hint):
                raise UserError(f"--{name} is {shown(value)}; it must be a {'switch' if bool in arms else 'number'}")
            for one in value if isinstance(value, tuple) else [value] if value else []:
                if (names := _choices(hint)) and one not in names:
                    fix = did_you_mean(str(one), names) or f"it must be one of: {', '.join(names)}"
                    raise UserError(f"--{name} is {shown(one)}; {fix}")


_read_hints: Callable[[type], dict[str, Any]] = functools.cache(typing.get_type_hints)


def type_hints(config_class: type[Config]) -> dict[str, Any]:
    """Returns the types of a configuration's settings: name -> type."""
    hints = _read_hints(config_class)
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


_ELSEWHERE = {"lr": "learning_rate", "model": "model_name_or_path", "model_name_or_path": "folder"}
_ELSEWHERE |= {"bf16": "mixed_precision", "finetune": "run_glue"}


def did_you_mean(name: str, known: Iterable[str], prefix: str = "", *, cutoff: float = 0.6) -> str:
    """Returns "did you mean ...?" with the known name closest to a mistyped one or that holds it; empty without one."""
    names, name = list(known), _ELSEWHERE.get(name, name)
    close = difflib.get_close_matches(name, names, n=1, cutoff=cutoff)
    close = close or [other for other in names if len(name) > 3 and name in other]
    return f"did you mean {prefix}{close[0]}?" if close else ""


def require(condition: object, message: str) -> None:
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


# --- Paths ----------------------------------------------------------------------------------------------------------

_ON_THE_HUB_TOO = ("model_name_or_path", "tokenizer", "ensemble_with", "corpus")
_ONE_OF_WHICH_IS_CACHED = ("config.json", "tokenizer.json", "vocab.txt", "manifest.json")
_FILES = (
    "train_file", "validation_file", "test_file", "context_file", "data_file", "predictions_file", "null_odds_file",
    "qa_file", "triviaqa_file", "input_file",
)  # fmt: skip
_FOLDERS = ("folder", "runs", "data_dir", "evidence_dir", "glue_dir", "squad_dir", "swag_dir", "conll_dir", "runs_dir")
_TEXTS = ("/", ".txt", ".jsonl", ".parquet", ".gz", ".xz")  # ends of input_files that are no pattern and on no Hub
_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


def require_paths(config: Config, data: Collection[str] = ()) -> None:
    """Refuses names of models, inputs and outputs that cannot be right.

    Args:
        config: the settings.
        data: splits that are given in memory; what `train_file` and so on call them is no path.

    Raises:
        UserError: no such model, file or folder, with the nearest name there is; a file where a folder must be or the
            reverse; an output file or folder that is in use.
    """
    for item in fields(config):
        value = getattr(config, item.name)
        for name in value if isinstance(value, tuple) else (value,):
            if not isinstance(name, str) or not name or item.name.removesuffix("_file") in data:
                continue
            if item.name in _ON_THE_HUB_TOO:
                _require_model_or_corpus(item.name, name)
            elif item.name in (*_FILES, *_FOLDERS):
                _require_input(item.name, name, is_file=item.name in _FILES)
            elif item.name == "input_files" and name.endswith(_TEXTS) and not set("*?[ ") & set(name):
                _require_input(item.name, name, is_file=not os.path.isdir(name))
            elif item.name in ("output_dir", "report_dir", "output_file"):
                _require_place(item.name, Path(name))
    if is_main_process():  # the others may see what it has begun to write
        _require_unused(config)


def looks_like_a_folder(name: str) -> bool:
    """Returns whether a name is meant as a place on the disk, not as an id of the Hub."""
    in_folder = len(Path(name).parts) > 1 and Path(name).parts[0] == "runs"
    return name.startswith((".", "~")) or name.endswith("/") or in_folder or not _HUB_ID.fullmatch(name)


def _require_model_or_corpus(setting: str, name: str) -> None:
    if os.path.exists(name):
        require(os.path.isdir(name), f"--{setting} {name} is a file; name a folder")
        is_prepared = setting != "corpus" or os.path.exists(os.path.join(name, "manifest.json"))
        require(is_prepared, f"--corpus {name}: not a prepared corpus (manifest.json is missing); run prepare_corpus")
        return
    fix = nearest(Path(name))
    if fix or looks_like_a_folder(name):
        fix = fix or "name the output folder of a finished run, or an id of the Hub such as org/name"
        raise UserError(f"--{setting} {name}: no such folder; {fix}")
    if not hub_is_reachable():
        from huggingface_hub import try_to_load_from_cache

        kind = "dataset" if setting == "corpus" else "model"
        cached = (try_to_load_from_cache(name, file, repo_type=kind) for file in _ONE_OF_WHICH_IS_CACHED)
        if not any(isinstance(path, str) for path in cached):
            raise UserError(
                f"--{setting} {name}: no such folder, the Hub cannot be reached, and its cache here has no such "
                f"{kind}; check the path or the connection (HF_HUB_OFFLINE=1 asks the cache alone)"
            )


def hub_is_reachable() -> bool:
    """Returns whether the Hub's name resolves; where not, its library goes offline, as it would try for minutes."""
    host = urllib.parse.urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co").hostname
    if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0") or urllib.request.getproxies():
        return True  # as far as can be said
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        from huggingface_hub import constants

        os.environ["HF_HUB_OFFLINE"], constants.HF_HUB_OFFLINE = "1", True
        return False
    return True


def _require_input(setting: str, name: str, *, is_file: bool) -> None:
    kind, other = ("file", "folder") if is_file else ("folder", "file")
    if not os.path.exists(name):
        raise UserError(f"--{setting} {name}: no such {kind}; {nearest(Path(name)) or 'check the path'}")
    require(os.path.isdir(name) != is_file, f"--{setting} {name} is a {other}; name a {kind}")


def nearest(path: Path) -> str:
    """Returns "did you mean ...?" with the closest name in the folder of a path that does not exist."""
    if len(path.parts) < 2 and "." not in path.name:
        return ""  # a model of the Hub such as bert-base-uncased
    try:
        if not path.parent.exists():
            folders = {other.parent.name: str(other) for other in path.parent.parent.glob(f"*/{path.name}")}
            close = difflib.get_close_matches(path.parent.name, folders, n=1, cutoff=0.8)
            return f"did you mean {folders[close[0]]}?" if close else ""
        names = os.listdir(path.parent)
    except (OSError, ValueError):
        return ""
    return did_you_mean(path.name, names, "" if path.parent == Path() else f"{path.parent}/", cutoff=0.75)


def _require_place(setting: str, path: Path) -> None:
    """Refuses an output whose place is taken by something of another kind, or that no disk can hold."""
    try:
        present = next(part for part in (path, *path.parents) if part.exists())
    except OSError as error:
        raise UserError(f"--{setting} {path}: {error.strerror}; name another place") from error
    if present == path and setting.endswith("_file"):
        require(not path.is_dir(), f"--{setting} {path} is a folder; name a file")
    else:
        fault = "is a file" if present == path else f"lies below the file {present}"
        require(present.is_dir(), f"--{setting} {path} {fault}; name a folder")


def _require_unused(config: Config) -> None:
    """Refuses to write where something else is; the recipes that resume what they left say so themselves."""
    output_file, output_dir = getattr(config, "output_file", None), getattr(config, "output_dir", None)
    if output_file and hasattr(config, "overwrite_output_file") and not config.overwrite_output_file:
        require(
            not os.path.exists(output_file),
            f"--output_file {output_file} exists; name another or give --overwrite_output_file",
        )
    resume = getattr(config, "resume_from_checkpoint", None)
    # A job that is started again may find what it has begun; a finished run, or anything else, is not its own.
    resumes = is_unfinished_run(Path(output_dir)) if resume == "auto" and output_dir else resume
    goes_on = getattr(config, "overwrite_output_dir", True) or resumes
    if output_dir and not (goes_on or getattr(config, "sweeps", False) or hasattr(config, "num_proc")):
        held = "holds a finished run or other files" if resume else "is not empty"
        fix = ", or resume with --resume_from_checkpoint latest" * (hasattr(config, "max_steps") and not resume)
        fault = f"--output_dir {output_dir} {held}; name another folder, give --overwrite_output_dir{fix}"
        require(is_free_folder(Path(output_dir)), fault)
