"""The best weights on dev are kept, training stops when they no longer improve, and a resumed run decides the same."""

from pathlib import Path

import pytest
import torch
from running import recipe, results
from small_models import tiny_bert
from torch import nn

from bert_repro.training.best_model import BestModel
from bert_repro.training.optimizer import freeze, parameter_groups

RUN = "--task_name sst2 --do_train --do_eval --max_steps 40 --eval_steps 5 --bias_correction true --logging_steps 1"


class Line(nn.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([value]))


def scored(folder: Path, scores: list[float], patience: int | None = 2) -> BestModel:
    best = BestModel(folder, "accuracy", patience=patience, keep_weights=True)
    for step, score in enumerate(scores, start=1):
        best.consider({"accuracy": score}, step, Line(float(step)))
        if best.should_stop:
            break
    return best


@pytest.mark.parametrize(
    ("scores", "best_step", "stale", "stops"),
    [([0.5, 0.6, 0.7], 3, 0, False), ([0.5, 0.7, 0.6, 0.7], 2, 2, True), ([0.5, 0.5, 0.6, 0.1], 3, 1, False)],
)
def test_the_first_of_the_highest_scores_is_kept(tmp_path, scores, best_step, stale, stops):
    best = scored(tmp_path, scores)
    model = Line(0.0)
    best.restore(model)
    assert (best.step, best.stale, best.should_stop, model.weight.item()) == (best_step, stale, stops, best_step)
    best.clear()
    assert not list(tmp_path.iterdir())


def test_without_patience_it_never_stops(tmp_path):
    assert not scored(tmp_path, [0.9, *[0.1] * 20], patience=None).should_stop


def test_a_replayed_log_leads_to_the_same_decision(tmp_path):
    whole = scored(tmp_path, [0.5, 0.7, 0.6])
    replayed = BestModel(tmp_path, "accuracy", patience=2, keep_weights=True)
    replayed.replay([{"step": 1, "eval_accuracy": 0.5}, {"step": 2, "eval_accuracy": 0.7}, {"step": 2, "loss": 1.0},
                     {"step": 3, "eval_accuracy": 0.6}])  # fmt: skip
    assert (replayed.step, replayed.score, replayed.stale) == (whole.step, whole.score, whole.stale)


def finetune(world, model: Path, folder: Path, *more: str) -> dict:
    where = f"--model_name_or_path {model} --data_dir {world.glue} --output_dir {folder}"
    assert recipe("run_glue", RUN, where, *more) == 0
    return results(folder)


def test_a_run_stops_early_and_publishes_its_best_weights(world, tmp_path):
    model = tiny_bert(world, tmp_path / "model")
    options = ("--learning_rate 1e-3", "--early_stopping_patience 2")
    found = finetune(world, model, tmp_path / "run", *options)
    train = found["train"]
    assert train["steps"] == train["best_step"] + 2 * 5 < 40
    again = tmp_path / "again"
    assert recipe("run_glue", f"--task_name sst2 --do_eval --data_dir {world.glue}",
                  f"--model_name_or_path {tmp_path / 'run'} --output_dir {again}") == 0  # fmt: skip
    assert results(again)["metrics"] == found["metrics"]
    assert not (tmp_path / "run" / "best").exists()


@pytest.mark.parametrize("flag", ["--early_stopping_patience 2", "--load_best_model_at_end"])
def test_it_needs_evaluations(world, tmp_path, capsys, flag):
    model = tiny_bert(world, tmp_path / "model")
    assert recipe("run_glue", f"--task_name sst2 --do_train --do_eval --model_name_or_path {model} {flag}") == 2
    assert "needs --do_train, --do_eval and --eval_steps" in capsys.readouterr().err


def test_frozen_layers_keep_their_weights_and_the_others_move(world, tmp_path):
    from transformers import AutoModel

    model = tiny_bert(world, tmp_path / "model")
    finetune(world, model, tmp_path / "run", "--freeze_layers 1 --learning_rate 1e-3")
    before, after = (AutoModel.from_pretrained(folder).state_dict() for folder in (model, tmp_path / "run"))
    moved = {name.split(".")[0] for name in before if not torch.equal(before[name], after[name])}
    assert moved == {"pooler"}


def layered() -> nn.Module:
    from bert_repro import BertReproConfig, BertReproForSequenceClassification

    shape = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 20}
    return BertReproForSequenceClassification(BertReproConfig(num_hidden_layers=3, **shape))


def test_each_layer_learns_at_a_fraction_of_the_one_above():
    model = layered()
    scales = {}
    for group in parameter_groups(model, 0.01, 0.5):
        scales |= {id(parameter): group["lr_scale"] for parameter in group["params"]}
    by_name = {name: scales[id(parameter)] for name, parameter in model.named_parameters()}
    assert by_name["classifier.weight"] == by_name["bert.pooler.dense.bias"] == 1.0
    assert by_name["bert.encoder.layer.2.output.dense.weight"] == 0.5
    assert by_name["bert.encoder.layer.0.output.LayerNorm.bias"] == 0.125
    assert by_name["bert.embeddings.word_embeddings.weight"] == 0.0625


def test_no_layer_decay_leaves_the_two_groups_of_the_paper():
    groups = parameter_groups(layered(), 0.01)
    assert [group["weight_decay"] for group in groups] == [0.01, 0.0]
    assert all("lr_scale" not in group for group in groups)


@pytest.mark.parametrize(("layers", "trained"), [(0, 3), (2, 1), (3, 0)])
def test_freezing_leaves_the_layers_above(layers, trained):
    model = layered()
    freeze(model, layers)
    assert not model.bert.embeddings.word_embeddings.weight.requires_grad
    moving = [layer.output.dense.weight.requires_grad for layer in model.bert.encoder.layer]
    assert moving == [False] * (3 - trained) + [True] * trained
    assert model.bert.pooler.dense.weight.requires_grad
