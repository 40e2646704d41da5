"""The feature-based approach through its recipe, and what the cache of a frozen encoder's states promises."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from families import families
from running import recipe, results
from tiny_models import save_model

from bert_repro import BertReproConfig, BertReproModel
from bert_repro.configs import NerConfig
from bert_repro.finetuning.frozen_encoder import FeatureCache

# One row of each kind; the others differ from these in the layers that they take, which test_bilstm.py sees.
ROWS = ("concat_last_four", "weighted_all")
SHAPE = {"num_hidden_layers": 4, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
PLAIN = {"initializer_range": 0.1, "hidden_dropout_prob": 0.0}
TRAIN = "--do_train --do_eval --do_predict --train_batch_size 8 --learning_rate 1e-2 "
TRAIN += "--bias_correction true --bilstm_size 32"


@pytest.fixture(scope="module")
def start(world: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(world, tmp_path_factory.mktemp("start"), **PLAIN, **SHAPE)


@pytest.fixture(scope="module")
def flags(world: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[object, ...]:
    """Files of one's own in which some words are places, wherever they are."""
    folder = tmp_path_factory.mktemp("data")
    families(world, folder)
    train, dev = (folder / "ner" / name for name in ("eng.train", "eng.testa"))
    return ("--max_seq_length 16 --train_file", train, "--validation_file", dev, "--test_file", dev)


@pytest.fixture
def encoder_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with every forward pass of an encoder."""
    calls: list[int] = []
    forward = BertReproModel.forward

    def counted(self: Any, *arguments: Any, **options: Any) -> Any:
        calls.append(1)
        return forward(self, *arguments, **options)

    monkeypatch.setattr(BertReproModel, "forward", counted)
    return calls


def test_each_row_learns_from_one_reading_of_the_encoder_and_is_scored_alike_again(
    start: Path, flags: tuple[object, ...], tmp_path: Path, encoder_calls: list[int]
) -> None:
    common = ["run_ner", *flags, "--feature_cache_dir", tmp_path / "cache", "--output_dir"]
    train = [TRAIN, "--max_steps 60 --warmup_ratio 0 --model_name_or_path", start]
    for row in ROWS:
        encoder_calls.clear()
        assert recipe(*common, tmp_path / row, *train, f"--feature_based {row}") == 0
        found, reads = results(tmp_path / row), row == ROWS[0]
        assert found["metrics"]["entity_f1"] > 0.7  # 0 is what a model that learned nothing gets
        assert found["splits"]["test"]["metrics"] == found["metrics"]  # a test set with tags is scored as well
        assert len(encoder_calls) == (3 if reads else 0)  # the training set in two batches, the dev set in one
        assert "flops" not in found["train"], "BERT's are not what was trained"
        predictions = (tmp_path / row / "predictions.validation.txt").read_text()
        for packing in ("true", "false"):  # the published model computes the states itself
            again = tmp_path / f"{row}-{packing}"
            model = ["--do_eval --packing", packing, "--model_name_or_path", tmp_path / row]
            assert recipe(*common, again, *model) == 0
            assert results(again)["metrics"] == found["metrics"]
            assert (again / "predictions.validation.txt").read_text() == predictions
        assert len(encoder_calls) > 0


# --- The cache ------------------------------------------------------------------------------------------------------


def tokenized() -> datasets.Dataset:
    generator = np.random.default_rng(0)
    rows = [generator.integers(5, 150, size=length).tolist() for length in (7, 3, 12, 5, 9)]
    segments = [[0] * len(row) for row in rows]
    return datasets.Dataset.from_dict({"input_ids": rows, "token_type_ids": segments, "length": [len(r) for r in rows]})


@pytest.fixture
def make_cache(tmp_path: Path) -> Callable[..., FeatureCache]:
    """Makes a cache in one folder, of an encoder with the same weights every time."""

    def make(*, seed: int = 0, settings: dict[str, Any] | None = None, **fields: Any) -> FeatureCache:
        torch.manual_seed(seed)
        shape = {"vocab_size": 150, "token_features": "last", "initializer_range": 0.1, **SHAPE, **fields}
        run = {"feature_based": "last", "feature_cache_dir": str(tmp_path), "per_device_eval_batch_size": 2}
        config = NerConfig(model_name_or_path="unused", do_train=True, **run, **(settings or {}))
        return FeatureCache(config, BertReproModel(BertReproConfig(**shape)).train(), torch.device("cpu"))

    return make


@pytest.mark.parametrize(
    "changed",
    [
        {"seed": 1},
        {"is_decoder": True},
        {"num_attention_heads": 4},
        {"hidden_act": "gelu_new"},
        {"layer_norm_eps": 1e-5},
        {"attn_implementation": "eager"},
        {"settings": {"mixed_precision": "bf16"}},
    ],
    ids=str,
)
def test_another_encoder_never_meets_these_states(make_cache, tmp_path, changed):
    for number, fields in enumerate((changed, {}), 1):
        make_cache(**fields).load(tokenized())
        assert len(list(tmp_path.iterdir())) == number
