"""Models for the page and for Node, with what transformers answers in Python: `make test-web`.

    python tests/inference/web_models.py FOLDER [RUN ...]

Without runs: bert-repro-mini, and a classifier, a tagger and a reader of passages that are fine-tuned from it on a few
made-up sentences. Of each a copy in FOLDER, its ONNX files in every type, and expected.json for recipes/web/tests.
"""

import itertools
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
import transformers

import bert_repro
from bert_repro.configs import OnnxConfig
from bert_repro.inference.onnx import export_onnx

MINI = Path(__file__).resolve().parents[2] / "checkpoints" / "bert-repro-mini"
NAMES, PLACES = ("Anna", "Peter", "Maria", "John"), ("Paris", "London", "Berlin", "Rome")
GOOD, BAD = ("bright", "wonderful", "fine", "lovely"), ("dark", "terrible", "poor", "ugly")
TEXTS = {
    "fill-mask": ["She [MASK] born in London in 1890."],
    "text-classification": ["It was a wonderful day in Rome."],
    "token-classification": ["Maria lived in Berlin, then in Paris."],
    "question-answering": ["John was born in London. Later he moved to Rome.", "Where was John born?"],
}
HEADS = {
    "ForPreTraining": "fill-mask", "ForMaskedLM": "fill-mask", "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification", "ForQuestionAnswering": "question-answering",
}  # fmt: skip


def fine_tune(root: Path) -> list[Path]:
    """Fine-tunes three models, a minute together on a free core."""
    moods, tags, questions = [], [], []
    for place, (name, good, bad) in itertools.product(PLACES, zip(NAMES, GOOD, BAD, strict=True)):
        for mood, label in ((good, "good"), (bad, "bad")):
            moods.append({"text": f"It was a {mood} day in {place}.", "label": label})
        tags.append({"tokens": [name, "lived", "in", place, "."], "tags": ["B-PER", "O", "O", "B-LOC", "O"]})
        context = f"{name} was born in {place}."
        answers = {"text": [place], "answer_start": [context.index(place)]}
        question = {"id": f"{name} {place}", "question": f"Where was {name} born?"}
        questions.append({**question, "context": context, "answers": answers})
    common: dict[str, Any] = {"learning_rate": 1e-3, "bias_correction": True, "train_batch_size": 8}
    for name, rows in (("moods", moods), ("tags", tags), ("questions", questions)):
        settings = common | {"num_train_epochs": 6, "max_seq_length": 96, "output_dir": str(root / name)}
        bert_repro.finetune(model=MINI, train=rows, validation=rows, **settings)
    return [root / name for name in ("moods", "tags", "questions")]


def expect(folder: Path) -> dict[str, Any]:
    """Asks transformers' pipeline, or for a question about a passage ours."""
    saved = json.loads((folder / "config.json").read_text())["architectures"][0]
    task = next(task for head, task in HEADS.items() if saved.endswith(head))
    texts, ours = TEXTS[task], task.replace("question", "extractive-question")
    run = transformers.pipeline(ours, model=str(folder), dtype=torch.float32)
    if task == "question-answering":
        answer = [[run(question=texts[1], context=texts[0])["answer"], None]]
    else:
        options = {"fill-mask": {"top_k": 5}, "text-classification": {"top_k": None}}.get(task, {})
        names = {"fill-mask": "token_str", "text-classification": "label", "token-classification": "entity"}
        answer = [[row[names[task]], float(row["score"])] for row in run(texts[0], **options)]
    return {"task": task, "inputs": texts, "answer": answer}


def main(root: Path, runs: list[Path]) -> None:
    root.mkdir(parents=True, exist_ok=True)
    if not runs:
        runs = [MINI, *fine_tune(root.parent / "runs")]
    for run in runs:
        folder = shutil.copytree(run, root / run.name, dirs_exist_ok=True)
        export_onnx(OnnxConfig(folder=str(folder), dtypes=("fp32", "fp16", "q8"), overwrite_output_file=True))
        (folder / "expected.json").write_text(json.dumps(expect(folder)))
        sys.stdout.write(f"{folder.name}: {(folder / 'expected.json').read_text()}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
