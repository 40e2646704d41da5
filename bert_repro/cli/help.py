"""The text of `--help`: settings grouped by subject, everyday subjects first, at the width of the terminal."""

import argparse
import dataclasses
from typing import Any

from bert_repro import configs

Field = dataclasses.Field


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


def metavar(item: "Field[Any]", kind: type) -> str:
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


def help_of(item: "Field[Any]", kind: type) -> str:
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


def heading(group: str) -> str:
    """Returns the heading of a group of settings."""
    return configs.GROUPS[group].lower()
