"""Training recipes that push: the finished model, the login tried before the first step."""

import json

import torch
import transformers
from fake_hub import Fault
from running import recipe
from safetensors.torch import load

TINY = "--num_hidden_layers 1 --hidden_size 16 --num_attention_heads 2 --max_seq_length 64 --train_batch_size 4 "
TINY += "--max_eval_sequences 8 --max_steps 4 --save_steps 2"


def pretraining(world, folder, *more: str) -> list[object]:
    return ["run_pretraining", TINY, "--corpus", world.corpus, "--output_dir", folder, *more]


def test_a_run_pushes_its_model_and_a_checkpoint_can_be_pushed_alone(hub, world, tmp_path):
    more = "--push_to_hub --hub_model_id org/tiny --hub_private_repo"
    assert recipe(*pretraining(world, tmp_path / "run", more)) == 0
    repo = hub.repos["org/tiny"]
    assert repo.private and json.loads(repo.tree("main")[1]["results.json"])["train"]["steps"] == 4
    checkpoint = tmp_path / "run" / "checkpoints" / "step-2"
    assert recipe("push_to_hub", "--folder", checkpoint, "--hub_model_id org/earlier") == 0
    _, tree = hub.repos["org/earlier"].tree("main")
    assert not [name for name in tree if "optimizer" in name or name == "results.json"]
    earlier = transformers.AutoModelForPreTraining.from_pretrained("org/earlier")
    assert torch.equal(earlier.bert.pooler.dense.bias, load(tree["model.safetensors"])["bert.pooler.dense.bias"])


def test_an_upload_that_fails_leaves_a_complete_folder(hub, world, tmp_path, refused):
    hub.faults = [Fault("POST .*/commit/main", "refuse", 1, 403, "Storage quota exceeded")]
    line = refused(*pretraining(world, tmp_path / "run", "--push_to_hub --hub_model_id org/tiny"))
    assert "Storage quota exceeded" in line and "is complete" in line
    assert json.loads((tmp_path / "run" / "status.json").read_text())["code"] == 2
    assert (tmp_path / "run" / "model.safetensors").exists()
    assert recipe("push_to_hub", "--folder", tmp_path / "run", "--hub_model_id org/tiny") == 0


def test_what_cannot_be_pushed_is_reported_before_training(hub, world, tmp_path, refused):
    for more, message in (
        ("--push_to_hub --hub_model_id others/tiny", "rights to create a model"),
        ("--push_to_hub", "--hub_model_id"),
    ):
        assert message in refused(*pretraining(world, tmp_path / "run", more))
        assert not (tmp_path / "run" / "train_log.jsonl").exists()
