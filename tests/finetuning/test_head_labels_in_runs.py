"""Recipes that train a fine-tuned model further, with and without an adapter: each row stays with its label."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from running import recipe
from safetensors.torch import load_file
from tiny_models import save_model

HEADS = {"run_glue": "ForSequenceClassification", "run_ner": "ForTokenClassification"}


@pytest.mark.parametrize("peft", ["", "--peft lora"])
@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("data_labels", [("O", "X", "Y"), ("O", "X", "Y", "Z"), ("O", "X"), ("P", "Q", "R")])
def test_a_step_of_no_size_leaves_every_row_with_its_label(
    name: str, peft: str, data_labels: tuple[str, ...], world: Any, tmp_path: Path
) -> None:
    """At a learning rate of 1e-9 the published rows are those of the start, wherever the label's name is the same."""
    labels = ("Y", "O", "X")
    settings = {"id2label": dict(enumerate(labels)), "label2id": {label: row for row, label in enumerate(labels)}}
    start = save_model(world, tmp_path / "start", HEADS[name], initializer_range=0.5, **settings)
    data = tmp_path / ("data.jsonl" if name == "run_glue" else "data.txt")
    if name == "run_glue":
        rows = [{"text": f"the {label}", "label": label} for label in data_labels * 3]
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        data.write_text("".join(f"the {label}\n\n" for label in data_labels * 8))
    command = f"--do_train --learning_rate 1e-9 --max_steps 1 --train_batch_size 4 --max_seq_length 16 {peft}".strip()
    paths = ["--model_name_or_path", start, "--train_file", data, "--output_dir", tmp_path / "out"]
    assert recipe(name, command, *paths) == 0

    published = json.loads((tmp_path / "out" / "config.json").read_text())["id2label"]
    before = load_file(start / "model.safetensors")["classifier.weight"]
    after = load_file(tmp_path / "out" / "model.safetensors")["classifier.weight"]
    assert len(after) == len(data_labels)
    for row in range(len(data_labels)):
        label = published[str(row)]
        same = [torch.allclose(after[row], other, atol=1e-5) for other in before]
        assert same == [label == other for other in labels], label
