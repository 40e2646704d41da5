import sys
import textwrap

import pytest

from bert_repro.errors import UserError
from bert_repro.quickstart.docstring_task import (
    LABELS,
    PACKAGES,
    PER_MODULE,
    Module,
    PackageTask,
    bag_of_words_accuracy,
    choose,
    find_package,
    gather,
    majority_accuracy,
    paragraphs,
    without_names,
    write_examples,
)

NUMPYDOC = """
Return the sum of the elements over an axis.

The ``dtype`` follows :func:`~numpy.add`, see the `user guide <https://example.org/guide>`_ [1]_.

Parameters
----------
values : array
    Elements to sum. This line is a table entry.

Notes
-----
Sums are exact for integers of any size.

>>> total([1, 2])
3
"""


def test_paragraphs_keep_prose_in_one_line_without_markup_tables_headings_and_examples():
    assert paragraphs(textwrap.dedent(NUMPYDOC).strip()) == [
        "Return the sum of the elements over an axis.",
        "The dtype follows numpy.add, see the user guide.",
        "Sums are exact for integers of any size.",
    ]
    assert paragraphs("The first line of a\nsentence goes on here.") == ["The first line of a sentence goes on here."]


@pytest.mark.parametrize(
    "docstring",
    [
        "Args:\n    name (str): What to call it.",
        "name: A field of the record that ends in a dot.",
        "too short to begin in lower case and so no sentence.",
        "Short one.",
        "A title without an end",
        ":param name: Says what it is called.",
        "+----+----+\n| a  | b  |\n+----+----+",
        "Use x = y + 1 and then f(x) = x ** 2 | 3 as in the paper.",
        ".. deprecated:: 1.2\n   Use the other one.",
    ],
)
def test_paragraphs_drop_what_is_no_sentence(docstring):
    assert paragraphs(docstring) == []


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """Two packages that cannot be imported; `twin` repeats a sentence of `origin`."""
    files = {
        "origin/__init__.py": '"""Everything about the origin of things."""\nraise RuntimeError("imported")\n',
        "origin/deep/work.py": (
            '"""Work is done by these functions here."""\nclass A:\n    """The letter that opens the alphabet."""\n'
            '    def f(self):\n        """Return the letter as a string.\n\n        It is written large.\n        """\n'
            "if True:\n    def g():\n        '''Found inside a condition as well.'''\n"
        ),
        "origin/broken.py": "def f(:\n",
        "origin/silent.py": "x = 1\n",
        "origin/tests/test_work.py": '"""Tests have sentences of their own."""\n',
        "twin/__init__.py": '"""work is done by these functions here."""\n',
        "twin/other.py": '"""Work is done by these functions here.\n\nThis sentence is new to everyone."""\n',
    }
    for name, source in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    return ("origin", "twin")


def test_gather_reads_without_importing_one_document_a_module_and_each_paragraph_once(packages):
    modules = gather(packages, max_words=1000)
    assert [(module.package, module.name) for module in modules] == [
        ("origin", "__init__.py"),
        ("origin", "deep/work.py"),
        ("twin", "other.py"),
    ]
    assert set(modules[1].docstrings) == {
        "Work is done by these functions here.",
        "The letter that opens the alphabet.",
        "Return the letter as a string.\nIt is written large.",
        "Found inside a condition as well.",
    }
    assert modules[1].words == 29
    assert not {"origin", "twin"} & set(sys.modules)
    (module,) = [module for module in gather(packages, max_words=1000) if module.package == "twin"]
    assert module.docstrings == ("This sentence is new to everyone.",)
    assert len(gather(("origin",), max_words=1)) == 1
    assert gather(packages, max_words=20) == gather(packages, max_words=20)


def test_a_missing_package_or_one_without_docstrings_is_one_clear_line(packages, tmp_path):
    with pytest.raises(UserError, match=r"^package no_such_package is not installed.*"):
        gather(("no_such_package",), max_words=10)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "__init__.py").write_text("x = 1\n")
    with pytest.raises(UserError, match=r"package empty in .* has no docstrings"):
        gather(("empty",), max_words=10)


def test_every_listed_package_is_installed_and_every_label_gathered():
    assert all(find_package(name).is_dir() for name in PACKAGES)
    assert set(LABELS) <= set(PACKAGES)


def sentence(package, module, number):
    begin = f"The {package}word number {number} of module {module} is described here"
    return f"{begin} at considerable length, since a text of few words is left out of the task as too hard."


@pytest.fixture
def modules():
    """For each label 6 modules of 10 texts; no text names its package."""
    return [
        Module(label, f"m{module}.py", tuple(sentence(chr(97 + place) * 3, module, number) for number in range(10)))
        for place, label in enumerate(LABELS)
        for module in range(6)
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Wraps torch.nn.Module for PyTorch users.", "Wraps for users."),
        ("An np.ndarray or (numpy.matrix) of floats.", "An or of floats."),
        ("Use plt.show() after nx draws.", "Use after draws."),
        ("Scikit-learn estimators, sklearn's too.", "estimators, too."),
        ("The Hugging Face transformers library.", "The library."),
        ("A transformer is a network; an input is no np.", "A transformer is a network; an input is no"),
        ("Splines and tensors stay.", "Splines and tensors stay."),
    ],
)
def test_names_of_packages_are_removed(text, expected):
    assert without_names(text) == expected


def test_choose_is_balanced_takes_few_texts_of_a_module_and_none_twice(modules):
    rows, used = choose(modules, 12)
    assert [row["label"] for row in rows] == [number for number in range(len(LABELS)) for _ in range(12)]
    assert [row["idx"] for row in rows] == list(range(len(rows)))
    assert len(used) == 2 * len(LABELS)
    by_module = {module: sum(row["text"] in module.docstrings for row in rows) for module in used}
    assert max(by_module.values()) <= PER_MODULE
    validation, kept_apart = choose(modules, 12)
    train, _ = choose([module for module in modules if module not in kept_apart], 12)
    assert not {row["text"] for row in validation} & {row["text"] for row in train}
    assert choose(modules, 12) == choose(modules, 12)


def test_too_few_or_too_short_texts_are_one_clear_line(modules):
    with pytest.raises(UserError, match=r"^package matplotlib has 48 texts, not 49; .*"):
        choose(modules, 49)
    short = [Module(label, "m.py", ("Only four words here.",)) for label in LABELS]
    with pytest.raises(UserError, match="has 0 texts"):
        choose(short, 1)


def test_task_loads_what_was_written_and_needs_its_files(tmp_path, modules):
    rows, _ = choose(modules, 3)
    write_examples(tmp_path, "train", rows)
    loaded = PackageTask().load(tmp_path, ["train"])["train"]
    assert loaded.to_list() == rows
    assert PackageTask().is_labelled(loaded)
    with pytest.raises(UserError, match="--data_dir is missing"):
        PackageTask().load(None, ["train"])


def test_majority_accuracy():
    assert majority_accuracy([0, 1, 1, 2]) == 0.5


def test_bag_of_words_learns_words_and_not_more():
    train = [
        {"text": f"{word} is said", "label": label} for label, word in enumerate(("red", "blue")) for _ in range(4)
    ]
    validation = [{"text": "blue", "label": 1}, {"text": "red", "label": 0}, {"text": "blue", "label": 0}]
    assert bag_of_words_accuracy(train, validation) == pytest.approx(2 / 3)
