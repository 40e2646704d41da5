"""Checks a metadata file against a plain declaration of its fields.

config.json, results.json, manifests and studies may come from other people, so a field can have any type and any size.
A declaration is a type hint. `conform` compares a value with it before anything is computed or allocated from it:

    class Part(TypedDict, total=False):
        file: str
        rows: Annotated[int, Limits(0, 1_000_000)]
        sha256: dict[str, str]
        license: str | None

    part = conform(content, Part, "corpus/manifest.json", "Prepare the corpus again.")

A dataclass is a declaration too; `tuple[X, ...]` stands for a list. The rules:

- Any field may be missing. A field that is null although its declaration has no None counts as missing.
- Fields that are not declared stay as they are.
- An int is accepted for a float, true and false are not accepted for a number.
- Every number is finite and at most `LARGEST_NUMBER`, unless `Limits` says otherwise.
- Every text can be written as UTF-8.
"""

import dataclasses
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin

from bert_repro.errors import UserError
from bert_repro.utils.readers import quoted

LARGEST_NUMBER = 1e30
"""Larger than every count of this package; training with all FLOPs of the paper has fewer than 1e21."""
LARGEST_VOCABULARY = 2**24
"""Most entries of a vocabulary, and the largest id of one."""
_DEEPEST = 20  # objects and lists inside each other


@dataclass(frozen=True)
class Limits:
    """The smallest and the largest number that a field may contain."""

    least: float
    most: float


def conform(value: Any, declaration: Any, file: str, remedy: str) -> Any:
    """Returns the content of a file without the nulls that count as missing.

    Args:
        value: the content, from JSON or YAML.
        declaration: the type hint that it must have.
        file: the file, for messages.
        remedy: what to do about a wrong file, as a sentence.

    Raises:
        UserError: a value differs from its declaration; the message names its place in the file.
    """
    return _Check(file, remedy).conformed(value, declaration, "")


@dataclass(frozen=True)
class _Check:
    """The check of one file.

    Args:
        file: the file, for messages.
        remedy: what to do about a wrong file.
    """

    file: str
    remedy: str

    def conformed(self, value: Any, hint: Any, place: str, limits: Limits | None = None) -> Any:
        """Returns a value without its superfluous nulls.

        Args:
            value: the value.
            hint: its declaration.
            place: where it is in the file, for example `splits.dev.rows`; empty for the whole file.
            limits: the limits of a number.
        """
        if place.count(".") > _DEEPEST:
            raise self._error(place, value, "nested less deeply")
        if get_origin(hint) is Annotated:
            # The other annotations are descriptions for readers.
            hint, *annotations = get_args(hint)
            own_limits = [note for note in annotations if isinstance(note, Limits)]
            return self.conformed(value, hint, place, own_limits[0] if own_limits else limits)
        if isinstance(hint, types.UnionType) or get_origin(hint) is typing.Union:
            return self._one_of(value, get_args(hint), place, limits)
        if get_origin(hint) is Literal:
            if value not in get_args(hint):
                raise self._error(place, value, f"one of {', '.join(map(str, get_args(hint)))}")
            return value
        if typing.is_typeddict(hint) or dataclasses.is_dataclass(hint):
            return self._fields(value, typing.get_type_hints(hint, include_extras=True), place)
        if hint is Any:
            return self._anything(value, place)
        return self._plain(value, hint, place, limits)

    def _one_of(self, value: Any, options: tuple[Any, ...], place: str, limits: Limits | None) -> Any:
        """Accepts the first option that fits; the error is that of the last one."""
        if value is None and type(None) in options:
            return None
        options = tuple(option for option in options if option is not type(None))
        for option in options[:-1]:
            try:
                return self.conformed(value, option, place, limits)
            except UserError:
                continue
        return self.conformed(value, options[-1], place, limits)

    def _fields(self, value: Any, hints: dict[str, Any], place: str) -> dict[str, Any]:
        """Checks an object whose fields are declared one by one."""
        content = {}
        for name, field in self._object(value, place).items():
            inner = _inside(place, name)
            hint = hints.get(name, Any)
            if field is None and not _allows_null(hint):
                continue
            content[name] = self.conformed(field, hint, inner)
        return content

    def _plain(self, value: Any, hint: Any, place: str, limits: Limits | None) -> Any:
        """Checks a list, an object whose keys are not declared, a number, a text or a switch."""
        kind = get_origin(hint) or hint
        arguments = get_args(hint) or (Any, Any)
        if kind in (list, tuple):
            if not isinstance(value, list):
                raise self._error(place, value, "a list")
            return [self.conformed(item, arguments[0], f"{place}.{index}") for index, item in enumerate(value)]
        if kind in (dict, Mapping):
            content = {}
            for name, item in self._object(value, place).items():
                content[name] = self.conformed(item, arguments[1], _inside(place, name))
            return content
        if kind in (int, float):
            return self._number(value, kind, place, limits)
        if not isinstance(value, kind):
            raise self._error(place, value, {str: "a text", bool: "true or false"}.get(kind, kind.__name__))
        return self._text(value, place) if kind is str else value

    def _object(self, value: Any, place: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self._error(place, value, "an object")
        for name in value:
            # JSON has no other names; YAML has.
            if not isinstance(name, str):
                raise self._error(place, name, "a name")
            self._text(name, place)
        return value

    def _number(self, value: Any, kind: type, place: str, limits: Limits | None) -> Any:
        is_number = isinstance(value, int) if kind is int else isinstance(value, int | float)
        if not is_number or isinstance(value, bool):
            raise self._error(place, value, "a whole number" if kind is int else "a number")
        limits = limits or Limits(-LARGEST_NUMBER, LARGEST_NUMBER)
        # A comparison with NaN is false.
        if not limits.least <= value <= limits.most:
            raise self._error(place, value, f"a number from {limits.least:,} to {limits.most:,}")
        return value

    def _text(self, value: str, place: str) -> str:
        try:
            value.encode()
        except UnicodeEncodeError:
            # JSON can contain one half of a surrogate pair, which no file can.
            raise self._error(place, value, "a text that UTF-8 can express") from None
        return value

    def _anything(self, value: Any, place: str) -> Any:
        """Accepts every type, but no number and no text that could not be written again."""
        match value:
            case dict():
                return self._plain(value, dict[str, Any], place, None)
            case list():
                return self._plain(value, list[Any], place, None)
            case bool():
                return value
            case int() | float():
                return self._number(value, float, place, None)
            case str():
                return self._text(value, place)
            case _:
                return value

    def _error(self, place: str, value: Any, expected: str) -> UserError:
        subject = f"{place} is {quoted(value)}" if place else f"it contains {quoted(value)}"
        return UserError(f"{self.file}: {subject}, not {expected}. {self.remedy}")


def _inside(place: str, name: str) -> str:
    short = quoted(name)[1:-1]
    return f"{place}.{short}" if place else short


def _allows_null(hint: Any) -> bool:
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    return hint is Any or type(None) in get_args(hint)
