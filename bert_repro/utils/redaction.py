"""Keeps tokens, the home folder and paths of this machine out of what is published."""

import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

REMOVED = "[removed]"
_SECRETS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", "GITHUB_TOKEN", "AWS_SECRET_ACCESS_KEY")


def redacted(value: Any) -> Any:
    """Returns a copy of results without the tokens of this environment, and with `~` for the user's home folder.

    Args:
        value: mappings, sequences, strings, numbers, nested as JSON is.
    """
    if isinstance(value, Mapping):
        return {redacted(key): redacted(element) for key, element in value.items()}
    if isinstance(value, list | tuple):
        return [redacted(element) for element in value]
    if not isinstance(value, str):
        return value
    for secret in filter(None, map(os.environ.get, _SECRETS)):
        value = value.replace(secret, REMOVED)
    home = str(Path.home())
    return value.replace(home, "~") if len(home) > 1 else value


def without_machine_paths(value: Any) -> Any:
    """Returns a copy of results in which each path of this machine is shown by its last part alone.

    Paths are texts, and words of a command, that begin with `/`, `~/`, `./` or `../`; `org/name` may be an id on the
    Hub and stays.
    """
    if isinstance(value, Mapping):
        return {
            name: element if name == "labels" else without_machine_paths(element) for name, element in value.items()
        }
    if isinstance(value, list | tuple):
        return [without_machine_paths(element) for element in value]
    if not isinstance(value, str) or "\n" in value:
        return value
    words = (
        PurePosixPath(word).name if word.startswith(("/", "~/", "./", "../")) else word for word in value.split(" ")
    )
    return " ".join(words)
