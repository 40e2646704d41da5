"""Keeps credentials, home folders and paths of one machine out of what is published."""

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

REMOVED = "[removed]"
_CREDENTIAL_NAME = r"(?:hf_|hub_|access_|auth_|api_)?(?:token|password|secret|api_key)"
_CREDENTIAL_KEY = re.compile(_CREDENTIAL_NAME, re.IGNORECASE)
_CREDENTIAL_FLAG = re.compile(rf"(?<![\w-])(--?{_CREDENTIAL_NAME}(?:=|\s+))\S+", re.IGNORECASE)
_HUB_TOKEN = re.compile(r"\b(?:hf|api_org)_[A-Za-z0-9]{8,}")
_URL_LOGIN = re.compile(r"(?<=://)[^/\s@]+@")
_PATH_STARTS = ("/", "~/", "./", "../")
_CREDENTIAL_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY")


def redacted(value: Any) -> Any:
    """A copy of a record without what looks like a credential, and with `~` for the user's home folder.

    Removed are Hub tokens wherever they stand, the values of settings and flags called token, password, secret or
    api_key (not `pool_token` and the like), logins in addresses, and the values of the usual environment variables.

    Args:
        value: mappings, sequences, strings, numbers, nested as JSON is.
    """
    if isinstance(value, Mapping):
        return {key: _redacted_setting(str(key), element) for key, element in value.items()}
    if isinstance(value, list | tuple):
        return [redacted(element) for element in value]
    return _redacted_text(value) if isinstance(value, str) else value


def _redacted_setting(key: str, value: Any) -> Any:
    return REMOVED if value and _CREDENTIAL_KEY.fullmatch(key) else redacted(value)


def _redacted_text(text: str) -> str:
    for variable in _CREDENTIAL_VARIABLES:
        if len(secret := os.environ.get(variable, "")) >= 8:
            text = text.replace(secret, REMOVED)
    text = _HUB_TOKEN.sub(REMOVED, text)
    text = _CREDENTIAL_FLAG.sub(rf"\g<1>{REMOVED}", text)
    text = _URL_LOGIN.sub("", text)
    home = str(Path.home())
    return re.sub(rf"{re.escape(home)}(?=/|\s|$)", "~", text) if home != "/" else text


def without_machine_paths(record: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a run's record in which a path of this machine is shown by its last part, one inside the run relative.

    Paths are values, and words of the `command`, that begin with `/`, `~/`, `./` or `../`; `org/name` may be an id on
    the Hub and stays.

    Args:
        record: what results.json holds.
    """
    run = record.get("settings", {}).get("output_dir")
    found: dict[str, Any] = {name: _shown(value, run) for name, value in record.items()}
    if isinstance(command := record.get("command"), str):
        found["command"] = _shown_command(command, run)
    if labels := record.get("model", {}).get("labels"):
        found["model"]["labels"] = labels  # a name such as /location/city is no path
    return found


def _shown(value: Any, run: str | None) -> Any:
    if isinstance(value, Mapping):
        return {name: _shown(element, run) for name, element in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(element, run) for element in value]
    if not isinstance(value, str) or not value.startswith(_PATH_STARTS):
        return value
    if run and value.startswith(run.rstrip("/") + "/"):
        return value[len(run.rstrip("/")) + 1 :]
    return PurePosixPath(value).name or value


def _shown_command(command: str, run: str | None) -> str:
    try:
        words = shlex.split(command)
    except ValueError:  # an odd quotation mark
        words = command.split()
    shown = []
    for word in words:
        flag, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
        shown.append(flag + equals + _shown(value, run))
    return shlex.join(shown)
