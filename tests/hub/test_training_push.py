"""Training recipes that push: the finished model, checkpoints as revisions, the login tried before the first step."""

import json

import pytest
import torch
import transformers
from fake_hub import Fault

import bert_repro
from bert_repro import cli

TINY = "--num_hidden_layers 1 --hidden_size 16 --num_attention_heads 2 --max_seq_length 64 --train_batch_size 4 "
TINY += "--max_eval_sequences 8 --max_steps 4 --save_steps 2 --save_total_limit 1"


def pretrain(world, folder, *more: str) -> int:
    argv = [*TINY.split(), "--corpus", str(world.corpus), "--output_dir", str(folder), *more]
    with pytest.raises(SystemExit) as raised:
        cli.main("run_pretraining", argv=argv)
    return int(raised.value.code or 0)


def test_a_run_pushes_its_model_and_its_checkpoints(hub, world, tmp_path):
    more = "--push_to_hub --hub_model_id org/tiny --hub_private_repo --hub_strategy every_save".split()
    assert pretrain(world, tmp_path / "run", *more) == 0
    repo = hub.repos["org/tiny"]
    assert repo.private and set(repo.branches) == {"main", "step-0", "step-2", "step-4"}
    _, main = repo.tree("main")
    assert json.loads(main["results.json"])["train"]["steps"] == 4
    assert "flops" in json.loads(main["results.json"])["train"]
    for step in (0, 2, 4):
        card = repo.tree(f"step-{step}")[1]["README.md"].decode()
        assert f'revision="step-{step}"' in card and f"| optimizer steps | {step} |" in card and "Not run." in card
    weights = [repo.tree(f"step-{step}")[1]["model.safetensors"] for step in (0, 2, 4)]
    assert len(set(weights)) == 3 and weights[2] == main["model.safetensors"]
    untrained = transformers.AutoModelForPreTraining.from_pretrained("org/tiny", revision="step-0")
    assert not untrained.cls.predictions.bias.any()


def test_an_upload_that_fails_leaves_a_complete_folder(hub, world, tmp_path, capsys):
    hub.faults = [Fault("POST .*/commit/main", "refuse", 1, 403, "Storage quota exceeded")]
    assert pretrain(world, tmp_path / "run", "--push_to_hub", "--hub_model_id", "org/tiny") == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert "Storage quota exceeded" in line and "is complete" in line
    assert json.loads((tmp_path / "run" / "status.json").read_text())["code"] == 2
    assert (tmp_path / "run" / "model.safetensors").exists()
    with pytest.raises(SystemExit) as raised:
        cli.main("push_to_hub", argv=["--folder", str(tmp_path / "run"), "--hub_model_id", "org/tiny"])
    assert raised.value.code == 0


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("--push_to_hub --hub_model_id others/tiny", "rights to create a model"),
        ("--push_to_hub", "--push_to_hub needs --hub_model_id"),
        ("--hub_strategy every_save", "--hub_strategy every_save needs --push_to_hub"),
    ],
)
def test_what_cannot_be_pushed_is_reported_before_training(hub, world, tmp_path, capsys, more, message):
    assert pretrain(world, tmp_path / "run", *more.split()) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run" / "train_log.jsonl").exists()


def test_a_search_tries_the_login_before_its_first_run(hub, world, tmp_path, capsys):
    model = tmp_path / "model"
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    bert_repro.BertReproForMaskedLM(bert_repro.BertReproConfig(vocab_size=150, **sizes)).save_pretrained(model)
    transformers.AutoTokenizer.from_pretrained(world.tokenizer).save_pretrained(model)
    argv = f"--task_name sst2 --data_dir {world.glue} --model_name_or_path {model} --do_train --do_eval --max_steps 1 "
    argv += f"--sweep_learning_rates 1e-3 1e-4 --output_dir {tmp_path / 'run'} --push_to_hub --hub_model_id "
    with pytest.raises(SystemExit) as raised:
        cli.main("run_glue", argv=[*argv.split(), "others/tiny"])
    assert raised.value.code == 2
    assert "rights to create a model" in capsys.readouterr().err
    assert not list((tmp_path / "run").rglob("train_log.jsonl"))


@pytest.mark.parametrize("doing", ["--do_eval", "--do_predict", "--do_eval --do_predict"])
def test_a_run_that_makes_no_model_is_not_pushed(hub, world, tmp_path, capsys, doing):
    argv = f"--task_name sst2 --data_dir {world.glue} --model_name_or_path {tmp_path / 'model'} {doing} --output_dir "
    with pytest.raises(SystemExit) as raised:
        cli.main("run_glue", argv=[*argv.split(), str(tmp_path / "run"), "--push_to_hub", "--hub_model_id", "org/tiny"])
    assert raised.value.code == 2
    assert "--push_to_hub needs --do_train" in capsys.readouterr().err
    assert not hub.requests and not hub.repos
