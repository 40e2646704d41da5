"""A dataset of the Hub by its id: read, trained on, and named on the card by ids that the Hub understands."""

import io
from pathlib import Path

import datasets
import pytest
from datasets import ClassLabel, Dataset, Features, Value
from errors import user_error
from fake_hub import FakeHub, Repo
from huggingface_hub import ModelCard
from running import recipe, results

from bert_repro.configs import GlueConfig
from bert_repro.tasks import configured_task

FEATURES = Features({"review": Value("string"), "sentiment": ClassLabel(names=["bad", "good"])})


def parquet(labels: list[int]) -> bytes:
    rows = [
        {"review": f"text {row} is {'good' if label else 'bad'}", "sentiment": label}
        for row, label in enumerate(labels)
    ]
    Dataset.from_list(rows, features=FEATURES).to_parquet(buffer := io.BytesIO())
    return buffer.getvalue()


@pytest.fixture
def online(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeHub:
    """The Hub with two datasets: one of two configurations, and one without a dev split."""
    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", hub.url)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets-cache")
    files = {
        f"{config}/{split}-0.parquet": parquet([1, 0] * 4)
        for config in ("films", "books")
        for split in ("train", "test")
    }
    configs = "".join(
        f"- config_name: {config}\n  data_files:\n"
        + "".join(f"  - split: {split}\n    path: {config}/{split}-*\n" for split in ("train", "test"))
        for config in ("films", "books")
    )
    card = f"---\nconfigs:\n{configs}---\n"
    repo = hub.repos["datasets/somebody/reviews"] = Repo(private=False)
    repo.commit("main", {**files, "README.md": card.encode()}, "rows")
    scripted = hub.repos["datasets/somebody/scripted"] = Repo(private=False)
    scripted.commit("main", {"scripted.py": b"raise SystemExit"}, "a script")
    converted = {f"books/{split}/0000.parquet": parquet([1, 0] * 2) for split in ("train", "test")}
    other = {"films/train/0000.parquet": parquet([1] * 3)}
    scripted.commit("refs/convert/parquet", {**converted, **other}, "converted rows")
    return hub


def test_a_run_on_a_dataset_of_the_hub_and_its_card(online: FakeHub, tmp_path: Path, pretrained: Path) -> None:
    code = recipe(
        "run_glue", "--model_name_or_path", pretrained, "--dataset_name", "somebody/reviews", "--dataset_config_name",
        "films", "--output_dir", tmp_path / "run", "--max_steps", 1, "--train_batch_size", 2,
    )  # fmt: skip
    assert code == 0
    found = results(tmp_path / "run")
    assert found["data"]["dataset"] == "somebody/reviews" and found["data"]["config"] == "films"
    assert found["data"]["split_names"] == {"train": "train", "validation": "test"}

    card = ModelCard.load(tmp_path / "run" / "README.md").data
    assert card.datasets == ["somebody/reviews"]
    claims = [(claim.dataset_type, claim.dataset_config, claim.dataset_split) for claim in card.eval_results]
    assert set(claims) == {("somebody/reviews", "films", "test")}


def test_a_score_on_a_part_of_the_split_is_not_tagged_as_the_splits(
    online: FakeHub, tmp_path: Path, pretrained: Path
) -> None:
    code = recipe(
        "run_glue", "--model_name_or_path", pretrained, "--dataset_name", "somebody/reviews", "--dataset_config_name",
        "films", "--output_dir", tmp_path / "run", "--max_steps", 1, "--train_batch_size", 2, "--max_eval_samples", 6,
    )  # fmt: skip
    assert code == 0
    assert not ModelCard.load(tmp_path / "run" / "README.md").data.eval_results


def test_a_missing_configuration_lists_those_that_are_there(online: FakeHub) -> None:
    config = GlueConfig(model_name_or_path="-", dataset_name="somebody/reviews")
    with user_error("films", "books", setting="dataset_config_name"):
        configured_task(config)


def test_an_unknown_dataset_is_one_line(online: FakeHub) -> None:
    config = GlueConfig(model_name_or_path="-", dataset_name="somebody/nothing")
    with user_error("somebody/nothing", setting="dataset_name"):
        configured_task(config)


def test_a_loading_script_is_not_run_and_the_hubs_parquet_files_are_read(online: FakeHub) -> None:
    config = GlueConfig(model_name_or_path="-", dataset_name="somebody/scripted")
    with user_error("films", "books", setting="dataset_config_name"):
        configured_task(config)
    config = GlueConfig(model_name_or_path="-", dataset_name="somebody/scripted", dataset_config_name="books")
    assert len(configured_task(config).load(None, ["train"])["train"]) == 4, "not the rows of the other configuration"
