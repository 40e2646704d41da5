"""What results.json says of how a run was made."""

import pytest

from bert_repro.training import environment


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["/somewhere/bin/bert-repro", "run_glue", "--seed", "1"], "bert-repro run_glue --seed 1"),
        (["/somewhere/recipes/run_glue.py", "--note", "a b"], "python recipes/run_glue.py --note 'a b'"),
        (["mine.py"], "python mine.py"),
    ],
)
def test_command(monkeypatch, argv, shown):
    monkeypatch.setattr("sys.argv", argv)
    assert environment.command() == shown


@pytest.mark.parametrize("name", ["folder", "./runs/mini", "./mini", "/mini", "~/mini", "/data/mini", "a/b/c", None])
def test_a_folder_of_this_machine_is_no_model_of_the_hub(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    assert environment._hub_id(name) is None
    assert environment._hub_id("org/mini") == "org/mini"
