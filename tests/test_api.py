"""The public Python API: examples in docstrings run, data of a notebook is the data of a run, errors are exceptions."""

import inspect
import json
import logging
import math
import re
import shutil
import textwrap
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import transformers
from errors import user_error

import bert_repro
from bert_repro import api
from bert_repro.configs import GlueConfig, NerConfig, SquadConfig, SwagConfig
from bert_repro.finetuning.run import log_baselines

MOODS = [{"text": "What a bright morning.", "label": "good"}, {"text": "The road was cold.", "label": "bad"}]
ORDER = ["train_wordpiece", "train_tokenizer", "prepare_corpus", "pretrain", "finetune"]
WITHOUT_DOCSTRING = {"CorpusConfig", "HEADS", "TokenizerConfig", "__version__"}


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


def test_what_finetune_returns_has_the_model_and_its_scores(untrained: Path, tmp_path: Path) -> None:
    settings = {"train_batch_size": 4, "max_steps": 2, "class_weights": "balanced", "output_dir": str(tmp_path / "out")}
    found = bert_repro.finetune(model=untrained, train=MOODS * 8, validation=MOODS, **settings)
    assert found["metrics"] == found.metrics and found.folder == tmp_path / "out"
    assert found["settings"]["train_file"] == "train data in memory"
    assert found["data"]["files"] == {"train": "train data in memory", "validation": "validation data in memory"}
    assert found.model.config.id2label == {0: "bad", 1: "good"}
    assert [row["text"] for row in found.predict(["Rain.", None, math.nan])] == ["Rain.", None, None]
    assert bert_repro.RunResult(found.folder).metrics == found.metrics
    assert "accuracy, bag of words" in repr(found) and found._repr_html_().startswith("<table><tr><th>task</th>")
    assert not list(tmp_path.glob("out-data*")), "no files are made of the data"


def test_a_labelled_test_set_alone_is_scored(untrained: Path, tmp_path: Path) -> None:
    rows = [{"text": "the river", "label": "x"}, {"text": "a stone", "label": "y"}] * 4
    few: dict[str, Any] = {"max_steps": 1, "output_dir": tmp_path / "run"}
    result = bert_repro.finetune(model=untrained, train=rows, test=rows, **few)
    assert result["splits"]["test"]["metrics"]["accuracy"] >= 0 and "none: no dev data" in repr(result)
    assert (tmp_path / "run" / "scores.png").exists()


def test_labels_that_are_numbers_come_back_as_such(
    untrained: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = pd.DataFrame({"text": ["What a bright morning.", "The road was cold."] * 8, "label": [1, 0] * 8})
    with caplog.at_level(logging.INFO, "bert_repro"):
        found = bert_repro.finetune(
            model=untrained, train=frame, validation=frame, max_steps=2, train_batch_size=4, mixed_precision="bf16",
            output_dir=tmp_path / "out",
        )  # fmt: skip
    assert "16 rows: 2 steps, batch size 4" in caplog.text
    assert "degenerate run" in caplog.text and "does not beat" not in caplog.text
    assert "learning_rate=0.0003 bias_correction=True" in caplog.text, "arguments, not flags"
    log_baselines(GlueConfig(model_name_or_path="m", do_train=True), {**found, "degenerate": False})
    assert "does not beat the baseline most frequent label and bag of words" in caplog.text
    predicted = pd.DataFrame(found.predict(frame))
    assert (predicted.label == frame.label).all()
    assert (predicted.prediction == frame.label).mean() == found["metrics"]["accuracy"]
    assert [row["prediction"] for row in found.predict(frame["text"].to_numpy())] == predicted.prediction.tolist()
    found.push_to_hub(dry_run=True)
    assert "files to out" in capsys.readouterr().out
    settings = {"train_batch_size": 17, "output_dir": found.folder, "overwrite_output_dir": True}
    with user_error("train_batch_size=17", "16 inputs", setting="train_batch_size"):
        bert_repro.finetune(model=untrained, train=frame, **settings)
    assert bert_repro.RunResult(found.folder).metrics == found.metrics, "what is refused removes nothing"


def test_columns_say_the_task_and_data_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(api, "_run", lambda recipe, config, **data: seen.append((config, data["data"])))
    question = {"question": "Who?", "context": "Ada.", "answers": {"text": ["Ada"], "answer_start": [0]}}
    for rows, kind in (
        (MOODS, GlueConfig),
        ([{"tokens": ["Ada"], "tags": ["B-PER"]}], NerConfig),
        ([question], SquadConfig),
        ([{"sent1": "a", "sent2": "b", "ending0": "c", "ending1": "d", "label": 0}], SwagConfig),
    ):
        api.finetune(model="m", output_dir="out", train=rows, learning_rate=1e-4)
        config, data = seen.pop()
        assert type(config) is kind and (config.do_train, config.do_eval, config.do_predict) == (True, False, False)
        assert data["train"].to_list() == rows and config.learning_rate == 1e-4
    api.finetune(model="m", output_dir="out", train=MOODS, test=[{"text": "Rain."}], text_columns="text")
    config, _ = seen.pop()
    assert config.do_predict and config.text_columns == ("text",)


def test_bad_data_and_settings_are_one_line(tmp_path: Path) -> None:
    for arguments, *contained in (
        ({}, "train=", "config="),
        ({"train": []}, "train="),
        ({"train": ["text"]}, "train=", "row 1", "'text'"),
        ({"train": MOODS, "learning_rate": -1.0}, "learning_rate=-1.0"),
        ({"train": MOODS, "learning_rate": "1e-3"}, "learning_rate", "'1e-3'"),
        ({"train": MOODS, "num_epochs": 2}, "num_epochs", "num_train_epochs"),
        ({"train": MOODS, "model_name": "m"}, "model_name", "model?"),
        ({"train": MOODS, "preset": "large"}, "preset='large'", "glue"),
        ({"train": MOODS, "model": "./none"}, "model='./none'"),
        ({"train": [{"review": "Rain.", "label": "x"}]}, "text_columns", "review"),
    ):
        with user_error(*contained):
            bert_repro.finetune(**{"model": str(tmp_path), "output_dir": str(tmp_path / "out"), **arguments})
    with user_error("A warm evening.", setting="input_file"):
        bert_repro.predict(tmp_path, "A warm evening.")


def test_a_series_becomes_a_corpus_that_pretrain_takes_as_it_is(world, tmp_path: Path) -> None:
    texts = pd.Series(world.text.read_text("utf-8").split("\n\n")[:20])
    corpus = bert_repro.prepare_corpus(texts, tokenizer=world.tokenizer, output_dir=tmp_path / "corpus")
    assert repr(corpus).endswith(
        f"corpus: {corpus['counts']['documents']} documents, {corpus['counts']['tokens']:,} tokens"
    )
    tiny = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 1, "train_batch_size": 4}
    found = bert_repro.pretrain(corpus=corpus, max_steps=1, max_seq_length=32, output_dir=tmp_path / "bert", **tiny)
    assert found["train"]["steps"] == 1
    with user_error("Series", setting="corpus"):
        bert_repro.pretrain(corpus=texts, max_steps=1, output_dir=tmp_path / "bert")
    with user_error("bert"):
        found.predict(["A text."])
