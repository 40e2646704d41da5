"""Keeps credentials, home folders and paths of one machine out of what is published."""

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

REMOVED = "[removed]"
_SECRET = r"(?:[\w-]*[_-])?(?:password|passwd|secret|api[_-]?key|access[_-]?key(?:[_-]id)?|private[_-]?key|bearer)"
_TOKEN = r"(?:(?:hf|hub|hub_api|access|auth|api|bot|github|gitlab|wandb|refresh|id|session|user|login)[_-])?token"
_CREDENTIAL_NAME = rf"(?:{_SECRET}|{_TOKEN})"
_CREDENTIAL_KEY = re.compile(_CREDENTIAL_NAME, re.IGNORECASE)
_CREDENTIAL_VALUE = re.compile(
    rf"""(?<![\w-])(                                   # a name, which stays:
        --?{_CREDENTIAL_NAME}(?:=|\s+)                 #   a flag
        |{_CREDENTIAL_NAME}=                           #   an assignment, or a field of an address
        |["']{_CREDENTIAL_NAME}["']\s*:\s*             #   JSON
        |(?=[\w-]*_){_CREDENTIAL_NAME}\s*[:=]\s*       #   YAML; "no token: ..." is prose
    )("[^"]*"|'[^']*'|[^\s&"',;]+)                     # its value""",
    re.IGNORECASE | re.VERBOSE,
)
_BEARER = re.compile(r"\b(Bearer\s+)[\w.~+/=-]{8,}", re.IGNORECASE)
_KNOWN_FORMS = re.compile(
    r"\b(?:hf|api_org)_[A-Za-z0-9]{8,}"
    r"|\bgithub_pat_\w{8,}|\bgh[pousr]_[A-Za-z0-9]{8,}|\bglpat-[\w-]{8,}"
    r"|\bsk-[\w-]{16,}|\bAKIA[A-Z0-9]{12,}|\bxox[abp]-[\w-]{8,}"
)
_URL_LOGIN = re.compile(r"(?<=://)[^/\s@]+@")
_PATH_STARTS = ("/", "~/", "./", "../")
_CREDENTIAL_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", "GITHUB_TOKEN", "AWS_SECRET_ACCESS_KEY")


def redacted(value: Any) -> Any:
    """Returns a copy of results without what looks like a credential, and with `~` for the user's home folder.

    Removed are tokens in the forms of the Hub, GitHub and other services wherever they are, what follows `Bearer`, the
    values of settings, flags and fields of addresses called token, password, secret, api_key or access_key (not
    `pool_token` and the like), logins in addresses, and the values of the usual environment variables.

    Args:
        value: mappings, sequences, strings, numbers, nested as JSON is.
    """
    if isinstance(value, Mapping):
        return {_redacted_text(str(key)): _redacted_setting(str(key), element) for key, element in value.items()}
    if isinstance(value, list | tuple):
        return [redacted(element) for element in value]
    return _redacted_text(value) if isinstance(value, str) else value


def _redacted_setting(key: str, value: Any) -> Any:
    return REMOVED if value and _CREDENTIAL_KEY.fullmatch(key) else redacted(value)


def _redacted_text(text: str) -> str:
    for variable in _CREDENTIAL_VARIABLES:
        if len(secret := os.environ.get(variable, "")) >= 8:
            text = text.replace(secret, REMOVED)
    text = _KNOWN_FORMS.sub(REMOVED, text)
    text = _BEARER.sub(rf"\g<1>{REMOVED}", text)
    text = _CREDENTIAL_VALUE.sub(rf"\g<1>{REMOVED}", text)
    text = _URL_LOGIN.sub("", text)
    home = str(Path.home())
    return re.sub(rf"{re.escape(home)}(?=/|\s|$)", "~", text) if home != "/" else text


def without_machine_paths(results: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a copy of results in which a path of this machine is shown by its last part, one inside the run relative.

    Paths are values, and words of the `command`, that begin with `/`, `~/`, `./` or `../`; `org/name` may be an id on
    the Hub and stays.

    Args:
        results: what results.json holds.
    """
    run = results.get("settings", {}).get("output_dir")
    found: dict[str, Any] = {name: _shown(value, run) for name, value in results.items()}
    if isinstance(command := results.get("command"), str):
        found["command"] = _shown_command(command, run)
    if labels := results.get("model", {}).get("labels"):
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
