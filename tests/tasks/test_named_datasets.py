"""Data by the name of a dataset: folders of files and of `save_to_disk`, their splits and columns."""

from pathlib import Path
from typing import Any

import datasets
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, List, Value
from errors import user_error
from running import recipe, results

from bert_repro.configs import GlueConfig, NerConfig, SquadConfig, SwagConfig
from bert_repro.tasks import configured_task

REVIEWS = Features(
    {"review": Value("string"), "sentiment": ClassLabel(names=["bad", "good"]), "review_id": Value("string")}
)


def reviews(labels: list[int]) -> Dataset:
    rows = [
        {"review": f"text {row} is {'very good' if label else 'bad'}", "sentiment": label, "review_id": f"r{row}"}
        for row, label in enumerate(labels)
    ]
    return Dataset.from_list(rows, features=REVIEWS)


@pytest.fixture
def saved(tmp_path: Path) -> str:
    """A folder by `save_to_disk`, with unlabelled rows in every split."""
    splits = {
        "train": reviews([1, 0, -1, 1, 0, 1]),
        "dev": reviews([0, 1, -1]),
        "test": reviews([-1, -1]),
    }
    DatasetDict(splits).save_to_disk(tmp_path / "saved")
    return str(tmp_path / "saved")


def glue(name: str, **settings: Any) -> GlueConfig:
    return GlueConfig(model_name_or_path="-", dataset_name=name, **settings)


def test_a_dataset_without_flags_is_trained_on_and_scored(saved: str) -> None:
    config = glue(saved)
    assert (config.do_train, config.do_eval, config.do_predict) == (True, True, False)


