"""Bad task files through the recipes: one line with the file, its row, the value and the fix; exit code 2."""

import json
from typing import Any

import pytest

SWAG = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label\n"
CONLL = "-DOCSTART- -X- O O\n\nEU NNP I-NP I-ORG\nrejects VBZ I-VP O\n\n"


def squad(**answer: Any) -> str:
    question = {"id": "q7", "question": "Where?", "answers": [{"text": "Paris", "answer_start": 3, **answer}]}
    return json.dumps({"data": [{"paragraphs": [{"context": "In Paris.", "qas": [question]}]}]})


@pytest.mark.parametrize(
    ("name", "file", "content", "message"),
    [
        (
            "run_squad --task_name squad", "train-v1.1.json", squad(answer_start=5),
            "question 'q7': answer 'Paris' at 5 lies outside its context of 9 characters; correct answer_start",
        ),
        (
            "run_glue --task_name sst2", "SST-2/train.tsv", "sentence\tlabel\nfine\t1\nbroken\n",
            "line 3: 1 columns, expected 2; put one tab between columns",
        ),
        (
            "run_swag", "train.csv", f"{SWAG}0,v,1,x,He runs,to,gold,the tree,the house,the field,1\n",
            "line 2: 11 columns, expected 12; quote texts that hold commas, and give every row all columns",
        ),
        (
            "run_ner", "eng.train", f"{CONLL}Peter\n",
            "line 6: 'Peter' has no tag; write the word first and its tag last, on every line",
        ),
    ],
)  # fmt: skip
def test_one_line_names_place_value_and_fix(untrained, refused, tmp_path, name, file, content, message):
    path = tmp_path / "data" / file
    path.parent.mkdir(parents=True)
    path.write_text(content, encoding="utf-8")
    name, *task = name.split(" ", 1)
    places = ["--model_name_or_path", untrained, "--data_dir", tmp_path / "data", "--output_dir", tmp_path / "out"]
    line = refused(name, *task, *places, "--do_train --max_steps 1")
    assert line.startswith(f"error: {path}") and message in line
    status = json.loads((tmp_path / "out" / "status.json").read_text())
    assert status == {"code": 2, "reason": line.removeprefix("error: ")}
    assert not (tmp_path / "out" / "model.safetensors").exists()


def test_a_prediction_that_is_missing(refused, tmp_path):
    (tmp_path / "dev.json").write_text(squad())
    (tmp_path / "predictions.json").write_text('{"q8": "Paris"}')
    files = ["--data_file", tmp_path / "dev.json", "--predictions_file", tmp_path / "predictions.json"]
    line = refused("score_squad", *files)
    assert line.startswith(f"error: {tmp_path / 'predictions.json'}: no entry for question 'q7' (1 of 1 are missing); ")
