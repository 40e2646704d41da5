import pytest

from bert_repro.errors import UserError
from bert_repro.quickstart import package_task as package_task
from bert_repro.quickstart.docstrings import Module
from bert_repro.quickstart.package_task import (
    LABELS,
    PER_MODULE,
    PackageTask,
    bag_of_words_accuracy,
    choose,
    majority_accuracy,
    without_names,
    write_examples,
)


def sentence(package, module, number):
    told = f"The {package}word number {number} of module {module} is told here"
    return f"{told} at considerable length, since a text of few words is left out of the task as too hard."


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


def test_choose_is_balanced_and_takes_few_texts_of_a_module(modules):
    rows, used = choose(modules, 12)
    assert [row["label"] for row in rows] == [number for number in range(len(LABELS)) for _ in range(12)]
    assert [row["idx"] for row in rows] == list(range(len(rows)))
    assert len(used) == 2 * len(LABELS)
    by_module = {module: sum(row["text"] in module.docstrings for row in rows) for module in used}
    assert max(by_module.values()) <= PER_MODULE


def test_what_is_kept_apart_is_not_chosen_again(modules):
    validation, kept_apart = choose(modules, 12)
    train, _ = choose([module for module in modules if module not in kept_apart], 12)
    assert not {row["text"] for row in validation} & {row["text"] for row in train}


def test_choose_does_not_depend_on_chance(modules):
    assert choose(modules, 12) == choose(modules, 12)


def test_too_few_texts_are_one_clear_line(modules):
    with pytest.raises(UserError, match=r"^package matplotlib has 48 texts, not 49; .*"):
        choose(modules, 49)


def test_short_texts_are_left_out():
    short = [Module(label, "m.py", ("Only four words here.",)) for label in LABELS]
    with pytest.raises(UserError, match="has 0 texts"):
        choose(short, 1)


def test_task_loads_what_was_written(tmp_path, modules):
    rows, _ = choose(modules, 3)
    write_examples(tmp_path, "train", rows)
    loaded = PackageTask().load(tmp_path, ["train"])["train"]
    assert loaded.to_list() == rows
    assert PackageTask().is_labelled(loaded)


def test_task_needs_its_files():
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


def test_every_label_is_gathered():
    from bert_repro.quickstart.docstrings import PACKAGES

    assert set(package_task.LABELS) <= set(PACKAGES)