class TestSplits:
    def test_columns_are_found_by_their_types_and_unlabelled_rows_left_out(self, saved: str) -> None:
        task = configured_task(glue(saved, do_train=True, do_eval=True, do_predict=True))
        assert task.text_columns == ("review",)
        assert task.label_names == ("bad", "good")
        splits = task.load(None, ["train", "validation", "test"])
        assert splits["train"]["label"][:] == [1, 0, 1, 0, 1]
        assert splits["validation"]["label"][:] == [0, 1]
        assert len(splits["test"]) == 2 and "label" not in splits["test"].column_names

    def test_a_dataset_without_a_dev_split_is_scored_on_its_test_split(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        DatasetDict({"train": reviews([1, 0, 1]), "test": reviews([1, 0])}).save_to_disk(tmp_path)
        task = configured_task(glue(str(tmp_path)))
        assert task.load(None, ["validation"])["validation"]["label"][:] == [1, 0]
        assert "--validation_fraction" in caplog.text

    def test_a_fraction_replaces_a_dev_split(self, tmp_path: Path) -> None:
        reviews([1, 0] * 10).save_to_disk(tmp_path)
        task = configured_task(glue(str(tmp_path), validation_fraction=0.2))
        sizes = {name: len(split) for name, split in task.load(None, ["train", "validation"]).items()}
        assert sizes == {"train": 16, "validation": 4}

    def test_a_missing_split_names_those_that_are_there(self, tmp_path: Path, saved: str) -> None:
        with user_error("nothing", "train, dev, test", setting="train_split_name"):
            configured_task(glue(saved, train_split_name="nothing"))
        reviews([1, 0]).save_to_disk(tmp_path / "one")
        with user_error("--validation_fraction", setting="validation_split_name"):
            configured_task(glue(str(tmp_path / "one")))

    def test_a_named_split_is_used(self, saved: str) -> None:
        task = configured_task(glue(saved, train_split_name="dev", validation_split_name="train"))
        assert len(task.load(None, ["train"])["train"]) == 2


class TestFolders:
    @pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
    def test_a_folder_of_files(self, tmp_path: Path, ending: str) -> None:
        for name in ("train", "test"):
            split = Dataset.from_dict({"text": ["a good day", "a bad day"], "label": ["good", "bad"]})
            write = {"csv": split.to_csv, "jsonl": split.to_json, "parquet": split.to_parquet}[ending]
            write(tmp_path / f"{name}.{ending}")
        task = configured_task(glue(str(tmp_path)))
        assert task.label_names == ("bad", "good")
        assert task.data_description()["dataset"] is None, "a folder is no id of the Hub"

    def test_a_folder_of_images_is_refused(self, tmp_path: Path) -> None:
        from PIL import Image

        for name in ("a.png", "b.png"):
            Image.new("RGB", (2, 2)).save(tmp_path / name)
        with user_error("imagefolder", setting="dataset_name"):
            configured_task(glue(str(tmp_path)))

    def test_a_script_in_a_folder_is_not_run(self, tmp_path: Path) -> None:
        (tmp_path / f"{tmp_path.name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
        with user_error(tmp_path, setting="dataset_name"):
            configured_task(glue(str(tmp_path)))
        assert not (tmp_path / "ran").exists()

    def test_a_missing_folder_and_a_file(self, tmp_path: Path) -> None:
        with user_error(tmp_path / "none", setting="dataset_name"):
            configured_task(glue(str(tmp_path / "none")))
        (tmp_path / "rows.csv").write_text("text,label\nx,a\n")
        with user_error("--train_file", setting="dataset_name"):
            configured_task(glue(str(tmp_path / "rows.csv")))


class TestColumns:
    def test_two_columns_of_text_are_not_guessed(self, tmp_path: Path) -> None:
        features = Features({**REVIEWS, "title": Value("string")})
        rows = [{"review": "x", "title": "y", "sentiment": label, "review_id": "1"} for label in (0, 1)]
        split = Dataset.from_list(rows, features=features)
        DatasetDict({"train": split, "test": split}).save_to_disk(tmp_path)
        with user_error("review", "title", setting="text_columns"):
            configured_task(glue(str(tmp_path)))
        task = configured_task(glue(str(tmp_path), text_columns=("title",)))
        assert task.text_columns == ("title",)

    def test_lists_of_classes_are_tags(self, tmp_path: Path) -> None:
        features = Features({"pieces": List(Value("string")), "entities": List(ClassLabel(names=["O", "B-X", "I-X"]))})
        split = Dataset.from_list([{"pieces": ["Ada", "wrote"], "entities": [1, 0]}] * 3, features=features)
        DatasetDict({"train": split, "validation": split}).save_to_disk(tmp_path)
        task = configured_task(NerConfig(model_name_or_path="-", dataset_name=str(tmp_path)))
        assert task.primary_metric == "entity_f1"
        row = task.load(None, ["train"])["train"][0]
        assert row["words"] == ["Ada", "wrote"] and [task.label_names[tag] for tag in row["tags"]] == ["B-X", "O"]

    def test_questions_and_choices(self, tmp_path: Path) -> None:
        answers = {"text": ["Ada"], "answer_start": [0]}
        question = {"id": "1", "question": "Who wrote?", "context": "Ada wrote.", "answers": answers}
        split = Dataset.from_list([question])
        DatasetDict({"train": split, "validation": split}).save_to_disk(tmp_path / "qa")
        task = configured_task(SquadConfig(model_name_or_path="-", dataset_name=str(tmp_path / "qa")))
        assert task.name == "squad" and len(task.load(None, ["train"])["train"]) == 1

        choice = {"sent1": "Ada sat.", "sent2": "She", "ending0": "wrote.", "ending1": "flew.", "label": 0}
        split = Dataset.from_list([choice, {**choice, "label": 1}])
        DatasetDict({"train": split, "validation": split}).save_to_disk(tmp_path / "choices")
        swag = configured_task(SwagConfig(model_name_or_path="-", dataset_name=str(tmp_path / "choices")))
        assert swag.load(None, ["train"])["train"]["label"][:] == [0, 1]


@pytest.mark.parametrize("other", ["train_file", "data_dir"])
def test_a_dataset_and_files_exclude_each_other(other: str) -> None:
    with user_error("--dataset_name", f"--{other}", setting=other):
        glue("org/x", **{other: "y"})


def test_settings_of_a_dataset_need_its_name() -> None:
    with user_error("--dataset_name", setting="dataset_config_name"):
        GlueConfig(model_name_or_path="-", do_train=True, task_name="rte", dataset_config_name="x")
    with user_error("--dataset_name", "rte", setting="dataset_name"):
        glue("org/x", task_name="rte")


def test_a_run_and_its_results(saved: str, tmp_path: Path, pretrained: Path) -> None:
    code = recipe(
        "run_glue", "--model_name_or_path", pretrained, "--dataset_name", saved, "--output_dir", tmp_path / "run",
        "--max_steps", 1, "--train_batch_size", 2,
    )  # fmt: skip
    assert code == 0
    data = results(tmp_path / "run")["data"]
    assert data["text_columns"] == ["review"] and data["dataset"] is None
    assert data["files"] == {"train": "saved, split train", "validation": "saved, split dev"}


def test_a_dataset_dict_in_python(tmp_path: Path, pretrained: Path) -> None:
    import bert_repro

    data = datasets.DatasetDict({"train": reviews([1, 0] * 4), "dev": reviews([1, 0]), "unsupervised": reviews([-1])})
    run = bert_repro.finetune(
        model=pretrained, train=data, output_dir=str(tmp_path / "run"), max_steps=1, train_batch_size=2
    )
    assert run["rows_scored"] == 2 and run["data"]["text_columns"] == ["review"]


class TestPredictions:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        features = Features({"text": Value("string"), "label": ClassLabel(names=["0", "1"])})
        rows = [{"text": f"the river {row}", "label": row % 2} for row in range(9)]
        test = Dataset.from_list(rows, features=features)
        test.to_parquet(tmp_path / "data" / "test.parquet")
        unlabelled = Dataset.from_list([{**row, "label": -1} for row in rows], features=features)
        unlabelled.to_parquet(tmp_path / "data" / "train.parquet")
        return tmp_path / "data"

    @pytest.mark.parametrize("streaming", ["true", "false"])
    def test_a_split_is_predicted_with_the_names_of_its_classes(
        self, folder: Path, tmp_path: Path, finetuned: Path, streaming: str
    ) -> None:
        answers = tmp_path / "answers.jsonl"
        code = recipe(
            "predict", "--model_name_or_path", finetuned, "--dataset_name", folder, "--streaming", streaming,
            "--text_columns", "text", "--output_file", answers,
        )  # fmt: skip
        assert code == 0
        rows = Dataset.from_json(str(answers), cache_dir=str(tmp_path / streaming))
        assert rows["text"][:] == [f"the river {row}" for row in range(9)]
        assert rows["label"][:] == ["0", "1"] * 4 + ["0"]

    def test_a_split_without_labels_has_no_column_of_labels(
        self, folder: Path, tmp_path: Path, finetuned: Path
    ) -> None:
        answers = tmp_path / "answers.jsonl"
        code = recipe(
            "predict", "--model_name_or_path", finetuned, "--dataset_name", folder, "--dataset_split", "train",
            "--text_columns", "text", "--output_file", answers,
        )  # fmt: skip
        assert code == 0
        assert "label" not in Dataset.from_json(str(answers), cache_dir=str(tmp_path / "cache")).column_names

    def test_a_missing_split_and_two_inputs_are_refused(self, folder: Path) -> None:
        from bert_repro.configs import PredictConfig
        from bert_repro.tasks.named_datasets import read_split

        with user_error("dev", "test", setting="dataset_split"):
            read_split(str(folder), None, "dev", streaming=False)
        with user_error("--dataset_name", setting="input_file"):
            PredictConfig(model_name_or_path="m", dataset_name="org/x", input_file="a.csv")
        with user_error("--dataset_name", setting="streaming"):
            PredictConfig(model_name_or_path="m", streaming=True)

    def test_other_files_in_the_folder_are_another_input(self, folder: Path, tmp_path: Path) -> None:
        from bert_repro.tasks.named_datasets import identity_of

        before = identity_of(str(folder), None)
        assert identity_of(str(folder), None) == before
        Dataset.from_dict({"text": ["x"], "label": ["0"]}).to_parquet(folder / "validation.parquet")
        assert identity_of(str(folder), None) != before
