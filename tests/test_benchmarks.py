"""Every benchmark runs, at a tiny size, and leaves results with the fields that readers and plots rely on."""

import importlib
import json
import sys
from pathlib import Path

import pytest

from bert_repro.results import write_results

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
TINY_MODEL = ["--models", "2/32", "--threads", "1"]


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    # Workloads run in processes that get this process's sys.path.
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])


def results_of(script: str, folder: Path, *arguments: str) -> dict:
    path = importlib.import_module(script).main([*arguments, "--results", str(folder)])
    results = json.loads(path.read_text("utf-8"))
    assert {"benchmark", "date", "command", "git_commit", "hardware", "versions"} <= set(results)
    assert {"processor", "cores", "cpu_threads"} <= set(results["hardware"])
    assert {"torch", "transformers"} <= set(results["versions"])
    return results


def check_speeds(row: dict) -> None:
    for name in ("per_second", "per_cpu_second", "ours_is_faster_by"):
        assert 0 < row[name]["min"] <= row[name]["median"] <= row[name]["max"]


def test_pretraining_step(tmp_path):
    results = results_of(
        "pretraining_step", tmp_path, *TINY_MODEL, "--lengths", "32", "--tokens", "128", "--steps", "1",
        "--repeats", "1", "--no-attribution", "--no-documented",
    )  # fmt: skip
    (case,) = results["cases"]
    assert set(case["candidates"]) == {"ours", "transformers, tuned", "transformers, tuned, kept memory"}
    for row in case["candidates"].values():
        check_speeds(row)
        assert 0 < row["mfu"] < 1
    assert max(case["parity"]["loss_difference"], case["parity"]["gradient_difference"]) < 1e-4
    assert case["precision"] == "bf16" and 0 < case["fill"] <= 1
    assert case["ratio"] == case["candidates"][case["fastest_baseline"]]["ours_is_faster_by"]


