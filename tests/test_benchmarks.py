"""Every benchmark runs, at a tiny size, and leaves results with the fields that readers and plots rely on."""

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
from tiny_models import save_model

from bert_repro.results import write_results

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


def results_of(script: str, folder: Path, *arguments: str) -> dict:
    path = importlib.import_module(script).main([*arguments, "--results", str(folder)])
    results = json.loads(path.read_text("utf-8"))
    assert {"benchmark", "date", "command", "git_commit", "hardware", "versions"} <= set(results)
    assert {"processor", "cores", "cpu_threads"} <= set(results["hardware"])
    assert {"torch", "transformers"} <= set(results["versions"])
    return results


def case_of(script: str, folder: Path, *arguments: str) -> dict:
    """The only case of a script that times a step side by side."""
    (case,) = results_of(script, folder, *arguments, "--repeats", "1", "--threads", "1")["cases"]
    assert max(case["parity"]["loss_difference"], case["parity"]["gradient_difference"]) < 1e-4
    for row in case["candidates"].values():
        for name in ("per_second", "per_cpu_second", "ours_is_faster_by"):
            assert 0 < row[name]["min"] <= row[name]["median"] <= row[name]["max"]
    return case


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_pretraining_step(tmp_path):
    flags = "--models 2/32 --lengths 32 --tokens 128 --steps 1 --no-attribution --precisions fp32"
    case = case_of("pretraining_step", tmp_path, *flags.split())
    assert set(case["candidates"]) == {"ours", "transformers, tuned", "transformers, tuned, kept memory"}
    assert all(0 < row["mfu"] < 1 for row in case["candidates"].values())
    assert case["precision"] == "fp32" and 0 < case["fill"] <= 1
    assert case["ratio"] == case["candidates"][case["fastest_baseline"]]["ours_is_faster_by"]


def test_the_speeds_quoted_for_two_cores_are_measured_alone(monkeypatch, capfd):
    script = importlib.import_module("two_cores")
    monkeypatch.setattr(script.os, "getloadavg", lambda: (3.0, 0.0, 0.0))
    with pytest.raises(SystemExit, match="other work is running"):
        script.main([])
    run = []
    monkeypatch.setattr(script.subprocess, "run", lambda command, check: run.append(command[1:]))
    script.main(["--shared", "--", "--repeats", "1"])
    step = importlib.import_module("pretraining_step")
    assert [path.name for path, *_ in run] == ["pretraining_step.py", "pretraining_step.py", "finetuning_step.py"]
    assert all(command[-2:] == ["--repeats", "1"] for command in run)
    short, long = (step.parse(list(map(str, command[1:]))) for command in run[:2])
    assert (short.models, short.lengths, long.models, long.lengths) == (["4/512", "base"], [128], ["4/512"], [512])


@pytest.mark.slow
def test_finetuning_step(tmp_path):
    case = case_of("finetuning_step", tmp_path, *"--layers 2 --hidden 32 --batch 4 --tasks squad".split())
    assert case["task"] == "squad" and 0 < case["fill_of_dynamic_padding"] <= 1


def test_small_models_stand_beside_bag_of_words(tmp_path, world, capsys):
    script = importlib.import_module("small_models")
    settings = dict.fromkeys(script.SAME_RUN, 1) | {"model_name_or_path": "runs/untrained"}
    for seed, accuracy in enumerate((0.5, 0.7)):
        results = {"task": "sst2", "metrics": {"accuracy": accuracy}, "settings": settings, "train": {"examples": 64}}
        write_results(tmp_path / f"sst2-seed{seed}", results)
    script.main(["--runs_dir", str(tmp_path), "--glue_dir", str(world.glue)])
    _, _, ours, _, _, _, rows, _, words, *published = capsys.readouterr().out.splitlines()
    assert ours.startswith("| SST-2, accuracy | 64 of 67,349 | 0.600 ± 0.141 (2) | ") and "64 of 67,349" in rows
    assert words.split("|")[2].strip() in ours and len(published) == 1 + len(script.PUBLISHED)
    first = capsys.readouterr().out
    script.main(["--runs_dir", str(tmp_path)])  # baselines are stored
    assert capsys.readouterr().out.splitlines()[8] == words and not first
    write_results(tmp_path / "sst2-seed2", results | {"settings": settings | {"learning_rate": 2}})
    with pytest.raises(SystemExit, match="learning_rate 2"):
        script.main(["--runs_dir", str(tmp_path)])


@pytest.mark.slow
def test_longer_inputs_are_measured_every_way(tmp_path, world, monkeypatch):
    script = importlib.import_module("longer_inputs")
    model = save_model(world, tmp_path / "start", "ForPreTraining", max_position_embeddings=64)
    small = {"MODEL": str(model), "TRAINED": 32, "LENGTHS": (64, 96), "STEPS": 1, "EVALUATED": 384, "CHOSEN_AT": 64}
    small |= {"TEXTS": 3, "LONGEST": 64, "CUTS": ((32, 64),)}
    for name, value in small.items():
        monkeypatch.setattr(script, name, value)
    (tmp_path / "reference_curves").mkdir()
    (tmp_path / "tutorials").mkdir()
    text = json.dumps({"text": "the old stone bird falls " * 20})
    (tmp_path / "texts.jsonl").write_text(f"{text}\n" * 4)
    flags = {"corpus": world.corpus, "heldout": world.corpus, "encoder": model, "texts": tmp_path / "texts.jsonl"}
    flags |= {"work": tmp_path / "work", "docs": tmp_path}
    path = script.main([text for name, value in flags.items() for text in (f"--{name}", str(value))])
    rows = json.loads(path.read_text("utf-8"))
    ways = ["rotation", "tile", script.NOISE, "none"]
    masked = [row for row in rows if "accuracy" in row]
    assert [row["way"] for row in masked] == [way for _ in range(2) for way in ways for _ in range(2)]
    assert all(0 <= row["accuracy"] <= 1 and 0 <= row["from_128"] <= 1 for row in masked)
    cosines = {row["way"]: row["cosine"] for row in rows if "cosine" in row}
    assert {"tile", "text cut"} < set(cosines) and max(cosines.values()) < 1
    assert (tmp_path / "tutorials" / "longer_inputs.png").is_file()


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
    results = results_of("gpu_headline", tmp_path, "--toy", "--repeats", "1")
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


@pytest.mark.slow
def test_a_part_of_training_that_is_over_its_time_is_stopped(tmp_path, monkeypatch):
    script = importlib.import_module("gpu_train")
    monkeypatch.setattr(script, "SECONDS_TO_STOP", 5)
    monkeypatch.setattr(script, "ROOT", tmp_path)
    (tmp_path / "recipes").mkdir()
    slow = "import signal, time; signal.signal(signal.SIGTERM, lambda *_: exit(143)); print('ready', flush=True); "
    (tmp_path / "recipes" / "slow.py").write_text(slow + "time.sleep(60)")
    assert script.run("slow", "", 7, tmp_path / "log") == 143 and (tmp_path / "log").read_text() == "ready\n"
