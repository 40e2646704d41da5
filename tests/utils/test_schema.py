"""A metadata file has the declared types and sizes, or the message names the place that has not."""

from typing import Annotated, Any, Literal, TypedDict

import pytest
from errors import user_error

from bert_repro.utils.schema import Limits, conform


class Part(TypedDict, total=False):
    file: str
    rows: Annotated[int, Limits(0, 1000)]


class Content(TypedDict, total=False):
    name: str
    share: float
    is_whole: bool
    kind: Literal["a", "b"]
    note: str | None
    parts: list[Part]
    rows_of: dict[str, int | str]
    other: Any


def check(content: Any) -> Any:
    return conform(content, Content, "file.json", "Write it again.")


def test_what_is_declared_passes_and_superfluous_nulls_are_left_out() -> None:
    content = {
        "share": 1,
        "is_whole": True,
        "kind": "a",
        "note": None,
        "parts": [{"file": "x", "rows": 1000}],
        "rows_of": {"train": 3, "dev": "all"},
        "other": [{"x": None}],
        "of_a_later_version": {"y": [1.5, None]},
    }
    assert check({**content, "name": None}) == content


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ([], "[]"),
        ({"name": 3}, "name"),
        ({"share": "0.5"}, "share"),
        ({"share": True}, "share"),
        ({"share": float("inf")}, "share"),
        ({"share": 10**400}, "share"),
        ({"is_whole": 1}, "is_whole"),
        ({"kind": "c"}, "kind"),
        ({"kind": []}, "kind"),
        ({"note": 1}, "note"),
        ({"parts": {"file": "x"}}, "parts"),
        ({"parts": [{"rows": 1001}]}, "parts.0.rows"),
        ({"parts": [{"rows": 1.0}]}, "parts.0.rows"),
        ({"rows_of": {"dev": None}}, "rows_of.dev"),
        ({"name": "\ud800"}, "name"),
        ({"other": {"x": ["\ud800"]}}, "other.x.0"),
        ({"unknown": {"\ud800": 1}}, "unknown"),
        ({1: "x"}, "1"),
    ],
)
def test_everything_else_is_named_with_its_place(content: Any, place: str) -> None:
    with user_error("file.json", place, "Write it again."):
        check(content)


def test_deep_content_is_refused() -> None:
    content: Any = 1
    for _ in range(500):
        content = {"a": content}
    with user_error("file.json", "a.a.a"):
        check({"other": content})
