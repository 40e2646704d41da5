"""The later tasks read from the Hub: hand-made rows in the columns, labels and file names of the published datasets."""

import io
from pathlib import Path
from typing import Any

import datasets
import pytest
from datasets import ClassLabel, Features, Value
from fake_hub import FakeHub, Repo

from bert_repro.tasks import TASKS

NLI = ("entailment", "neutral", "contradiction")
PAIR = {"premise": "A dog runs.", "hypothesis": "An animal moves."}
WIC = {"word": "bank", "sentence1": "The bank is wet.", "sentence2": "A bank lends."}
COPA = {"premise": "It fell.", "choice1": "It broke.", "choice2": "It flew.", "question": "effect"}
HANS = dict.fromkeys((f"{kind}parse_{text}" for kind in ("", "binary_") for text in PAIR), "( x )")
# Task -> dataset, branch, configuration, names of the labels, columns but the label, and what the task makes of them.
PUBLISHED: dict[str, tuple[str, str, str, tuple[str, ...], dict[str, Any], dict[str, Any]]] = {
    "boolq": ("aps/super_glue", "main", "boolq", ("False", "True"), {"question": "is it", "passage": "It is."}, {}),
    "cb": ("aps/super_glue", "main", "cb", ("entailment", "contradiction", "neutral"), PAIR, {}),
    "wic": (
        "aps/super_glue",
        "main",
        "wic",
        ("False", "True"),
        {**WIC, "start1": 4, "start2": 2, "end1": 8, "end2": 6},
        WIC,
    ),
    "copa": (
        "aps/super_glue",
        "main",
        "copa",
        ("choice1", "choice2"),
        COPA,
        {"sent1": "It fell. What happened as a result?", "ending0": "It broke.", "ending1": "It flew."},
    ),
    "paws": (
        "google-research-datasets/paws",
        "main",
        "labeled_final",
        ("0", "1"),
        {"id": 1, "sentence1": "a b", "sentence2": "b a"},
        {"sentence1": "a b", "sentence2": "b a"},
    ),
    "hans": (
        "jhu-cogsci/hans",
        "refs/convert/parquet",  # the main branch has a script, which `datasets` does not run
        "plain_text",
        ("entailment", "non-entailment"),
        {**PAIR, **HANS, "heuristic": "subsequence", "subcase": "sn_NP/S", "template": "temp1"},
        PAIR,
    ),
    "anli_r2": ("facebook/anli", "main", "plain_text", NLI, {"uid": "x", **PAIR, "reason": "It is."}, PAIR),
    "xnli_de": ("facebook/xnli", "main", "de", NLI, PAIR, {}),
}


@pytest.fixture
def online(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeHub:
    """The Hub, for `datasets` as well."""
    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", hub.url)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets-cache")
    return hub


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_later_task_is_read_from_the_hub(online: FakeHub, name: str) -> None:
    dataset_id, branch, configuration, label_names, columns, expected = PUBLISHED[name]
    task = TASKS[name]
    hidden = set(task.predict_splits)  # the Hub has them with the label -1
    kinds = {str: Value("string"), int: Value("int32")}
    features = Features(
        {**{key: kinds[type(value)] for key, value in columns.items()}, "label": ClassLabel(names=label_names)}
    )
    files, listed = {}, []
    for split in {task.train_split or "train", *task.eval_splits, *hidden}:
        labels = [-1, -1] if split in hidden else [1, 0]
        rows = datasets.Dataset.from_list([{**columns, "label": label} for label in labels], features=features)
        rows.to_parquet(buffer := io.BytesIO())
        if branch == "main":
            files[f"{configuration}/{split}-00000-of-00001.parquet"] = buffer.getvalue()
            listed.append(f"  - split: {split}\n    path: {configuration}/{split}-*\n")
        else:
            files[f"{configuration}/{split}/0000.parquet"] = buffer.getvalue()
    other = f"- config_name: other\n  data_files: {configuration}/none-*\n" * (configuration != "plain_text")
    card = f"---\nconfigs:\n- config_name: {configuration}\n  data_files:\n{''.join(listed)}{other}---\n"
    repo = online.repos[f"datasets/{dataset_id}"] = Repo(private=False)
    repo.commit("main", {"hans.py": b"raise SystemExit"}, "a script")
    repo.commit(branch, files | ({"README.md": card.encode()} if branch == "main" else {}), "rows")

    splits = task.load(None, [*task.eval_splits, *hidden])
    for split in task.eval_splits:
        assert (expected or columns).items() <= splits[split][0].items()
        assert splits[split]["label"][:] == [1, 0] and splits[split]["idx"][:] == [0, 1]
    for split in hidden:
        assert len(splits[split]) == 2 and "label" not in splits[split].column_names
