"""Signals end a recipe where it is, and a training loop at the end of its step."""

import importlib
import signal
import sys
import threading
import types
from pathlib import Path
from typing import Any

import pytest

from bert_repro.errors import StopRequested, outcome
from bert_repro.utils import process
from bert_repro.utils.process import collect_signals, stop_on_signals


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


def test_processes_on_tpus_are_numbered_by_torch_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    runtime: Any = types.ModuleType("torch_xla.runtime")
    runtime.global_ordinal = lambda: asked.append("rank") or 5
    runtime.local_ordinal = lambda: asked.append("local rank") or 1
    runtime.world_size = lambda: asked.append("processes") or 8
    monkeypatch.setitem(sys.modules, "torch_xla", types.ModuleType("torch_xla"))
    monkeypatch.setitem(sys.modules, "torch_xla.runtime", runtime)
    for variable in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(variable, raising=False)
    vars(process._tpu_facts).clear()
    assert (process.rank(), process.world_size()) == (0, 1) and not asked  # the CPU of `make test-xla`
    monkeypatch.setenv("PJRT_DEVICE", "TPU")
    for _ in range(2):
        assert (process.rank(), process.world_size()) == (5, 8)
        assert not process.is_main_process() and not process.is_local_main_process()
    assert len(asked) == 3  # loader processes, forks of this one, ask no device
    monkeypatch.setenv("RANK", "2")
    assert process.rank() == 2
    vars(process._tpu_facts).clear()


def test_a_recipe_started_on_tpus_is_known_by_its_script(monkeypatch: pytest.MonkeyPatch) -> None:
    """`accelerate launch --tpu` imports the script and calls its `main` without arguments."""
    script = Path(__file__).parents[2] / "recipes" / "run_pretraining.py"
    monkeypatch.syspath_prepend(str(script.parent))
    monkeypatch.setattr(sys, "argv", [str(script), "--help"])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module("run_pretraining").main()
    assert ended.value.code == 0


def test_signals_are_left_alone_outside_the_main_thread():
    """torch_xla runs a recipe in a thread of a pool, where Python lets nobody set handlers."""
    ended: list[object] = []

    def run() -> None:
        with stop_on_signals(), collect_signals():
            ended.append("ran")

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert ended == ["ran"] and signal.getsignal(signal.SIGTERM) is before
