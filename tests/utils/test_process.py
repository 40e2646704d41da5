"""Signals and a reader that goes away end a recipe where it is, and a training loop at the end of its step."""

import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import types
from pathlib import Path
from typing import Any

import pytest

from bert_repro.errors import StopRequested, outcome
from bert_repro.utils import process
from bert_repro.utils.process import _StandardStream, collect_signals, stop_on_signals


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
        return _StandardStream(os.fdopen(writer, "w", buffering=1))

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


def test_a_signal_does_not_cut_the_report_of_a_killed_main_process(tmp_path, monkeypatch):
    """A launcher stops the others while the main process, which it killed, is still closing its connections."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.6)"]) as closing:
        (tmp_path / "status.json").write_text(json.dumps({"code": None, "reason": "running", "pid": closing.pid}))
        threading.Thread(target=closing.wait).start()
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
        monkeypatch.setenv("RANK", "1")
        with stop_on_signals(), pytest.raises(StopRequested):
            process.record_outcome(str(tmp_path), 1, "connection closed by peer")
    assert process.recorded_exit_code(tmp_path) == 137


def test_processes_on_tpus_are_numbered_by_torch_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def says(name: str, value: int) -> Any:
        return lambda: asked.append(name) or value

    runtime = types.ModuleType("torch_xla.runtime")
    for name, value in {"global_ordinal": 5, "local_ordinal": 1, "world_size": 8}.items():
        setattr(runtime, name, says(name, value))
    monkeypatch.setitem(sys.modules, "torch_xla", types.ModuleType("torch_xla"))
    monkeypatch.setitem(sys.modules, "torch_xla.runtime", runtime)
    for variable in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(variable, raising=False)
    process._tpu.cache_clear()
    assert (process.rank(), process.world_size()) == (0, 1) and not asked  # the CPU of `make test-xla`
    monkeypatch.setenv("PJRT_DEVICE", "TPU")
    for _ in range(2):
        assert (process.rank(), process.world_size()) == (5, 8)
        assert not process.is_main_process() and not process.is_local_main_process()
    assert len(asked) == 3  # loader processes, forks of this one, ask no device
    monkeypatch.setenv("RANK", "2")
    assert process.rank() == 2
    process._tpu.cache_clear()


def test_a_recipe_started_on_tpus_is_known_by_its_script(monkeypatch: pytest.MonkeyPatch) -> None:
    """`accelerate launch --tpu` imports the script and calls its `main` without arguments."""
    script = Path(__file__).parents[2] / "recipes" / "run_pretraining.py"
    monkeypatch.syspath_prepend(str(script.parent))
    monkeypatch.setattr(sys, "argv", [str(script), "--help"])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module("run_pretraining").main()
    assert ended.value.code == 0
