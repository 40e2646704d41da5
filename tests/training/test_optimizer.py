"""BERT's Adam against arithmetic done by hand, its groups, and the learning-rate curve."""

import numpy as np
import pytest
import torch
from errors import user_error
from torch import nn

from bert_repro import BertReproConfig, BertReproForSequenceClassification
from bert_repro.configs import GlueConfig, OptimizerConfig, PretrainingConfig
from bert_repro.training.optimizer import BertAdam, build_optimizer, learning_rate, parameter_groups, warmup_steps

GRADIENTS = np.array([[3.0, -4.0, 0.1], [0.5, 0.2, -0.3], [-2.0, 1.0, 0.0], [0.01, -0.02, 0.03], [1.0, 1.0, 1.0]])


def original_adam(start: np.ndarray, gradients: np.ndarray, *, decay: float, config: OptimizerConfig) -> np.ndarray:
    """The update of the original optimizer, written out in float64: no bias correction, decoupled decay, clipping."""
    weights, first, second = start.copy(), np.zeros_like(start), np.zeros_like(start)
    for step, gradient in enumerate(gradients):
        gradient = gradient / max(1.0, np.linalg.norm(gradient) / config.max_grad_norm)
        first = config.adam_beta1 * first + (1 - config.adam_beta1) * gradient
        second = config.adam_beta2 * second + (1 - config.adam_beta2) * gradient**2
        update = first / (np.sqrt(second) + config.adam_epsilon) + decay * weights
        weights = weights - learning_rate(step, config, len(gradients)) * update
    return weights


@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_five_steps_equal_the_original_update(decay: float) -> None:
    config = OptimizerConfig(learning_rate=1e-2, warmup_steps=2)
    start = np.array([0.5, -1.0, 2.0])
    parameter = nn.Parameter(torch.tensor(start))
    optimizer = BertAdam([parameter], lr=0.0, betas=(0.9, 0.999), eps=1e-6, weight_decay=decay)
    for step, gradient in enumerate(GRADIENTS):
        parameter.grad = torch.tensor(gradient)
        torch.nn.utils.clip_grad_norm_([parameter], config.max_grad_norm)
        optimizer.param_groups[0]["lr"] = learning_rate(step, config, len(GRADIENTS))
        optimizer.step()
    expected = original_adam(start, GRADIENTS, decay=decay, config=config)
    # clip_grad_norm_ adds 1e-6 to the norm, which moves the update in the seventh digit
    np.testing.assert_allclose(parameter.detach().numpy(), expected, rtol=0, atol=1e-8)


def test_bias_correction_is_plain_adamw() -> None:
    ours, upstream = (nn.Parameter(torch.tensor([1.0, -2.0])) for _ in range(2))
    options = {"lr": 1e-2, "betas": (0.9, 0.999), "eps": 1e-6, "weight_decay": 0.01}
    optimizers = BertAdam([ours], bias_correction=True, **options), torch.optim.AdamW([upstream], **options)
    for gradient in (0.3, -0.2, 0.1):
        for parameter, optimizer in zip((ours, upstream), optimizers, strict=True):
            parameter.grad = torch.tensor([gradient, 2 * gradient])
            optimizer.step()
    torch.testing.assert_close(ours, upstream)


def test_groups_exempt_biases_and_layer_norms_and_frozen_parameters() -> None:
    model = nn.ModuleDict({"embedding": nn.Embedding(4, 3), "dense": nn.Linear(3, 3), "LayerNorm": nn.LayerNorm(3)})
    decayed, kept = parameter_groups(model, 0.01)
    assert {id(p) for p in decayed["params"]} == {id(model["embedding"].weight), id(model["dense"].weight)}
    assert {id(p) for p in kept["params"]} == {id(model["dense"].bias), *map(id, model["LayerNorm"].parameters())}
    assert (decayed["weight_decay"], kept["weight_decay"]) == (0.01, 0.0)
    model = nn.Linear(2, 2).requires_grad_(False)
    model.bias.requires_grad_(True)
    optimizer = build_optimizer(model, OptimizerConfig())
    assert [p for group in optimizer.param_groups for p in group["params"]] == [model.bias]


def test_the_schedule_is_the_papers_and_has_no_drop_from_the_end_of_the_warmup() -> None:
    config = OptimizerConfig(learning_rate=1e-4, warmup_steps=10_000)
    rates = [learning_rate(step, config, 1_000_000) for step in (0, 5_000, 9_999, 10_000, 500_000, 1_000_000)]
    assert rates == pytest.approx([0.0, 5e-5, 9.999e-5, 9.9e-5, 5e-5, 0.0])
    config = OptimizerConfig(learning_rate=1e-4, warmup_steps=100, decay_from="warmup_end")
    assert learning_rate(100, config, 1000) == pytest.approx(1e-4)
    assert learning_rate(550, config, 1000) == pytest.approx(5e-5)
    assert warmup_steps(OptimizerConfig(warmup_ratio=0.1), 345) == 34
    assert warmup_steps(OptimizerConfig(warmup_ratio=0.1, warmup_steps=7), 345) == 7
    assert learning_rate(0, OptimizerConfig(warmup_steps=0), 10) == OptimizerConfig().learning_rate


def test_each_layer_learns_at_a_fraction_of_the_one_above_if_asked():
    shape = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 20}
    model = BertReproForSequenceClassification(BertReproConfig(num_hidden_layers=3, **shape))
    scales = {}
    for group in parameter_groups(model, 0.01, 0.5):
        scales |= {id(parameter): group["lr_scale"] for parameter in group["params"]}
    by_name = {name: scales[id(parameter)] for name, parameter in model.named_parameters()}
    assert by_name["classifier.weight"] == by_name["bert.pooler.dense.bias"] == 1.0
    assert by_name["bert.encoder.layer.2.output.dense.weight"] == 0.5
    assert by_name["bert.encoder.layer.0.output.LayerNorm.bias"] == 0.125
    assert by_name["bert.embeddings.word_embeddings.weight"] == 0.0625
    groups = parameter_groups(model, 0.01)
    assert [group["weight_decay"] for group in groups] == [0.01, 0.0]
    assert all("lr_scale" not in group for group in groups)


def test_a_learning_rate_of_zero_is_refused_for_training_and_allowed_for_evaluation():
    with user_error("--learning_rate 0", setting="learning_rate"):
        PretrainingConfig(corpus="c", learning_rate=0.0)
    task = {"model_name_or_path": "m", "task_name": "sst2", "learning_rate": 0.0}
    with user_error("--learning_rate 0", setting="learning_rate"):
        GlueConfig(**task, do_train=True)
    assert GlueConfig(**task, do_eval=True).learning_rate == 0
