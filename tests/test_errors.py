"""Messages name settings as their reader typed them, and errors carry the setting as data."""

import threading

import pytest

from bert_repro.errors import StopRequested, UserError, flag, one_line, outcome, settings_as_arguments


@pytest.mark.parametrize(
    ("value", "on_the_command_line", "in_python"),
    [
        (512, "--x 512", "x=512"),
        (True, "--x true", "x=True"),
        ("runs/a", "--x runs/a", "x='runs/a'"),
        (("a", "b"), "--x a b", "x=('a', 'b')"),
        (None, "--x None", "x=None"),
    ],
)
def test_a_setting_is_written_as_a_flag_or_as_an_argument(value, on_the_command_line, in_python):
    assert flag("x", value) == on_the_command_line
    with settings_as_arguments({}):
        assert flag("x", value) == in_python
    assert flag("x", value) == on_the_command_line


def test_an_argument_may_have_another_name_than_its_setting():
    assert flag("train_file") == "--train_file"
    with settings_as_arguments({"train_file": "train"}):
        assert flag("train_file") == "train"
        assert flag("test_file", 1) == "test_file=1"


def test_the_style_is_restored_after_an_error_and_does_not_reach_other_threads():
    styles = []
    with pytest.raises(UserError), settings_as_arguments({}):
        thread = threading.Thread(target=lambda: styles.append(flag("x", 1)))
        thread.start()
        thread.join()
        raise UserError("wrong", setting="x")
    assert styles == ["--x 1"] and flag("x", 1) == "--x 1"


def test_a_user_error_carries_its_setting_and_one_line():
    error = UserError("first\nsecond\x1b[0m", setting="corpus")
    assert error.setting == "corpus" and str(error) == "first second\\x1b[0m"
    assert outcome(error) == (2, "first second\\x1b[0m")
    assert len(one_line("a" * 5000)) < 1010


def test_the_exit_code_of_a_stop_is_that_of_its_signal():
    assert outcome(StopRequested(15))[0] == 143
    assert outcome(SystemExit("text"))[0] == 1 and outcome(SystemExit(None))[0] == 0
