"""Metadata files with random changes are read or refused with one line: never another exception, never much time."""

import copy
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tiny_models import save_model

from bert_repro.configs import CardConfig
from bert_repro.corpus.prepared_corpus import PreparedCorpus, manifest_digest
from bert_repro.errors import UserError
from bert_repro.hub.card import write_card
from bert_repro.models.loading import load_config, load_tokenizer
from bert_repro.reproduction import size_presets
from bert_repro.reproduction.collect import collect
from bert_repro.reproduction.size_presets import find_size_preset

REPOSITORY = Path(__file__).parents[1]
CHANGES = 20  # of each kind of file
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 2.5, 10**9, 10**30, 1e308, "", "x", "../../outside", "\ud800", "<script>", "1e9",
    [], {}, [[]], [None], ["x"], {"a": {"a": []}}, {"0": None}, "y" * 10_000,
)  # fmt: skip


def places(content: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inside: list[tuple[Any, ...]] = [place] if place else []
    if isinstance(content, dict):
        for name, value in content.items():
            inside += places(value, (*place, name))
    elif isinstance(content, list):
        for index, value in enumerate(content[:3]):
            inside += places(value, (*place, index))
    return inside


def changed(content: Any, generator: random.Random) -> Any:
    """A copy with one to three other values, each as likely at the top as deep inside."""
    content = copy.deepcopy(content)
    for _ in range(generator.randint(1, 3)):
        all_places = places(content)
        depth = generator.choice(sorted({len(place) for place in all_places}))
        *path, name = generator.choice([place for place in all_places if len(place) == depth])
        parent = content
        for step in path:
            parent = parent[step]
        parent[name] = copy.deepcopy(generator.choice(VALUES))
    return content


@pytest.fixture
def model(world: Any, tmp_path: Path) -> Path:
    return save_model(world, tmp_path / "model", "ForSequenceClassification")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A fine-tuning run of the report, with its table entries."""
    folder = tmp_path / "runs" / "mrpc"
    folder.mkdir(parents=True)
    source = sorted((REPOSITORY / "docs/report/noise").glob("mrpc-*"))[0]
    (folder / "results.json").write_bytes((source / "results.json").read_bytes())
    return folder


def read_results_of(folder: Path) -> None:
    collect(folder)
    write_card(CardConfig(folder=str(folder)))


def check(path: Path, content: Any, read: Callable[[], object], *, seal: Callable[[Any], Any] = lambda it: it) -> None:
    generator = random.Random(path.name)
    for _ in range(CHANGES):
        text = json.dumps(seal(changed(content, generator)))
        path.write_text(text)
        began = time.monotonic()
        try:
            read()
        except UserError as error:
            assert str(error).isprintable()
        except Exception as error:
            pytest.fail(f"{type(error).__name__}: {error} at {path.name} with {text[:2000]}")
        assert time.monotonic() - began < 20


def test_results(run: Path) -> None:
    path = run / "results.json"
    check(path, json.loads(path.read_text()), lambda: read_results_of(run))


def test_config(model: Path) -> None:
    path = model / "config.json"
    check(path, json.loads(path.read_text()), lambda: load_config(str(model)))


def test_tokenizer_config(model: Path) -> None:
    path = model / "tokenizer_config.json"
    check(path, json.loads(path.read_text()), lambda: load_tokenizer(model))


def test_manifest(world: Any, tmp_path: Path) -> None:
    """The digest of the manifest is right, as in a file that somebody made on purpose."""

    def seal(content: Any) -> Any:
        return {**content, "manifest_sha256": manifest_digest(content)}

    for path in world.corpus.iterdir():
        if path.is_file():
            (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "tokenizer").symlink_to(world.tokenizer)
    path = tmp_path / "manifest.json"
    check(path, json.loads(path.read_text()), lambda: PreparedCorpus.load(tmp_path).token_counts(), seal=seal)


def test_study(tmp_path: Path) -> None:
    """JSON is YAML."""
    source = Path(size_presets.__file__).with_name("trial.yaml")
    path = tmp_path / "mine.yaml"
    check(path, yaml.safe_load(source.read_text()), lambda: find_size_preset(str(path)))
