"""Shared by all tests: no network, one thread, and a tiny world made once (text, tokenizer, corpus, GLUE files)."""

import functools
import os
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# What --deterministic needs on a GPU is read at the first product there, which another test may make.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
# Tokenized splits lie in a folder of these tests' own, also of the processes that they start.
os.environ["HF_DATASETS_CACHE"] = tempfile.mkdtemp(prefix="bert_repro-tests-")

import random
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from running import TINY, error_line, recipe
from tiny_models import save_model

from bert_repro.training import run, training_log

torch.set_num_threads(1)
# A run measures its device's peak, which stays what it is while these tests last, and waits for the disk at each file,
# which only a power failure would tell apart; of a closed file both calls are an error.
training_log.measured_peak = functools.cache(training_log.measured_peak)
os.fsync = os.fstat  # type: ignore[assignment]


_draw, _pictures = run.plot_training, {}


@functools.wraps(_draw)
def plot_training(path: Path, rows: Sequence[dict[str, Any]], results: dict[str, Any]) -> None:
    """Draws one picture of each kind of run and log; the other runs of that kind get a copy."""
    kind = results.get("task"), *sorted({name for row in rows for name in row}), *sorted(results.get("metrics", {}))
    if kind not in _pictures:
        _draw(path, rows, results)
        _pictures[kind] = path.read_bytes()
    path.write_bytes(_pictures[kind])


run.plot_training = plot_training


def pytest_sessionfinish() -> None:
    shutil.rmtree(os.environ["HF_DATASETS_CACHE"], ignore_errors=True)


WORDS = (
    "the a river stone bird light tree house green quiet small old bright falls runs sings grows turns slowly often "
    "never under over near with and but because while morning evening winter summer water glass road field"
).split()


@dataclass(frozen=True)
class World:
    """Paths of the tiny world."""

    root: Path
    text: Path
    tokenizer: Path
    corpus: Path
    glue: Path


def sentence(generator: random.Random) -> str:
    words = generator.choices(WORDS, k=generator.randint(5, 12))
    return " ".join(words).capitalize() + "."


def write_text(path: Path, documents: int, seed: int = 0) -> Path:
    generator = random.Random(seed)
    texts = ["\n".join(" ".join(sentence(generator) for _ in range(4)) for _ in range(5)) for _ in range(documents)]
    path.write_text("\n\n".join(texts) + "\n", encoding="utf-8")
    return path


def write_glue(folder: Path) -> Path:
    """SST-2 whose label is whether the sentence says "bright" or "dull": every one of ten seeds learns it."""
    generator = random.Random(1)
    (folder / "SST-2").mkdir(parents=True)
    for split, rows in (("train", 64), ("dev", 21)):
        lines = ["sentence\tlabel"]
        for row in range(rows):
            words = [word for word in sentence(generator).lower().split() if word.strip(".") != "bright"]
            lines.append(f"{3 * ('bright ' if row % 2 else 'dull ')}{' '.join(words)}\t{row % 2}")
        (folder / "SST-2" / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    tests = "\n".join(f"{row}\t{sentence(generator)}" for row in range(5))
    (folder / "SST-2" / "test.tsv").write_text(f"index\tsentence\n{tests}\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    from bert_repro.configs import CorpusConfig, TokenizerConfig
    from bert_repro.corpus.prepare import prepare_corpus
    from bert_repro.corpus.tokenizer import train_tokenizer

    root = tmp_path_factory.mktemp("world")
    text = write_text(root / "text.txt", documents=60)
    tokenizer, corpus = root / "tokenizer", root / "corpus"
    train_tokenizer(TokenizerConfig(input_files=(str(text),), output_dir=str(tokenizer), vocab_size=150))
    prepare_corpus(CorpusConfig(input_files=(str(text),), tokenizer=str(tokenizer), output_dir=str(corpus)))
    return World(root, text, tokenizer, corpus, write_glue(root / "glue"))


@pytest.fixture(scope="session")
def untrained(world: World) -> Path:
    """A checkpoint of one layer without heads."""
    return save_model(world, world.root / "untrained")


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a recipe that must end with code 2 and one line, which is returned."""

    def run(name: str, *arguments: object) -> str:
        assert recipe(name, *arguments) == 2
        return error_line(capsys.readouterr().err)

    return run


@pytest.fixture(scope="session")
def pretrained(world: World) -> Path:
    folder: Path = world.root / "pretrained"
    steps = "--max_steps 60 --save_steps 20 --eval_steps 30 --save_total_limit 3 --report_to tensorboard"
    assert recipe("run_pretraining", TINY, steps, "--corpus", world.corpus, "--output_dir", folder) == 0
    return folder


@pytest.fixture(scope="session")
def finetuned(world: World, pretrained: Path) -> Path:
    folder: Path = world.root / "finetuned"
    run = "--task_name sst2 --do_train --do_eval --do_predict --num_train_epochs 60 --train_batch_size 16"
    # Without bias correction 64 examples are too few for this width, as with upstream BERT: the loss stays at ln 2.
    rates = "--learning_rate 4e-3 --bias_correction true --warmup_ratio 0.3 --data_dir"
    places = [world.glue, "--model_name_or_path", pretrained, "--output_dir", folder]
    assert recipe("run_glue", run, rates, *places) == 0
    return folder


@pytest.fixture
def mount_point(tmp_path: Path) -> Iterator[Path]:
    """A folder that cannot be renamed: a real tmpfs where this process may mount one."""
    folder = tmp_path / "mounted"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "none", str(folder)], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("this process may not mount a tmpfs")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)
