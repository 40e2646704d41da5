"""Runs that are stopped or killed at every stage, in processes of their own.

Whatever stops a run, its folder holds nothing that looks complete and is not, status.json says what happened, no
process of it stays, and the resumed run ends with the weights and predictions of one that was never stopped.
"""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import stages
import torch
from families import families, save_start
from running import TINY, recipe

from bert_repro.utils.files import UNFINISHED, find_damage, step_of

RECIPES = ("run_pretraining", "run_glue", "run_squad")
TRAIN = "--do_train --do_eval --do_predict --train_batch_size 8 --bias_correction true --learning_rate 5e-3"
FINETUNED, PRETRAINED = "bert_repro.finetuning.", "bert_repro.pretraining."
TRAINER = "bert_repro.training.trainer:Trainer."
TASKS = "bert_repro.tasks."
# Stage -> the function before whose call it stops, of all recipes or of each.
STAGES: dict[str, tuple[str, ...]] = {
    "reading arguments": ("bert_repro.cli:parse",),
    "reading data": (
        f"{PRETRAINED}segment_pairs:EpochIndexes._write",
        f"{TASKS}classification:ClassificationTask.encode_batch",
        f"{TASKS}squad_task:SquadTask.encode_batch",
    ),
    "loading the model": (f"{PRETRAINED}run:build_model", *[f"{FINETUNED}run:load_model"] * 2),
    "first step": (f"{TRAINER}_backward",),
    "training": (f"{TRAINER}_update",),  # its second call
    "writing a checkpoint": ("bert_repro.training.checkpoint:write_manifest",),
    "before the evaluation": ("bert_repro.training.adapters:merge_and_save",),
    "evaluation": (f"{PRETRAINED}evaluation:MlmBreakdown.add", *[f"{FINETUNED}outputs:HeadOutputs._outputs_of"] * 2),
    "prediction": (
        "bert_repro.training.run:plot_training",
        f"{TASKS}classification:ClassificationTask.write_predictions",
        f"{TASKS}squad_task:SquadTask.write_predictions",
    ),
    "writing the card": ("bert_repro.hub.export:make_card",),
    "publishing": ("bert_repro.hub.export:remove",),
}
BEFORE_TRAINING = ("reading arguments", "reading data", "loading the model")
DEFAULT = {
    ("run_pretraining", "evaluation", "TERM"),
    ("run_pretraining", "writing a checkpoint", "KILL"),
    ("run_glue", "publishing", "INT"),
    ("run_glue", "first step", "TERM"),
}
Run = dict[str, Any]


def stage_of(name: str, stage: str) -> dict[str, Any]:
    functions = STAGES[stage]
    function = functions[RECIPES.index(name) if len(functions) > 1 else 0]
    return {"stage": function, "call": 2 if stage == "training" else 1}


def table(kinds: tuple[str, ...], stages_of_kind: tuple[str, ...] = tuple(STAGES)) -> list[Any]:
    cases = [(name, stage, kind) for kind in kinds for name in RECIPES for stage in stages_of_kind]
    return [pytest.param(*case, marks=[] if case in DEFAULT else [pytest.mark.slow]) for case in cases]


@pytest.fixture(scope="module")
def runs(world: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[object]]:
    """The command line of a run of each recipe, but for the output folder and the number of steps."""
    root = tmp_path_factory.mktemp("stopped")
    tasks, start = families(world, root), save_start(world, root / "start", dropout=0.1)
    train = [TRAIN, "--logging_steps 1 --model_name_or_path", start]
    return {
        "run_pretraining": [TINY, "--corpus", world.corpus],
        "run_glue": [*tasks["run_glue"].flags, *train],
        "run_squad": [*tasks["run_squad"].flags, "--test_file", root / "squad" / "dev-v1.1.json", *train],
    }


