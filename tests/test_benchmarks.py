"""The measurements run at a tiny size, with the fields that readers and plots rely on; results name no place."""

import importlib
import json
import multiprocessing
import sys
from pathlib import Path

import pytest
import torch
from accelerate.state import AcceleratorState
from running import recipe
from safetensors.torch import load_file

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    # Workloads run in processes that get this process's sys.path.
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])


@pytest.fixture
def forked(monkeypatch):
    """Workloads begin as forks of this process, in place of a server that would import everything again."""
    AcceleratorState._reset_state(reset_partial_state=True)  # of the tests before
    timing = importlib.import_module("side_by_side.timing")
    monkeypatch.setattr(timing, "_START", multiprocessing.get_context("fork"))


def results_of(script, folder, *arguments):
    path = importlib.import_module(script).main([*arguments, "--repeats", "1", "--results", str(folder)])
    results = json.loads(path.read_text("utf-8"))
    assert {"benchmark", "date", "command", "git_commit", "hardware", "versions"} <= set(results)
    assert {"processor", "cores", "cpu_threads"} <= set(results["hardware"])
    return results


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        ("pretraining_step", "--models 2/32 --lengths 32 --tokens 128 --steps 1 --no-attribution"),
        ("finetuning_step", "--layers 2 --hidden 32 --batch 4 --tasks squad"),
    ],
)
def test_a_step_is_timed_side_by_side(script, arguments, tmp_path):
    (case,) = results_of(script, tmp_path, *arguments.split(), "--threads", "1")["cases"]
    assert max(case["parity"]["loss_difference"], case["parity"]["gradient_difference"]) < 1e-4
    for row in case["candidates"].values():
        for name in ("per_second", "per_cpu_second", "ours_is_faster_by"):
            assert 0 < row[name]["min"] <= row[name]["median"] <= row[name]["max"]


def test_results_name_no_place_on_the_machine():
    command = importlib.import_module("side_by_side.results_file").command
    shown = command(["/somewhere/benchmarks/small_models.py", "--corpus", "/data/private/corpus", "--tokens", "64"])
    assert shown == "python benchmarks/small_models.py --corpus corpus --tokens 64"


# ------------------------------------------------------------------------------------------- the scripts for one GPU


def test_the_smoke_test_makes_its_steps(monkeypatch):
    AcceleratorState._reset_state(reset_partial_state=True)
    found = importlib.import_module("gpu_smoke").compiled_steps(toy=True)
    AcceleratorState._reset_state(reset_partial_state=True)  # its precision is that of the whole process
    assert len(found["seconds_of_steps"]) == 19 and len(found["losses"]) == len(found["tokens_of_steps"]) == 20
    assert found["kernels"] and found["losses"][0] > 0
    assert all((BENCHMARKS.parent / path).is_file() for path in importlib.import_module("gpu_smoke").GPU_TESTS)


@pytest.mark.usefixtures("forked")
def test_the_headline_has_every_side(tmp_path):
    results = results_of("gpu_headline", tmp_path, "--toy")
    assert set(results["sides"]) == {"ours", "transformers, tuned"} and results["parity"]["loss_difference"] < 1e-4
    assert all(row["per_second"]["median"] > 0 and 0 < row["mfu"] < 1 for row in results["sides"].values())


def test_training_in_parts_ends_with_weights_and_scores(world, tmp_path, monkeypatch):
    script = importlib.import_module("gpu_train")
    monkeypatch.setattr(script, "run", lambda name, flags, seconds, log: recipe(name, *flags.split()))
    monkeypatch.setattr(script, "TOY_TASKS", {"sst2": script.TOY_TASKS["sst2"]})
    flags = ["--corpus", str(world.corpus), "--data_dir", str(world.glue), "--work", str(tmp_path / "work"), "--toy"]
    results = json.loads(script.main([*flags, "--out", str(tmp_path / "out")]).read_text())
    assert {name: part["code"] for name, part in results.items()} == {"pretraining": 0, "sst2": 0}
    assert results["sst2"]["metrics"]["accuracy"] >= 0
    pieces = sorted((tmp_path / "out").glob("model.safetensors.*"))
    (tmp_path / "model.safetensors").write_bytes(b"".join(piece.read_bytes() for piece in pieces))
    weights = load_file(tmp_path / "model.safetensors")
    published = load_file(tmp_path / "work" / "model" / "model.safetensors")
    assert all(torch.equal(weights[name], published[name].bfloat16()) for name in published)
