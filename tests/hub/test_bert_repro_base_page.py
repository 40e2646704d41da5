"""docs/how-to/bert_repro_base.md, command by command at toy size, against a Hub of the test's own."""

import json
import re
import shlex
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import datasets
import huggingface_hub
from fake_hub import Repo
from running import recipe

from bert_repro.configs import Phase
from bert_repro.configs.presets import PRESETS
from bert_repro.reproduction.size_presets import SIZE_PRESETS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "bert_repro_base.md"
SMALLER = {"--num_proc": "1", "--save_steps": "2"}
TOY = {
    "num_hidden_layers": 1,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "warmup_steps": 1,
    "mixed_precision": "bf16",
}
ROWS = {"train_batch_size": 8, "max_train_samples": 16, "max_seq_length": 16, "num_train_epochs": 1.0}


def upload(hub, name, files):
    hub.repos[name] = Repo(private=False)
    hub.repos[name].commit("main", files, "upload")


def download(words):
    """What `hf download` does with the flags of the page."""
    flags = dict(pairwise(words))
    kind, folder, names = flags["--repo-type"], flags["--local-dir"], flags["--include"]
    huggingface_hub.snapshot_download(words[2], repo_type=kind, local_dir=folder, allow_patterns=names)


def test_every_command_of_the_page_runs(hub, world, untrained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    documents = world.text.read_text("utf-8").split("\n\n")
    for name, file, half in (
        ("wikimedia/wikipedia", "20231101.en/train-0.parquet", 0),
        ("manu/project_gutenberg", "data/en-0.parquet", 1),
    ):
        datasets.Dataset.from_dict({"text": documents[half::2]}).to_parquet("rows.parquet")
        upload(hub, f"datasets/{name}", {file: Path("rows.parquet").read_bytes(), "data/other.txt": b"not taken"})
    upload(hub, "google-bert/bert-base-uncased", {path.name: path.read_bytes() for path in untrained.iterdir()})
    phases = (Phase(16, 2, 8, per_device_batch=4), Phase(32, 2, 8))
    for name in ("bert-repro-base", "one-gpu-day"):
        monkeypatch.setitem(
            PRESETS, name, replace(PRESETS[name], values={**PRESETS[name].values, **TOY, "phases": phases})
        )
    monkeypatch.setitem(SIZE_PRESETS, "one-gpu", replace(SIZE_PRESETS["one-gpu"], tasks={"sst2": ROWS}, seeds=(1, 2)))
    blocks = re.findall(r"```bash\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    for command in re.sub(r"\\\n\s*", " ", "".join(blocks)).strip().splitlines():
        words = shlex.split(command.removeprefix("accelerate launch -m ").replace("bert_repro ", "bert-repro "))
        if words[:2] == ["hf", "download"]:
            download(words)
            continue
        assert words[0] == "bert-repro", command
        arguments = [SMALLER.get(flag, word) for flag, word in pairwise(words[1:])]
        arguments += ["--glue_dir", str(world.glue)] if words[1] == "run_study" else []
        arguments += ["--vocab_size", "150"] if words[1] == "train_tokenizer" else []
        assert recipe(words[1], *arguments) == 0, command
    assert json.loads(Path("runs/corpus/manifest.json").read_text())["counts"]["documents"] == len(documents)
    report = Path("runs/report/report.md").read_text()
    assert "google-bert/bert-base-uncased against bert-repro-base" in report and "next to BERT-base" in report
    records = [
        json.loads(path.read_text())["study"]["model"] for path in Path("runs/study/records").glob("*/results.json")
    ]
    commit = hub.repos["google-bert/bert-base-uncased"].branches["main"]
    assert f"google-bert/bert-base-uncased {commit}" in {record["content"] for record in records}
    _, pushed = hub.repos["org/bert-repro-base"].tree("main")
    assert {"README.md", "config.json", "model.safetensors", "tokenizer.json"} <= set(pushed)
    assert b"license: apache-2.0" in pushed["README.md"]
