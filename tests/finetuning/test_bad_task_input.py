"""Bad task files through the recipes: one line with the file, its row, the value and the fix; exit code 2."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from running import recipe
from transformers import AutoTokenizer

from bert_repro import BertReproConfig, BertReproForMaskedLM

SWAG = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label\n"
CONLL = "-DOCSTART- -X- O O\n\nEU NNP I-NP I-ORG\nrejects VBZ I-VP O\n\n"


def squad(**answer: Any) -> str:
    question = {"id": "q7", "question": "Where?", "answers": [{"text": "Paris", "answer_start": 3, **answer}]}
    return json.dumps({"data": [{"paragraphs": [{"context": "In Paris.", "qas": [question]}]}]})


@pytest.fixture(scope="module")
def base(world: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    torch.manual_seed(0)
    shape = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
    BertReproForMaskedLM(BertReproConfig(vocab_size=150, **shape)).save_pretrained(folder)
    AutoTokenizer.from_pretrained(world.tokenizer).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("name", "file", "content", "message"),
    [
        (
            "run_squad --task_name squad", "train-v1.1.json", squad(answer_start=5),
            "question 'q7': answer 'Paris' at 5 lies outside its context of 9 characters; correct answer_start",
        ),
        ("run_squad --task_name squad", "train-v1.1.json", '{"data": []}', "no questions; get the file again"),
        (
            "run_glue --task_name sst2", "SST-2/train.tsv", "sentence\tlabel\nfine\t1\nbroken\n",
            "line 3: 1 columns, expected 2; put one tab between columns",
        ),
        (
            "run_glue --task_name sst2", "SST-2/train.tsv", "sentence\tlabel\nfine\t1\nfine\tgood\n",
            "line 3: column 'label': label 'good' is not known; it must be one of: 0, 1",
        ),
        ("run_glue --task_name sst2", "SST-2/train.tsv", "sentence\tlabel\n", "no rows; name a file with at least one"),
        (
            "run_swag", "train.csv", f"{SWAG}0,v,1,x,He runs,to,gold,the tree,the house,the field,1\n",
            "line 2: 11 columns, expected 12; quote texts that hold commas, and give every row all columns",
        ),
        (
            "run_swag", "train.csv", f"{SWAG}0,v,1,x,He runs,to,gold,the tree,the house,the field,,1\n",
            "line 2: column 'ending3' is empty; every row needs 4 endings",
        ),
        (
            "run_swag", "train.csv", f"{SWAG}0,v,1,x,He runs,to,gold,a,b,c,d,4\n",
            "line 2: column 'label': label '4' is not known; it must be one of: 0, 1, 2, 3",
        ),
        ("run_swag", "train.csv", SWAG, "no rows; name a file with at least one"),
        (
            "run_ner", "eng.train", f"{CONLL}Peter\n",
            "line 6: 'Peter' has no tag; write the word first and its tag last, on every line",
        ),
        (
            "run_ner", "eng.train", f"{CONLL}Peter NNP I-NP I-HERO\n",
            "line 6: tag 'I-HERO' is not known; it must be one of: O, B-PER",
        ),
        ("run_ner", "eng.train", "-DOCSTART- -X- O O\n\n", "no words; name a file with a word and its tag"),
    ],
)  # fmt: skip
def test_one_line_names_place_value_and_fix(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, file: str, content: str, message: str
) -> None:
    path = tmp_path / "data" / file
    path.parent.mkdir(parents=True)
    path.write_text(content, encoding="utf-8")
    name, *task = name.split(" ", 1)
    arguments = [*task, "--model_name_or_path", base, "--data_dir", tmp_path / "data", "--output_dir", tmp_path / "out"]
    assert recipe(name, *arguments, "--do_train --max_steps 1") == 2
    stderr = capsys.readouterr().err
    assert "Traceback" not in stderr
    assert stderr.count("error: ") == 1
    last = stderr.rstrip().splitlines()[-1]
    assert last.startswith(f"error: {path}")
    assert message in last
    assert json.loads((tmp_path / "out" / "status.json").read_text()) == {
        "code": 2, "reason": last.removeprefix("error: "),
    }  # fmt: skip
    assert not (tmp_path / "out" / "model.safetensors").exists()


def test_a_prediction_that_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "dev.json").write_text(squad())
    (tmp_path / "predictions.json").write_text('{"q8": "Paris"}')
    files = ["--data_file", tmp_path / "dev.json", "--predictions_file", tmp_path / "predictions.json"]
    assert recipe("score_squad", *files) == 2
    last = capsys.readouterr().err.rstrip().splitlines()[-1]
    assert last.startswith(f"error: {tmp_path / 'predictions.json'}: no entry for question 'q7' (1 of 1 are missing); ")
