"""The text and the task of the quickstart: prose of docstrings, without the names of packages."""

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest


@pytest.fixture(scope="module")
def text() -> SimpleNamespace:
    return SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[1] / "recipes" / "quickstart_text.py")))


def test_prose_is_kept_and_tables_examples_and_markup_are_dropped(text):
    docstring = (
        "Return the *sum* of `values <module.values>` along :class:`~Axis`.\n\nParameters\n----------\naxis : int\n"
        "    The axis to sum along.\n\n>>> total([1, 2])\n3\n\nno capital letter opens this one.\n\nTwo words."
    )
    assert text.prose_of(docstring) == ["Return the sum of values along Axis."]


def test_texts_of_the_task_do_not_name_their_package(text):
    long = "Draw {} with the given colours on a plot that is kept for all later calls and is shown at the end of it."
    modules = [(label, "file.py", [long.format(f"{label}.function")] * 9) for label in text.LABELS]
    rows, used = text.choose_texts(modules, 5)
    assert len(rows) == 5 * len(text.LABELS) and used == set(range(len(text.LABELS)))
    assert not any(label in row["text"] for row in rows for label in text.LABELS)
