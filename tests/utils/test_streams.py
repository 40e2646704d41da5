"""Standard streams of ordinary containers and shells: other encodings, closed, full, with a reader that has ended."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bert_repro.utils.streams import PlainFormatter, without_controls

LIST = [sys.executable, "-m", "bert_repro", "--help"]
SAY = "from bert_repro.utils.streams import prepare_streams; prepare_streams(); import sys; sys.stdout.write('Ω ‑ é')"


def run(command: list[str], redirections: str, **variables: str) -> subprocess.CompletedProcess[str]:
    words = [f"'{word}'" if "'" not in word else f'"{word}"' for word in command]
    environment = os.environ | variables
    return subprocess.run(
        ["bash", "-c", f"{' '.join(words)} {redirections}"], capture_output=True, text=True, env=environment
    )


@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "latin-1"])
def test_output_to_a_file_is_utf_8_whatever_the_locale(encoding, tmp_path):
    done = run([sys.executable, "-c", SAY], f"> {tmp_path}/out.txt", PYTHONIOENCODING=encoding)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out.txt").read_text("utf-8") == "Ω ‑ é"


@pytest.mark.parametrize("redirections", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_ends_in_no_traceback(redirections):
    done = run(LIST, redirections)
    assert done.returncode == 0 and "Traceback" not in done.stderr


def test_a_closed_stream_does_not_write_into_the_next_file_that_is_opened(tmp_path):
    code = f"{SAY}; file = open('{tmp_path}/data', 'w'); print('from a library', flush=True); file.close()".replace(
        "'", "\\'"
    )
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -c $'{code}' >&-"], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "data").read_text() == ""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")
def test_a_full_disk_behind_standard_output_is_one_line():
    done = run([sys.executable, "-m", "bert_repro", "run_glue", "--help"], "> /dev/full")
    assert done.returncode == 2
    assert done.stderr.startswith("error: ") and len(done.stderr.splitlines()) == 1


def test_a_reader_that_has_ended_is_no_error():
    done = run([sys.executable, "-m", "bert_repro", "run_glue", "--help_all"], "| true; echo ${PIPESTATUS[0]}")
    assert done.stdout.strip() in ("0", "141") and done.stderr == ""


@pytest.mark.parametrize("columns", ["1", "20"])
def test_a_terminal_without_width_shows_help(columns):
    done = run([sys.executable, "-m", "bert_repro", "run_glue", "--help"], "", COLUMNS=columns)
    assert done.returncode == 0 and "--model_name_or_path" in done.stdout


def test_control_characters_of_data_are_written_out() -> None:
    assert without_controls("a\x1b[31m b\x07\n\tü 中") == "a\\x1b[31m b\\x07\n\tü 中"
    record = logging.LogRecord("bert_repro", logging.INFO, "", 0, "labels: %s", ("\x1b]0;title\x07",), None)
    assert PlainFormatter("%(message)s").format(record) == "labels: \\x1b]0;title\\x07"


def test_a_terminal_gets_no_control_characters_and_a_pipe_gets_all(finetuned: Path, tmp_path: Path) -> None:
    import pty

    (tmp_path / "in.txt").write_text("the \x1b[31mriver\x1b[0m runs\n")
    command = [
        sys.executable, "-m", "bert_repro", "predict", "--model_name_or_path", str(finetuned), "--input_file",
        str(tmp_path / "in.txt"), "--text_columns", "text",
    ]  # fmt: skip
    piped = subprocess.run(command, capture_output=True, check=True).stdout
    assert b"\x1b[31mriver" in piped
    ours, theirs = pty.openpty()
    subprocess.run(command, stdout=theirs, stderr=subprocess.DEVNULL, check=True)
    os.close(theirs)
    shown = os.read(ours, 100_000)
    os.close(ours)
    assert b"\\x1b[31mriver" in shown and b"\x1b[31m" not in shown
