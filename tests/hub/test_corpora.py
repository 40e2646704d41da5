"""A prepared corpus goes to the Hub as a dataset, and a run on another machine pulls it by its id."""

import fnmatch
import json
import os
import shutil
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import yaml
from errors import user_error
from running import TINY, recipe

from bert_repro.corpus.prepared_corpus import PreparedCorpus
from bert_repro.hub.corpora import corpus_folder

DATASET = "org/toy-corpus"
LICENSED = "--license cc-by-sa-4.0 --language en"


def command(corpus: Path, *arguments: object) -> list[object]:
    return ["push_corpus", "--corpus", corpus, "--hub_dataset_id", DATASET, *arguments]


@pytest.fixture
def pushed(hub: Any, world: Any) -> dict[str, bytes]:
    """The files of the dataset."""
    assert recipe(*command(world.corpus, LICENSED, "--description", "Stories.")) == 0
    return dict(hub.repos[f"datasets/{DATASET}"].tree("main")[1])


def test_a_run_pulls_the_corpus_by_its_id(hub, world, pushed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert recipe("run_pretraining", TINY, "--max_steps 1 --corpus", DATASET, "--output_dir run") == 0
    pulled, here = PreparedCorpus.load(corpus_folder(DATASET)), PreparedCorpus.load(world.corpus)
    assert pulled.folder != here.folder and pulled.content_digest == here.content_digest
    assert np.array_equal(pulled.document_starts, here.document_starts)
    assert json.loads(Path("run/results.json").read_text())["settings"]["corpus"] == DATASET
    asked = hub.count("GET .*arrow")
    assert corpus_folder(DATASET) == pulled.folder and hub.count("GET .*arrow") == asked, "fetched once"


def test_card_license_and_manifest_are_sent_and_no_path_of_this_machine(world, pushed, tmp_path):
    manifest = json.loads(pushed["manifest.json"])
    assert set(pushed) == {".gitattributes", "README.md", "manifest.json", *manifest["sha256"]}
    assert manifest["settings"]["sources"][0][0] == Path(world.text).name
    assert not [name for name, content in pushed.items() if str(world.root).encode() in content]
    card = pushed["README.md"].decode()
    facts = yaml.safe_load(card.split("---\n")[1])
    assert (facts["license"], facts["language"]) == ("cc-by-sa-4.0", "en") and "*.arrow" in str(facts["configs"])
    assert f"bert-repro run_pretraining --corpus {DATASET}" in card and "Stories." in card
    assert f"{manifest['counts']['tokens']:,} tokens" in card
    for name in fnmatch.filter(pushed, "*.arrow"):
        (tmp_path / name).write_bytes(pushed[name])
    files = str(tmp_path / "*.arrow")  # what the card's metadata names for load_dataset
    rows = datasets.load_dataset("arrow", data_files=files, split="train", cache_dir=str(tmp_path / "cache"))
    here = datasets.load_from_disk(str(world.corpus))
    assert rows["input_ids"] == here["input_ids"] and rows["key"] == here["key"]


def test_an_unchanged_corpus_makes_no_commit_and_a_dry_run_asks_nothing(hub, world, pushed, capsys):
    before = len(hub.repos[f"datasets/{DATASET}"].commits)
    assert recipe(*command(world.corpus, LICENSED, "--description", "Stories.")) == 0
    assert len(hub.repos[f"datasets/{DATASET}"].commits) == before
    asked = hub.requests.copy()
    assert recipe(*command(world.corpus, LICENSED, "--dry_run")) == 0
    listed = capsys.readouterr().out
    assert "manifest.json" in listed and "README.md" in listed and f"to the dataset {DATASET}" in listed
    assert hub.requests == asked


def test_what_changed_on_its_way_is_found_before_it_is_read(hub, pushed):
    repo = hub.repos[f"datasets/{DATASET}"]
    part = next(name for name in pushed if name.endswith(".npy"))
    content = pushed[part]
    repo.commit("main", {**pushed, part: content[:-1] + bytes([content[-1] ^ 1])}, "by hand")
    with user_error(part):
        PreparedCorpus.load(corpus_folder(DATASET))


def test_a_damaged_corpus_is_not_sent(hub, world, refused, tmp_path):
    corpus = Path(shutil.copytree(world.corpus, tmp_path / "corpus"))
    with (corpus / "document_starts.npy").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x7f")
    assert "--license is missing" in refused(*command(world.corpus)) and not hub.requests
    assert "document_starts.npy is missing or has changed" in refused(*command(corpus, LICENSED)) and not hub.repos


def test_a_name_that_is_neither_folder_nor_dataset_says_so(hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with user_error("--corpus org/corpus", "prepare_corpus", setting="corpus"):
        corpus_folder("org/corpus")
    for path in (tmp_path / "no", Path("runs/corpus")):
        assert corpus_folder(str(path)) == path, "a path is never asked for"
