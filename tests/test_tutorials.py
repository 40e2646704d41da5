"""The tutorials run as written, on tiny data: a small model takes the place of the Hub's, a few steps for thousands."""

import io
import json
import re
import shlex
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from running import recipe
from tiny_models import save_model

TUTORIALS = Path(__file__).resolve().parents[1] / "docs" / "tutorials"
HUB_MODEL = re.compile(r"google-bert/[\w-]+")
SMALLER = {
    "--vocab_size": "150", "--max_steps": "3", "--num_hidden_layers": "1", "--hidden_size": "32",
    "--train_batch_size": "4", "--eval_steps": "3", "--save_steps": "3", "--num_proc": "1", "--mixed_precision": "no",
    "--num_sequences": "50", "--warmup_steps": "1",
}  # fmt: skip
CLASSES = ("Versand", "Technik", "Buchhaltung")
PASSAGE = "the river falls under the old house near the road"


def write_classification(folder: Path) -> None:
    rows = [f'"the {word} stone sings slowly",{label}' for word in ("old", "bright", "small") for label in CLASSES]
    for name in ("train", "dev"):
        (folder / f"{name}.csv").write_text("text,label\n" + "\n".join(rows) + "\n", encoding="utf-8")
    (folder / "new.csv").write_text("ticket,text\n7,the old bird sings\n9,the river falls\n", encoding="utf-8")


def write_tags(folder: Path) -> None:
    for name in ("train", "dev"):
        (folder / f"{name}.txt").write_text("the O\nriver B-LOC\nfalls O\n\nthe O\nbird B-PER\nsings O\n\n" * 4)
    (folder / "new.txt").write_text("The river falls.\nthe bird\n")


def write_questions(folder: Path) -> None:
    rows = [f"what falls ?,{PASSAGE},old house", f"where is the glass ?,{PASSAGE},"] * 3
    for name in ("train", "dev"):
        (folder / f"{name}.csv").write_text("\n".join(["question,context,answer", *rows]) + "\n")
    (folder / "questions.txt").write_text("what falls ?\nwhere ?\n")
    (folder / "handbook.txt").write_text(PASSAGE)


@pytest.mark.parametrize(
    ("page", "write_data", "extra"),
    [
        ("pretrain", None, ""),
        ("continue_pretraining", None, ""),
        ("own_domain", None, ""),
        ("transformers_trainer", None, ""),
        ("classify", write_classification, "--max_steps 2 --bias_correction true"),
        ("tag", write_tags, "--max_steps 2"),
        ("answer_questions", write_questions, "--max_steps 2 --max_seq_length 48 --doc_stride 16 --max_query_length 8"),
    ],
)
def test_the_tutorial_runs(page, write_data, extra, world, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    model = save_model(world, tmp_path / "model", "ForPreTraining")
    (tmp_path / "my_text").mkdir()
    shutil.copy(world.text, "my_text")
    (tmp_path / "other_text").mkdir()
    half = world.text.read_text("utf-8").split("\n\n")[::2]
    (tmp_path / "other_text" / "text.txt").write_text("\n\n".join(half), encoding="utf-8")
    for name in ("english", "german"):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in half))
    if write_data:
        write_data(tmp_path)
    blocks = re.findall(r"```(bash|python|yaml)\n(.*?)```", (TUTORIALS / f"{page}.md").read_text("utf-8"), re.DOTALL)
    assert blocks
    torch.manual_seed(0)
    for kind, text in blocks:
        if kind == "yaml":
            Path(text.splitlines()[0].removeprefix("# ")).write_text(text)
            continue
        if kind == "python":
            exec(compile(HUB_MODEL.sub(str(model), text), f"{page}.md", "exec"), {})
            continue
        for command in re.sub(r"\\\n\s*", " ", text).strip().splitlines():
            if " | " in command:
                said, command = command.split(" | ")
                monkeypatch.setattr("sys.stdin", io.StringIO(shlex.split(said)[1]))
            words = shlex.split(HUB_MODEL.sub(str(model), command))
            assert words[0] == "bert-repro", command
            arguments = [SMALLER.get(flag, word) for flag, word in pairwise(words[1:])]
            if {"--do_train", "--train_file"} & set(arguments):
                arguments += extra.split()
            assert recipe(words[1], *arguments) == 0, command


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((TUTORIALS.parent / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_the_notebook_runs(path: Path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("checkpoints").symlink_to(TUTORIALS.parents[1] / "checkpoints")
    cells = [
        "".join(cell["source"]) for cell in json.loads(path.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"
    ]
    names: dict = {}
    for source in cells:
        if "IPython" not in source:  # which shows a picture
            exec(compile(source, path.name, "exec"), names)
    assert names["result"].metrics
