"""What a run decides for a GPU, shown without one: shapes, compilation, batches, what its results say."""

import importlib
import importlib.metadata
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import pytest
import torch
from torch import nn

from bert_repro import BertReproConfig, BertReproForPreTraining
from bert_repro.configs import GlueConfig, PretrainingConfig, RunConfig
from bert_repro.configs.presets import PRESETS
from bert_repro.finetuning import data
from bert_repro.finetuning.run import STEPS_WORTH_COMPILING, FinetuningRun
from bert_repro.models import modeling_bert_repro as modeling
from bert_repro.pretraining.run import compile_options, resolve_layout, resolve_phases
from bert_repro.tasks import get_task
from bert_repro.training import environment, parallelism, performance, run
from bert_repro.training.batches import BatchSizes

GPU = torch.device("cuda")


def test_packed_batches_compile_for_any_number_of_tokens_and_padded_ones_for_one_shape() -> None:
    config = PretrainingConfig(corpus="c", max_steps=1)
    assert compile_options(resolve_layout(config, GPU)) == {"dynamic": True}
    assert compile_options(resolve_layout(replace(config, packing=False), GPU)) == {"dynamic": False}
    assert compile_options(resolve_layout(replace(config, static_shapes=True), GPU)) == {"dynamic": False}
    assert compile_options(resolve_layout(config, torch.device("cpu"))) is None


def test_long_fine_tuning_of_packed_batches_is_compiled() -> None:
    def compiles(steps: int, device: torch.device = GPU, bilstm: int | None = None, **settings: Any) -> bool:
        self: Any = SimpleNamespace(
            config=SimpleNamespace(**{"torch_compile": None, "packing": True} | settings),
            accelerator=SimpleNamespace(device=device),
            feature_cache=None,
            model=SimpleNamespace(config=SimpleNamespace(bilstm_size=bilstm)),
        )
        return FinetuningRun._compiles(self, steps)

    long = STEPS_WORTH_COMPILING
    assert compiles(long) and compiles(1, torch_compile=True)
    assert not any([compiles(long - 1), compiles(long, packing=False), compiles(long, bilstm=8)])
    assert not compiles(long, torch.device("cpu")) and not compiles(long, torch_compile=False)


def test_steps_of_fine_tuning_leave_the_reading_of_rows_to_the_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    features = datasets.Dataset.from_dict({"input_ids": [[1, 2], [3], [4]], "label": [0, 1, 0]})
    config = GlueConfig(model_name_or_path="-", task_name="sst2", do_train=True, max_steps=4)
    source = data.FinetuningSource(config, get_task("sst2"), features, BatchSizes(2, 2), 1, None)
    monkeypatch.setattr(data, "rows_of", lambda *_: pytest.fail("read while the device may wait"))
    steps = list(source.steps(None))
    assert len(steps) == 4 and not any(step.totals for step in steps)


def test_the_gpu_preset_makes_one_pass_of_256_sequences() -> None:
    config = PretrainingConfig(corpus="c", **PRESETS["gpu"].values)
    assert [phase.per_device_batch for phase in resolve_phases(config, 1)] == [256, 64]


def test_results_have_no_version_of_what_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.metadata.version

    def version(name: str) -> str:
        if name in ("datasets", "bert-repro"):
            raise importlib.metadata.PackageNotFoundError(name)
        return found(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    versions = environment.versions()
    assert versions["datasets"] is None and versions["bert_repro"] is None and versions["torch"]


def test_the_peak_is_measured_on_random_data_several_products_together(monkeypatch: pytest.MonkeyPatch) -> None:
    operands: list[torch.Tensor] = []
    monkeypatch.setattr(performance, "_seconds", lambda left, right: operands.extend([left, right]) or 1.0)
    performance.measured_peak(torch.device("cpu"), "bf16")
    assert all(operand.float().std() > 0.9 for operand in operands)
    assert performance._SIZES["cuda"] == 8192 and performance._PRODUCTS.get("cuda", 10) == 10


def test_replicas_keep_no_second_copy_of_their_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    device = SimpleNamespace(type="cpu")
    monkeypatch.setattr(
        run, "Accelerator", lambda **options: given.update(options) or SimpleNamespace(num_processes=1, device=device)
    )
    run._accelerator(RunConfig())
    assert [handler.gradient_as_bucket_view for handler in given["kwargs_handlers"]] == [True]


def test_shards_compile_each_layer_and_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    sharded: list[nn.Module] = []
    monkeypatch.setattr(parallelism, "fully_shard", lambda module, **_: sharded.append(module))
    monkeypatch.setattr(parallelism, "init_device_mesh", lambda *_: None)
    model = BertReproForPreTraining(
        BertReproConfig(vocab_size=20, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8)
    )
    accelerator: Any = SimpleNamespace(device=GPU, num_processes=2, mixed_precision="bf16")
    parallelism._shard(model, accelerator, {"backend": "eager"})
    assert [type(module) for module in sharded] == [modeling.BertReproLayer] * 2 + [type(model)]
    assert all(layer._compiled_call_impl is not None for layer in sharded[:2])
    assert "predict_masked" in vars(model)


def test_a_gpu_is_measured_over_long_iterations_of_a_large_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(Path(__file__).resolve().parents[2] / "benchmarks"), *sys.path])
    options = importlib.import_module("pretraining_step").parse(["--device", "cuda"])
    assert options.steps >= 50 and options.documents >= 20_000 and options.compiled
