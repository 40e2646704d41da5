"""BERT's Adam, its parameter groups and its learning rate (paper A.2; optimization.py of google-research/bert)."""

import re
from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import nn

from bert_repro.configs import OptimizerConfig

# With beta2 = 0.999 both bias corrections, 1 - beta**step, are exactly 1 in float32 from step 2**15 on; float32 counts
# steps exactly up to 2**24, so a run of 15 million steps fits above this start.
_UNCORRECTED_STEP = 2.0**20


class BertAdam(torch.optim.AdamW):
    """Adam with decoupled weight decay and, as in the original implementation, without bias correction.

    It is PyTorch's fused AdamW whose step counters start where the bias corrections have become 1, so no kernel of our
    own is needed.

    Args:
        params: parameters or parameter groups, already on their device.
        bias_correction: True gives plain AdamW.
        options: `lr`, `betas`, `eps`, `weight_decay` of `torch.optim.AdamW`.
    """

    def __init__(self, params: Iterable[Any], *, bias_correction: bool = False, **options: Any) -> None:
        super().__init__(params, fused=True, **options)
        _start_state(self, bias_correction)


class LazyBertAdam(torch.optim.Optimizer):
    """The same update written out, for XLA: its graphs take learning rate and step count as data.

    PyTorch's fused kernel cannot be part of such a graph.

    Args:
        params: parameters or parameter groups, already on their device.
        bias_correction: True gives plain AdamW.
        options: `lr`, `betas`, `eps`, `weight_decay`.
    """

    def __init__(self, params: Iterable[Any], *, bias_correction: bool = False, **options: Any) -> None:
        super().__init__(params, {"weight_decay": 0.0, **options})
        _start_state(self, bias_correction)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Makes one update."""
        for group in self.param_groups:
            (beta1, beta2), eps = group["betas"], group["eps"]
            # Learning rate and corrections go to the device as an array: a number would be part of the graph, which
            # would be compiled again at every step.
            scales: dict[float, torch.Tensor] = {}
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state, grad = self.state[parameter], parameter.grad
                step = float(state["step"].add_(1))
                if step not in scales:
                    numbers = [group["lr"], 1 - beta1**step, 1 - beta2**step]
                    scales[step] = torch.tensor(numbers, device=parameter.device)
                lr, correction1, correction2 = scales[step].unbind()
                mean = state["exp_avg"].lerp_(grad, 1 - beta1) / correction1
                square = state["exp_avg_sq"].mul_(beta2).addcmul_(grad, grad, value=1 - beta2) / correction2
                parameter.mul_(1 - lr * group["weight_decay"]).sub_(lr * mean / (square.sqrt() + eps))


def _start_state(optimizer: torch.optim.Optimizer, bias_correction: bool) -> None:
    start = 0.0 if bias_correction else _UNCORRECTED_STEP
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            device = parameter.device
            # For XLA the averages are created on the CPU: on the device they would be constants of the first update's
            # graph, and the second be compiled again. The step count stays there, as it is read at every update.
            optimizer.state[parameter] = {
                "step": torch.full((), start, dtype=torch.float32, device="cpu" if device.type == "xla" else device),
                "exp_avg": torch.zeros_like(parameter, device="cpu").to(device),
                "exp_avg_sq": torch.zeros_like(parameter, device="cpu").to(device),
            }


def parameter_groups(model: nn.Module, weight_decay: float, layer_decay: float = 1.0) -> list[dict[str, Any]]:
    """Returns groups of the trainable parameters: decayed, and not decayed (biases and LayerNorm).

    Args:
        model: any module; tied parameters count once.
        weight_decay: weight decay of the first group.
        layer_decay: below 1, every layer is a pair of groups whose learning rate is this times that of the layer above
            it (`lr_scale`): the top layer's once, the embeddings' once for each layer and once more.

    Source: optimization.py of google-research/bert (`exclude_from_weight_decay`); embeddings are decayed.
    """
    layer_norms = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, nn.LayerNorm)
        for parameter in module.parameters(recurse=False)
    }
    depths = layer_depths(model) if layer_decay != 1 else {}
    groups: dict[tuple[int, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            exempt = id(parameter) in layer_norms or name.rsplit(".", 1)[-1].startswith("bias")
            groups.setdefault((depths.get(name, 0), exempt), []).append(parameter)
    return [
        {"params": groups[depth, exempt], "weight_decay": 0.0 if exempt else weight_decay}
        | ({"lr_scale": layer_decay**depth} if depths else {})
        for depth, exempt in sorted(groups)
    ]


def layer_depths(model: nn.Module) -> dict[str, int]:
    """Returns how deep each parameter of a BERT lies: 0 the head and pooler, 1 the top layer, L + 1 the embeddings."""
    layers = int(cast(Any, model).config.num_hidden_layers)
    depths = {}
    for name, _ in model.named_parameters():
        found = re.search(r"\bencoder\.layer\.(\d+)\.", name)
        depths[name] = layers - int(found[1]) if found else (layers + 1 if "embeddings." in name else 0)
    return depths


def freeze(model: nn.Module, layers: int) -> None:
    """Stops training of the embeddings and the first layers of a BERT, before the optimizer is built.

    Args:
        model: a model with an encoder.
        layers: how many layers; 0 freezes the embeddings alone.
    """
    depths = layer_depths(model)
    total = int(cast(Any, model).config.num_hidden_layers)
    for name, parameter in model.named_parameters():
        if depths[name] > total - layers:
            parameter.requires_grad_(False)


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    """Returns BERT's optimizer for the trainable parameters of `model`, which must already be on its device."""
    device = next(model.parameters()).device
    groups = parameter_groups(model, config.weight_decay, getattr(config, "layerwise_lr_decay", 1.0))
    options: dict[str, Any] = {
        "lr": config.learning_rate,
        "betas": (config.adam_beta1, config.adam_beta2),
        "eps": config.adam_epsilon,
        "bias_correction": config.bias_correction,
    }
    adam = LazyBertAdam if device.type == "xla" else BertAdam
    return adam(groups, **options)


