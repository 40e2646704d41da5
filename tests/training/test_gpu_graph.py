"""What a GPU would compile, seen without one: a packed training step is one graph, whatever its batches hold."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fake_cuda import fake_gpu, fake_model, to_fake_gpu
from tiny_models import word_tokenizer

import bert_repro
from bert_repro import BertReproConfig
from bert_repro.pretraining.evaluation import count_right
from bert_repro.pretraining.masking import DataCollatorForBertPreTraining, ExampleBatch
from bert_repro.training.batches import collate_features
from bert_repro.training.trainer import TrainingForward
from bert_repro.utils.arrays import draw

PRETENDED = Path(__file__).parents[1] / "helpers" / "pretended_gpu.py"
TOKENIZER = word_tokenizer(" ".join(f"word{number}" for number in range(55)))
SHAPE = {"num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 128}
CONFIG = {"vocab_size": len(TOKENIZER), "problem_type": "single_label_classification", **SHAPE}
BATCHES = [(24, 9, 17, 8), (22, 23, 11, 9), (24, 12, 13, 8, 7, 9)]


def pretraining_batch(lengths: tuple[int, ...]) -> dict[str, Any]:
    """A masked batch of random examples of these lengths."""
    sizes = np.array(lengths)
    tokens = np.random.default_rng(0).integers(5, len(TOKENIZER), sizes.sum()).astype(np.int32)
    keys, labels = draw(0, np.arange(len(sizes))), np.zeros(len(sizes), dtype=np.int64)
    collate = DataCollatorForBertPreTraining(TOKENIZER, packing=True, return_prediction_positions=True)
    return collate(ExampleBatch(tokens, sizes, sizes // 2, labels, keys))


def task_batch(**labels: Callable[[int, int], torch.Tensor]) -> Callable[[tuple[int, ...]], dict[str, Any]]:
    """Makes batches of a task: `labels` from the numbers of sequences and tokens."""

    def batch(lengths: tuple[int, ...]) -> dict[str, Any]:
        features = [{"input_ids": [1] * length, "token_type_ids": [0] * length} for length in lengths]
        inputs = collate_features(features, pad_token_id=0, packing=True)
        return inputs | {name: made(len(lengths), sum(lengths)) for name, made in labels.items()}

    return batch


def of_sequences(sequences: int, tokens: int) -> torch.Tensor:
    return torch.zeros(sequences, dtype=torch.int64)


HEADS: dict[str, tuple[tuple[str, ...], Any]] = {
    "PreTraining": (("mlm_loss", "nsp_loss"), pretraining_batch),
    "SequenceClassification": (("loss",), task_batch(labels=of_sequences)),
    "TokenClassification": (("loss",), task_batch(labels=lambda _, tokens: torch.zeros(1, tokens, dtype=torch.int64))),
    "QuestionAnswering": (("loss",), task_batch(start_positions=of_sequences, end_positions=of_sequences)),
    "MultipleChoice": (("loss",), task_batch(labels=lambda sequences, _: of_sequences(sequences // 2, 0))),
}


def test_a_packed_training_step_is_one_graph() -> None:
    """Without gradients, which PyTorch's CPU build cannot record on a GPU; the slow test below has them."""
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        graphs.append(graph)
        return graph.forward

    terms, batch = HEADS["PreTraining"]
    torch.compiler.reset()
    with fake_gpu() as mode:
        model = fake_model(bert_repro.BertReproForPreTraining, BertReproConfig(**CONFIG), mode)
        compiled = torch.compile(TrainingForward(model, count_right), backend=backend, dynamic=True)
        for lengths in BATCHES:
            inputs = {name: to_fake_gpu(value, mode) for name, value in batch(lengths).items()}
            with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
                made = compiled(terms, inputs)
            assert all(value.shape == () for results in made for value in results.values())
    assert len(graphs) == 1
    called = [str(node.target) for node in graphs[0].graph.nodes if node.op == "call_function"]
    assert called.count("aten._flash_attention_forward") == SHAPE["num_hidden_layers"]


@pytest.mark.slow
def test_every_step_is_traced_with_its_gradients() -> None:
    """All heads and precisions, with and without recomputed activations, as one graph and by layer, and under DDP."""
    done = subprocess.run([sys.executable, str(PRETENDED)], stdout=subprocess.PIPE, text=True, timeout=1200, check=True)
    cases = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(cases) == 29
    assert [case for case in cases if "error" in case] == []
    for case in cases:
        uses_flash = case["dtype"] != "float32" and case["capability"][0] >= 8
        assert (case["flash"] > 0) == uses_flash, case
        if uses_flash and case["ddp"] and not case["by_layer"]:  # split where a bucket of gradients is full
            assert case["graphs"] >= 12, case
        elif uses_flash:  # forward and backward; DDP may split a layer, a batch of one sequence may have its own graph
            assert case["graphs"] == 2 or (case["graphs"] == 4 and (case["ddp"] or not case["by_layer"])), case
