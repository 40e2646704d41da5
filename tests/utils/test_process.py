"""Signals and a reader that goes away end a recipe where it is, and a training loop at the end of its step."""

import json
import os
import signal
import subprocess
import sys

import pytest

from bert_repro.errors import StopRequested, outcome
from bert_repro.utils import process
from bert_repro.utils.process import _Terminal, collect_signals, stop_on_signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_stops_a_recipe_anywhere_and_is_collected_in_the_training_loop(number):
    before = signal.getsignal(number)
    with pytest.raises(StopRequested) as stop, stop_on_signals():
        with collect_signals() as received:
            signal.raise_signal(number)
        assert received == [number]
        signal.raise_signal(number)
    assert outcome(stop.value) == (128 + number, f"stopped by signal {number}")
    assert signal.getsignal(number) is before


def test_a_reader_that_goes_away_is_a_request_to_stop():
    def unread():
        reader, writer = os.pipe()
        os.close(reader)
        return _Terminal(os.fdopen(writer, "w", buffering=1))

    with collect_signals() as received:
        terminal = unread()
        for _ in range(3):
            terminal.write("a line\n")
            terminal.flush()
    assert received == [signal.SIGPIPE]
    with pytest.raises(StopRequested) as stop, stop_on_signals():
        unread().write("a line\n")
    assert stop.value.exit_code == 141


def test_a_killed_main_process_is_reported_by_the_others(tmp_path, monkeypatch):
    claim = "import sys, pathlib; from bert_repro.utils import process; process.claim_folder(pathlib.Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", claim, str(tmp_path)], check=True)
    monkeypatch.setenv("RANK", "1")
    process.record_outcome(str(tmp_path), 1, "connection closed by peer")
    assert json.loads((tmp_path / "status.json").read_text()) == {"code": 137, "reason": "the main process was killed"}
    process.record_outcome(str(tmp_path), 0, "done")
    assert process.recorded_exit_code(tmp_path) == 137