@pytest.fixture(scope="module")
def uninterrupted(runs: dict[str, list[object]], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The folder of a run of a recipe that nothing stops."""
    made: dict[tuple[str, str], Path] = {}

    def folder(name: str, more: str) -> Path:
        if (name, more) not in made:
            made[name, more] = tmp_path_factory.mktemp("uninterrupted") / "run"
            assert recipe(name, *runs[name], more, "--output_dir", made[name, more]) == 0
        return made[name, more]

    return folder


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    yield
    stages.end_all()


def without_cached_tokens(folder: Path) -> Any:
    """Has a process tokenize again, into a folder of its own."""

    def setup() -> None:
        import datasets

        datasets.config.HF_DATASETS_CACHE = folder

    return setup


def ended(folder: Path) -> Any:
    path = folder / "status.json"
    return json.loads(path.read_text()) if path.exists() else None


def unfinished(*folders: Path) -> list[Path]:
    return [path for folder in folders for path in folder.rglob("*") if path.name.startswith((*UNFINISHED, "tmp"))]


def assert_nothing_half_written(folder: Path, complete: Path, *, killed: bool = False) -> None:
    """Everything under its final name is complete; after a signal that can be answered, all else is gone too."""
    assert killed or not unfinished(folder)
    for path in folder.rglob("*"):
        if not path.is_file() or any(part.startswith(UNFINISHED) for part in path.relative_to(folder).parts):
            continue
        if path.suffix == ".json":
            json.loads(path.read_text())
        if path.suffix == ".safetensors":
            safetensors.torch.load_file(path)
        if path.parent == folder and "predictions" in path.name:
            assert path.read_bytes() == (complete / path.name).read_bytes(), path.name
    for path in (folder / "checkpoints").glob("step-*"):
        assert step_of(path) is not None and find_damage(path) is None


def assert_same_end(folder: Path, complete: Path) -> None:
    """The run has ended as the one that nothing stopped."""
    assert ended(folder) == {"code": 0, "reason": "done"}
    assert not unfinished(folder)
    names, expected_names = ({path.name for path in place.iterdir()} - {"checkpoints"} for place in (folder, complete))
    assert names == expected_names
    weights, expected = (safetensors.torch.load_file(place / "model.safetensors") for place in (folder, complete))
    assert weights.keys() == expected.keys()
    assert [name for name in weights if not torch.equal(weights[name], expected[name])] == []
    for path in complete.glob("*predictions*"):
        assert (folder / path.name).read_bytes() == path.read_bytes()
    assert facts(folder) == facts(complete)


def facts(folder: Path) -> tuple[Any, Any]:
    """Results and log of a run, but for times and what says how it was started."""
    results = json.loads((folder / "results.json").read_text())
    for name in ("settings", "command", "wall_time_seconds", "git_commit"):
        results.pop(name, None)
    timed = ("seconds", "tokens_per_second", "mfu")
    results["train"] = {name: value for name, value in results["train"].items() if name not in timed}
    rows = [json.loads(line) for line in (folder / "train_log.jsonl").read_text().splitlines()]
    return results, [{name: value for name, value in row.items() if name not in timed} for row in rows]


def resume_flags(folder: Path) -> str:
    has_checkpoint = any(step_of(path) is not None for path in (folder / "checkpoints").glob("*"))
    return "--resume_from_checkpoint latest" if has_checkpoint else "--overwrite_output_dir"


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_is_a_function_that_is_there(stage: str) -> None:
    for function in STAGES[stage]:
        assert callable(stages.resolved(function)[-1]), function


@pytest.mark.parametrize(("name", "stage", "kind"), table(("TERM", "INT", "KILL")))
def test_a_stopped_run_resumes_as_if_nothing_had_been(
    runs: Run, uninterrupted: Any, tmp_path: Path, name: str, stage: str, kind: str
) -> None:
    steps = "--max_steps 3 --save_steps 3"  # before the last step only the stop itself writes a checkpoint
    complete, folder = uninterrupted(name, steps), tmp_path / "run"
    flags = [*runs[name], steps, "--output_dir", folder]
    number = getattr(signal, f"SIG{kind}")
    log = tmp_path / "log.txt"
    workers = ["--dataloader_num_workers 1"] if kind == "KILL" else []
    setup = without_cached_tokens(tmp_path / "cache")
    process = stages.Process(name, *flags, *workers, log=log, setup=setup, **stage_of(name, stage))
    process.wait_for_stage()
    process.send(number)
    process.go()
    code = process.wait()
    assert not process.has_orphans()
    assert "Traceback" not in log.read_text()
    if kind == "KILL":
        assert code == -signal.SIGKILL
        assert ended(folder) is None or ended(folder) == {"code": None, "reason": "running", "pid": process.pid}
    elif stage == "reading arguments":
        assert code == 128 + number and not folder.exists()
    else:
        assert code == 128 + number and ended(folder) == {"code": code, "reason": f"stopped by signal {int(number)}"}
        assert not unfinished(tmp_path / "cache")
    assert_nothing_half_written(folder, complete, killed=kind == "KILL")
    if stage not in BEFORE_TRAINING and kind in ("TERM", "INT"):
        assert resume_flags(folder) != "--overwrite_output_dir", "nothing that was trained is lost"
    if (ended(folder) or {"code": 1})["code"] != 0:
        again = tmp_path / "again.txt"
        assert stages.run(name, *flags, resume_flags(folder), log=again) == 0, again.read_text()
    assert_same_end(folder, complete)


@pytest.mark.parametrize(
    ("name", "stage", "kind"), table(("LOADER",), ("first step", "training", "writing a checkpoint"))
)
def test_a_killed_loader_process_is_one_line_and_loses_nothing(
    runs: Run, uninterrupted: Any, tmp_path: Path, name: str, stage: str, kind: str
) -> None:
    steps = "--max_steps 9 --save_steps 2 --save_total_limit 9"
    complete, folder = uninterrupted(name, steps), tmp_path / "run"
    flags = [*runs[name], steps, "--dataloader_num_workers 1 --output_dir", folder]
    process = stages.Process(name, *flags, log=tmp_path / "log.txt", **stage_of(name, stage))
    process.wait_for_stage()
    (loader,) = process.children()
    os.kill(loader, signal.SIGKILL)
    process.go()
    assert process.wait() == 1
    assert not process.has_orphans()
    output = (tmp_path / "log.txt").read_text()
    assert "Traceback" not in output
    assert output.count("error: Stopped after step") == 1 and "a process that loads data was killed" in output
    assert ended(folder)["code"] == 1 and "a process that loads data was killed" in ended(folder)["reason"]
    assert_nothing_half_written(folder, complete)
    assert stages.run(name, *flags, resume_flags(folder), log=tmp_path / "again.txt") == 0
    assert_same_end(folder, complete)
