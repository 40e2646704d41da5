"""Left-to-right pre-training (Table 5's LTR): every next token is predicted, and fine-tuning stays causal."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from families import NAMES, families
from running import TINY, recipe, results
from tiny_models import NO_DROPOUT, save_model

from bert_repro import BertReproForSequenceClassification
from bert_repro.training import training_log

LTR = "--left_to_right true --next_sentence_prediction false"
SCORE = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")


@pytest.fixture(scope="module")
def left_to_right(world: Any) -> Path:
    folder: Path = world.root / "left-to-right"
    arguments = ("--corpus", world.corpus, "--output_dir", folder, "--max_steps 40 --save_steps 20 --eval_steps 20")
    assert recipe("run_pretraining", TINY, LTR, *arguments) == 0
    return folder


def test_it_learns_the_next_token_and_says_so(left_to_right: Path) -> None:
    rows = [row for row in training_log.read(left_to_right / "train_log.jsonl") if "loss" in row]
    losses = [row["loss"] for row in rows]
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.5
    assert all(0 <= row["accuracy"] <= 1 and row["mfu"] > 0 for row in rows)
    assert set(results(left_to_right)["metrics"]) == {"lm_loss", "lm_accuracy", "lm_perplexity"}
    found = results(left_to_right)["mlm_breakdown"]
    assert set(found) == {"by_frequency"}, "there are no masks to tell apart"
    assert sum(row["predictions"] for row in found["by_frequency"]) > 500


@pytest.fixture(scope="module")
def packed(world, short_losses, tmp_path_factory) -> tuple[Path, list[float]]:
    fields = {"is_decoder": True, "num_hidden_layers": 2, **NO_DROPOUT}
    model = save_model(world, tmp_path_factory.mktemp("model"), "ForCausalLM", **fields)
    return model, short_losses(model, LTR, "--packing true")


@pytest.mark.parametrize(
    "flag",
    [
        "--packing false --per_device_train_batch_size 5",
        "--static_shapes true --per_device_train_batch_size 8",
        "--static_shapes true --packing false --per_device_train_batch_size 7",
    ],
)
def test_layout_of_the_work_does_not_change_the_losses(short_losses, packed, flag):
    model, expected = packed
    assert len(expected) == 11 and short_losses(model, LTR, flag) == pytest.approx(expected, abs=2e-5)


def test_a_classifier_made_of_it_is_causal_and_tells_inputs_apart(world: Any, left_to_right: Path) -> None:
    folder = world.root / "left-to-right-sst2"
    data = ("--task_name sst2 --data_dir", world.glue, "--output_dir", folder)
    settings = "--do_train --do_eval --max_steps 40 --learning_rate 2e-3 --bias_correction true"
    assert recipe("run_glue", "--model_name_or_path", left_to_right, *data, settings) == 0
    assert not results(folder)["degenerate"]
    model = BertReproForSequenceClassification.from_pretrained(folder).eval()
    assert (model.config.is_decoder, model.config.pool_token) == (True, "last")
    first, second = torch.tensor([[2, 30, 40, 3]]), torch.tensor([[2, 30, 90, 3]])
    assert not torch.equal(model(first).logits, model(second).logits)
    states = [model.bert(ids).last_hidden_state[:, :2] for ids in (first, second)]
    assert torch.equal(*states)


@pytest.mark.parametrize("recipe_name", NAMES)
def test_with_a_bilstm_every_family_trains_and_is_scored_alike_again(world, tmp_path, recipe_name):
    save_model(world, tmp_path / "start", "ForCausalLM", is_decoder=True)
    family = families(world, tmp_path)[recipe_name]
    first, again = tmp_path / "first", tmp_path / "again"
    train = ["--do_train --max_steps 4 --learning_rate 1e-2 --bilstm_size 8 --model_name_or_path", tmp_path / "start"]
    assert recipe(recipe_name, *family.flags, *train, "--do_eval --output_dir", first) == 0
    published = json.loads((first / "config.json").read_text())
    assert (published["model_type"], published["bilstm_size"], published["is_decoder"]) == ("bert_repro", 8, True)
    evaluation = ["--do_eval --packing false --model_name_or_path", first, "--output_dir", again]
    assert recipe(recipe_name, *family.flags, *evaluation) == 0
    assert results(again)["metrics"] == pytest.approx(results(first)["metrics"])
    texts = [(folder / family.predictions).read_text() for folder in (first, again)]
    words, scores = zip(*((SCORE.split(text), [*map(float, SCORE.findall(text))]) for text in texts), strict=True)
    assert words[0] == words[1] and scores[0] == pytest.approx(scores[1], abs=2e-6)  # six digits are written
