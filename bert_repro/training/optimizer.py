"""BERT's Adam, its parameter groups and its learning rate (paper A.2; optimization.py of google-research/bert)."""

import re
from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import nn

from bert_repro.configs import OptimizerConfig, TrainingSettings

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
        """Makes one update. A closure, which PyTorch's optimizers may call, is not used."""
        del closure
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            # Learning rate and corrections go to the device as an array. A number would be part of the graph, which
            # would then be compiled again at every step.
            scales: dict[float, torch.Tensor] = {}
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                grad = parameter.grad
                step = float(state["step"].add_(1))
                if step not in scales:
                    numbers = [group["lr"], 1 - beta1**step, 1 - beta2**step]
                    scales[step] = torch.tensor(numbers, device=parameter.device)
                learning_rate, correction1, correction2 = scales[step].unbind()

                # Adam's averages, then decoupled weight decay and the update.
                mean = state["exp_avg"].lerp_(grad, 1 - beta1) / correction1
                square = state["exp_avg_sq"].mul_(beta2).addcmul_(grad, grad, value=1 - beta2) / correction2
                update = mean / (square.sqrt() + group["eps"])
                parameter.mul_(1 - learning_rate * group["weight_decay"]).sub_(learning_rate * update)


def _start_state(optimizer: torch.optim.Optimizer, bias_correction: bool) -> None:
    """Creates the state of all parameters, which PyTorch's optimizers create at their first update."""
    start = 0.0 if bias_correction else _UNCORRECTED_STEP
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            device = parameter.device
            # For XLA the averages are created on the CPU. On the device they would be constants of the first update's
            # graph, and the second update would be compiled again. The step count stays on the CPU, because it is read
            # at every update.
            optimizer.state[parameter] = {
                "step": torch.full((), start, dtype=torch.float32, device="cpu" if device.type == "xla" else device),
                "exp_avg": torch.zeros_like(parameter, device="cpu").to(device),
                "exp_avg_sq": torch.zeros_like(parameter, device="cpu").to(device),
            }


def parameter_groups(model: nn.Module, weight_decay: float, layer_decay: float = 1.0) -> list[dict[str, Any]]:
    """Returns the trainable parameters in groups: with weight decay, and without (biases and LayerNorm).

    Args:
        model: any module; tied parameters count once.
        weight_decay: weight decay of the first kind of group.
        layer_decay: below 1, each layer has groups of its own, and their learning rate is this fraction of that of the
            layer above (`lr_scale`). The head has the full learning rate, the top layer `layer_decay` times that, the
            embeddings of a model with L layers `layer_decay ** (L + 1)`.

    Source: optimization.py of google-research/bert (`exclude_from_weight_decay`); embeddings are decayed.
    """
    layer_norm_parameters: set[int] = set()
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            layer_norm_parameters.update(id(parameter) for parameter in module.parameters(recurse=False))

    # Group by depth and by whether weight decay applies. Without layer decay all depths are 0.
    depths = layer_depths(model) if layer_decay != 1 else {}
    groups: dict[tuple[int, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        is_bias = name.rsplit(".", 1)[-1].startswith("bias")
        is_exempt = is_bias or id(parameter) in layer_norm_parameters
        groups.setdefault((depths.get(name, 0), is_exempt), []).append(parameter)

    options: list[dict[str, Any]] = []
    for depth, is_exempt in sorted(groups):
        group = {"params": groups[depth, is_exempt], "weight_decay": 0.0 if is_exempt else weight_decay}
        if depths:
            group["lr_scale"] = layer_decay**depth
        options.append(group)
    return options


def layer_depths(model: nn.Module) -> dict[str, int]:
    """Returns the depth of each parameter of a BERT: 0 for head and pooler, 1 for the top layer, L + 1 for "
    "embeddings."""
    num_layers = int(cast(Any, model).config.num_hidden_layers)
    depths: dict[str, int] = {}
    for name, _ in model.named_parameters():
        layer = re.search(r"\bencoder\.layer\.(\d+)\.", name)
        if layer:
            depths[name] = num_layers - int(layer[1])
        elif "embeddings." in name:
            depths[name] = num_layers + 1
        else:
            depths[name] = 0
    return depths


def freeze(model: nn.Module, layers: int) -> None:
    """Stops training of the embeddings and the first layers of a BERT, before the optimizer is built.

    Args:
        model: a model with an encoder.
        layers: number of layers, from the bottom; 0 freezes the embeddings alone.
    """
    depths = layer_depths(model)
    total = int(cast(Any, model).config.num_hidden_layers)
    for name, parameter in model.named_parameters():
        if depths[name] > total - layers:
            parameter.requires_grad_(False)


def build_optimizer(
    model: nn.Module, config: OptimizerConfig | TrainingSettings, layer_decay: float = 1.0
) -> torch.optim.Optimizer:
    """Returns BERT's optimizer for the trainable parameters of a model.

    Args:
        model: a model that is already on its device.
        config: Adam's settings.
        layer_decay: see `parameter_groups`.
    """
    device = next(model.parameters()).device
    groups = parameter_groups(model, config.weight_decay, layer_decay)
    options: dict[str, Any] = {
        "lr": config.learning_rate,
        "betas": (config.adam_beta1, config.adam_beta2),
        "eps": config.adam_epsilon,
        "bias_correction": config.bias_correction,
    }
    adam = LazyBertAdam if device.type == "xla" else BertAdam
    return adam(groups, **options)


def accurate_norm(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """Returns the norm of all tensors together, computed as the norm of the norms of their rows.

    On a CPU the float32 norm of a large matrix in one piece is off by up to 1e-3, because it is added up in float32 by
    a few long sums. This one is off by 2e-7.
    """
    norms: list[torch.Tensor] = []
    for tensor in tensors:
        rows = tensor if tensor.ndim <= 1 else torch.linalg.vector_norm(tensor, dim=-1)
        norms.append(torch.linalg.vector_norm(rows))
    return cast(torch.Tensor, torch.linalg.vector_norm(torch.stack(norms)))


def set_learning_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    """Sets the learning rate of every parameter group, times the group's own `lr_scale` if it has one."""
    for group in optimizer.param_groups:
        group["lr"] = value * group.get("lr_scale", 1.0)


def warmup_steps(config: OptimizerConfig | TrainingSettings, total_steps: int) -> int:
    """Returns the length of the warm-up in steps: `warmup_steps` if set, else `warmup_ratio` of all, rounded down."""
    if config.warmup_steps is not None:
        return config.warmup_steps
    return int(total_steps * config.warmup_ratio)


def learning_rate(step: int, config: OptimizerConfig | TrainingSettings, total_steps: int) -> float:
    """Returns the learning rate of one step: linear warm-up from 0, then linear decay to 0.

    Args:
        step: number of updates already made, so the first step has learning rate 0 when there is a warm-up.
        config: peak learning rate, warm-up, and `decay_from`. The decay is measured from step 0 (as in the original
            implementation, where the rate drops a little when the warm-up ends) or from the end of the warm-up.
        total_steps: steps of the run, all phases together.
    """
    warmup = warmup_steps(config, total_steps)
    if step < warmup:
        return config.learning_rate * step / warmup
    origin = warmup if config.decay_from == "warmup_end" else 0
    remaining = (total_steps - step) / max(1, total_steps - origin)
    return config.learning_rate * max(0.0, remaining)
