"""Every recipe reads and writes the same formats, in any encoding."""

import json
import logging
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from running import recipe
from tiny_models import save_model

import bert_repro

TEXTS = ["Türen sind zu", "=1+1", "a stone", "the light"]
ROWS = [{"text": text, "label": label} for text, label in zip(TEXTS * 3, ["gut", "übel"] * 6, strict=True)]


def _plain(value: Any) -> Any:
    """Returns a list for an array, which pandas makes of the lists in Parquet files."""
    return value.tolist() if hasattr(value, "tolist") else value


FORMS = ["csv", "tsv", "jsonl", "xlsx", "parquet"]


def write(path: Path, rows: list[dict[str, Any]], encoding: str = "utf-8") -> Path:
    frame = pd.DataFrame(rows)
    match path.suffix:
        case ".xlsx":
            frame.to_excel(path, index=False)
        case ".parquet":
            frame.to_parquet(path)
        case ".jsonl":
            lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
            path.write_text("".join(lines), encoding=encoding)
        case suffix:
            frame.to_csv(path, index=False, sep="\t" if suffix == ".tsv" else ",", encoding=encoding)
    return path


def read(path: Path) -> pd.DataFrame:
    match path.suffix:
        case ".xlsx":
            return pd.read_excel(path)
        case ".parquet":
            return pd.read_parquet(path)
        case ".jsonl":
            return pd.DataFrame([json.loads(line) for line in path.read_text().splitlines()])
        case suffix:
            return pd.read_csv(path, sep="\t" if suffix == ".tsv" else ",")


@pytest.mark.parametrize("form", FORMS)
def test_training_and_prediction_in_every_form(untrained, tmp_path, form, caplog):
    data, out = write(tmp_path / f"in.{form}", ROWS, "cp1252"), tmp_path / "out"
    common = f"--model_name_or_path {untrained} --max_steps 1 --train_batch_size 4 --encoding cp1252"
    arguments = f"{common} --train_file {data} --validation_file {data} --output_dir {out}"
    with caplog.at_level(logging.WARNING, "bert_repro"):
        assert recipe("run_glue", arguments) == 0
    assert json.loads((out / "config.json").read_text())["id2label"] == {"0": "gut", "1": "übel"}
    assert "looks like UTF-8" not in caplog.text
    answers = tmp_path / f"answers.{form}"
    assert (
        recipe("predict", f"--model_name_or_path {out} --input_file {data} --encoding cp1252 --output_file {answers}")
        == 0
    )
    frame = read(answers)
    assert list(frame["text"]) == [row["text"] for row in ROWS] and set(frame["prediction"]) <= {"gut", "übel"}
    assert {"label", "prediction", "probability"} <= set(frame.columns) and frame["probability"].between(0, 1).all()


def test_the_message_for_another_encoding_names_the_flag(untrained, tmp_path, refused):
    data = write(tmp_path / "in.csv", ROWS, "cp1252")
    for command in (
        f"run_glue --model_name_or_path {untrained} --train_file {data} --output_dir {tmp_path / 'out'}",
        f"train_tokenizer --input_files {data} --output_dir {tmp_path / 'out'}",
    ):
        name, _, arguments = command.partition(" ")
        message = refused(name, arguments)
        assert "Türen" in message and "--encoding cp1252" in message and "line 2" in message


@pytest.mark.parametrize("form", FORMS)
def test_scores_and_features_in_every_form(world, tmp_path, form, refused):
    model = save_model(world, tmp_path / "model")
    data = write(tmp_path / f"in.{form}", [{"body": text} for text in TEXTS], "cp1252")
    # The column of texts has one name everywhere; both spellings are accepted.
    common = f"--model_name_or_path {model} --input_file {data} --encoding cp1252 --text_columns body"
    assert recipe("score_sentences", f"{common} --output_format {form} --output_dir {tmp_path / 'scores'}") == 0
    scores = read(tmp_path / "scores" / f"scores.{form}")
    assert list(scores["text"]) == TEXTS and (scores["score"] < 0).all()

    features = tmp_path / f"features.{form}"
    assert (
        recipe(
            "extract_features", f"{common} --pooling mean --layers last --max_seq_length 32 --output_file {features}"
        )
        == 0
    )
    frame = read(features)
    vectors = frame["features"].tolist() if "features" in frame else frame.to_numpy().tolist()
    assert len(vectors) == len(TEXTS) and {len(vector) for vector in vectors} == {32}
    if form in ("csv", "tsv", "xlsx"):
        arguments = f"{common} --max_seq_length 32 --output_file {tmp_path / 'tokens'}.{form}"
        assert "--pooling" in refused("extract_features", arguments)


@pytest.mark.parametrize("form", FORMS)
def test_tags_questions_and_choices_in_every_form(untrained, tmp_path, form):
    words = [["Ann", "sees", "Rome"], ["a", "stone"]]
    tags = [["B-PER", "O", "B-LOC"], ["O", "O"]]
    is_table = form in ("csv", "xlsx")
    tagged = []
    for sentence, its_tags in zip(words, tags, strict=True):
        tagged.append(
            {"words": " ".join(sentence), "tags": " ".join(its_tags)}
            if is_table
            else {"words": sentence, "tags": its_tags}
        )
    questions = [{"question": "Who?", "context": "Ann sees Rome", "answer": "Ann"}] * 4
    choices = [{"sent1": "a", "sent2": "b", "ending0": "stone", "ending1": "light", "label": "1"}] * 4
    data = {"run_squad": questions, "run_swag": choices}
    # A .tsv is tagged text: a word and its tag on each line.
    if form != "tsv":
        data["run_ner"] = tagged * 3
    for name, rows in data.items():
        file, out = write(tmp_path / f"{name}.{form}", rows), tmp_path / name
        arguments = f"--model_name_or_path {untrained} --train_file {file} --validation_file {file} --output_dir {out}"
        length = 64 if name != "run_squad" else "96 --max_query_length 16 --doc_stride 32"
        assert recipe(name, f"{arguments} --max_steps 1 --train_batch_size 2 --max_seq_length {length}") == 0
    if "run_ner" in data:
        answers = tmp_path / f"answers.{form}"
        arguments = f"--input_file {tmp_path / f'run_ner.{form}'} --output_file {answers}"
        assert recipe("predict", f"--model_name_or_path {tmp_path / 'run_ner'} {arguments}") == 0
        # What is written can be read again.
        columns = [name for name in read(answers).columns if name not in ("prediction", "probability")]
        rows = [
            {name: _plain(value) for name, value in row.items()} for row in read(answers)[columns].to_dict("records")
        ]
        again = tmp_path / f"again.{form}"
        arguments = f"--input_file {write(tmp_path / f'rows.{form}', rows)} --output_file {again}"
        assert recipe("predict", f"--model_name_or_path {tmp_path / 'run_ner'} {arguments}") == 0
        assert list(map(list, read(again)["prediction"])) == list(map(list, read(answers)["prediction"]))


def test_both_names_of_the_text_column_are_accepted_in_python(untrained, tmp_path):
    rows = [{"body": row["text"], "label": row["label"]} for row in ROWS]
    found = bert_repro.finetune(
        model=untrained, train=rows, text_column="body", max_steps=1, train_batch_size=4, output_dir=tmp_path / "out"
    )
    assert found["settings"]["text_columns"] == ["body"]
