"""Removes tokens and local paths from text that is recorded or published.

`redacted` is applied to everything that a run records: tokens of this environment are removed and the home folder is
written as `~`. `without_machine_paths` is applied in addition to what is published.

Both change values only. The keys of a mapping are the format of a file, not text of a user, and stay as they are.
"""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

REMOVED = "[removed]"
SECRET_VARIABLES = (
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
    "WANDB_API_KEY",
    "GITHUB_TOKEN",
    "AWS_SECRET_ACCESS_KEY",
)
SHORTEST_SECRET = 8
"""Characters. A shorter value is not a real token, and removing it would destroy ordinary words."""

_LOCAL_PATH_PREFIXES = ("/", "~/", "./", "../")


def redacted(value: Any) -> Any:
    """Returns a copy of a JSON value without the tokens of this environment and with `~` for the home folder.

    Args:
        value: mappings, sequences, strings and numbers, nested as in JSON.
    """
    pattern = _private_pattern()

    def redact(text: str) -> str:
        return pattern.sub(lambda match: "~" if match["home"] else REMOVED, text)

    return _changed_texts(value, redact)


def without_machine_paths(value: Any) -> Any:
    """Returns a copy of a JSON value in which each local path is replaced by its last component.

    A path is a text, or a word of a command, that begins with `/`, `~/`, `./` or `../`. `org/name` may be an id on the
    Hub and stays. Texts of several lines are not commands and stay too, as do label names.
    """
    return _changed_texts(value, _without_paths, unchanged_keys=("labels",))


def _changed_texts(value: Any, change: Callable[[str], str], unchanged_keys: tuple[str, ...] = ()) -> Any:
    """Applies a function to every text in a JSON value, except to keys and to the values under `unchanged_keys`."""
    if isinstance(value, Mapping):
        changed = {}
        for key, element in value.items():
            if key not in unchanged_keys:
                element = _changed_texts(element, change, unchanged_keys)
            changed[key] = element
        return changed
    if isinstance(value, list | tuple):
        return [_changed_texts(element, change, unchanged_keys) for element in value]
    if isinstance(value, str):
        return change(value)
    return value


def _private_pattern() -> re.Pattern[str]:
    """Returns a pattern that matches every token of this environment, and the home folder as the group `home`.

    One pattern for all of them makes one pass enough, so that nothing is searched in what a replacement inserted.
    """
    secrets = []
    for variable in SECRET_VARIABLES:
        secret = os.environ.get(variable, "")
        if len(secret) >= SHORTEST_SECRET:
            secrets.append(re.escape(secret))
    # The longest alternative comes first, because one token may begin with another one.
    secrets.sort(key=len, reverse=True)

    # The home folder must be whole path components: if it is /ada, then /data/ada/x.csv and /adam stay.
    home = str(Path.home()).rstrip("/")
    before, after = r"(?<![\w.~-])(?<!\w/)", r"(?![\w-])(?!\.\w)"
    never = "(?!)"
    home_pattern = f"{before}{re.escape(home)}{after}" if home else never
    return re.compile("|".join([*secrets, f"(?P<home>{home_pattern})"]))


def _without_paths(text: str) -> str:
    if "\n" in text:
        return text
    words = []
    for word in text.split(" "):
        is_path = word.startswith(_LOCAL_PATH_PREFIXES)
        words.append(PurePosixPath(word).name if is_path else word)
    return " ".join(words)
