"""The public Python API: examples in docstrings run, objects of a notebook become files, errors are exceptions."""

import inspect
import json
import logging
import re
import shutil
import textwrap
from pathlib import Path
from typing import Any

import datasets
import pytest
import transformers

import bert_repro
from bert_repro import api
from bert_repro.configs import GlueConfig, NerConfig, SquadConfig
from bert_repro.errors import UserError
from bert_repro.in_memory_data import family_of, write_split
from bert_repro.tasks import configured_task

MOODS = [{"text": "What a bright morning.", "label": "good"}, {"text": "The road was cold.", "label": "bad"}]


ORDER = ["train_wordpiece", "train_tokenizer", "prepare_corpus", "pretrain", "finetune"]
WITHOUT_DOCSTRING = {"HEADS", "__version__"}


def examples() -> dict[str, str]:
    """The examples of the public names, in the order in which they build on each other."""
    found = {}
    for name in [*ORDER, *(other for other in bert_repro.__all__ if other not in ORDER)]:
        text = inspect.getdoc(getattr(bert_repro, name)) or ""
        example = re.search(r"(?<=\n\n)(?: {4}.*\n|\n)+", text + "\n")
        if example and name not in WITHOUT_DOCSTRING:
            # Any id of the Hub is here the model that the example of `pretrain` makes.
            found[name] = re.sub(r'"org/[\w-]+"', '"runs/tiny-bert"', textwrap.dedent(example[0]))
    return found


def test_the_examples_of_the_docstrings_run(world, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copy(world.text, "texts.txt")
    assert set(examples()) == set(bert_repro.__all__) - WITHOUT_DOCSTRING
    before = logging.getLogger("bert_repro").level  # other tests of this process may have set it
    for name, example in examples().items():
        # The modeling code, which is copied beside weights, names neither this package nor what it imports.
        scope = {name: getattr(bert_repro, name), "AutoTokenizer": transformers.AutoTokenizer}
        exec(compile(example, name, "exec"), scope)
    assert json.loads(Path("runs/moods/status.json").read_text())["code"] == 0
    assert bert_repro.read_results(Path("runs/moods"))["split"] == "validation"
    assert logging.getLogger("bert_repro").level == before, "what a run sets up it takes back"


def seen(monkeypatch: pytest.MonkeyPatch, **arguments: Any) -> Any:
    """The configuration that `finetune` runs."""
    configured: list[Any] = []
    monkeypatch.setattr(api, "_run", lambda recipe, config: configured.append(config))
    api.finetune(**arguments)
    return configured[0]


def test_objects_are_written_as_the_files_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"train": MOODS, "test": [{"text": "Rain."}], "learning_rate": 1e-4, "text_columns": "text"}
    config = seen(monkeypatch, model="m", output_dir=str(tmp_path / "out"), **given)
    assert isinstance(config, GlueConfig)
    assert (config.do_train, config.do_eval, config.do_predict) == (True, False, True)
    assert config.text_columns == ("text",)
    assert (config.train_file, config.learning_rate) == (str(tmp_path / "out-data" / "train.jsonl"), 1e-4)
    assert [json.loads(line) for line in Path(config.train_file).read_text().splitlines()] == MOODS


def test_columns_say_the_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = str(tmp_path / "out")
    tags = [{"tokens": ["Ada", "left"], "tags": ["B-PER", "O"]}]
    config = seen(monkeypatch, model="m", train=tags, output_dir=out)
    assert isinstance(config, NerConfig)
    assert Path(str(config.train_file)).read_text() == "Ada B-PER\nleft O\n"
    question = {"id": "q", "question": "Who?", "context": "Ada.", "answers": {"text": ["Ada"], "answer_start": [0]}}
    config = seen(monkeypatch, model="m", validation=[question], output_dir=out)
    assert isinstance(config, SquadConfig)
    assert Path(str(config.validation_file)).suffix == ".json"
    unanswerable = question | {"id": "r", "answers": {"text": [], "answer_start": []}}
    config = seen(monkeypatch, model="m", train=[question, unanswerable], output_dir=out)
    assert configured_task(config).name == "squad_v2"


def test_answers_may_be_a_list_of_objects_as_in_squads_files(tmp_path: Path) -> None:
    row = {"question": "Who?", "context": "Ada."}
    lists = {"text": ["Ada"], "answer_start": [0]}
    files = [
        write_split([row | {"answers": answers}], "questions", tmp_path, name)
        for name, answers in (("lists", lists), ("objects", [{"text": "Ada", "answer_start": 0}]))
    ]
    assert json.loads(files[0].read_text()) == json.loads(files[1].read_text())
    for wrong in ("Ada", [{"text": "Ada"}], {"text": ["Ada"], "answer_start": []}):
        with pytest.raises(UserError, match="row 0: answers must be a list of objects with text and answer_start"):
            write_split([row | {"answers": wrong}], "questions", tmp_path, "wrong")


@pytest.mark.parametrize(("texts", "name"), [([["Ada"]], "squad"), ([["Ada"], []], "squad_v2")])
def test_files_of_questions_say_which_task_of_squad_they_are_for(tmp_path, texts, name):
    rows = [
        {"question": "Who?", "context": "Ada.", "answers": {"text": text, "answer_start": [0] * len(text)}}
        for text in texts
    ]
    file = write_split(rows, "questions", tmp_path, "train")
    assert configured_task(SquadConfig(model_name_or_path="m", train_file=str(file))).name == name


class Frame:
    """What a pandas data frame offers here, without pandas."""

    columns = ("text", "label")

    def to_dict(self, how: str) -> list[dict[str, Any]]:
        assert how == "records"
        return [*MOODS, {"text": "No label.", "label": float("nan")}]


def test_datasets_frames_and_columns_are_equal_data(tmp_path: Path) -> None:
    names = datasets.ClassLabel(names=["bad", "good"])
    dataset = datasets.Dataset.from_list(MOODS).cast_column("label", names)
    columns = {name: [row[name] for row in MOODS] for name in ("text", "label")}
    kinds: list[Any] = [MOODS, dataset, columns]
    written = [write_split(kind, family_of(kind), tmp_path / str(number), "train") for number, kind in enumerate(kinds)]
    assert len({path.read_text() for path in written}) == 1
    frame: Any = Frame()
    lines = write_split(frame, family_of(frame), tmp_path / "frame", "test").read_text().splitlines()
    assert json.loads(lines[-1]) == {"text": "No label."}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "no data: give train="),
        ({"train": []}, "the data has no rows"),
        ({"train": ["text"]}, "a row is str, not a dict"),
        ({"train": [{"tokens": ["a"], "tags": []}]}, "row 1 has 1 tokens and 0 tags"),
        ({"train": MOODS, "learning_rate": -1.0}, "--learning_rate is -1.0; it must not be negative"),
        ({"train": MOODS, "preset": "large"}, "--preset 'large' is unknown; choose one of: glue"),
    ],
)
def test_bad_data_and_settings_are_one_line(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=r"^[^\n]*$") as raised:
        bert_repro.finetune(model="m", output_dir=str(tmp_path / "out"), **arguments)
    assert message in str(raised.value)


def test_a_configuration_excludes_everything_else() -> None:
    with pytest.raises(TypeError, match="not both"):
        bert_repro.finetune(GlueConfig(model_name_or_path="m", do_eval=True), seed=1)