def test_every_optimization_is_switched_off_alone(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    step = importlib.import_module("pretraining_step")
    options = step.parse([])
    for precision, device in (("bf16", "cpu"), ("no", "cpu"), ("bf16", "cuda")):
        options.device = device
        spec = step.StepSpec(2, 32, 32, 2, 1, precision, device)
        off = {name.removeprefix("without ") for name in step.workloads(options, spec) if name.startswith("without ")}
        assert off == {optimization for optimization in step.OPTIMIZATIONS if step.does_something(optimization, spec)}
    every = [step.does_something(optimization, spec) for optimization in step.OPTIMIZATIONS]
    assert any(every) and not all(every)
    workloads = step.workloads(options, spec)
    assert [name for group in step.groups(workloads, 3) for name in group] == list(workloads)


def test_the_speeds_quoted_for_two_cores_are_measured_alone(monkeypatch, capfd):
    script = importlib.import_module("two_cores")
    monkeypatch.setattr(script.os, "getloadavg", lambda: (3.0, 0.0, 0.0))
    with pytest.raises(SystemExit, match="other work is running"):
        script.main([])
    run = []
    monkeypatch.setattr(script.subprocess, "run", lambda command, check: run.append(command[1:]))
    script.main(["--shared", "--", "--repeats", "1"])
    step, finetuning = importlib.import_module("pretraining_step"), importlib.import_module("finetuning_step")
    assert [path.name for path, *_ in run] == ["pretraining_step.py", "pretraining_step.py", "finetuning_step.py"]
    assert all(command[-2:] == ["--repeats", "1"] for command in run)
    short, long = (step.parse(list(map(str, command[1:]))) for command in run[:2])
    assert (short.models, short.lengths, short.attribution) == (["4/512", "base"], [128], True)
    assert (long.models, long.lengths, long.compiled) == (["4/512"], [512], True)
    spec = step.StepSpec(2, 32, 32, 2, 1)
    assert {*step.BASELINES[1:], *step.KEPT} == set(step.workloads(long, spec))
    assert finetuning.PERCENTILES.keys() == {"mrpc", "squad"}


@pytest.mark.slow
def test_finetuning_step(tmp_path):
    results = results_of(
        "finetuning_step", tmp_path, "--layers", "2", "--hidden", "32", "--batch", "4", "--repeats", "1", "--threads",
        "1", "--tasks", "squad",
    )  # fmt: skip
    (case,) = results["cases"]
    assert case["task"] == "squad" and 0 < case["fill_of_dynamic_padding"] <= 1
    assert max(case["parity"]["loss_difference"], case["parity"]["gradient_difference"]) < 1e-4
    for row in case["candidates"].values():
        check_speeds(row)


@pytest.mark.slow
def test_data_pipeline(tmp_path):
    results = results_of(
        "data_pipeline", tmp_path, "--documents", "30", "--seconds", "0.01", "--repeats", "1", "--memory_documents",
        "20",
    )  # fmt: skip
    assert all(row["per_second"]["median"] > 0 for row in results["speeds"].values())
    assert {"masked and packed, 256 at a time", "pairs, paper", "pairs, original"} <= set(results["speeds"])
    small, large = results["memory"]
    assert small["tokens"] < large["tokens"] and small["mebibytes"] >= 0
    assert results["goals"]["masking_and_batching"] == 200_000


@pytest.mark.slow
def test_memory(tmp_path):
    results = results_of("memory", tmp_path, *TINY_MODEL, "--length", "32", "--batch", "2")
    assert [(case["side"], case["checkpointing"]) for case in results["cases"]] == [
        (side, checkpointing) for side in ("ours", "transformers, tuned") for checkpointing in (False, True)
    ]
    assert all(case["peak_mebibytes"] > 10 for case in results["cases"])


@pytest.mark.slow
def test_scaling(tmp_path):
    results = results_of(
        "scaling", tmp_path, "--model", "2/32", "--lengths", "32", "--batches", "2", "--tokens", "64", "--repeats", "1",
        "--threads", "1",
    )  # fmt: skip
    for shapes in (results["lengths"]["32"], results["batches"]["2"], results["processes"]):
        assert len(shapes) == 3
        assert all(row["seconds_per_step"]["median"] > 0 for row in shapes.values())
    assert len(list(tmp_path.glob("*-scaling-cpu.png"))) == 1


def test_small_models_stand_beside_bag_of_words(tmp_path, world, capsys):
    script = importlib.import_module("small_models")
    settings = dict.fromkeys(script.SAME_RUN, 1) | {"model_name_or_path": "runs/tiny"}
    for seed, accuracy in enumerate((0.5, 0.7)):
        write_results(tmp_path / str(seed), {"task": "sst2", "metrics": {"accuracy": accuracy}, "settings": settings})
    script.main(["--runs_dir", str(tmp_path), "--glue_dir", str(world.glue)])
    head, _, ours, words, *published = capsys.readouterr().out.splitlines()
    assert "| dev | SST-2 accuracy |" in head and "| tiny | 0.600 ± 0.141 (2) |" in ours
    assert 0 <= float(words.split("|")[2]) <= 1 and len(published) == len(script.PUBLISHED)
    write_results(
        tmp_path / "2", {"task": "sst2", "metrics": {"accuracy": 0.6}, "settings": settings | {"learning_rate": 2}}
    )
    with pytest.raises(SystemExit, match="learning_rate 2"):
        script.main(["--runs_dir", str(tmp_path)])


def test_results_name_no_place_on_the_machine():
    command = importlib.import_module("side_by_side.results_file").command
    shown = command(["/somewhere/benchmarks/scaling.py", "--corpus", "/data/private/corpus", "--tokens", "64"])
    assert shown == "python benchmarks/scaling.py --corpus corpus --tokens 64"


def test_a_workload_that_fails_says_why():
    baselines, timing = (importlib.import_module(f"side_by_side.{name}") for name in ("baselines", "timing"))
    with pytest.raises(RuntimeError, match=r"ValueError: hidden_size"):
        timing.run_once(baselines.parity, baselines.StepSpec(2, 33, 32, 2, 1), 1)


@pytest.mark.slow
def test_loss_curves_agree_but_for_the_order_of_sums(tmp_path):
    results = results_of("loss_curves", tmp_path, "--layers", "2", "--hidden", "32", "--steps", "12", "--threads", "1")
    assert {row["optimization"] for row in results["curves"]} >= {
        "packing",
        "predicted_only",
        "cpu_kernels",
        "fused_optimizer",
    }
    assert results["curves"][-1]["optimization"] == "all of them" and len(results["loss_all_off"]) == 12
    assert len(list(tmp_path.glob("*-loss_curves-cpu.png"))) == 1
    for row in results["curves"]:
        assert row["float64"] <= results["bounds"]["float64"] < 1e-9
        assert row["float32"] <= results["bounds"]["float32"] < 1e-3
    assert results["loss"][0] > results["loss"][-1]
