"""The commands of the half hour with a GPU: nothing is lost to a cut, and what is brought over arrives as it was."""

import argparse
import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from bert_repro.corpus.prepared_corpus import PreparedCorpus

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    return lambda name: importlib.import_module(f"gpu_half_hour.{name}")


def command(module: Any, folder: Path, minutes: float = 5) -> Any:
    options = argparse.Namespace(
        out=folder / "out", work=folder / "work", carried=folder / "carried", minutes=minutes, toy=True
    )
    return module("half_hour").Command("measure_1", options)


def parts(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / "out" / "measure_1.json").read_text("utf-8"))["parts"]
    return found


def test_every_part_leaves_its_results_however_it_ends(module: Any, tmp_path: Path) -> None:
    made = command(module, tmp_path)
    made.part("good", ["-c", "print('{\"a\": 1}')"], 60, json.loads)
    assert parts(tmp_path)[0]["results"] == {"a": 1}
    made.part("bad", ["-c", "print('half'); raise SystemExit(3)"], 60, json.loads)
    slow = "import signal, time; signal.signal(signal.SIGTERM, lambda *_: exit(143)); print('[2]'); time.sleep(60)"
    made.part("cut", ["-c", slow], 3, json.loads)
    assert made.step("failing", lambda: 1 / 0) is None
    good, bad, cut, failing = parts(tmp_path)
    assert (good["outcome"], bad["outcome"], cut["outcome"]) == ("done", "exit code 3", "exit code 143")
    assert bad["results"].startswith("not read: JSONDecodeError") and bad["end of output"] == ["half"]
    assert cut["results"] == [2] and failing["outcome"].startswith("ZeroDivisionError")
    late = command(module, tmp_path, minutes=0)
    late.part("late", ["-c", "pass"], 60)
    assert parts(tmp_path)[0]["outcome"].startswith("not begun")


def test_a_corpus_in_pieces_is_the_corpus(module: Any, world: Any, tmp_path: Path) -> None:
    carry, corpus = module("carry"), PreparedCorpus.load(world.corpus)
    sizes = carry.pack_corpus(Path(world.corpus), tmp_path / "carried", pieces=2)
    assert len(sizes) == 2
    pieces = [tmp_path / "carried" / f"piece-{number}" for number in (1, 2)]
    assert str(Path(world.corpus).parent) not in "".join(path.read_text() for path in pieces[0].glob("*.json"))
    carry.unpack(pieces, tmp_path / "corpus")
    again = PreparedCorpus.load(tmp_path / "corpus")
    assert again.content_digest == corpus.content_digest and again.num_tokens == corpus.num_tokens
    assert (again.sentence_starts == corpus.sentence_starts).all()


def test_what_travels_is_the_working_tree_without_ignored_and_deleted_files(module: Any, tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    for name, size in {"kept": 10, "gone": 100, "ignored": 1000}.items():
        (tmp_path / name).write_bytes(b"x" * size)
    (tmp_path / ".gitignore").write_text("ignored\n")
    subprocess.run(["git", "add", "kept", "gone"], cwd=tmp_path, check=True)
    (tmp_path / "gone").unlink()
    assert module("carry").repository_size(tmp_path) == 10 + len("ignored\n")


def test_weights_come_back_in_bfloat16(module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = module("weights")
    monkeypatch.setattr(weights, "FILE", 5_000)
    monkeypatch.setattr(weights, "CHUNK", 3_000)
    (tmp_path / "model").mkdir()
    tensors = {"a": torch.randn(61, 63), "odd": torch.arange(3, dtype=torch.int8)}
    safetensors.torch.save_file(tensors, tmp_path / "model" / "model.safetensors")
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "back").mkdir()
    assert len(weights.split(tmp_path / "model", tmp_path / "back")) > 3
    weights.join(tmp_path / "back", tmp_path / "again")
    found = safetensors.torch.load_file(tmp_path / "again" / "model.safetensors")
    assert torch.equal(found["a"], tensors["a"].bfloat16()) and torch.equal(found["odd"], tensors["odd"])
    assert (tmp_path / "again" / "config.json").read_text() == "{}"
    (tmp_path / "back" / "weights-01.bin").unlink()
    with pytest.raises(SystemExit, match="missing or damaged"):
        weights.join(tmp_path / "back", tmp_path / "third")


def test_training_takes_the_better_learning_rate_and_the_steps_that_fit(module: Any, tmp_path: Path) -> None:
    half_hour, made = module("half_hour"), command(module, tmp_path)
    made.toy = False
    for number, (loss, steps) in {1: (5.0, 40), 2: (4.5, 20)}.items():
        folder = tmp_path / "work" / f"trial-{number}"
        folder.mkdir()
        rows = [
            {"step": step, "loss": 9.0, "mlm_loss": loss if step <= 20 else 1.0, "tokens": 100 * step,
             "tokens_per_second": 10 if step == 1 else 1000, "seconds": 0.1}
            for step in range(1, steps + 1)
        ]  # fmt: skip
        (folder / "train_log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    chosen = half_hour.choose(made, 600)
    assert chosen["learning_rate"] == half_hour.LEARNING_RATES[2] and chosen["at step"] == 20
    assert chosen["steps"] == int(half_hour.SHARE_OF_SPEED * 600 * 1000 / 100)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["measure_1", "measure_2", "measure_3"])
def test_measuring_runs_at_toy_size(module: Any, tmp_path: Path, name: str) -> None:
    path = module("half_hour").main([name, "--out", str(tmp_path / "out"), "--work", str(tmp_path / "work"), "--toy"])
    for part in json.loads(path.read_text("utf-8"))["parts"]:
        assert part["outcome"] == "done", part
        assert part["results"] is None or not str(part["results"]).startswith("not read"), part
