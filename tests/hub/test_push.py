"""Complete folders reach a Hub once, checked, and every refusal is one line. The Hub is a local server (fake_hub)."""

import hashlib
import json
import re
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from errors import user_error
from fake_hub import READER, WRITER, Fault
from running import error_line, recipe
from safetensors.torch import save_file
from tiny_models import word_model, word_tokenizer

import bert_repro
from bert_repro.hub.export import export_checkpoint
from bert_repro.hub.push import published_files, push_folder

TOKENIZER = word_tokenizer("paris is the capital of france . a film that never lets you go")
LABELS = {0: "dull", 1: "lively"}
REPO = "org/toy"


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A published classifier in two shards, with what else a run leaves in its folder."""
    model = word_model(TOKENIZER, "ForSequenceClassification", id2label=LABELS)
    save = model.save_pretrained
    model.save_pretrained = lambda folder: save(folder, max_shard_size="12KB")
    record = {"task": "sst2", "split": "validation", "metrics": {"accuracy": 0.5}, "rows_scored": 2, "seed": 1}
    record["settings"] = {"model_name_or_path": "/srv/private/bert", "data_dir": "/srv/private/glue"}
    folder = export_checkpoint(model, TOKENIZER, tmp_path_factory.mktemp("run") / "toy", results=record)
    for name in ("predictions.validation.tsv", "status.json", "checkpoints/step-5/trainer_state/state.json"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")
    assert len(list(folder.glob("model-*.safetensors"))) == 2
    return folder


@pytest.fixture
def folder(exported: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(exported, tmp_path / "toy"))


def test_a_push_sends_the_published_files_as_one_commit(hub, folder):
    address = push_folder(folder, REPO)
    repo = hub.repos[REPO]
    sha, tree = repo.tree("main")
    assert address == f"{hub.url}/{REPO}/commit/{sha}"
    assert repo.messages == ["initial commit", "Upload toy"]
    assert set(tree) >= {"config.json", "modeling_bert_repro.py", "tokenizer.json", "README.md", "results.json"}
    assert not [name for name in tree if "predictions" in name or "trainer_state" in name or "status" in name]
    for name, content in tree.items():
        assert b"/srv/private" not in content, name
        if name not in (".gitattributes", "README.md", "config.json", "results.json"):
            assert (folder / name).read_bytes() == content
    sent, kept = json.loads(tree["config.json"]), json.loads((folder / "config.json").read_text())
    assert sent.pop("auto_map")["AutoModel"] == f"{REPO}--modeling_bert_repro.BertReproModel"
    assert kept.pop("auto_map")["AutoModel"] == "modeling_bert_repro.BertReproModel" and sent == kept
    card = tree["README.md"].decode()
    assert f"\n# {REPO}\n" in card and f'pipeline("text-classification", model="{REPO}", truncation=True)' in card
    assert "# toy\n" in (folder / "README.md").read_text() and '"toy"' not in card


@pytest.mark.usefixtures("remote_code")
def test_a_copy_that_upstream_classes_saved_elsewhere_still_finds_its_code(hub, folder, tmp_path):
    push_folder(folder, REPO)
    auto = transformers.AutoModelForSequenceClassification
    upstream = auto.from_pretrained(REPO)
    assert type(upstream).__module__.startswith("transformers.")
    upstream.save_pretrained(tmp_path / "elsewhere")
    assert not list((tmp_path / "elsewhere").glob("*.py"))
    model = auto.from_pretrained(tmp_path / "elsewhere", trust_remote_code=True)
    assert type(model).__module__.startswith("transformers_modules.")
    assert torch.equal(model.classifier.weight, upstream.classifier.weight)


def test_an_adapter_travels_with_its_labels_and_tokenizer(folder):
    (folder / "adapter").mkdir()
    for name in ("adapter_config.json", "config.json", "tokenizer.json", "notes.txt"):
        (folder / "adapter" / name).write_text("{}")
    save_file({"lora_A.weight": torch.ones(2)}, folder / "adapter" / "adapter_model.safetensors")
    sent = {path.name for path in published_files(folder) if path.parent.name == "adapter"}
    assert sent == {"adapter_config.json", "adapter_model.safetensors", "config.json", "tokenizer.json"}


def test_an_unchanged_folder_makes_no_commit(hub, folder, caplog):
    first = push_folder(folder, REPO)
    stored = hub.count("PUT /lfs")
    assert push_folder(folder, REPO) == first
    assert len(hub.repos[REPO].commits) == 2
    assert hub.count("PUT /lfs") == stored


def test_files_that_are_gone_go_and_what_others_put_there_stays(hub, folder):
    push_folder(folder, REPO)
    _, tree = hub.repos[REPO].tree("main")
    by_hand = {"picture.svg": b"<svg/>", "onnx/model_bnb4.onnx": b"smaller"}
    hub.repos[REPO].commit("main", {**tree, **by_hand}, "by hand")
    model = bert_repro.BertReproForSequenceClassification.from_pretrained(folder)
    for shard in folder.glob("model*"):
        shard.unlink()
    model.save_pretrained(folder)
    push_folder(folder, REPO)
    _, tree = hub.repos[REPO].tree("main")
    assert [name for name in tree if name.startswith("model")] == ["modeling_bert_repro.py", "model.safetensors"]
    assert set(by_hand) < set(tree)


def test_an_upload_that_broke_goes_on_where_it_stopped(hub, folder):
    second = sorted(folder.glob("model-*.safetensors"))[1]
    oid = hashlib.sha256(second.read_bytes()).hexdigest()
    hub.faults = [Fault(f"PUT /lfs/{oid}", "cut", times=1000)]
    with user_error("--hub_model_id", REPO, "model-00002", setting="hub_model_id"):
        push_folder(folder, REPO)
    assert len(hub.repos[REPO].commits) == 1, "nothing half-uploaded may be seen"
    hub.faults, before = [], hub.count("PUT /lfs")
    push_folder(folder, REPO)
    assert hub.count("PUT /lfs") - before == 1, "the shard that arrived is not sent again"
    assert len(hub.repos[REPO].commits) == 2


def test_a_refusal_is_one_line_and_exit_code_2(hub, folder, capsys):
    hub.faults = [Fault("POST .*/batch", "quota", message="Private storage\nlimit reached")]
    assert recipe("push_to_hub", "--folder", folder, "--hub_model_id", REPO) == 2
    said = capsys.readouterr().err
    assert "Private storage limit reached" in error_line(said) and WRITER not in said


def test_a_link_is_not_followed(hub, folder, tmp_path, capsys):
    (folder / "README.md").rename(tmp_path / "elsewhere.md")
    (folder / "README.md").symlink_to(tmp_path / "elsewhere.md")
    assert recipe("push_to_hub", "--folder", folder, "--hub_model_id", REPO) == 2
    assert "README.md" in error_line(capsys.readouterr().err) and REPO not in hub.repos


def test_who_is_not_logged_in_or_may_not_write_there_is_reported(hub, folder, monkeypatch):
    with user_error("others"):
        push_folder(folder, "others/toy")
    monkeypatch.setenv("HF_TOKEN", READER)
    with user_error("rights to create a model"):
        push_folder(folder, REPO)
    monkeypatch.delenv("HF_TOKEN")
    with user_error("hf auth login"):
        push_folder(folder, REPO)


def test_private_stays_private(hub, folder):
    push_folder(folder, REPO, private=True)
    assert hub.repos[REPO].private
    push_folder(folder, "org/open")
    assert not hub.repos["org/open"].private
    with user_error("org/open", "--hub_private_repo"):
        push_folder(folder, "org/open", private=True)


def test_dry_run_lists_files_and_sizes_and_asks_the_hub_nothing(hub, folder, tmp_path, capsys):
    assert recipe("push_to_hub", "--folder", folder, "--hub_model_id", REPO, "--dry_run") == 0
    shown = capsys.readouterr().out
    assert re.search(r"\d,\d{3}  config\.json", shown)
    assert f"files to {REPO}" in shown
    assert "stays in" in shown and "predictions.validation.tsv" in shown.splitlines()[-1]
    with user_error("model.safetensors", setting="folder"):
        push_folder(tmp_path, REPO)
    assert not hub.requests


def test_a_run_that_was_stopped_is_not_published_with_the_weights_of_the_one_before(hub, folder):
    (folder / "status.json").write_text('{"code": 143, "reason": "stopped by signal 15"}')
    push_folder(folder, REPO)  # it has results: only its upload had failed
    (folder / "results.json").unlink()
    with user_error("stopped by signal 15", "--resume_from_checkpoint"):
        push_folder(folder, REPO)
    assert recipe("push_to_hub", "--folder", folder, "--hub_model_id", REPO, "--dry_run") == 2
    assert "results.json" in hub.repos[REPO].tree("main")[1]


def test_no_token_is_sent_elsewhere_or_stored(hub, folder):
    push_folder(folder, REPO)
    assert all(WRITER.encode() not in content for content in hub.repos[REPO].tree("main")[1].values())
    storing = [header for header in hub.headers_seen if header]
    assert storing and set(storing) == {f"Bearer {WRITER}"}


def test_checkpoints_become_revisions_that_load_and_say_how_far_the_run_had_come(hub, pretrained, capsys):
    push = ("push_to_hub", "--folder", pretrained, "--hub_model_id", "org/steps", "--checkpoints")
    assert recipe(*push, "all", "--dry_run") == 0
    assert "revision step-000040 of org/steps" in capsys.readouterr().out and not hub.requests
    assert recipe(*push, "20", "40") == 0
    repo = hub.repos["org/steps"]
    assert set(repo.branches) == {"main", "step-000020", "step-000040"}
    _, tree = repo.tree("step-000020")
    card = tree["README.md"].decode()
    rows = [json.loads(line) for line in (pretrained / "train_log.jsonl").read_text().splitlines()]
    (tokens,) = {row["tokens"] for row in rows if row["step"] == 20 and "tokens" in row}
    assert f"{tokens:,} tokens" in card and "step 20 of 60" in card
    assert not [name for name in tree if "trainer_state" in name] and "MLM accuracy" not in card
    weights = {
        revision: transformers.AutoModel.from_pretrained("org/steps", revision=revision).embeddings
        for revision in ("main", "step-000020", "step-000040")
    }
    words = [embeddings.word_embeddings.weight for embeddings in weights.values()]
    assert not torch.equal(words[0], words[1]) and not torch.equal(words[1], words[2])
    before = len(repo.commits)
    assert recipe(*push, "20", "40") == 0 and len(repo.commits) == before, "an unchanged push makes no commit"


def test_a_checkpoint_that_a_run_does_not_have_is_named(hub, pretrained, folder, capsys):
    push = ("push_to_hub", "--hub_model_id", REPO, "--folder")
    assert recipe(*push, pretrained, "--checkpoints", "21") == 2
    assert "20 40 60" in error_line(capsys.readouterr().err)
    assert recipe(*push, folder, "--checkpoints", "all") == 2
    assert REPO not in hub.repos, "nothing is pushed before the checkpoints are known"


def test_an_auto_map_with_the_pair_of_a_tokenizer_is_sent(hub, folder):
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"]["AutoTokenizer"] = [None, "tokenization.Fast"]
    (folder / "config.json").write_text(json.dumps(config))
    push_folder(folder, REPO)
    sent = json.loads(hub.repos[REPO].tree("main")[1]["config.json"])
    assert sent["auto_map"]["AutoTokenizer"] == [None, f"{REPO}--tokenization.Fast"]
