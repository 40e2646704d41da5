"""A sweep over settings and seeds: what it finds, what it keeps, and that it resumes where it was stopped."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import stages
import torch
from running import recipe, results
from transformers import AutoModelForSequenceClassification

from bert_repro.finetuning.sweep import sweep_results

RUN = "--task_name sst2 --do_train --do_eval --bias_correction true --num_train_epochs 2 --train_batch_size 8"
GRID = "--sweep_learning_rates 1e-2 1e-4 --num_restarts 2"
CONFIGURATIONS = ("lr0.01-batch8-epochs2", "lr0.0001-batch8-epochs2")


@pytest.fixture(scope="module")
def command(world, untrained):
    """The command line of a run into a folder; what is given comes last."""

    def command(output_dir: Path, *more: str) -> list[str]:
        where = f"--model_name_or_path {untrained} --data_dir {world.glue} --output_dir {output_dir}"
        return ["run_glue", *f"{RUN} {where} {' '.join(more)}".split()]

    return command


@pytest.fixture(scope="module")
def swept(command: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("swept")
    assert recipe(*command(folder, GRID, "--do_predict")) == 0
    return folder


def scores(folder: Path) -> dict[str, Any]:
    return {run["folder"]: run["splits"]["validation"] for run in results(folder)["sweep"]["runs"]}


def test_the_best_on_dev_is_published_as_a_single_run_is(swept: Path) -> None:
    found = (record := results(swept))["sweep"]
    folders = [f"{name}/seed{seed}" for name in CONFIGURATIONS for seed in (42, 43)]
    assert [run["folder"] for run in found["runs"]] == folders
    best = max(found["runs"], key=lambda run: (run["splits"]["validation"]["accuracy"], not run["degenerate"]))
    assert found["best"] == best
    own = results(swept / "sweep" / best["folder"])
    assert record["metrics"] == own["metrics"] and record["seed"] == best["seed"]
    assert record["settings"]["learning_rate"] == best["learning_rate"]
    assert record["settings"]["output_dir"] == str(swept)
    assert record["baselines"] == results(swept / "sweep" / folders[0])["baselines"] and record["baselines"]
    assert record["splits"]["test"]["rows"] == 5 and (swept / "predictions.test.tsv").exists()
    assert (swept / "predictions.validation.tsv").exists() and (swept / "training.png").exists()
    weights = [safetensors.torch.load_file(path) for path in swept.rglob("model.safetensors")]
    assert len(weights) == 2  # the best run's own and the published one
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    upstream = AutoModelForSequenceClassification.from_pretrained(swept)
    assert upstream.config.id2label == {0: "negative", 1: "positive"}
    card = (swept / "README.md").read_text()
    assert "best of 4 runs on the dev set" in card and " |\n\nTrained on 64 of" in card
    assert json.loads((swept / "status.json").read_text()) == {"code": 0, "reason": "done"}


def test_a_wider_sweep_makes_only_what_is_new(command: Any, swept: Path) -> None:
    made = (swept / "sweep").glob("*/seed*/results.json")
    before, found = {path: path.stat().st_mtime_ns for path in made}, scores(swept)
    wider = "--sweep_learning_rates 1e-2 1e-4 3e-4 --num_restarts 2"
    assert recipe(*command(swept, wider)) == 0
    assert len(scores(swept)) == 6 and found.items() <= scores(swept).items()
    assert all(path.stat().st_mtime_ns == time_before for path, time_before in before.items())


def test_killed_in_the_middle_the_same_command_resumes(command, swept, tmp_path, caplog):
    folder = tmp_path / "killed"
    typed = command(folder, GRID, "--save_steps 10")
    done, second = (folder / "sweep" / CONFIGURATIONS[0] / f"seed{seed}" for seed in (42, 43))
    process = stages.Process(*typed, stage="bert_repro.training.trainer:Trainer._update", call=16 + 15)
    process.wait_for_stage()
    process.send(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL and list(second.glob("checkpoints/step-*"))
    assert not (second / "results.json").exists() and not (folder / "model.safetensors").exists()
    finished = (done / "results.json").stat().st_mtime_ns
    assert recipe(*typed) == 0
    assert (done / "results.json").stat().st_mtime_ns == finished
    assert caplog.text.count("Resuming from") == 1
    complete = scores(swept)
    assert scores(folder) == {name: complete[name] for name in scores(folder)} and len(scores(folder)) == 4
    killed, uninterrupted = results(second), results(swept / "sweep" / CONFIGURATIONS[0] / "seed43")
    assert killed.keys() == uninterrupted.keys()
    of_folder = {"output_dir": "", "run_name": "", "save_steps": None}
    assert killed["settings"] | of_folder == uninterrupted["settings"] | of_folder


def test_a_run_that_is_not_finite_is_counted_and_without_any_other_the_sweep_says_so(command, tmp_path, capsys):
    typed = command(tmp_path, "--max_steps 4 --sweep_learning_rates 1e30 1e-2")
    assert recipe(*typed) == 0
    found = results(tmp_path)["sweep"]
    assert found["not_finite"] == 1 and found["best"]["learning_rate"] == 1e-2
    broken, complete = found["configurations"]
    assert (broken["runs"], broken["not_finite"], broken["splits"]) == (1, 1, {})
    accuracy = found["best"]["splits"]["validation"]["accuracy"]
    single = {"mean": accuracy, "standard_deviation": None, "best": accuracy}
    assert complete["splits"]["validation"]["accuracy"] == single
    assert json.loads((tmp_path / "sweep/lr1e+30-batch8-steps4/seed42/status.json").read_text())["code"] == 3
    assert "| 1e+30 | 8 | 4 | 1 |" in (tmp_path / "README.md").read_text()
    assert recipe(*command(tmp_path / "none", "--max_steps 4 --learning_rate 1e30 --num_restarts 2")) == 3
    assert "none of the 2 runs kept a finite loss" in capsys.readouterr().err


def test_settings_of_training_alone_do_not_hinder_the_prediction_at_the_end(command, tmp_path):
    only_training = "--num_restarts 2 --freeze_layers 1 --eval_steps 5 --early_stopping_patience 3"
    assert recipe(*command(tmp_path, only_training, "--max_steps 10 --do_predict")) == 0
    assert results(tmp_path)["splits"]["test"]["rows"] == 5


def test_a_folder_of_another_sweep_or_run_is_left_alone(command, swept, refused, tmp_path):
    before = {path: path.stat().st_mtime_ns for path in swept.rglob("*") if path.is_file()}
    assert "this sweep has --max_seq_length 128, not 64" in refused(*command(swept, GRID, "--max_seq_length 64"))
    assert "is not empty" in refused(*command(swept, "--learning_rate 1e-2"))
    (tmp_path / "file").touch()
    assert "is not empty" in refused(*command(tmp_path, GRID))
    typed = " ".join(command(swept, "--overwrite_output_dir")).replace("--train_batch_size", "--sweep_batch_sizes 4000")
    assert "64 training rows" in refused(*typed.split())
    assert "contains no sweep" in refused(*command(tmp_path, GRID, "--resume_from_checkpoint latest"))
    assert {path: path.stat().st_mtime_ns for path in swept.rglob("*") if path.is_file()} == before


def run(seed: int, degenerate: bool = False, **scores: float) -> dict[str, Any]:
    varied = {"learning_rate": 2e-5, "batch": 32, "epochs": 3.0, "steps": None, "seed": seed}
    splits = {name: {"f1": score} for name, score in scores.items()}
    ended = {"splits": splits, "degenerate": degenerate} if splits else {"not_finite": True}
    return {**varied, "folder": f"lr2e-05-batch32-epochs3/seed{seed}", **ended}


def test_degenerate_runs_stay_in_mean_and_deviation_and_splits_only_scored_are_summed_up() -> None:
    runs = [run(0, dev=0.8), run(1, dev=0.5, degenerate=True), run(2, dev=0.9), run(3)]
    record = sweep_results(runs, split="dev", metric="f1")
    (found,) = record["configurations"]
    assert (found["runs"], found["degenerate"], found["not_finite"], record["best"]) == (4, 1, 1, runs[2])
    f1 = {"mean": pytest.approx(2.2 / 3), "standard_deviation": pytest.approx(0.2081666), "best": 0.9}
    assert found["splits"] == {"dev": {"f1": f1}}
    record = sweep_results([run(0, dev=0.8, test=0.6), run(1, dev=0.6, test=0.8)], split="dev", metric="f1")
    assert record["best"]["seed"] == 0
    assert record["configurations"][0]["splits"]["test"]["f1"]["mean"] == pytest.approx(0.7)


def own_rows(path: Path, labels: str, times: int = 8) -> Path:
    first, second = labels.split()
    path.write_text("text,label\n" + f"green river,{first}\nold stone,{second}\n" * times)
    return path


def test_a_run_resumes_with_the_data_and_settings_it_had(world, untrained, tmp_path, refused):
    folder, train = tmp_path / "run", own_rows(tmp_path / "train.csv", "yes no")
    dev = own_rows(tmp_path / "dev.csv", "yes no", 2)
    typed = f"--model_name_or_path {untrained} --do_train --save_steps 2 --train_batch_size 4 --output_dir {folder}"
    typed += f" --do_eval --validation_file {dev}"
    assert recipe("run_glue", typed, f"--max_steps 4 --train_file {train}") == 0
    published = (folder / "config.json").read_bytes()
    other = own_rows(tmp_path / "a.csv", "agree refuse")
    for more, message in (
        (f"--max_steps 6 --train_file {other} --validation_file {other}", "its run had the labels"),
        (f"--max_steps 6 --train_file {own_rows(tmp_path / 'b.csv', 'yes no', 9)}", "training inputs 16, not 18"),
        (f"--max_steps 6 --train_file {train} --train_batch_size 8", "its run had the train_batch_size 4, not 8"),
        (f"--max_steps 6 --train_file {train} --seed 1", "its run had the seed 42, not 1"),
        (f"--max_steps 3 --train_file {train}", "has taken 4 steps"),
    ):
        assert message in refused("run_glue", typed, more, "--resume_from_checkpoint latest")
        assert (folder / "config.json").read_bytes() == published
    longer = f"--max_steps 6 --train_file {train} --resume_from_checkpoint latest"
    own_rows(dev, "yes no", 3)
    assert "content of the evaluation inputs" in refused("run_glue", typed, longer)
    own_rows(dev, "yes no", 2)
    assert "--max_steps 4" in refused("run_glue", typed, longer)
    assert recipe("run_glue", typed, longer, "--allow_changed_settings") == 0
    assert results(folder)["train"]["steps"] == 6