def accurate_norm(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """Returns the norm of all tensors together: of each row, then of the rows.

    On a CPU the float32 norm of a large matrix in one piece is off by up to 1e-3, since it is added up in float32 by a
    few long sums; this is off by 2e-7.
    """
    norms = []
    for tensor in tensors:
        rows = torch.linalg.vector_norm(tensor, dim=-1) if tensor.ndim > 1 else tensor
        norms.append(torch.linalg.vector_norm(rows))
    return cast(torch.Tensor, torch.linalg.vector_norm(torch.stack(norms)))


def set_learning_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    """Gives every parameter group the learning rate, times its own `lr_scale` where it has one."""
    for group in optimizer.param_groups:
        group["lr"] = value * group.get("lr_scale", 1.0)


def warmup_steps(config: OptimizerConfig, total_steps: int) -> int:
    """Returns the length of the warm-up in steps: `warmup_steps` where given, else the ratio's share, rounded down."""
    return int(total_steps * config.warmup_ratio) if config.warmup_steps is None else config.warmup_steps


def learning_rate(step: int, config: OptimizerConfig, total_steps: int) -> float:
    """Returns the learning rate of one step: linear warm-up from 0, then linear decay to 0.

    Args:
        step: number of updates already made, so the first step has learning rate 0 when there is a warm-up.
        config: peak learning rate, warm-up, and `decay_from`: the decay is measured from step 0 (as in the original
            implementation, where it falls a little when the warm-up ends) or from the end of the warm-up.
        total_steps: steps of the run, all phases together.
    """
    warmup = warmup_steps(config, total_steps)
    if step < warmup:
        return config.learning_rate * step / warmup
    origin = warmup if config.decay_from == "warmup_end" else 0
    remaining = (total_steps - step) / max(1, total_steps - origin)
    return config.learning_rate * max(0.0, remaining)
