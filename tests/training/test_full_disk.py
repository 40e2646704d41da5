"""Disks that are full, limits on the size of files, and output places that cannot be: one line and code 2.

Nothing half-written is left, under no name. By default a limit on the size of files stands in for the full disk; the
slow tests mount file systems of many sizes, where this machine lets them.
"""

import contextlib
import json
import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import stages
from families import families, save_start
from made_up import entry, pretraining, row
from running import TINY, recipe

from bert_repro.configs import Config
from bert_repro.paper_results import SPLIT_ROWS
from bert_repro.recipes import RECIPES
from bert_repro.tasks.glue.leaderboard_zip import FILES, HEADER
from bert_repro.utils.files import UNFINISHED

TRAIN = "--do_train --do_eval --train_batch_size 8 --bias_correction true --max_steps 2 --save_steps 1"
FILE_SIZES = (30, 300, 3_000, 10_000, 30_000, 100_000, 300_000)
DISK_PAGES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024)
DEFAULT = {("train_tokenizer", 3_000), ("prepare_corpus", 10_000), ("run_squad", 30_000), ("report", 3_000)}
GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "tensorflow"
PRESET = """
description: tiny
base: tiny
sizes: {tiny: {num_hidden_layers: 4, hidden_size: 16, num_attention_heads: 2}}
pretraining: {max_steps: 2, train_batch_size: 8, max_seq_length: 64, max_eval_sequences: 16, learning_rate: 1e-3}
checkpoints: [1, 2]
tasks:
  {mnli: {}, qnli: {}, mrpc: {}, sst2: {}, squad: {}, conll2003: {max_steps: 1, max_seq_length: 64},
   features: {max_steps: 1, max_seq_length: 64, bilstm_size: 8}}
seeds: [1]
bilstm_size: 8
"""
Commands = dict[str, Callable[[Path], list[object]]]
WRITERS = (
    "train_tokenizer", "prepare_corpus", "audit_pretraining_data", "run_pretraining", "compare_curve", "run_glue",
    "run_ner", "run_squad", "run_swag", "extract_features", "score_sentences", "make_card", "report",
    "convert_triviaqa", "predict", "export_onnx", "convert_checkpoint", "make_glue_zip", "run_study", "quickstart",
)  # fmt: skip


def glue_runs(folder: Path) -> Path:
    """Writes finished runs of all tasks of GLUE, with their predictions."""
    for task, split in FILES.values():
        path = folder / task.name / f"predictions.{split}.tsv"
        path.parent.mkdir(parents=True, exist_ok=True)
        label = (*task.label_names, "2.5")[0] if task.number_range is None else "2.5"
        rows = "".join(f"{number}\t{label}\n" for number in range(SPLIT_ROWS[task.name, split]))
        path.write_text(f"{HEADER}\n{rows}")
        results = {"task": task.name, "settings": {}, "train": {"steps": 1}}
        (path.parent / "results.json").write_text(json.dumps(results))
    return folder


@pytest.fixture(scope="module")
def commands(world: Any, tmp_path_factory: pytest.TempPathFactory) -> Commands:
    """Recipe -> its command line for a folder to write to."""
    root = tmp_path_factory.mktemp("disk")
    start = save_start(world, root / "start", dropout=0.1)
    tasks = families(world, root)
    pretraining(root / "runs", "one")
    row(root / "runs", [entry(5, "BERT-base", "SST-2")], 0.7, task="sst2", split="validation")
    log = root / "run" / "train_log.jsonl"
    log.parent.mkdir()
    rows = [{"step": step, "mlm_loss": 5 - step / 100, "tokens": step * 1000, "seconds": step} for step in range(9)]
    log.write_text("".join(json.dumps(line) + "\n" for line in rows))
    (root / "wikipedia").mkdir()
    (root / "wikipedia" / "a.txt").write_text("It was Sunset Boulevard. " * 2000)
    answer = {"Value": "Sunset Boulevard", "Aliases": [], "Type": "WikipediaEntity"}
    asked = {"Answer": answer, "EntityPages": [{"Filename": "a.txt"}], "Question": "Which?", "QuestionId": "a"}
    (root / "qa.json").write_text(json.dumps({"Data": [asked], "Domain": "Wikipedia", "Version": 1.0}))

    preset = root / "tiny.yaml"
    preset.write_text(PRESET)
    conll = Path(str(tasks["run_ner"].flags[-1]))
    shutil.copy(conll / "eng.testa", conll / "eng.testb")

    def train(name: str) -> Callable[[Path], list[object]]:
        return lambda out: [*tasks[name].flags, TRAIN, "--model_name_or_path", start, "--output_dir", out / "run"]

    def card(out: Path) -> list[object]:
        finished = root / "finished"
        if not finished.exists():
            assert recipe("run_glue", *train("run_glue")(root / "card")) == 0
            (root / "card" / "run").rename(finished)
        return ["--folder", finished, "--output_file", out / "card.md"]

    def predict(out: Path) -> list[object]:
        card(out)
        return [
            "--model_name_or_path",
            root / "finished",
            "--input_file",
            world.text,
            "--output_file",
            out / "answers.csv",
        ]

    return {
        "predict": predict,
        "export_onnx": lambda out: ["--folder", start, "--output_file", out / "model.onnx"],
        "convert_checkpoint": lambda out: [
            "--checkpoint", GOLDEN, "--gelu erf --do_lower_case true --output_dir", out / "run"
        ],
        "make_glue_zip": lambda out: ["--runs", glue_runs(root / "glue"), "--output_file", out / "glue.zip"],
        "run_study": lambda out: [
            "--table 7 --corpus", world.corpus, "--conll_dir", conll, "--size_preset", preset,
            "--output_dir", out / "run",
        ],
        "quickstart": lambda out: ["--output_dir", out / "run"],
        "train_tokenizer": lambda out: ["--input_files", world.text, "--vocab_size 150 --output_dir", out / "run"],
        "prepare_corpus": lambda out: [
            "--input_files", world.text, "--tokenizer", world.tokenizer, "--output_dir", out / "run"
        ],
        "audit_pretraining_data": lambda out: [
            "--corpus", world.corpus, "--max_seq_length 64 --output_dir", out / "run"
        ],
        "run_pretraining": lambda out: [
            TINY, "--corpus", world.corpus, "--max_steps 2 --save_steps 1 --output_dir", out / "run"
        ],
        "compare_curve": lambda out: [
            "--run", log.parent, "--reference", log.parent, "--output_file", out / "curve.png"
        ],
        **{name: train(name) for name in tasks},
        "extract_features": lambda out: [
            "--model_name_or_path", start, "--input_file", world.text, "--output_file", out / "features.parquet"
        ],
        "score_sentences": lambda out: [
            "--model_name_or_path", start, "--input_file", world.text, "--output_dir", out / "run"
        ],
        "make_card": card,
        "report": lambda out: ["--runs_dir", root / "runs", "--report_dir", out / "run"],
        "convert_triviaqa": lambda out: [
            "--qa_file", root / "qa.json", "--evidence_dir", root, "--max_tokens 8000 --output_file", out / "train.json"
        ],
    }  # fmt: skip


def check(process: stages.Process, out: Path) -> int:
    output = process.output()
    code = process.wait()
    assert "Traceback" not in output, output
    errors = [line for line in output.splitlines() if line.startswith("error: ")]
    assert (code, len(errors)) in ((0, 0), (2, 1)), output
    assert not process.has_orphans()
    for path in out.rglob("*"):
        assert not path.name.startswith((*UNFINISHED, "tmp")), path
        if path.suffix == ".json":
            content = json.loads(path.read_text())
            if path.name == "status.json" and path.parent == out / "run":
                assert content["code"] == code
        if path.suffix == ".safetensors":
            safetensors.torch.load_file(path)
    return code


@pytest.mark.parametrize(
    ("name", "size"),
    [
        pytest.param(name, size, marks=[] if (name, size) in DEFAULT else pytest.mark.slow)
        for name in WRITERS
        for size in FILE_SIZES
    ],
)
def test_a_file_that_cannot_grow_is_one_line(commands: Commands, tmp_path: Path, name: str, size: int) -> None:
    def limit() -> None:
        import datasets

        datasets.config.HF_DATASETS_CACHE = tmp_path / "cache"
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    arguments = commands[name](tmp_path)
    assert check(stages.Process(name, *arguments, setup=limit), tmp_path) == 2 or size > 300


@contextlib.contextmanager
def disk(folder: Path, pages: int) -> Iterator[bool]:
    """Mounts a file system of some pages at a folder; yields False where this machine does not let it."""
    size = f"size={pages * os.sysconf('SC_PAGE_SIZE')}"
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(folder)], capture_output=True)
    try:
        yield mounted.returncode == 0
    finally:
        if mounted.returncode == 0:
            subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_is_one_line_at_any_size(commands: Commands, tmp_path: Path, name: str) -> None:
    place = tmp_path / "disk"
    place.mkdir()
    codes = []
    for pages in DISK_PAGES:
        with disk(place, pages) as is_mounted:
            if not is_mounted:
                return  # the limits on files above remain
            codes.append(check(stages.Process(name, *commands[name](place)), place))
    assert codes[0] == 2 and codes == sorted(codes, reverse=True), "more room never makes it worse"


OUTPUTS = [
    (name, setting)
    for name, made in RECIPES.items()
    for setting in ("output_dir", "output_file", "report_dir", "records_dir")
    if setting in made.config.__dataclass_fields__
]


@pytest.mark.parametrize(("name", "setting"), OUTPUTS)
def test_an_output_place_that_cannot_be_is_one_line(tmp_path, monkeypatch, capsys, name, setting):
    monkeypatch.setattr(Config, "__post_init__", lambda _: None)  # what else the recipe needs is not given
    monkeypatch.setattr(type(RECIPES[name]), "load", lambda _: pytest.fail("the recipe was begun"))
    (tmp_path / "file").touch()
    taken, said = (tmp_path, "is a folder") if setting == "output_file" else (tmp_path / "file", "is a file")
    places = {taken: said, tmp_path / "file" / "a" / "b": "lies below the file", tmp_path / ("n" * 300): "too long"}
    before = sorted(tmp_path.iterdir())
    for place, message in places.items():
        assert recipe(name, f"--{setting}", place) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"error: --{setting} ") and message in line and len(line) < 600
    assert sorted(tmp_path.iterdir()) == before
